//! An authority of our own: a controller that gives certificates to its agents.
//!
//! Both ends trust this authority only. A certificate is for one end: an agent's cannot stand for the
//! controller, and the controller's name is the same wherever it listens.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use ring::digest::{SHA256, digest};
use rustls::client::WebPkiServerVerifier;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use strata_wire::unix_seconds;

use crate::tls::{TlsError, private_key, problem, provider};

/// The name in a controller's certificate.
pub const CONTROLLER: &str = "strata-controller";
/// How long an agent's certificate is good, and after which of these times it asks for another.
const AGENT_DAYS: u64 = 30;
const RENEW_DAYS: u64 = 20;
/// Clocks of agents may be behind the controller's by this.
const SLACK: Duration = Duration::from_secs(24 * 3600);
const DAY_SECONDS: u64 = 24 * 3600;
/// The authority's own, and the controller's, whose key is beside it.
const YEARS_20: Duration = Duration::from_secs(20 * 365 * DAY_SECONDS);
/// Bytes of an uncompressed point on P-256, and the first of them (SEC 1, section 2.3.3).
const POINT_BYTES: usize = 65;
const UNCOMPRESSED: u8 = 4;

/// SHA-256 of a certificate.
pub type Fingerprint = [u8; 32];

/// The fingerprint of a certificate (DER).
#[must_use]
pub fn fingerprint(certificate: &[u8]) -> Fingerprint {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, certificate).as_ref());
    bytes
}

/// A private key, made here.
pub struct Key(KeyPair);

impl Key {
    /// A new one, on P-256.
    ///
    /// # Errors
    ///
    /// If the system has no randomness.
    pub fn generate() -> Result<Self, TlsError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256);
        Ok(Self(key.map_err(problem(Path::new("a new key")))?))
    }

    /// The public key to certify.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        self.0.public_key_raw()
    }

    /// As PEM, for a file of the owner's.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.serialize_pem()
    }
}

/// A public key that somebody sent.
struct Point<'a>(&'a [u8]);

impl PublicKeyData for Point<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// A certificate for an agent.
#[derive(Clone, Debug)]
pub struct Issued {
    /// As PEM.
    pub pem: String,
    /// Of the certificate.
    pub fingerprint: Fingerprint,
    /// Seconds since 1970 at which it expires.
    pub until: u64,
    /// Seconds since 1970 from which the agent should ask for another.
    pub renew_at: u64,
}

/// An authority, with its key.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
    /// Where its key is.
    key_file: PathBuf,
}

/// Writes a file that only its owner can read, whole or not at all.
///
/// # Errors
///
/// The system's.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    // One that was left there may be of another mode, or open elsewhere.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

fn name(name: &str) -> DistinguishedName {
    let mut all = DistinguishedName::new();
    all.push(DnType::CommonName, name);
    all
}

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(unix_seconds())
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = name("strata controller authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let now = now();
    params.not_before = (now - SLACK).into();
    params.not_after = (now + YEARS_20).into();
    params
}

impl Authority {
    /// The authority of this directory (`ca.crt`, `ca.key`), made if it does not exist.
    ///
    /// # Errors
    ///
    /// If its files cannot be used.
    pub fn open(dir: &Path) -> Result<Self, TlsError> {
        let (certificate, key_file) = (dir.join("ca.crt"), dir.join("ca.key"));
        let found = key_file.try_exists().map_err(problem(&key_file))?;
        if !found {
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(problem(&key_file))?;
            let made = authority_params()
                .self_signed(&key)
                .map_err(problem(&key_file))?;
            // The key last: with it, there is a certificate.
            write_private(&certificate, &made.pem()).map_err(problem(&certificate))?;
            write_private(&key_file, &key.serialize_pem()).map_err(problem(&key_file))?;
        }
        // Fails if others can read it.
        private_key(&key_file)?;
        let text = fs::read_to_string(&key_file).map_err(problem(&key_file))?;
        let key = KeyPair::from_pem(&text).map_err(problem(&key_file))?;
        let pem = fs::read_to_string(&certificate).map_err(problem(&certificate))?;
        Ok(Self {
            pem,
            issuer: Issuer::new(authority_params(), key),
            key_file,
        })
    }

