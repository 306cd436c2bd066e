//! Both ends of a TLS connection, from PEM files: [`ServerTls`] and [`ClientTls`] where each shows a
//! certificate that the other's authority has signed, [`server`] and [`client`] for other cases.

use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

/// A file that cannot be used, or the name of a server.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct TlsError {
    /// The file, or the name.
    pub file: String,
    /// What is wrong with it.
    pub problem: String,
}

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

/// Mutual TLS for the end that accepts connections.
#[derive(Clone, Debug)]
pub struct ServerTls(Arc<ServerConfig>);

/// Mutual TLS for the end that connects.
#[derive(Clone, Debug)]
pub struct ClientTls(Arc<ClientConfig>);

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Which file is unusable, and why.
    pub fn new(files: &TlsFiles<'_>) -> Result<Self, TlsError> {
        let authority = Some(files.authority);
        Ok(Self(server(files.certificate, files.key, authority)?))
    }

    /// The accepting end of a connection.
    ///
    /// # Errors
    ///
    /// The error from rustls.
    pub fn connection(&self) -> Result<ServerConnection, rustls::Error> {
        ServerConnection::new(Arc::clone(&self.0))
    }
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Which file is unusable, and why.
    pub fn new(files: &TlsFiles<'_>) -> Result<Self, TlsError> {
        Ok(Self(client(files.certificate, files.key, files.authority)?))
    }

    /// The connecting end of a connection to the server with this name or address.
    ///
    /// # Errors
    ///
    /// If the name is invalid, or the error from rustls.
    pub fn connection(&self, host: &str) -> Result<ClientConnection, TlsError> {
        let host = host.trim_matches(['[', ']']);
        let refuse = |error: String| TlsError {
            file: host.to_owned(),
            problem: error,
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|e| refuse(e.to_string()))?;
        ClientConnection::new(Arc::clone(&self.0), name).map_err(|e| refuse(e.to_string()))
    }
}

pub(crate) fn problem<E: std::fmt::Display>(file: &Path) -> impl FnOnce(E) -> TlsError {
    move |error| TlsError {
        file: file.display().to_string(),
        problem: error.to_string(),
    }
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Permissions of users who are neither the owner nor in the file's group: some systems keep keys
/// for a group.
const EVERYONE: u32 = 0o007;

pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let file = File::open(path).map_err(problem(path))?;
    // Of the open file: the path may point elsewhere by now.
    let mode = file.metadata().map_err(problem(path))?.mode() & 0o7777;
    if mode & EVERYONE != 0 {
        let message = format!(
            "everyone on this machine can read this private key (mode {mode:04o}): `chmod o= {}`, \
             and replace the key if somebody may have read it",
            path.display()
        );
        return Err(problem(path)(message));
    }
    PrivateKeyDer::from_pem_reader(BufReader::new(file)).map_err(problem(path))
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(certificate: &Path, key: &Path) -> Result<Identity, TlsError> {
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(problem(certificate))?;
    Ok((chain, private_key(key)?))
}

fn authorities(file: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(problem(file))? {
        let added = roots.add(certificate.map_err(problem(file))?);
        added.map_err(problem(file))?;
    }
    Ok(Arc::new(roots))
}

/// The accepting end, which presents `certificate`. The other end must present one issued by
/// `authority`, if given.
///
/// # Errors
///
/// Which file cannot be used, and why.
pub fn server(
    certificate: &Path,
    key: &Path,
    authority: Option<&Path>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(problem(certificate))?;
    let builder = match authority {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let roots = authorities(file)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
            builder.with_client_cert_verifier(verifier.map_err(problem(file))?)
        }
    };
    let (chain, private) = identity(certificate, key)?;
    let config = builder.with_single_cert(chain, private);
    Ok(Arc::new(config.map_err(problem(certificate))?))
}

/// The connecting end, which presents `certificate`. The other end's must be issued by `authority`.
///
/// # Errors
///
/// Which file cannot be used, and why.
pub fn client(
    certificate: &Path,
    key: &Path,
    authority: &Path,
) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = authorities(authority)?;
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
    let verifier = verifier.map_err(problem(authority))?;
    let (chain, private) = identity(certificate, key)?;
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(problem(certificate))?
        .with_webpki_verifier(verifier)
        .with_client_auth_cert(chain, private)
        .map_err(problem(certificate))?;
    Ok(Arc::new(config))
}
