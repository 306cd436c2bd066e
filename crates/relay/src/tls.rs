//! Mutual TLS for the control connection: each end shows a certificate that the
//! other's authority has signed.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::error::RelayError;

/// Where certificate, key and authorities are, as PEM.
#[derive(Clone, Copy, Debug)]
pub struct TlsFiles<'a> {
    /// The certificate of this end, and those that lead to its authority.
    pub certificate: &'a Path,
    /// Its private key.
    pub key: &'a Path,
    /// The authorities that the other end's certificate must come from.
    pub authority: &'a Path,
}

/// TLS of the relay's end.
#[derive(Clone, Debug)]
pub struct RelayTls(Arc<ServerConfig>);

/// TLS of the switch's end.
#[derive(Clone, Debug)]
pub struct SwitchTls(Arc<ClientConfig>);

fn problem<E: std::fmt::Display>(file: &Path) -> impl FnOnce(E) -> RelayError {
    move |error| RelayError::Tls {
        file: file.display().to_string(),
        problem: error.to_string(),
    }
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(files: &TlsFiles<'_>) -> Result<Identity, RelayError> {
    let chain = CertificateDer::pem_file_iter(files.certificate)
        .and_then(Iterator::collect)
        .map_err(problem(files.certificate))?;
    let key = PrivateKeyDer::from_pem_file(files.key).map_err(problem(files.key))?;
    Ok((chain, key))
}

fn authorities(file: &Path) -> Result<Arc<RootCertStore>, RelayError> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file).map_err(problem(file))?;
    for certificate in certificates {
        let added = roots.add(certificate.map_err(problem(file))?);
        added.map_err(problem(file))?;
    }
    Ok(Arc::new(roots))
}

impl RelayTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Which file cannot be used, and why.
    pub fn new(files: &TlsFiles<'_>) -> Result<Self, RelayError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = authorities(files.authority)?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        let verifier = verifier.map_err(problem(files.authority))?;
        let (chain, key) = identity(files)?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(problem(files.certificate))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(problem(files.certificate))?;
        Ok(Self(Arc::new(config)))
    }

    /// The relay's end of a connection.
    ///
    /// # Errors
    ///
    /// What rustls says.
    pub fn connection(&self) -> Result<ServerConnection, rustls::Error> {
        ServerConnection::new(Arc::clone(&self.0))
    }
}

impl SwitchTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Which file cannot be used, and why.
    pub fn new(files: &TlsFiles<'_>) -> Result<Self, RelayError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = authorities(files.authority)?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        let verifier = verifier.map_err(problem(files.authority))?;
        let (chain, key) = identity(files)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(problem(files.certificate))?
            .with_webpki_verifier(verifier)
            .with_client_auth_cert(chain, key)
            .map_err(problem(files.certificate))?;
        Ok(Self(Arc::new(config)))
    }

    /// The switch's end of a connection to the relay of this name or address.
    ///
    /// # Errors
    ///
    /// If the name is none, or what rustls says.
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