    /// Its certificate, by which agents know the controller.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for the agent with this name and public key.
    ///
    /// # Errors
    ///
    /// If that is not a point on P-256 in its usual form.
    pub fn issue(&self, agent: &str, public_key: &[u8]) -> Result<Issued, TlsError> {
        let wrong = |what: &str| TlsError {
            file: String::from("public key"),
            problem: what.to_owned(),
        };
        if public_key.len() != POINT_BYTES || public_key[0] != UNCOMPRESSED {
            return Err(wrong("not an uncompressed point on P-256"));
        }
        let (now, seconds) = (now(), unix_seconds());
        let mut params = CertificateParams::default();
        params.distinguished_name = name(agent);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.not_before = (now - SLACK).into();
        params.not_after = (now + Duration::from_secs(AGENT_DAYS * DAY_SECONDS)).into();
        let made = params.signed_by(&Point(public_key), &self.issuer);
        let made = made.map_err(problem(&self.key_file))?;
        Ok(Issued {
            pem: made.pem(),
            fingerprint: fingerprint(made.der()),
            until: seconds + AGENT_DAYS * DAY_SECONDS,
            renew_at: seconds + RENEW_DAYS * DAY_SECONDS,
        })
    }

    /// The controller's end. A client may have no certificate, to enrol; one that it has must be ours.
    ///
    /// # Errors
    ///
    /// If no key can be made.
    pub fn server(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let file = &self.key_file;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(problem(file))?;
        let params = CertificateParams::new(vec![CONTROLLER.to_owned()]);
        let mut params = params.map_err(problem(file))?;
        params.distinguished_name = name(CONTROLLER);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let now = now();
        params.not_before = (now - SLACK).into();
        params.not_after = (now + YEARS_20).into();
        let made = params
            .signed_by(&key, &self.issuer)
            .map_err(problem(file))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots(&self.pem)?, provider());
        let verifier = verifier
            .allow_unauthenticated()
            .build()
            .map_err(problem(file))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(problem(file))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![made.der().clone()], key);
        Ok(Arc::new(config.map_err(problem(file))?))
    }
}

fn roots(pem: &str) -> Result<Arc<RootCertStore>, TlsError> {
    let file = Path::new("the controller's authority");
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let added = roots.add(certificate.map_err(problem(file))?);
        added.map_err(problem(file))?;
    }
    Ok(Arc::new(roots))
}

/// An agent's end, which trusts the authority with this certificate (PEM) only; `own` is its
/// certificate and key (PEM), once it has them.
///
/// # Errors
///
/// If they cannot be used.
pub fn agent(authority: &str, own: Option<(&str, &str)>) -> Result<Arc<ClientConfig>, TlsError> {
    let file = Path::new("the agent's certificate");
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(authority)?, provider());
    let verifier = verifier.build().map_err(problem(file))?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(problem(file))?
        .with_webpki_verifier(verifier);
    let Some((certificate, key)) = own else {
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(problem(file))?;
    let config = builder.with_client_auth_cert(chain.map_err(problem(file))?, key);
    Ok(Arc::new(config.map_err(problem(file))?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_that_was_left_there_does_not_decide_who_may_read_a_secret() {
        let dir = tempfile::tempdir().unwrap();
        let (left, secret) = (dir.path().join("a.new"), dir.path().join("a.token"));
        fs::write(&left, "something longer than the secret").unwrap();
        fs::set_permissions(&left, fs::Permissions::from_mode(0o644)).unwrap();
        let mut reader = fs::File::open(&left).unwrap();
        write_private(&secret, "secret").unwrap();
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
        let mode = fs::metadata(&secret).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut seen = String::new();
        io::Read::read_to_string(&mut reader, &mut seen).unwrap();
        assert!(
            !seen.contains("secret\n") && seen.starts_with("something"),
            "{seen}"
        );
    }
}
