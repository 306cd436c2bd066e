//! Secrets in files.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Keys of 1,024 interfaces, twice; a device or a wrong file may be endless.
const SECRET_BYTES_MAX: u64 = 256 << 10;
/// Permissions of group and others.
const OTHERS: u32 = 0o077;

/// Why the secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It cannot be read.
    #[error("{}: cannot read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Others can read it.
    #[error(
        "{}: others can read this secret (mode {mode:04o}): `chmod 600 {}`, and replace the \
         secret if they may have read it", path.display(), path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file is empty.
    #[error("{}: this file contains no secret", .0.display())]
    Empty(PathBuf),
    /// The file is something else.
    #[error("{}: larger than {SECRET_BYTES_MAX} bytes: is this the file with the secret?", .0.display())]
    TooLong(PathBuf),
}

/// Checks that only the owner of a file can read it. `path` is its name in messages: the open file is checked, since
/// the path may lead elsewhere by now.
///
/// # Errors
///
/// If group or others have any permission ([`SecretError::Open`]), or the mode cannot be read.
pub fn check_private(path: &Path, file: &File) -> Result<(), SecretError> {
    let about = file.metadata().map_err(|source| SecretError::Read {
        path: path.to_owned(),
        source,
    })?;
    let mode = about.mode() & 0o7777;
    if mode & OTHERS == 0 {
        return Ok(());
    }
    let path = path.to_owned();
    Err(SecretError::Open { path, mode })
}

/// Reads the secret in a file, trimmed of white space, if only the file's owner can read it.
///
/// # Errors
///
/// If group or others have any permission, or if the file contains no text.
pub fn read_secret(path: &Path) -> Result<String, SecretError> {
    let failed = |source| SecretError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    check_private(path, &file)?;
    let mut secret = String::new();
    let mut limited = file.take(SECRET_BYTES_MAX + 1);
    let read = limited.read_to_string(&mut secret).map_err(failed)?;
    if read as u64 > SECRET_BYTES_MAX {
        return Err(SecretError::TooLong(path.to_owned()));
    }
    let secret = secret.trim();
    if secret.is_empty() {
        return Err(SecretError::Empty(path.to_owned()));
    }
    Ok(secret.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secrets_must_be_readable_by_their_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = |content: &str, mode| {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            read_secret(&path)
        };
        assert_eq!(read(" secret\n", 0o600).unwrap(), "secret");
        assert_eq!(read("secret", 0o400).unwrap(), "secret");
        for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
            let refused = read("secret", mode).unwrap_err();
            assert!(matches!(refused, SecretError::Open { .. }), "{mode:o}");
            assert!(refused.to_string().contains("chmod 600"), "{refused}");
        }
        assert!(matches!(read(" \n", 0o600), Err(SecretError::Empty(_))));
        let long = "x".repeat(usize::try_from(SECRET_BYTES_MAX).unwrap() + 1);
        assert!(matches!(read(&long, 0o600), Err(SecretError::TooLong(_))));
    }
}
