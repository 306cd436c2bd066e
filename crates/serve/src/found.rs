//! What a search found: flows, and counts by class, reason and time; bounded.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use serde_json::{Value, json};
use strata_query::{FoundPacket, Kept, Label as LabelOf, TakeFound};
use strata_wire::{AddressFamily, FlowKey, in_words};

use crate::flow_id;
use crate::series::Histogram;
use crate::times;
use crate::work::Stop;

/// Most flows that are listed: some 100 bytes each.
pub(crate) const FLOWS_MAX: usize = 500_000;
/// Most combinations of class, granularity and reason.
const LABELS_MAX: usize = 20_000;
/// Bytes of a name that are kept.
const NAME_BYTES_MAX: usize = 253;
/// Reasons and talkers that are told.
const REASONS_TOLD: usize = 50;
const TOP_TOLD: usize = 20;

/// A flow.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) key: FlowKey,
    /// Whether its first packet went from the low to the high endpoint.
    from_low: bool,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    /// From the low endpoint, and from the high one.
    packets: [u64; 2],
    pub(crate) wire_bytes: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) score: Option<f32>,
    /// By number of the class; nearly every flow has one.
    classes: Vec<(u16, u64)>,
}

/// Class, granularity and reason of packets.
#[derive(Debug)]
struct Label {
    recording: u32,
    class: String,
    granularity: String,
    reason: String,
    class_number: u16,
    /// Of the histogram, if it is wanted.
    series: usize,
    is_wanted: bool,
    packets: u64,
    wire_bytes: u64,
    kept_bytes: u64,
    /// Of the first packet.
    score: Option<f32>,
    /// When that arrived, and its flow.
    first: Option<(u64, FlowKey)>,
}

impl Label {
    fn add(&mut self, more: &Self) {
        self.packets += more.packets;
        self.wire_bytes += more.wire_bytes;
        self.kept_bytes += more.kept_bytes;
        if let Some(first) = more.first
            && self.first.is_none_or(|known| first.0 < known.0)
        {
            (self.first, self.score) = (Some(first), more.score);
        }
    }
}

/// Why packets were kept, and what that costs.
#[derive(Debug)]
pub(crate) struct Cost<'a> {
    /// The first recording with its model.
    pub(crate) recording: u32,
    pub(crate) class: &'a str,
    pub(crate) granularity: &'a str,
    pub(crate) reason: &'a str,
    pub(crate) score: Option<f32>,
    pub(crate) packets: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) first_ns: u64,
    pub(crate) first_flow: FlowKey,
}

/// What was found so far.
#[derive(Debug)]
pub(crate) struct Found {
    kept: Kept,
    pub(crate) rows: Vec<Row>,
    places: HashMap<FlowKey, usize, RandomState>,
    last_flow: Option<(FlowKey, usize)>,
    names: HashMap<FlowKey, Box<str>, RandomState>,
    labels: Vec<Label>,
    label_places: HashMap<(u32, [String; 3]), usize>,
    classes: Vec<String>,
    histogram: Histogram,
    lists_flows: bool,
    pub(crate) packets: u64,
    wire_bytes: u64,
    kept_bytes: u64,
    unlisted_packets: u64,
    span: Option<(u64, u64)>,
    damaged: u64,
    first_damage: Option<String>,
    encrypted: u64,
}

impl Found {
    pub(crate) fn new(kept: Kept, histogram: Histogram, lists_flows: bool) -> Self {
        Self {
            kept,
            rows: Vec::new(),
            places: HashMap::default(),
            last_flow: None,
            names: HashMap::default(),
            labels: Vec::new(),
            label_places: HashMap::new(),
            classes: Vec::new(),
            histogram,
            lists_flows,
            packets: 0,
            wire_bytes: 0,
            kept_bytes: 0,
            unlisted_packets: 0,
            span: None,
            damaged: 0,
            first_damage: None,
            encrypted: 0,
        }
    }

