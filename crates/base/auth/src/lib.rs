//! How two ends prove to each other who they are: what systems and roles share of certificates, secrets
//! and keys.
//!
//! ```text
//! tls        both ends of a TLS connection, from PEM files
//! authority  certificates that a controller makes for its agents
//! secret     a secret that both ends know, and its proofs
//! keys       keys that exported datagrams are sealed with, and the file that they are in
//! ```
//!
//! No module uses another, except that `authority` has the errors of `tls`. Files are read and private
//! ones written; there is no other I/O, so connections are their owners'.
#![forbid(unsafe_code)]

pub mod authority;
pub mod keys;
pub mod secret;
pub mod tls;
