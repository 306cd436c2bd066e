//! What all roles of the program have in common: their command line, checks at the start, messages,
//! sandbox, units, and what they do when something is short.

mod check;
mod cli;
mod config;
mod json;
mod logging;
mod newcomers;
mod options;
mod quiet;
mod sandbox;
mod shortage;
mod unit;