    /// The number of a label; the last one's if there are too many.
    fn label_number(&mut self, label: &LabelOf<'_>) -> usize {
        let LabelOf {
            recording,
            class,
            granularity,
            reason,
        } = *label;
        let key = (recording, [class, granularity, reason].map(str::to_owned));
        if let Some(&place) = self.label_places.get(&key) {
            return place;
        }
        if self.labels.len() >= LABELS_MAX {
            return LABELS_MAX - 1;
        }
        let class_number = self.class_number(class);
        let (_, [class, granularity, reason]) = key.clone();
        let is_wanted = self.kept.is(&class, &granularity, &reason);
        self.labels.push(Label {
            recording,
            class_number,
            series: match is_wanted {
                true => self.histogram.series(&class, &granularity),
                false => 0,
            },
            is_wanted,
            class,
            granularity,
            reason,
            packets: 0,
            wire_bytes: 0,
            kept_bytes: 0,
            score: None,
            first: None,
        });
        self.label_places.insert(key, self.labels.len() - 1);
        self.labels.len() - 1
    }

    fn class_number(&mut self, class: &str) -> u16 {
        let known = self.classes.iter().position(|known| known == class);
        let place = known.unwrap_or_else(|| {
            self.classes.push(class.to_owned());
            self.classes.len() - 1
        });
        u16::try_from(place).expect("there are fewer labels, and each has one class")
    }

    /// The place of a flow; `None` if there are too many.
    fn place(&mut self, key: FlowKey, new: impl FnOnce() -> Row) -> Option<usize> {
        if let Some((flow, place)) = &self.last_flow
            && *flow == key
        {
            return Some(*place);
        }
        let place = match self.places.get(&key) {
            Some(&place) => place,
            None if self.rows.len() >= FLOWS_MAX => return None,
            None => {
                self.rows.push(new());
                self.places.insert(key, self.rows.len() - 1);
                self.rows.len() - 1
            }
        };
        self.last_flow = Some((key, place));
        Some(place)
    }

    fn count_in_flow(&mut self, packet: &FoundPacket, class: u16) {
        let Some(place) = self.place(packet.flow, || Row::new(packet)) else {
            self.unlisted_packets += 1;
            return;
        };
        let row = &mut self.rows[place];
        if packet.ts_ns < row.first_ns {
            (row.first_ns, row.from_low) = (packet.ts_ns, packet.low_to_high);
        }
        row.last_ns = row.last_ns.max(packet.ts_ns);
        row.packets[usize::from(!packet.low_to_high)] += 1;
        row.wire_bytes += u64::from(packet.wire_bytes);
        row.kept_bytes += u64::from(packet.kept_bytes);
        row.scored(packet.score);
        row.count_class(class, 1);
    }

    /// Adds what was found in another piece of the log.
    pub(crate) fn add(&mut self, more: Self) {
        let numbers: Vec<u16> = more
            .classes
            .iter()
            .map(|class| self.class_number(class))
            .collect();
        for label in &more.labels {
            let number = self.label_number(&LabelOf {
                recording: label.recording,
                class: &label.class,
                granularity: &label.granularity,
                reason: &label.reason,
            });
            self.labels[number].add(label);
        }
        for row in more.rows {
            let mut fresh = Some(row);
            let key = fresh.as_ref().map_or(FlowKey::NONE, |row| row.key);
            let place = self.place(key, || {
                let mut row = fresh.take().expect("it was not used");
                row.renumber(&numbers);
                row
            });
            let Some(row) = fresh else {
                continue;
            };
            match place {
                Some(place) => self.rows[place].add(&row, &numbers),
                None => self.unlisted_packets += row.all_packets(),
            }
        }
        for (flow, name) in more.names {
            if self.names.len() < FLOWS_MAX {
                self.names.entry(flow).or_insert(name);
            }
        }
        self.histogram.add(&more.histogram);
        self.packets += more.packets;
        self.wire_bytes += more.wire_bytes;
        self.kept_bytes += more.kept_bytes;
        self.unlisted_packets += more.unlisted_packets;
        if let Some((first, last)) = more.span {
            self.reaches(first, last);
        }
        self.damaged += more.damaged;
        if self.first_damage.is_none() {
            self.first_damage = more.first_damage;
        }
        self.encrypted += more.encrypted;
    }

    fn reaches(&mut self, first: u64, last: u64) {
        let (known_first, known_last) = self.span.unwrap_or((first, last));
        self.span = Some((known_first.min(first), known_last.max(last)));
    }

