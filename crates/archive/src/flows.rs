//! The table `flows`: one row per flow and run, which also says where its packets are.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use parquet::data_type::ByteArray;
use sha1::{Digest, Sha1};
use strata_wire::dissect::protocol;
use strata_wire::{AddressFamily, Endpoint, FlowKey, FlowShare, ip_addr};

use crate::names::Names;
use crate::packets::Addresses;
use crate::predict::Direction;
use crate::run::Run;
use crate::table::{Coding, Column, Kind, Spec, Values};

/// The columns, in order; `docs/formats/archive.md` says what they mean.
pub const COLUMNS: &[Spec] = &[
    Spec::new("flow_id", Kind::Int64, Coding::Delta),
    Spec::new("first_time", Kind::Time, Coding::Delta),
    Spec::new("last_time", Kind::Time, Coding::Delta),
    Spec::new("recording", Kind::Int32, Coding::Dictionary),
    Spec::new("interface", Kind::Int32, Coding::Dictionary),
    Spec::new("src", Kind::Text, Coding::Dictionary).or_null(),
    Spec::new("dst", Kind::Text, Coding::Dictionary).or_null(),
    Spec::new("src_port", Kind::Int32, Coding::Dictionary).or_null(),
    Spec::new("dst_port", Kind::Int32, Coding::Dictionary).or_null(),
    Spec::new("protocol", Kind::Int32, Coding::Dictionary).or_null(),
    Spec::new("icmp_type", Kind::Int32, Coding::Dictionary).or_null(),
    Spec::new("icmp_code", Kind::Int32, Coding::Dictionary).or_null(),
    Spec::new("community_id", Kind::Text, Coding::Plain)
        .or_null()
        .filtered(),
    Spec::new("packets", Kind::Int64, Coding::Delta),
    Spec::new("reverse_packets", Kind::Int64, Coding::Delta),
    Spec::new("wire_bytes", Kind::Int64, Coding::Delta),
    Spec::new("reverse_wire_bytes", Kind::Int64, Coding::Delta),
    Spec::new("logged_bytes", Kind::Int64, Coding::Delta),
    Spec::new("tcp_flags", Kind::Int32, Coding::Dictionary).or_null(),
    Spec::new("reverse_tcp_flags", Kind::Int32, Coding::Dictionary).or_null(),
    Spec::new("class", Kind::Text, Coding::Dictionary),
    Spec::new("classes", Kind::Text, Coding::Dictionary),
    Spec::new("score_max", Kind::Float, Coding::Dictionary).or_null(),
    Spec::new("size_min", Kind::Int64, Coding::Dictionary),
    Spec::new("size_max", Kind::Int64, Coding::Dictionary),
    Spec::new("size_avg", Kind::Float, Coding::Plain),
    Spec::new("size_var", Kind::Float, Coding::Plain),
    Spec::new("ipd_min_ns", Kind::Int64, Coding::Delta).or_null(),
    Spec::new("ipd_max_ns", Kind::Int64, Coding::Delta).or_null(),
    Spec::new("ipd_avg_ns", Kind::Int64, Coding::Delta).or_null(),
    Spec::new("dns_name", Kind::Text, Coding::Dictionary).or_null(),
    Spec::new("tls_server_name", Kind::Text, Coding::Dictionary).or_null(),
    Spec::new("http_host", Kind::Text, Coding::Dictionary).or_null(),
    Spec::new("hides_addresses", Kind::Bool, Coding::Plain),
    Spec::new("flow_share", Kind::Float, Coding::Dictionary),
    Spec::new("row_group", Kind::Int32, Coding::Dictionary),
    Spec::new("first_row", Kind::Int32, Coding::Delta),
    Spec::new("rows", Kind::Int32, Coding::Delta),
];

/// Number of a column.
///
/// # Panics
///
/// If there is no such column: the names are ours.
#[must_use]
pub fn column(name: &str) -> usize {
    let found = COLUMNS.iter().position(|spec| spec.name == name);
    found.expect("the name of a column")
}

/// A flow while its run is collected.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) key: FlowKey,
    pub(crate) interface: u16,
    pub(crate) directions: [Direction; 2],
    /// The direction of its first packet: 0 from the low endpoint.
    pub(crate) initiator: usize,
    pub(crate) hides_addresses: bool,
    pub(crate) stats: Stats,
    pub(crate) names: Names,
    /// Code of the last link header and TCP options, by direction.
    pub(crate) last_codes: [[u32; 2]; 2],
    /// Type and code of the first packet, of ICMP.
    pub(crate) icmp: Option<[u8; 2]>,
}

