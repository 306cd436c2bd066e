//! What runs beside a recording: compaction, deletion, exports, reports, alerts that it follows.

pub(crate) mod compacting;
pub(crate) mod drift;
pub(crate) mod eve;
pub(crate) mod exports;
pub(crate) mod lag;
pub(crate) mod reclaim;
pub(crate) mod reports;
