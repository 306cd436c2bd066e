//! All data paths write the same log, byte for byte, however packets are batched.
//!
//! A binary of its own: `make neon` links it for ARM, where the libpcap that `it` needs may be missing.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]
#![allow(clippy::print_stdout, reason = "says which paths this machine has not")]

#[path = "it/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use strata_capture::{Input, InputOptions, Next, PacketRef};
use strata_classify::Model;
use strata_filter::Filter;
use strata_pipeline::{
    Alert, Alerts, Classifier, Copies, DataPath, EnoughOfFlows, ExportedPacket, Exports, Parts,
    PolicyExport, RunError, ShadowError, Tap, Tapped, TriggerOptions, Triggers, Worker,
    WorkerOptions, run, survey,
};
use strata_policy::{
    ClassKept, DetailBudget, DetailCounts, Mode, ModeConfig, Over, Plan, ShadowCounts, Steering,
};
use strata_rules::{Policies, Policy};
use strata_sketch::{BITS_DEFAULT, Pressure, TableSize};
use strata_testkit::{format_captures, labelled_captures, workspace_root};
use strata_wire::dissect::dissect;
use strata_wire::pcapng::options::{self, code};
use strata_wire::{Counters, FlowKey, Interface, KeepKind, Ledger, LinkType, Meta, TunnelKey};

use common::{Blocks, Packet, another, packets};

fn model() -> Model {
    let json = std::fs::read(workspace_root().join("models/default.json")).unwrap();
    Model::from_json(&json).unwrap()
}

/// Wants to see all packets, and keeps what it is shown; or those of each third batch. Neither may
/// change what is recorded.
#[derive(Debug)]
struct Flickering {
    is_always: bool,
    batches: u32,
    filter: Option<Filter>,
    shown: Arc<Mutex<Vec<String>>>,
}

impl Tap for Flickering {
    fn is_wanted(&mut self) -> bool {
        self.batches += 1;
        self.is_always || self.batches.is_multiple_of(3)
    }

    fn take(&mut self, shown: &Tapped<'_>) {
        assert!(
            self.is_always || self.batches.is_multiple_of(3),
            "{shown:?}"
        );
        let PacketRef {
            data,
            wire_len,
            interface,
            ..
        } = shown.packet;
        if let Some(filter) = &self.filter {
            let program = filter.compile(LINKS[usize::from(interface)]).unwrap();
            assert!(program.matches(data, wire_len), "{shown:?}");
        }
        if self.is_always {
            let (packet, headers, class) = (&shown.packet, &shown.headers, shown.class);
            let text = format!("{} {wire_len} {headers:?} {class}", packet.ts_ns);
            self.shown.lock().unwrap().push(text);
        }
    }

    fn finish(&mut self) {}
}

/// Link types of the interfaces of random packets.
const LINKS: [LinkType; 3] = [LinkType::ETHERNET, LinkType::ETHERNET, LinkType::RAW];

/// What interfaces capture of a packet at most: less than the longest.
const SNAPLEN: u32 = 1_400;

/// A mode that neither records all classes nor samples any.
const NOTHING_BENIGN: &str = "nothing-benign";

/// The mode of a recording without a log.
const NOTHING: &str = "nothing";

fn mode(name: &str) -> Mode {
    let config = |anomalous: &str| ModeConfig {
        benign: "drop".into(),
        anomalous: anomalous.into(),
        classes: BTreeMap::new(),
    };
    let own = [(NOTHING_BENIGN, "partial 16"), (NOTHING, "drop")];
    let own = own.map(|(name, anomalous)| (name.into(), config(anomalous)));
    Mode::by_name(name, &BTreeMap::from(own)).unwrap()
}

/// Policies: expressions with their actions, and the action for all other packets.
type Rules = (&'static [(&'static str, &'static str)], &'static str);

/// Begins an expression that counts on the second interface alone.
const ON_SECOND: &str = "on eth1: ";

/// Nothing, all actions at once, most packets dropped before they are classified; protocols alone, and all
/// plain packets dropped.
const RULES: [Option<Rules>; 5] = [
    None,
    Some((
        &[
            ("src net 10.0.0.0/26", "header"),
            ("dst portrange 0-63", "drop"),
            ("udp and dst net 10.0.1.0/25", "partial 8 1/3"),
            ("ip6", "classify 1/2 flows"),
            ("vlan 7", "mirror"),
            ("tcp and src net 10.0.1.0/27", "full"),
            ("udp and src net 10.0.0.0/25", "payload 4 -> elsewhere"),
            ("on eth1: udp and src net 10.0.0.128/25", "full"),
        ],
        "classify",
    )),
    Some((&[("tcp and dst net 10.0.1.0/25", "classify")], "drop")),
    Some((
        &[
            ("tcp", "header 1/3"),
            ("vlan 7", "mirror"),
            ("on eth1: udp", "partial 8"),
            ("ip", "header -> elsewhere"),
        ],
        "drop",
    )),
    Some((&[("ip", "payload -> elsewhere"), ("ip6", "full")], "drop")),
];

