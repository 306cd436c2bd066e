//! The path of a flow, and how far it is known.

use std::collections::BTreeSet;

use strata_dta::key::{FiveTuple, Key};
use strata_dta::postcarding::{Extent, Path};
use strata_wire::exact;

use super::super::shown;
use super::time;
use crate::api::answer::{TelemetryHop, TelemetryPath};
use crate::store::reader::TelemetryStore;

impl TelemetryStore {
    /// The path of a flow, or of another key, with the latest latencies of the flow at its nodes;
    /// `None` if it is not known.
    pub fn answer_path(&mut self, key: &Key) -> Option<TelemetryPath> {
        let found = self.path(key)?;
        let (values, extent) = (found.path.values(), found.path.extent());
        let last = values.iter().rposition(Option::is_some)? + 1;
        // Those that are known to exist, and for which there is a place.
        let kept = extent.hops.min(self.hops());
        let flow = FiveTuple::parse(key.bytes());
        let hops = values[..last.max(usize::from(kept))].iter().map(|&node| {
            let at = node.zip(flow).map(|(node, flow)| Key::flow_at(node, &flow));
            let latency = at.and_then(|at| self.value(&at, 4, 1));
            TelemetryHop {
                node,
                // Nodes report 4 bytes, which a store with longer values has padded.
                latency: latency.and_then(|(found, _)| {
                    let word = found.data.first_chunk::<4>().map(|word| &word[..]);
                    shown::as_number(word.map_or(&found.data[..], |word| word))
                }),
            }
        });
        let hops: Vec<TelemetryHop> = hops.collect();
        let mut remarks = remarks(&found.path, &hops, self.hops());
        let nodes: BTreeSet<u32> = hops.iter().filter_map(|hop| hop.node).collect();
        let is_simple = nodes.len() == hops.iter().filter(|hop| hop.node.is_some()).count();
        if !is_simple {
            remarks.push(
                "a node is on the path twice: only the latest of its latencies is known".to_owned(),
            );
        }
        let whole = found.path.is_whole();
        let sum = (whole && is_simple)
            .then(|| sum_of(hops.iter().map(|hop| hop.latency)))
            .flatten();
        let known = hops.iter().filter_map(|hop| hop.latency);
        let at_least = known.fold(0, u64::saturating_add);
        let is_of_one = !extent.is_mixed && !extent.is_contradicted;
        let is_any_known = hops.iter().any(|hop| hop.latency.is_some());
        if whole && is_simple && hops.iter().any(|hop| hop.latency.is_none()) {
            remarks.push("not all nodes have reported their latency".to_owned());
        }
        Some(TelemetryPath {
            flow: shown::key(key),
            whole,
            hops_in_all: extent.is_len_known.then_some(extent.hops),
            hops_at_least: extent.hops.max(exact::<u8>(last)),
            latency: sum,
            // Of several packets, hops may be those of different ways.
            latency_at_least: (sum.is_none() && is_simple && is_of_one && is_any_known)
                .then_some(at_least),
            remarks,
            hops,
            time: found.time.map(time),
        })
    }
}

/// Why a path is not known to be whole.
fn remarks(path: &Path, hops: &[TelemetryHop], kept: u8) -> Vec<String> {
    let Extent {
        hops: len,
        is_len_known,
        is_mixed,
        is_contradicted,
    } = path.extent();
    let mut remarks = Vec::new();
    let mut say = |remark: String| remarks.push(remark);
    if len > kept {
        let least = if is_len_known { "" } else { "at least " };
        say(format!(
            "the path has {least}{len} hops, and this store keeps {kept} per path \
             (`strata telemetry run --hops`)"
        ));
    }
    let missing = (1..).zip(hops).filter(|(_, hop)| hop.node.is_none());
    let missing: Vec<String> = missing
        .map(|(place, _): (u32, _)| place.to_string())
        .collect();
    match &missing[..] {
        [] => {}
        [first] if first == "1" && !is_len_known => say(
            "hop 1 has not reported. If nodes report packets on departure, write first-ttl = 63 in \
             the table (--table)"
                .to_owned(),
        ),
        [one] => say(format!("hop {one} has not reported")),
        several => say(format!("hops {} have not reported", several.join(", "))),
    }
    if is_contradicted {
        say(
            "several nodes have reported as the same hop. Either packets of the flow take different \
             paths, or the network does not decrement the TTL: then the table (--table) must have \
             hop-from = \"arrival\""
                .to_owned(),
        );
    }
    if is_mixed {
        say(
            "its hops may be those of different packets: reports of more flows than --path-rows \
             arrived at the same time, or with pauses"
                .to_owned(),
        );
    }
    if !is_len_known {
        say(
            "the number of hops is not known: each node reports separately, so one before the \
             first or after the last may be missing"
                .to_owned(),
        );
    }
    remarks
}

/// The sum of a path's latencies; `None` if one is not known, or it has more than 64 bits: reporters
/// say what they like.
fn sum_of(mut latencies: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    latencies.try_fold(0_u64, |sum, latency| sum.checked_add(latency?))
}

#[cfg(test)]
mod tests {
    use super::sum_of;

    #[test]
    fn latencies_of_any_size_have_a_sum_or_none() {
        let sum = |latencies: &[Option<u64>]| sum_of(latencies.iter().copied());
        assert_eq!(sum(&[Some(1), Some(2)]), Some(3));
        assert_eq!(sum(&[Some(1), None]), None);
        assert_eq!(sum(&[Some(u64::MAX), Some(1)]), None);
    }
}
