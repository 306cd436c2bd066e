//! Conservation: where every packet and every byte went.
//!
//! ```text
//! packets: seen = filtered + duplicates + discarded + sampled_out + logged + dropped{reason} + in_flight
//! bytes:   seen = filtered + duplicates + discarded + sampled_out + logged + dropped{reason} + in_flight
//!                 + cut{where}
//! ```
//!
//! Bytes are bytes on the wire: the original length of a packet, or its
//! captured length where a capture claims less than it holds.

mod sums;

use std::fmt;

pub use sums::{Kinds, Summed, largest};

use crate::summed;

/// A number of packets and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Counters {
    /// Counts one packet of this many bytes.
    #[inline]
    pub fn add(&mut self, bytes: u64) {
        self.packets = self.packets.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Adds other counters. Those of a file or a peer may be anything: a sum that is too large is the
    /// largest number.
    pub fn merge(&mut self, other: Self) {
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

impl Summed for Counters {
    fn merge(&mut self, more: &Self) {
        Self::merge(self, *more);
    }
}

/// Why a packet that should have been logged was not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum DropReason {
    /// The disk was full, and recording continued.
    DiskFull = 0,
    /// The log could not be written.
    WriteError = 1,
    /// The relay was lost before it had the packets on disk.
    RelayLost = 2,
    /// Skipped in the kernel, flow by flow, to keep within the CPU budget.
    CpuBudget = 3,
}

impl DropReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 4] = [
        Self::DiskFull,
        Self::WriteError,
        Self::RelayLost,
        Self::CpuBudget,
    ];

    /// The name in summaries and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DiskFull => "disk_full",
            Self::WriteError => "write_error",
            Self::RelayLost => "relay_lost",
            Self::CpuBudget => "cpu_budget",
        }
    }
}

/// Where bytes of a logged packet were cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum CutWhere {
    /// Before Strata: the capture's own snapshot length.
    Snaplen = 0,
    /// By header-only logging.
    Header = 1,
    /// By partial-payload logging.
    Partial = 2,
}

impl CutWhere {
    /// All places, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Snaplen, Self::Header, Self::Partial];

    /// The name in summaries and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Snaplen => "snaplen",
            Self::Header => "header",
            Self::Partial => "partial",
        }
    }
}

summed! {
    /// The counters of one worker or one recording.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Ledger {
        /// Every packet that arrived.
        pub seen: Counters,
        /// Not matched by the capture filter.
        pub filtered: Counters,
        /// Copies of packets that were captured before, which a recording removes if it is told to.
        pub duplicates: Counters,
        /// Dropped by the granularity of its class or policy.
        pub discarded: Counters,
        /// Skipped by sampling.
        pub sampled_out: Counters,
        /// In the log; bytes are those kept.
        pub logged: Counters,
        /// Lost, by [`DropReason`].
        pub dropped: [Counters; DropReason::ALL.len()],
        /// In memory, not yet in a file; bytes are those kept.
        pub in_flight: Counters,
        /// Bytes of logged and in-flight packets that were not kept, by [`CutWhere`].
        pub cut_bytes: [u64; CutWhere::ALL.len()],
        /// Part of `logged`: more was wanted than the kernel had copied, because it cut the flow's
        /// packets by an earlier verdict. Wire bytes.
        pub wanted_but_cut: Counters,
        /// Part of `logged`: partial at first, and whole once the flow was flagged. Bytes are those
        /// that came back, which are no longer cut.
        pub promoted: Counters,
        /// Part of `logged`: without a readable network header, so that the first bytes stand for the
        /// header ([`FALLBACK_LEN`](crate::walk::dissect::FALLBACK_LEN)). Bytes are those kept.
        pub header_fallback: Counters,
        /// In addition: packets that were passed on, although a copy of them may have been captured before:
        /// not all of those before were remembered, or they are not told apart. Wire bytes.
        pub uncompared: Counters,
        /// In addition: copies sent on because of a policy.
        pub mirrored: Counters,
        /// Copies that their outgoing interface did not take.
        pub mirror_lost: Counters,
    }
}

impl Ledger {
    /// Subsets of logged packets, by their names.
    #[must_use]
    pub fn of_logged(&self) -> [(&'static str, Counters); 3] {
        [
            ("wanted_but_cut", self.wanted_but_cut),
            ("promoted", self.promoted),
            ("header_fallback", self.header_fallback),
        ]
    }

    /// Packets that were lost after it was decided how much of them is kept, in bytes on the wire: all that were
    /// dropped, except those that the kernel skipped.
    #[must_use]
    pub fn dropped_after_decision(&self) -> Counters {
        let mut dropped = Counters::default();
        for reason in DropReason::ALL {
            match reason {
                DropReason::DiskFull | DropReason::WriteError | DropReason::RelayLost => {
                    dropped.merge(self.dropped[reason as usize]);
                }
                DropReason::CpuBudget => {}
            }
        }
        dropped
    }

    /// The sum of all drop reasons.
    #[must_use]
    pub fn dropped_total(&self) -> Counters {
        let mut total = Counters::default();
        for counters in self.dropped {
            total.merge(counters);
        }
        total
    }

    /// Checks the conservation equation.
    ///
    /// # Errors
    ///
    /// [`Imbalance`] says by how much it is violated.
    pub fn check(&self) -> Result<(), Imbalance> {
        let mut sum = Counters::default();
        for part in [
            self.filtered,
            self.duplicates,
            self.discarded,
            self.sampled_out,
            self.logged,
            self.dropped_total(),
            self.in_flight,
        ] {
            sum.merge(part);
        }
        for cut in self.cut_bytes {
            sum.bytes = sum.bytes.saturating_add(cut);
        }
        if sum == self.seen {
            Ok(())
        } else {
            Err(Imbalance {
                seen: self.seen,
                accounted: sum,
            })
        }
    }
}

/// The conservation equation is violated: a bug in Strata, never the traffic's fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Imbalance {
    /// What arrived.
    pub seen: Counters,
    /// What the other terms add up to.
    pub accounted: Counters,
}

