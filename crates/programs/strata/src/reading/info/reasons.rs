//! Why packets were kept as they were, in block files and compacted files.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use anyhow::Result;
use serde_json::json;
use strata_blocks::{PacketRecord, Trees, VerdictRecord, reason};
use strata_classify::{Model, is_of_shadow, leaves_of_reason};
use strata_query::reasons_of;
use strata_sketch::Level;
use strata_store::{Log, Recording};
use strata_terminal::text::time;
use strata_wire::dissect::dissect;
use strata_wire::{
    AddressFamily, Context, FlowHasher, FlowKey, FragmentTable, KeepKind, LinkType, TunnelKey,
    grouped, human_bytes, in_words,
};

/// Fragments that replace each other in the table, which this key allows, cost no more than a name here.
const FRAGMENTS_SEED: [u64; 2] = [0; 2];

/// Packets of the same granularity, class and reason.
#[derive(Debug)]
struct Counted {
    packets: u64,
    /// Bytes kept of them.
    bytes: u64,
    first_ns: u64,
    /// The flow of the first packet.
    first_flow: String,
    /// Share of the trees that voted for the class, if the forest decided.
    score: Option<f32>,
}

/// Granularity, class, reason, and the bits of the score if the forest decided.
type Key = (KeepKind, String, String, u32);

/// Counts of reasons.
#[derive(Debug, Default)]
pub(super) struct Reasons {
    worker: u16,
    context: Context,
    links: BTreeMap<u16, LinkType>,
    /// Later fragments belong to the flow of their first one.
    fragments: FragmentTable,
    /// Verdicts of all workers; each worker numbers its own.
    defined: HashMap<(u16, u16), VerdictRecord>,
    /// By worker, verdict and granularity, in the current context: index into `counts`.
    places: HashMap<(u16, u16, KeepKind), usize>,
    known: HashMap<Key, usize>,
    counts: Vec<(Key, Counted)>,
    /// Compacted packets that cannot be read without a key.
    encrypted: u64,
    /// Parts that cannot be read, and why.
    problems: Vec<String>,
}

impl Reasons {
    pub(super) fn begin_block(&mut self, worker: u16) {
        self.worker = worker;
    }

    pub(super) fn define(&mut self, id: u16, verdict: VerdictRecord) {
        let before = self.defined.insert((self.worker, id), verdict);
        if before.as_ref() != self.defined.get(&(self.worker, id)) {
            let worker = self.worker;
            self.places
                .retain(|(of, known, _), _| (*of, *known) != (worker, id));
        }
    }

    pub(super) fn interface(&mut self, id: u16, link: LinkType) {
        self.links.insert(id, link);
    }

    /// Whether an interface is defined.
    pub(super) fn knows(&self, interface: u16) -> bool {
        self.links.contains_key(&interface)
    }

    pub(super) fn context(&mut self, json: &[u8]) {
        let context = match Context::from_json(json) {
            Ok(context) => context,
            Err(problem) => {
                self.problems.push(problem);
                return;
            }
        };
        if context != self.context {
            self.context = context;
            self.places.clear();
        }
    }

    pub(super) fn count(&mut self, packet: &PacketRecord<'_>) {
        let key = self.flow_key(packet);
        let number = (self.worker, packet.verdict, packet.keep);
        let place = match self.places.get(&number) {
            Some(&place) => place,
            None => {
                let verdict = self.defined.get(&(self.worker, packet.verdict));
                let class = verdict.and_then(|v| self.context.classes.get(usize::from(v.class)));
                let class = class.map_or("unknown", String::as_str).to_owned();
                let score = verdict.filter(|v| v.trees != Trees::None);
                let score = score.map(|v| f32::from(v.score) / 65_535.0);
                let counted = Counted {
                    packets: 0,
                    bytes: 0,
                    first_ns: packet.ts_ns,
                    first_flow: flow(key),
                    score,
                };
                let text = reason(verdict, &self.context);
                let place = self.add((packet.keep, class, text), counted);
                self.places.insert(number, place);
                place
            }
        };
        let counted = &mut self.counts[place].1;
        counted.packets += 1;
        counted.bytes += packet.data.len() as u64;
    }

    fn flow_key(&mut self, packet: &PacketRecord<'_>) -> Option<FlowKey> {
        let link = self.links.get(&packet.interface).copied()?;
        let mut headers = dissect(link, packet.data, TunnelKey::Inner);
        if let Some(fragment) = headers.fragment {
            let hasher = FlowHasher::new(FRAGMENTS_SEED);
            self.fragments
                .resolve(&mut headers, fragment, &hasher, packet.ts_ns);
        }
        headers.key
    }

    /// Adds packets; returns the index of their count.
    fn add(
        &mut self,
        (keep, class, reason): (KeepKind, String, String),
        mut more: Counted,
    ) -> usize {
        if in_words(&reason).is_some() {
            more.score = None;
        }
        let bits = more.score.map_or(0, f32::to_bits);
        let key = (keep, class, reason, bits);
        let place = self.counts.len();
        match self.known.get(&key) {
            Some(&place) => {
                let known = &mut self.counts[place].1;
                known.packets += more.packets;
                known.bytes += more.bytes;
                if more.first_ns < known.first_ns {
                    (known.first_ns, known.first_flow) = (more.first_ns, more.first_flow);
                }
                place
            }
            None => {
                self.known.insert(key.clone(), place);
                self.counts.push((key, more));
                place
            }
        }
    }

