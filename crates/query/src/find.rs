//! Finds the rows of a part that may be wanted, by its flows.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

use parquet::data_type::ByteArray;
use strata_archive::parts::{self, Column, Input, TableReader};
use strata_archive::{ArchiveError, FlowColumn};
use strata_filter::{Filter, FlowFacts};
use strata_store::{Disk, FileKind, Part, Select};
use strata_wire::AddressFamily;

use crate::cells::{Ints, NO_PORT, NO_PROTOCOL, WrongValue};

/// What is wanted. The default is everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Find<'a> {
    /// Packets from this time on, ns.
    pub from_ns: Option<u64>,
    /// Packets before this time, ns.
    pub to_ns: Option<u64>,
    /// Packets that match this filter.
    pub filter: Option<&'a Filter>,
}

impl Find<'_> {
    /// The blocks that may hold what is wanted.
    #[must_use]
    pub fn select(&self) -> Select {
        let hosts = self.filter.map_or_else(Vec::new, Filter::host_bounds);
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

/// Rows of a part's packets by row group: those of flows that may be wanted. A group without any is
/// missing.
pub(crate) type Wanted = BTreeMap<usize, Vec<Range<usize>>>;

/// Searches the flows of a part.
pub(crate) fn wanted(
    disk: &dyn Disk,
    part: &Part,
    find: &Find<'_>,
) -> Result<Option<Wanted>, ArchiveError> {
    if find.is_everything() {
        return Ok(None);
    }
    let mut wanted = Wanted::new();
    each_flow(disk, part, find, false, |place, _| {
        let ranges = wanted.entry(place.group).or_default();
        add_range(ranges, place.first_row..place.first_row + place.rows);
    })?;
    Ok(Some(wanted))
}

/// Passes the flows of a part that may be wanted, with a name of each if `names`, to `take`.
pub(crate) fn each_flow(
    disk: &dyn Disk,
    part: &Part,
    find: &Find<'_>,
    names: bool,
    mut take: impl FnMut(Place<'_>, Option<&[u8]>),
) -> Result<(), ArchiveError> {
    if !find.may_be_within(part.ts_min_ns, part.ts_max_ns) {
        return Ok(());
    }
    let name = part.file(FileKind::Flows).map_or("", |file| &file.name);
    let input = parts::open(disk, part, FileKind::Flows)?;
    let table = TableReader::open(input, disk.display(name), FlowColumn::SPECS)?;
    let sought = Sought::of(find);
    if sought.community_ids.is_some() {
        table.will_ask_filters(FlowColumn::CommunityId.index());
    }
    let wrong = |value: WrongValue| ArchiveError::Table {
        file: disk.display(name),
        source: value.into(),
    };
    let columns: &[FlowColumn] = if names {
        &[FACTS, NAMES].concat()
    } else {
        FACTS
    };
    let columns: Vec<usize> = columns.iter().map(|column| column.index()).collect();
    for (group, rows) in table.groups().into_iter().enumerate() {
        let rows = sought.rows(&table, group, rows)?;
        if rows.is_empty() {
            continue;
        }
        let read = table.read(group, &columns, &rows)?;
        let mut places = Places::of(&read);
        let mut named: Vec<_> = read[FACTS.len()..].iter().map(Column::bytes).collect();
        for _ in 0..rows.iter().map(Range::len).sum() {
            let place = places.next().map_err(wrong)?;
            let names: Vec<_> = named
                .iter_mut()
                .map(|names| names.next().flatten())
                .collect();
            if !find.may_be_within(place.first_ns, place.last_ns) {
                continue;
            }
            if let Some(filter) = find.filter
                && !place.hides_addresses
                && !filter.may_match(&place.facts)
            {
                continue;
            }
            let name = names.into_iter().flatten().next();
            take(place, name.map(ByteArray::data));
        }
    }
    Ok(())
}

/// Names of a flow, the most telling first.
const NAMES: &[FlowColumn] = &[
    FlowColumn::TlsServerName,
    FlowColumn::HttpHost,
    FlowColumn::DnsName,
];

/// Columns that tell whether a flow may be wanted, and where its packets are.
const FACTS: &[FlowColumn] = &[
    FlowColumn::FirstTime,
    FlowColumn::LastTime,
    FlowColumn::Src,
    FlowColumn::Dst,
    FlowColumn::SrcPort,
    FlowColumn::DstPort,
    FlowColumn::Protocol,
    FlowColumn::HidesAddresses,
    FlowColumn::RowGroup,
    FlowColumn::FirstRow,
    FlowColumn::Rows,
];

/// The values of [`FACTS`] for a flow.
pub(crate) struct Place<'a> {
    first_ns: u64,
    last_ns: u64,
    /// Its addresses as text.
    pub(crate) ends: [Option<&'a [u8]>; 2],
    pub(crate) facts: FlowFacts,
    pub(crate) hides_addresses: bool,
    /// Where its packets are.
    pub(crate) group: usize,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
}

/// [`FACTS`], flow by flow.
struct Places<'a> {
    times: [Ints<'a>; 2],
    addresses: [Box<dyn Iterator<Item = Option<&'a ByteArray>> + 'a>; 2],
    ports: [Ints<'a>; 2],
    protocol: Ints<'a>,
    hides_addresses: Ints<'a>,
    /// Row group, first row and number of rows.
    place: [Ints<'a>; 3],
}

impl<'a> Places<'a> {
    fn of(read: &'a [Column]) -> Self {
        let ints = |at: usize| Ints::of(FACTS[at].spec(), &read[at]);
        Self {
            times: [0, 1].map(ints),
            addresses: [2, 3].map(|at| read[at].bytes()),
            ports: [4, 5].map(ints),
            protocol: ints(6),
            hides_addresses: ints(7),
            place: [8, 9, 10].map(ints),
        }
    }

    fn next(&mut self) -> Result<Place<'a>, WrongValue> {
        let addresses = self
            .addresses
            .each_mut()
            .map(|column| column.next().flatten());
        let protocol = self.protocol.next()?;
        let [first, last] = &mut self.times;
        let [from, to] = &mut self.ports;
        let [group, first_row, rows] = &mut self.place;
        Ok(Place {
            first_ns: first.next_time()?,
            last_ns: last.next_time()?,
            ends: addresses.map(|address| address.map(ByteArray::data)),
            facts: FlowFacts {
                addresses: both(addresses, protocol.is_some()),
                ports: [
                    from.next()?.unwrap_or(NO_PORT),
                    to.next()?.unwrap_or(NO_PORT),
                ],
                protocol: protocol.unwrap_or(NO_PROTOCOL),
            },
            hides_addresses: self.hides_addresses.next_there::<i64>()? != 0,
            group: group.next_there()?,
            first_row: first_row.next_there()?,
            rows: rows.next_there()?,
        })
    }
}

fn add_range(ranges: &mut Vec<Range<usize>>, range: Range<usize>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

/// Values that flows of wanted packets have, as stored in the table.
struct Sought {
    /// A flow has one address from each set.
    hosts: Vec<Vec<String>>,
    community_ids: Option<Vec<String>>,
}

impl Sought {
    fn of(find: &Find<'_>) -> Self {
        let hosts = find.filter.map_or_else(Vec::new, Filter::host_bounds);
        let texts = |set: &Vec<IpAddr>| set.iter().map(IpAddr::to_string).collect();
        let flows = find.filter.and_then(Filter::flow_bound);
        let ids = |flows: Vec<FlowFacts>| {
            let keys = flows.iter().filter_map(FlowFacts::key);
            keys.map(|key| parts::community_id_of(&key)).collect()
        };
        Self {
            hosts: hosts.iter().map(texts).collect(),
            community_ids: flows.map(ids),
        }
    }

    /// Rows of a group of flows that may be wanted, by their addresses; reads as little as
    /// possible.
    fn rows(
        &self,
        table: &TableReader<Input>,
        group: usize,
        rows: usize,
    ) -> Result<Vec<Range<usize>>, ArchiveError> {
        let (src, dst) = (FlowColumn::Src.index(), FlowColumn::Dst.index());
        let hides = FlowColumn::HidesAddresses.index();
        let whole: Vec<Range<usize>> = std::iter::once(0..rows).collect();
        if self.hosts.is_empty() {
            return Ok(whole);
        }
        let may_hide = table.may_be_true(group, hides);
        if !may_hide {
            if let Some(ids) = &self.community_ids {
                if !table.filter_may_hold(group, FlowColumn::CommunityId.index(), ids)? {
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
