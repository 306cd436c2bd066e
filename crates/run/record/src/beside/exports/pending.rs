//! Datagrams that wait to leave by one socket.

use std::ops::Range;

use strata_sys::socket::Message;
use strata_wire::exact;

use super::target::DATAGRAM_MAX;

/// Where a datagram ends, and whether it is an announcement: collectors count those apart, since they have no
/// numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) at: usize,
    pub(super) is_announcement: bool,
}

/// Datagrams that leave by one socket.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) bytes: Vec<u8>,
    /// Where datagrams end.
    pub(super) ends: Vec<End>,
}

impl Pending {
    /// The bytes of these datagrams.
    pub(super) fn datagrams(&self, which: Range<usize>) -> &[u8] {
        let start = which
            .start
            .checked_sub(1)
            .map_or(0, |before| self.ends[before].at);
        &self.bytes[start..self.ends[which.end - 1].at]
    }

    /// All datagrams from this one on, in runs that leave as one message each, of datagrams of at most `merged` bytes:
    /// those of a run are as long as its first, but for the last one, which may be shorter.
    pub(super) fn runs(&self, first: usize, merged: usize) -> Vec<Range<usize>> {
        let len = |at: usize| self.datagrams(at..at + 1).len();
        let continues = |run: &Range<usize>, at: usize| {
            len(run.end - 1) == len(run.start)
                && len(at) <= len(run.start)
                && len(run.start) <= merged
                && self.datagrams(run.start..at + 1).len() <= DATAGRAM_MAX
        };
        let mut runs: Vec<Range<usize>> = Vec::with_capacity(self.ends.len() - first);
        for at in first..self.ends.len() {
            match runs.last_mut() {
                Some(run) if continues(run, at) => run.end = at + 1,
                _ => runs.push(at..at + 1),
            }
        }
        runs
    }

    /// A run as one message.
    pub(super) fn message(&self, run: &Range<usize>) -> Message<'_> {
        let first = self.datagrams(run.start..run.start + 1);
        Message {
            parts: [self.datagrams(run.clone()), &[]],
            // A datagram is shorter than 65,536 bytes.
            segment: (run.len() > 1).then(|| exact::<u16>(first.len())),
        }
    }
}
