//! HTTP over TCP: where, and for whom.

use std::sync::Arc;

use rustls::ServerConfig;

/// HTTP over TCP.
#[derive(Clone, Debug)]
pub struct TcpEndpoint {
    /// Address and port.
    pub address: String,
    /// Who may ask.
    pub admit: Admit,
    /// TLS, if it is to be encrypted.
    pub tls: Option<Arc<ServerConfig>>,
}

/// Who may ask over TCP.
#[derive(Clone, Debug)]
pub enum Admit {
    /// Who sends this token.
    Token(String),
    /// Who has shown a certificate that TLS has checked.
    Certificate,
}