/// None, shares, and rates that suffice for a part of some packets.
const DETAIL: [Option<DetailBudget>; 5] = [
    None,
    Some(DetailBudget::Share(0.1)),
    Some(DetailBudget::Share(0.6)),
    Some(DetailBudget::Rate(2e5, Over::Minute)),
    Some(DetailBudget::Share(0.0)),
];

/// How a recording is made.
#[derive(Clone, Debug)]
struct Setup {
    modes: Vec<&'static str>,
    filter: Option<&'static str>,
    rules: Option<Rules>,
    /// The budget of detail.
    detail: Option<DetailBudget>,
    look_back_bytes: usize,
    first_bytes: u64,
    is_alerted: bool,
    is_tapped: bool,
    shows_all: bool,
    /// Whether another model is compared.
    has_shadow: bool,
    /// Whether the kernel learns how much of a flow's packets is enough.
    has_cut: bool,
    /// What packets were cut to before they came, as their interfaces say.
    arrived: KeepKind,
    table: TableSize,
}

/// A worker, and what it leaves behind.
struct Recording {
    worker: Worker,
    sink: Blocks,
    policies: Vec<Policy>,
    copies: Arc<Mutex<Vec<Vec<u8>>>>,
    shown: Arc<Mutex<Vec<String>>>,
    told: Arc<Mutex<Vec<String>>>,
    exported: Arc<Mutex<Vec<String>>>,
    alerts: Arc<Alerts>,
}

/// Keeps the copies that policies ask for.
#[derive(Debug)]
struct Copied(Arc<Mutex<Vec<Vec<u8>>>>);

impl Copies for Copied {
    fn send(&mut self, frames: &[&[u8]]) {
        let frames = frames.iter().map(|frame| frame.to_vec());
        self.0.lock().unwrap().extend(frames);
    }

    fn sent(&self) -> Counters {
        Counters::default()
    }

    fn lost(&self) -> Counters {
        Counters::default()
    }
}

/// Keeps what policies export.
#[derive(Debug)]
struct Taken(Arc<Mutex<Vec<String>>>);

impl Exports for Taken {
    fn interface(&mut self, _: u16, _: &Interface) {}

    fn take(&mut self, packet: &ExportedPacket<'_>, exports: &[PolicyExport]) {
        let ExportedPacket {
            packet,
            header_len,
            class,
            one_in,
        } = packet;
        let (ts_ns, len) = (packet.ts_ns, packet.data.len());
        let line = format!("{ts_ns} {len} {header_len} {class} {one_in} {exports:?}");
        self.0.lock().unwrap().push(line);
    }

    fn batch_done(&mut self) {}

    fn finish(&mut self) {}
}

/// Keeps the messages to the kernel about flows.
#[derive(Debug)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn add(&self, flow: &FlowKey, what: &str) {
        self.0.lock().unwrap().push(format!("{flow:?}: {what}"));
    }
}

impl EnoughOfFlows for Told {
    fn keep_whole(&self, flow: &FlowKey) {
        self.add(flow, "whole");
    }

    fn cut(&self, flow: &FlowKey, bytes: u16) {
        self.add(flow, &format!("{bytes} bytes"));
    }

    fn cut_at_once(&self, flow: &FlowKey, bytes: u16) {
        self.add(flow, &format!("{bytes} bytes at once"));
    }
}

impl Setup {
    fn mode(name: &'static str) -> Self {
        Self {
            modes: vec![name],
            filter: None,
            rules: None,
            detail: None,
            look_back_bytes: 0,
            first_bytes: 0,
            is_alerted: false,
            is_tapped: false,
            shows_all: false,
            has_shadow: false,
            has_cut: false,
            arrived: KeepKind::Full,
            table: TableSize::fixed(BITS_DEFAULT),
        }
    }

