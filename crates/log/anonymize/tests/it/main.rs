//! Addresses against published vectors; packets, made by hand and real, that keep none of their addresses.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod any;
mod captures;
mod common;
mod frames;
mod headers;
mod prefixes;
mod vectors;
