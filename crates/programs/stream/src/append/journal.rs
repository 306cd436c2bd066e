//! Entries of systemd's journal in its export format (systemd's "Journal Export Formats"), as `journalctl -o export`
//! writes it, and as the JSON of `journalctl -o json`.

use std::collections::BTreeMap;

use strata_wire::exact;

/// What the next bytes are.
#[derive(Debug, PartialEq)]
pub(crate) enum Part {
    /// A field of this number of bytes, its end included, or these bytes of a field that is too long.
    Field(usize),
    /// The end of an entry.
    End,
    /// The beginning of a field, whose bytes are this number at least.
    More(usize),
    /// Something else; the text says what.
    Wrong(&'static str),
}

/// An entry that has ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Ended {
    /// Without fields.
    Empty,
    /// As JSON.
    Json(String),
    /// Its JSON would be too long.
    TooLong,
}

/// An entry of the journal whose fields are still coming.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// The values of each field as JSON.
    fields: BTreeMap<String, Vec<String>>,
    /// Bytes of the JSON so far, at least.
    json_len: usize,
    /// The JSON would be too long: its fields are skipped.
    is_too_long: bool,
    skipping: Skipping,
}

/// The rest of a field that is too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Skipping {
    #[default]
    Nothing,
    /// Up to the end of a line.
    Line,
    /// This number of bytes, and a newline.
    Bytes(u64),
}

/// The longest name of a field.
const NAME_LEN_MAX: usize = 64;
/// No field is longer: systemd's journal has at most 768 MiB in one.
const FIELD_LEN_MAX: u64 = 1 << 30;

const BAD_NAME: Part = Part::Wrong("the name of a field is not as the journal has it");
const BAD_END: Part = Part::Wrong("a binary field does not end where its length says");

impl Entry {
    /// Takes the next field from the start of `rest`, which is not empty. A field whose value, or an entry whose JSON,
    /// has more than `max` bytes is skipped as it comes.
    pub(crate) fn take(&mut self, rest: &[u8], max: usize) -> Part {
        if self.skipping != Skipping::Nothing {
            return self.skip(rest);
        }
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
            if rest.len() <= max {
                return Part::More(rest.len().saturating_add(1));
            }
            return match rest.iter().position(|&byte| byte == b'=') {
                Some(at) if name_of(&rest[..at]).is_some() => {
                    self.give_up();
                    self.skipping = Skipping::Line;
                    Part::Field(rest.len())
                }
                _ => BAD_NAME,
            };
        };
        let line = &rest[..end];
        if line.is_empty() {
            return Part::End;
        }
        let equals = line.iter().position(|&byte| byte == b'=');
        let Some(name) = name_of(equals.map_or(line, |at| &line[..at])) else {
            return BAD_NAME;
        };
        let (value, used) = match equals {
            Some(at) => (&line[at + 1..], end + 1),
            // A value that is not a line: its length in 8 bytes, the value, and a newline.
            None => {
                let from = end + 1 + 8;
                let Some(len) = rest.get(end + 1..).and_then(|rest| rest.first_chunk::<8>()) else {
                    return Part::More(from);
                };
                let len = u64::from_le_bytes(*len);
                if len > FIELD_LEN_MAX {
                    return Part::Wrong("a field is longer than the journal can have it");
                }
                if len > exact::<u64>(max) {
                    self.give_up();
                    self.skipping = Skipping::Bytes(len);
                    return Part::Field(from);
                }
                let until = from + exact::<usize>(len);
                match rest.get(until) {
                    Some(b'\n') => (&rest[from..until], until + 1),
                    Some(_) => return BAD_END,
                    None => return Part::More(until + 1),
                }
            }
        };
        self.put(name, value, max);
        Part::Field(used)
    }

    /// Skips what has come of a field.
    fn skip(&mut self, rest: &[u8]) -> Part {
        let (used, then) = match self.skipping {
            Skipping::Bytes(0) if rest.first() != Some(&b'\n') => return BAD_END,
            Skipping::Bytes(0) => (1, Skipping::Nothing),
            Skipping::Bytes(left) => {
                let come = exact::<u64>(rest.len()).min(left);
                (exact(come), Skipping::Bytes(left - come))
            }
            Skipping::Line | Skipping::Nothing => match rest.iter().position(|&byte| byte == b'\n')
            {
                Some(end) => (end + 1, Skipping::Nothing),
                None => (rest.len(), Skipping::Line),
            },
        };
        self.skipping = then;
        Part::Field(used)
    }

    /// Its JSON is too long already.
    fn give_up(&mut self) {
        self.is_too_long = true;
        self.fields = BTreeMap::new();
    }

    /// A field that comes again is an array; a value that is not a text, too, of its bytes.
    fn put(&mut self, name: &str, value: &[u8], max: usize) {
        if self.is_too_long {
            return;
        }
        let json = match std::str::from_utf8(value) {
            Ok(text) => serde_json::Value::from(text).to_string(),
            // Two bytes for each, at least.
            Err(_) if value.len() > max / 2 => return self.give_up(),
            Err(_) => {
                let bytes: Vec<_> = value.iter().map(u8::to_string).collect();
                format!("[{}]", bytes.join(","))
            }
        };
        // With a comma or a brace after it.
        self.json_len = self.json_len.saturating_add(json.len()).saturating_add(1);
        match self.fields.get_mut(name) {
            Some(values) => values.push(json),
            None => {
                // With quotes and a colon.
                self.json_len = self.json_len.saturating_add(name.len()).saturating_add(3);
                self.fields.insert(name.to_owned(), vec![json]);
            }
        }
        if self.json_len > max {
            self.give_up();
        }
    }

    /// Whether it is within a field that is too long.
    pub(crate) fn is_skipping(&self) -> bool {
        self.skipping != Skipping::Nothing
    }

    /// What it was; then the next one begins.
    pub(crate) fn end(&mut self) -> Ended {
        let Self {
            fields,
            is_too_long,
            ..
        } = std::mem::take(self);
        if is_too_long {
            return Ended::TooLong;
        }
        if fields.is_empty() {
            return Ended::Empty;
        }
        // Names have no character that JSON escapes.
        let members = fields.iter().map(|(name, values)| match &values[..] {
            [one] => format!("\"{name}\":{one}"),
            several => format!("\"{name}\":[{}]", several.join(",")),
        });
        Ended::Json(format!("{{{}}}", members.collect::<Vec<_>>().join(",")))
    }
}