    fn start(&self, model: &Model, path: DataPath) -> Recording {
        let sink = Blocks::default();
        let modes: Vec<Mode> = self.modes.iter().map(|name| mode(name)).collect();
        let policy = |&(expression, action): &(&str, &str)| {
            let filter = expression.strip_prefix(ON_SECOND).unwrap_or(expression);
            Policy {
                interface: (filter != expression).then(|| "eth1".into()),
                ..Policy::new(Filter::parse(filter).unwrap(), action.parse().unwrap())
            }
        };
        let rules = self.rules.map_or(&[][..], |(rules, _)| rules);
        let policies: Vec<Policy> = rules.iter().map(policy).collect();
        let plan = Plan::new(model, &modes).unwrap().with_detail(self.detail);
        let steering = Steering::new(match self.rules {
            None => plan,
            Some((_, otherwise)) => {
                let policies = Policies::new(&policies, otherwise.parse().unwrap()).unwrap();
                plan.with_policies(Arc::new(policies))
            }
        });
        let filter = self.filter.map(|text| Filter::parse(text).unwrap());
        let options = WorkerOptions {
            modes,
            filter: filter.clone(),
            dedup: None,
            tunnel_key: TunnelKey::Inner,
            hash_seed: [1, 2],
            sampling_seed: 3,
        };
        let alerts = Arc::new(Alerts::default());
        let triggers = TriggerOptions {
            look_back_bytes: self.look_back_bytes,
            first_bytes: self.first_bytes,
            alerts: self.is_alerted.then(|| Arc::clone(&alerts)),
        };
        let copies = Arc::default();
        let shown = Arc::default();
        let told = Arc::default();
        let exported = Arc::default();
        let tap = Flickering {
            is_always: self.shows_all,
            batches: 0,
            filter,
            shown: Arc::clone(&shown),
        };
        let tap = (self.is_tapped || self.shows_all).then(|| -> Box<dyn Tap> { Box::new(tap) });
        let parts = Parts {
            path,
            sketch: Some(model.new_sketch(self.table).unwrap()),
            steering: Some(steering),
            triggers: Some(Triggers::new(&triggers)),
            taps: tap.into_iter().collect(),
            copies: Some(Box::new(Copied(Arc::clone(&copies)))),
            exports: Some(Box::new(Taken(Arc::clone(&exported)))),
            shadow: self.has_shadow.then(|| Arc::new(another(model))),
            enough: self
                .has_cut
                .then(|| -> Box<dyn EnoughOfFlows> { Box::new(Told(Arc::clone(&told))) }),
            ..Parts::new(options, sink.clone())
        };
        Recording {
            worker: Worker::new(model, parts).unwrap(),
            sink,
            policies,
            copies,
            shown,
            told,
            exported,
            alerts,
        }
    }
}

/// What a recording leaves behind.
#[derive(PartialEq)]
struct Left {
    blocks: Vec<Vec<u8>>,
    ledger: Ledger,
    pressure: Pressure,
    kept: Vec<ClassKept>,
    hits: Vec<Counters>,
    copies: Vec<Vec<u8>>,
    shown: Vec<String>,
    told: Vec<String>,
    exported: Vec<String>,
    drift: Option<String>,
    detail: Option<DetailCounts>,
    shadow: Option<ShadowCounts>,
}

impl Recording {
    fn left(self) -> Left {
        let ledger = self.worker.ledger();
        ledger.check().unwrap();
        let policies = self.policies.iter();
        Left {
            blocks: self.sink.sealed(),
            ledger,
            pressure: self.worker.pressure(),
            kept: self.worker.kept(),
            hits: policies.map(|policy| policy.hits.counters()).collect(),
            copies: std::mem::take(&mut self.copies.lock().unwrap()),
            shown: std::mem::take(&mut self.shown.lock().unwrap()),
            told: std::mem::take(&mut self.told.lock().unwrap()),
            exported: std::mem::take(&mut self.exported.lock().unwrap()),
            drift: self
                .worker
                .classifier()
                .drift()
                .map(|drift| format!("{drift:?}")),
            detail: self.worker.detail(),
            shadow: self.worker.shadow(),
        }
    }
}

/// Says where two recordings differ, if they do.
fn difference(a: &Left, b: &Left) -> Option<String> {
    for (number, (a, b)) in a.blocks.iter().zip(&b.blocks).enumerate() {
        if let Some(at) = (0..a.len().max(b.len())).find(|&at| a.get(at) != b.get(at)) {
            return Some(format!("block {number} differs at byte {at}"));
        }
    }
    if a.blocks.len() != b.blocks.len() {
        return Some(format!("{} and {} blocks", a.blocks.len(), b.blocks.len()));
    }
    if a.ledger != b.ledger {
        return Some(format!("{:?}\n{:?}", a.ledger, b.ledger));
    }
    if a.pressure != b.pressure {
        return Some(format!("{:?}\n{:?}", a.pressure, b.pressure));
    }
    if a.kept != b.kept || a.hits != b.hits {
        return Some(format!(
            "{:?} {:?}\n{:?} {:?}",
            a.kept, a.hits, b.kept, b.hits
        ));
    }
    if a.copies != b.copies {
        return Some(format!("{} and {} copies", a.copies.len(), b.copies.len()));
    }
    for (what, a, b) in [
        ("shown", &a.shown, &b.shown),
        ("told", &a.told, &b.told),
        ("exported", &a.exported, &b.exported),
    ] {
        if let Some(at) = (0..a.len().max(b.len())).find(|&at| a.get(at) != b.get(at)) {
            return Some(format!("{what}: {:?}\n{:?}", a.get(at), b.get(at)));
        }
    }
    if a.detail != b.detail {
        return Some(format!("{:?}\n{:?}", a.detail, b.detail));
    }
    if a.shadow != b.shadow {
        return Some(format!("{:?}\n{:?}", a.shadow, b.shadow));
    }
    (a.drift != b.drift).then(|| "drift differs".into())
}

