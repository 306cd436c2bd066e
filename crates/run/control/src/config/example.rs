//! A configuration file to begin with: every key as a comment, with what it does and its default.

use std::fmt::Write as _;

use serde_json::Value;

use super::reference::{kind, resolve, schema};

/// Columns of its text, without the mark of a comment.
const COLUMNS: usize = 98;

const HEAD: &str = "\
# Configuration of Strata (TOML). All lines are comments, so this file sets nothing. To set a key, remove the # before
# the key and the # before the heading above it. Keys without a default show the type of their value.
# `strata record --check --config FILE ...` checks the file. A live capture reloads it on SIGHUP.
";

/// The file, in TOML: with all of it commented out, so that it changes nothing.
#[must_use]
pub fn example() -> String {
    let schema = schema();
    let mut page = String::from(HEAD);
    describe(&schema, &schema, "", &mut page);
    page
}

/// Writes the keys of a table, and then the tables in it; `within` is the table's name.
fn describe(root: &Value, part: &Value, within: &str, page: &mut String) {
    let part = resolve(root, part);
    let Some(keys) = part["properties"].as_object() else {
        return;
    };
    let required = part["required"].as_array();
    let is_required = |key: &str| required.is_some_and(|keys| keys.contains(&Value::from(key)));
    let mut tables = Vec::new();
    for (key, value) in keys {
        let target = resolve(root, value);
        let text = [value, target]
            .into_iter()
            .find_map(|of| of["description"].as_str());
        let (kind, table) = kind(root, value);
        if let Some((inner, heading)) = table {
            let within = match within {
                "" => key.clone(),
                within => format!("{within}.{key}"),
            };
            let heading = heading.trim_matches('`').replace("KEY", &within);
            tables.push((text, inner, heading));
            continue;
        }
        page.push('\n');
        comment(text, page);
        let _ = match default(&value["default"]) {
            _ if is_required(key) => writeln!(page, "#{key} = # {kind}; required"),
            Some(default) => writeln!(page, "#{key} = {default}"),
            None => writeln!(page, "#{key} = # {kind}"),
        };
    }
    for (text, inner, heading) in tables {
        page.push('\n');
        comment(text, page);
        let _ = writeln!(page, "#{heading}");
        describe(root, inner, heading.trim_matches(['[', ']']), page);
    }
}

/// A default in TOML, if there is one that a file can say.
fn default(value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::Object(_) => None,
        Value::Array(items) if items.is_empty() => None,
        // Numbers, true and false, texts and lists of them are written as in JSON.
        value => Some(value.to_string()),
    }
}

/// Text as lines of comments.
fn comment(text: Option<&str>, page: &mut String) {
    let mut line = String::new();
    for word in text.into_iter().flat_map(str::split_whitespace) {
        if !line.is_empty() && line.len() + 1 + word.len() > COLUMNS {
            let _ = writeln!(page, "#{line}");
            line.clear();
        }
        line.push(' ');
        line.push_str(word);
    }
    if !line.is_empty() {
        let _ = writeln!(page, "#{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn it_changes_nothing() {
        let page = example();
        assert!(
            page.lines()
                .all(|line| line.is_empty() || line.starts_with('#'))
        );
        assert!(page.lines().all(|line| line.len() <= 120), "{page}");
        let config: toml::Table = toml::from_str(&page).unwrap();
        assert!(config.is_empty());
    }

    /// Each default, set, is what it would be without.
    #[test]
    fn its_defaults_are_accepted() {
        let page = example();
        let mut set = String::new();
        let mut defaults = 0;
        for line in page.lines() {
            let Some(line) = line.strip_prefix('#') else {
                continue;
            };
            let is_default = line
                .split_once(" = ")
                .is_some_and(|(key, value)| !key.starts_with(' ') && !value.starts_with('#'));
            // Lists of tables and tables by name have keys that have to be there.
            if line.starts_with("[[") || line.contains("NAME]") {
                break;
            }
            if is_default || line.starts_with('[') {
                defaults += usize::from(is_default);
                set.push_str(line);
                set.push('\n');
            }
        }
        assert!(defaults >= 10, "{set}");
        let config: Config = toml::from_str(&set).unwrap_or_else(|error| panic!("{error}\n{set}"));
        let none: Config = toml::from_str("").unwrap();
        assert_eq!(
            format!("{:?}", config.elastic),
            format!("{:?}", none.elastic)
        );
    }
}