    /// What it was made from (`Covered` in the API).
    pub(crate) fn covered(&self, stop: &Stop, since: std::time::Instant) -> Value {
        let mut why: Vec<String> = stop.why().into_iter().collect();
        if self.unlisted_packets > 0 {
            why.push(format!(
                "more than {FLOWS_MAX} flows: {} packets of others are counted, not listed; narrow \
                 the time or the filter",
                self.unlisted_packets
            ));
        }
        if self.encrypted > 0 {
            why.push(format!(
                "{} packets are encrypted: start strata serve with --key",
                self.encrypted
            ));
        }
        if let Some(problem) = &self.first_damage {
            why.push(format!(
                "{} damaged places, the first: {problem}",
                self.damaged
            ));
        }
        let is_whole = why.is_empty();
        json!({
            "complete": is_whole,
            "why": (!why.is_empty()).then(|| why.join("; ")),
            "packets": self.packets,
            "from": self.span.map(|(first, _)| times::text(first)),
            "to": self.span.map(|(_, last)| times::text(last)),
            "damaged": self.damaged,
            "encrypted_packets": self.encrypted,
            "seconds": since.elapsed().as_secs_f64(),
        })
    }

    /// As [`Found::covered`], while the search is under way.
    pub(crate) fn covered_so_far(&self, share: f64, since: std::time::Instant) -> Value {
        json!({
            "complete": false,
            "why": format!("so far: {:.0} % of the log was searched", share * 100.0),
            "packets": self.packets,
            "from": self.span.map(|(first, _)| times::text(first)),
            "to": self.span.map(|(_, last)| times::text(last)),
            "damaged": self.damaged,
            "encrypted_packets": self.encrypted,
            "seconds": since.elapsed().as_secs_f64(),
        })
    }

    pub(crate) fn histogram(&self, covered: &Value) -> Value {
        self.histogram.json(covered)
    }

    /// Totals, flows and packets (parts of `SearchResult` and `PolicyCheck`).
    pub(crate) fn totals(&self) -> Value {
        json!({
            "flows": self.rows.len(),
            "listed": self.rows.len(),
            "packets": self.packets,
            "wire_bytes": self.wire_bytes,
            "kept_bytes": self.kept_bytes,
        })
    }

    pub(crate) fn classes(&self) -> Vec<Value> {
        let mut sums: HashMap<(&str, &str), [u64; 3]> = HashMap::new();
        for label in self.labels.iter().filter(|label| label.packets > 0) {
            let sum = sums.entry((&label.class, &label.granularity)).or_default();
            sum[0] += label.packets;
            sum[1] += label.wire_bytes;
            sum[2] += label.kept_bytes;
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(name, sum)| (std::cmp::Reverse(sum[0]), *name));
        let each = sums
            .into_iter()
            .map(|((class, granularity), [packets, wire, kept])| {
                json!({
                    "class": class, "granularity": granularity, "packets": packets,
                    "wire_bytes": wire, "kept_bytes": kept,
                })
            });
        each.collect()
    }

    pub(crate) fn reasons(&self) -> Vec<Value> {
        let mut labels: Vec<&Label> = self
            .labels
            .iter()
            .filter(|label| label.packets > 0)
            .collect();
        labels.sort_by_key(|label| (std::cmp::Reverse(label.packets), &label.reason));
        let each = labels.into_iter().take(REASONS_TOLD).map(|label| {
            json!({
                "reason": label.reason,
                "words": words(&label.reason, &label.class),
                "class": label.class,
                "granularity": label.granularity,
                "packets": label.packets,
                "kept_bytes": label.kept_bytes,
            })
        });
        each.collect()
    }

    /// Why packets were kept, what costs most first; and totals.
    pub(crate) fn by_cost(&self, limit: usize) -> (Vec<Cost<'_>>, Value) {
        let mut labels: Vec<&Label> = self
            .labels
            .iter()
            .filter(|label| label.packets > 0)
            .collect();
        labels.sort_by_key(|label| (std::cmp::Reverse(label.kept_bytes), &label.reason));
        let total = json!({
            "reasons": labels.len(), "packets": self.packets, "kept_bytes": self.kept_bytes,
        });
        let costs = labels.into_iter().take(limit).filter_map(|label| {
            let (first_ns, first_flow) = label.first?;
            Some(Cost {
                recording: label.recording,
                class: &label.class,
                granularity: &label.granularity,
                reason: &label.reason,
                score: label.score,
                packets: label.packets,
                kept_bytes: label.kept_bytes,
                first_ns,
                first_flow,
            })
        });
        (costs.collect(), total)
    }

