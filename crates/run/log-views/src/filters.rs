//! Filters and policies as they are typed: what is wrong, and what may come next.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use strata_networks::Names;
use strata_rules::{Action, PolicyError};
use utoipa::ToSchema;

use crate::answers::refused::{Refused, units};
use crate::search;

/// Words of the filter language, with what they mean.
const WORDS: [(&str, &str); 38] = [
    ("host", "an address, either end"),
    ("src host", "the sender's address"),
    ("dst host", "the receiver's address"),
    ("net", "a network, as in 10.0.0.0/8"),
    ("src net", "the sender's network"),
    ("dst net", "the receiver's network"),
    ("port", "a port, either end"),
    ("src port", "the sender's port"),
    ("dst port", "the receiver's port"),
    ("portrange", "ports, as in 6000-6008"),
    ("tcp", "TCP"),
    ("udp", "UDP"),
    ("icmp", "ICMP"),
    ("icmp6", "ICMPv6"),
    ("sctp", "SCTP"),
    ("ip", "IPv4"),
    ("ip6", "IPv6"),
    ("arp", "ARP"),
    ("and", "both"),
    ("or", "either"),
    ("not", "the contrary"),
    ("ip proto", "a protocol number of IPv4"),
    ("ip6 proto", "a protocol number of IPv6"),
    ("ether host", "a MAC address, either end"),
    ("ether proto", "an EtherType"),
    ("vlan", "a VLAN tag; shifts the tests after it"),
    ("mpls", "an MPLS label; shifts the tests after it"),
    ("less", "at most this many bytes"),
    ("greater", "at least this many bytes"),
    ("broadcast", "to all of the link"),
    ("multicast", "to a group of the link"),
    ("tcp[tcpflags] & tcp-syn != 0", "SYN is set"),
    ("tcp[tcpflags] & tcp-rst != 0", "RST is set"),
    ("tag", "networks with a name (--names)"),
    ("asn", "an autonomous system (--mmdb)"),
    ("country", "a country, as in DE (--mmdb)"),
    ("port 443", "HTTPS, QUIC"),
    ("port 53", "DNS"),
];

/// Names of networks that are possible at a place, at most, and those that are looked at.
const TAGS_MAX: usize = 20;
const TAGS_LOOKED_MAX: usize = 100;

/// Whether a filter is valid.
#[derive(Debug, Serialize, ToSchema)]
pub struct FilterCheck {
    #[schema(required)]
    error: Option<Refused>,
}

/// Whether a filter is valid, and where it is not.
pub fn check(text: &str, names: &Names) -> FilterCheck {
    FilterCheck {
        error: search::filter_with(text, names).err(),
    }
}

/// Words that are possible at a place of a filter.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "start": 0, "end": 2, "items": [{"text": "host", "what": "an address, either end"}],
}))]
pub struct Completions {
    /// Where the word begins that an item replaces, in UTF-16 code units.
    start: usize,
    /// And where it ends.
    end: usize,
    items: Vec<Completion>,
}

/// A word that is possible.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Completion {
    text: Cow<'static, str>,
    /// A few words.
    what: &'static str,
}

/// What may stand at a place, in UTF-16 code units.
pub fn complete(text: &str, at: usize, names: &Names) -> Completions {
    let mut seen = 0;
    let mut end = text.len();
    for (place, c) in text.char_indices() {
        if seen >= at {
            end = place;
            break;
        }
        seen = c.len_utf16().saturating_add(seen);
    }
    let before = &text[..end];
    let is_in_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let start = before.trim_end_matches(is_in_word).len();
    let word = before[start..].to_ascii_lowercase();
    // After what takes a value, no word of the language comes.
    let takes_value = [
        "host",
        "net",
        "port",
        "portrange",
        "proto",
        "less",
        "greater",
        "tag",
        "asn",
        "country",
    ];
    let last = before[..start].split_whitespace().next_back().unwrap_or("");
    let items = WORDS.iter().filter(|(known, _)| {
        !takes_value.contains(&last)
            && known.starts_with(&word)
            && *known != word
            && match *known {
                "tag" => !names.files().is_empty(),
                "asn" | "country" => names.databases().len() > 0,
                _ => true,
            }
    });
    let items = items.map(|&(text, what)| Completion {
        text: text.into(),
        what,
    });
    let tags = (last == "tag").then(|| tags(&before[start..], names));
    Completions {
        start: units(text, start),
        end: units(text, end),
        items: items.chain(tags.into_iter().flatten()).collect(),
    }
}

