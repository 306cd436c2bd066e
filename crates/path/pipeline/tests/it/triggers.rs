//! Look-back, starts of flows and alerts, checked against a simple reading of the same capture.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strata_blocks::Record;
use strata_capture::{Input, InputOptions, Next};
use strata_classify::Model;
use strata_pipeline::{Alert, Alerts, Parts, TriggerOptions, Triggers, Worker, WorkerOptions, run};
use strata_policy::Mode;
use strata_query::{ExportOptions, FileFormat, Find, export};
use strata_store::{About, Disk, Log, Recorder, RecorderOptions, Select};
use strata_testkit::{data_dir, workspace_root};
use strata_testkit_disk::SimDisk;
use strata_wire::dissect::dissect;
use strata_wire::pcapng::options;
use strata_wire::{FlowKey, KeepKind, Ledger, LinkType, TunnelKey};

/// A packet as it was captured, or as an export has it.
#[derive(Clone, Debug, PartialEq)]
struct Packet {
    ts_ns: u64,
    wire_len: u32,
    data: Vec<u8>,
    flow: Option<FlowKey>,
}

fn read(path: &Path) -> Vec<Packet> {
    let mut input = Input::open(&[path.to_owned()], &InputOptions::default()).unwrap();
    let mut packets = Vec::new();
    loop {
        match input.advance().unwrap() {
            Next::End => return packets,
            Next::Meta(_) => {}
            Next::Packets => packets.extend(input.batch().iter().map(|packet| Packet {
                ts_ns: packet.ts_ns,
                wire_len: packet.wire_len,
                data: packet.data.to_vec(),
                flow: dissect(LinkType::ETHERNET, packet.data, TunnelKey::Inner).key,
            })),
        }
    }
}

fn trace() -> PathBuf {
    data_dir().join("labelled/mix-test/trace.pcap")
}

struct Recorded {
    disk: SimDisk,
    log: Log,
    ledger: Ledger,
}

fn record(mode: &str, triggers: &TriggerOptions) -> Recorded {
    record_and(mode, triggers, |_| ())
}

/// As [`record`]; `look` is called with the packets so far.
fn record_and(mode: &str, triggers: &TriggerOptions, mut look: impl FnMut(u64)) -> Recorded {
    let json = std::fs::read(workspace_root().join("models/default.json")).unwrap();
    let model = Model::from_json(&json).unwrap();
    let mut input = Input::open(&[trace()], &InputOptions::default()).unwrap();
    let disk = SimDisk::new();
    let about = About {
        hash_seed: [1, 2],
        model_json: json,
        look_back: triggers.look_back_bytes > 0,
        ..About::default()
    };
    let options = RecorderOptions {
        block_bytes: 64 << 10,
        rotate_bytes: 4 << 20,
        ..RecorderOptions::default()
    };
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (recorder, sink) = Recorder::start(shared, options, &about).unwrap();
    let options = WorkerOptions {
        modes: vec![Mode::by_name(mode, &BTreeMap::new()).unwrap()],
        filter: None,
        dedup: None,
        tunnel_key: TunnelKey::Inner,
        hash_seed: [1, 2],
        sampling_seed: 0,
    };
    let parts = Parts {
        triggers: Some(Triggers::new(triggers)),
        ..Parts::new(options, sink)
    };
    let mut worker = Worker::new(&model, parts).unwrap();
    let ran = run(&mut input, &mut worker, |worker| {
        look(worker.ledger().seen.packets);
        ControlFlow::Continue(())
    });
    ran.unwrap();
    let ledger = worker.ledger();
    drop(worker);
    recorder.finish(&ledger, Vec::new()).unwrap();
    ledger.check().unwrap();
    assert_eq!(ledger.in_flight.packets, 0);
    let log = Log::on(Arc::new(disk.clone())).unwrap();
    Recorded { disk, log, ledger }
}

impl Recorded {
    /// What an export has, in its order.
    fn exported(&self) -> Vec<Packet> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let done = export(
            &self.log,
            &mut file,
            FileFormat::PcapNg,
            &Find::default(),
            ExportOptions::default(),
        );
        let done = done.unwrap();
        assert!(done.damage.is_empty(), "{:?}", done.damage);
        read(file.path())
    }

    /// Packets by the reason that an export gives for them.
    fn reasons(&self) -> BTreeMap<String, usize> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let options = ExportOptions {
            comments: true,
            ..ExportOptions::default()
        };
        export(
            &self.log,
            &mut file,
            FileFormat::PcapNg,
            &Find::default(),
            options,
        )
        .unwrap();
        let path = [file.path().to_owned()];
        let mut input = Input::open(&path, &InputOptions::default()).unwrap();
        let mut reasons = BTreeMap::new();
        loop {
            match input.advance().unwrap() {
                Next::End => return reasons,
                Next::Meta(_) => {}
                Next::Packets => {
                    for packet in input.batch().iter() {
                        let comment = options::comments(packet.options).next().unwrap();
                        let comment = String::from_utf8_lossy(comment.as_ref()).into_owned();
                        let (_, reason) = comment.split_once(" reason=").unwrap();
                        let (reason, _) = reason.split_once(" mode=").unwrap();
                        *reasons.entry(reason.to_owned()).or_default() += 1;
                    }
                }
            }
        }
    }

    /// The sum of the counters in the blocks' summaries.
    fn counted(&self) -> (u64, u64) {
        let select = Select {
            without_records: true,
            ..Select::default()
        };
        let mut sum = (0, 0);
        for block in self.log.blocks(&self.log.recordings()[0], &select) {
            let block = block.unwrap();
            for count in &block.summary.counts {
                sum.0 += count.packets;
                sum.1 += count.logged_bytes;
            }
        }
        sum
    }
}

