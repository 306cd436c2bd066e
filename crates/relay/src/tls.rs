//! Mutual TLS for the control connection: each end shows a certificate signed by the other's
//! authority.

use std::path::Path;
use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use rustls_pki_types::ServerName;
use strata_tls::TlsError;

use crate::error::RelayError;

/// The PEM files with certificate, key and authorities.
#[derive(Clone, Copy, Debug)]
pub struct TlsFiles<'a> {
    /// The certificate of this end, with its chain.
    pub certificate: &'a Path,
    /// Its private key.
    pub key: &'a Path,
    /// The authorities that must have issued the other end's certificate.
    pub authority: &'a Path,
}

/// TLS for the relay's end.
#[derive(Clone, Debug)]
pub struct RelayTls(Arc<ServerConfig>);

/// TLS for the switch's end.
#[derive(Clone, Debug)]
pub struct SwitchTls(Arc<ClientConfig>);

impl From<TlsError> for RelayError {
    fn from(error: TlsError) -> Self {
        Self::Tls {
            file: error.file,
            problem: error.problem,
        }
    }
}

impl RelayTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Which file is unusable, and why.
    pub fn new(files: &TlsFiles<'_>) -> Result<Self, RelayError> {
        let authority = Some(files.authority);
        Ok(Self(strata_tls::server(
            files.certificate,
            files.key,
            authority,
        )?))
    }

    /// The relay's end of a connection.
    ///
    /// # Errors
    ///
    /// The error from rustls.
    pub fn connection(&self) -> Result<ServerConnection, rustls::Error> {
        ServerConnection::new(Arc::clone(&self.0))
    }
}

impl SwitchTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Which file is unusable, and why.
    pub fn new(files: &TlsFiles<'_>) -> Result<Self, RelayError> {
        let config = strata_tls::client(files.certificate, files.key, files.authority)?;
        Ok(Self(config))
    }

    /// The switch's end of a connection to the relay with this name or address.
    ///
    /// # Errors
    ///
    /// If the name is invalid, or the error from rustls.
    pub fn connection(&self, host: &str) -> Result<ClientConnection, RelayError> {
        let host = host.trim_matches(['[', ']']);
        let refuse = |error: String| RelayError::Tls {
            file: host.to_owned(),
            problem: error,
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|e| refuse(e.to_string()))?;
        ClientConnection::new(Arc::clone(&self.0), name).map_err(|e| refuse(e.to_string()))
    }
}