/// The names of networks that begin so, without those that a filter needs to quote.
fn tags(start: &str, names: &Names) -> Vec<Completion> {
    let known = names.tags_from(start).take(TAGS_LOOKED_MAX);
    let known = known.take_while(|name| name.starts_with(start));
    let is_plain = |name: &&str| search::filter_with(&format!("tag {name}"), names).is_ok();
    let known = known.filter(is_plain).take(TAGS_MAX);
    known
        .map(|name| Completion {
            text: name.to_owned().into(),
            what: "networks with this name",
        })
        .collect()
}

/// A policy to check.
#[derive(Debug, Deserialize)]
#[allow(
    missing_docs,
    reason = "the description of the API says only what a name does not"
)]
pub struct PolicyAsked {
    #[serde(rename = "match")]
    pub matches: String,
    pub action: String,
    #[serde(default)]
    pub interface: Option<String>,
    #[serde(default)]
    pub log: Option<String>,
}

/// Refuses a filter that a policy cannot have, with its place: also an empty one, which would match every packet.
///
/// # Errors
///
/// With the place of the mistake.
pub fn check_match(text: &str) -> Result<(), Refused> {
    match search::filter("match", text)? {
        Some(_) => Ok(()),
        None => Err(Refused::invalid(
            "match",
            "the filter is empty, and would match every packet: write one, such as host 10.0.0.9",
        )),
    }
}

impl PolicyAsked {
    /// What is wrong with it.
    pub fn error(&self) -> Option<Refused> {
        if let Err(refused) = check_match(&self.matches) {
            return Some(refused);
        }
        if let Err(error) = self.action.parse::<Action>() {
            return Some(Refused::invalid("action", error.to_string()));
        }
        if self
            .interface
            .as_deref()
            .is_some_and(|name| name.trim().is_empty())
        {
            let error = PolicyError::NoInterface.to_string();
            return Some(Refused::invalid("interface", error));
        }
        let filter = strata_filter::Filter::parse(&self.matches).ok()?;
        // As a recording would: some filters cannot be rules.
        let error = strata_rules::regions(&filter).err()?;
        Some(Refused::invalid("match", error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_of_the_language() {
        for (word, _) in WORDS {
            let value = match word {
                "host" | "src host" | "dst host" => " 10.0.0.1",
                "net" | "src net" | "dst net" => " 10.0.0.0/8",
                "port" | "src port" | "dst port" | "less" | "greater" => " 80",
                "portrange" => " 1-2",
                "ip proto" | "ip6 proto" => " 6",
                "ether host" => " 00:1b:21:00:00:01",
                "ether proto" => " 0x800",
                // They need names.
                "and" | "or" | "tag" | "asn" | "country" => continue,
                "not" => " tcp",
                _ => "",
            };
            let text = format!("{word}{value}");
            assert!(check(&text, &Names::default()).error.is_none(), "{text}");
        }
    }

    #[test]
    fn places_of_errors_and_words_are_those_of_the_browser() {
        let none = Names::default();
        let checked = check("tcp port 70000", &none).error.unwrap();
        assert_eq!((checked.start, checked.end), (Some(9), Some(14)));
        let offered = complete("tcp and ho", 10, &none);
        assert_eq!((offered.start, offered.end), (8, 10));
        assert_eq!(offered.items[0].text, "host");
        assert!(complete("host 10", 7, &none).items.is_empty());
        assert_eq!(complete("\u{1f600} ho", 5, &none).start, 3);
        complete("x", 1_000_000, &none);
    }

    #[test]
    fn a_policy_for_every_packet_by_an_empty_filter_is_refused() {
        for text in ["", "  ", "\n"] {
            let refused = check_match(text).unwrap_err();
            assert_eq!((refused.field, refused.code), (Some("match"), "invalid"));
        }
        assert!(check_match("ip").is_ok());
        assert!(check_match("ip and").is_err());
    }

    #[test]
    fn names_of_networks_are_offered_where_there_are_some() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "10.0.0.0/8 dmz\n::1 dns\n10.0.0.1 (x\n").unwrap();
        let names = Names::read(&[file.path().to_owned()], &[]).unwrap();
        let offered = |text: &str, names: &Names| {
            let items = complete(text, text.len(), names).items;
            items.into_iter().map(|one| one.text).collect::<Vec<_>>()
        };
        assert_eq!(offered("tcp and tag d", &names), ["dmz", "dns"]);
        assert_eq!(offered("tag ", &names), ["dmz", "dns"]);
        assert_eq!(offered("ta", &names), ["tag"]);
        assert!(offered("ta", &Names::default()).is_empty());
        assert!(offered("as", &names).is_empty());
        assert!(check("tag dmz", &names).error.is_none());
        assert!(check("tag other", &names).error.is_some());
    }
}
