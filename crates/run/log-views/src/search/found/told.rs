//! What was found, as the API tells it.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;
use serde::Serialize;
use strata_networks::Names;
use strata_wire::{AddressFamily, FlowKey, Printable, count_of, in_words};
use utoipa::ToSchema;

use super::owner::{Owner, owner};
use super::row::Row;
use super::{FLOWS_MAX, Found, Label};
use crate::answers::parts::Covered;
use crate::answers::times;
use crate::logs::{ClassCount, is_class, no_class};
use crate::search::flow_id;
use crate::search::series::Series;
use crate::work::Stop;

/// Reasons and talkers that are shown.
const REASONS_TOLD: usize = 50;
const TOP_TOLD: usize = 20;
/// Words of reasons that are shown, all others as one.
const WORDS_TOLD: usize = 12;

/// Totals of all packets found.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[allow(
    missing_docs,
    reason = "the description of the API says only what a name does not"
)]
pub struct Totals {
    flows: usize,
    /// Of these, flows whose rows are kept: at most 500,000.
    listed: usize,
    pub packets: u64,
    wire_bytes: u64,
    kept_bytes: u64,
}

/// Packets kept for a reason.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReasonCount {
    reason: String,
    words: String,
    class: String,
    granularity: String,
    packets: u64,
    kept_bytes: u64,
}

/// Packets kept for reasons that read the same.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReasonWords {
    words: String,
    /// The number of these reasons.
    ways: usize,
    /// The only one.
    #[schema(required)]
    reason: Option<String>,
    packets: u64,
    kept_bytes: u64,
}

/// The addresses and ports with most bytes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tops {
    /// At most 20, most bytes first.
    addresses: Vec<TopCount>,
    /// At most 20, most bytes first.
    ports: Vec<TopCount>,
}

/// Counts of an address or port.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Top)]
pub(crate) struct TopCount {
    what: String,
    /// Of an address, if anything is known about it.
    #[schema(required)]
    owner: Option<Owner>,
    flows: u64,
    packets: u64,
    wire_bytes: u64,
    kept_bytes: u64,
}

/// A flow.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Flow, example = json!({
    "id": "6_10.0.0.1_51234_10.0.0.2_443", "src": "10.0.0.1", "dst": "10.0.0.2",
    "src_owner": null, "dst_owner": null, "src_port": 51234, "dst_port": 443,
    "protocol": "tcp", "first": "2026-01-31T13:00:00.123456789Z", "last": "2026-01-31T13:00:09.000000000Z",
    "packets": 20, "packets_back": 23, "wire_bytes": 30000, "kept_bytes": 28000, "class": "botnet",
    "classes": [{"class": "botnet", "packets": 43}], "score": 0.93, "name": "example.org",
    "community_id": "1:LQU9qZlK+B5F3KDmev6m5PMibrg=",
    "filter": "tcp and host 10.0.0.1 and host 10.0.0.2 and port 51234 and port 443",
}))]
pub(crate) struct FlowRow {
    /// Opaque, safe in a URL's path.
    id: String,
    /// The initiator's address: IP or MAC; empty where not dissected.
    src: String,
    dst: String,
    /// Null if unknown.
    #[schema(required)]
    src_owner: Option<Owner>,
    #[schema(required)]
    dst_owner: Option<Owner>,
    #[schema(required)]
    src_port: Option<u16>,
    #[schema(required)]
    dst_port: Option<u16>,
    /// `tcp`, `udp`, `icmp` ..., a number, or `ethernet`.
    protocol: String,
    first: String,
    last: String,
    /// From the initiator.
    packets: u64,
    /// To the initiator.
    packets_back: u64,
    /// Both directions.
    wire_bytes: u64,
    kept_bytes: u64,
    /// The class of most of its packets.
    class: String,
    classes: Vec<FlowClass>,
    /// Largest share of trees for the class of one of its packets, 0 to 1.
    #[schema(required)]
    score: Option<f64>,
    /// TLS server name, HTTP host, DNS name or name in a TLS certificate.
    #[schema(required)]
    name: Option<String>,
    #[schema(required)]
    community_id: Option<String>,
    /// A filter for this flow, for a policy, which goes by flow keys. In a command line, it does not match packets with
    /// tags, in tunnels, or later fragments, and it may match packets of other flows: `flow` of the search and of the
    /// export selects exactly this one's.
    filter: String,
}

