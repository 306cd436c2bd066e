//! What this host has and does: its interfaces, and what else uses them.

pub(super) mod bridges;
pub(super) mod exclusive;
pub(super) mod interface;
pub(super) mod link_changes;
pub(super) mod namespaces;
mod netlink;
pub(super) mod uses;
