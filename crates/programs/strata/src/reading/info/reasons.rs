//! Why packets were kept as they were, in block files and compacted files.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use anyhow::Result;
use serde_json::json;
use strata_archive::ArchiveError;
use strata_blocks::{PacketRecord, Trees, VerdictRecord, reason};
use strata_classify::{Model, Sign, Signs, is_of_shadow, kind_of, leaves_of_reason};
use strata_query::reasons_of;
use strata_store::{Damage, FileKind, Log, Part, Recording};
use strata_terminal::text::{count_of, time};
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
    /// Compacted packets of files that are missing or damaged.
    lost: u64,
    /// Compacted packets that cannot be read for another reason, as in a store that does not respond.
    unread: u64,
    /// What cannot be read, and why.
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

    /// Adds compacted packets; `has_key` if the user named a key. Adds files that are missing or damaged to
    /// `damage`, unless they are there already.
    pub(super) fn compacted(
        &mut self,
        log: &Log,
        recording: &Recording,
        has_key: bool,
        damage: &mut Vec<Damage>,
    ) {
        let parts = log.archive().parts.iter();
        for part in parts.filter(|part| part.recording == recording.id && part.packets > 0) {
            let counts = match reasons_of(log.disk().as_ref(), part) {
                Ok(counts) => counts,
                Err(error) if error.lacks_key() && part.key.is_some() && !has_key => {
                    self.encrypted += part.packets;
                    continue;
                }
                Err(error) if error.is_missing() || error.is_damage() => {
                    self.lost += part.packets;
                    let found = damage_of(log, part, &error);
                    if !damage.iter().any(|known| known.file == found.file) {
                        damage.push(found);
                    }
                    continue;
                }
                Err(error) => {
                    self.unread += part.packets;
                    self.problems.push(error.to_string());
                    continue;
                }
            };
            for found in counts {
                let named = |keep: &KeepKind| keep.name() == found.granularity;
                let Some(keep) = KeepKind::ALL.into_iter().find(named) else {
                    let problem = format!("there is no granularity '{}'", found.granularity);
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
    }

    /// Compacted packets that could not be read, though neither a key nor a file is missing, and no file is damaged.
    pub(super) fn unread(&self) -> u64 {
        self.unread
    }

    /// What could not be read, and why.
    pub(super) fn problems(&self) -> &[String] {
        &self.problems
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

    /// The kinds of reasons of each granularity for which most was kept, in words of traffic; with
    /// `trees`, also the conditions of the trees.
    pub(super) fn text(
        &self,
        log: &Log,
        recording: &Recording,
        (most, trees): (usize, bool),
    ) -> Result<String> {
        let model = Model::from_json(&log.model_json(recording)?)?;
        let shadow = log.shadow_json(recording)?;
        let shadow = shadow.map(|json| Model::from_json(&json)).transpose()?;
        let mut text = String::new();
        for problem in &self.problems {
            let _ = writeln!(text, "not counted below: {problem}");
        }
        if self.lost > 0 {
            let packets = count_of(self.lost, "compacted packet");
            let _ = writeln!(
                text,
                "not counted below: {packets} of files that are missing or damaged"
            );
        }
        if self.encrypted > 0 {
            let _ = writeln!(
                text,
                "not counted below: {} compacted packets that are encrypted; --key FILE reads them",
                grouped(self.encrypted)
            );
        }
        let mut signs = ByModel {
            models: [Some(&model), shadow.as_ref()],
            known: Vec::new(),
        };
        for keep in KeepKind::ALL.into_iter().rev() {
            let all = self.counts.iter();
            let all = all.filter(|((of, ..), counted)| *of == keep && counted.packets > 0);
            let (kinds, reasons) = kinds(all, &mut signs);
            if kinds.is_empty() {
                continue;
            }
            let _ = writeln!(
                text,
                "kept as {}, for {} reasons of {} kinds, most bytes first:",
                keep.name(),
                grouped(reasons),
                grouped(kinds.len() as u64)
            );
            for kind in kinds.iter().take(most) {
                one(&mut text, kind, &mut signs, trees);
            }
            if kinds.len() > most {
                let others = &kinds[most..];
                let bytes = others.iter().map(|kind| kind.bytes).sum();
                let packets = others.iter().map(|kind| kind.packets).sum();
                let _ = writeln!(
                    text,
                    "  {} in {} packets: {} other kinds (--reasons={} shows all)",
                    human_bytes(bytes),
                    grouped(packets),
                    grouped(others.len() as u64),
                    kinds.len()
                );
            }
        }
        Ok(text)
    }
}

/// Why the packets of a part cannot be read.
fn damage_of(log: &Log, part: &Part, error: &ArchiveError) -> Damage {
    let name = part.file(FileKind::Packets).map_or("", |file| &file.name);
    let file = log.disk().display(name);
    if error.is_missing() {
        return Damage::missing(file, part.id, part.packets);
    }
    Damage {
        file,
        offset: error.damaged_at(),
        problem: error.to_string(),
        missing: None,
    }
}

/// What speaks for a class, in the models of a recording; computed once for each class.
struct ByModel<'a> {
    /// The recording's model, and its shadow model.
    models: [Option<&'a Model>; 2],
    /// With whether it is of the shadow model.
    known: Vec<(bool, Signs<'a>)>,
}

impl<'a> ByModel<'a> {
    fn model(&self, reason: &str) -> Option<&'a Model> {
        let [model, shadow] = self.models;
        match is_of_shadow(reason) {
            true => shadow.or(model),
            false => model,
        }
    }

    /// Of packets of a class, for a reason of the forest; nothing if the model does not know them.
    fn of(&mut self, class: &str, reason: &str) -> Vec<Sign> {
        let Some((level, leaves)) = leaves_of_reason(reason) else {
            return Vec::new();
        };
        let is_shadow = is_of_shadow(reason);
        let is_it =
            |(shadow, signs): &(bool, Signs<'_>)| *shadow == is_shadow && signs.is_of(level, class);
        if !self.known.iter().any(is_it) {
            let model = self.model(reason);
            let Some(signs) = model.and_then(|model| Signs::new(model, level, class)) else {
                return Vec::new();
            };
            self.known.push((is_shadow, signs));
        }
        let known = self.known.iter().find(|one| is_it(one));
        known.map_or_else(Vec::new, |(_, signs)| signs.of(&leaves))
    }
}

/// Packets of one granularity and class, for reasons that read the same.
struct Kind<'a> {
    class: &'a str,
    /// Who decided, or the strongest signs.
    words: String,
    /// If it was the forest: the reason with the most bytes.
    forest: Option<&'a str>,
    reasons: u64,
    packets: u64,
    bytes: u64,
    first_ns: u64,
    first_flow: &'a str,
}

/// Groups reasons by kind, those with the most bytes first; and says how many reasons there are.
fn kinds<'a>(
    all: impl Iterator<Item = &'a (Key, Counted)>,
    signs: &mut ByModel<'_>,
) -> (Vec<Kind<'a>>, u64) {
    let mut rows: Vec<&(Key, Counted)> = all.collect();
    rows.sort_by(|(a, x), (b, y)| y.bytes.cmp(&x.bytes).then_with(|| a.cmp(b)));
    let reasons = rows.len() as u64;
    let mut places: HashMap<(&str, String), usize> = HashMap::new();
    let mut kinds: Vec<Kind<'_>> = Vec::new();
    for ((_, class, reason, _), counted) in rows {
        let by_others = in_words(reason);
        let is_forest = by_others.is_none();
        let words = by_others.unwrap_or_else(|| {
            let signs = signs.of(class, reason);
            match is_of_shadow(reason) {
                true => format!("{} (by the promoted model)", kind_of(&signs)),
                false => kind_of(&signs).to_owned(),
            }
        });
        let place = *places.entry((class, words.clone())).or_insert_with(|| {
            kinds.push(Kind {
                class,
                words,
                forest: is_forest.then_some(reason.as_str()),
                reasons: 0,
                packets: 0,
                bytes: 0,
                first_ns: u64::MAX,
                first_flow: "",
            });
            kinds.len() - 1
        });
        let kind = &mut kinds[place];
        kind.reasons += 1;
        kind.packets = kind.packets.saturating_add(counted.packets);
        kind.bytes = kind.bytes.saturating_add(counted.bytes);
        if counted.first_ns < kind.first_ns {
            (kind.first_ns, kind.first_flow) = (counted.first_ns, &counted.first_flow);
        }
    }
    kinds.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.words.cmp(&b.words)));
    (kinds, reasons)
}

