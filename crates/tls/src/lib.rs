//! Certificates, keys and authorities from PEM files, for both ends of a connection.
//!
//! Used by `relay` for its control connection and by `control` for its API; does no I/O except to
//! read these files. [`authority`] makes certificates: of a controller for its agents.
#![forbid(unsafe_code)]

pub mod authority;

use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct TlsError {
    /// The file.
    pub file: String,
    /// What is wrong with it.
    pub problem: String,
}

fn problem<E: std::fmt::Display>(file: &Path) -> impl FnOnce(E) -> TlsError {
    move |error| TlsError {
        file: file.display().to_string(),
        problem: error.to_string(),
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Permissions of users who are neither the owner nor in the file's group: some systems keep keys
/// for a group.
const EVERYONE: u32 = 0o007;

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
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
