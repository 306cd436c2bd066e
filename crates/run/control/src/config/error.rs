//! What is wrong with a configuration file.

use std::io;
use std::path::PathBuf;

use strata_policy::BudgetError;
use strata_rules::{ParseActionError, PolicyError};

/// What is wrong with a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{}: cannot read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not TOML, or a value is invalid.
    #[error("{}: {source}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// What and where.
        source: Box<toml::de::Error>,
    },
    /// An unknown key.
    #[error("{}: no key '{key}'{}", path.display(), suggest(suggestion.as_deref()))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key with the tables that contain it.
        key: String,
        /// A similar key, if there is one.
        suggestion: Option<String>,
    },
    /// A number is out of its bounds.
    #[error("{}: {key}: {problem}", path.display())]
    Bounds {
        /// The file.
        path: PathBuf,
        /// The key with the table that contains it.
        key: String,
        /// The number and its bounds.
        problem: String,
    },
    /// A policy is invalid.
    #[error("{}: policy {number}: {source}", path.display())]
    Policy {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        number: usize,
        /// Why.
        source: PolicyError,
    },
    /// The budget of detail is invalid.
    #[error("{}: detail: {source}", path.display())]
    Detail {
        /// The file.
        path: PathBuf,
        /// Why.
        source: BudgetError,
    },
    /// The default action is invalid.
    #[error("{}: default: {source}", path.display())]
    Default {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ParseActionError,
    },
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map_or(String::new(), |key| format!("; did you mean '{key}'?"))
}
