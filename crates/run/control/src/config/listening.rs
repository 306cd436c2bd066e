//! Whether what the API sends can be read on its way.

use std::net::SocketAddr;

use super::ControlConfig;

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
