//! Granularities: how much of a packet is kept (TitanLog §VI-A).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::words::flow::mix64;
use crate::words::ledger::CutWhere;

/// How much of one packet is kept. Ordered: a larger value meets every demand that a smaller one
/// meets, so demands are joined by `max`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Keep {
    /// Nothing.
    #[default]
    Nothing,
    /// Everything up to the end of the innermost parsed transport header; the first bytes if the
    /// packet is not dissected ([`FALLBACK_LEN`](crate::walk::dissect::FALLBACK_LEN)).
    Header,
    /// The headers and at most this many bytes after them.
    Partial(u32),
    /// Every captured byte.
    Full,
}

impl Keep {
    /// How many of `captured_len` bytes are kept when the headers end at `header_len`.
    #[inline]
    #[must_use]
    pub fn kept_len(self, header_len: u32, captured_len: u32) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Header => header_len.min(captured_len),
            Self::Partial(payload) => header_len.saturating_add(payload).min(captured_len),
            Self::Full => captured_len,
        }
    }

    /// It without the number of bytes, as records have it.
    #[inline]
    #[must_use]
    pub fn kind(self) -> KeepKind {
        match self {
            Self::Nothing => KeepKind::Nothing,
            Self::Header => KeepKind::Header,
            Self::Partial(_) => KeepKind::Partial,
            Self::Full => KeepKind::Full,
        }
    }
}

/// What was kept of a packet: a [`Keep`] without its number of bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(into = "u8", try_from = "u8")]
#[repr(u8)]
pub enum KeepKind {
    /// Nothing.
    #[default]
    Nothing = 0,
    /// The headers.
    Header = 1,
    /// The headers and some bytes after them.
    Partial = 2,
    /// Every captured byte.
    Full = 3,
}

impl KeepKind {
    /// All of them, by code.
    pub const ALL: [Self; 4] = [Self::Nothing, Self::Header, Self::Partial, Self::Full];

    /// Its number in files.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The one that the low two bits of a record's flags say.
    #[inline]
    #[must_use]
    pub const fn of_flags(flags: u8) -> Self {
        match flags & 3 {
            0 => Self::Nothing,
            1 => Self::Header,
            2 => Self::Partial,
            _ => Self::Full,
        }
    }

    /// Its name in tables and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Header => "header",
            Self::Partial => "partial",
            Self::Full => "full",
        }
    }

    /// What is kept of a packet of which this is to be kept, and which came as `arrived` says
    /// ([`Interface::kept`](crate::Interface::kept)): no more than came. Of packets that came in part, some are whole.
    #[inline]
    #[must_use]
    pub fn as_arrived(self, arrived: Self, is_whole: bool) -> Self {
        match arrived {
            Self::Partial if is_whole => self,
            arrived => self.min(arrived),
        }
    }

    /// Where packets kept so are cut.
    #[inline]
    #[must_use]
    pub const fn cut_where(self) -> CutWhere {
        match self {
            Self::Partial => CutWhere::Partial,
            Self::Nothing | Self::Header | Self::Full => CutWhere::Header,
        }
    }
}

impl From<KeepKind> for u8 {
    fn from(kind: KeepKind) -> Self {
        kind.code()
    }
}

impl TryFrom<u8> for KeepKind {
    type Error = &'static str;

    fn try_from(code: u8) -> Result<Self, Self::Error> {
        let kind = Self::ALL.get(usize::from(code)).copied();
        kind.ok_or("a granularity has a number from 0 to 3")
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("drop"),
            Self::Header => f.write_str("header"),
            Self::Partial(bytes) => write!(f, "partial {bytes}"),
            Self::Full => f.write_str("full"),
        }
    }
}

/// What is drawn when only one in N is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SampleBy {
    /// Each packet on its own.
    Packet,
    /// Whole flows, both directions together.
    Flow,
}

/// Keep one in `one_in`, by hash, so the same input gives the same sample.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sampling {
    /// N of 1/N; at least 1.
    pub one_in: u32,
    /// What is drawn.
    pub by: SampleBy,
}

impl Sampling {
    /// Whether the packet is in the sample. `packet_number` counts the packets that passed the
    /// filter, mixed with a key that chooses the sample; `flow_hash` must not depend on the run.
    #[inline]
    #[must_use]
    pub fn keeps(self, packet_number: u64, flow_hash: u64) -> bool {
        let drawn = match self.by {
            SampleBy::Packet => mix64(packet_number ^ 0x5341_4d50_4c45_5031),
            SampleBy::Flow => mix64(flow_hash),
        };
        drawn.is_multiple_of(u64::from(self.one_in.max(1)))
    }
}

/// A granularity: how much is kept, and of which packets.
///
/// In text: `full`, `header`, `partial N`, `drop`, each optionally followed by
/// `1/N` (per packet) or `1/N flows`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Granularity {
    /// How much of a packet in the sample is kept.
    pub keep: Keep,
    /// Which packets are in the sample; all of them if `None`.
    pub sampling: Option<Sampling>,
}

impl Granularity {
    /// Every captured byte of every packet.
    pub const FULL: Self = Self {
        keep: Keep::Full,
        sampling: None,
    };
    /// The headers of every packet.
    pub const HEADER: Self = Self {
        keep: Keep::Header,
        sampling: None,
    };

    /// What this demand asks for of one packet; `None` if the packet is not in the sample.
    #[inline]
    #[must_use]
    pub fn resolve(self, packet_number: u64, flow_hash: u64) -> Option<Keep> {
        match self.sampling {
            Some(sampling) if !sampling.keeps(packet_number, flow_hash) => None,
            _ => Some(self.keep),
        }
    }
}

/// What happens to a packet once every demand on it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Log this much of it.
    Log(Keep),
    /// No demand wants it, and at least one skipped it by sampling.
    SampledOut,
    /// Every demand says drop.
    Discard,
}

