//! What a log keeps, what is read from it, and what is learned from it.

mod anonymize;
mod certificates;
mod dedup;
mod fingerprints;
mod flow_collector;
mod flow_filters;
mod flow_times;
mod grep;
mod ids;
pub(crate) mod killed;
mod lacking;
mod model;
mod names;
mod object_tier;
mod outputs;
mod read;
mod reasons;
mod rest;
mod rotated;
mod scratch;
mod several;
