//! The cost of classification by rules, against its peers, on the same rules and packets in turns;
//! as a page in Markdown.
//!
//!     cargo run --release -p strata-rules --example rules_speed > bench/results/rules.md
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a program for developers"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use strata_rules::{AnswerId, BATCH, PacketFields, Rule, RuleClassifier, RuleSet};
use support::classbench::{self, Kind};
use support::peers::{MaskArrays, MegaflowForm, Megaflows, PeerStats, Tuples};

#[path = "../tests/it/support/mod.rs"]
mod support;

const CACHE: usize = 1_000;
const PACKETS: usize = 60_000;
const ROUNDS: usize = 5;
const SEED: u64 = 1;

fn main() {
    println!("# Classification by rules\n");
    println!(
        "`cargo run --release -p strata-rules --example rules_speed` on {}, one core. {PACKETS} \
         packets a trace, caches of {CACHE} entries, median of {ROUNDS} rounds in turns after \
         one to warm up. Rule sets and traces have the shape of ClassBench's (seed {SEED}); \
         locality is the scale of the Pareto distribution of bursts, 0 for a new header in \
         every packet.\n",
        cpu()
    );
    println!(
        "- *uniflows*: what Strata does. *mask arrays*: unified space search as published \
         (Trident §3.3), mended.\n\
         - *megaflows (paper)*: as Trident §2 describes them. *megaflows (OVS)*: as Open vSwitch \
         makes them: early exit, stages, address tries, masks in order of hits.\n\
         - *TSS*: tuple space search without a cache, which is also the slow path of the peers; \
         that of uniflows prunes tuples by the classes of the fast path.\n\
         - *hits*: share of packets that the cache knew. *look-ups*: hash tables searched per packet \
         by the cache. *entry*: mean number of headers that a cached entry holds, as a power of 2.\n"
    );
    println!(
        "| rules | tuples | locality | search | ns/packet | million/s | hits | look-ups | entry | × uniflows |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for kind in [Kind::Acl, Kind::Firewall] {
        for count in [100, 1_000, 10_000] {
            let rules = classbench::rules(kind, count, SEED);
            for scale in [0.0, 1.0] {
                let packets = classbench::trace(&rules, PACKETS, scale, SEED);
                compare(kind, &rules, &packets, scale);
            }
        }
    }
    println!("\n## On cache hits only\n");
    println!("A trace of 125 headers, which the cache holds all.\n");
    println!("| rules | ns/packet | million/s | hits |\n|---|---|---|---|");
    for kind in [Kind::Acl, Kind::Firewall] {
        for count in [100, 1_000, 10_000] {
            hits_only(kind, count);
        }
    }
    println!("\n## Making rules ready\n");
    println!("| rules | rules of prefixes | build ms | classes kB |\n|---|---|---|---|");
    for kind in [Kind::Acl, Kind::Firewall] {
        for count in [100, 1_000, 10_000] {
            build(kind, count);
        }
    }
}

fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    model.map_or_else(
        || "unknown".into(),
        |name| name.trim_matches([' ', '\t', ':']).into(),
    )
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Nanoseconds per packet.
fn timed(packets: &[PacketFields], work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e9 / packets.len() as f64
}

fn batches(classifier: &mut RuleClassifier, packets: &[PacketFields]) {
    let mut answers = [AnswerId::NONE; BATCH];
    for batch in packets.chunks(BATCH) {
        classifier.classify(batch, &mut answers[..batch.len()]);
        black_box(&answers);
    }
}

fn each(packets: &[PacketFields], mut classify: impl FnMut(&PacketFields) -> AnswerId) {
    for packet in packets {
        black_box(classify(packet));
    }
}

/// The searches that are compared, over the same rules.
struct Searches {
    set: Arc<RuleSet>,
    uniflows: RuleClassifier,
    arrays: MaskArrays,
    paper: Megaflows,
    ovs: Megaflows,
    space: Tuples,
    /// Hash tables that tuple space search asked in the last round.
    tables: usize,
}

impl Searches {
    const NAMES: [&str; 5] = [
        "uniflows",
        "mask arrays",
        "megaflows (paper)",
        "megaflows (OVS)",
        "TSS",
    ];

    fn new(rules: &[Rule]) -> Self {
        let policies = u32::try_from(rules.len()).unwrap();
        let set = Arc::new(RuleSet::new(rules, policies));
        Self {
            uniflows: RuleClassifier::new(Arc::clone(&set), CACHE, SEED),
            set,
            arrays: MaskArrays::new(rules, policies, CACHE),
            paper: Megaflows::new(rules, policies, MegaflowForm::Paper, CACHE),
            ovs: Megaflows::new(rules, policies, MegaflowForm::OpenVSwitch, CACHE),
            space: Tuples::new(rules),
            tables: 0,
        }
    }

