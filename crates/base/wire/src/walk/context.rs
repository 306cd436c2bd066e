//! What packets were recorded with, according to a context record.

use serde::{Deserialize, Serialize};

/// What the packets of a block were recorded with, according to its context record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Context {
    /// The mode's name.
    pub mode: String,
    /// The model's name.
    pub model: String,
    /// Whether that is the recording's shadow model, which was promoted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub of_shadow: bool,
    /// Names of the classes, by index.
    pub classes: Vec<String>,
    /// Granularity of each class, as text.
    pub granularities: Vec<String>,
    /// Who decides on the granularity of each class, as text; `forest` where the class itself makes
    /// the difference. Absent in older logs: there it is always the forest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deciders: Vec<String>,
    /// The policies, as text; they take precedence over the granularities of classes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<String>,
    /// Filters of the policies that protect: their packets are not deleted to free space.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub protected: Vec<String>,
}

impl Context {
    /// Reads the JSON of a context record. What an older version did not write is empty.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in plain English.
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        let read = serde_json::from_slice(json);
        read.map_err(|error| format!("a context record that cannot be read: {error}"))
    }
}