/// What is counted of a flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) packets: [u64; 2],
    pub(crate) wire_bytes: [u64; 2],
    pub(crate) logged_bytes: u64,
    pub(crate) tcp_flags: [u16; 2],
    pub(crate) classes: Classes,
    pub(crate) score_max: Option<u16>,
    /// The largest share of flows that a packet of it was one of.
    pub(crate) share_max: FlowShare,
    size_min: u32,
    size_max: u32,
    size_squares: u128,
    ipd_min_ns: u64,
    ipd_max_ns: u64,
}

/// Packets by class. Nearly every flow has one class only, which takes no memory elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    first: Option<(u8, u32)>,
    others: Vec<(u8, u32)>,
}

impl Classes {
    fn count(&mut self, class: u8) {
        let first = self.first.get_or_insert((class, 0));
        if first.0 == class {
            first.1 += 1;
            return;
        }
        match self.others.iter_mut().find(|(known, _)| *known == class) {
            Some((_, packets)) => *packets += 1,
            None => self.others.push((class, 1)),
        }
    }

    /// Classes and their packets.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(u8, u32)> {
        self.first.iter().chain(&self.others)
    }
}

impl Flow {
    pub(crate) fn new(key: FlowKey, interface: u16, initiator: usize) -> Self {
        Self {
            key,
            interface,
            directions: [Direction::default(), Direction::default()],
            initiator,
            hides_addresses: false,
            stats: Stats {
                share_max: FlowShare(0),
                ..Stats::default()
            },
            names: Names::default(),
            last_codes: [[u32::MAX; 2]; 2],
            icmp: None,
        }
    }

    /// Source and destination of packets in a direction.
    pub(crate) fn ends(&self, direction: usize) -> (Endpoint, Endpoint) {
        if direction == 0 {
            (self.key.low, self.key.high)
        } else {
            (self.key.high, self.key.low)
        }
    }

    /// Whether its protocol has ports.
    pub(crate) fn has_ports(&self) -> bool {
        self.key.family != AddressFamily::Mac && (self.key.low.port | self.key.high.port) != 0
    }

    /// Whether there is anything to say about addresses.
    pub(crate) fn has_addresses(&self) -> bool {
        self.key != FlowKey::default()
    }

    pub(crate) fn is_tcp(&self) -> bool {
        self.key.family != AddressFamily::Mac && self.key.protocol == protocol::TCP
    }
}

impl Stats {
    /// Counts a packet.
    pub(crate) fn count(&mut self, direction: usize, ts_ns: u64, wire_len: u32, logged: u64) {
        if self.packets == [0, 0] {
            self.first_ns = ts_ns;
            (self.size_min, self.ipd_min_ns) = (u32::MAX, u64::MAX);
        } else {
            let delay = ts_ns.saturating_sub(self.last_ns);
            self.ipd_min_ns = self.ipd_min_ns.min(delay);
            self.ipd_max_ns = self.ipd_max_ns.max(delay);
        }
        self.first_ns = self.first_ns.min(ts_ns);
        self.last_ns = self.last_ns.max(ts_ns);
        self.packets[direction] += 1;
        self.wire_bytes[direction] += u64::from(wire_len);
        self.logged_bytes += logged;
        self.size_min = self.size_min.min(wire_len);
        self.size_max = self.size_max.max(wire_len);
        self.size_squares += u128::from(wire_len).pow(2);
    }

    pub(crate) fn class(&mut self, class: u8) {
        self.classes.count(class);
    }

    fn total(&self) -> u64 {
        self.packets[0] + self.packets[1]
    }

    #[allow(clippy::cast_precision_loss)]
    fn size_mean(&self) -> f64 {
        (self.wire_bytes[0] + self.wire_bytes[1]) as f64 / self.total() as f64
    }

    #[allow(clippy::cast_precision_loss)]
    fn size_variance(&self) -> f64 {
        (self.size_squares as f64 / self.total() as f64 - self.size_mean().powi(2)).max(0.0)
    }

    fn ipd(&self) -> Option<[u64; 3]> {
        let delays = self.total().checked_sub(1).filter(|delays| *delays > 0)?;
        let mean = (self.last_ns - self.first_ns) / delays;
        Some([self.ipd_min_ns, self.ipd_max_ns, mean])
    }
}

