//! What a collector answers over HTTP: the types, the paths, its status and its metrics.

pub mod answer;
pub(crate) mod http;
pub mod metrics;
pub mod pushes;
pub mod status;
