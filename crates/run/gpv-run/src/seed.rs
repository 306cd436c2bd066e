//! What strangers cannot know.

use std::io;

use crate::error::{At as _, Result};

/// A seed that strangers do not know, so that they cannot aim at a slot.
///
/// # Errors
///
/// If the operating system has no random numbers.
pub fn seed() -> Result<u64> {
    getrandom::u64()
        .map_err(io::Error::other)
        .at_with(|| "cannot get random numbers from the operating system".to_owned())
}
