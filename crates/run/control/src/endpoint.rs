//! HTTP over TCP: the address, and permitted clients.

use std::sync::Arc;

use rustls::ServerConfig;

/// HTTP over TCP.
#[derive(Clone, Debug)]
pub struct TcpEndpoint {
    /// Address and port.
    pub address: String,
    /// Which clients may connect.
    pub admit: Admit,
    /// TLS, if enabled.
    pub tls: Option<Arc<ServerConfig>>,
}

/// Which clients may connect over TCP.
#[derive(Clone, Debug)]
pub enum Admit {
    /// Those that send this token.
    Token(String),
    /// Those with a certificate that TLS has checked.
    Certificate,
    /// Agents: each request asks for a certificate that is an agent's, or for the token.
    Agents,
    /// All: what is served is for anybody who can connect.
    Anyone,
}