/// Records packets in batches of these sizes, in rotation.
fn record(
    model: &Model,
    setup: &Setup,
    path: DataPath,
    packets: &[Packet],
    sizes: &[usize],
) -> Left {
    record_and_count(model, setup, path, packets, sizes).0
}

/// The same, and how many packets went through columns.
fn record_and_count(
    model: &Model,
    setup: &Setup,
    path: DataPath,
    packets: &[Packet],
    sizes: &[usize],
) -> (Left, u64) {
    let refs: Vec<PacketRef<'_>> = packets.iter().map(Packet::as_ref).collect();
    record_refs(model, setup, path, &refs, sizes)
}

fn record_refs(
    model: &Model,
    setup: &Setup,
    path: DataPath,
    refs: &[PacketRef<'_>],
    sizes: &[usize],
) -> (Left, u64) {
    let mut recording = setup.start(model, path);
    let worker = &mut recording.worker;
    for (id, link) in (0..).zip(LINKS) {
        let mut interface = Interface::new(link, SNAPLEN);
        let name = format!("eth{id}");
        options::push(&mut interface.options, code::IF_NAME, name.as_bytes()).unwrap();
        if setup.arrived != KeepKind::Full {
            interface.set_kept(setup.arrived);
        }
        worker.meta(Meta::Interface { id, interface }).unwrap();
    }
    // Of some flows, before their first packets come.
    for (packet, signature_id) in refs.iter().step_by(40).zip(1..9) {
        let headers = dissect(
            LINKS[usize::from(packet.interface)],
            packet.data,
            TunnelKey::Inner,
        );
        if let Some(flow) = headers.key {
            let signature_id = NonZeroU64::new(signature_id);
            let signature = "of a test".into();
            recording.alerts.raise(Alert {
                flow,
                signature_id,
                signature,
            });
        }
    }
    let mut rest = refs;
    for &size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (batch, later) = rest.split_at(size.min(rest.len()));
        worker.batch(batch).unwrap();
        rest = later;
    }
    worker.finish().unwrap();
    let in_columns = worker.packets_in_columns();
    (recording.left(), in_columns)
}

/// The paths of this machine; prints which do not run.
fn paths() -> Vec<DataPath> {
    let available = DataPath::available();
    for path in [DataPath::Avx2, DataPath::Avx512, DataPath::Neon] {
        if !available.contains(&path) {
            println!("not run, since this machine cannot: {}", path.name());
        }
    }
    available
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn logs_of_all_paths_are_equal_at_any_batch_boundary(
        seed in any::<u64>(),
        count in 1_usize..3_000,
        odd_one_in in prop::sample::select(vec![3_u64, 60, 2_000, u64::MAX]),
        flows in prop::sample::select(vec![1_u64, 5, 40, 5_000]),
        sizes in prop::collection::vec(prop::sample::select(vec![1_usize, 15, 16, 63, 64, 100, 255, 256, 300, 700]), 1..6),
        modes in prop::sample::select(vec![
            vec!["default"], vec!["log-all"], vec!["log-partial"], vec!["log-minimum"],
            vec!["default", "log-sampled"], vec![NOTHING_BENIGN],
        ]),
        filter in prop::sample::select(vec![None, None, Some("tcp or ip6"), Some("len > 1000")]),
        rules in prop::sample::select(RULES.to_vec()),
        detail in prop::sample::select(DETAIL.to_vec()),
        look_back_bytes in prop::sample::select(vec![0_usize, 0, 1 << 16, 1 << 20]),
        first_bytes in prop::sample::select(vec![0_u64, 0, 100, 4_096]),
        is_alerted in any::<bool>(),
        is_tapped in any::<bool>(),
        shows_all in any::<bool>(),
        has_shadow in any::<bool>(),
        has_cut in any::<bool>(),
        arrived in prop::sample::select(vec![KeepKind::Full, KeepKind::Full, KeepKind::Partial, KeepKind::Header]),
        // Most windows of packets like these are too much for the smallest.
        bits in prop::sample::select(vec![(16, 16), (2, 9), (1, 3)]),
    ) {
        let model = model();
        let packets = packets(seed, count, flows, odd_one_in);
        let table = TableSize::growing(bits.0, bits.1);
        let setup = Setup {
            modes, filter, rules, detail, look_back_bytes, first_bytes, is_alerted, is_tapped, shows_all, has_shadow,
            has_cut, arrived, table,
        };
        let expected = record(&model, &setup, DataPath::Reference, &packets, &[64]);
        for path in paths() {
            let found = record(&model, &setup, path, &packets, &sizes);
            if let Some(difference) = difference(&expected, &found) {
                prop_assert!(false, "{}: {difference}", path.name());
            }
        }
    }
}

