//! Packets and bytes over time, by class and granularity.

use std::num::NonZeroU64;
use std::ops::Range;

use serde::Serialize;
use strata_query::FoundPacket;
use strata_wire::{clamped, exact};
use utoipa::ToSchema;

use crate::answers::parts::{Covered, RecorderEvent};
use crate::answers::times::{SECOND_NS, seconds};

/// Maximum and minimum number of points of a series.
pub const POINTS_MAX: usize = 2000;
const POINTS_MIN: usize = 10;
/// Maximum number of series at a time: classes by granularity; the rest is one more.
const SERIES_MAX: usize = 64;
const SERIES_LAST: usize = SERIES_MAX - 1;
/// The length of points where there are no packets.
const EMPTY_STEP_NS: NonZeroU64 = NonZeroU64::new(SECOND_NS).expect("a second");

/// Lengths of points, ms.
const STEPS_MS: [u64; 24] = [
    1,
    10,
    100,
    1_000,
    2_000,
    5_000,
    10_000,
    15_000,
    30_000,
    60_000,
    120_000,
    300_000,
    600_000,
    900_000,
    1_800_000,
    3_600_000,
    7_200_000,
    10_800_000,
    21_600_000,
    43_200_000,
    86_400_000,
    604_800_000,
    2_592_000_000,
    31_536_000_000,
];

/// Packets and bytes over time, by class and granularity.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "t": [1_769_864_400, 1_769_864_410, 1_769_864_420],
    "step": 10,
    "series": [
        {
            "class": "benign", "granularity": "header", "packets": [100, 120, 90],
            "captured_bytes": [76000, 91200, 68400], "kept_bytes": [6000, 7200, 5400],
        },
        {
            "class": "botnet", "granularity": "full", "packets": [1, 40, 3],
            "captured_bytes": [600, 24000, 1800], "kept_bytes": [600, 24000, 1800],
        },
    ],
    "lost": null,
    "events": [],
    "covered": {
        "complete": true, "why": null, "remark": null, "packets": 3540, "from": "2026-01-31T13:00:00.000000000Z",
        "to": "2026-01-31T13:00:30.000000000Z", "damaged": 0, "encrypted_packets": 0, "seconds": 0.02,
    },
}))]
#[allow(
    missing_docs,
    reason = "the description of the API says only what a name does not"
)]
pub struct Series {
    /// Start of each point, seconds since 1970.
    pub t: Vec<f64>,
    /// Seconds of a point.
    pub step: f64,
    pub series: Vec<ClassSeries>,
    /// Packets lost a second, all places; history of a recorder only.
    #[schema(required)]
    pub lost: Option<Vec<f64>>,
    pub events: Vec<RecorderEvent>,
    pub covered: Covered,
}

/// Packets and bytes of a class and granularity over time.
#[derive(Debug, Serialize, ToSchema)]
#[allow(
    missing_docs,
    reason = "the description of the API says only what a name does not"
)]
pub struct ClassSeries {
    pub class: String,
    pub granularity: String,
    /// A second, as long as `t`.
    pub packets: Vec<f64>,
    /// A second, as long as `t`.
    pub captured_bytes: Vec<f64>,
    /// A second, as long as `t`.
    pub kept_bytes: Vec<f64>,
}

/// Packets, wire bytes and kept bytes.
type Point = [u64; 3];

/// Sums of packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sum {
    pub(crate) packets: u64,
    pub(crate) wire_bytes: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    /// Of the first packet, and the highest.
    pub(crate) first_score: Option<f32>,
    pub(crate) score: Option<f32>,
}

impl Default for Sum {
    fn default() -> Self {
        Self {
            packets: 0,
            wire_bytes: 0,
            kept_bytes: 0,
            first_ns: u64::MAX,
            last_ns: 0,
            first_score: None,
            score: None,
        }
    }
}

impl Sum {
    #[inline]
    fn packet(&mut self, packet: &FoundPacket) {
        self.packets = self.packets.saturating_add(1);
        self.wire_bytes = self.wire_bytes.saturating_add(u64::from(packet.wire_bytes));
        self.kept_bytes = self.kept_bytes.saturating_add(u64::from(packet.kept_bytes));
        if packet.ts_ns < self.first_ns {
            (self.first_ns, self.first_score) = (packet.ts_ns, packet.score);
        }
        self.last_ns = self.last_ns.max(packet.ts_ns);
        self.score = higher(self.score, packet.score);
    }

