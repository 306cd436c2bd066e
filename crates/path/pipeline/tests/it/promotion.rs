//! A shadow model that is promoted while packets come, and its demotion.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use strata_blocks::{Record, reason};
use strata_capture::PacketRef;
use strata_classify::Model;
use strata_pipeline::{
    Alert, Alerts, DataPath, Parts, TriggerOptions, Triggers, Worker, WorkerOptions,
};
use strata_policy::{Mode, Plan, Steering};
use strata_store::{About, Disk, Log, Recorder, RecorderOptions, Select};
use strata_testkit::workspace_root;
use strata_testkit_disk::SimDisk;
use strata_wire::dissect::dissect;
use strata_wire::{Context, Interface, Ledger, LinkType, Meta, TunnelKey};

use crate::common::{Packet, another, packets};

const BATCH: usize = 200;
/// The name of the other model.
const OTHER: &str = "other";

fn model() -> Model {
    let path = workspace_root().join("models/default.json");
    Model::from_json(&std::fs::read(path).unwrap()).unwrap()
}

/// A model of another name and other decisions.
fn other(model: &Model) -> Model {
    let mut other = another(model);
    OTHER.clone_into(&mut other.name);
    other
}

fn plan(model: &Model) -> Plan {
    let mode = Mode::by_name("default", &BTreeMap::new()).unwrap();
    Plan::new(model, &[mode]).unwrap()
}

/// What became of a packet: its number, class, granularity, kept bytes, reason, and the model that the
/// log names.
type Decided = (u64, String, &'static str, usize, String, String);

/// How packets are recorded.
struct Setup<'a> {
    model: &'a Model,
    shadow: Option<&'a Model>,
    path: DataPath,
    look_back_bytes: usize,
}

struct Recording {
    disk: Arc<dyn Disk>,
    recorder: Recorder,
    worker: Worker,
    steering: Arc<Steering>,
    alerts: Arc<Alerts>,
}

impl Setup<'_> {
    fn start(&self) -> Recording {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let about = About {
            model_json: self.model.to_json().into_bytes(),
            shadow: self
                .shadow
                .map(|s| (s.name.clone(), s.to_json().into_bytes())),
            ..About::default()
        };
        let options = RecorderOptions {
            block_bytes: 64 << 10,
            ..RecorderOptions::default()
        };
        let (recorder, sink) = Recorder::start(Arc::clone(&disk), options, &about).unwrap();
        let options = WorkerOptions {
            modes: vec![Mode::by_name("default", &BTreeMap::new()).unwrap()],
            filter: None,
            dedup: None,
            tunnel_key: TunnelKey::Inner,
            hash_seed: [1, 2],
            sampling_seed: 0,
        };
        let (steering, alerts) = (Steering::new(plan(self.model)), Arc::<Alerts>::default());
        let triggers = TriggerOptions {
            look_back_bytes: self.look_back_bytes,
            first_bytes: 0,
            alerts: (self.look_back_bytes > 0).then(|| Arc::clone(&alerts)),
        };
        let parts = Parts {
            path: self.path,
            steering: Some(Arc::clone(&steering)),
            triggers: Some(Triggers::new(&triggers)),
            shadow: self.shadow.cloned().map(Arc::new),
            ..Parts::new(options, sink)
        };
        let mut worker = Worker::new(self.model, parts).unwrap();
        for id in 0..2 {
            let interface = Interface::new(LinkType::ETHERNET, 1_400);
            worker.meta(Meta::Interface { id, interface }).unwrap();
        }
        Recording {
            disk,
            recorder,
            worker,
            steering,
            alerts,
        }
    }
}

impl Recording {
    fn take(&mut self, packets: &[PacketRef<'_>]) {
        for batch in packets.chunks(BATCH) {
            self.worker.batch(batch).unwrap();
        }
    }

    fn finish(mut self) -> (Vec<Decided>, Ledger) {
        self.worker.finish().unwrap();
        let ledger = self.worker.ledger();
        ledger.check().unwrap();
        drop(self.worker);
        self.recorder.finish(&ledger, Vec::new()).unwrap();
        let log = Log::on(self.disk).unwrap();
        let recording = &log.recordings()[0];
        let (mut all, select) = (Vec::new(), Select::default());
        for file in &recording.files {
            for block in log.blocks_in(recording, file, &select) {
                // A block is read by itself, as by those who begin in the middle.
                let (mut context, mut defined) = (Context::default(), HashMap::new());
                for record in block.unwrap().records() {
                    match record.unwrap() {
                        Record::Context(json) => context = Context::from_json(json).unwrap(),
                        Record::Verdict(id, verdict) => {
                            defined.insert(id, verdict);
                        }
                        Record::Packet(packet) => {
                            let verdict = &defined[&packet.verdict];
                            let class = context.classes.get(usize::from(verdict.class));
                            all.push((
                                packet.seq,
                                class.map_or_else(|| String::from("none"), String::clone),
                                packet.keep.name(),
                                packet.data.len(),
                                reason(Some(verdict), &context),
                                context.model.clone(),
                            ));
                        }
                        _ => {}
                    }
                }
            }
        }
        (all, ledger)
    }
}

fn refs(packets: &[Packet]) -> Vec<PacketRef<'_>> {
    let refs = packets.iter().map(Packet::as_ref);
    refs.filter(|packet| packet.interface < 2).collect()
}