    /// The addresses and ports with most bytes.
    pub(crate) fn top(&self) -> Value {
        let (mut addresses, mut ports) = (HashMap::new(), HashMap::new());
        for row in &self.rows {
            let count = |top: &mut Top| {
                top.flows += 1;
                top.packets += row.packets.iter().sum::<u64>();
                top.wire_bytes += row.wire_bytes;
                top.kept_bytes += row.kept_bytes;
            };
            let key = &row.key;
            if *key == FlowKey::NONE {
                continue;
            }
            for end in [key.low, key.high] {
                count(addresses.entry((key.family, end.address)).or_default());
            }
            if key.family != AddressFamily::Mac && (key.low.port | key.high.port) != 0 {
                // The lower one is the service, usually.
                let port = key.low.port.min(key.high.port);
                count(ports.entry((key.protocol, key.family, port)).or_default());
            }
        }
        let addresses = addresses.into_iter();
        let addresses =
            addresses.map(|((family, address), top)| (flow_id::address(family, address), top));
        let mut by_port: HashMap<String, Top> = HashMap::new();
        for ((protocol, family, port), top) in ports {
            let key = FlowKey {
                protocol,
                family,
                ..FlowKey::NONE
            };
            let name = format!("{}/{port}", flow_id::protocol(&key));
            by_port.entry(name).or_default().add(&top);
        }
        json!({"addresses": told(addresses), "ports": told(by_port.into_iter())})
    }

    pub(crate) fn name(&self, row: &Row) -> Option<&str> {
        self.names.get(&row.key).map(AsRef::as_ref)
    }

    /// The class of most of a flow's packets.
    pub(crate) fn class(&self, row: &Row) -> &str {
        let named = row.classes.iter();
        let named = named.map(|(class, packets)| (packets, &self.classes[usize::from(*class)]));
        // Of equally many, the first by name, whatever came first.
        let most = named.max_by_key(|&(packets, class)| (packets, std::cmp::Reverse(class)));
        most.map_or("", |(_, class)| class)
    }

    /// A flow (`Flow` in the API).
    pub(crate) fn flow(&self, row: &Row) -> Value {
        let key = &row.key;
        let ends = row.ends();
        let has_ports = key.family != AddressFamily::Mac && (key.low.port | key.high.port) != 0;
        let [src, dst] = ends.map(|end| match *key == FlowKey::NONE {
            true => String::new(),
            false => flow_id::address(key.family, end.address),
        });
        let [there, back] = match row.from_low {
            true => row.packets,
            false => [row.packets[1], row.packets[0]],
        };
        let classes = row.classes.iter().map(|(class, packets)| {
            json!({"class": self.classes[usize::from(*class)], "packets": packets})
        });
        let is_ip = key.family != AddressFamily::Mac && has_ports;
        json!({
            "id": flow_id::id(key),
            "src": src,
            "dst": dst,
            "src_port": has_ports.then_some(ends[0].port),
            "dst_port": has_ports.then_some(ends[1].port),
            "protocol": flow_id::protocol(key),
            "first": times::text(row.first_ns),
            "last": times::text(row.last_ns),
            "packets": there,
            "packets_back": back,
            "wire_bytes": row.wire_bytes,
            "kept_bytes": row.kept_bytes,
            "class": self.class(row),
            "classes": classes.collect::<Vec<_>>(),
            "score": row.score,
            "name": self.name(row),
            "community_id": is_ip.then(|| strata_archive::parts::community_id_of(key)),
            "filter": flow_id::filter_text(key),
        })
    }
}

impl Row {
    fn new(packet: &FoundPacket) -> Self {
        Self {
            key: packet.flow,
            from_low: packet.low_to_high,
            first_ns: packet.ts_ns,
            last_ns: packet.ts_ns,
            packets: [0, 0],
            wire_bytes: 0,
            kept_bytes: 0,
            score: None,
            classes: Vec::new(),
        }
    }

    fn scored(&mut self, score: Option<f32>) {
        if let Some(score) = score {
            self.score = Some(self.score.map_or(score, |known| known.max(score)));
        }
    }

    fn count_class(&mut self, class: u16, packets: u64) {
        match self.classes.iter_mut().find(|(known, _)| *known == class) {
            Some((_, known)) => *known += packets,
            None => self.classes.push((class, packets)),
        }
    }

