//! What a log lacks although it should have it.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use strata_wire::{DropReason, Ledger, count_of};

use super::{Log, Loss};
use crate::error::StoreError;
use crate::manifest::stored::read_manifest;
use crate::manifest::{Recording, State};

/// How warnings of a recording begin that say which packets were lost before it saw them. Logs contain it: that is
/// how commands that read them recognise these warnings.
pub const LOST_BEFORE: &str = "lost before Strata";

/// How the warning of a recording begins that ended before its input did, because its log could not be written. Logs
/// contain it, as [`LOST_BEFORE`].
pub const ENDED_EARLY: &str = "ended early, since the log could not be written";

/// Packets that the recordings of a log should have logged, and that it lacks: not those that a mode, a policy or a
/// filter left out, and not those that were deleted later. Recordings that are being written do not count.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Losses {
    /// Packets that are known to be lost before they were in a file: [`Log::lost_packets`].
    pub lost: u64,
    /// Packets that recordings counted as dropped, by the number of their [`DropReason`]; not those in `lost`.
    pub dropped: [u64; DropReason::ALL.len()],
    /// Recordings that were not closed, of which more may be lost.
    pub abrupt: Vec<AbruptEnd>,
    /// Recordings that were closed before their input ended, since their log could not be written: packets that came
    /// later are missing, too, and no recording has counted them.
    pub early: Vec<u32>,
    /// Whether a recording was told of packets that were lost before it saw them.
    pub is_lost_before: bool,
}

/// The end of a recording that was not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbruptEnd {
    /// The recording.
    pub recording: u32,
    /// Of captured interfaces: packets that arrived after this time may be lost, ns since 1970; `None` if that is not
    /// known. Times of a capture file's packets have nothing to do with it.
    pub after_ns: Option<u64>,
    /// When the next recording into the log began, and this one had ended, ns since 1970; `None` if there is none, or
    /// several record at once.
    pub before_ns: Option<u64>,
}

impl AbruptEnd {
    /// Whether packets from this time on, and before that, may be lost.
    fn may_lack(&self, from_ns: Option<u64>, to_ns: Option<u64>) -> bool {
        let Some(after_ns) = self.after_ns else {
            return true;
        };
        let is_later = self
            .before_ns
            .zip(from_ns)
            .is_some_and(|(before_ns, from_ns)| from_ns > before_ns);
        let is_earlier = to_ns.is_some_and(|to_ns| to_ns <= after_ns);
        !is_earlier && !is_later
    }
}

impl Losses {
    /// The packets of which the number is known.
    #[must_use]
    pub fn packets(&self) -> u64 {
        let dropped = self.dropped.iter().copied();
        dropped.fold(self.lost, u64::saturating_add)
    }

    /// The same for packets from this time on, and before that: without abrupt ends of other times.
    #[must_use]
    pub fn within(mut self, from_ns: Option<u64>, to_ns: Option<u64>) -> Self {
        self.abrupt.retain(|end| end.may_lack(from_ns, to_ns));
        self
    }

    /// What there is to say, each the end of a sentence that begins with the log's name; empty if nothing is missing.
    /// `time` writes a time in ns since 1970.
    #[must_use]
    pub fn texts(&self, time: impl Fn(u64) -> String) -> Vec<String> {
        let mut texts = Vec::new();
        if self.lost > 0 {
            let lost = count_of(self.lost, "packet");
            texts.push(format!("lost {lost} before they were in a file"));
        }
        for reason in DropReason::ALL {
            let dropped = self.dropped[reason as usize];
            if dropped > 0 {
                let why = match reason {
                    DropReason::DiskFull => "the disk was full",
                    DropReason::WriteError => "they could not be written",
                    DropReason::RelayLost => "the relay was lost",
                    DropReason::CpuBudget => "they were skipped to keep within the CPU budget",
                };
                texts.push(format!("lacks {}: {why}", count_of(dropped, "packet")));
            }
        }
        texts.extend(self.early_text());
        texts.extend(self.abrupt_text(time));
        if self.is_lost_before {
            texts.push(String::from(
                "lacks packets that were lost before they reached Strata",
            ));
        }
        texts
    }

    fn early_text(&self) -> Option<String> {
        let how = "ended early, since the log could not be written";
        match self.early[..] {
            [] => None,
            [id] => Some(format!(
                "has a recording ({id}) that {how}: packets that came after its end may be missing, too"
            )),
            _ => Some(format!(
                "has {} that {how}: packets that came after the end of each may be missing, too",
                count_of(self.early.len() as u64, "recording")
            )),
        }
    }