/// An address as text, as it stands in the tables.
pub(crate) fn address_text(family: AddressFamily, address: u128) -> String {
    match ip_addr(family, address) {
        Some(ip) => ip.to_string(),
        None => {
            let bytes = address.to_be_bytes();
            let parts: Vec<String> = bytes[10..].iter().map(|b| format!("{b:02x}")).collect();
            parts.join(":")
        }
    }
}

/// The Community ID, version 1 with seed 0, of the Corelight specification; `None`
/// for what is not IP.
pub(crate) fn community_id(flow: &Flow) -> Option<String> {
    if flow.key.family == AddressFamily::Mac {
        return None;
    }
    let (mut source, mut destination) = flow.ends(flow.initiator);
    let number = flow.key.protocol;
    let mut one_way = false;
    if let Some([kind, code]) = flow.icmp {
        let counterpart = icmp_counterpart(number, kind);
        source.port = kind.into();
        destination.port = counterpart.map_or_else(|| code.into(), u16::from);
        one_way = counterpart.is_none();
    }
    if !one_way && destination < source {
        std::mem::swap(&mut source, &mut destination);
    }
    let with_ports = flow.has_ports() || flow.icmp.is_some();
    let ends = [source, destination];
    Some(community_id_between(
        flow.key.family,
        number,
        ends,
        with_ports,
    ))
}

/// The Community ID of a flow that has ports.
#[must_use]
pub fn community_id_of(key: &FlowKey) -> String {
    community_id_between(key.family, key.protocol, [key.low, key.high], true)
}

fn community_id_between(
    family: AddressFamily,
    number: u8,
    [source, destination]: [Endpoint; 2],
    with_ports: bool,
) -> String {
    let skipped = if family == AddressFamily::Ipv4 { 12 } else { 0 };
    let mut digest = Sha1::new();
    digest.update([0, 0]);
    digest.update(&source.address.to_be_bytes()[skipped..]);
    digest.update(&destination.address.to_be_bytes()[skipped..]);
    digest.update([number, 0]);
    if with_ports {
        digest.update(source.port.to_be_bytes());
        digest.update(destination.port.to_be_bytes());
    }
    format!("1:{}", BASE64_STANDARD.encode(digest.finalize()))
}

/// The type that answers an ICMP message of this one.
#[must_use]
pub fn icmp_counterpart(number: u8, kind: u8) -> Option<u8> {
    let pairs: &[(u8, u8)] = if number == protocol::ICMP {
        &[(8, 0), (13, 14), (15, 16), (10, 9), (17, 18)]
    } else {
        &[
            (128, 129),
            (133, 134),
            (135, 136),
            (130, 131),
            (144, 145),
            (139, 140),
        ]
    };
    pairs.iter().find_map(|&(ask, answer)| match kind {
        _ if kind == ask => Some(answer),
        _ if kind == answer => Some(ask),
        _ => None,
    })
}

/// A flow of which the run has ended.
#[derive(Debug)]
pub(crate) struct FlowRow<'a> {
    pub(crate) flow_id: i64,
    pub(crate) flow: &'a Flow,
    /// Texts of its low and high address.
    pub(crate) addresses: Option<[&'a ByteArray; 2]>,
    pub(crate) recording: u32,
    /// Of most of its packets.
    pub(crate) class: ByteArray,
    pub(crate) classes: ByteArray,
    pub(crate) group: usize,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
}

/// What rows of flows say that the flows do not.
pub(crate) struct Place<'a> {
    pub(crate) recording: u32,
    /// By flow.
    pub(crate) flow_ids: &'a [i64],
    /// The row group of their packets.
    pub(crate) group: usize,
}