/// Every packet of the capture once, in order, with its time and its length; the log has as many
/// bytes as the counters say.
fn assert_consistent(original: &[Packet], recorded: &Recorded) -> Vec<Packet> {
    let exported = recorded.exported();
    assert_eq!(exported.len(), original.len());
    for (n, (packet, before)) in exported.iter().zip(original).enumerate() {
        assert_eq!(
            (packet.ts_ns, packet.wire_len),
            (before.ts_ns, before.wire_len),
            "{n}"
        );
        assert!(before.data.starts_with(&packet.data), "packet {n}");
    }
    let bytes: u64 = exported.iter().map(|packet| packet.data.len() as u64).sum();
    let logged = recorded.ledger.logged;
    assert_eq!(
        (exported.len() as u64, bytes),
        (logged.packets, logged.bytes)
    );
    assert_eq!(recorded.counted(), (logged.packets, logged.bytes));
    exported
}

#[test]
fn with_look_back_a_flagged_flow_is_whole_from_its_first_packet() {
    let original = read(&trace());
    let plain = record("default", &TriggerOptions::default());
    let without = assert_consistent(&original, &plain);
    let enough = TriggerOptions {
        look_back_bytes: 256 << 20,
        ..TriggerOptions::default()
    };
    let with = record("default", &enough);
    let whole = assert_consistent(&original, &with);
    let full = kept_whole(&plain.log);
    // By flow, the last packet kept whole for its own sake.
    let mut flagged: HashMap<FlowKey, usize> = HashMap::new();
    for (n, before) in original.iter().enumerate() {
        if let Some(flow) = before.flow
            && full.contains(&(n as u64))
        {
            flagged.insert(flow, n);
        }
    }
    let mut promoted = (0, 0);
    for (n, before) in original.iter().enumerate() {
        let last = before.flow.and_then(|flow| flagged.get(&flow));
        let expected = match last {
            Some(&last) if n <= last => before.data.len(),
            _ => without[n].data.len(),
        };
        assert_eq!(whole[n].data.len(), expected, "packet {n}");
        promoted.0 += u64::from(expected > without[n].data.len());
        promoted.1 += (expected - without[n].data.len()) as u64;
    }
    assert!(promoted.0 > 100, "{} packets were promoted", promoted.0);
    assert_eq!(
        (with.ledger.promoted.packets, with.ledger.promoted.bytes),
        promoted
    );
    assert_eq!(plain.ledger.promoted.packets, 0);

    // Less memory: less is promoted, and what is there is just as right.
    let little = TriggerOptions {
        look_back_bytes: 200 << 10,
        ..TriggerOptions::default()
    };
    let some = record("default", &little);
    assert_consistent(&original, &some);
    let packets = some.ledger.promoted.packets;
    assert!(packets > 0 && packets < promoted.0, "{packets} packets");
}

/// The numbers of the packets kept whole by their granularity.
fn kept_whole(log: &Log) -> HashSet<u64> {
    let mut full = HashSet::new();
    for block in log.blocks(&log.recordings()[0], &Select::default()) {
        for record in block.unwrap().records() {
            if let Record::Packet(packet) = record.unwrap()
                && packet.keep == KeepKind::Full
            {
                full.insert(packet.seq);
            }
        }
    }
    full
}

/// A log with flipped bits: what is promoted is whole, what is not is a header, and nothing is
/// there twice.
#[test]
fn a_damaged_log_with_promotions_is_read_as_far_as_it_goes() {
    let enough = TriggerOptions {
        look_back_bytes: 64 << 20,
        ..TriggerOptions::default()
    };
    let recorded = record("default", &enough);
    let all = recorded.exported().len();
    let files: Vec<_> = recorded.log.recordings()[0].files.clone();
    for n in 0..20_u64 {
        let file = &files[usize::try_from(n).unwrap() % files.len()];
        let byte = usize::try_from(strata_wire::mix64(n) % file.bytes).unwrap();
        recorded.disk.flip_bit(&file.name, byte, 3);
        let log = Log::on(Arc::new(recorded.disk.clone())).unwrap();
        let mut seen = HashSet::new();
        for block in log.blocks(&log.recordings()[0], &Select::default()) {
            let Ok(block) = block else {
                continue;
            };
            for record in block.records() {
                if let Record::Packet(packet) = record.unwrap() {
                    assert!(seen.insert(packet.seq), "packet {} twice", packet.seq);
                    let whole = packet.data.len() == packet.captured_len as usize;
                    assert!(
                        whole || packet.keep != KeepKind::Full,
                        "packet {}",
                        packet.seq
                    );
                }
            }
        }
        assert!(seen.len() <= all && seen.len() > all / 2);
        recorded.disk.flip_bit(&file.name, byte, 3);
    }
}

