//! Finding: which rows of a part may be wanted, by its flows.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

use parquet::data_type::ByteArray;
use strata_archive::ArchiveError;
use strata_archive::parts::{self, Input, TableReader, flows};
use strata_filter::{Filter, FlowFacts};
use strata_store::{Disk, FileKind, Part, Select};
use strata_wire::AddressFamily;

/// What is wanted. The default is everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Find<'a> {
    /// Packets from this time on, ns.
    pub from_ns: Option<u64>,
    /// Packets before this time, ns.
    pub to_ns: Option<u64>,
    /// Packets that match.
    pub filter: Option<&'a Filter>,
}

impl Find<'_> {
    /// The blocks that may hold what is wanted.
    #[must_use]
    pub fn select(&self) -> Select {
        let hosts = self.filter.map(Filter::host_bounds).unwrap_or_default();
        let flows = self.filter.and_then(Filter::flow_bound);
        Select {
            from_ns: self.from_ns,
            to_ns: self.to_ns,
            addresses: hosts
                .iter()
                .map(|set| set.iter().map(family_and_number).collect())
                .collect(),
            flows: flows.map(|flows| flows.iter().filter_map(FlowFacts::key).collect()),
            ..Select::default()
        }
    }

    /// Whether a time span may hold what is wanted.
    pub(crate) fn may_be_within(&self, first_ns: u64, last_ns: u64) -> bool {
        self.from_ns.is_none_or(|from| last_ns >= from) && self.to_ns.is_none_or(|to| first_ns < to)
    }

    fn is_everything(&self) -> bool {
        self.from_ns.is_none() && self.to_ns.is_none() && self.filter.is_none()
    }
}

fn family_and_number(address: &IpAddr) -> (AddressFamily, u128) {
    match address {
        IpAddr::V4(v4) => (AddressFamily::Ipv4, v4.to_bits().into()),
        IpAddr::V6(v6) => (AddressFamily::Ipv6, v6.to_bits()),
    }
}

/// Rows of a part's packets by row group: those of flows that may be wanted. A
/// group without any is not there.
pub(crate) type Wanted = BTreeMap<usize, Vec<Range<usize>>>;

/// Looks through the flows of a part.
pub(crate) fn wanted(
    disk: &dyn Disk,
    part: &Part,
    find: &Find<'_>,
) -> Result<Option<Wanted>, ArchiveError> {
    if find.is_everything() {
        return Ok(None);
    }
    let mut wanted = Wanted::new();
    if !find.may_be_within(part.ts_min_ns, part.ts_max_ns) {
        return Ok(Some(wanted));
    }
    let name = part.file(FileKind::Flows).map_or("", |file| &file.name);
    let input = parts::open(disk, part, FileKind::Flows)?;
    let table = TableReader::open(input, disk.display(name), flows::COLUMNS)?;
    let sought = Sought::of(find);
    for (group, rows) in table.groups().into_iter().enumerate() {
        let rows = sought.rows(&table, group, rows)?;
        if rows.is_empty() {
            continue;
        }
        let read = table.read(group, &FACTS.map(flows::column), &rows)?;
        let mut ints = [0, 1, 4, 5, 6, 7, 8, 9, 10].map(|n| read[n].ints());
        let mut texts = [2, 3].map(|n| read[n].bytes());
        for _ in 0..rows.iter().map(Range::len).sum() {
            let [
                first,
                last,
                from,
                to,
                protocol,
                hides,
                group,
                first_row,
                count,
            ] = ints.each_mut().map(|column| column.next().flatten());
            let addresses = texts.each_mut().map(|column| column.next().flatten());
            let time = |value: Option<i64>| value.unwrap_or(0).cast_unsigned();
            let size = |value: Option<i64>| usize::try_from(value.unwrap_or(0)).unwrap_or(0);
            if !find.may_be_within(time(first), time(last)) {
                continue;
            }
            if let Some(filter) = find.filter
                && hides == Some(0)
            {
                let port = |value: Option<i64>| u16::try_from(value.unwrap_or(0)).unwrap_or(0);
                let facts = FlowFacts {
                    addresses: both(addresses, protocol.is_some()),
                    ports: [port(from), port(to)],
                    protocol: u8::try_from(protocol.unwrap_or(0)).unwrap_or(0),
                };
                if !filter.may_match(&facts) {
                    continue;
                }
            }
            let start = size(first_row);
            let ranges = wanted.entry(size(group)).or_default();
            add_range(ranges, start..start + size(count));
        }
    }
    Ok(Some(wanted))
}

