//! Who decided how much of a packet is kept.
//!
//! In a block file, within a verdict's definition: a byte for the kind, then its fields.
//!
//! ```text
//! 0 the modes, for the class: the context says which
//! 1 the forest         class name
//! 2 a mode             name
//! 3 sampling           one_in u32 | 0 packets, 1 flows u8
//! 4 a policy           number u32 | what it matches
//! 5 the default action of policies
//! 6 an alert           signature id u64 | signature
//! 7 the start of the flow
//! 8 look-back          the decider that triggered it, as above
//! 9 the budget of detail, which had enough for it
//! 10 the budget of detail, which had not
//! ```

use std::fmt;

use crate::words::granularity::{SampleBy, Sampling};
use crate::words::printable::{Printable, start_of};

/// At most this many bytes are kept of text from outside.
const TEXT_MAX: usize = 128;

/// Who decided how much of a packet is kept.
///
/// Displayed as in an export's comment: `policy:7:"tcp port 80"`. Texts are quoted unless they are
/// plain words, so nothing in them can pass for another field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Decider {
    /// The modes, for the class; the context says whether this is the forest, a mode or
    /// sampling.
    #[default]
    Class,
    /// The forest: the mode keeps different amounts of different classes. The class's name, if it
    /// is not the verdict's.
    Forest(String),
    /// A mode that keeps the same amount of every class.
    Mode(String),
    /// A mode that keeps a sample.
    Sampling(Sampling),
    /// A policy.
    Policy {
        /// Its number, as in `strata policy list`; 0 if it is one of too many to tell apart.
        number: u32,
        /// What it matches.
        matches: String,
    },
    /// The default action, as no policy matches.
    PolicyDefault,
    /// An alert on the flow.
    Alert {
        /// Number of the signature; 0 without one.
        id: u64,
        /// The signature.
        signature: String,
    },
    /// The packet belongs to the first bytes of its flow.
    FirstBytes,
    /// The decider of a later packet of the flow, or an alert on the flow.
    LookBack(Box<Decider>),
    /// The budget of detail: the score is among the highest.
    Detail,
    /// The budget of detail: the modes want the packet's payload, but there was not enough.
    OverBudget,
}

/// The start of a text, up to [`TEXT_MAX`] bytes.
fn bounded(text: &str) -> String {
    if text.len() <= TEXT_MAX {
        return text.to_owned();
    }
    let mut cut = start_of(text, TEXT_MAX).to_owned();
    cut.push('…');
    cut
}

impl Decider {
    /// The forest, which predicted this class.
    #[must_use]
    pub fn forest(class: &str) -> Self {
        Self::Forest(bounded(class))
    }

    /// A mode.
    #[must_use]
    pub fn mode(name: &str) -> Self {
        Self::Mode(bounded(name))
    }

    /// A policy by its number, and what it matches.
    #[must_use]
    pub fn policy(number: u32, matches: &str) -> Self {
        Self::Policy {
            number,
            matches: bounded(matches),
        }
    }

    /// An alert by its signature's number and text.
    #[must_use]
    pub fn alert(id: u64, signature: &str) -> Self {
        Self::Alert {
            id,
            signature: bounded(signature),
        }
    }

    /// Look-back, triggered by `trigger`.
    #[must_use]
    pub fn look_back(trigger: Self) -> Self {
        match trigger {
            Self::LookBack(_) => trigger,
            other => Self::LookBack(Box::new(other)),
        }
    }

    /// The same without what tells it apart from others of its kind. There are few of these.
    #[must_use]
    pub fn general(&self) -> Self {
        match self {
            Self::Forest(_) => Self::Forest(String::new()),
            Self::Mode(_) => Self::Mode(String::new()),
            Self::Sampling(Sampling { by, .. }) => Self::Sampling(Sampling { one_in: 1, by: *by }),
            Self::Policy { .. } => Self::policy(0, ""),
            Self::Alert { .. } => Self::alert(0, ""),
            Self::LookBack(trigger) => Self::look_back(trigger.general()),
            Self::Class
            | Self::PolicyDefault
            | Self::FirstBytes
            | Self::Detail
            | Self::OverBudget => self.clone(),
        }
    }

