//! What answers of the API have in common.

pub mod parts;
pub mod refused;
pub mod times;
