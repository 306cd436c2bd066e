//! HTTP over TCP: where, and for whom.

use std::sync::Arc;

use rustls::ServerConfig;

/// HTTP over TCP.
#[derive(Clone, Debug)]
pub struct TcpEndpoint {
    /// Address and port.
    pub address: String,
    /// Which clients may connect.
    pub admit: Admit,
    /// TLS, if it is to be encrypted.
    pub tls: Option<Arc<ServerConfig>>,
}

/// Which clients may connect over TCP.
#[derive(Clone, Debug)]
pub enum Admit {
    /// Those that send this token.
    Token(String),
    /// Those with a certificate that TLS has checked.
    Certificate,
}
