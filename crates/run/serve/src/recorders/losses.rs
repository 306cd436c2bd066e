//! What a recording loses, since when, and what it does not keep on purpose.

use std::collections::hash_map::{Entry, HashMap};

use serde::Serialize;
use strata_control::Status;
use strata_log_views::logs::HowNotKept;
use utoipa::ToSchema;

/// Packets that a recording lost.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Lost {
    /// `kernel`, `softnet`, `device`; `strata` for packets that Strata itself dropped.
    pub(super) place: String,
    pub(super) counter: String,
    pub(super) packets: u64,
    pub(super) packets_per_second: f64,
    /// When it was first seen to grow; null for packets lost before this server connected.
    #[schema(required)]
    pub(super) first: Option<String>,
    #[schema(required)]
    pub(super) last: Option<String>,
    pub(super) advice: String,
}

/// Packets of which nothing was to be kept.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct NotKept {
    /// `sampled_out`: a mode or policy keeps one in N; `discarded`: dropped by a mode or policy;
    /// `duplicates`: copies of packets that were captured before (`--dedup`).
    pub(super) how: HowNotKept,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) packets_per_second: f64,
    /// Of `duplicates`, 0 of others: packets that were kept and may be copies, since they could not be
    /// compared with all that passed before.
    pub(super) uncompared_packets: u64,
}

/// What is not kept on purpose, and its result in a recording's status.
const NOT_KEPT: [(HowNotKept, &str); 3] = [
    (HowNotKept::SampledOut, "sampled_out"),
    (HowNotKept::Discarded, "discarded"),
    (HowNotKept::Duplicates, "duplicates"),
];

/// Of packets that nothing was to be kept of; `rate` tells a counter's rate from it and what it was.
pub(super) fn not_kept(
    status: &Status,
    old: Option<&Status>,
    rate: &dyn Fn(u64, Option<u64>) -> f64,
) -> Vec<NotKept> {
    let ended = |status: &Status, result: &str| {
        let all = status.packets.iter().filter(|one| one.result == result);
        all.fold((0_u64, 0_u64), |(packets, bytes), one| {
            (
                packets.saturating_add(one.packets),
                bytes.saturating_add(one.bytes),
            )
        })
    };
    let each = NOT_KEPT.into_iter().map(|(how, result)| {
        let (packets, bytes) = ended(status, result);
        let uncompared_packets = match how {
            HowNotKept::Duplicates => status.uncompared_packets,
            HowNotKept::SampledOut | HowNotKept::Discarded => 0,
        };
        NotKept {
            how,
            packets,
            bytes,
            packets_per_second: rate(packets, old.map(|old| ended(old, result).0)),
            uncompared_packets,
        }
    });
    each.filter(|one| one.packets > 0 || one.uncompared_packets > 0)
        .collect()
}

/// When a counter of losses grew first, as far as it was watched, and last; neither if it only was there.
#[derive(Clone, Debug, Default)]
struct Grown {
    first: Option<String>,
    last: Option<String>,
}

/// When losses were seen to grow, by place and counter.
#[derive(Default)]
pub(super) struct Losses(HashMap<(String, String), Grown>);

impl Losses {
    /// Notes which losses grow, and says since when; what was lost before it was watched has no time.
    pub(super) fn note(&mut self, lost: &mut [Lost], is_watched: bool) {
        let key = |one: &Lost| (one.place.clone(), one.counter.clone());
        if !is_watched {
            self.0.clear();
        }
        let known: Vec<_> = lost.iter().map(key).collect();
        self.0.retain(|key, _| known.contains(key));
        for one in lost.iter_mut().filter(|one| one.packets > 0) {
            let grown = self.0.entry(key(one));
            let is_new = matches!(grown, Entry::Vacant(_)) && is_watched;
            let grown = grown.or_default();
            if one.packets_per_second > 0.0 {
                let now = strata_log_views::answers::times::now();
                if is_new {
                    grown.first = Some(now.clone());
                }
                grown.last = Some(now);
            }
            (one.first, one.last) = (grown.first.clone(), grown.last.clone());
        }
    }
}

/// What to do about packets that Strata itself dropped.
pub(super) fn dropped_advice(reason: &str) -> String {
    let what = match reason {
        "disk_full" => {
            "the disk is full: prune the log (strata prune), or set elastic.remove_percent"
        }
        "write_error" => {
            "writing to the disk failed: see the events and the kernel's log for the \
         cause"
        }
        "relay_lost" => "the relay was not reachable: check the network to it",
        "cpu_budget" => "skipped to stay within the CPU budget: raise elastic.cpu_budget_percent",
        _ => "see `strata status` and the events",
    };
    what.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(packets: u64, packets_per_second: f64) -> [Lost; 1] {
        [Lost {
            place: String::from("kernel"),
            counter: String::from("eth0 ring"),
            packets,
            packets_per_second,
            first: None,
            last: None,
            advice: String::new(),
        }]
    }

    #[test]
    fn losses_have_the_time_at_which_they_were_seen_to_grow() {
        let mut losses = Losses::default();
        let mut note = |packets, rate, is_watched| {
            let mut lost = loss(packets, rate);
            losses.note(&mut lost, is_watched);
            (lost[0].first.clone(), lost[0].last.clone())
        };
        assert_eq!(note(0, 0.0, false), (None, None));
        let (first, last) = note(5, 5.0, true);
        assert!(first.is_some() && first == last);
        let (same, later) = note(7, 2.0, true);
        assert!(same == first && later >= last);
        assert_eq!(note(7, 0.0, true), (same, later));
        // Another process, which had lost something before, at an unknown time.
        assert_eq!(note(3, 0.0, false), (None, None));
        let (first, last) = note(4, 1.0, true);
        assert!(first.is_none() && last.is_some());
    }
}
