//! Modes: which granularity each class gets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use strata_classify::{Model, UNCLASSIFIED};
use strata_wire::Granularity;

/// Payload bytes that the partial modes of Table II keep.
const PARTIAL: &str = "partial 128";
/// The sampled header-only granularity of Table II.
const SAMPLED: &str = "header 1/10";

/// A mode: granularities for benign and anomalous classes, and for individual
/// classes by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Its name.
    pub name: String,
    benign: Granularity,
    anomalous: Granularity,
    classes: BTreeMap<String, Granularity>,
}

/// A mode in the configuration file, under `[modes.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModeConfig {
    /// Granularity of classes that the model does not call anomalous.
    pub benign: String,
    /// Granularity of anomalous classes, and of packets that are not dissected.
    pub anomalous: String,
    /// Granularity of individual classes, by name.
    #[serde(default)]
    pub classes: BTreeMap<String, String>,
}

/// What is wrong with a mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModeError {
    /// There is no mode of that name.
    #[error("unknown mode '{name}': the modes are {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The modes there are.
        known: String,
    },
    /// An invalid granularity.
    #[error("mode '{mode}', {field}: {problem}")]
    Granularity {
        /// The mode.
        mode: String,
        /// `benign`, `anomalous` or `classes.NAME`.
        field: String,
        /// What is wrong.
        problem: String,
    },
    /// A class that the model does not have.
    #[error("mode '{mode}' names class '{class}', but the model has {known}")]
    NoSuchClass {
        /// The mode.
        mode: String,
        /// The class.
        class: String,
        /// The model's classes.
        known: String,
    },
}

impl Mode {
    /// The five modes of TitanLog Table II: name, anomalous, benign, what for.
    pub const BUILT_IN: [(&str, &str, &str, &str); 5] = [
        ("default", "full", "header", "hierarchical logging"),
        (
            "log-all",
            "full",
            "full",
            "everything, when something is badly wrong",
        ),
        (
            "log-partial",
            PARTIAL,
            "header",
            "when bandwidth for payload is short",
        ),
        (
            "log-sampled",
            "full",
            SAMPLED,
            "when packets per second or disk are short",
        ),
        ("log-minimum", PARTIAL, SAMPLED, "the smallest log"),
    ];

    /// The mode of that name: one of `own`, or of Table II.
    ///
    /// # Errors
    ///
    /// If there is no such mode, or its granularities are invalid.
    pub fn by_name(name: &str, own: &BTreeMap<String, ModeConfig>) -> Result<Self, ModeError> {
        if let Some(config) = own.get(name) {
            return Self::from_config(name, config);
        }
        let built_in = Self::BUILT_IN.iter().find(|(known, ..)| *known == name);
        let Some((_, anomalous, benign, _)) = built_in else {
            let built_in = Self::BUILT_IN.iter().map(|(name, ..)| *name);
            let known: Vec<&str> = built_in.chain(own.keys().map(String::as_str)).collect();
            return Err(ModeError::Unknown {
                name: name.to_owned(),
                known: known.join(", "),
            });
        };
        let config = ModeConfig {
            benign: (*benign).to_owned(),
            anomalous: (*anomalous).to_owned(),
            classes: BTreeMap::new(),
        };
        Self::from_config(name, &config)
    }

    fn from_config(name: &str, config: &ModeConfig) -> Result<Self, ModeError> {
        let parse = |field: String, text: &str| {
            text.parse::<Granularity>()
                .map_err(|error| ModeError::Granularity {
                    mode: name.to_owned(),
                    field,
                    problem: error.to_string(),
                })
        };
        let mut classes = BTreeMap::new();
        for (class, text) in &config.classes {
            classes.insert(class.clone(), parse(format!("classes.{class}"), text)?);
        }
        Ok(Self {
            name: name.to_owned(),
            benign: parse("benign".into(), &config.benign)?,
            anomalous: parse("anomalous".into(), &config.anomalous)?,
            classes,
        })
    }

    /// The granularity of each class of a model, and last that of packets that are not dissected.
    ///
    /// # Errors
    ///
    /// If the mode names a class that the model does not have.
    pub fn granularities(&self, model: &Model) -> Result<Vec<Granularity>, ModeError> {
        let known = |name: &str| name == UNCLASSIFIED || model.class_index(name).is_some();
        if let Some(class) = self.classes.keys().find(|name| !known(name)) {
            let names: Vec<&str> = model.classes.iter().map(|c| c.name.as_str()).collect();
            return Err(ModeError::NoSuchClass {
                mode: self.name.clone(),
                class: class.clone(),
                known: format!("{}, {UNCLASSIFIED}", names.join(", ")),
            });
        }
        let of = |name: &str, anomalous: bool| {
            let general = if anomalous {
                self.anomalous
            } else {
                self.benign
            };
            self.classes.get(name).copied().unwrap_or(general)
        };
        let classes = model
            .classes
            .iter()
            .map(|class| of(&class.name, class.anomalous));
        Ok(classes.chain([of(UNCLASSIFIED, true)]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(benign: &str) -> BTreeMap<String, ModeConfig> {
        let config = ModeConfig {
            benign: benign.into(),
            anomalous: "full".into(),
            classes: BTreeMap::from([("unclassified".into(), "drop".into())]),
        };
        BTreeMap::from([("mine".into(), config)])
    }

    #[test]
    fn table_ii_is_there() {
        for (name, anomalous, benign, _) in Mode::BUILT_IN {
            let mode = Mode::by_name(name, &BTreeMap::new()).unwrap();
            assert_eq!(mode.anomalous.to_string(), anomalous);
            assert_eq!(mode.benign.to_string(), benign);
        }
    }

    #[test]
    fn own_modes_and_their_faults() {
        let mode = Mode::by_name("mine", &own("header 1/7 flows")).unwrap();
        assert_eq!(mode.benign.to_string(), "header 1/7 flows");
        let error = Mode::by_name("mine", &own("some")).unwrap_err().to_string();
        assert!(
            error.contains("mode 'mine', benign: 'some' is not a granularity"),
            "{error}"
        );
        let error = Mode::by_name("none", &own("full")).unwrap_err().to_string();
        assert!(error.contains("log-minimum, mine"), "{error}");
    }
}
