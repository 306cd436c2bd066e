//! Names of hosts from the DNS answers that were recorded, as far as their payload was kept.
//!
//! Source: RFC 1035 §4.1; RFC 3596 (AAAA); RFC 6762 §10.2 (the top bit of a class in multicast DNS).

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

/// Bytes of names and addresses that are held: a log may have been made to fill memory.
const BYTES_MAX: usize = 128 << 20;
/// What an address costs beside its names.
const ADDRESS_BYTES: usize = 128;
/// Names of an address that are held beside the last one.
const OTHERS_MAX: usize = 4;

const HEADER_LEN: usize = 12;
const NAME_BYTES_MAX: usize = 255;
const LABEL_BYTES_MAX: usize = 63;
/// A name is followed to earlier places of the message at most this often.
const POINTERS_MAX: usize = 32;
/// Aliases of a name are followed this far.
const ALIASES_MAX: usize = 16;
/// Types of records, and the class of the Internet.
const A: u16 = 1;
const ALIAS: u16 = 5;
const AAAA: u16 = 28;
const INTERNET: u16 = 1;
/// In multicast DNS: other records of this name are out of date.
const FLUSH: u16 = 0x8000;

/// Names that were asked for and answered with an address.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked {
    last: Box<str>,
    others: Vec<Box<str>>,
    /// Whether there were further names.
    has_more: bool,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.last)?;
        match (self.others.len(), self.has_more) {
            (0, _) => Ok(()),
            (others, false) => write!(f, " +{others}"),
            (others, true) => write!(f, " +{others} or more"),
        }
    }
}

/// The names of addresses, and how far they can be trusted.
#[derive(Debug, Default)]
pub struct Answers {
    by_address: HashMap<IpAddr, Asked>,
    bytes: usize,
    /// Answers that were read.
    pub messages: u64,
    /// Of these, answers that ended early, since only a part was kept or they are malformed.
    pub cut: u64,
    /// Names that there was no space for.
    pub beyond: u64,
}

impl Answers {
    /// The names of an address.
    #[must_use]
    pub fn name(&self, address: IpAddr) -> Option<&Asked> {
        self.by_address.get(&address)
    }

    /// The number of addresses that have names.
    #[must_use]
    pub fn addresses(&self) -> usize {
        self.by_address.len()
    }

    /// Reads a message as far as it was kept; messages other than answers are passed over.
    pub fn message(&mut self, message: &[u8]) {
        let Some(flags) = word(message, 2) else {
            return;
        };
        // An answer to a standard query, without an error.
        if flags & 0xf80f != 0x8000 {
            return;
        }
        self.messages = self.messages.saturating_add(1);
        if self.records(message).is_none() {
            self.cut = self.cut.saturating_add(1);
        }
    }

    /// `None` if the message ends early.
    fn records(&mut self, message: &[u8]) -> Option<()> {
        let (questions, answers) = (word(message, 4)?, word(message, 6)?);
        let mut at = HEADER_LEN;
        // The name that was asked for, and then its aliases.
        let mut asked = Vec::new();
        for _ in 0..questions {
            let (name, end) = name_at(message, at)?;
            at = end.checked_add(4)?;
            asked = vec![name];
        }
        for _ in 0..answers {
            let (owner, end) = name_at(message, at)?;
            let [kind, class] = [0, 2].map(|offset| word(message, end.saturating_add(offset)));
            let len = usize::from(word(message, end.checked_add(8)?)?);
            let data_at = end.checked_add(10)?;
            at = data_at.checked_add(len)?;
            let data = message.get(data_at..at)?;
            let is_asked = asked.contains(&owner);
            let address = match (kind?, class? & !FLUSH) {
                (A, INTERNET) => <[u8; 4]>::try_from(data).ok().map(IpAddr::from),
                (AAAA, INTERNET) => <[u8; 16]>::try_from(data).ok().map(IpAddr::from),
                (ALIAS, INTERNET) if is_asked && asked.len() < ALIASES_MAX => {
                    asked.push(name_at(message, data_at)?.0);
                    None
                }
                _ => None,
            };
            // In multicast DNS, some answers are to no question.
            let name = asked.first().filter(|_| is_asked).unwrap_or(&owner);
            if let (Some(address), false) = (address, name.is_empty()) {
                self.add(address, name);
            }
        }
        Some(())
    }

    fn add(&mut self, address: IpAddr, name: &str) {
        let Some(known) = self.by_address.get_mut(&address) else {
            let bytes = self
                .bytes
                .saturating_add(ADDRESS_BYTES)
                .saturating_add(name.len());
            if bytes > BYTES_MAX {
                self.beyond = self.beyond.saturating_add(1);
                return;
            }
            self.bytes = bytes;
            let asked = Asked {
                last: name.into(),
                others: Vec::new(),
                has_more: false,
            };
            self.by_address.insert(address, asked);
            return;
        };
        if *known.last == *name {
            return;
        }
        if let Some(other) = known.others.iter_mut().find(|other| ***other == *name) {
            std::mem::swap(other, &mut known.last);
            return;
        }
        let bytes = self.bytes.saturating_add(name.len());
        if bytes > BYTES_MAX {
            self.beyond = self.beyond.saturating_add(1);
            return;
        }
        self.bytes = bytes;
        let before = std::mem::replace(&mut known.last, name.into());
        match known.others.len() < OTHERS_MAX {
            true => known.others.push(before),
            false => known.has_more = true,
        }
    }
}

