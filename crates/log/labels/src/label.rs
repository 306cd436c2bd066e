//! What one packet is.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Maximum characters of a class's name, as in model files.
const NAME_MAX: usize = 64;

/// Why a label cannot be a class.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClassError {
    /// It has letters or digits of other scripts.
    #[error(
        "label '{0}' has letters or digits that the name of a class cannot have: use only A to Z, \
         a to z, 0 to 9, - and _"
    )]
    Letters(String),
    /// It has neither letters nor digits.
    #[error("label '{0}' has no letter or digit that the name of a class could have")]
    NoName(String),
    /// Another label became the same class.
    #[error(
        "labels '{label}' and '{before}' would both be the class '{class}': change one of them, or \
         write both alike"
    )]
    Taken {
        /// As written.
        label: String,
        /// The name of its class.
        class: String,
        /// The other label.
        before: String,
    },
}

/// What one packet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Name of the class, as models have it.
    pub class: String,
    /// Where the packet came from; by default the label as written in the file.
    pub source: String,
}

/// The classes of the labels in files, and the number of places without a label.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    /// By class: the first label that means it, as written and as compared.
    known: HashMap<String, (String, String)>,
    /// Lines whose label says that there is none.
    pub(crate) without_label: u64,
}

impl Classes {
    /// A label as written in a file; none, which is counted, if the text says that there is none.
    ///
    /// # Errors
    ///
    /// If no class can have this name, or another label has the class.
    pub(crate) fn label(&mut self, written: &str) -> Result<Option<Label>, ClassError> {
        let Some(class) = class_name(written)? else {
            self.without_label += 1;
            return Ok(None);
        };
        let written = written.trim();
        let compared = match class.as_str() {
            // These have several names.
            name @ ("benign" | "anomalous") if known_class(written) == Some(name) => {
                name.to_owned()
            }
            _ => spelled(written),
        };
        match self.known.entry(class.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert((written.to_owned(), compared));
            }
            Entry::Occupied(known) if known.get().1 != compared => {
                return Err(ClassError::Taken {
                    label: written.to_owned(),
                    class,
                    before: known.get().0.clone(),
                });
            }
            Entry::Occupied(_) => {}
        }
        Ok(Some(Label {
            class,
            source: written.to_owned(),
        }))
    }
}

/// A label as a class name, of ASCII letters, digits and `-`; none if the text says that there is no label: empty, `-`,
/// or the word for a missing value in the programs that write such files.
///
/// # Errors
///
/// If the label has letters or digits of other scripts, which no class name has, or none at all.
pub fn class_name(label: &str) -> Result<Option<String>, ClassError> {
    let label = label.trim();
    if is_none(label) {
        return Ok(None);
    }
    if let Some(class) = known_class(label) {
        return Ok(Some(class.to_owned()));
    }
    if label.chars().any(|c| !c.is_ascii() && c.is_alphanumeric()) {
        return Err(ClassError::Letters(label.to_owned()));
    }
    let mut name = String::new();
    for c in whole(label).chars() {
        if c.is_ascii_alphanumeric() {
            name.push(c.to_ascii_lowercase());
        } else if !name.ends_with('-') {
            name.push('-');
        }
    }
    name.truncate(NAME_MAX);
    let name = name.trim_matches('-');
    if name.is_empty() {
        return Err(ClassError::NoName(label.to_owned()));
    }
    Ok(Some(name.to_owned()))
}

/// Whether two labels mean the same class, or both mean none.
pub(crate) fn same_class(one: &str, other: &str) -> bool {
    matches!((class_name(one), class_name(other)), (Ok(one), Ok(other)) if one == other)
}

/// Whether a text stands for a missing value: in CSV, JSON, Zeek's logs, pandas and R.
fn is_none(label: &str) -> bool {
    matches!(
        label.to_ascii_lowercase().as_str(),
        "" | "-" | "(empty)" | "null" | "none" | "nan" | "na" | "n/a" | "<na>"
    )
}

