//! Row groups of which all packets are wanted, by what was written about them: the counts in the
//! metadata of their file, and the table of flows.

use strata_archive::ArchiveError;
use strata_archive::parts::GroupCounts;

use crate::parts::find::{ByClass, Find};

use super::groups::OfGroup;
use super::pieces::OpenPart;
use super::rows::{self, FLOWS_AHEAD};
use super::{FoundCounts, FoundFlow, FoundPoint, Label, Matches, Searching, TakeFound, is_within};

/// Passes what is wanted of a row group. What cannot be read is damage, or encrypted.
pub(super) fn of_group(
    searching: &Searching<'_>,
    part: &OpenPart<'_>,
    group: usize,
    matches: &mut Matches<'_>,
    take: &mut dyn TakeFound,
) {
    let done = match of(searching, part, group) {
        Some(counts) => pass(searching, part, (group, &counts), take),
        None => rows::read(searching, part, group, matches, take),
    };
    if let Err(error) = done {
        take.damage(error.to_string());
    }
}

/// The counts of a row group, if they do for this search.
pub(super) fn of<'a>(
    searching: &Searching<'_>,
    part: &'a OpenPart<'_>,
    group: usize,
) -> Option<GroupCounts<'a>> {
    let counts = part.counts.as_ref()?.group(group)?;
    do_for(&counts, &searching.find, searching.points_ns?).then_some(counts)
}

/// Whether counts do for what is sought, by points of a length.
pub(super) fn do_for(counts: &GroupCounts<'_>, find: &Find<'_>, points_ns: u64) -> bool {
    let [first, last] = counts.span_ns();
    let is_whole = find.filter.is_none() && is_within(find, first) && is_within(find, last);
    is_whole && points_ns.is_multiple_of(counts.step_ns())
}

/// Passes the totals of a row group by time.
pub(super) fn points(counts: &GroupCounts<'_>, take: &mut dyn TakeFound) {
    for point in counts.points() {
        let [class, granularity] = point.texts;
        take.counted_point(&FoundPoint {
            class,
            granularity,
            from_ns: point.from_ns,
            amounts: point.amounts,
        });
    }
}

/// A flow, with what its packets come to.
struct Counted {
    of: OfGroup,
    first_ns: u64,
    last_ns: u64,
    wire_bytes: u64,
    kept_bytes: u64,
    score: Option<f32>,
    classes: ByClass,
}

/// Passes the totals of a row group.
fn pass(
    searching: &Searching<'_>,
    part: &OpenPart<'_>,
    (group, counts): (usize, &GroupCounts<'_>),
    take: &mut dyn TakeFound,
) -> Result<(), ArchiveError> {
    let mut flows = Vec::new();
    for of in part.flows.of_packets(group) {
        part.flows.totals(of, |place, totals| {
            if place.group != group {
                return;
            }
            let of = OfGroup::of(place);
            if let Some(name) = totals.name {
                take.name(&of.key, name);
            }
            flows.push(Counted {
                of,
                first_ns: totals.first_ns,
                last_ns: totals.last_ns,
                wire_bytes: totals.wire_bytes,
                kept_bytes: totals.kept_bytes,
                score: totals.score,
                classes: ByClass::clone(totals.classes),
            });
        })?;
    }
    flows.sort_by_key(|flow| flow.of.first_row);
    let recording = searching.model_of(part.part.recording);
    for label in counts.labels() {
        let [class, granularity, reason] = label.texts;
        let number = take.label(&Label {
            recording,
            class,
            granularity,
            reason,
        });
        let counts = FoundCounts {
            amounts: label.amounts,
            span_ns: counts.span_ns(),
        };
        take.counted(number, &counts);
    }
    points(counts, take);
    for (number, flow) in flows.iter().enumerate() {
        if let Some(later) = flows.get(number + FLOWS_AHEAD) {
            take.soon(&later.of.key);
        }
        let low = flow.of.low_rows as u64;
        take.counted_flow(&FoundFlow {
            flow: flow.of.key,
            from_low: flow.of.from_low,
            packets: [low, flow.of.rows as u64 - low],
            first_ns: flow.first_ns,
            last_ns: flow.last_ns,
            wire_bytes: flow.wire_bytes,
            kept_bytes: flow.kept_bytes,
            score: flow.score,
            classes: &flow.classes,
        });
    }
    Ok(())
}