    fn abrupt_text(&self, time: impl Fn(u64) -> String) -> Option<String> {
        let how = "ended abruptly (killed, a power failure, or a relay that was stopped)";
        match self.abrupt[..] {
            [] => None,
            [
                AbruptEnd {
                    after_ns: Some(ns), ..
                },
            ] => Some(format!(
                "has a recording that {how}: packets that arrived after {} may be missing",
                time(ns)
            )),
            [_] => Some(format!(
                "has a recording that {how}: the last packets may be missing"
            )),
            _ => Some(format!(
                "has {} that {how}: the last packets of each may be missing",
                count_of(self.abrupt.len() as u64, "recording")
            )),
        }
    }

    fn add(&mut self, recording: &Recording, loss: Loss) {
        self.lost = self.lost.saturating_add(loss.packets);
        match (recording.state, &recording.ledger) {
            (State::Closed, None) => {}
            (State::Closed, Some(ledger)) => {
                let mut dropped = Ledger::from(ledger).dropped.map(|dropped| dropped.packets);
                // Packets that did not reach a relay were numbered: they are missing there, too.
                let mut known = loss.packets;
                for reason in [
                    DropReason::RelayLost,
                    DropReason::WriteError,
                    DropReason::DiskFull,
                ] {
                    let dropped = &mut dropped[reason as usize];
                    let both = known.min(*dropped);
                    *dropped = dropped.saturating_sub(both);
                    known = known.saturating_sub(both);
                }
                for (sum, dropped) in self.dropped.iter_mut().zip(dropped) {
                    *sum = sum.saturating_add(dropped);
                }
            }
            (State::Running, _) => self.abrupt.push(AbruptEnd {
                recording: recording.id,
                after_ns: loss.checkpoint_ns.filter(|_| recording.live),
                before_ns: None,
            }),
        }
        let mut warnings = recording.warnings.iter();
        self.is_lost_before |= warnings.any(|warning| warning.starts_with(LOST_BEFORE));
        let mut warnings = recording.warnings.iter();
        if warnings.any(|warning| warning.starts_with(ENDED_EARLY)) {
            self.early.push(recording.id);
        }
    }
}