    /// Its classes have other numbers elsewhere.
    fn renumber(&mut self, numbers: &[u16]) {
        for (class, _) in &mut self.classes {
            *class = numbers[usize::from(*class)];
        }
    }

    /// Adds the same flow's packets from another piece.
    fn add(&mut self, more: &Self, numbers: &[u16]) {
        if more.first_ns < self.first_ns {
            (self.first_ns, self.from_low) = (more.first_ns, more.from_low);
        }
        self.last_ns = self.last_ns.max(more.last_ns);
        for (known, packets) in self.packets.iter_mut().zip(more.packets) {
            *known += packets;
        }
        self.wire_bytes += more.wire_bytes;
        self.kept_bytes += more.kept_bytes;
        self.scored(more.score);
        for (class, packets) in &more.classes {
            self.count_class(numbers[usize::from(*class)], *packets);
        }
    }

    /// The initiator's end, and the other.
    pub(crate) fn ends(&self) -> [strata_wire::Endpoint; 2] {
        match self.from_low {
            true => [self.key.low, self.key.high],
            false => [self.key.high, self.key.low],
        }
    }

    pub(crate) fn all_packets(&self) -> u64 {
        self.packets.iter().sum()
    }
}

/// Counts of an address or port.
#[derive(Debug, Default)]
struct Top {
    flows: u64,
    packets: u64,
    wire_bytes: u64,
    kept_bytes: u64,
}

impl Top {
    fn add(&mut self, more: &Self) {
        self.flows += more.flows;
        self.packets += more.packets;
        self.wire_bytes += more.wire_bytes;
        self.kept_bytes += more.kept_bytes;
    }
}

fn told(all: impl Iterator<Item = (String, Top)>) -> Vec<Value> {
    let mut all: Vec<(String, Top)> = all.collect();
    all.sort_by(|(a, x), (b, y)| y.wire_bytes.cmp(&x.wire_bytes).then_with(|| a.cmp(b)));
    let each = all.into_iter().take(TOP_TOLD).map(|(what, top)| {
        json!({
            "what": what, "flows": top.flows, "packets": top.packets,
            "wire_bytes": top.wire_bytes, "kept_bytes": top.kept_bytes,
        })
    });
    each.collect()
}

/// A reason in a few words.
pub(crate) fn words(reason: &str, class: &str) -> String {
    in_words(reason).unwrap_or_else(|| match reason.split(':').next() {
        Some("flow-trees" | "shadow-flow-trees") => {
            format!("the forest takes the flow for {class}")
        }
        Some("packet-trees" | "shadow-packet-trees") => {
            format!("the forest takes the packet for {class}")
        }
        _ => reason.to_owned(),
    })
}

impl TakeFound for Found {
    fn label(&mut self, label: &LabelOf<'_>) -> usize {
        self.label_number(label)
    }

    fn packet(&mut self, packet: &FoundPacket) {
        let label = &mut self.labels[packet.label];
        if !label.is_wanted {
            return;
        }
        let (wire, kept) = (packet.wire_bytes, packet.kept_bytes);
        label.packets += 1;
        label.wire_bytes += u64::from(wire);
        label.kept_bytes += u64::from(kept);
        if label.first.is_none_or(|(first, _)| packet.ts_ns < first) {
            (label.first, label.score) = (Some((packet.ts_ns, packet.flow)), packet.score);
        }
        let class = label.class_number;
        self.histogram.count(label.series, packet.ts_ns, wire, kept);
        self.packets += 1;
        self.wire_bytes += u64::from(wire);
        self.kept_bytes += u64::from(kept);
        self.reaches(packet.ts_ns, packet.ts_ns);
        if self.lists_flows {
            self.count_in_flow(packet, class);
        }
    }

    fn name(&mut self, flow: &FlowKey, name: &str) {
        if self.lists_flows && self.names.len() < FLOWS_MAX && !self.names.contains_key(flow) {
            let name = strata_wire::start_of(name, NAME_BYTES_MAX);
            self.names.insert(*flow, name.into());
        }
    }

    fn damage(&mut self, problem: String) {
        self.damaged += 1;
        self.first_damage.get_or_insert(problem);
    }

    fn encrypted(&mut self, packets: u64) {
        self.encrypted += packets;
    }
}
