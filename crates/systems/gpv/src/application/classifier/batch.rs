//! Sums of many flows in columns, and their features from these.

use strata_classify::{Columns, LANES};
use strata_wire::wide::{GROUP, Kernel, Lanes, Simd};

use super::forest::ordered;
use super::sums::Sums;
use super::{FIRST, moments};
use crate::tuple::Tuple;
use crate::vector::Grouped;

/// Flows that are classified at once.
pub(super) const FLOWS: usize = LANES;

/// Sums of flows; of those after the last, arbitrary ones.
#[derive(Debug)]
pub(super) struct Batch {
    simd: Option<Simd>,
    len: usize,
    sums: Flows,
}

#[derive(Debug)]
#[repr(align(64))]
struct Flows {
    sizes: [[u32; GROUP]; FLOWS],
    packets: [u64; FLOWS],
    bytes: [u64; FLOWS],
    squares: [u64; FLOWS],
    durations_ns: [u64; FLOWS],
    delay_squares: [f64; FLOWS],
}

impl Batch {
    /// An empty one.
    pub(super) fn new(simd: Option<Simd>) -> Self {
        let sums = Flows {
            sizes: [[0; GROUP]; FLOWS],
            packets: [0; FLOWS],
            bytes: [0; FLOWS],
            squares: [0; FLOWS],
            durations_ns: [0; FLOWS],
            delay_squares: [0.0; FLOWS],
        };
        Self { simd, len: 0, sums }
    }

    /// Adds a flow.
    ///
    /// # Panics
    ///
    /// If the batch is full.
    #[inline(always)]
    pub(super) fn push<T: Tuple, G: Grouped<T>>(&mut self, group: &G) {
        let at = self.len;
        assert!(at < FLOWS, "a full batch");
        let sums = Sums::of(group, self.simd);
        let flows = &mut self.sums;
        flows.sizes[at] = sums.first;
        flows.packets[at] = sums.packets;
        flows.bytes[at] = sums.bytes;
        flows.squares[at] = sums.squares;
        flows.durations_ns[at] = sums.duration_ns();
        flows.delay_squares[at] = sums.delay_squares;
        self.len = at.wrapping_add(1);
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// The features of its flows, as [`super::flow_features`] has them and in the order of
    /// [`ordered`]; in the lanes after them, arbitrary ones.
    pub(super) fn features(&self, columns: &mut Columns) {
        let (flows, len) = (&self.sums, self.len);
        match self.simd {
            Some(simd) => simd.run(Features {
                flows,
                len,
                columns,
            }),
            None => {
                for (at, sizes) in flows.sizes[..len].iter().enumerate() {
                    for (feature, size) in sizes[..FIRST].iter().enumerate() {
                        columns[feature.wrapping_mul(LANES).wrapping_add(at)] = of_size(*size);
                    }
                }
                flows.moments(len, columns);
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::cast_precision_loss, reason = "features are estimates")]
fn of_size(size: u32) -> u32 {
    ordered(size as f32)
}

impl Flows {
    /// Means and deviations.
    #[inline(always)]
    fn moments(&self, len: usize, columns: &mut Columns) {
        // 8 at once, so that a compiler for vector instructions uses them.
        const AT_ONCE: usize = 8;
        for first in (0..len).step_by(AT_ONCE) {
            let mut features = [[0; AT_ONCE]; 4];
            for at in 0..AT_ONCE {
                let flow = first.wrapping_add(at) % FLOWS;
                let found = moments(
                    self.packets[flow],
                    self.bytes[flow],
                    self.squares[flow],
                    self.durations_ns[flow],
                    self.delay_squares[flow],
                );
                for (to, found) in features.iter_mut().zip(found) {
                    to[at] = ordered(found);
                }
            }
            for (number, features) in (FIRST..).zip(features) {
                let to = number.wrapping_mul(LANES).wrapping_add(first);
                columns[to..to.wrapping_add(AT_ONCE)].copy_from_slice(&features);
            }
        }
    }
}

/// [`Batch::features`].
struct Features<'a> {
    flows: &'a Flows,
    len: usize,
    columns: &'a mut Columns,
}

impl Kernel for Features<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let rows = self.flows.sizes.as_chunks::<GROUP>().0;
        for (group, rows) in rows.iter().enumerate().take(self.len.div_ceil(GROUP)) {
            let sizes = l.transpose(rows.each_ref().map(|row| l.load(row)));
            for (feature, sizes) in sizes.into_iter().take(FIRST).enumerate() {
                let bits = l.short_bits(l.floats(sizes));
                // As `ordered` has numbers that are not negative.
                let bits = l.or(bits, l.set(1 << 31));
                let to = feature
                    .wrapping_mul(LANES)
                    .wrapping_add(group.wrapping_mul(GROUP));
                if let Some(to) = self.columns[to..].first_chunk_mut() {
                    l.store(bits, to);
                }
            }
        }
        self.flows.moments(self.len, self.columns);
    }
}
