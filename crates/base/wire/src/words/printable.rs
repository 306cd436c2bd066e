use std::fmt;

/// Text from outside (a packet, a peer, a request, a file), as shown to people: in a terminal, a
/// journal, an error.
///
/// Characters that could act on a terminal or fake another line are escaped: controls (C0, DEL and
/// C1, so newlines and the escape sequences of ECMA-48 too), line and paragraph separators, and
/// what changes the writing direction (Unicode TR 36, section 3.1.1). All else is shown as is. A
/// `\` already there stays one, so what is shown is for reading, not for parsing.
///
/// ```
/// # use strata_wire::Printable;
/// assert_eq!(Printable("eth0\u{1b}[2J\n").to_string(), r"eth0\u{1b}[2J\n");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(acts_on_a_terminal) {
            let (plain, from) = rest.split_at(at);
            let mut characters = from.chars();
            f.write_str(plain)?;
            if let Some(character) = characters.next() {
                write!(f, "{}", character.escape_default())?;
            }
            rest = characters.as_str();
        }
        f.write_str(rest)
    }
}

/// JSON with text from outside, as shown to people and read by programs: what [`Printable`] escapes is
/// escaped as JSON has it (RFC 8259 §7), so that it parses to the same. Line feeds between its values
/// stay.
///
/// ```
/// # use strata_wire::PrintableJson;
/// assert_eq!(PrintableJson("{\"name\":\"a\u{9b}2J\"}").to_string(), r#"{"name":"a\u009b2J"}"#);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PrintableJson<'a>(pub &'a str);

impl fmt::Display for PrintableJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let acts = |character: char| character != '\n' && acts_on_a_terminal(character);
        let mut rest = self.0;
        while let Some(at) = rest.find(acts) {
            let (plain, from) = rest.split_at(at);
            let mut characters = from.chars();
            f.write_str(plain)?;
            if let Some(character) = characters.next() {
                // All of them are in the basic plane.
                write!(f, "\\u{:04x}", u32::from(character))?;
            }
            rest = characters.as_str();
        }
        f.write_str(rest)
    }
}

fn acts_on_a_terminal(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// The start of a text: as many whole characters as `bytes_max` bytes hold.
#[must_use]
pub fn start_of(text: &str, bytes_max: usize) -> &str {
    if text.len() <= bytes_max {
        return text;
    }
    // A character has at most 4 bytes, and 0 is a boundary.
    let mut end = bytes_max;
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_has_whole_characters() {
        for (bytes_max, start) in [
            (0, ""),
            (1, "a"),
            (2, "a"),
            (3, "aé"),
            (4, "aéb"),
            (9, "aéb"),
        ] {
            assert_eq!(start_of("aéb", bytes_max), start);
        }
    }

    #[test]
    fn what_acts_on_a_terminal_is_escaped() {
        for (text, shown) in [
            ("", ""),
            ("Büro 7, 東京 \\ \"x\"", "Büro 7, 東京 \\ \"x\""),
            ("a\r\n\tb", r"a\r\n\tb"),
            ("\u{1b}]0;title\u{7}", r"\u{1b}]0;title\u{7}"),
            ("\u{9b}31m\u{7f}", r"\u{9b}31m\u{7f}"),
            ("abc\u{202e}cba\u{2028}", r"abc\u{202e}cba\u{2028}"),
        ] {
            assert_eq!(Printable(text).to_string(), shown);
        }
    }
}