/// Packets of a flow in a class.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FlowClass {
    class: String,
    packets: u64,
}

/// Totals of all reasons.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct ReasonsTotal {
    reasons: usize,
    packets: u64,
    kept_bytes: u64,
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

impl Found {
    /// What it was made from.
    pub fn covered(&self, stop: &Stop, since: std::time::Instant) -> Covered {
        let mut why: Vec<String> = stop.why().into_iter().collect();
        if self.unlisted_packets > 0 {
            why.push(format!(
                "more than {FLOWS_MAX} flows: {} packets of the others are counted but not \
                 listed; narrow the time or the filter",
                self.unlisted_packets
            ));
        }
        if self.encrypted > 0 {
            why.push(format!(
                "{} packets are encrypted: start strata serve with --key",
                self.encrypted
            ));
        }
        if self.untested > 0 {
            why.push(format!(
                "{} left out untested: the filter tests bytes that were not kept",
                count_of(self.untested, "packet")
            ));
        }
        if let Some(problem) = &self.first_damage {
            why.push(format!(
                "{} damaged places, the first: {problem}",
                self.damaged
            ));
        }
        why.extend(self.lost.clone());
        let why = (!why.is_empty()).then(|| why.join("; "));
        Covered {
            remark: self.remark(),
            ..self.covered_but(why, since)
        }
    }

    /// What was deleted, and why nothing was found, if that is likely a mistake.
    fn remark(&self) -> Option<String> {
        let remarks = self.mistake().into_iter().chain(self.deleted.clone());
        let remarks: Vec<String> = remarks.collect();
        (!remarks.is_empty()).then(|| remarks.join("; "))
    }

    /// Why nothing was found, if that is likely a mistake.
    fn mistake(&self) -> Option<String> {
        if self.packets > 0 {
            return None;
        }
        let class = self.kept.class.as_deref();
        let known = &self.classes_of_log;
        if let Some(class) = class.filter(|class| !is_class(known, class)) {
            return Some(no_class(known, class));
        }
        let reason = self.kept.reason.as_ref()?;
        Some(format!(
            "none of the packets found was kept for {}: write the reason as packets have it, whole or up to a colon",
            Printable(reason)
        ))
    }

    /// As [`Found::covered`], while the search is under way.
    pub(crate) fn covered_so_far(&self, share: f64, since: std::time::Instant) -> Covered {
        let why = format!("so far, {:.0} % of the log was searched", share * 100.0);
        self.covered_but(Some(why), since)
    }

    /// All, unless `why` says why not.
    fn covered_but(&self, why: Option<String>, since: std::time::Instant) -> Covered {
        Covered {
            complete: why.is_none(),
            why,
            remark: None,
            packets: self.packets,
            from: self.span.map(|(first, _)| times::text(first)),
            to: self.span.map(|(_, last)| times::text(last)),
            damaged: self.damaged,
            encrypted_packets: self.encrypted,
            seconds: since.elapsed().as_secs_f64(),
        }
    }

    pub(crate) fn histogram(&self, covered: &Covered) -> Series {
        self.histogram.told(covered)
    }

    /// Totals, flows and packets (parts of `SearchResult` and `PolicyCheck`).
    pub fn totals(&self) -> Totals {
        Totals {
            flows: self.rows.len(),
            listed: self.rows.len(),
            packets: self.packets,
            wire_bytes: self.wire_bytes,
            kept_bytes: self.kept_bytes,
        }
    }

    pub(crate) fn classes(&self) -> Vec<ClassCount> {
        let mut sums: HashMap<(&str, &str), [u64; 3]> = HashMap::new();
        for label in self.labels.iter().filter(|label| label.packets > 0) {
            let sum = sums.entry((&label.class, &label.granularity)).or_default();
            sum[0] = sum[0].saturating_add(label.packets);
            sum[1] = sum[1].saturating_add(label.wire_bytes);
            sum[2] = sum[2].saturating_add(label.kept_bytes);
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(name, sum)| (std::cmp::Reverse(sum[0]), *name));
        let each = sums.into_iter().map(
            |((class, granularity), [packets, wire_bytes, kept_bytes])| ClassCount {
                class: class.to_owned(),
                granularity: granularity.to_owned(),
                packets,
                wire_bytes,
                kept_bytes,
            },
        );
        each.collect()
    }

