//! The start of every flow, kept whole.

use strata_wire::prefetch;

/// Counters in one cache line.
const WAYS: usize = 4;
/// 512 Ki flows: 8 MiB.
const LINES: usize = 1 << 17;
/// A flow silent for this long starts anew, as its next conversation does.
const IDLE_SECONDS: u32 = 120;

#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    tag: u32,
    /// In seconds, modulo 2^32.
    last: u32,
    bytes: u64,
}

/// How many bytes of each flow have passed. Of the flows in one line, the one silent longest is
/// replaced; if it speaks again, its start is kept again.
///
/// Time: one memory access per packet.
#[derive(Debug)]
pub(crate) struct FirstBytes {
    limit: u64,
    lines: Box<[[Counter; WAYS]]>,
}

impl FirstBytes {
    /// Keeps packets whole that begin within this many bytes of their flow.
    #[must_use]
    pub(crate) fn new(limit: u64) -> Self {
        let touched = Counter {
            tag: 1,
            ..Counter::default()
        };
        Self {
            limit,
            lines: vec![[touched; WAYS]; LINES].into_boxed_slice(),
        }
    }

    /// Fetches a flow's counter ahead of its use.
    #[inline]
    pub(crate) fn prefetch(&self, fingerprint: u64) {
        prefetch(std::slice::from_ref(self.line(fingerprint)), 0);
    }

    #[allow(clippy::cast_possible_truncation)]
    fn line(&self, fingerprint: u64) -> &[Counter; WAYS] {
        &self.lines[fingerprint as usize % LINES]
    }

    /// Counts a packet of this many bytes, and returns whether it belongs to its flow's start.
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn is_start(&mut self, fingerprint: u64, ts_ns: u64, bytes: u64) -> bool {
        let line = &mut self.lines[fingerprint as usize % LINES];
        let tag = (fingerprint >> 32) as u32;
        let now = (ts_ns / 1_000_000_000) as u32;
        let silent = |counter: &Counter| now.wrapping_sub(counter.last).cast_signed();
        let known = line.iter().position(|counter| counter.tag == tag);
        let index = known.unwrap_or_else(|| {
            let oldest = (0..WAYS).max_by_key(|&way| silent(&line[way]));
            oldest.expect("a line has counters")
        });
        let counter = &mut line[index];
        let idle = silent(counter) > IDLE_SECONDS.cast_signed();
        if known.is_none() || idle {
            *counter = Counter {
                tag,
                last: now,
                bytes: 0,
            };
        }
        counter.last = now;
        let is_start = counter.bytes < self.limit;
        counter.bytes += bytes;
        is_start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn the_start_of_each_flow_is_what_a_table_of_all_flows_says(
            packets in prop::collection::vec((1_u64..40, 0_u64..200, 40_u64..2_000), 1..400)
        ) {
            let mut first = FirstBytes::new(4_096);
            let mut all: HashMap<u64, (u64, u64)> = HashMap::new();
            let mut seconds = 1_700_000_000;
            for (flow, pause, bytes) in packets {
                seconds += pause / 20;
                let (last, counted) = all.entry(flow).or_insert((seconds, 0));
                if seconds - *last > u64::from(IDLE_SECONDS) {
                    *counted = 0;
                }
                *last = seconds;
                let expected = *counted < 4_096;
                *counted += bytes;
                // Spread over the lines, each with its own tag.
                let fingerprint = flow << 32 | flow;
                let is_start = first.is_start(fingerprint, seconds * 1_000_000_000, bytes);
                prop_assert_eq!(is_start, expected);
            }
        }
    }
}