impl fmt::Display for Imbalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the accounting does not balance: {} packets, {} bytes arrived, but {} packets, {} bytes are accounted for; this is a fault of Strata: please report it",
            self.seen.packets, self.seen.bytes, self.accounted.packets, self.accounted.bytes
        )
    }
}

impl std::error::Error for Imbalance {}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dropped = self.dropped_total();
        // Only recordings that remove duplicates have some.
        let duplicates = |count: u64| match self.duplicates.packets {
            0 => String::new(),
            _ => format!(" + duplicates {count}"),
        };
        writeln!(
            f,
            "packets: seen {} = filtered {}{} + discarded {} + sampled_out {} + logged {} + dropped {} + in_flight {}",
            self.seen.packets,
            self.filtered.packets,
            duplicates(self.duplicates.packets),
            self.discarded.packets,
            self.sampled_out.packets,
            self.logged.packets,
            dropped.packets,
            self.in_flight.packets
        )?;
        write!(
            f,
            "bytes:   seen {} = filtered {}{} + discarded {} + sampled_out {} + logged {} + dropped {} + in_flight {}",
            self.seen.bytes,
            self.filtered.bytes,
            duplicates(self.duplicates.bytes),
            self.discarded.bytes,
            self.sampled_out.bytes,
            self.logged.bytes,
            dropped.bytes,
            self.in_flight.bytes
        )?;
        for place in CutWhere::ALL {
            write!(
                f,
                " + cut{{{}}} {}",
                place.name(),
                self.cut_bytes[place as usize]
            )?;
        }
        let others = [
            ("uncompared", self.uncompared),
            ("mirrored", self.mirrored),
            ("mirror_lost", self.mirror_lost),
        ];
        for (name, Counters { packets, bytes }) in self.of_logged().into_iter().chain(others) {
            if packets > 0 {
                write!(f, "\n{name}: {packets} packets, {bytes} bytes")?;
            }
        }
        for reason in DropReason::ALL {
            let counters = self.dropped[reason as usize];
            if counters.packets > 0 {
                write!(
                    f,
                    "\ndropped{{{}}}: {} packets, {} bytes",
                    reason.name(),
                    counters.packets,
                    counters.bytes
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Such as a manifest may hold, or a switch may send.
    #[test]
    fn counters_that_are_too_large_end_nothing() {
        let mut ledger = Ledger::default();
        ledger.logged.merge(Counters {
            packets: u64::MAX,
            bytes: u64::MAX,
        });
        ledger.dropped[DropReason::DiskFull as usize].add(u64::MAX);
        ledger.cut_bytes.fill(u64::MAX);
        let mut both = ledger;
        both.merge(&ledger);
        assert_eq!(both.logged.packets, u64::MAX);
        assert_eq!(both.dropped_total().bytes, u64::MAX);
        assert!(both.check().is_err());
        assert!(!both.to_string().is_empty());
    }

    #[test]
    fn a_missing_packet_or_byte_is_noticed() {
        let mut ledger = Ledger::default();
        for bytes in [60, 1514, 700] {
            ledger.seen.add(bytes);
        }
        ledger.filtered.add(60);
        ledger.seen.add(90);
        ledger.duplicates.add(90);
        ledger.logged.add(54);
        ledger.cut_bytes[CutWhere::Header as usize] += 1460;
        ledger.dropped[DropReason::DiskFull as usize].add(700);
        assert_eq!(ledger.check(), Ok(()));
        let mut short = ledger;
        short.cut_bytes[0] += 1;
        assert!(short.check().is_err());
        let mut lost = ledger;
        lost.seen.packets += 1;
        assert!(lost.check().unwrap_err().to_string().contains("5 packets"));
        let mut doubled = ledger;
        doubled.merge(&ledger);
        assert_eq!(doubled.seen.packets, 8);
        assert_eq!(doubled.check(), Ok(()));
        assert!(ledger.to_string().contains("dropped{disk_full}: 1 packets"));
        let shown = ledger.to_string();
        assert!(
            shown.contains("filtered 1 + duplicates 1 + discarded 0"),
            "{shown}"
        );
        assert!(
            shown.contains("filtered 60 + duplicates 90 + discarded 0"),
            "{shown}"
        );
        assert!(!Ledger::default().to_string().contains("duplicates"));
    }
}