    pub(crate) fn reasons(&self) -> Vec<ReasonCount> {
        let mut labels: Vec<&Label> = self
            .labels
            .iter()
            .filter(|label| label.packets > 0)
            .collect();
        labels.sort_by_key(|label| (std::cmp::Reverse(label.packets), &label.reason));
        let labels = labels.into_iter().take(REASONS_TOLD);
        let each = labels.map(|label| ReasonCount {
            reason: label.reason.clone(),
            words: words(&label.reason, &label.class),
            class: label.class.clone(),
            granularity: label.granularity.clone(),
            packets: label.packets,
            kept_bytes: label.kept_bytes,
        });
        each.collect()
    }

    /// Reasons that read the same as one, most packets first: the forest has a way to its leaves for
    /// each. Those beyond the most that are shown are summed up, so that nothing is missing.
    pub(crate) fn reason_words(&self) -> Vec<ReasonWords> {
        #[derive(Default)]
        struct Sum<'a> {
            reasons: BTreeSet<&'a str>,
            packets: u64,
            kept_bytes: u64,
        }
        impl<'a> Sum<'a> {
            fn add(&mut self, reasons: impl IntoIterator<Item = &'a str>, more: [u64; 2]) {
                self.reasons.extend(reasons);
                self.packets = self.packets.saturating_add(more[0]);
                self.kept_bytes = self.kept_bytes.saturating_add(more[1]);
            }
        }
        let mut sums: HashMap<String, Sum<'_>> = HashMap::new();
        for label in self.labels.iter().filter(|label| label.packets > 0) {
            let sum = sums.entry(words(&label.reason, &label.class)).or_default();
            sum.add([label.reason.as_str()], [label.packets, label.kept_bytes]);
        }
        let mut sums: Vec<(String, Sum<'_>)> = sums.into_iter().collect();
        sums.sort_by(|(a, x), (b, y)| y.packets.cmp(&x.packets).then_with(|| a.cmp(b)));
        let beyond = sums.split_off(sums.len().min(WORDS_TOLD));
        if !beyond.is_empty() {
            let mut others = Sum::default();
            for (_, sum) in &beyond {
                others.add(sum.reasons.iter().copied(), [sum.packets, sum.kept_bytes]);
            }
            sums.push((String::from("other reasons"), others));
        }
        let each = sums.into_iter().map(|(words, sum)| {
            let only = sum.reasons.first().filter(|_| sum.reasons.len() == 1);
            ReasonWords {
                words,
                ways: sum.reasons.len(),
                reason: only.map(|&reason| reason.to_owned()),
                packets: sum.packets,
                kept_bytes: sum.kept_bytes,
            }
        });
        each.collect()
    }