    /// Nanoseconds per packet of each.
    fn round(&mut self, packets: &[PacketFields]) -> [f64; 5] {
        let mut found = Vec::new();
        [
            timed(packets, || batches(&mut self.uniflows, packets)),
            timed(packets, || each(packets, |p| self.arrays.classify(p))),
            timed(packets, || each(packets, |p| self.paper.classify(p))),
            timed(packets, || each(packets, |p| self.ovs.classify(p))),
            timed(packets, || {
                self.tables = packets
                    .iter()
                    .map(|p| self.space.search(p, &mut found))
                    .sum::<usize>();
            }),
        ]
    }

    /// Of those with a cache.
    fn stats(&self) -> [PeerStats; 4] {
        [
            stats_of(&self.uniflows),
            self.arrays.stats(),
            self.paper.stats(),
            self.ovs.stats(),
        ]
    }
}

fn compare(kind: Kind, rules: &[Rule], packets: &[PacketFields], scale: f64) {
    let mut searches = Searches::new(rules);
    let mut ns: [Vec<f64>; 5] = Default::default();
    searches.round(packets);
    let before = searches.stats();
    for _ in 0..ROUNDS {
        for (all, time) in ns.iter_mut().zip(searches.round(packets)) {
            all.push(time);
        }
    }
    let mut after = searches.stats();
    // The uniflows' sizes are those of the packets, each weighing the same.
    let uniflows = searches.set.uniflows();
    let sizes: f64 = packets.iter().map(|p| uniflows.size(p)).sum();
    after[0].entry_size_sum = sizes / packets.len() as f64 * after[0].misses as f64;
    let ours = median(&ns[0]);
    for (index, (name, ns)) in Searches::NAMES.into_iter().zip(&ns).enumerate() {
        let (hits, lookups, entry) = match after.get(index) {
            None => (
                "-".into(),
                searches.tables as f64 / packets.len() as f64,
                "-".into(),
            ),
            Some(&after) => {
                let stats = difference(after, before[index]);
                let (packets, misses) = (stats.packets as f64, stats.misses as f64);
                (
                    format!("{:.2} %", 100.0 - misses * 100.0 / packets),
                    stats.fast_lookups as f64 / packets,
                    format!("2^{:.1}", stats.entry_size_sum.log2()),
                )
            }
        };
        let time = median(ns);
        println!(
            "| {} {} | {} | {scale} | {name} | {time:.1} | {:.1} | {hits} | {lookups:.2} | {entry} | {:.2} |",
            kind.name(),
            rules.len(),
            searches.space.len(),
            1e3 / time,
            time / ours,
        );
    }
}

fn stats_of(classifier: &RuleClassifier) -> PeerStats {
    let stats = classifier.stats();
    PeerStats {
        packets: stats.packets,
        misses: stats.misses,
        fast_lookups: stats.packets,
        entry_size_sum: 0.0,
    }
}

fn difference(after: PeerStats, before: PeerStats) -> PeerStats {
    PeerStats {
        packets: after.packets - before.packets,
        misses: after.misses - before.misses,
        fast_lookups: after.fast_lookups - before.fast_lookups,
        // Of all entries ever made, for few are made once the cache is warm.
        entry_size_sum: after.entry_size_sum / after.misses as f64,
    }
}

fn hits_only(kind: Kind, count: usize) {
    let rules = classbench::rules(kind, count, SEED);
    let policies = u32::try_from(count).unwrap();
    let few = classbench::trace(&rules, CACHE / 8, 0.0, SEED);
    let packets: Vec<PacketFields> = (0..PACKETS)
        .map(|n| few[n.wrapping_mul(7919) % few.len()])
        .collect();
    let mut classifier = RuleClassifier::new(Arc::new(RuleSet::new(&rules, policies)), CACHE, SEED);
    batches(&mut classifier, &packets);
    let before = classifier.stats();
    let times: Vec<f64> = (0..ROUNDS)
        .map(|_| timed(&packets, || batches(&mut classifier, &packets)))
        .collect();
    let stats = classifier.stats();
    let misses = (stats.misses - before.misses) as f64 / (stats.packets - before.packets) as f64;
    let ns = median(&times);
    println!(
        "| {} {count} | {ns:.1} | {:.1} | {:.2} % |",
        kind.name(),
        1e3 / ns,
        100.0 - misses * 100.0
    );
}

fn build(kind: Kind, count: usize) {
    let rules = classbench::rules(kind, count, SEED);
    let prefix_rules: usize = rules.iter().map(|rule| rule.region.prefix_rules()).sum();
    let mut times = Vec::new();
    let mut bytes = 0;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let set = RuleSet::new(&rules, u32::try_from(count).unwrap());
        times.push(start.elapsed().as_secs_f64() * 1e3);
        bytes = set.uniflows().bytes();
    }
    println!(
        "| {} {count} | {prefix_rules} | {:.2} | {} |",
        kind.name(),
        median(&times),
        bytes / 1000
    );
}