/// Rows of some flows of a run, whose packets stand one flow after the other.
pub(crate) fn flow_rows<'a>(
    run: &'a Run,
    flows: &[u32],
    addresses: &'a Addresses,
    class_names: &[String],
    place: &Place<'_>,
) -> Vec<FlowRow<'a>> {
    let mut rows = Vec::with_capacity(flows.len());
    let mut first_row = 0;
    let names = class_names.iter();
    let names: Vec<ByteArray> = names.map(|name| ByteArray::from(name.as_str())).collect();
    let unknown = ByteArray::from("unknown");
    for &number in flows {
        let flow = &run.flows[number as usize];
        let count = usize::try_from(flow.stats.packets[0] + flow.stats.packets[1]);
        let count = count.expect("a run has half a million packets");
        let most = flow.stats.classes.iter().max_by_key(|(_, n)| *n);
        let class = most.and_then(|(class, _)| names.get(usize::from(*class)));
        let mix = class_mix(&flow.stats.classes, class_names);
        rows.push(FlowRow {
            flow_id: place.flow_ids[number as usize],
            flow,
            addresses: addresses.of(number),
            recording: place.recording,
            class: class.unwrap_or(&unknown).clone(),
            classes: ByteArray::from(mix.as_str()),
            group: place.group,
            first_row,
            rows: count,
        });
        first_row += count;
    }
    rows
}

/// The class mix as a JSON object, by name.
fn class_mix(classes: &Classes, names: &[String]) -> String {
    let name = |class: u8| {
        names
            .get(usize::from(class))
            .map_or("unknown", String::as_str)
    };
    let mix = classes.iter().map(|&(class, n)| (name(class), n));
    if let (Some((class, n)), []) = (classes.first, classes.others.as_slice())
        && name(class).bytes().all(|b| b.is_ascii_alphanumeric())
    {
        return format!("{{\"{}\":{n}}}", name(class));
    }
    let mix: BTreeMap<&str, u32> = mix.collect();
    serde_json::to_string(&mix).expect("names and numbers can be written")
}

/// Fills one column of the table.
pub(crate) fn fill(index: usize, rows: &[FlowRow<'_>], column: &mut Column) {
    let Column { values, levels } = column;
    let name = COLUMNS[index].name;
    let mut put = Put {
        rows,
        levels,
        optional: COLUMNS[index].optional,
    };
    match values {
        Values::Int64(out) => put.all(out, integers(name)),
        Values::Int32(out) => {
            let get = integers(name);
            put.all(out, |row| {
                let value = get(row)?;
                Some(i32::try_from(value).expect("a column of 32 bits has numbers of 32 bits"))
            });
        }
        Values::Float(out) => put.all(out, floats(name)),
        Values::Bool(out) => out.extend(rows.iter().map(|row| row.flow.hides_addresses)),
        Values::Bytes(out) => put.all(out, texts(name)),
        Values::Coded(_) => {}
    }
}

/// Where the values of a column go.
struct Put<'a> {
    rows: &'a [FlowRow<'a>],
    levels: &'a mut Vec<i16>,
    optional: bool,
}

impl Put<'_> {
    fn all<T: Default>(&mut self, out: &mut Vec<T>, get: impl Fn(&FlowRow<'_>) -> Option<T>) {
        if self.optional {
            for row in self.rows {
                let value = get(row);
                self.levels.push(i16::from(value.is_some()));
                out.extend(value);
            }
        } else {
            out.extend(self.rows.iter().map(|row| get(row).unwrap_or_default()));
        }
    }
}