/// The class of a label that does not have the name of its class.
fn known_class(label: &str) -> Option<&'static str> {
    match whole(label).to_ascii_lowercase().as_str() {
        "0" | "false" | "benign" | "normal" | "background" => Some("benign"),
        "1" | "true" | "attack" | "malicious" | "anomalous" => Some("anomalous"),
        _ => None,
    }
}

/// A whole number without its decimals, as in 1.0, which pandas writes in columns with missing values.
fn whole(label: &str) -> &str {
    let all = |text: &str, wanted: fn(char) -> bool| !text.is_empty() && text.chars().all(wanted);
    match label.split_once('.') {
        Some((number, decimals))
            if all(number, |c| c.is_ascii_digit()) && all(decimals, |c| c == '0') =>
        {
            number
        }
        _ => label,
    }
}

/// A label as labels are compared: without case, and without the difference between spaces, dashes, underscores and
/// bytes that were no UTF-8, which are often dashes of another encoding.
fn spelled(label: &str) -> String {
    let is_gap = |c: char| {
        c.is_whitespace()
            || matches!(
                c,
                '-' | '_' | '\u{2010}'..='\u{2015}' | char::REPLACEMENT_CHARACTER
            )
    };
    let words = whole(label).split(is_gap).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(label: &str) -> String {
        class_name(label).unwrap().unwrap()
    }

    #[test]
    fn labels_become_names_of_classes() {
        for label in ["0", " BENIGN", "0.0", "0.000", "false", "Normal"] {
            assert_eq!(class(label), "benign", "{label}");
        }
        for label in ["1", "1.0", "true", "Malicious"] {
            assert_eq!(class(label), "anomalous", "{label}");
        }
        assert_eq!(class("2.0"), "2");
        assert_eq!(class("1.5"), "1-5");
        assert_eq!(
            class("Web Attack \u{fffd} Sql Injection"),
            "web-attack-sql-injection"
        );
        assert_eq!(class(&"x".repeat(100)).len(), NAME_MAX);
    }

    #[test]
    fn a_missing_value_is_no_label() {
        for label in [
            "", " ", "-", "(empty)", "null", "NaN", "nan", "None", "NA", "<NA>",
        ] {
            assert_eq!(class_name(label).unwrap(), None, "{label}");
        }
    }

    #[test]
    fn a_label_that_no_class_can_be_named_after_is_refused() {
        for label in ["скан", "スキャン", "attaque-é", "扫描 1", "٣"] {
            assert!(
                matches!(class_name(label), Err(ClassError::Letters(_))),
                "{label}"
            );
        }
        for label in ["?", "<>", "\u{1f600}", "\u{fffd}"] {
            assert!(
                matches!(class_name(label), Err(ClassError::NoName(_))),
                "{label}"
            );
        }
    }

    #[test]
    fn two_labels_do_not_become_one_class() {
        let mut classes = Classes::default();
        let long = "x".repeat(NAME_MAX);
        for label in [
            "a-b",
            "A b",
            "a_b",
            "Web Attack \u{fffd} XSS",
            "Web Attack \u{2013} XSS",
            "web attack - xss",
            "attack",
            "malicious",
            "1.0",
            "true",
            "0",
            "benign",
            "2",
            "2.0",
            &long,
        ] {
            assert!(classes.label(label).unwrap().is_some(), "{label}");
        }
        for (label, before) in [
            ("a,b", "a-b"),
            ("<benign>", "0"),
            ("anomalous!", "attack"),
            ("2!", "2"),
            (&*format!("{long}y"), &*long),
        ] {
            let error = classes.label(label).unwrap_err();
            let said = error.to_string();
            assert!(
                said.contains(label) && said.contains(&format!("'{before}'")),
                "{said}"
            );
        }
        assert_eq!(classes.without_label, 0);
        assert_eq!(classes.label("NaN").unwrap(), None);
        assert_eq!(classes.without_label, 1);
    }
}