    /// Adds compacted packets.
    pub(super) fn compacted(&mut self, log: &Log, recording: &Recording) -> Result<()> {
        let parts = log.archive().parts.iter();
        for part in parts.filter(|part| part.recording == recording.id && part.packets > 0) {
            let counts = match reasons_of(log.disk().as_ref(), part) {
                Ok(counts) => counts,
                Err(_) if part.key.is_some() => {
                    self.encrypted += part.packets;
                    continue;
                }
                Err(error) => {
                    self.problems.push(error.to_string());
                    continue;
                }
            };
            for found in counts {
                let named = |keep: &KeepKind| keep.name() == found.granularity;
                let Some(keep) = KeepKind::ALL.into_iter().find(named) else {
                    let problem = format!("no granularity is called {}", found.granularity);
                    self.problems.push(problem);
                    continue;
                };
                let counted = Counted {
                    packets: found.packets,
                    bytes: found.bytes,
                    first_ns: found.first_ns,
                    first_flow: found.first_flow,
                    score: found.score,
                };
                self.add((keep, found.class, found.reason), counted);
            }
        }
        Ok(())
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let mut sorted: Vec<_> = self.counts.iter().collect();
        sorted.sort_by(|(a, _), (b, _)| a.cmp(b));
        let each = sorted
            .into_iter()
            .map(|((keep, class, reason, _), counted)| {
                json!({
                    "granularity": keep.name(),
                    "class": class,
                    "reason": reason,
                    "score": counted.score,
                    "packets": counted.packets,
                    "bytes": counted.bytes,
                    "first_ns": counted.first_ns,
                    "first_flow": counted.first_flow,
                })
            });
        each.collect()
    }

    /// The reasons of each granularity for which most was kept, in plain English.
    pub(super) fn text(&self, log: &Log, recording: &Recording, most: usize) -> Result<String> {
        let model = Model::from_json(&log.model_json(recording)?)?;
        let shadow = log.shadow_json(recording)?;
        let shadow = shadow.map(|json| Model::from_json(&json)).transpose()?;
        let mut text = String::new();
        for problem in &self.problems {
            let _ = writeln!(text, "not counted below: {problem}");
        }
        if self.encrypted > 0 {
            let _ = writeln!(
                text,
                "not counted below: {} compacted packets that are encrypted; --key FILE reads them",
                grouped(self.encrypted)
            );
        }
        for keep in KeepKind::ALL.into_iter().rev() {
            let mut rows: Vec<&(Key, Counted)> = self
                .counts
                .iter()
                .filter(|((of, ..), counted)| *of == keep && counted.packets > 0)
                .collect();
            if rows.is_empty() {
                continue;
            }
            rows.sort_by(|(a, x), (b, y)| y.bytes.cmp(&x.bytes).then_with(|| a.cmp(b)));
            let _ = writeln!(
                text,
                "kept as {}, for {} reasons, most bytes first:",
                keep.name(),
                rows.len()
            );
            for (key, counted) in rows.into_iter().take(most) {
                let promoted = shadow.as_ref().filter(|_| is_of_shadow(&key.2));
                one(&mut text, promoted.unwrap_or(&model), key, counted);
            }
        }
        Ok(text)
    }
}

/// Writes one reason.
fn one(text: &mut String, model: &Model, (_, class, reason, _): &Key, counted: &Counted) {
    let packets = grouped(counted.packets);
    let kept = human_bytes(counted.bytes);
    let first = format!("{} {}", time(counted.first_ns), counted.first_flow);
    if let Some(words) = in_words(reason) {
        let _ = writeln!(
            text,
            "  {kept} in {packets} packets: {words}; class {class}, first at {first}"
        );
        return;
    }
    let _ = writeln!(
        text,
        "  {kept} in {packets} packets: class {class}, score {:.3}, {reason}, first at {first}",
        counted.score.unwrap_or(0.0),
    );
    let (level, leaves) = leaves_of_reason(reason).unwrap_or((Level::Flow, Vec::new()));
    if let Some((unmet, all)) = model.unmet(level, &leaves).filter(|(unmet, _)| *unmet > 0) {
        let _ = writeln!(
            text,
            "    in doubt: {unmet} of {all} pairs of these leaves never occurred together in \
             training"
        );
    }
    let trees = model.clearest(level, class, &leaves);
    for &(tree, leaf, _) in trees.iter().take(TREES_TOLD) {
        let _ = writeln!(
            text,
            "    tree {tree}: {}",
            model.explain(level, tree, leaf)
        );
    }
    if trees.len() > TREES_TOLD {
        let others = trees.len() - TREES_TOLD;
        let _ = writeln!(text, "    and {others} less certain trees");
    }
}

/// How many trees are shown for a reason.
const TREES_TOLD: usize = 3;

/// The flow of a packet.
fn flow(key: Option<FlowKey>) -> String {
    match key {
        None => String::from("not dissected"),
        // As in the tables, which do not hold the EtherType.
        Some(key) if key.family == AddressFamily::Mac => {
            let [low, high] = [key.low, key.high].map(|end| {
                let bytes = end.address.to_be_bytes();
                let bytes = bytes[10..].iter().map(|byte| format!("{byte:02x}"));
                bytes.collect::<Vec<_>>().join(":")
            });
            format!("{low} - {high}")
        }
        Some(key) => key.to_string(),
    }
}
