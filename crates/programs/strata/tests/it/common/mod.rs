//! What several modules share: the program, its roles as processes, and what they answer.

pub(crate) mod agents;
pub(crate) mod appending;
pub(crate) mod collecting;
pub(crate) mod commands;
pub(crate) mod disk;
pub(crate) mod link;
pub(crate) mod listening;
pub(crate) mod naive;
pub(crate) mod program;
pub(crate) mod recording;
pub(crate) mod serving;
pub(crate) mod signal;
pub(crate) mod streams;
pub(crate) mod telemetry;
