//! Messages of the standard library and of serde, in the words of users: they name types of Rust.

/// What is found in messages, and what replaces it.
const WORDS: [(&str, &str); 14] = [
    ("invalid digit found in string", "write a whole number"),
    (
        "cannot parse integer from empty string",
        "write a whole number",
    ),
    ("number too large to fit in target type", "too large"),
    ("number too small to fit in target type", "too small"),
    ("invalid float literal", "write a number"),
    ("cannot parse float from empty string", "write a number"),
    ("EOF while parsing", "ends within"),
    ("expected u8", "expected a whole number up to 255"),
    ("expected u16", "expected a whole number up to 65535"),
    ("expected u32", "expected a whole number up to 4294967295"),
    ("expected u64", "expected a whole number from 0"),
    ("expected usize", "expected a whole number from 0"),
    ("expected f64", "expected a number"),
    ("expected value at", "no JSON value at"),
];

/// A message in plain words.
pub fn words(message: &str) -> String {
    let mut text = message.to_owned();
    for (theirs, ours) in WORDS {
        if text.contains(theirs) {
            text = text.replace(theirs, ours);
        }
    }
    range(&text).unwrap_or(text)
}

/// Clap's `7 is not in 1..=4`.
fn range(message: &str) -> Option<String> {
    let (before, range) = message.split_once(" is not in ")?;
    let (range, after) = range.split_once('\n').unwrap_or((range, ""));
    let (low, high) = range.split_once("..")?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    // An end without `=` is not part of the range.
    let high = match high.strip_prefix('=') {
        Some(high) => high.parse::<u64>().ok(),
        None if high.is_empty() => None,
        None => Some(high.parse::<u64>().ok()?.checked_sub(1)?),
    };
    let (before, number) = before.rsplit_once(' ')?;
    let number = number.strip_prefix('-').unwrap_or(number);
    if !is_number(low) || !is_number(number) {
        return None;
    }
    let upper = high.map_or_else(|| String::from(" on"), |high| format!(" to {high}"));
    let rest = if after.is_empty() { "" } else { "\n" };
    Some(format!(
        "{before} write a whole number from {low}{upper}{rest}{after}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_libraries_are_said_in_plain_words() {
        fn whole<T: serde::de::DeserializeOwned>(json: &str) -> String {
            let error = serde_json::from_str::<T>(json).map(|_| ()).unwrap_err();
            words(&error.to_string())
        }
        let float = "x".parse::<f64>().unwrap_err().to_string();
        let large = "70000".parse::<u16>().unwrap_err().to_string();
        let empty = "".parse::<u16>().unwrap_err().to_string();
        for (said, expected) in [
            (
                whole::<u16>("\"x\""),
                "invalid type: string \"x\", expected a whole number up to 65535 at line 1 column 3",
            ),
            (
                whole::<Vec<usize>>("[-1]"),
                "invalid value: integer `-1`, expected a whole number from 0 at line 1 column 3",
            ),
            (whole::<u8>(""), "ends within a value at line 1 column 0"),
            (whole::<u8>("?"), "no JSON value at line 1 column 1"),
            (words(&float), "write a number"),
            (words(&large), "too large"),
            (words(&empty), "write a whole number"),
        ] {
            assert_eq!(said, expected);
        }
    }

    #[test]
    fn a_range_of_clap_is_said_in_words() {
        for (theirs, ours) in [
            (
                "'9' for '--n <N>': 9 is not in 1..=4",
                "'9' for '--n <N>': write a whole number from 1 to 4",
            ),
            (
                "'0': 0 is not in 1..16\n\nmore",
                "'0': write a whole number from 1 to 15\n\nmore",
            ),
            (
                "'0': 0 is not in 1..",
                "'0': write a whole number from 1 on",
            ),
            (
                "the recording is not in the manifest",
                "the recording is not in the manifest",
            ),
            ("it is not in use.. today", "it is not in use.. today"),
        ] {
            assert_eq!(words(theirs), ours);
        }
    }
}
