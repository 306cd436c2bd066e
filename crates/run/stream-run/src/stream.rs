//! One stream: its file, who appends to it, who reads it.

pub(crate) mod appender;
pub(crate) mod changes;
pub(crate) mod check;
pub(crate) mod kept;
pub(crate) mod memory;
pub(crate) mod reader;
pub(crate) mod several;
pub(crate) mod status;
pub(crate) mod upkeep;