/// The name of a field, if it is one.
fn name_of(bytes: &[u8]) -> Option<&str> {
    let is_name = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
    let is_right = (1..=NAME_LEN_MAX).contains(&bytes.len()) && bytes.iter().all(is_name);
    std::str::from_utf8(bytes).ok().filter(|_| is_right)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The entries of an export, of which at most `piece` bytes are there at once; null for those that are too long.
    fn entries(bytes: &[u8], piece: usize) -> Vec<Value> {
        let (mut entry, mut all, mut at) = (Entry::default(), Vec::new(), 0);
        while at < bytes.len() {
            let there = bytes.len().min(at + piece);
            match entry.take(&bytes[at..there], 1000) {
                Part::Field(used) => at += used,
                Part::End => {
                    at += 1;
                    match entry.end() {
                        Ended::Json(text) => all.push(serde_json::from_str(&text).unwrap()),
                        Ended::TooLong => all.push(Value::Null),
                        Ended::Empty => {}
                    }
                }
                other => panic!("{other:?} at {at}"),
            }
        }
        all
    }

    #[test]
    fn an_entry_that_is_too_long_is_skipped_to_its_end() {
        let short = &b"MESSAGE=short\nRAW\n\x01\0\0\0\0\0\0\0\xff\n\n"[..];
        let line = |len: usize| [&b"MESSAGE="[..], &vec![b'x'; len][..], b"\n"].concat();
        let binary = |byte: u8, len: usize| {
            let value = vec![byte; len];
            [&b"RAW\n"[..], &(len as u64).to_le_bytes(), &value, b"\n"].concat()
        };
        let expected = serde_json::json!({"MESSAGE": "short", "RAW": [255]});
        for long in [
            line(5000),
            // An empty line within a value is not the end.
            binary(b'\n', 5000),
            binary(0xff, 5000),
            // Short enough, but not as JSON.
            binary(0xff, 900),
            binary(1, 900),
            // Each is short enough.
            line(10).repeat(100),
            [line(600), binary(b'x', 600)].concat(),
        ] {
            let long = [&b"FIRST=1\n"[..], &long, b"LAST=1\n\n"].concat();
            let export = [short, &long, short, &long, &long, short].concat();
            let null = Value::Null;
            let all = [&expected, &null, &expected, &null, &null, &expected];
            for piece in [1500, 2000, usize::MAX / 2] {
                assert!(entries(&export, piece).iter().eq(all), "{piece}");
            }
        }
    }

    #[test]
    fn entries_are_the_json_that_journalctl_prints() {
        let export =
            b"__CURSOR=s=1\nMESSAGE=one=1\nPRIORITY=6\n\n\nMESSAGE\n\x07\0\0\0\0\0\0\0two\nend\n\
            CODE=a\nCODE=b\nCODE=c\nRAW\n\x02\0\0\0\0\0\0\0\xff\n\n\n";
        let expected = [
            serde_json::json!({"__CURSOR": "s=1", "MESSAGE": "one=1", "PRIORITY": "6"}),
            serde_json::json!({"MESSAGE": "two\nend", "CODE": ["a", "b", "c"], "RAW": [255, 10]}),
        ];
        assert_eq!(entries(export, 1000), expected);
    }

    #[test]
    fn a_field_waits_for_its_last_byte() {
        let field = b"MESSAGE\n\x03\0\0\0\0\0\0\0a\nb\n";
        for len in 0..field.len() {
            let part = Entry::default().take(&field[..len], 1000);
            assert!(matches!(part, Part::More(more) if more > len), "{len}");
        }
        assert_eq!(Entry::default().take(field, 1000), Part::Field(field.len()));
    }

    #[test]
    fn what_is_no_export_is_wrong() {
        for wrong in [
            &b"a line of text\n"[..],
            b"a line of text\nanother line of text\n",
            b"lower=1\n",
            b"=1\n",
            b"MESSAGE\n\xff\xff\xff\xff\xff\xff\xff\xffabc\n",
            b"MESSAGE\n\x01\0\0\0\0\0\0\0abc\n",
            &[b'A'; 2000],
            &[0; 2000],
        ] {
            let part = Entry::default().take(wrong, 1000);
            assert!(matches!(part, Part::Wrong(_)), "{wrong:?}: {part:?}");
        }
    }
}
