//! Options of commands that capture interfaces for long.

use std::fmt;

use strata_control::config::CPU_PERCENT_MAX;

use crate::arguments::bounded;

/// How many rings packets of several interfaces arrive in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RingsArg {
    /// One ring for 128 interfaces or more, else one per interface.
    Auto,
    /// One ring per interface.
    Each,
    /// One ring for all interfaces.
    One,
}

impl fmt::Display for RingsArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Each => "each",
            Self::One => "one",
        })
    }
}

/// `10%`, or `10`.
pub fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    bounded::within(number, 1e-3..=CPU_PERCENT_MAX)
        .map_err(|problem| format!("write a share of a core, as in 10%: {problem}"))
}