fn word(message: &[u8], at: usize) -> Option<u16> {
    let bytes = message.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

/// The name at an offset, in small letters, and where the message goes on behind it. `None` if it ends
/// early or is malformed.
fn name_at(message: &[u8], start: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    let (mut at, mut end) = (start, None);
    let mut pointers = 0;
    loop {
        let len = usize::from(*message.get(at)?);
        let next = at.checked_add(1)?;
        match len {
            0 => return Some((name, end.unwrap_or(next))),
            1..=LABEL_BYTES_MAX => {
                let label_end = next.checked_add(len)?;
                let label = message.get(next..label_end)?;
                if !name.is_empty() {
                    name.push('.');
                }
                // A peer may have sent anything.
                name.extend(label.iter().map(|byte| match byte.is_ascii_graphic() {
                    true => char::from(byte.to_ascii_lowercase()),
                    false => '?',
                }));
                if name.len() > NAME_BYTES_MAX {
                    return None;
                }
                at = label_end;
            }
            0xc0..=0xff => {
                end = end.or(Some(at.checked_add(2)?));
                at = usize::from(word(message, at)? & 0x3fff);
                pointers += 1;
                if pointers > POINTERS_MAX {
                    return None;
                }
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer to a question for `asked`: an alias, and addresses of it by pointers.
    fn answer(asked: &str, addresses: &[IpAddr]) -> Vec<u8> {
        let mut message = vec![1, 2, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0];
        message[7] = u8::try_from(addresses.len() + 1).unwrap();
        for label in asked.split('.') {
            message.push(u8::try_from(label.len()).unwrap());
            message.extend(label.as_bytes());
        }
        message.extend([0, 0, 1, 0, 1]);
        let alias_at = u8::try_from(message.len()).unwrap() + 12;
        message.extend([
            0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 9, 0, 6, 3, b'c', b'd', b'n', 0xc0, 12,
        ]);
        for address in addresses {
            let (kind, data) = match address {
                IpAddr::V4(address) => (1, address.octets().to_vec()),
                IpAddr::V6(address) => (28, address.octets().to_vec()),
            };
            message.extend([0xc0, alias_at, 0, kind, 0x80, 1, 0, 0, 0, 9]);
            message.extend([0, u8::try_from(data.len()).unwrap()]);
            message.extend(data);
        }
        message
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_the_names_that_were_asked_for() {
        let mut answers = Answers::default();
        let [a, b] = [ip("192.0.2.1"), ip("2001:db8::1")];
        answers.message(&answer("wWw.Example.org", &[a, b]));
        for name in ["www.example.org", "x.example.org", "www.example.org"] {
            answers.message(&answer(name, &[a]));
        }
        assert_eq!(answers.name(a).unwrap().to_string(), "www.example.org +1");
        assert_eq!(answers.name(b).unwrap().to_string(), "www.example.org");
        for name in ["1.org", "2.org", "3.org", "4.org", "5.org"] {
            answers.message(&answer(name, &[b]));
        }
        assert_eq!(answers.name(b).unwrap().to_string(), "5.org +4 or more");
        assert_eq!(
            (answers.messages, answers.cut, answers.addresses()),
            (9, 0, 2)
        );
    }

    #[test]
    fn questions_errors_and_parts_give_what_they_have() {
        let address = ip("192.0.2.1");
        let whole = answer("example.org", &[address, ip("192.0.2.2")]);
        for flags in [0x01_u8, 0x85, 0x89] {
            let mut other = whole.clone();
            // A question, another kind of query; then an error.
            match flags {
                0x85 => other[3] |= 3,
                flags => other[2] = flags,
            }
            let mut answers = Answers::default();
            answers.message(&other);
            assert_eq!((answers.messages, answers.addresses()), (0, 0));
        }
        for end in 0..whole.len() {
            let mut answers = Answers::default();
            answers.message(&whole[..end]);
            assert_eq!(answers.cut, answers.messages, "{end}");
            assert_eq!(answers.addresses(), usize::from(end >= whole.len() - 16));
        }
    }

    #[test]
    fn names_in_a_circle_end() {
        let mut message = answer("example.org", &[ip("192.0.2.1")]);
        message[12] = 0xc0;
        message[13] = 12;
        let mut answers = Answers::default();
        answers.message(&message);
        assert_eq!((answers.cut, answers.addresses()), (1, 0));
    }

    #[test]
    fn what_is_held_has_a_bound() {
        let mut answers = Answers {
            bytes: BYTES_MAX - ADDRESS_BYTES - 11,
            ..Answers::default()
        };
        answers.message(&answer("example.org", &[ip("192.0.2.1"), ip("192.0.2.2")]));
        assert_eq!((answers.addresses(), answers.beyond), (1, 1));
    }
}
