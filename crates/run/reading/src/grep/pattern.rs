//! The pattern, in one of three forms.

use anyhow::Result;
use regex::bytes::{Regex, RegexBuilder};
use strata_terminal::output::refuse;

/// A larger pattern is refused: this much memory for its automaton, at most.
const PATTERN_BYTES_MAX: usize = 10 << 20;

/// How the pattern is written.
#[derive(Debug, clap::Args)]
pub(super) struct PatternArgs {
    /// Search for PATTERN literally, not as a regular expression.
    #[arg(long, conflicts_with = "hex")]
    literal: bool,

    /// Read PATTERN as bytes in hexadecimal: 16 03 01, 16:03:01 or 160301.
    #[arg(long)]
    hex: bool,
}

impl PatternArgs {
    /// The pattern, which is the first of these words, and the words after it.
    ///
    /// # Errors
    ///
    /// If there is none, or it cannot be understood, or matches everything.
    pub(super) fn pattern<'a>(&self, words: &'a [String]) -> Result<(Regex, &'a [String])> {
        let Some((text, rest)) = words.split_first() else {
            return Err(refuse("no pattern: strata grep LOG PATTERN [FILTER]"));
        };
        let expression = match (self.literal, self.hex) {
            (true, _) => regex::escape(text),
            (_, true) => of_bytes(&bytes(text)?),
            _ => text.clone(),
        };
        let built = RegexBuilder::new(&expression)
            .unicode(false)
            .size_limit(PATTERN_BYTES_MAX)
            .build();
        let pattern = built.map_err(|error| refuse(format!("the pattern {text:?}: {error}")))?;
        match pattern.is_match(b"") {
            true => Err(refuse(format!(
                "the pattern {text:?} matches every packet, because it matches even an empty payload"
            ))),
            false => Ok((pattern, rest)),
        }
    }
}

/// A regular expression for these bytes.
fn of_bytes(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect()
}

/// Bytes written in hexadecimal.
fn bytes(text: &str) -> Result<Vec<u8>> {
    let digits: String = text.chars().filter(|one| !" :".contains(*one)).collect();
    let wrong = || {
        refuse(format!(
            "--hex {text:?}: expected pairs of hexadecimal digits, as in '16 03 01'"
        ))
    };
    let are_digits = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if digits.is_empty() || !digits.len().is_multiple_of(2) || !are_digits {
        return Err(wrong());
    }
    let pairs = (0..digits.len()).step_by(2);
    let bytes = pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16));
    bytes.collect::<Result<_, _>>().map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(args: &PatternArgs, text: &str) -> Result<Regex> {
        let words = [text.to_owned(), "tcp".to_owned()];
        args.pattern(&words).map(|(pattern, rest)| {
            assert_eq!(rest, ["tcp"]);
            pattern
        })
    }

    fn forms(literal: bool, hex: bool) -> PatternArgs {
        PatternArgs { literal, hex }
    }

    #[test]
    fn each_form_finds_its_bytes() {
        let packet = b"\x16\x03\x01\xff a.c aXc A.C";
        for (literal, hex, text, at) in [
            (false, false, "a.c", Some(5)),
            (true, false, "a.c", Some(5)),
            (false, false, "aX.", Some(9)),
            (true, false, "aX.", None),
            (false, false, "(?i)A\\.C$", Some(13)),
            (false, false, "\\xff", Some(3)),
            (false, true, "03 01 FF", Some(1)),
            (false, true, "03:01:ff20", Some(1)),
            (false, true, "0302", None),
        ] {
            let found = pattern(&forms(literal, hex), text).unwrap();
            assert_eq!(found.find(packet).map(|found| found.start()), at, "{text}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for (hex, text) in [
            (false, "("),
            (false, ""),
            (false, "a*"),
            (false, "(a{1000}){1000}"),
            (true, ""),
            (true, "1"),
            (true, "zz"),
            (true, "+1"),
            (true, "é1"),
        ] {
            let error = pattern(&forms(false, hex), text);
            assert!(error.is_err(), "{text}");
        }
        assert!(forms(false, false).pattern(&[]).is_err());
    }
}
