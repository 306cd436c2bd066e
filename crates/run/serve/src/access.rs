//! Access to the server: logins, roles, refusals, and the record of changes.

pub(crate) mod attempts;
pub(crate) mod audit;
pub(crate) mod trust;