/// A packet that was cut before it came is not called whole, however it was cut.
#[test]
fn packets_that_came_cut_are_kept_as_they_came() {
    let model = model();
    let packets = packets(3, 3_000, 40, u64::MAX);
    let mut refs: Vec<PacketRef<'_>> = packets.iter().map(Packet::as_ref).collect();
    for packet in refs.iter_mut().step_by(3) {
        packet.wire_len *= 2;
    }
    let is_cut = |packet: &&PacketRef<'_>| packet.wire_len as usize > packet.data.len();
    let cut = refs.iter().filter(is_cut).count() as u64;
    let whole = refs.len() as u64 - cut;
    assert!(cut > 1_000 && whole > 1_000);
    for (arrived, expected) in [
        (KeepKind::Full, vec![("full", whole + cut)]),
        (KeepKind::Partial, vec![("full", whole), ("partial", cut)]),
        (KeepKind::Header, vec![("header", whole + cut)]),
    ] {
        let setup = Setup {
            arrived,
            ..Setup::mode("log-all")
        };
        for path in paths() {
            let (left, in_columns) = record_refs(&model, &setup, path, &refs, &[256]);
            let mut found = BTreeMap::new();
            for kept in left.kept.iter().filter(|kept| kept.captured.packets > 0) {
                *found.entry(kept.granularity).or_insert(0) += kept.captured.packets;
            }
            let found: Vec<_> = found.into_iter().collect();
            assert_eq!(found, expected, "{}", path.name());
            assert!(in_columns > 0 || matches!(path, DataPath::Reference));
        }
    }
}

/// The table of flows grows with the packets, wherever batches end: within a batch too.
#[test]
fn logs_of_all_paths_are_equal_while_the_table_of_flows_grows() {
    let mut model = model();
    // Packets are 100 us apart on average: a new window every 300 of them.
    model.window_ns = 30_000_000;
    let packets = packets(5, 20_000, 5_000, u64::MAX);
    let setup = Setup {
        table: TableSize::growing(2, 8),
        ..Setup::mode("default")
    };
    let expected = record(&model, &setup, DataPath::Reference, &packets, &[64]);
    // 2^8 in each layer are needed for 300 flows, and it grows through all sizes.
    assert_eq!(expected.pressure.buckets, 2 << 8);
    for path in paths() {
        for sizes in [&[256][..], &[1, 255, 17, 64], &[700]] {
            let found = record(&model, &setup, path, &packets, sizes);
            assert_eq!(difference(&expected, &found), None, "{}", path.name());
        }
    }
}

/// A table that starts small doubles within a window, at the same packet wherever batches end; few
/// batches leave their columns for that.
#[test]
fn logs_of_all_paths_are_equal_while_a_small_table_of_flows_doubles() {
    let model = model();
    let packets = packets(5, 60_000, 300_000, u64::MAX);
    let setup = Setup {
        table: TableSize::growing(18, 20).starting_small(),
        ..Setup::mode("default")
    };
    let expected = record(&model, &setup, DataPath::Reference, &packets, &[64]);
    let Pressure {
        buckets, claimed, ..
    } = expected.pressure;
    assert!(
        buckets > 2 << 16 && claimed > 40_000,
        "{:?}",
        expected.pressure
    );
    for path in paths() {
        for sizes in [&[256][..], &[1, 255, 17, 64], &[700]] {
            let (found, in_columns) = record_and_count(&model, &setup, path, &packets, sizes);
            assert_eq!(difference(&expected, &found), None, "{}", path.name());
            if path != DataPath::Reference && sizes.len() == 1 {
                assert!(in_columns > 55_000, "{}: {in_columns}", path.name());
            }
        }
    }
}

/// The demands do not decide which path a recording takes.
#[test]
fn whatever_is_asked_for_goes_through_columns() {
    let model = model();
    let packets = packets(7, 4_000, 300, u64::MAX);
    let modes = [
        "default",
        "log-all",
        "log-partial",
        "log-sampled",
        "log-minimum",
        NOTHING_BENIGN,
    ];
    let default = || Setup::mode("default");
    let triggers = [
        Setup {
            look_back_bytes: 1 << 16,
            ..default()
        },
        Setup {
            first_bytes: 4_096,
            ..default()
        },
        Setup {
            is_alerted: true,
            ..default()
        },
        Setup {
            look_back_bytes: 1 << 20,
            first_bytes: 100,
            is_alerted: true,
            rules: RULES[1],
            shows_all: true,
            ..Setup::mode("log-sampled")
        },
    ];
    let asked = modes.into_iter().flat_map(|mode| {
        [
            (None, RULES[0], false),
            (None, RULES[0], true),
            (Some("tcp or ip6"), RULES[0], false),
            (None, RULES[1], false),
            (None, RULES[2], true),
            (Some("tcp or ip6"), RULES[1], true),
        ]
        .map(|(filter, rules, shows_all)| Setup {
            filter,
            rules,
            shows_all,
            ..Setup::mode(mode)
        })
    });
    for setup in asked.chain(triggers) {
        let expected = record(&model, &setup, DataPath::Reference, &packets, &[256]);
        let passed = expected.ledger.seen.packets - expected.ledger.filtered.packets;
        let shown = if setup.shows_all { passed } else { 0 };
        assert_eq!(expected.shown.len() as u64, shown);
        for path in paths() {
            let (found, in_columns) = record_and_count(&model, &setup, path, &packets, &[256]);
            assert_eq!(
                difference(&expected, &found),
                None,
                "{}: {setup:?}",
                path.name()
            );
            let is_wide = path != DataPath::Reference;
            // A window ends in some batches, and the last one may be too small.
            let bounds = if is_wide {
                passed * 9 / 10..=passed
            } else {
                0..=0
            };
            assert!(
                bounds.contains(&in_columns),
                "{}: {in_columns} of {passed}, {setup:?}",
                path.name()
            );
        }
    }
}

