//! Commands that read a log, besides those of the crate `reading`.

pub(crate) mod drift;
pub(crate) mod info;
pub(crate) mod query;
