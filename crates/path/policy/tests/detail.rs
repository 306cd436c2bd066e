//! The budget of detail is kept for any stream of packets, and goes to the start of each flow and to short
//! flows.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small numbers"
)]

use proptest::prelude::*;
use strata_policy::{Detail, DetailBudget, DetailLoads, DetailSite, Over, Survey, Surveyor};

/// The modes want it.
const WANTED: u8 = 128;
const SECOND_NS: u64 = 1_000_000_000;

/// How many packets come when.
#[derive(Clone, Copy, Debug)]
enum Arrivals {
    Steady,
    /// Nothing for some seconds, then three times as many.
    Bursty,
    /// A day of ten minutes.
    Diurnal,
}

/// Who has which score.
#[derive(Clone, Copy, Debug)]
enum Scores {
    /// Each flow its own, with noise.
    ByFlow,
    /// All the same.
    Same,
    /// Few steps, unevenly.
    Few,
    /// Each packet any.
    Random,
    /// All high for a while, then all low, so that the threshold is always wrong.
    Alternating,
    /// Ever higher, so that every packet beats all before.
    Rising,
    /// Ever lower.
    Falling,
    /// One flow has nearly all bytes, and the highest score.
    Elephant,
    /// Always just below what was last given.
    Chasing,
}

const ARRIVALS: [Arrivals; 3] = [Arrivals::Steady, Arrivals::Bursty, Arrivals::Diurnal];
const SCORES: [Scores; 9] = [
    Scores::ByFlow,
    Scores::Same,
    Scores::Few,
    Scores::Random,
    Scores::Alternating,
    Scores::Rising,
    Scores::Falling,
    Scores::Elephant,
    Scores::Chasing,
];