type Get<T> = fn(&FlowRow<'_>) -> Option<T>;

/// How a column of integers is filled; decided once for all rows.
#[allow(clippy::cast_possible_wrap)]
fn integers(column: &str) -> Get<i64> {
    fn there(row: &FlowRow<'_>) -> usize {
        row.flow.initiator
    }
    fn back(row: &FlowRow<'_>) -> usize {
        1 - row.flow.initiator
    }
    match column {
        "flow_id" => |row| Some(row.flow_id),
        "first_time" => |row| Some(row.flow.stats.first_ns as i64),
        "last_time" => |row| Some(row.flow.stats.last_ns as i64),
        "recording" => |row| Some(row.recording.into()),
        "interface" => |row| Some(row.flow.interface.into()),
        "src_port" => |row| {
            let port = row.flow.ends(there(row)).0.port;
            row.flow.has_ports().then_some(port.into())
        },
        "dst_port" => |row| {
            let port = row.flow.ends(there(row)).1.port;
            row.flow.has_ports().then_some(port.into())
        },
        "protocol" => |row| {
            let key = &row.flow.key;
            (key.family != AddressFamily::Mac).then_some(key.protocol.into())
        },
        "icmp_type" => |row| row.flow.icmp.map(|[kind, _]| kind.into()),
        "icmp_code" => |row| row.flow.icmp.map(|[_, code]| code.into()),
        "packets" => |row| Some(row.flow.stats.packets[there(row)] as i64),
        "reverse_packets" => |row| Some(row.flow.stats.packets[back(row)] as i64),
        "wire_bytes" => |row| Some(row.flow.stats.wire_bytes[there(row)] as i64),
        "reverse_wire_bytes" => |row| Some(row.flow.stats.wire_bytes[back(row)] as i64),
        "logged_bytes" => |row| Some(row.flow.stats.logged_bytes as i64),
        "tcp_flags" => |row| {
            let flags = row.flow.stats.tcp_flags[there(row)];
            row.flow.is_tcp().then_some(flags.into())
        },
        "reverse_tcp_flags" => |row| {
            let flags = row.flow.stats.tcp_flags[back(row)];
            row.flow.is_tcp().then_some(flags.into())
        },
        "size_min" => |row| Some(row.flow.stats.size_min.into()),
        "size_max" => |row| Some(row.flow.stats.size_max.into()),
        "ipd_min_ns" => |row| row.flow.stats.ipd().map(|ipd| ipd[0] as i64),
        "ipd_max_ns" => |row| row.flow.stats.ipd().map(|ipd| ipd[1] as i64),
        "ipd_avg_ns" => |row| row.flow.stats.ipd().map(|ipd| ipd[2] as i64),
        "row_group" => |row| i64::try_from(row.group).ok(),
        "first_row" => |row| i64::try_from(row.first_row).ok(),
        "rows" => |row| i64::try_from(row.rows).ok(),
        name => unreachable!("{name} is no column of integers"),
    }
}

#[allow(clippy::cast_possible_truncation)]
fn floats(column: &str) -> Get<f32> {
    match column {
        "score_max" => |row| row.flow.stats.score_max.map(score),
        "flow_share" => |row| Some(row.flow.stats.share_max.ratio() as f32),
        "size_avg" => |row| Some(row.flow.stats.size_mean() as f32),
        "size_var" => |row| Some(row.flow.stats.size_variance() as f32),
        name => unreachable!("{name} is no column of floats"),
    }
}

/// A score of the records, from 0 to 1.
pub(crate) fn score(of_65535: u16) -> f32 {
    f32::from(of_65535) / 65_535.0
}

fn texts(column: &str) -> Get<ByteArray> {
    match column {
        "src" => |row| Some(row.addresses?[row.flow.initiator].clone()),
        "dst" => |row| Some(row.addresses?[1 - row.flow.initiator].clone()),
        "community_id" => |row| community_id(row.flow).map(|id| ByteArray::from(id.as_str())),
        "class" => |row| Some(row.class.clone()),
        "classes" => |row| Some(row.classes.clone()),
        "dns_name" => |row| row.flow.names.dns.as_deref().map(ByteArray::from),
        "tls_server_name" => |row| row.flow.names.tls.as_deref().map(ByteArray::from),
        "http_host" => |row| row.flow.names.http.as_deref().map(ByteArray::from),
        name => unreachable!("{name} is no column of texts"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(source: [u8; 4], destination: [u8; 4], number: u8, ports: (u16, u16)) -> Flow {
        let end = |address: [u8; 4], port| Endpoint {
            address: u32::from_be_bytes(address).into(),
            port,
        };
        let (key, forward) = FlowKey::new(
            AddressFamily::Ipv4,
            number,
            end(source, ports.0),
            end(destination, ports.1),
        );
        Flow::new(key, 0, usize::from(!forward))
    }

    /// The examples of the specification's reference implementation.
    #[test]
    fn community_ids_are_those_of_other_tools() {
        let tcp = flow([128, 232, 110, 120], [66, 35, 250, 204], 6, (34_855, 80));
        assert_eq!(
            community_id(&tcp).unwrap(),
            "1:LQU9qZlK+B5F3KDmev6m5PMibrg="
        );
        let udp = flow([192, 168, 1, 52], [8, 8, 8, 8], 17, (54_585, 53));
        assert_eq!(
            community_id(&udp).unwrap(),
            "1:d/FP5EW3wiY1vCndhwleRRKHowQ="
        );
        let mut icmp = flow([192, 168, 0, 89], [192, 168, 0, 1], 1, (0, 0));
        icmp.icmp = Some([8, 0]);
        assert_eq!(
            community_id(&icmp).unwrap(),
            "1:X0snYXpgwiv9TZtqg64sgzUn6Dk="
        );
    }
}
