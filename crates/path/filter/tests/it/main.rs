//! The language of filters: by itself, and as libpcap and the kernel decide.

mod errors;
mod kernel;
mod language;
mod oracle;
mod support;
