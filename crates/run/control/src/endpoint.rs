//! HTTP over TCP: the address, and permitted clients.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;

use crate::config::ControlConfig;

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

impl ControlConfig {
    /// The address of HTTP over TCP, if others can reach it and nothing encrypts what is sent: a name counts as such
    /// an address, unless it is `localhost`.
    #[must_use]
    pub fn open_in_clear(&self) -> Option<&str> {
        let address = self.listen.as_deref().filter(|_| self.tls_cert.is_none())?;
        let is_here = match address.parse::<SocketAddr>() {
            Ok(address) => address.ip().is_loopback(),
            Err(_) => address.starts_with("localhost:"),
        };
        (!is_here).then_some(address)
    }
}