/// The least outcome that meets all demands on one packet. Sampling is decided first, demand by
/// demand, so the result is exact even when one demand samples and another does not.
#[inline]
#[must_use]
pub fn join(demands: &[Granularity], packet_number: u64, flow_hash: u64) -> Outcome {
    let mut keep = Keep::Nothing;
    let mut sampled_out = false;
    for demand in demands {
        match demand.resolve(packet_number, flow_hash) {
            Some(wanted) => keep = keep.max(wanted),
            None => sampled_out = true,
        }
    }
    match (keep, sampled_out) {
        (Keep::Nothing, true) => Outcome::SampledOut,
        (Keep::Nothing, false) => Outcome::Discard,
        (keep, _) => Outcome::Log(keep),
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.keep)?;
        match self.sampling {
            None => Ok(()),
            Some(Sampling { one_in, by }) => match by {
                SampleBy::Packet => write!(f, " 1/{one_in}"),
                SampleBy::Flow => write!(f, " 1/{one_in} flows"),
            },
        }
    }
}

/// Why a text is not a valid granularity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseGranularityError {
    text: String,
}

impl fmt::Display for ParseGranularityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a granularity: write full, header, partial N or drop, \
             then optionally 1/N or '1/N flows' (for example: header 1/10 flows)",
            self.text
        )
    }
}

impl std::error::Error for ParseGranularityError {}

impl FromStr for Granularity {
    type Err = ParseGranularityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || ParseGranularityError {
            text: text.to_owned(),
        };
        let mut words = text.split_whitespace().peekable();
        let keep = match words.next() {
            Some("full") => Keep::Full,
            Some("header") => Keep::Header,
            Some("drop") => Keep::Nothing,
            Some("partial") => {
                let bytes = words.next().ok_or_else(refuse)?;
                Keep::Partial(bytes.parse().map_err(|_| refuse())?)
            }
            _ => return Err(refuse()),
        };
        let sampling = match words.next() {
            None => None,
            Some(ratio) => {
                let one_in = ratio.strip_prefix("1/").ok_or_else(refuse)?;
                let one_in: u32 = one_in.parse().map_err(|_| refuse())?;
                let by = match words.next() {
                    None => SampleBy::Packet,
                    Some("flows") => SampleBy::Flow,
                    Some(_) => return Err(refuse()),
                };
                if one_in == 0 {
                    return Err(refuse());
                }
                Some(Sampling { one_in, by })
            }
        };
        if words.next().is_some() {
            return Err(refuse());
        }
        Ok(Self { keep, sampling })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granularity(text: &str) -> Granularity {
        text.parse().unwrap()
    }

    #[test]
    fn text_round_trips() {
        for text in [
            "full",
            "header",
            "partial 128",
            "drop",
            "full 1/4",
            "header 1/10 flows",
            "partial 0 1/1",
        ] {
            assert_eq!(granularity(text).to_string(), text);
        }
    }

    #[test]
    fn bad_text_is_refused_with_the_forms() {
        for text in [
            "",
            "all",
            "partial",
            "partial -1",
            "full 1/0",
            "full 2/3",
            "full 1/2 hosts",
            "header 1/2 flows now",
        ] {
            let error = text.parse::<Granularity>().unwrap_err().to_string();
            assert!(error.contains("partial N"), "{error}");
        }
    }

    #[test]
    fn demands_join_to_the_least_that_serves_all() {
        let all = [
            granularity("header"),
            granularity("partial 64"),
            granularity("drop"),
        ];
        assert_eq!(join(&all, 0, 0), Outcome::Log(Keep::Partial(64)));
        assert_eq!(join(&[granularity("drop")], 0, 0), Outcome::Discard);
        let sampled = [granularity("full 1/8"), granularity("drop")];
        let outcomes: Vec<_> = (0..64).map(|n| join(&sampled, n, 0)).collect();
        assert!(outcomes.contains(&Outcome::Log(Keep::Full)));
        assert!(outcomes.contains(&Outcome::SampledOut));
        assert!(!outcomes.contains(&Outcome::Discard));
    }

    #[test]
    fn sampling_keeps_about_one_in_n_and_whole_flows() {
        let by_packet = granularity("header 1/10");
        let kept = (0..100_000)
            .filter(|&n| by_packet.resolve(n, 5).is_some())
            .count();
        assert!((9_500..10_500).contains(&kept), "{kept}");
        let by_flow = granularity("header 1/10 flows");
        for flow in 0..100 {
            let first = by_flow.resolve(0, flow);
            assert!((0..10).all(|n| by_flow.resolve(n, flow) == first));
        }
    }

    #[test]
    fn kept_length_never_exceeds_what_was_captured() {
        assert_eq!(Keep::Header.kept_len(54, 40), 40);
        assert_eq!(Keep::Partial(u32::MAX).kept_len(54, 1500), 1500);
        assert_eq!(Keep::Partial(10).kept_len(54, 1500), 64);
        assert_eq!(Keep::Full.kept_len(54, 1500), 1500);
        assert_eq!(Keep::Nothing.kept_len(54, 1500), 0);
    }

    #[test]
    fn each_kind_has_its_number_and_no_other_number_is_one() {
        for kind in KeepKind::ALL {
            assert_eq!(KeepKind::try_from(kind.code()), Ok(kind));
            assert_eq!(KeepKind::of_flags(0xfc | kind.code()), kind);
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, kind.code().to_string());
            assert_eq!(serde_json::from_str::<KeepKind>(&json).unwrap(), kind);
        }
        assert!(KeepKind::try_from(4).is_err());
        assert!(serde_json::from_str::<KeepKind>("4").is_err());
    }
}