impl Log {
    /// What the log lacks, as far as it is known. Reads headers of blocks, and no packets.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn losses(&self) -> Result<Losses, StoreError> {
        let being_written = self.being_written();
        let mut losses = Losses::default();
        for recording in self.recordings().iter().filter(|one| !being_written(one)) {
            if recording.state == State::Closed || !self.was_closed(recording.id)? {
                losses.add(recording, self.loss(recording)?);
            }
        }
        for end in &mut losses.abrupt {
            let later = self
                .recordings()
                .iter()
                .filter(|one| one.id > end.recording);
            let is_relayed = self.recordings().iter().any(|one| one.session.is_some());
            // A log is locked by the program that records into it; a relay has several recordings at once.
            end.before_ns = later
                .map(|one| one.started_ns)
                .min()
                .filter(|_| !is_relayed);
        }
        Ok(losses)
    }

    /// Whether a recording has been closed since the log was opened.
    fn was_closed(&self, id: u32) -> Result<bool, StoreError> {
        let now = read_manifest(self.disk().as_ref())?;
        let recordings = now.iter().flat_map(|manifest| &manifest.recordings);
        let mut closed = recordings.filter(|one| one.state == State::Closed);
        Ok(closed.any(|one| one.id == id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{About, SavedLedger};

    fn recording(id: u32) -> Recording {
        Recording::begun(id, &About::default(), String::from("model"), 1)
    }

    fn closed(id: u32, dropped: &[(DropReason, u64)]) -> Recording {
        let mut ledger = Ledger::default();
        for &(reason, packets) in dropped {
            ledger.dropped[reason as usize].packets = packets;
        }
        Recording {
            state: State::Closed,
            ledger: Some(SavedLedger::from(&ledger)),
            ..recording(id)
        }
    }

    fn texts(losses: &Losses) -> Vec<String> {
        losses.texts(|ns| format!("{ns} ns"))
    }

    #[test]
    fn packets_that_were_dropped_are_said_by_their_reason() {
        let mut losses = Losses::default();
        losses.add(&closed(1, &[]), Loss::default());
        assert_eq!((texts(&losses), losses.packets()), (Vec::new(), 0));
        let dropped = [(DropReason::DiskFull, 3), (DropReason::CpuBudget, 4)];
        losses.add(&closed(2, &dropped), Loss::default());
        losses.add(&closed(3, &dropped[..1]), Loss::default());
        assert_eq!(
            texts(&losses),
            [
                "lacks 6 packets: the disk was full",
                "lacks 4 packets: they were skipped to keep within the CPU budget"
            ]
        );
        assert_eq!(losses.packets(), 10);
    }

    /// A switch counts packets that a relay lacks, and the relay finds the gap.
    #[test]
    fn packets_that_are_missing_at_a_relay_count_once() {
        let loss = Loss {
            packets: 5,
            ..Loss::default()
        };
        for (counted, sum) in [(0, 5), (3, 5), (5, 5), (7, 7)] {
            let mut losses = Losses::default();
            losses.add(&closed(1, &[(DropReason::RelayLost, counted)]), loss);
            assert_eq!((losses.lost, losses.packets()), (5, sum));
        }
    }

    #[test]
    fn an_end_that_was_not_closed_is_said_even_if_no_loss_is_known() {
        let loss = Loss {
            checkpoint_ns: Some(7),
            ..Loss::default()
        };
        let mut of_file = Losses::default();
        of_file.add(&recording(1), loss);
        assert_eq!(of_file.packets(), 0);
        assert_eq!(
            texts(&of_file),
            [
                "has a recording that ended abruptly (killed, a power failure, or a relay that was stopped): the last packets may be missing"
            ]
        );
        let mut live = Losses::default();
        let captured = Recording {
            live: true,
            ..recording(1)
        };
        live.add(&captured, loss);
        assert_eq!(
            texts(&live),
            [
                "has a recording that ended abruptly (killed, a power failure, or a relay that was stopped): packets that arrived after 7 ns may be missing"
            ]
        );
        live.add(&recording(2), loss);
        assert_eq!(
            texts(&live),
            [
                "has 2 recordings that ended abruptly (killed, a power failure, or a relay that was stopped): the last packets of each may be missing"
            ]
        );
    }

    #[test]
    fn an_abrupt_end_says_nothing_of_other_times() {
        let captured = Recording {
            live: true,
            ..recording(1)
        };
        let loss = Loss {
            checkpoint_ns: Some(7),
            ..Loss::default()
        };
        let mut losses = Losses::default();
        losses.add(&captured, loss);
        let is_said = |losses: &Losses, from_ns, to_ns| {
            let within = losses.clone().within(from_ns, to_ns);
            assert!(within.abrupt.is_empty() || within == *losses);
            !within.abrupt.is_empty()
        };
        for (from_ns, to_ns, expected) in [
            (None, None, true),
            (None, Some(7), false),
            (Some(3), Some(8), true),
            // Nothing says when it ended.
            (Some(100), None, true),
        ] {
            assert_eq!(
                is_said(&losses, from_ns, to_ns),
                expected,
                "{from_ns:?} {to_ns:?}"
            );
        }
        losses.abrupt[0].before_ns = Some(20);
        for (from_ns, to_ns, expected) in [
            (Some(20), None, true),
            (Some(21), None, false),
            (Some(21), Some(30), false),
            (Some(8), Some(30), true),
        ] {
            assert_eq!(
                is_said(&losses, from_ns, to_ns),
                expected,
                "{from_ns:?} {to_ns:?}"
            );
        }
        // Of a capture file's packets, no time is known.
        losses.abrupt[0].after_ns = None;
        assert!(is_said(&losses, Some(21), None) && is_said(&losses, None, Some(7)));
    }

    /// A full disk: no recording counts the packets that came after it had ended.
    #[test]
    fn an_early_end_is_said_besides_what_was_dropped() {
        let early = |id, dropped: &[(DropReason, u64)]| Recording {
            warnings: vec![format!("{ENDED_EARLY}: r0001: the disk is full")],
            ..closed(id, dropped)
        };
        let mut losses = Losses::default();
        let others = Recording {
            warnings: vec![String::from("ended early: trace.pcap: damaged here")],
            ..closed(1, &[])
        };
        losses.add(&others, Loss::default());
        assert_eq!(losses, Losses::default());
        losses.add(&early(2, &[(DropReason::DiskFull, 3)]), Loss::default());
        assert_eq!((losses.packets(), &losses.early[..]), (3, &[2][..]));
        assert_eq!(
            texts(&losses),
            [
                "lacks 3 packets: the disk was full",
                "has a recording (2) that ended early, since the log could not be written: packets that came after its end may be missing, too"
            ]
        );
        losses.add(&early(3, &[]), Loss::default());
        assert_eq!(
            texts(&losses)[1],
            "has 2 recordings that ended early, since the log could not be written: packets that came after the end of each may be missing, too"
        );
    }

    #[test]
    fn losses_before_a_recording_are_said() {
        let mut losses = Losses::default();
        let told = Recording {
            warnings: vec![format!(
                "{LOST_BEFORE}, kernel (eth0 ring): 3 packets; advice"
            )],
            ..closed(1, &[])
        };
        losses.add(&told, Loss::default());
        assert_eq!(
            texts(&losses),
            ["lacks packets that were lost before they reached Strata"]
        );
    }
}