    /// Appends its bytes.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Class => out.push(0),
            Self::Forest(class) => {
                out.push(1);
                out.extend_from_slice(class.as_bytes());
            }
            Self::Mode(name) => {
                out.push(2);
                out.extend_from_slice(name.as_bytes());
            }
            Self::Sampling(Sampling { one_in, by }) => {
                out.push(3);
                out.extend_from_slice(&one_in.to_le_bytes());
                out.push(match by {
                    SampleBy::Packet => 0,
                    SampleBy::Flow => 1,
                });
            }
            Self::Policy { number, matches } => {
                out.push(4);
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(matches.as_bytes());
            }
            Self::PolicyDefault => out.push(5),
            Self::Alert { id, signature } => {
                out.push(6);
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(signature.as_bytes());
            }
            Self::FirstBytes => out.push(7),
            Self::LookBack(trigger) => {
                out.push(8);
                trigger.emit(out);
            }
            Self::Detail => out.push(9),
            Self::OverBudget => out.push(10),
        }
    }

    /// Reads what [`Decider::emit`] wrote.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in plain English.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        const SHORT: &str = "a packet's reason is cut short";
        let (&kind, rest) = bytes.split_first().ok_or(SHORT)?;
        let number = || {
            rest.first_chunk()
                .map(|bytes| u32::from_le_bytes(*bytes))
                .ok_or(SHORT)
        };
        let long = || {
            rest.first_chunk()
                .map(|bytes| u64::from_le_bytes(*bytes))
                .ok_or(SHORT)
        };
        let text = |from: usize| rest.get(from..).map(String::from_utf8_lossy).ok_or(SHORT);
        Ok(match kind {
            0 => Self::Class,
            1 => Self::forest(&text(0)?),
            2 => Self::mode(&text(0)?),
            3 if rest.len() == 5 => Self::Sampling(Sampling {
                one_in: number()?,
                by: match rest[4] {
                    0 => SampleBy::Packet,
                    1 => SampleBy::Flow,
                    _ => return Err("a packet's reason has a sampling of unknown kind"),
                },
            }),
            4 => Self::policy(number()?, &text(4)?),
            5 => Self::PolicyDefault,
            6 => Self::alert(long()?, &text(8)?),
            7 => Self::FirstBytes,
            8 if rest.first() != Some(&8) => Self::look_back(Self::parse(rest)?),
            9 => Self::Detail,
            10 => Self::OverBudget,
            _ => return Err("a packet's reason is of unknown kind"),
        })
    }
}

/// A text as one word: as it is, or quoted, so that its end is unmistakable.
struct Word<'a>(&'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.+/…".contains(c);
        if self.0.chars().all(is_plain) {
            return f.write_str(self.0);
        }
        let escaped = self.0.replace('\\', r"\\").replace('"', r#"\""#);
        write!(f, "\"{}\"", Printable(&escaped))
    }
}

impl fmt::Display for Decider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |f: &mut fmt::Formatter<'_>, kind: &str, number: u64, text: &str| {
            f.write_str(kind)?;
            if number > 0 {
                write!(f, ":{number}")?;
            }
            if text.is_empty() {
                return Ok(());
            }
            write!(f, ":{}", Word(text))
        };
        match self {
            Self::Class => f.write_str("forest"),
            Self::Forest(class) if class.is_empty() => f.write_str("forest"),
            Self::Forest(class) => named(f, "class", 0, class),
            Self::Mode(name) => named(f, "mode", 0, name),
            Self::Sampling(Sampling { one_in, by }) => match by {
                SampleBy::Packet => write!(f, "sampling:1/{one_in}"),
                SampleBy::Flow => write!(f, "sampling:1/{one_in}-flows"),
            },
            Self::Policy { number, matches } => named(f, "policy", (*number).into(), matches),
            Self::PolicyDefault => f.write_str("policy:default"),
            Self::Alert { id, signature } => named(f, "alert", *id, signature),
            Self::FirstBytes => f.write_str("first-bytes"),
            Self::LookBack(trigger) => write!(f, "look-back:{trigger}"),
            Self::Detail => f.write_str("detail"),
            Self::OverBudget => f.write_str("over-budget"),
        }
    }
}

