//! Filters and policies as they are typed: what is wrong, and what may come next.

use serde::{Deserialize, Serialize};
use strata_rules::Action;
use utoipa::ToSchema;

use crate::access::refused::{Refused, units};
use crate::search;

/// Words of the filter language, with what they mean.
const WORDS: [(&str, &str); 35] = [
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
    ("port 443", "HTTPS, QUIC"),
    ("port 53", "DNS"),
];

/// Whether a filter is one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FilterCheck {
    #[schema(required)]
    error: Option<Refused>,
}

pub(crate) fn check(text: &str) -> FilterCheck {
    FilterCheck {
        error: search::filter("filter", text).err(),
    }
}

/// Words that are possible at a place of a filter.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "start": 0, "end": 2, "items": [{"text": "host", "what": "an address, either end"}],
}))]
pub(crate) struct Completions {
    /// Where the word begins that an item replaces, in UTF-16 code units.
    start: usize,
    /// And where it ends.
    end: usize,
    items: Vec<Completion>,
}

/// A word that is possible.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Completion {
    text: &'static str,
    /// A few words.
    what: &'static str,
}

/// What may stand at a place, in UTF-16 code units.
pub(crate) fn complete(text: &str, at: usize) -> Completions {
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
    ];
    let last = before[..start].split_whitespace().next_back().unwrap_or("");
    let items = WORDS.iter().filter(|(known, _)| {
        !takes_value.contains(&last) && known.starts_with(&word) && *known != word
    });
    Completions {
        start: units(text, start),
        end: units(text, end),
        items: items
            .map(|&(text, what)| Completion { text, what })
            .collect(),
    }
}

/// A policy to check.
#[derive(Debug, Deserialize)]
pub(crate) struct PolicyAsked {
    #[serde(rename = "match")]
    pub(crate) matches: String,
    pub(crate) action: String,
    #[serde(default)]
    pub(crate) log: Option<String>,
}

impl PolicyAsked {
    /// What is wrong with it.
    pub(crate) fn error(&self) -> Option<Refused> {
        if let Err(refused) = search::filter("match", &self.matches) {
            return Some(refused);
        }
        if self.matches.trim().is_empty() {
            return Some(Refused::invalid(
                "match",
                "no packets are selected: write a filter, such as host 10.0.0.9",
            ));
        }
        if let Err(error) = self.action.parse::<Action>() {
            return Some(Refused::invalid("action", error.to_string()));
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
                "and" | "or" => continue,
                "not" => " tcp",
                _ => "",
            };
            let text = format!("{word}{value}");
            assert!(check(&text).error.is_none(), "{text}");
        }
    }

    #[test]
    fn places_of_errors_and_words_are_those_of_the_browser() {
        let checked = check("tcp port 70000").error.unwrap();
        assert_eq!((checked.start, checked.end), (Some(9), Some(14)));
        let offered = complete("tcp and ho", 10);
        assert_eq!((offered.start, offered.end), (8, 10));
        assert_eq!(offered.items[0].text, "host");
        assert!(complete("host 10", 7).items.is_empty());
        assert_eq!(complete("\u{1f600} ho", 5).start, 3);
        complete("x", 1_000_000);
    }
}