/// What the kernel has to cut, and what it cut too short, does not depend on the path either.
#[test]
fn what_is_enough_of_a_flow_is_said_by_all_paths() {
    let model = model();
    let packets = packets(7, 8_000, 30, u64::MAX);
    let detail = Some(DetailBudget::Share(0.1));
    let mut said = BTreeMap::from([("whole", 0), ("bytes", 0), ("at once", 0)]);
    for (mode, rules, detail, look_back_bytes) in [
        ("default", RULES[0], None, 0),
        ("log-minimum", RULES[0], None, 0),
        ("log-all", RULES[0], None, 0),
        ("log-partial", RULES[0], None, 0),
        ("log-sampled", RULES[1], None, 0),
        ("default", RULES[1], detail, 0),
        ("log-partial", RULES[0], detail, 0),
        ("default", RULES[2], None, 1 << 16),
    ] {
        let setup = Setup {
            rules,
            detail,
            look_back_bytes,
            has_cut: true,
            ..Setup::mode(mode)
        };
        let expected = record(&model, &setup, DataPath::Reference, &packets, &[256]);
        for (what, count) in &mut said {
            *count += expected.told.iter().filter(|t| t.ends_with(what)).count();
        }
        for path in paths() {
            let (found, in_columns) = record_and_count(&model, &setup, path, &packets, &[256]);
            let difference = difference(&expected, &found);
            assert_eq!(difference, None, "{}: {setup:?}", path.name());
            let is_wide = path != DataPath::Reference;
            assert_eq!(in_columns > 7_000, is_wide, "{}: {setup:?}", path.name());
        }
    }
    assert!(said.values().all(|&count| count > 500), "{said:?}");
}

/// The decisions of policies are found by flow, or by protocol: of more flows than have a place, and of
/// the same ones on two interfaces and in a VLAN.
#[test]
fn policies_decide_alike_however_many_flows_there_are() {
    let model = model();
    let packets = packets(11, 60_000, 200_000, u64::MAX);
    let mut refs: Vec<PacketRef<'_>> = packets.iter().map(Packet::as_ref).collect();
    // Again on the other interface.
    for at in 30_000..60_000 {
        let ts_ns = refs[at].ts_ns;
        refs[at] = PacketRef {
            interface: 1,
            ts_ns,
            ..refs[at - 30_000]
        };
    }
    for rules in [RULES[1], RULES[3], RULES[4]] {
        let setup = Setup {
            rules,
            ..Setup::mode("default")
        };
        let (expected, _) = record_refs(&model, &setup, DataPath::Reference, &refs, &[250]);
        let hits = &expected.hits;
        assert!(hits.iter().all(|hits| hits.packets > 100), "{hits:?}");
        assert!(expected.exported.len() > 1000, "{rules:?}");
        for path in paths() {
            let (found, _) = record_refs(&model, &setup, path, &refs, &[250]);
            let difference = difference(&expected, &found);
            assert_eq!(difference, None, "{}: {rules:?}", path.name());
        }
    }
}

