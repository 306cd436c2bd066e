//! Comparing secrets.

use subtle::ConstantTimeEq as _;

/// Whether two secrets are the same, in a time that does not say where they differ.
#[must_use]
pub fn same_secret(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}
