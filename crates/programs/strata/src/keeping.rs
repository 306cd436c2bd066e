//! Commands that keep a log: compacted, whole, encrypted, within its bounds, elsewhere.

pub(crate) mod compact;
pub(crate) mod key;
pub(crate) mod object_tier;
pub(crate) mod prune;
pub(crate) mod verify;
