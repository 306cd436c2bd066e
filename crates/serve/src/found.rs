//! What a search found: flows, and counts by class, reason and time; bounded.

use std::collections::HashMap;
use std::ops::ControlFlow;

use serde_json::{Value, json};
use strata_query::{FoundPacket, Kept, TakeFound};
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
    class: String,
    granularity: String,
    reason: String,
    class_number: u16,
    packets: u64,
    wire_bytes: u64,
    kept_bytes: u64,
    score: Option<f32>,
    first: (u64, FlowKey),
}

/// Why packets were kept, and what that costs.
#[derive(Debug)]
pub(crate) struct Cost<'a> {
    pub(crate) class: &'a str,
    pub(crate) granularity: &'a str,
    pub(crate) reason: &'a str,
    pub(crate) score: Option<f32>,
    pub(crate) packets: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) first_ns: u64,
    pub(crate) first_flow: FlowKey,
}

/// Told how far the search is; breaks to end it.
pub(crate) type Tell<'a> = dyn FnMut(&Found, f64) -> ControlFlow<()> + 'a;

/// What was found so far.
#[derive(Debug)]
pub(crate) struct Found {
    kept: Kept,
    pub(crate) rows: Vec<Row>,
    places: HashMap<FlowKey, usize>,
    last_flow: Option<(FlowKey, usize)>,
    names: HashMap<FlowKey, Box<str>>,
    labels: Vec<Label>,
    label_places: HashMap<(String, String, String), usize>,
    last_label: usize,
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
            places: HashMap::new(),
            last_flow: None,
            names: HashMap::new(),
            labels: Vec::new(),
            label_places: HashMap::new(),
            last_label: 0,
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

    /// The label of a packet; the last one if there are too many.
    fn label(&mut self, packet: &FoundPacket<'_>) -> usize {
        let is = |label: &Label| {
            label.reason == packet.reason
                && label.class == packet.class
                && label.granularity == packet.granularity
        };
        if self.labels.get(self.last_label).is_some_and(is) {
            return self.last_label;
        }
        let texts = [packet.class, packet.granularity, packet.reason].map(str::to_owned);
        let [class, granularity, reason] = texts;
        let key = (class, granularity, reason);
        let place = match self.label_places.get(&key) {
            Some(&place) => place,
            None if self.labels.len() >= LABELS_MAX => LABELS_MAX - 1,
            None => {
                let class_number = self.class_number(packet.class);
                let (class, granularity, reason) = key.clone();
                self.labels.push(Label {
                    class,
                    granularity,
                    reason,
                    class_number,
                    packets: 0,
                    wire_bytes: 0,
                    kept_bytes: 0,
                    score: packet.score,
                    first: (packet.ts_ns, packet.flow),
                });
                self.label_places.insert(key, self.labels.len() - 1);
                self.labels.len() - 1
            }
        };
        self.last_label = place;
        place
    }

    fn class_number(&mut self, class: &str) -> u16 {
        let known = self.classes.iter().position(|known| known == class);
        let place = known.unwrap_or_else(|| {
            self.classes.push(class.to_owned());
            self.classes.len() - 1
        });
        u16::try_from(place).expect("there are fewer labels, and each has one class")
    }

    /// The row of a flow; `None` if there are too many.
    fn row(&mut self, packet: &FoundPacket<'_>) -> Option<usize> {
        if let Some((flow, place)) = &self.last_flow
            && *flow == packet.flow
        {
            return Some(*place);
        }
        let place = match self.places.get(&packet.flow) {
            Some(&place) => place,
            None if self.rows.len() >= FLOWS_MAX => return None,
            None => {
                self.rows.push(Row {
                    key: packet.flow,
                    from_low: packet.low_to_high,
                    first_ns: packet.ts_ns,
                    last_ns: packet.ts_ns,
                    packets: [0, 0],
                    wire_bytes: 0,
                    kept_bytes: 0,
                    score: None,
                    classes: Vec::new(),
                });
                self.places.insert(packet.flow, self.rows.len() - 1);
                self.rows.len() - 1
            }
        };
        self.last_flow = Some((packet.flow, place));
        Some(place)
    }

    fn count_in_flow(&mut self, packet: &FoundPacket<'_>, class: u16) {
        let Some(place) = self.row(packet) else {
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
        if let Some(score) = packet.score {
            row.score = Some(row.score.map_or(score, |known| known.max(score)));
        }
        match row.classes.iter_mut().find(|(known, _)| *known == class) {
            Some((_, packets)) => *packets += 1,
            None => row.classes.push((class, 1)),
        }
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
        for label in &self.labels {
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
        let costs = labels.into_iter().take(limit).map(|label| Cost {
            class: &label.class,
            granularity: &label.granularity,
            reason: &label.reason,
            score: label.score,
            packets: label.packets,
            kept_bytes: label.kept_bytes,
            first_ns: label.first.0,
            first_flow: label.first.1,
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

/// [`Found`] while a search is under way.
pub(crate) struct Finding<'a, 't> {
    pub(crate) found: &'a mut Found,
    pub(crate) tell: &'a mut Tell<'t>,
}

impl TakeFound for Finding<'_, '_> {
    fn packet(&mut self, packet: &FoundPacket<'_>) {
        let found = &mut *self.found;
        if !found.kept.is_all()
            && !found
                .kept
                .is(packet.class, packet.granularity, packet.reason)
        {
            return;
        }
        let place = found.label(packet);
        let label = &mut found.labels[place];
        label.packets += 1;
        label.wire_bytes += u64::from(packet.wire_bytes);
        label.kept_bytes += u64::from(packet.kept_bytes);
        if packet.ts_ns < label.first.0 {
            label.first = (packet.ts_ns, packet.flow);
        }
        let class = label.class_number;
        found.packets += 1;
        found.wire_bytes += u64::from(packet.wire_bytes);
        found.kept_bytes += u64::from(packet.kept_bytes);
        let (first, last) = found.span.unwrap_or((packet.ts_ns, packet.ts_ns));
        found.span = Some((first.min(packet.ts_ns), last.max(packet.ts_ns)));
        let kind = (packet.class, packet.granularity);
        found
            .histogram
            .count(kind, packet.ts_ns, packet.wire_bytes, packet.kept_bytes);
        if found.lists_flows {
            found.count_in_flow(packet, class);
        }
    }

    fn name(&mut self, flow: &FlowKey, name: &str) {
        let found = &mut *self.found;
        if found.lists_flows && found.names.len() < FLOWS_MAX && !found.names.contains_key(flow) {
            let name = strata_wire::start_of(name, NAME_BYTES_MAX);
            found.names.insert(*flow, name.into());
        }
    }

    fn damage(&mut self, problem: String) {
        self.found.damaged += 1;
        self.found.first_damage.get_or_insert(problem);
    }

    fn encrypted(&mut self, packets: u64) {
        self.found.encrypted += packets;
    }

    fn searched(&mut self, share: f64) -> ControlFlow<()> {
        (self.tell)(self.found, share)
    }
}
