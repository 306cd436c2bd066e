//! `strata serve` over HTTP, as a browser uses it: on real logs, compared with what tcpdump, tshark
//! and other subcommands say of the same; and as strangers use it.

mod beside;
mod flows;
mod framing;
mod hostile;
pub(crate) mod http;
mod logins;
mod logs;
mod lost;
mod padding;
mod recordings;
mod saved;
mod tags;
mod trust;
mod would;
