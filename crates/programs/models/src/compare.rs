//! `strata model compare`: where two models differ.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};
use strata_classify::{LANES, Model};
use strata_pipeline::Classifier;
use strata_sketch::PacketFacts;
use strata_terminal::listing::Reader;
use strata_terminal::output::{refuse, standard};
use strata_terminal::text::{count_of, percent};
use strata_terminal::{recording::RecordingArgs, shadow};
use strata_training::labelled::{self, LabelArgs, LabelledArgs, Seen};
use strata_wire::{Printable, grouped, human_bytes};

/// Names the built-in model.
const BUILT_IN: &str = "built-in";
/// The label of packets that are no attack.
const BENIGN: &str = "benign";
/// Anomaly scores that are told apart.
const SCORES: usize = 1 << 16;

/// Arguments of `strata model compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata model compare
  strata model compare model.json new.json -r trace.pcap
  strata model compare built-in model.json -r log/ --labels eve.json

Without models, shows the number of packets that the shadow model of a running recording would have
kept differently. With two models, runs both on captures or logs, and shows the number of packets
that each calls anomalous. With labels, it also shows the packets and flows of each source, and the
share of attack packets that each model would keep if it kept the tenth of the payload with the
highest scores. The models may have different features, and need not be in use.")]
pub(crate) struct Args {
    /// Compare MODEL with OTHER; 'built-in' is the model that ships with the program.
    #[arg(value_names = ["MODEL", "OTHER"], num_args = 0..=2)]
    models: Vec<PathBuf>,

    /// Compare the models on this capture file or log; may be given several times.
    #[arg(short = 'r', long = "read", value_name = "FILE", requires = "models")]
    read: Vec<PathBuf>,

    #[command(flatten)]
    labels: LabelArgs,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    recording: RecordingArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let [first, second] = match &args.models[..] {
        [] => return of_recording(args),
        [first, second] => [first, second],
        _ => return Err(refuse("only two models can be compared: name two")),
    };
    if args.read.is_empty() {
        return Err(refuse(
            "no packets to compare the models on: add -r FILE, a capture or a log",
        ));
    }
    let names = [first, second].map(|path| path.display().to_string());
    let labelled = LabelledArgs::of(&args.read, &args.labels);
    let mut both = Both::new([&load(first)?, &load(second)?]);
    let mut batch = Vec::with_capacity(LANES);
    labelled::read(&labelled, |seen| {
        batch.push(Pending::new(seen));
        if batch.len() == LANES {
            both.take(&mut batch);
        }
        Ok(())
    })?;
    both.take(&mut batch);
    let page = match args.json {
        true => format!("{:#}\n", both.json(&names)),
        false => both.text(&names),
    };
    write!(standard(), "{page}")?;
    Ok(())
}

/// What the shadow of a running recording would have kept differently.
fn of_recording(args: &Args) -> Result<()> {
    let status = args.recording.client()?.status()?;
    let Some(shadow) = &status.shadow else {
        return Err(refuse(
            "the recording has no shadow model: start it with --shadow FILE, or name two models and -r FILE",
        ));
    };
    let page = match args.json {
        true => format!("{:#}\n", serde_json::to_value(shadow)?),
        false => shadow::compared(shadow, Reader::of_stdout()),
    };
    write!(standard(), "{page}")?;
    Ok(())
}

fn load(path: &Path) -> Result<Model> {
    let path = (path != Path::new(BUILT_IN)).then_some(path);
    Ok(strata_terminal::model::load(path)?.model)
}

/// A packet that waits for its verdicts.
struct Pending {
    facts: PacketFacts,
    wire_len: u64,
    payload_len: u64,
    /// Class and source.
    label: Option<(String, String)>,
}

impl Pending {
    fn new(seen: &Seen<'_>) -> Self {
        Self {
            facts: seen.facts,
            wire_len: seen.wire_len,
            payload_len: seen
                .wire_len
                .saturating_sub(u64::from(seen.headers.header_len)),
            label: seen.label.map(|l| (l.class.clone(), l.source.clone())),
        }
    }
}

/// One model, and what it finds.
struct One {
    classifier: Classifier,
    anomalous: Vec<bool>,
    packets: u64,
    payload_bytes: u64,
    /// By anomaly score: payload of all packets, and attack packets that have payload.
    by_score: Vec<(u64, u64)>,
}

impl One {
    fn new(model: &Model) -> Self {
        Self {
            classifier: Classifier::new(model),
            anomalous: model.classes.iter().map(|class| class.anomalous).collect(),
            packets: 0,
            payload_bytes: 0,
            by_score: vec![(0, 0); SCORES],
        }
    }

    /// Whether it calls a packet of the batch anomalous.
    fn judge(&mut self, at: usize, packet: &Pending, is_attack: bool) -> bool {
        let id = self.classifier.classified()[at];
        let verdict = self.classifier.verdict(id);
        let is_anomalous = self.anomalous.get(usize::from(verdict.class));
        // What no model names is kept as anomalous.
        let is_anomalous = is_anomalous.copied().unwrap_or(true);
        let (payload, attacks) = &mut self.by_score[usize::from(verdict.anomaly)];
        *payload += packet.payload_len;
        *attacks += u64::from(is_attack && packet.payload_len > 0);
        if is_anomalous {
            self.packets += 1;
            self.payload_bytes += packet.payload_len;
        }
        is_anomalous
    }