    /// Why packets were kept, what costs most first; and totals.
    pub(crate) fn by_cost(&self) -> (Vec<Cost<'_>>, ReasonsTotal) {
        let mut labels: Vec<&Label> = self
            .labels
            .iter()
            .filter(|label| label.packets > 0)
            .collect();
        labels.sort_by_key(|label| (std::cmp::Reverse(label.kept_bytes), &label.reason));
        let total = ReasonsTotal {
            reasons: labels.len(),
            packets: self.packets,
            kept_bytes: self.kept_bytes,
        };
        let costs = labels.into_iter().filter_map(|label| {
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
    pub(crate) fn top(&self, names: &Names) -> Tops {
        let mut addresses: HashMap<_, Top, RandomState> = HashMap::default();
        let mut ports: HashMap<_, Top, RandomState> = HashMap::default();
        for row in &self.rows {
            let count = |top: &mut Top| {
                top.flows = top.flows.saturating_add(1);
                top.packets = top.packets.saturating_add(row.all_packets());
                top.wire_bytes = top.wire_bytes.saturating_add(row.wire_bytes);
                top.kept_bytes = top.kept_bytes.saturating_add(row.kept_bytes);
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
            addresses.map(|(key, top)| (flow_id::address(key.0, key.1), Some(key), top));
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
        Tops {
            addresses: told(addresses, names),
            ports: told(
                by_port.into_iter().map(|(port, top)| (port, None, top)),
                names,
            ),
        }
    }

    pub(crate) fn name(&self, row: &Row) -> Option<&str> {
        self.names.get(&row.key).map(AsRef::as_ref)
    }

    /// The class of most of a flow's packets.
    pub(crate) fn class(&self, row: &Row) -> &str {
        let named = row.classes();
        let named = named.map(|(class, packets)| (packets, &self.classes[usize::from(class)]));
        // Of equally many, the first by name, whatever came first.
        let most = named.max_by_key(|&(packets, class)| (packets, std::cmp::Reverse(class)));
        most.map_or("", |(_, class)| class)
    }

    /// A flow, as the API tells it.
    pub(crate) fn flow(&self, row: &Row, names: &Names) -> FlowRow {
        let key = &row.key;
        let ends = row.ends();
        let has_ports = key.family != AddressFamily::Mac && (key.low.port | key.high.port) != 0;
        let [src, dst] = ends.map(|end| match *key == FlowKey::NONE {
            true => String::new(),
            false => flow_id::address(key.family, end.address),
        });
        let [src_owner, dst_owner] = ends.map(|end| match *key == FlowKey::NONE {
            true => None,
            false => owner(names, key.family, end.address),
        });
        let [there, back] = match row.from_low {
            true => row.packets,
            false => [row.packets[1], row.packets[0]],
        };
        let classes = row.classes();
        let classes = classes.map(|(class, packets)| (packets, &self.classes[usize::from(class)]));
        let mut classes: Vec<(u64, &String)> = classes.collect();
        classes.sort_by_key(|&(packets, class)| (std::cmp::Reverse(packets), class));
        let classes = classes.into_iter();
        let classes = classes.map(|(packets, class)| FlowClass {
            class: class.clone(),
            packets,
        });
        let is_ip = key.family != AddressFamily::Mac && has_ports;
        FlowRow {
            id: flow_id::id(key),
            src,
            dst,
            src_owner,
            dst_owner,
            src_port: has_ports.then(|| ends[0].port),
            dst_port: has_ports.then(|| ends[1].port),
            protocol: flow_id::protocol(key),
            first: times::text(row.first_ns),
            last: times::text(row.last_ns),
            packets: there,
            packets_back: back,
            wire_bytes: row.wire_bytes,
            kept_bytes: row.kept_bytes,
            class: self.class(row).to_owned(),
            classes: classes.collect(),
            score: row.score.map(f64::from),
            name: self.name(row).map(str::to_owned),
            community_id: is_ip.then(|| strata_archive::parts::community_id_of(key)),
            filter: flow_id::filter_text(key),
        }
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
        self.flows = self.flows.saturating_add(more.flows);
        self.packets = self.packets.saturating_add(more.packets);
        self.wire_bytes = self.wire_bytes.saturating_add(more.wire_bytes);
        self.kept_bytes = self.kept_bytes.saturating_add(more.kept_bytes);
    }
}

/// An address of a flow, and its family.
type Address = (AddressFamily, u128);

fn told(all: impl Iterator<Item = (String, Option<Address>, Top)>, names: &Names) -> Vec<TopCount> {
    let mut all: Vec<(String, Option<Address>, Top)> = all.collect();
    all.sort_by(|(a, _, x), (b, _, y)| y.wire_bytes.cmp(&x.wire_bytes).then_with(|| a.cmp(b)));
    let each = all.into_iter().take(TOP_TOLD);
    let each = each.map(|(what, address, top)| TopCount {
        what,
        owner: address.and_then(|(family, address)| owner(names, family, address)),
        flows: top.flows,
        packets: top.packets,
        wire_bytes: top.wire_bytes,
        kept_bytes: top.kept_bytes,
    });
    each.collect()
}

/// A reason in a few words.
pub(crate) fn words(reason: &str, class: &str) -> String {
    in_words(reason).unwrap_or_else(|| match reason.split(':').next() {
        Some("flow-trees" | "shadow-flow-trees") => {
            format!("the forest classifies the flow as {class}")
        }
        Some("packet-trees" | "shadow-packet-trees") => {
            format!("the forest classifies the packet as {class}")
        }
        _ => reason.to_owned(),
    })
}
