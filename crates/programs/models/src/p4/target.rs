//! What the program `p4/titanlog.p4` has room for, and how its tables are named. A test compares this with the program.

use strata_sketch::Feature;

/// Trees.
pub(super) const TREES: usize = 8;
/// Different tests of a tree: a bit each.
pub(super) const TESTS: usize = 64;
/// Entries of the table of a tree: leaves.
pub(super) const LEAVES: usize = 256;
/// Classes.
pub(super) const CLASSES: usize = 8;
/// Entries of the table that decides.
pub(super) const RULES: usize = 256;
/// Entries of the table of granularities.
pub(super) const GRANULARITIES: usize = 16;
/// The class of packets beyond the parser.
pub(super) const UNCLASSIFIED: u8 = 8;
/// Bytes of payload that the granularity `partial` keeps.
pub(super) const PARTIAL_BYTES: u32 = 128;

/// Bits of a feature that the program computes, and entries of its table of ranges; `None` if it does not compute it.
pub(super) fn room(feature: Feature) -> Option<(u32, usize)> {
    match feature {
        Feature::Size
        | Feature::HeaderLen
        | Feature::PayloadLen
        | Feature::SourcePort
        | Feature::DestinationPort
        | Feature::LowerPort
        | Feature::TcpWindow => Some((16, 4096)),
        Feature::Protocol | Feature::TcpFlags | Feature::Ttl | Feature::Tos | Feature::Ecn => {
            Some((8, 256))
        }
        _ => None,
    }
}

/// The features that the program computes.
pub(super) fn features() -> impl Iterator<Item = Feature> {
    let all = Feature::ALL.iter().copied();
    all.filter(|feature| room(*feature).is_some())
}
