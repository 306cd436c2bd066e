//! What a log lacks: packets that were lost, and packets that retention deleted.

use std::collections::{BTreeMap, BTreeSet};

use strata_archive::retention_class;
use strata_store::{Log, Loss, RemovedFor};
use strata_wire::{Printable, count_of, grouped};

use super::headers_only;
use crate::answers::refused::Refused;
use crate::answers::times;

/// What answers about a log may lack because the log lacks it, as other commands warn; `None` if nothing.
///
/// # Errors
///
/// If the log cannot be read.
pub fn lost_words(log: &Log) -> Result<Option<String>, Refused> {
    let texts = log.losses()?.texts(times::text);
    if texts.is_empty() {
        return Ok(None);
    }
    let texts: Vec<String> = texts.iter().map(|what| format!("the log {what}")).collect();
    let texts = texts.join("; ");
    Ok(Some(format!(
        "{texts}; the results may lack some of them (see strata info)"
    )))
}

/// What retention has deleted of a log, for an answer about the time from `from_ns` on; `None` if nothing, or if of
/// every retention class of which packets were deleted, some that are left are older. Opens no part, and reads the
/// head of one block of each recording at most.
pub(crate) fn deleted_words(log: &Log, from_ns: Option<u64>) -> Option<String> {
    let removed = &log.archive().removed;
    let counts = removed.iter().flat_map(|one| &one.counts);
    let pruned = counts
        .map(|count| count.packets)
        .fold(0, u64::saturating_add);
    let rings = log.recordings().iter().flat_map(|one| &one.overwritten);
    let overwritten = rings.map(|one| one.packets).fold(0, u64::saturating_add);
    let packets = pruned.saturating_add(overwritten);
    if packets == 0 {
        return None;
    }
    let left = match (oldest_ns(log), from_ns) {
        (None, _) => String::from("no packet is left"),
        (Some(oldest), Some(from)) if oldest <= from => {
            let lacking = lacking(&deleted_classes(log), from);
            if lacking.is_empty() {
                return None;
            }
            lacking.join(", ")
        }
        (Some(oldest), _) => format!(
            "the oldest remaining packet arrived at {}",
            times::text(oldest)
        ),
    };
    let reasons: BTreeSet<RemovedFor> = removed.iter().map(|one| one.reason).collect();
    let mut reasons: Vec<&str> = reasons.iter().map(|reason| reason.words()).collect();
    if overwritten > 0 {
        reasons.push("by newer files (-W)");
    }
    Some(format!(
        "{} of the log deleted {}: {left}",
        count_of(packets, "packet"),
        reasons.join(", and ")
    ))
}

/// When the oldest packet of a log arrived, as its manifest and the first block of each recording say.
fn oldest_ns(log: &Log) -> Option<u64> {
    let parts = log.archive().parts.iter().filter(|part| part.packets > 0);
    let parts = parts.map(|part| part.ts_min_ns);
    parts.chain(oldest_block_ns(log)).min()
}

/// The same of what is not compacted.
fn oldest_block_ns(log: &Log) -> Option<u64> {
    let headers = headers_only();
    let blocks = log.recordings().iter().filter_map(|recording| {
        let blocks = log.blocks(recording, &headers).flatten();
        let mut blocks = blocks.filter(|block| block.header.packets > 0);
        blocks.next().map(|block| block.header.ts_min_ns)
    });
    blocks.min()
}

/// The retention classes of which packets were deleted, since each may be kept for another time; and when the oldest
/// packet arrived that is left of a class: that of its parts, or else of all that is not compacted.
fn deleted_classes(log: &Log) -> BTreeMap<String, Option<u64>> {
    let mut oldest: BTreeMap<&str, u64> = BTreeMap::new();
    for part in log.archive().parts.iter().filter(|part| part.packets > 0) {
        let known = oldest.entry(&part.retention).or_insert(part.ts_min_ns);
        *known = part.ts_min_ns.min(*known);
    }
    let block_ns = oldest_block_ns(log);
    let mut classes = BTreeMap::new();
    for removed in &log.archive().removed {
        let mut recordings = log.recordings().iter();
        let recording = recordings.find(|one| one.id == removed.recording);
        for count in removed.counts.iter().filter(|count| count.packets > 0) {
            let class = recording.and_then(|one| one.classes.get(usize::from(count.class)));
            let class = retention_class(class.map_or("unknown", String::as_str));
            let oldest_ns = oldest.get(class.as_str()).copied().or(block_ns);
            classes.insert(class, oldest_ns);
        }
    }
    classes
}

/// What may be lacking from a time on, by retention class and when its oldest packet that is left arrived.
fn lacking(classes: &BTreeMap<String, Option<u64>>, from_ns: u64) -> Vec<String> {
    let lacking = classes.iter().filter_map(|(class, oldest_ns)| {
        let class = Printable(class);
        match oldest_ns {
            Some(ns) if *ns <= from_ns => None,
            Some(ns) => Some(format!(
                "the oldest remaining packet of the retention class {class} arrived at {}",
                times::text(*ns)
            )),
            None => Some(format!("no packet of the retention class {class} remains")),
        }
    });
    lacking.collect()
}

/// What is lost of a recording that was not closed.
pub(super) fn loss_words(loss: &Loss) -> String {
    let since = loss.checkpoint_ns.map_or_else(
        || String::from("all packets that were not written yet"),
        |ns| format!("all that arrived after {}", times::text(ns)),
    );
    format!(
        "not closed: {} packets are known to be lost, and {since}",
        grouped(loss.packets)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_class_the_oldest_packet_tells_what_may_be_lacking() {
        let class = |name: &str, oldest_ns| (name.to_owned(), oldest_ns);
        // As after `--keep-class benign=2d`, where the others are kept for longer.
        let benign = class("benign", Some(20));
        let classes = BTreeMap::from([class("attack", Some(10)), benign, class("bot", None)]);
        let said = |from_ns| lacking(&classes, from_ns).join(", ");
        assert!(said(9).starts_with("the oldest remaining packet of the retention class attack"));
        assert_eq!(
            said(19),
            "the oldest remaining packet of the retention class benign arrived at \
             1970-01-01T00:00:00.000000020Z, no packet of the retention class bot remains"
        );
        assert_eq!(said(20), "no packet of the retention class bot remains");
    }
}