/// A reason as in an export, in plain English; `None` if it is the forest's: its trees say more.
#[must_use]
pub fn in_words(reason: &str) -> Option<String> {
    let (kind, rest) = reason.split_once(':').unwrap_or((reason, ""));
    let (number, text) = match rest.split_once(':') {
        Some((number, text)) if number.bytes().all(|b| b.is_ascii_digit()) => (number, text),
        _ if !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()) => (rest, ""),
        _ => ("", rest),
    };
    let with = |what: &str| {
        let mut words = what.to_owned();
        for part in [number, text] {
            if !part.is_empty() {
                words.push(' ');
                words.push_str(part);
            }
        }
        words
    };
    Some(match kind {
        "policy" if rest == "default" => "no policy matches, so the default action applies".to_owned(),
        "policy" => with("policy"),
        "alert" => with("an alert on the flow, signature"),
        "mode" => format!("mode {rest}, which keeps the same amount of every class"),
        "sampling" => format!("in the sample of {}", rest.replace('-', " of all ")),
        "first-bytes" => "among the first bytes of the flow (--first-bytes)".to_owned(),
        "detail" => "early enough in its flow for the budget of detail (--detail)".to_owned(),
        "over-budget" => {
            "over budget: its class is kept in more detail, but the budget (--detail) did not cover \
             this packet"
                .to_owned()
        }
        "class" => format!("a later packet of class {rest}"),
        "look-back" => {
            let trigger = in_words(rest).unwrap_or_else(|| rest.to_owned());
            format!("look-back, because the flow was kept whole afterwards: {trigger}")
        }
        "not-dissected" => "not dissected, and kept like anomalous packets".to_owned(),
        "not-recorded" => "not recorded: the block with the reason is lost".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Decider> {
        let sampling = |by| Decider::Sampling(Sampling { one_in: 10, by });
        let mut all = vec![
            Decider::Class,
            Decider::Forest(String::new()),
            Decider::forest("botnet"),
            Decider::mode("log-all"),
            sampling(SampleBy::Packet),
            sampling(SampleBy::Flow),
            Decider::policy(7, "tcp port 80"),
            Decider::PolicyDefault,
            Decider::alert(2_001_219, "ET SCAN Potential \"SSH\" Scan\n class=benign"),
            Decider::alert(0, ""),
            Decider::FirstBytes,
            Decider::Detail,
            Decider::OverBudget,
        ];
        let triggered: Vec<Decider> = all.iter().cloned().map(Decider::look_back).collect();
        all.extend(triggered);
        all
    }

    #[test]
    fn deciders_read_as_they_were_written_and_nothing_else_panics() {
        for decider in all() {
            let mut bytes = Vec::new();
            decider.emit(&mut bytes);
            assert_eq!(Decider::parse(&bytes), Ok(decider.clone()));
            for cut in 0..bytes.len() {
                let _ = Decider::parse(&bytes[..cut]);
            }
        }
        assert!(Decider::parse(&[]).is_err());
        assert!(Decider::parse(&[8, 8, 0]).is_err());
        assert!(Decider::parse(&[11]).is_err());
    }

    #[test]
    fn they_are_shown_as_one_word_each_and_said_in_words() {
        let shown: Vec<String> = all().iter().take(13).map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "forest",
                "forest",
                "class:botnet",
                "mode:log-all",
                "sampling:1/10",
                "sampling:1/10-flows",
                "policy:7:\"tcp port 80\"",
                "policy:default",
                r#"alert:2001219:"ET SCAN Potential \"SSH\" Scan\n class=benign""#,
                "alert",
                "first-bytes",
                "detail",
                "over-budget",
            ]
        );
        let look_back = Decider::look_back(Decider::policy(7, "tcp"));
        assert_eq!(look_back.to_string(), "look-back:policy:7:tcp");
        assert_eq!(Decider::look_back(look_back.clone()), look_back);
        for (reason, words) in [
            ("policy:7:tcp", Some("policy 7 tcp")),
            (
                "policy:default",
                Some("no policy matches, so the default action applies"),
            ),
            (
                "sampling:1/10-flows",
                Some("in the sample of 1/10 of all flows"),
            ),
            ("flow-trees:1,2", None),
            (
                "look-back:alert:9:x",
                Some(
                    "look-back, because the flow was kept whole afterwards: \
                     an alert on the flow, signature 9 x",
                ),
            ),
        ] {
            assert_eq!(in_words(reason).as_deref(), words, "{reason}");
        }
    }

    #[test]
    fn texts_from_outside_are_bounded() {
        let decider = Decider::alert(1, &"ä".repeat(1 << 16));
        let Decider::Alert { signature, .. } = &decider else {
            panic!("{decider}")
        };
        assert!(signature.len() <= TEXT_MAX + '…'.len_utf8());
    }
}
