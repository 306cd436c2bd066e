//! Certificates for both ends of a connection, and for a stranger.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// Writes a private key that only its owner may read.
///
/// # Panics
///
/// If it cannot be written.
#[allow(clippy::unwrap_used, reason = "a test without keys fails")]
pub fn write_key(path: &Path, pem: &str) {
    let mut options = fs::OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    options
        .open(path)
        .unwrap()
        .write_all(pem.as_bytes())
        .unwrap();
}

/// Certificates in a folder, which the caller removes.
#[derive(Clone, Debug)]
pub struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    /// Makes an authority in `dir`, and certificates issued by it for `relay` and `switch` at an IP
    /// address; `stranger` has an authority of its own.
    ///
    /// # Panics
    ///
    /// If a file cannot be written.
    #[must_use]
    #[allow(clippy::unwrap_used, reason = "a test without certificates fails")]
    pub fn make(dir: &Path, address: &str) -> Self {
        let put = |name: &str, text: String| fs::write(dir.join(name), text).unwrap();
        let authority_key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        put(
            "ca.crt",
            authority.self_signed(&authority_key).unwrap().pem(),
        );
        let issuer = Issuer::new(authority, authority_key);
        for name in ["relay", "switch", "stranger"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![address.to_owned(), name.to_owned()]);
            let params = params.unwrap();
            let certificate = if name == "stranger" {
                params.self_signed(&key).unwrap()
            } else {
                params.signed_by(&key, &issuer).unwrap()
            };
            put(&format!("{name}.crt"), certificate.pem());
            write_key(&dir.join(format!("{name}.key")), &key.serialize_pem());
        }
        Self {
            dir: dir.to_path_buf(),
        }
    }

    /// Certificate, key and authority of one of the three.
    #[must_use]
    pub fn of(&self, name: &str) -> [PathBuf; 3] {
        [
            format!("{name}.crt"),
            format!("{name}.key"),
            "ca.crt".into(),
        ]
        .map(|file| self.dir.join(file))
    }
}
