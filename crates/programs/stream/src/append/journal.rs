//! Entries of systemd's journal in its export format (systemd's "Journal Export Formats"), as `journalctl -o export`
//! writes it, and as the JSON of `journalctl -o json`.

use serde_json::{Map, Value};
use strata_wire::exact;

/// What the next bytes are.
#[derive(Debug, PartialEq)]
pub(crate) enum Part {
    /// A field of this number of bytes, its end included.
    Field(usize),
    /// The end of an entry.
    End,
    /// The beginning of a field, whose bytes are this number at least.
    More(usize),
    /// Something else; the text says what.
    Wrong(&'static str),
}

/// An entry of the journal whose fields are still coming.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    fields: Map<String, Value>,
    bytes: usize,
}

/// The longest name of a field.
const NAME_LEN_MAX: usize = 64;

impl Entry {
    /// Takes the next field from the start of `rest`, unless it is longer than `max` bytes.
    pub(crate) fn take(&mut self, rest: &[u8], max: usize) -> Part {
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
            return match rest.len() > max {
                true => Part::Wrong("a field is too long"),
                false => Part::More(rest.len().saturating_add(1)),
            };
        };
        let line = &rest[..end];
        if line.is_empty() {
            return Part::End;
        }
        let equals = line.iter().position(|&byte| byte == b'=');
        let name = equals.map_or(line, |at| &line[..at]);
        let is_name =
            |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
        let named = std::str::from_utf8(name).ok();
        let named = named.filter(|name| (1..=NAME_LEN_MAX).contains(&name.len()));
        let Some(named) = named.filter(|_| name.iter().all(is_name)) else {
            return Part::Wrong("the name of a field is not as the journal has it");
        };
        let (value, used) = match equals {
            Some(at) => (&line[at + 1..], end + 1),
            // A value that is not a line: its length in 8 bytes, the value, and a newline.
            None => {
                let Some(len) = rest.get(end + 1..).and_then(|rest| rest.first_chunk::<8>()) else {
                    return Part::More(end + 1 + 8);
                };
                let len = u64::from_le_bytes(*len);
                if len > exact::<u64>(max) {
                    return Part::Wrong("a field is too long");
                }
                let from = end + 1 + 8;
                let until = from + exact::<usize>(len);
                match rest.get(until) {
                    Some(b'\n') => (&rest[from..until], until + 1),
                    Some(_) => {
                        return Part::Wrong("a binary field does not end where its length says");
                    }
                    None => return Part::More(until + 1),
                }
            }
        };
        self.put(named, value);
        self.bytes = self.bytes.saturating_add(used);
        Part::Field(used)
    }

    /// A field that comes again is an array; a value that is not a text, too, of its bytes.
    fn put(&mut self, name: &str, value: &[u8]) {
        let value = match std::str::from_utf8(value) {
            Ok(text) => Value::from(text),
            Err(_) => Value::from(value),
        };
        match self.fields.get_mut(name) {
            None => {
                self.fields.insert(name.to_owned(), value);
            }
            Some(Value::Array(values)) if values.iter().all(|of| !of.is_number()) => {
                values.push(value);
            }
            Some(first) => {
                let before = first.take();
                *first = Value::Array(vec![before, value]);
            }
        }
    }

    /// Bytes of its fields so far.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The entry as JSON, if it has fields; then the next one begins.
    pub(crate) fn end(&mut self) -> Option<String> {
        self.bytes = 0;
        let fields = std::mem::take(&mut self.fields);
        (!fields.is_empty()).then(|| Value::Object(fields).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entries of an export, which comes in pieces.
    fn entries(bytes: &[u8]) -> Vec<Value> {
        let (mut entry, mut all, mut at) = (Entry::default(), Vec::new(), 0);
        while at < bytes.len() {
            match entry.take(&bytes[at..], 1000) {
                Part::Field(used) => at += used,
                Part::End => {
                    at += 1;
                    let text = entry.end();
                    all.extend(text.map(|text| serde_json::from_str::<Value>(&text).unwrap()));
                }
                other => panic!("{other:?} at {at}"),
            }
        }
        all
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
        assert_eq!(entries(export), expected);
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
        ] {
            let part = Entry::default().take(wrong, 1000);
            assert!(matches!(part, Part::Wrong(_)), "{wrong:?}: {part:?}");
        }
    }
}
