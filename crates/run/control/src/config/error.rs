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

impl ConfigError {
    /// What is wrong and where, without anything that the file contains other than names of known keys: a file that
    /// cannot be read may be one of keys or tokens, given by mistake.
    #[must_use]
    pub fn without_values(&self) -> String {
        match self {
            Self::Read { source, .. } => format!("cannot be read: {source}"),
            Self::Toml { source, .. } => {
                // The first line is the place; the others are the line of the file, and its values.
                let said = source.to_string();
                let place = said.lines().next().and_then(|line| {
                    let place = line.strip_prefix("TOML parse error at ")?;
                    place.starts_with("line ").then_some(place)
                });
                match place {
                    Some(place) => format!("{place}: not TOML, or a value of the wrong type"),
                    None => String::from("not TOML, or a value of the wrong type"),
                }
            }
            Self::UnknownKey { suggestion, .. } => {
                format!("an unknown key{}", suggest(suggestion.as_deref()))
            }
            Self::Bounds { key, .. } => format!("{key}: an invalid value"),
            Self::Policy { number, .. } => format!("policy {number}: invalid"),
            Self::Detail { .. } => String::from("detail: an invalid value"),
            Self::Default { .. } => String::from("default: an invalid value"),
        }
    }
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map_or(String::new(), |key| format!("; did you mean '{key}'?"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    #[test]
    fn a_report_of_an_error_has_nothing_of_the_file() {
        for (text, expected) in [
            (
                "[alerts]\nwebhook = \"https://u:SECRET@h/x\n",
                "line 2, column ",
            ),
            ("AGE-SECRET-KEY-1SECRET\n", "line 1, column "),
            ("[elastic]\nenabled = 'SECRET'\n", "line 2, column "),
            ("SECRET-of-a-token analyst\n", "line 1, column "),
            ("SECRET = 'analyst'\n", "an unknown key"),
            (
                "[alerts]\nwebhok = 'SECRET'\n",
                "did you mean 'alerts.webhook'?",
            ),
            ("[alerts]\nwebhook = 'u:SECRET@h/x'\n", "alerts.webhook: "),
            ("detail = 'SECRET'\n", "detail: "),
            ("default = 'SECRET'\n", "default: "),
            ("memory = 'SECRET'\n", "memory: "),
            (
                "[[policy]]\nmatch = 'SECRET['\naction = 'drop'\n",
                "policy 1: ",
            ),
        ] {
            let error = Config::from_toml(text, Path::new("strata.toml")).unwrap_err();
            let said = error.without_values();
            assert!(said.contains(expected), "{text}: {said}");
            assert!(!said.contains("SECRET"), "{text}: {said}");
        }
        let error = Config::read(Path::new("/nonexistent/strata.toml")).unwrap_err();
        assert!(error.without_values().starts_with("cannot be read: "));
    }
}
