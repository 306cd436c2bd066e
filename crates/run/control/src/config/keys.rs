//! The keys of a configuration, each with its value and whether a file has set it.

use std::path::Path;

use serde_json::Value;

use super::reference::{resolve, schema};
use super::{Config, ConfigError};

/// A key of the configuration and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Names of tables and of the key, with dots between them; items of a list of tables have numbers, from 1.
    pub name: String,
    /// The value in force; null if it has none.
    pub value: Value,
    /// What its description says of the value without one, as in `10%` with the built-in model.
    pub default_words: Option<String>,
    /// Whether the file sets it.
    pub is_set: bool,
}

/// All keys with the values that they have with a file, in the order of their names; without a file, their
/// defaults.
///
/// # Errors
///
/// As [`Config::read`].
pub fn keys(file: Option<&Path>) -> Result<Vec<Key>, ConfigError> {
    let (config, table) = match file {
        Some(path) => {
            let text = super::text_of(path)?;
            let config = Config::from_toml(&text, path)?;
            (config, toml::from_str(&text).ok())
        }
        None => (Config::default(), None),
    };
    let root = schema();
    let mut keys = Vec::new();
    let walk = Walk { root: &root };
    walk.add("", &values(&config), &root, table.as_ref(), &mut keys);
    Ok(keys)
}

fn values(config: &Config) -> Value {
    serde_json::to_value(config).expect("a configuration is JSON")
}

/// Collects the keys of tables within tables.
struct Walk<'a> {
    root: &'a Value,
}

impl Walk<'_> {
    /// `part`: the schema of the value; `set`: the value in the file, if it is there.
    fn add(
        &self,
        name: &str,
        value: &Value,
        part: &Value,
        set: Option<&toml::Value>,
        keys: &mut Vec<Key>,
    ) {
        let inner = resolve(self.root, part);
        let within = |key: &str| match name {
            "" => key.to_owned(),
            name => format!("{name}.{key}"),
        };
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                for (key, value) in fields {
                    let part = match &inner["properties"][key] {
                        Value::Null => &inner["additionalProperties"],
                        part => part,
                    };
                    let set = set.and_then(|set| set.get(key));
                    self.add(&within(key), value, part, set, keys);
                }
            }
            Value::Array(items) if items.iter().any(Value::is_object) => {
                for (at, value) in items.iter().enumerate() {
                    let set = set.and_then(|set| set.get(at));
                    let name = within(&(at + 1).to_string());
                    self.add(&name, value, &inner["items"], set, keys);
                }
            }
            value => {
                let texts = [part, inner].into_iter();
                let text = texts.filter_map(|of| of["description"].as_str()).next();
                keys.push(Key {
                    name: name.to_owned(),
                    value: match value {
                        Value::Object(_) => Value::Null,
                        value => value.clone(),
                    },
                    default_words: text.and_then(default_words),
                    is_set: set.is_some(),
                });
            }
        }
    }
}

/// The end of a description that says what holds without a value.
fn default_words(text: &str) -> Option<String> {
    let (_, words) = text.rsplit_once("By default")?;
    let words = words.trim_start_matches(',').trim_end_matches('.');
    let words: Vec<&str> = words.split_whitespace().collect();
    Some(words.join(" ").replace('`', ""))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn of(text: &str) -> Vec<Key> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("strata.toml");
        fs::write(&path, text).unwrap();
        keys(Some(&path)).unwrap()
    }

    fn key<'a>(keys: &'a [Key], name: &str) -> &'a Key {
        keys.iter().find(|key| key.name == name).unwrap()
    }

    #[test]
    fn a_key_has_its_value_and_its_origin() {
        let keys = of("detail = '5%'\n[elastic]\nenabled = true\n\
            [[policy]]\nmatch = 'port 53'\naction = 'full'\n[modes.mine]\nbenign = 'header'\nanomalous = 'full'\n");
        let enabled = key(&keys, "elastic.enabled");
        // Set to what it is by default, but set.
        assert_eq!((&enabled.value, enabled.is_set), (&json!(true), true));
        let space = key(&keys, "elastic.disk_space_percent");
        assert_eq!((&space.value, space.is_set), (&json!(95.0), false));
        assert_eq!(key(&keys, "detail").value, "5%");
        let action = key(&keys, "policy.1.action");
        assert_eq!((&action.value, action.is_set), (&json!("full"), true));
        let priority = key(&keys, "policy.1.priority");
        assert!(priority.value.is_u64() && !priority.is_set);
        assert_eq!(key(&keys, "modes.mine.anomalous").value, "full");
    }

    #[test]
    fn without_a_file_everything_is_a_default() {
        let keys = keys(None).unwrap();
        assert!(keys.len() > 30 && keys.iter().all(|key| !key.is_set));
        let detail = key(&keys, "detail");
        assert_eq!(detail.value, Value::Null);
        let words = detail.default_words.as_deref();
        assert_eq!(
            words,
            Some("10% with the built-in model, and none with another model")
        );
        // Each key of the reference page is there, but for those of lists and tables by name.
        for name in ["control.socket", "alerts.webhook", "tunnels.vxlan", "mode"] {
            key(&keys, name);
        }
    }

    #[test]
    fn a_file_that_is_wrong_is_refused_as_by_a_recording() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("strata.toml");
        fs::write(&path, "[elastic]\nenabld = true\n").unwrap();
        let refused = keys(Some(&path)).unwrap_err().to_string();
        assert!(refused.contains("elastic.enabled"), "{refused}");
    }
}
