//! How much there may be.

/// Maximum number of agents.
pub const AGENTS_MAX: usize = 10_000;
/// Interfaces that an agent may report.
pub const INTERFACES_MAX: usize = 1024;
/// The largest identity: it is a VXLAN network identifier. 0 is not an identity.
pub const IDENTITY_MAX: u32 = (1 << 24) - 1;
