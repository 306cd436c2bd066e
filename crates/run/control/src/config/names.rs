//! Files of names in the configuration, for commands that read logs.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::reference::{schema, unknown_key};
use super::{ConfigError, text_of};

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

impl NamesConfig {
    /// Reads this section of a configuration file. The other sections need only be TOML: what is wrong there concerns other
    /// commands.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is no TOML, or the section has an unknown key or a wrong value.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::from_toml(&text_of(path)?, path)
    }

    fn from_toml(text: &str, path: &Path) -> Result<Self, ConfigError> {
        #[derive(Deserialize)]
        struct Section {
            #[serde(default)]
            names: NamesConfig,
        }
        let toml_error = |source| ConfigError::Toml {
            path: path.into(),
            source: Box::new(source),
        };
        let mut table: toml::Table = toml::from_str(text).map_err(toml_error)?;
        table.retain(|key, _| key == "names");
        let schema = schema();
        if let Some((key, suggestion)) = unknown_key(&schema, &schema, &table, "") {
            return Err(ConfigError::UnknownKey {
                path: path.into(),
                key,
                suggestion,
            });
        }
        let section: Section = toml::from_str(text).map_err(toml_error)?;
        Ok(section.names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<NamesConfig, String> {
        let read = NamesConfig::from_toml(text, Path::new("strata.toml"));
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn errors_of_other_sections_are_not_those_of_names() {
        let other = "memory = 7\n[elastic]\nunknown = 1\n";
        let found = read(&format!("{other}[names]\nfiles = [\"hosts\"]\n")).unwrap();
        assert_eq!(found.files, [PathBuf::from("hosts")]);
        assert_eq!(read(other), Ok(NamesConfig::default()));
        let said = read(&format!("{other}[names]\nfile = []\n")).unwrap_err();
        assert!(
            said.contains("names.file") && said.contains("names.files"),
            "{said}"
        );
        assert!(
            read("[names]\nfiles = 7\n")
                .unwrap_err()
                .contains("strata.toml")
        );
        assert!(read("[names").is_err());
    }
}