/// A small generator of numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let mixed = (self.0 ^ self.0 >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 32
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn fingerprint(flow: u64) -> u64 {
    (flow + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A stream of packets, and what a controller does with them.
#[derive(Clone, Copy, Debug)]
struct Stream {
    arrivals: Arrivals,
    scores: Scores,
    /// Per second, on average.
    packets: u64,
    flows: u64,
    /// From this step on, the modes want it.
    wanted_from: u8,
    seed: u64,
}

/// What came and was given in a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Minute {
    offered: u64,
    given: u64,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    ts_ns: u64,
    flow: u64,
    step: u8,
    payload: u32,
}

impl Stream {
    /// How many packets come in a tenth of a second.
    fn count(&self, tenth: u64) -> u64 {
        let average = self.packets / 10;
        match self.arrivals {
            Arrivals::Steady => average,
            Arrivals::Bursty => match tenth / 10 % 3 {
                0 => average * 3,
                _ => 0,
            },
            Arrivals::Diurnal => {
                let angle = tenth as f64 / 6_000.0 * std::f64::consts::TAU;
                (average as f64 * (1.0 + 0.8 * angle.sin())) as u64
            }
        }
    }

    fn step(&self, random: &mut Random, (flow, number): (u64, u64), last_given: u8) -> u8 {
        match self.scores {
            Scores::ByFlow => {
                let own = fingerprint(flow) >> 57;
                (own + random.below(5)).saturating_sub(2).min(127) as u8
            }
            Scores::Same => 40,
            Scores::Few => match random.below(100) {
                0..70 => 2,
                70..90 => 30,
                90..98 => 64,
                _ => 120,
            },
            Scores::Random => random.below(128) as u8,
            Scores::Alternating => match number / (self.packets * 7) % 2 {
                0 => 100,
                _ => 20,
            },
            Scores::Rising => (number / (self.packets * 2)).min(127) as u8,
            Scores::Falling => 127 - (number / (self.packets * 2)).min(127) as u8,
            Scores::Elephant => match flow {
                0 => 110,
                _ => random.below(60) as u8,
            },
            Scores::Chasing => last_given.saturating_sub(1),
        }
    }

    /// Offers minutes of packets to a controller.
    fn run(&self, minutes: u64, mut offer: impl FnMut(Packet) -> bool) -> Vec<Minute> {
        let mut random = Random(self.seed);
        let mut all = vec![Minute::default(); minutes as usize];
        let (mut number, mut last_given) = (0, 127);
        for tenth in 0..minutes * 600 {
            let count = self.count(tenth);
            for place in 0..count {
                let flow = match self.scores {
                    Scores::Elephant if random.below(10) > 0 => 0,
                    _ => random.below(self.flows),
                };
                let step = self.step(&mut random, (flow, number), last_given);
                let packet = Packet {
                    ts_ns: 1_700_000_000 * SECOND_NS
                        + tenth * SECOND_NS / 10
                        + place * (SECOND_NS / 10) / count,
                    flow,
                    step: step | if step >= self.wanted_from { WANTED } else { 0 },
                    payload: random.below(1_400) as u32,
                };
                let gives = offer(packet);
                last_given = match gives {
                    true if packet.payload > 0 => step,
                    _ if number % 64 == 0 => (last_given + 1).min(127),
                    _ => last_given,
                };
                let minute = &mut all[(tenth / 600) as usize];
                minute.offered += u64::from(packet.payload);
                minute.given += u64::from(packet.payload) * u64::from(gives);
                number += 1;
            }
        }
        all
    }
}

/// A controller that knows nothing beforehand.
fn alone(budget: DetailBudget) -> Detail {
    Detail::new(budget, DetailSite::default())
}

/// One that knows what is to come.
fn surveyed(budget: DetailBudget, survey: Survey) -> Detail {
    let site = DetailSite {
        survey: Some(survey),
        ..DetailSite::default()
    };
    Detail::new(budget, site)
}

impl Stream {
    /// Surveys minutes of packets; nothing of a stream may depend on what is given, then.
    fn survey(&self, minutes: u64) -> Survey {
        let mut surveyor = Surveyor::default();
        self.run(minutes, |packet| {
            surveyor.packet(packet.ts_ns, fingerprint(packet.flow), packet.payload);
            false
        });
        surveyor.end()
    }
}

fn offer(detail: &mut Detail, packet: Packet) -> bool {
    let lens = (packet.payload, packet.payload);
    detail.packet(packet.ts_ns, packet.step, fingerprint(packet.flow), lens)
}

fn streams() -> impl Strategy<Value = Stream> {
    (
        prop::sample::select(ARRIVALS.to_vec()),
        prop::sample::select(SCORES.to_vec()),
        prop::sample::select(vec![1_000_u64, 3_000]),
        prop::sample::select(vec![3_u64, 100, 20_000]),
        // Nothing, some, most of what there is.
        prop::sample::select(vec![128_u8, 100, 64, 10]),
        any::<u64>(),
    )
        .prop_map(
            |(arrivals, scores, packets, flows, wanted_from, seed)| Stream {
                arrivals,
                scores,
                packets,
                flows,
                wanted_from,
                seed,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn of_a_share_nothing_is_given_before_it_is_earned_and_most_is_soon(
        stream in streams(),
        percent in prop::sample::select(vec![5_u32, 10, 30, 80]),
    ) {
        let share = f64::from(percent) / 100.0;
        let mut detail = alone(DetailBudget::Share(share));
        let minutes = stream.run(4, |packet| {
            let gives = offer(&mut detail, packet);
            let counts = detail.counts();
            // 4 KiB are there at the start, and the last packet is given whole.
            let earned = counts.offered.bytes as f64 * share + 4_096.0 + 1_400.0;
            let given = counts.given.bytes as f64;
            assert!(given <= earned, "{given} of {earned}");
            gives
        });
        // All that was offered is counted, and nothing that was given is missing.
        let counts = detail.counts();
        prop_assert_eq!(counts.offered.bytes, minutes.iter().map(|m| m.offered).sum::<u64>());
        prop_assert_eq!(counts.given.bytes, minutes.iter().map(|m| m.given).sum::<u64>());
        let kept = counts.given.bytes as f64 / (counts.offered.bytes as f64 * share);
        prop_assert!(kept > 0.5, "{kept}");
    }

    #[test]
    fn a_share_of_what_was_surveyed_is_given_to_within_a_hundredth(
        stream in streams(),
        percent in prop::sample::select(vec![1_u32, 10, 30, 80]),
    ) {
        let share = f64::from(percent) / 100.0;
        let stream = match stream.scores {
            // Follows what is given, which nothing does that is in a file.
            Scores::Chasing => Stream { scores: Scores::Same, ..stream },
            _ => stream,
        };
        let mut detail = surveyed(DetailBudget::Share(share), stream.survey(3));
        stream.run(3, |packet| offer(&mut detail, packet));
        let counts = detail.counts();
        let kept = counts.given.bytes as f64 / (counts.offered.bytes as f64 * share);
        prop_assert!((0.99..1.01).contains(&kept), "{kept}");
    }

    /// Policies decide about most packets, first few of them and then nearly all.
    #[test]
    fn what_others_decide_about_is_not_budget_for_the_rest(
        stream in streams(),
        others in 2_u64..20,
    ) {
        let stream = match stream.scores {
            Scores::Chasing => Stream { scores: Scores::Same, ..stream },
            _ => stream,
        };
        let mut detail = surveyed(DetailBudget::Share(0.1), stream.survey(4));
        let mut number = 0;
        stream.run(4, |packet| {
            number += 1;
            if number % 100 == 0 {
                detail.came(number);
            }
            number % others == 0 && offer(&mut detail, packet)
        });
        let counts = detail.counts();
        let kept = counts.given.bytes as f64 / (counts.offered.bytes as f64 * 0.1);
        prop_assert!((0.8..1.05).contains(&kept), "{kept}");
    }

    /// A file that was longer when it was surveyed, or is longer now.
    #[test]
    fn a_survey_that_is_wrong_costs_no_more_than_the_budget_of_what_it_says(
        stream in streams(),
        minutes in 1_u64..5,
    ) {
        let mut detail = surveyed(DetailBudget::Share(0.1), stream.survey(minutes));
        stream.run(2, |packet| offer(&mut detail, packet));
        let counts = detail.counts();
        let budget = counts.offered.bytes as f64 * 0.1;
        let kept = counts.given.bytes as f64 / budget;
        let most = (minutes as f64 / 2.0).max(1.0) * 1.3;
        prop_assert!(kept <= most, "{kept} of {most}");
    }

    #[test]
    fn a_rate_is_kept_by_several_workers_together(
        stream in streams(),
        workers in 1_u64..5,
        part in prop::sample::select(vec![0.1, 0.2, 0.5]),
    ) {
        // Of a diurnal stream at its lowest, a fifth comes.
        let least = match stream.arrivals {
            Arrivals::Diurnal => 0.15,
            _ => 0.9,
        };
        let rate = stream.packets as f64 * 700.0 * least * part;
        let loads = DetailLoads::new(workers as usize);
        let mut all: Vec<Detail> = (0..workers as usize)
            .map(|number| {
                {
                    let load = Some((loads.clone(), number));
                    let site = DetailSite { load, ..DetailSite::default() };
                    Detail::new(DetailBudget::Rate(rate, Over::Minute), site)
                }
            })
            .collect();
        // Half of the flows go to the first worker.
        let worker = |flow: u64| match flow % 2 {
            0 => 0,
            _ => flow / 2 % workers,
        };
        let minutes = stream.run(4, |packet| {
            offer(&mut all[worker(packet.flow) as usize], packet)
        });
        let is_shared_well = stream.flows > 3 && !matches!(stream.scores, Scores::Elephant);
        for (number, minute) in minutes.iter().enumerate().skip(1) {
            let kept = minute.given as f64 / (rate * 60.0);
            prop_assert!(kept <= 1.12, "minute {number}: {kept}");
            // Of a burst, no more is given than was saved.
            if is_shared_well && !matches!(stream.arrivals, Arrivals::Bursty) {
                prop_assert!(kept >= 0.85, "minute {number}: {kept}");
            }
        }
    }

    #[test]
    fn the_same_packets_get_the_same_however_they_are_offered(
        stream in streams(),
        chunks in prop::collection::vec(1_usize..300, 1..20),
    ) {
        let budget = DetailBudget::Share(0.1);
        let (mut one, mut many) = (alone(budget), alone(budget));
        let mut packets = Vec::new();
        let mut expected = Vec::new();
        let stream = Stream { packets: 1_000, ..stream };
        stream.run(1, |packet| {
            packets.push(packet);
            expected.push(offer(&mut one, packet));
            *expected.last().unwrap()
        });
        let mut given = Vec::new();
        let mut rest = packets.as_slice();
        for size in chunks.into_iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (mut batch, after) = rest.split_at(size.min(rest.len()));
            rest = after;
            while let Some(first) = batch.first() {
                let (chunk, after) = batch.split_at(many.chunk(first.ts_ns, batch.len()));
                batch = after;
                // All are counted before the first is decided about.
                let hash = |packet: &Packet| fingerprint(packet.flow);
                let count = |p: &Packet| many.count(p.step, hash(p), p.payload);
                let offers: Vec<_> = chunk.iter().map(count).collect();
                let least = many.candidate();
                for (offer, packet) in offers.into_iter().zip(chunk) {
                    let gives = offer.0 >= least
                        && many.decide(offer, packet.payload, packet.payload);
                    given.push(gives);
                }
                let payload = chunk.iter().map(|packet| u64::from(packet.payload)).sum();
                many.offered(chunk.len() as u64, payload);
            }
        }
        prop_assert_eq!(given, expected);
        prop_assert_eq!(one.counts(), many.counts());
    }
}

fn by_flow() -> Stream {
    Stream {
        arrivals: Arrivals::Steady,
        scores: Scores::ByFlow,
        packets: 3_000,
        flows: 500,
        wanted_from: 128,
        seed: 7,
    }
}

/// An attack that the modes want whole is more than the budget: each of its flows keeps its start.
#[test]
fn of_an_attack_that_exceeds_the_budget_the_start_of_each_flow_is_kept() {
    let mut detail = alone(DetailBudget::Share(0.05));
    let mut random = Random(3);
    let (mut flows, mut kept) = (0, 0);
    for second in 0..120_u64 {
        // 25 flows of the attack in a second, of 40 packets each; as much ordinary traffic.
        let mut started = [false; 25];
        for number in 0..2_000_u64 {
            let ts_ns = (1_000 + second) * SECOND_NS + number * SECOND_NS / 2_000;
            let of_attack = number % 2 == 0;
            let flow = random.below(25);
            let (step, name) = match of_attack {
                true => (
                    WANTED | (70 + random.below(50) as u8),
                    1_000 + second * 25 + flow,
                ),
                false => (random.below(60) as u8, flow),
            };
            let gives = detail.packet(ts_ns, step, fingerprint(name), (1_000, 1_000));
            if of_attack {
                started[flow as usize] |= gives;
            }
        }
        if second >= 60 {
            flows += started.len();
            kept += started.iter().filter(|&&is| is).count();
        }
    }
    let counts = detail.counts();
    let share = counts.given.bytes as f64 / counts.offered.bytes as f64;
    // A quarter is saved at first.
    assert!((0.035..0.055).contains(&share), "{share}");
    assert!(counts.over_budget.packets > 80_000, "{counts:?}");
    assert!(kept * 100 >= flows * 97, "{kept} of {flows} flows");
}

/// Whatever has come far in its flow waits until all that begins has had its share.
#[test]
fn the_start_of_each_flow_goes_before_the_rest_of_any() {
    let mut detail = alone(DetailBudget::Share(0.05));
    let mut random = Random(11);
    let (mut short, mut kept) = (0, 0);
    for second in 0..120_u64 {
        for number in 0..1_000_u64 {
            let ts_ns = (1_000 + second) * SECOND_NS + number * SECOND_NS / 1_000;
            let long = fingerprint(random.below(200));
            detail.packet(ts_ns, 40, long, (1_000, 1_000));
            // Twenty flows a second, of three packets each: 12 of 50 kB that may be kept.
            if number % 50 < 3 {
                let flow = fingerprint(1_000 + second * 20 + number / 50);
                let gives = detail.packet(ts_ns, 40, flow, (200, 200));
                if second >= 60 {
                    short += 1;
                    kept += u64::from(gives);
                }
            }
        }
    }
    assert!(kept * 100 >= short * 99, "{kept} of {short} packets");
    let counts = detail.counts();
    let share = counts.given.bytes as f64 / counts.offered.bytes as f64;
    // A quarter is saved at first.
    assert!((0.035..0.055).contains(&share), "{share}");
}

/// On a quiet link, an attack is most of its minute and would get a tenth of itself. What was not given
/// before is there for it, and still nothing is given that was not earned.
#[test]
fn what_a_quiet_link_has_saved_is_there_for_an_attack() {
    let mut detail = alone(DetailBudget::Share(0.1));
    let mut random = Random(13);
    let mut offer = |second: u64, flow: u64, payload: u32| {
        let gives = detail.packet(
            second * SECOND_NS,
            40,
            fingerprint(flow),
            (payload, payload),
        );
        let counts = detail.counts();
        // 4 KiB are there at the start, and the last packet is given whole.
        let earned = counts.offered.bytes as f64 * 0.1 + 4_096.0 + 1_500.0;
        let given = counts.given.bytes as f64;
        assert!(given <= earned, "{given} of {earned}");
        gives
    };
    for second in 0..7_200 {
        offer(second, random.below(50), 600);
    }
    let mut kept = 0;
    for flow in 0..1_000 {
        for _ in 0..2 {
            kept += 100 * u64::from(offer(7_200 + flow / 20, 1_000 + flow, 100));
        }
    }
    assert!(kept > 50_000, "{kept} of 200 kB");
}

/// Times of captures are not to be trusted.
#[test]
fn times_that_jump_neither_stop_the_budget_nor_overdraw_it() {
    for budget in [
        DetailBudget::Share(0.1),
        DetailBudget::Rate(70_000.0, Over::Minute),
    ] {
        let mut detail = alone(budget);
        let mut random = Random(5);
        let mut given = [0_u64; 6];
        for (part, given) in given.iter_mut().enumerate() {
            // A hundred years later, back, and at the end of time.
            let origin = [1, 2, 3_153_600_000, 3, 18_000_000_000, 4][part] * SECOND_NS;
            for number in 0..60_000_u64 {
                let ts_ns = origin + number * (SECOND_NS / 1_000);
                let step = random.below(128) as u8;
                let hash = fingerprint(random.below(50));
                *given += 700 * u64::from(detail.packet(ts_ns, step, hash, (700, 700)));
            }
        }
        for given in given {
            // 4.2 MB of 42, of which a quarter is saved at first.
            assert!(
                (3_000_000..4_800_000).contains(&given),
                "{budget:?}: {given}"
            );
        }
    }
}

#[test]
fn nothing_is_given_of_nothing_and_all_of_all() {
    for (budget, all) in [(0.0, false), (1.0, true)] {
        let mut detail = alone(DetailBudget::Share(budget));
        let minutes = by_flow().run(2, |packet| offer(&mut detail, packet));
        for minute in minutes {
            let given = if all { minute.offered } else { 0 };
            let share = minute.given as f64 / minute.offered as f64;
            assert!(
                (minute.given as f64 - given as f64).abs() <= minute.offered as f64 * 0.01,
                "{share}"
            );
        }
    }
}

/// Another budget applies from the next chunk on.
#[test]
fn the_budget_changes_at_run_time() {
    let mut detail = alone(DetailBudget::Share(0.5));
    let mut seen = 0_u64;
    let minutes = by_flow().run(4, |packet| {
        seen += 1;
        if seen == 3_000 * 120 {
            detail.set_budget(DetailBudget::Share(0.05));
        }
        offer(&mut detail, packet)
    });
    let shares: Vec<f64> = minutes
        .iter()
        .map(|m| m.given as f64 / m.offered as f64)
        .collect();
    // A quarter is saved at first.
    assert!((0.35..0.55).contains(&shares[1]), "{shares:?}");
    assert!((0.035..0.055).contains(&shares[3]), "{shares:?}");
    assert!(shares[2] < 0.06, "{shares:?}");
}