/// Up to the change a recording decides as its own model would alone, from then on as the other would,
/// and then as the first again; no packet is lost, and the log says who has decided.
#[test]
fn a_promoted_shadow_decides_as_if_it_had_been_the_model_from_the_start() {
    let (model, packets) = (model(), packets(17, 30_000, 300, 100));
    let (other, packets) = (other(&model), refs(&packets));
    let cuts = [
        packets.len() / 3 / BATCH * BATCH,
        packets.len() / 2 / BATCH * BATCH,
    ];
    for path in DataPath::available() {
        let alone = |model| {
            let setup = Setup {
                model,
                shadow: None,
                path,
                look_back_bytes: 0,
            };
            let mut recording = setup.start();
            recording.take(&packets);
            recording.finish().0
        };
        let (own, by_other) = (alone(&model), alone(&other));
        let setup = Setup {
            model: &model,
            shadow: Some(&other),
            path,
            look_back_bytes: 0,
        };
        let mut recording = setup.start();
        recording.take(&packets[..cuts[0]]);
        let promoted = plan(&model).of_shadow(OTHER);
        recording.steering.publish(promoted, Instant::now());
        recording.take(&packets[cuts[0]..cuts[1]]);
        let compared = recording.worker.shadow().unwrap().all();
        recording.steering.publish(plan(&model), Instant::now());
        recording.take(&packets[cuts[1]..]);
        let (found, _) = recording.finish();
        assert_eq!(found.len(), packets.len());
        let expected = (0..packets.len()).map(|at| match (cuts[0]..cuts[1]).contains(&at) {
            false => own[at].clone(),
            true => {
                let mut decided = by_other[at].clone();
                if decided.4.contains("-trees") {
                    decided.4.insert_str(0, "shadow-");
                }
                decided
            }
        });
        let expected: Vec<Decided> = expected.collect();
        if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at]) {
            panic!(
                "{}, packet {at}: {:?}, expected {:?}",
                path.name(),
                found[at],
                expected[at]
            );
        }
        // The models differ, or this would prove nothing.
        let differ = (cuts[0]..cuts[1]).filter(|&at| own[at].3 != by_other[at].3);
        assert!(differ.count() > 10, "{}", path.name());
        // While the other decides, the recording's own model is compared, from the change on.
        let in_between = u64::try_from(cuts[1] - cuts[0]).unwrap();
        assert_eq!(compared.compared.packets, in_between);
        assert!(compared.more.packets + compared.less.packets > 0);
    }
}

/// What look-back remembers has verdicts of the model before, which another one does not know.
#[test]
fn look_back_begins_anew_with_another_model() {
    let (model, packets) = (model(), packets(5, 6_000, 40, u64::MAX));
    let (other, packets) = (other(&model), refs(&packets));
    let (before, after) = packets.split_at(packets.len() / 2);
    let promoted_from = |path, is_changed: bool| {
        let setup = Setup {
            model: &model,
            shadow: Some(&other),
            path,
            look_back_bytes: 16 << 20,
        };
        let mut recording = setup.start();
        recording.take(before);
        if is_changed {
            let promoted = plan(&model).of_shadow(OTHER);
            recording.steering.publish(promoted, Instant::now());
        }
        recording.take(after);
        // Now every flow is with an alert.
        for (packet, number) in packets.iter().zip(1..) {
            let headers = dissect(LinkType::ETHERNET, packet.data, TunnelKey::Inner);
            if let Some(flow) = headers.key {
                recording.alerts.raise(Alert {
                    flow,
                    signature_id: NonZeroU64::new(number),
                    signature: "of a test".into(),
                });
                recording.worker.idle().unwrap();
            }
        }
        let (found, ledger) = recording.finish();
        assert_eq!(found.len(), packets.len());
        ledger.promoted.packets
    };
    for path in DataPath::available() {
        let (all, later) = (promoted_from(path, false), promoted_from(path, true));
        assert!(
            0 < later && later < all,
            "{}: {later} of {all}",
            path.name()
        );
        assert!(later <= u64::try_from(after.len()).unwrap());
    }
}