    fn point(&self) -> Point {
        [self.packets, self.wire_bytes, self.kept_bytes]
    }
}

/// The higher of two scores, as far as there are any.
#[inline]
pub(crate) fn higher(a: Option<f32>, b: Option<f32>) -> Option<f32> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (one, None) | (None, one) => one,
    }
}

/// Counts over a span, which is known beforehand.
#[derive(Debug)]
pub(crate) struct Histogram {
    start_ns: u64,
    step_ns: NonZeroU64,
    points: usize,
    /// By class and granularity.
    series: Vec<((String, String), Vec<Point>)>,
}

impl Histogram {
    /// For packets from the first time to the last, both included, in at most `points` points.
    pub(crate) fn new((first_ns, last_ns): (u64, u64), points: usize) -> Self {
        let points = points.clamp(POINTS_MIN, POINTS_MAX) as u64;
        let span = last_ns.saturating_sub(first_ns);
        let gaps = NonZeroU64::new(points.saturating_sub(1)).unwrap_or(NonZeroU64::MIN);
        let steps = STEPS_MS.iter();
        let mut steps = steps.filter_map(|ms| NonZeroU64::new(ms.saturating_mul(1_000_000)));
        let step_ns = steps.find(|step| span < gaps.get().saturating_mul(step.get()));
        // Only a crafted log has packets centuries apart.
        let step_ns = step_ns.unwrap_or_else(|| NonZeroU64::MIN.saturating_add(span / gaps));
        let start_ns = first_ns.saturating_sub(first_ns % step_ns);
        let points = last_ns.saturating_sub(start_ns) / step_ns;
        let points = points.saturating_add(1).min(POINTS_MAX as u64);
        Self {
            start_ns,
            step_ns,
            points: exact(points),
            series: Vec::new(),
        }
    }

    /// Of a log without packets.
    pub(crate) fn empty() -> Self {
        Self {
            start_ns: 0,
            step_ns: EMPTY_STEP_NS,
            points: 0,
            series: Vec::new(),
        }
    }

    /// For the same points, without packets.
    pub(crate) fn fresh(&self) -> Self {
        Self {
            series: Vec::new(),
            ..*self
        }
    }

    /// The number of a series; the last one's if there are too many.
    pub(crate) fn series(&mut self, class: &str, granularity: &str) -> usize {
        let is = |((c, g), _): &((String, String), Vec<Point>)| c == class && g == granularity;
        if let Some(known) = self.series.iter().position(is) {
            return known;
        }
        let name = match self.series.len() {
            SERIES_MAX.. => return SERIES_LAST,
            SERIES_LAST => (String::from("others"), String::from("all")),
            _ => (class.to_owned(), granularity.to_owned()),
        };
        self.series.push((name, vec![[0; 3]; self.points]));
        self.series.len().saturating_sub(1)
    }

    /// Counts packets, and returns their sums.
    pub(crate) fn count(&mut self, series: usize, packets: &[FoundPacket]) -> Sum {
        let mut sum = Sum::default();
        for packet in packets {
            sum.packet(packet);
        }
        if self.at(sum.first_ns) == self.at(sum.last_ns) {
            self.add_to(series, self.at(sum.first_ns), sum.point());
            return sum;
        }
        // Packets near each other are in the same point, which needs no division.
        let (mut at, mut within) = (0, 1..1);
        let mut point = [0; 3];
        for packet in packets {
            if !within.contains(&packet.ts_ns) {
                self.add_to(series, at, point);
                (at, point) = (self.at(packet.ts_ns), [0; 3]);
                within = self.span_of(at);
            }
            point[0] = point[0].saturating_add(1);
            point[1] = point[1].saturating_add(u64::from(packet.wire_bytes));
            point[2] = point[2].saturating_add(u64::from(packet.kept_bytes));
        }
        self.add_to(series, at, point);
        sum
    }

    /// Adds the sums of a point's packets, of which one time is known.
    pub(crate) fn count_all(&mut self, series: usize, ts_ns: u64, amounts: [u64; 3]) {
        self.add_to(series, self.at(ts_ns), amounts);
    }

    /// The length of its points, which begin at multiples of it.
    pub(crate) fn step_ns(&self) -> u64 {
        self.step_ns.get()
    }

    /// The point of a time.
    fn at(&self, ts_ns: u64) -> usize {
        let at = ts_ns.saturating_sub(self.start_ns) / self.step_ns;
        clamped::<usize>(at).min(self.points.saturating_sub(1))
    }

