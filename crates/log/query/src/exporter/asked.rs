//! What to export, and what was exported.

use std::fmt;

use strata_store::{Damage, Select};
use strata_wire::{FlowKey, LinkType};

/// What to export.
#[derive(Default)]
pub struct ExportOptions<'a> {
    /// Which blocks may hold wanted packets.
    pub select: Select,
    /// Whether a packet is wanted, by link type, bytes kept and wire length; `None` for all.
    #[allow(clippy::type_complexity)]
    pub matches: Option<Box<dyn FnMut(LinkType, &[u8], u32) -> bool + 'a>>,
    /// Only packets of this flow, those that a search counts with it: in tags or tunnels, and later fragments
    /// whose first one is wanted; `None` for all. The ports of what is not IP are 0.
    pub flow: Option<FlowKey>,
    /// Whether to write class, score, granularity and reason in a comment of each packet. pcapng
    /// only.
    pub comments: bool,
    /// Only packets that were kept so.
    pub kept: Kept,
    /// TLS secrets to write before the packets, in the format of NSS key logs; may be empty. pcapng only.
    pub tls_keys: Vec<u8>,
}

/// How and why packets were kept; the default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The name of their class.
    pub class: Option<String>,
    /// `full`, `partial`, `header`.
    pub granularity: Option<String>,
    /// The reason, as in an export's comments, or its beginning up to a colon: `alert` is every alert.
    pub reason: Option<String>,
}

/// The beginning of a reason whose rest is the reason of a later packet of the flow.
const LATER: &str = "look-back:";

impl Kept {
    /// Whether that is every packet.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a packet was kept so.
    pub fn is(&self, class: &str, granularity: &str, reason: &str) -> bool {
        let is = |wanted: &Option<String>, there: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == there)
        };
        is(&self.class, class) && is(&self.granularity, granularity) && self.is_reason(reason)
    }

    /// Whether the reason, or that of the later packet that brought this one along, is the one wanted or begins
    /// with it and a colon.
    fn is_reason(&self, reason: &str) -> bool {
        let Some(wanted) = self.reason.as_deref() else {
            return true;
        };
        let begins = |reason: &str| {
            let rest = reason.strip_prefix(wanted);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        };
        begins(reason) || reason.strip_prefix(LATER).is_some_and(begins)
    }
}

impl fmt::Debug for ExportOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportOptions")
            .field("select", &self.select)
            .finish_non_exhaustive()
    }
}

/// The kind of file to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FileFormat {
    /// pcapng.
    #[default]
    PcapNg,
    /// pcap with nanosecond timestamps.
    Pcap,
}

/// What was exported.
#[derive(Debug, Default)]
pub struct Exported {
    /// Packets written.
    pub packets: u64,
    /// Packets examined.
    pub examined: u64,
    /// Records of blocks decoded.
    pub decoded: u64,
    /// Packets left out, since the log lacks a definition that they refer to: `damage` says which, and
    /// where.
    pub left_out: u64,
    /// Packets that the filter could not test, as [`ByLink::untested`](crate::ByLink::untested) counts them.
    pub untested: u64,
    /// Damaged places that were skipped.
    pub damage: Vec<Damage>,
}

impl Exported {
    /// Adds what was exported of another log.
    pub fn add(&mut self, other: Self) {
        self.packets = self.packets.saturating_add(other.packets);
        self.examined = self.examined.saturating_add(other.examined);
        self.decoded = self.decoded.saturating_add(other.decoded);
        self.left_out = self.left_out.saturating_add(other.left_out);
        self.untested = self.untested.saturating_add(other.untested);
        self.damage.extend(other.damage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_chosen_whole_or_by_its_beginning() {
        let chosen = |wanted: &str| {
            let kept = Kept {
                reason: Some(wanted.to_owned()),
                ..Kept::default()
            };
            [
                r#"alert:2001219:"ET SCAN Potential SSH Scan""#,
                r#"look-back:alert:2001219:"ET SCAN Potential SSH Scan""#,
                r#"alert:20012190:"another""#,
                "mode:log-all",
                "over-budget",
            ]
            .map(|reason| kept.is("benign", "full", reason))
        };
        assert_eq!(chosen("alert"), [true, true, true, false, false]);
        assert_eq!(chosen("alert:2001219"), [true, true, false, false, false]);
        let whole = r#"alert:2001219:"ET SCAN Potential SSH Scan""#;
        assert_eq!(chosen(whole), [true, true, false, false, false]);
        assert_eq!(chosen("look-back"), [false, true, false, false, false]);
        assert_eq!(chosen("over-budget"), [false, false, false, false, true]);
        assert_eq!(chosen("over"), [false; 5]);
        assert_eq!(chosen(""), [false; 5]);
    }
}