    /// Attack packets with payload that are kept if a tenth of all payload goes to the highest scores;
    /// packets of one score are kept or not together.
    fn of_a_tenth(&self) -> u64 {
        let all: u64 = self.by_score.iter().map(|(payload, _)| payload).sum();
        let (mut left, mut kept) = (all / 10, 0);
        for (payload, attacks) in self.by_score.iter().rev() {
            let Some(rest) = left.checked_sub(*payload) else {
                break;
            };
            left = rest;
            kept += attacks;
        }
        kept
    }
}

/// Packets and flows of a source, and those that each model calls anomalous.
#[derive(Debug, Default)]
struct Source {
    packets: u64,
    found: [u64; 2],
    /// Which models found a packet of it.
    flows: HashMap<u64, [bool; 2]>,
}

impl Source {
    fn flows_found(&self, of: usize) -> u64 {
        self.flows.values().filter(|found| found[of]).count() as u64
    }
}

/// Two models on the same packets.
struct Both {
    models: [One; 2],
    packets: u64,
    bytes: u64,
    payload_bytes: u64,
    attacks_with_payload: u64,
    /// Packets that only one calls anomalous, and their payload.
    only: [(u64, u64); 2],
    /// By label and source.
    sources: BTreeMap<(String, String), Source>,
}

impl Both {
    fn new(models: [&Model; 2]) -> Self {
        Self {
            models: models.map(One::new),
            packets: 0,
            bytes: 0,
            payload_bytes: 0,
            attacks_with_payload: 0,
            only: [(0, 0); 2],
            sources: BTreeMap::new(),
        }
    }

    fn take(&mut self, batch: &mut Vec<Pending>) {
        let facts: Vec<PacketFacts> = batch.iter().map(|packet| packet.facts).collect();
        let all = match facts.len() {
            LANES => u64::MAX,
            fewer => (1 << fewer) - 1,
        };
        for model in &mut self.models {
            model.classifier.classify(&facts, all);
        }
        for (at, packet) in batch.drain(..).enumerate() {
            self.count(at, packet);
        }
    }

    fn count(&mut self, at: usize, packet: Pending) {
        let is_attack = packet
            .label
            .as_ref()
            .is_some_and(|(label, _)| label != BENIGN);
        let [first, second] = &mut self.models;
        let found = [first, second].map(|model| model.judge(at, &packet, is_attack));
        self.packets += 1;
        self.bytes += packet.wire_len;
        self.payload_bytes += packet.payload_len;
        self.attacks_with_payload += u64::from(is_attack && packet.payload_len > 0);
        if found[0] != found[1] {
            let only = &mut self.only[usize::from(found[1])];
            only.0 += 1;
            only.1 += packet.payload_len;
        }
        let Some(label) = packet.label else {
            return;
        };
        let source = self.sources.entry(label).or_default();
        source.packets += 1;
        let flow = source.flows.entry(packet.facts.fingerprint).or_default();
        for ((sum, flow), found) in source.found.iter_mut().zip(flow).zip(found) {
            *sum += u64::from(found);
            *flow |= found;
        }
    }

    fn json(&self, names: &[String; 2]) -> Value {
        let side = |of: usize| {
            let model = &self.models[of];
            json!({
                "model": names[of],
                "anomalous_packets": model.packets,
                "anomalous_payload_bytes": model.payload_bytes,
                "only_packets": self.only[of].0,
                "only_payload_bytes": self.only[of].1,
                "attack_packets_of_a_tenth": self.has_attacks().then(|| model.of_a_tenth()),
            })
        };
        let sources = self.sources.iter().map(|((label, source), of)| {
            json!({
                "label": label, "source": source, "packets": of.packets, "flows": of.flows.len(),
                "anomalous_packets": of.found,
                "flows_found": [of.flows_found(0), of.flows_found(1)],
            })
        });
        json!({
            "packets": self.packets, "bytes": self.bytes, "payload_bytes": self.payload_bytes,
            "attack_packets_with_payload": self.attacks_with_payload,
            "models": [side(0), side(1)],
            "sources": sources.collect::<Vec<_>>(),
        })
    }

    fn has_attacks(&self) -> bool {
        self.attacks_with_payload > 0
    }

    fn text(&self, names: &[String; 2]) -> String {
        let mut text = format!(
            "{} that have a flow, {} of payload\n",
            count_of(self.packets, "packet"),
            human_bytes(self.payload_bytes)
        );
        for (of, name) in names.iter().enumerate() {
            let (model, (packets, payload)) = (&self.models[of], self.only[of]);
            text += &format!(
                "{}: finds {} anomalous ({}), with {} of payload ({}); {} with {} by this model only\n",
                Printable(name),
                count_of(model.packets, "packet"),
                percent(model.packets, self.packets),
                human_bytes(model.payload_bytes),
                percent(model.payload_bytes, self.payload_bytes),
                grouped(packets),
                human_bytes(payload),
            );
        }
        for ((label, source), of) in &self.sources {
            let flows = of.flows.len() as u64;
            let each = [0, 1].map(|model| {
                let found = percent(of.found[model], of.packets);
                format!("{found} / {}", percent(of.flows_found(model), flows))
            });
            let named = format!("{label}, {source}");
            text += &format!(
                "  {}: {} of {}; anomalous (packets / flows): {}; {}\n",
                Printable(&named),
                count_of(of.packets, "packet"),
                count_of(flows, "flow"),
                each[0],
                each[1],
            );
        }
        if self.has_attacks() {
            let each = self
                .models
                .each_ref()
                .map(|model| percent(model.of_a_tenth(), self.attacks_with_payload));
            text += &format!(
                "attack packets with payload, kept if a tenth of the payload is kept, highest scores first: {}; {}\n",
                each[0], each[1]
            );
        }
        text
    }
}