    /// The times of a point.
    fn span_of(&self, at: usize) -> Range<u64> {
        let start = (at as u64).saturating_mul(self.step_ns.get());
        let start = self.start_ns.saturating_add(start);
        start..start.saturating_add(self.step_ns.get())
    }

    fn add_to(&mut self, series: usize, at: usize, more: Point) {
        // A live log may have grown since it was empty.
        if let Some(point) = self.series[series].1.get_mut(at) {
            for (sum, more) in point.iter_mut().zip(more) {
                *sum = sum.saturating_add(more);
            }
        }
    }

    /// Adds the counts of another one for the same points.
    pub(crate) fn add(&mut self, more: &Self) {
        for ((class, granularity), points) in &more.series {
            let number = self.series(class, granularity);
            for (point, more) in self.series[number].1.iter_mut().zip(points) {
                for (sum, more) in point.iter_mut().zip(more) {
                    *sum = sum.saturating_add(*more);
                }
            }
        }
    }

    /// Its counts a second.
    #[allow(clippy::cast_precision_loss, reason = "rates")]
    pub(crate) fn told(&self, covered: &Covered) -> Series {
        let step = self.step_ns.get() as f64 / SECOND_NS as f64;
        let times = (0..self.points).map(|at| seconds(self.span_of(at).start));
        let series = self.series.iter().map(|((class, granularity), points)| {
            let rates = |of: usize| -> Vec<f64> {
                points.iter().map(|point| point[of] as f64 / step).collect()
            };
            ClassSeries {
                class: class.clone(),
                granularity: granularity.clone(),
                packets: rates(0),
                captured_bytes: rates(1),
                kept_bytes: rates(2),
            }
        });
        Series {
            t: times.collect(),
            step,
            series: series.collect(),
            lost: None,
            events: Vec::new(),
            covered: covered.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(ts_ns: u64) -> FoundPacket {
        FoundPacket {
            ts_ns,
            wire_bytes: 100,
            kept_bytes: 60,
            score: None,
        }
    }

    /// Runs are counted as their packets one by one, in any order and beyond the span.
    #[test]
    fn a_run_counts_as_its_packets() {
        let span = (1_000 * SECOND_NS, 1_100 * SECOND_NS);
        let mut seed = 1_u64;
        for len in 1..200 {
            let run: Vec<FoundPacket> = (0..len)
                .map(|_| {
                    seed = strata_wire::mix64(seed);
                    packet(seed % (1_200 * SECOND_NS))
                })
                .collect();
            let (mut whole, mut single) = (Histogram::new(span, 50), Histogram::new(span, 50));
            for histogram in [&mut whole, &mut single] {
                histogram.series("a", "full");
            }
            whole.count(0, &run);
            for packet in &run {
                single.count(0, std::slice::from_ref(packet));
            }
            assert_eq!(whole.series, single.series);
        }
    }

    #[test]
    fn every_packet_is_in_its_point_and_points_are_bounded() {
        for (first, last) in [
            (0, 0),
            (1_769_864_400 * SECOND_NS, 1_769_864_400 * SECOND_NS + 17),
            (1_769_864_400 * SECOND_NS, 1_769_868_000 * SECOND_NS),
            (0, u64::MAX),
        ] {
            for points in [0, 10, 200, 1_000_000] {
                let mut histogram = Histogram::new((first, last), points);
                assert!(histogram.points <= POINTS_MAX, "{first} {last} {points}");
                let series = histogram.series("a", "full");
                let times = [first, first / 2 + last / 2, last];
                let sum = histogram.count(series, &times.map(packet));
                assert_eq!((sum.first_ns, sum.last_ns, sum.packets), (first, last, 3));
                let [(_, points)] = &histogram.series[..] else {
                    panic!("one series");
                };
                let sum = |of: usize| points.iter().map(|point| point[of]).sum::<u64>();
                assert_eq!((sum(0), sum(1), sum(2)), (3, 300, 180));
                let at = usize::try_from((last - histogram.start_ns) / histogram.step_ns).unwrap();
                assert!(points[at.min(points.len() - 1)][0] > 0);
            }
        }
    }

    #[test]
    fn crafted_classes_do_not_grow_it() {
        let mut histogram = Histogram::new((0, 1), 10);
        for n in 0..10_000 {
            let series = histogram.series(&n.to_string(), "full");
            histogram.count(series, &[packet(0)]);
        }
        assert_eq!(histogram.series.len(), SERIES_MAX);
    }
}
