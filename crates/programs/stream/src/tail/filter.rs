//! Records by a key of their contents, which are JSON.

use anyhow::Result;
use serde_json::Value;
use strata_terminal::output::refuse;

/// Keys with the values that they must have. Without any, all records pass.
#[derive(Debug, Default)]
pub(crate) struct Filter(Vec<(String, String)>);

impl Filter {
    /// Of `KEY=VALUE`, each of which must be so.
    pub(crate) fn of(texts: &[String]) -> Result<Self> {
        let pairs = texts.iter().map(|text| {
            let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
            let (key, value) = pair.ok_or_else(|| {
                refuse(format!(
                    "--where {text}: write KEY=VALUE, such as severity_text=ERROR or resource.service.name=web"
                ))
            })?;
            Ok((key.to_owned(), value.to_owned()))
        });
        pairs.collect::<Result<_>>().map(Self)
    }

    /// Whether a record is a JSON object with these values.
    pub(crate) fn passes(&self, record: &[u8]) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let Ok(object) = serde_json::from_slice::<Value>(record) else {
            return false;
        };
        let mut pairs = self.0.iter();
        pairs.all(|(key, value)| find(&object, key).is_some_and(|found| is(found, value)))
    }
}

/// The value of a key. A dot is part of a key, or separates it from a key of the object under it.
pub(crate) fn find<'v>(value: &'v Value, key: &str) -> Option<&'v Value> {
    let object = value.as_object()?;
    if let Some(found) = object.get(key) {
        return Some(found);
    }
    let mut dots = key.match_indices('.');
    dots.find_map(|(at, _)| find(object.get(&key[..at])?, key.get(at + 1..)?))
}

/// Whether a value is written so; of an array, one of its items.
fn is(value: &Value, wanted: &str) -> bool {
    match value {
        Value::String(text) => text == wanted,
        Value::Array(items) => items.iter().any(|item| is(item, wanted)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            let written = value.to_string();
            written == wanted
        }
        Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_by_keys_of_their_json() {
        let record = br#"{"a": "x", "n": 7, "ok": true, "tags": ["p", "q"], "resource": {"service.name": "web",
            "host": {"id": null}}, "a.b": {"c": "deep"}}"#;
        for (texts, passes) in [
            (&["a=x"][..], true),
            (&["a=y"], false),
            (&["a=x", "n=7"], true),
            (&["a=x", "n=8"], false),
            (&["n=7.0"], false),
            (&["ok=true"], true),
            (&["tags=q"], true),
            (&["tags=r"], false),
            (&["resource.service.name=web"], true),
            (&["resource.host.id=null"], true),
            (&["a.b.c=deep"], true),
            (&["resource=web"], false),
            (&["none="], false),
            (&[], true),
        ] {
            let given: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            assert_eq!(
                Filter::of(&given).unwrap().passes(record),
                passes,
                "{texts:?}"
            );
        }
        let filter = Filter::of(&["a=x".to_owned()]).unwrap();
        for record in [&b"a=x"[..], b"", b"[1]", b"\xff", b"\"a\""] {
            assert!(!filter.passes(record), "{record:?}");
        }
        for text in ["a", "=x", ""] {
            assert!(Filter::of(&[text.to_owned()]).is_err(), "{text}");
        }
    }
}