/// Packets that are left to the class are exported with it where the mode drops every class, as where
/// it keeps some; those that a policy or the default drops are not classified.
#[test]
fn exports_have_the_class_though_the_mode_drops_every_class() {
    const EXPORT: (&str, &str) = ("ip or ip6", "header -> elsewhere");
    let (model, packets) = (model(), packets(7, 8_000, 30, u64::MAX));
    let setup = |mode: &'static str, rules: Rules| Setup {
        rules: Some(rules),
        ..Setup::mode(mode)
    };
    let classes = |of: &Left| -> BTreeMap<String, usize> {
        let mut classes = BTreeMap::new();
        for line in &of.exported {
            let class = line.split(' ').nth(3).unwrap();
            *classes.entry(class.to_owned()).or_default() += 1;
        }
        classes
    };
    let classify: Rules = (&[EXPORT], "classify");
    let sampled: Rules = (&[EXPORT, ("udp", "classify 1/2")], "classify");
    let drop: Rules = (&[EXPORT], "drop");
    let dropped: Rules = (&[EXPORT, ("tcp or udp", "drop")], "drop");
    for path in paths() {
        for rules in [classify, sampled] {
            let kept = record(&model, &setup("default", rules), path, &packets, &[256]);
            let found = record(&model, &setup(NOTHING, rules), path, &packets, &[256]);
            assert!(classes(&kept).len() > 1, "{:?}", classes(&kept));
            assert_eq!(found.exported, kept.exported, "{}", path.name());
            assert_eq!(found.hits, kept.hits, "{}", path.name());
            let ledger = found.ledger;
            assert_eq!(ledger.logged, Counters::default());
            let ended = ledger.discarded.packets + ledger.sampled_out.packets;
            assert_eq!(ended, ledger.seen.packets);
            let by_class = found.kept.iter().map(|kept| kept.captured.packets);
            assert_eq!(by_class.sum::<u64>(), ledger.seen.packets);
        }
        for rules in [drop, dropped] {
            let found = record(&model, &setup(NOTHING, rules), path, &packets, &[256]);
            let no_class = strata_pipeline::NO_CLASS.to_string();
            let all = BTreeMap::from([(no_class, found.exported.len())]);
            assert!(found.exported.len() > 1_000);
            assert_eq!(classes(&found), all, "{}", path.name());
            assert_eq!(found.ledger.discarded, found.ledger.seen);
            assert!(found.kept.is_empty(), "{:?}", found.kept);
        }
    }
}

/// A budget of detail goes through columns too; it keeps what it says, and each packet that it gives
/// detail or denies it says so.
#[test]
fn a_budget_of_detail_is_kept_by_all_paths() {
    let model = model();
    let packets = packets(11, 60_000, 300, u64::MAX);
    for (mode, rules) in [
        ("default", 0),
        ("log-partial", 0),
        ("log-sampled", 0),
        ("default", 1),
    ] {
        let setup = Setup {
            detail: Some(DetailBudget::Share(0.1)),
            rules: RULES[rules],
            ..Setup::mode(mode)
        };
        let expected = record(&model, &setup, DataPath::Reference, &packets, &[256]);
        for path in paths() {
            let (found, in_columns) = record_and_count(&model, &setup, path, &packets, &[256]);
            assert_eq!(
                difference(&expected, &found),
                None,
                "{}: {setup:?}",
                path.name()
            );
            if path != DataPath::Reference {
                assert!(in_columns > 50_000, "{}: {in_columns}", path.name());
            }
        }
        let counts = expected.detail.unwrap();
        let budget = counts.offered.bytes / 10;
        let most = budget + budget / 20 + (16 << 10);
        assert!(counts.given.bytes <= most, "{mode}: {counts:?}");
        assert!(counts.given.bytes * 5 > most, "{mode}: {counts:?}");
        assert_eq!(counts.outside.packets > 0, rules > 0, "{mode}: {counts:?}");
    }
    // Where all classes get the same, scores decide nothing.
    let log_all = Setup {
        detail: Some(DetailBudget::Share(0.1)),
        ..Setup::mode("log-all")
    };
    let left = record(&model, &log_all, DataPath::best(), &packets, &[256]);
    let plain = Setup::mode("log-all");
    let expected = record(&model, &plain, DataPath::best(), &packets, &[256]);
    assert_eq!(difference(&expected, &left), None);
}

/// A shadow changes nothing, and what it reports to keep more and less is what it keeps if it is the
/// model at work.
#[test]
fn a_shadow_changes_nothing_and_says_what_it_would_keep() {
    let (model, packets) = (model(), packets(11, 60_000, 300, u64::MAX));
    let rules = RULES[2];
    assert_eq!(
        rules.unwrap().1,
        "drop",
        "what a policy drops is not judged"
    );
    for (mode, detail, rules, first_bytes) in [
        ("default", None, None, 0),
        ("log-partial", None, None, 1_000),
        ("log-sampled", None, None, 0),
        ("default", Some(DetailBudget::Share(0.1)), None, 0),
        (
            "default",
            Some(DetailBudget::Rate(2e5, Over::Minute)),
            None,
            1_000,
        ),
        ("default", Some(DetailBudget::Share(0.1)), rules, 0),
    ] {
        let alone = Setup {
            detail,
            rules,
            first_bytes,
            ..Setup::mode(mode)
        };
        let with = Setup {
            has_shadow: true,
            ..alone.clone()
        };
        for path in paths() {
            let mut found = record(&model, &with, path, &packets, &[256]);
            let of_classes = found.shadow.take().unwrap();
            let counts = of_classes.all();
            let expected = record(&model, &alone, path, &packets, &[256]);
            assert_eq!(difference(&expected, &found), None, "{}", path.name());
            let other = record(&another(&model), &alone, path, &packets, &[256]);
            let kept = |left: &Left| i128::from(left.ledger.logged.bytes);
            let more = i128::from(counts.more.bytes) - i128::from(counts.less.bytes);
            assert_eq!(kept(&other) - kept(&found), more, "{alone:?}: {counts:?}");
            let judged = found.ledger.seen.packets - dropped(&found.ledger, rules.is_some());
            assert_eq!(counts.compared.packets, judged, "{alone:?}");
            for (class, counts) in (0..).zip(of_classes.by_class()) {
                // What policies drop is counted in no class.
                assert_eq!(counts.compared, of_class(&found, class), "{alone:?}");
                assert_eq!(counts.of_shadow, of_class(&other, class), "{alone:?}");
            }
            // A budget does not ask a model what gets it.
            let differs = counts.more.bytes > 0 || counts.less.bytes > 0;
            assert_eq!(differs, detail.is_none(), "{alone:?}: {counts:?}");
        }
    }
    // A model agrees with itself; one with other classes or features is refused.
    let mut shadow = model.clone();
    assert_eq!(Classifier::check_shadow(&model, &shadow), Ok(()));
    shadow.window_ns += 1;
    assert_eq!(
        Classifier::check_shadow(&model, &shadow),
        Err(ShadowError::Features)
    );
    shadow.classes[0].name = String::from("other");
    let refused = Classifier::check_shadow(&model, &shadow).unwrap_err();
    assert!(refused.to_string().contains("other"), "{refused}");
}

