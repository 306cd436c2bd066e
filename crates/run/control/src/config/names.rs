//! Files of names in the configuration, for commands that read logs.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where names of addresses are found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NamesConfig {
    /// Files with names of hosts and networks, like `--names`, which replaces them all.
    pub files: Vec<PathBuf>,
    /// Databases of countries and autonomous systems in MaxMind's format, like `--mmdb`, which
    /// replaces them all.
    pub mmdb: Vec<PathBuf>,
}