/// Columns that say whether a flow may be wanted, and where its packets are.
const FACTS: [&str; 11] = [
    "first_time",
    "last_time",
    "src",
    "dst",
    "src_port",
    "dst_port",
    "protocol",
    "hides_addresses",
    "row_group",
    "first_row",
    "rows",
];

fn add_range(ranges: &mut Vec<Range<usize>>, range: Range<usize>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

/// What the flows of wanted packets have, as the table has it.
struct Sought {
    /// Of each set a flow has one address.
    hosts: Vec<Vec<String>>,
    community_ids: Option<Vec<String>>,
}

impl Sought {
    fn of(find: &Find<'_>) -> Self {
        let hosts = find.filter.map(Filter::host_bounds).unwrap_or_default();
        let texts = |set: &Vec<IpAddr>| set.iter().map(IpAddr::to_string).collect();
        let flows = find.filter.and_then(Filter::flow_bound);
        let ids = |flows: Vec<FlowFacts>| {
            let keys = flows.iter().filter_map(FlowFacts::key);
            keys.map(|key| flows::community_id_of(&key)).collect()
        };
        Self {
            hosts: hosts.iter().map(texts).collect(),
            community_ids: flows.map(ids),
        }
    }

    /// Rows of a group of flows that may be wanted, by their addresses; as little as possible
    /// is read.
    fn rows(
        &self,
        table: &TableReader<Input>,
        group: usize,
        rows: usize,
    ) -> Result<Vec<Range<usize>>, ArchiveError> {
        let (src, dst) = (flows::column("src"), flows::column("dst"));
        let hides = flows::column("hides_addresses");
        let whole: Vec<Range<usize>> = std::iter::once(0..rows).collect();
        if self.hosts.is_empty() {
            return Ok(whole);
        }
        let may_hide = table.may_be_true(group, hides);
        if !may_hide {
            if let Some(ids) = &self.community_ids {
                if !table.filter_may_hold(group, flows::column("community_id"), ids)? {
                    return Ok(Vec::new());
                }
            } else {
                for set in &self.hosts {
                    if !table.may_hold(group, src, set)? && !table.may_hold(group, dst, set)? {
                        return Ok(Vec::new());
                    }
                }
            }
        }
        let read = table.read(group, &[src, dst, hides], &whole)?;
        let addresses = read[0].bytes().zip(read[1].bytes());
        let mut found = Vec::new();
        for (row, ((src, dst), hides)) in addresses.zip(read[2].ints()).enumerate() {
            let is = |address: Option<&ByteArray>, text: &String| {
                address.is_some_and(|address| address.data() == text.as_bytes())
            };
            let has = |set: &Vec<String>| set.iter().any(|text| is(src, text) || is(dst, text));
            if hides != Some(0) || self.hosts.iter().all(has) {
                add_range(&mut found, row..row + 1);
            }
        }
        Ok(found)
    }
}

fn both(addresses: [Option<&ByteArray>; 2], is_ip: bool) -> Option<[IpAddr; 2]> {
    let parse = |text: Option<&ByteArray>| -> Option<IpAddr> {
        std::str::from_utf8(text?.data()).ok()?.parse().ok()
    };
    let [source, destination] = addresses;
    is_ip.then_some(())?;
    Some([parse(source)?, parse(destination)?])
}