#[test]
fn the_start_of_every_flow_is_whole() {
    let original = read(&trace());
    let without = assert_consistent(&original, &record("default", &TriggerOptions::default()));
    let starts = TriggerOptions {
        first_bytes: 4_096,
        ..TriggerOptions::default()
    };
    let with = assert_consistent(&original, &record("default", &starts));
    // The naive twin: a table of all flows. Times are those of the capture, so a flow that pauses
    // for minutes starts anew.
    let mut flows: HashMap<FlowKey, (u64, u64)> = HashMap::new();
    let mut more = 0;
    for (n, before) in original.iter().enumerate() {
        let Some(flow) = before.flow else {
            continue;
        };
        let second = before.ts_ns / 1_000_000_000;
        let (last, bytes) = flows.entry(flow).or_insert((second, 0));
        if second > *last + 120 {
            *bytes = 0;
        }
        *last = second;
        let is_start = *bytes < 4_096;
        *bytes += before.data.len() as u64;
        let expected = if is_start {
            before.data.len()
        } else {
            without[n].data.len()
        };
        assert_eq!(with[n].data.len(), expected, "packet {n}");
        more += usize::from(expected > without[n].data.len());
    }
    assert!(more > 1_000, "{more} packets");
}

/// An alert comes half-way through the capture: the flow is whole before and after.
#[test]
fn a_flow_that_is_alerted_is_whole_before_and_after() {
    let original = read(&trace());
    let plain = record("default", &TriggerOptions::default());
    let without = assert_consistent(&original, &plain);
    // A flow on both sides of the middle, of which nothing was kept whole.
    let half = original.len() / 2;
    let mut cut: HashMap<FlowKey, (usize, usize)> = HashMap::new();
    for (n, (packet, before)) in without.iter().zip(&original).enumerate() {
        let Some(flow) = before.flow else {
            continue;
        };
        let entry = cut.entry(flow).or_default();
        let shorter = usize::from(packet.data.len() < before.data.len());
        if n < half {
            entry.0 += shorter;
        } else {
            entry.1 += shorter;
        }
    }
    let (flow, _) = cut
        .iter()
        .filter(|(_, (early, late))| *early > 3 && *late > 3)
        .max_by_key(|(flow, (early, late))| (early + late, flow.low.port))
        .expect("a flow on both sides of the middle");
    let alerts = Arc::new(Alerts::default());
    let options = TriggerOptions {
        look_back_bytes: 256 << 20,
        alerts: Some(Arc::clone(&alerts)),
        ..TriggerOptions::default()
    };
    let mut told = false;
    let recorded = record_and("default", &options, |packets| {
        if packets >= half as u64 && !std::mem::replace(&mut told, true) {
            alerts.raise(Alert {
                flow: *flow,
                signature_id: std::num::NonZeroU64::new(7),
                signature: String::from("found it"),
            });
        }
    });
    let whole = assert_consistent(&original, &recorded);
    for (n, before) in original.iter().enumerate() {
        if before.flow == Some(*flow) {
            assert_eq!(whole[n].data, before.data, "packet {n}");
        }
    }
    // Who decided: before the alert, look-back where there was no other; then the alert.
    let reasons = recorded.reasons();
    assert_eq!(reasons.values().sum::<usize>(), original.len());
    let early = reasons["look-back:alert:7:\"found it\""];
    let late = reasons["alert:7:\"found it\""];
    // Its earlier packets, some of which a class may have kept whole already.
    let (cut_early, cut_late) = cut[flow];
    let by_class = reasons
        .iter()
        .filter(|(reason, _)| reason.starts_with("look-back:class:"))
        .map(|(_, packets)| packets)
        .sum::<usize>();
    let total = cut_early + cut_late;
    let packets = original.iter().filter(|p| p.flow == Some(*flow)).count();
    assert!(early > 3 && late > 3, "{early} and {late}");
    assert!(
        early <= total && early + late <= packets,
        "{early} and {late} of {packets}"
    );
    assert!(
        early + late + by_class >= total,
        "{early} and {late} of {total}"
    );
    // Sampling does not skip what is alerted of either; before the alert it did.
    let sampled = record("log-minimum", &options);
    let kept = sampled.exported();
    let of_flow = |packets: &[Packet]| packets.iter().filter(|p| p.flow == Some(*flow)).count();
    assert_eq!(of_flow(&kept), of_flow(&original));
}