/// Writes one kind.
fn one(text: &mut String, kind: &Kind<'_>, signs: &mut ByModel<'_>, trees: bool) {
    let packets = grouped(kind.packets);
    let kept = human_bytes(kind.bytes);
    let (class, words) = (kind.class, &kind.words);
    let first = format!("{} {}", time(kind.first_ns), kind.first_flow);
    let Some(reason) = kind.forest else {
        let _ = writeln!(
            text,
            "  {kept} in {packets} packets: {words}; class {class}, first at {first}"
        );
        return;
    };
    let reasons = match kind.reasons {
        1 => String::new(),
        reasons => format!(" ({} reasons; the largest:)", grouped(reasons)),
    };
    let _ = writeln!(
        text,
        "  {kept} in {packets} packets: class {class}, {words}; first at {first}{reasons}"
    );
    for sign in signs.of(class, reason).iter().take(SIGNS_TOLD) {
        let ordinary = sign.ordinary.as_ref();
        let ordinary = ordinary.map_or_else(String::new, |middle| format!(" ({middle})"));
        let _ = writeln!(text, "    {}{ordinary}", sign.words);
    }
    let Some((model, (level, leaves))) = signs.model(reason).zip(leaves_of_reason(reason)) else {
        return;
    };
    if let Some((unmet, all)) = model.unmet(level, &leaves).filter(|(unmet, _)| *unmet > 0) {
        let _ = writeln!(
            text,
            "    in doubt: {unmet} of {all} pairs of its leaves never occurred together in training"
        );
    }
    if trees {
        let _ = writeln!(text, "    {reason}");
        for (tree, leaf, _) in model.clearest(level, class, &leaves) {
            let conditions = model.explain(level, tree, leaf);
            let _ = writeln!(text, "    tree {tree}: {conditions}");
        }
    }
}

/// How many signs are shown of a kind.
const SIGNS_TOLD: usize = 3;

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
