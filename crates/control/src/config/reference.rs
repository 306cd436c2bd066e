//! The configuration described by its own schema: its keys, and the page about them.

use std::fmt::Write as _;

use serde_json::Value;

use super::Config;

/// The schema of the file.
pub(super) fn schema() -> Value {
    serde_json::to_value(schemars::schema_for!(Config)).expect("a schema is JSON")
}

/// What a part of a schema refers to.
fn resolve<'a>(root: &'a Value, part: &'a Value) -> &'a Value {
    let Some(name) = part["$ref"].as_str() else {
        return part;
    };
    &root["$defs"][name.rsplit_once('/').map_or(name, |(_, last)| last)]
}

/// The first key that is not in the schema, and the one most like it.
pub(super) fn unknown_key(
    root: &Value,
    part: &Value,
    table: &toml::Table,
    within: &str,
) -> Option<(String, Option<String>)> {
    let part = resolve(root, part);
    let known = part["properties"].as_object();
    for (key, value) in table {
        let full = format!("{within}{key}");
        let inner = known.and_then(|known| known.get(key)).or_else(|| {
            let any = &part["additionalProperties"];
            any.is_object().then_some(any)
        });
        let Some(inner) = inner else {
            let names = known.into_iter().flat_map(|known| known.keys());
            let like = |name: &String| strsim::jaro_winkler(name, key);
            let best = names.max_by(|a, b| like(a).total_cmp(&like(b)));
            let best = best.filter(|name| like(name) > 0.75).cloned();
            return Some((full, best.map(|name| format!("{within}{name}"))));
        };
        let inner = resolve(root, inner);
        let found = match value {
            toml::Value::Table(table) => unknown_key(root, inner, table, &format!("{full}.")),
            toml::Value::Array(items) => items.iter().find_map(|item| {
                let table = item.as_table()?;
                unknown_key(root, &inner["items"], table, &format!("{full}."))
            }),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

/// The page that describes every key, in Markdown.
#[must_use]
pub fn reference() -> String {
    let schema = schema();
    let mut page = String::from(
        "# Configuration\n\n\
         One TOML file, given with `--config FILE` or in `STRATA_CONFIG`. What the command line \
         says goes before the environment, and that before the file. `strata record --check` \
         reads it and says what is wrong; a key that there is not is an error. While interfaces \
         are captured, `kill -HUP` reads it again: modes and policies change without a packet \
         lost, and policies that stay keep their counts. What is refused changes nothing. \
         (`strata rotate` begins new files.)\n\n\
         Policies that `strata policy add` or the API added to a running recording are not part of \
         this file. They stay when it is read again, and are saved in the log's directory, as \
         `policies.jsonl`: a later recording into the same directory begins with them, under the \
         same numbers. One that the file comes to have too is from then on the file's. `strata \
         policy list` says where each is from; `strata policy remove` also forgets a saved one, \
         but one of the file comes back when that is read again. This page is made from the program by \
         `strata config-reference`.\n",
    );
    describe(&schema, &schema, "", &mut page);
    page
}

fn describe(root: &Value, part: &Value, within: &str, page: &mut String) {
    let part = resolve(root, part);
    let Some(keys) = part["properties"].as_object() else {
        return;
    };
    let title = if within.is_empty() { "Keys" } else { within };
    let _ = write!(
        page,
        "\n## {title}\n\n| key | what | type | default |\n|---|---|---|---|\n"
    );
    let required = part["required"].as_array();
    let is_required = |key: &str| required.is_some_and(|keys| keys.contains(&Value::from(key)));
    let mut inner = Vec::new();
    for (key, value) in keys {
        let target = resolve(root, value);
        let text = value["description"]
            .as_str()
            .or(target["description"].as_str());
        let text = text.map_or(String::new(), |text| text.replace('\n', " "));
        let (kind, nested) = kind(root, value);
        let default = match &value["default"] {
            _ if is_required(key) => "required".into(),
            Value::Null | Value::Object(_) => String::from("-"),
            Value::Array(items) if items.is_empty() => String::from("-"),
            value => format!("`{value}`"),
        };
        let _ = writeln!(page, "| `{key}` | {text} | {kind} | {default} |");
        if let Some((part, name)) = nested {
            inner.push((
                part,
                name.replace(
                    "KEY",
                    &format!("{within_dot}{key}", within_dot = dotted(within)),
                ),
            ));
        }
    }
    for (part, name) in inner {
        describe(root, part, &name, page);
    }
}

/// A table's name as a key prefix.
fn dotted(within: &str) -> String {
    let name = within.trim_matches(['`', '[', ']']);
    if name.is_empty() {
        String::new()
    } else {
        format!("{name}.")
    }
}

/// The type of a key as text, and the table it holds with the form of its heading.
fn kind<'a>(root: &'a Value, value: &'a Value) -> (String, Option<(&'a Value, &'static str)>) {
    let target = resolve(root, value);
    let types: Vec<&str> = match &target["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if target["properties"].is_object() {
        return ("table".into(), Some((target, "`[KEY]`")));
    }
    if target["additionalProperties"].is_object() {
        let item = resolve(root, &target["additionalProperties"]);
        if item["properties"].is_object() {
            return ("tables by name".into(), Some((item, "`[KEY.NAME]`")));
        }
        return ("texts by name".into(), None);
    }
    if types.contains(&"array") {
        let item = resolve(root, &target["items"]);
        if item["properties"].is_object() {
            return ("list of tables".into(), Some((item, "`[[KEY]]`")));
        }
        return ("list of texts".into(), None);
    }
    let words = types
        .iter()
        .filter(|name| **name != "null")
        .map(|name| match *name {
            "string" => "text",
            "boolean" => "true or false",
            "integer" => "whole number",
            other => other,
        });
    (words.collect::<Vec<_>>().join(" or "), None)
}
