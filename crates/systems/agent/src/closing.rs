//! Whether the sums of a destination close, and which packets they may lack.

use strata_wire::count_of;

use crate::message::DestinationSum;

/// A collector reports every 2 s. Once its last report is older than two of them, packets that were exported since may
/// be in no sum.
pub const OVERDUE_SECONDS: u64 = 4;

/// Whether the sums of a destination close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// As of the collector's last report, each exported packet was received, or is counted as lost or before.
    Closed,
    /// The collector does not know of this number of packets.
    Open(u64),
    /// That cannot be told: not all was exported with numbers, or the collector or some agents do not report.
    Unknown,
}

impl DestinationSum {
    fn collector_is(&self, state: &str) -> bool {
        self.collector
            .as_ref()
            .is_some_and(|one| one.state == state)
    }

    /// Seconds since the last report of its collector; none if it never reported.
    #[must_use]
    pub fn heard(&self) -> Option<u64> {
        self.collector.as_ref().and_then(|one| one.heard)
    }

    fn is_overdue(&self) -> bool {
        self.heard()
            .is_some_and(|seconds| seconds > OVERDUE_SECONDS)
    }

    /// Whether its sums close.
    #[must_use]
    pub fn closing(&self) -> Closing {
        if self.interfaces.is_empty() || self.heard().is_none() {
            return Closing::Unknown;
        }
        let all_report = self.silent.is_empty() && self.revoked.is_empty();
        // Without numbers, packets are compared with nothing.
        let is_known = all_report && self.without_numbers == 0;
        match self.sum.missing {
            0 if self.collector_is("up") && !self.is_overdue() && is_known => Closing::Closed,
            0 => Closing::Unknown,
            missing => Closing::Open(missing),
        }
    }

    /// Packets that may be in no sum, or are compared with nothing: a sentence each, with at most `names_max` names
    /// of agents. The names come from hosts.
    #[must_use]
    pub fn doubts(&self, names_max: usize) -> Vec<String> {
        let mut doubts = Vec::new();
        if !self.silent.is_empty() {
            doubts.push(format!(
                "packets that these agents have exported since their last report are not in the \
                 sums: {}",
                listed(&self.silent, names_max)
            ));
        }
        if !self.revoked.is_empty() {
            doubts.push(format!(
                "these agents are revoked, but may still export; packets that they have exported \
                 since then, and that the collector does not know of, are not in the sums: {}",
                listed(&self.revoked, names_max)
            ));
        }
        if self.of_others > 0 {
            let packets = count_of(self.of_others, "packet");
            doubts.push(format!(
                "{packets} in sessions that no agent has reported since the controller started: none of these can be \
                 missing"
            ));
        }
        if !self.interfaces.is_empty() && self.collector_is("up") && self.is_overdue() {
            let seconds = self
                .heard()
                .map_or_else(String::new, |heard| heard.to_string());
            doubts.push(format!(
                "the collector is overdue: it reports every 2 s, and its last report is {seconds} \
                 s old; packets that were exported since then may be missing from the sums"
            ));
        }
        doubts
    }
}

fn listed(names: &[String], names_max: usize) -> String {
    let (shown, more) = names.split_at(names.len().min(names_max));
    let shown = shown.join(", ");
    match more.len() {
        0 => shown,
        more if shown.is_empty() => more.to_string(),
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{CollectorState, InterfaceSum};

    fn sum(heard: Option<u64>, missing: u64) -> DestinationSum {
        DestinationSum {
            collector: Some(CollectorState {
                state: "up".into(),
                heard,
                ..CollectorState::default()
            }),
            interfaces: vec![InterfaceSum::default()],
            sum: InterfaceSum {
                missing,
                ..InterfaceSum::default()
            },
            ..DestinationSum::default()
        }
    }

    #[test]
    fn sums_close_only_if_all_ends_report() {
        assert_eq!(sum(Some(OVERDUE_SECONDS), 0).closing(), Closing::Closed);
        assert_eq!(
            sum(Some(OVERDUE_SECONDS + 1), 0).closing(),
            Closing::Unknown
        );
        assert_eq!(sum(None, 7).closing(), Closing::Unknown);
        assert_eq!(sum(Some(29), 7).closing(), Closing::Open(7));
        let quiet = DestinationSum {
            silent: vec!["web-1".into()],
            ..sum(Some(1), 0)
        };
        assert_eq!(quiet.closing(), Closing::Unknown);
        let revoked = DestinationSum {
            revoked: vec!["web-1".into()],
            ..sum(Some(1), 0)
        };
        assert_eq!(revoked.closing(), Closing::Unknown);
        let unnumbered = |missing| DestinationSum {
            without_numbers: 1,
            ..sum(Some(1), missing)
        };
        assert_eq!(unnumbered(0).closing(), Closing::Unknown);
        assert_eq!(unnumbered(7).closing(), Closing::Open(7));
        assert_eq!(DestinationSum::default().closing(), Closing::Unknown);
    }

    #[test]
    fn doubts_name_a_bounded_number_of_agents() {
        let quiet = DestinationSum {
            silent: (0..1000).map(|n| format!("web-{n}")).collect(),
            ..sum(Some(1), 0)
        };
        let doubts = quiet.doubts(2);
        assert_eq!(doubts.len(), 1, "{doubts:?}");
        assert!(
            doubts[0].ends_with("in the sums: web-0, web-1 and 998 more"),
            "{doubts:?}"
        );
        assert!(quiet.doubts(usize::MAX)[0].ends_with(", web-999"));
        let late = sum(Some(OVERDUE_SECONDS + 1), 0).doubts(2);
        assert!(late[0].contains("its last report is 5 s old"), "{late:?}");
    }
}
