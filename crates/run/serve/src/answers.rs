//! What answers of the API have in common.

pub(crate) mod parts;
pub(crate) mod refused;
pub(crate) mod times;
