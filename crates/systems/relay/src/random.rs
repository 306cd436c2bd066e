//! Random numbers from the operating system.

use std::io;

use crate::error::RelayError;

/// Random numbers that no connection has used.
pub(crate) fn nonce() -> Result<[u64; 4], RelayError> {
    let mut nonce = [0; 4];
    for word in &mut nonce {
        *word = random()?;
    }
    Ok(nonce)
}

pub(crate) fn random() -> Result<u64, RelayError> {
    getrandom::u64().map_err(|error| RelayError::Io {
        what: "cannot get random numbers".into(),
        source: io::Error::other(error),
    })
}
