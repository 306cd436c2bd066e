//! What one packet is.

/// What one packet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Name of the class, as models have it.
    pub class: String,
    /// Where the packet came from; by default the label as written in the file.
    pub source: String,
}

impl Label {
    /// A label as written in a file.
    pub(crate) fn new(label: &str) -> Self {
        Self {
            class: class_name(label),
            source: label.trim().to_owned(),
        }
    }
}

/// A label as a class name: letters, digits, - and _.
#[must_use]
pub fn class_name(label: &str) -> String {
    let label = label.trim();
    match label.to_ascii_lowercase().as_str() {
        "0" | "benign" | "normal" | "background" => return String::from("benign"),
        "1" | "attack" | "malicious" | "anomalous" => return String::from("anomalous"),
        _ => {}
    }
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let mut name: String = label.chars().map(plain).collect();
    while name.contains("--") {
        name = name.replace("--", "-");
    }
    name.truncate(64);
    let name = name.trim_matches('-');
    if name.is_empty() {
        String::from("unnamed")
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_become_names_of_classes() {
        assert_eq!(class_name("0"), "benign");
        assert_eq!(class_name(" BENIGN"), "benign");
        assert_eq!(class_name("1"), "anomalous");
        assert_eq!(
            class_name("Web Attack \u{fffd} Sql Injection"),
            "web-attack-sql-injection"
        );
        assert_eq!(class_name("?"), "unnamed");
    }
}