/// Packets of a class.
fn of_class(left: &Left, class: u8) -> Counters {
    let mut all = Counters::default();
    let of_class = left.kept.iter().filter(|kept| kept.class == class);
    of_class.for_each(|kept| all.merge(kept.captured));
    all
}

/// Packets that no model has seen.
fn dropped(ledger: &Ledger, by_policies: bool) -> u64 {
    match by_policies {
        true => ledger.discarded.packets,
        false => 0,
    }
}

/// The default mode, with a budget that real traffic needs more than.
fn with_detail() -> Setup {
    Setup {
        detail: Some(DetailBudget::Share(0.05)),
        ..Setup::mode("default")
    }
}

/// Records a capture file, as it is read; `None` if it is refused at once.
fn record_file(model: &Model, path: DataPath, file: &Path) -> Option<Left> {
    let mut input = Input::open(&[file.to_path_buf()], &InputOptions::default()).ok()?;
    let mut recording = with_detail().start(model, path);
    match run(&mut input, &mut recording.worker, |_| {
        std::ops::ControlFlow::Continue(())
    }) {
        Ok(()) | Err(RunError::Capture(_)) => {}
        Err(error) => panic!("{}: {error}", file.display()),
    }
    Some(recording.left())
}

/// The same file, its packets handed over in batches of another size.
fn record_file_in_batches(model: &Model, path: DataPath, file: &Path, size: usize) -> Left {
    let mut input = Input::open(&[file.to_path_buf()], &InputOptions::default()).unwrap();
    let mut recording = with_detail().start(model, path);
    let worker = &mut recording.worker;
    // A damaged file ends where the damage is.
    while let Ok(next) = input.advance() {
        match next {
            Next::End => break,
            Next::Meta(meta) => worker.meta(meta).unwrap(),
            Next::Packets => {
                let batch: Vec<PacketRef<'_>> = input.batch().iter().collect();
                for part in batch.chunks(size) {
                    worker.batch(part).unwrap();
                }
            }
        }
    }
    worker.finish().unwrap();
    recording.left()
}

/// What a budget of detail gets beforehand does not depend on the path.
#[test]
fn surveys_of_all_paths_are_equal_on_every_capture() {
    let options = WorkerOptions {
        modes: Vec::new(),
        filter: None,
        dedup: None,
        tunnel_key: TunnelKey::Inner,
        hash_seed: [1, 2],
        sampling_seed: 0,
    };
    let stop = AtomicBool::new(false);
    let survey = |path: DataPath, file: &Path| {
        let input = Input::open(&[file.to_path_buf()], &InputOptions::default());
        Some(survey(&mut input.ok()?, (&options, path), None, &stop))
    };
    let mut compared = 0;
    for file in format_captures().into_iter().chain(labelled_captures()) {
        let Some(expected) = survey(DataPath::Reference, &file) else {
            continue;
        };
        for path in paths() {
            let found = survey(path, &file);
            assert!(
                found.as_ref() == Some(&expected),
                "{}: {}",
                path.name(),
                file.display()
            );
            compared += 1;
        }
    }
    assert!(compared > 1_500, "{compared}");
}

#[test]
fn logs_of_all_paths_are_equal_on_every_capture() {
    let model = model();
    let mut compared = 0;
    for file in format_captures().into_iter().chain(labelled_captures()) {
        let Some(expected) = record_file(&model, DataPath::Reference, &file) else {
            continue;
        };
        for path in paths() {
            let found = if path == DataPath::Reference {
                record_file_in_batches(&model, path, &file, 37)
            } else {
                record_file(&model, path, &file).unwrap()
            };
            let difference = difference(&expected, &found);
            assert_eq!(difference, None, "{}: {}", path.name(), file.display());
            compared += 1;
        }
    }
    assert!(compared > 2_000, "only {compared}");
}
