//! The language of filters: by itself, and as libpcap and the kernel decide.

mod errors;
mod kernel;
mod language;
mod named;
mod oracle;
mod support;
