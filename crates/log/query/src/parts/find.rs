//! Finds the rows of a part that may be wanted, by its flows.

mod names;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;

use strata_archive::parts::{self, Batch, Input, TableReader, TextCells};
use strata_archive::{ArchiveError, FlowColumn};
use strata_filter::{Filter, FlowFacts};
use strata_store::{Disk, FileKind, Part, Select};
use strata_wire::{AddressFamily, Endpoint, FlowKey, ip_addr};

use names::{NAMES, NameCells};

use crate::parts::cells::{IntColumn, NO_PORT, NO_PROTOCOL, WrongValue};

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

/// Searches the flows of a part; for one flow alone, if that is wanted.
pub(crate) fn wanted(
    disk: &dyn Disk,
    part: &Part,
    (find, flow): (&Find<'_>, Option<&FlowKey>),
) -> Result<Option<Wanted>, ArchiveError> {
    if find.is_everything() && flow.is_none() {
        return Ok(None);
    }
    let mut wanted = Wanted::new();
    let Some(flows) = Flows::open(disk, part, (find, flow))? else {
        return Ok(Some(wanted));
    };
    for group in 0..flows.groups() {
        flows.each(group, false, |place, _| {
            if flow.is_some_and(|flow| place.key().0 != *flow) {
                return;
            }
            let ranges = wanted.entry(place.group).or_default();
            add_range(ranges, place.first_row..place.first_row + place.rows);
        })?;
    }
    Ok(Some(wanted))
}

/// The flows of a part that may be wanted.
pub(crate) struct Flows<'a> {
    find: Find<'a>,
    sought: Sought,
    table: TableReader<Input>,
    named: String,
    /// Rows of each row group.
    rows: Vec<usize>,
}

impl<'a> Flows<'a> {
    /// `None` if nothing of the part is wanted. Only rows that may be of the flow come, if one is given.
    pub(crate) fn open(
        disk: &dyn Disk,
        part: &Part,
        (find, flow): (&Find<'a>, Option<&FlowKey>),
    ) -> Result<Option<Self>, ArchiveError> {
        if !find.may_be_within(part.ts_min_ns, part.ts_max_ns) {
            return Ok(None);
        }
        let name = part.file(FileKind::Flows).map_or("", |file| &file.name);
        let named = disk.display(name);
        let input = parts::open(disk, part, FileKind::Flows)?;
        let table = TableReader::open(input, named.clone(), FlowColumn::SPECS)?;
        let sought = Sought::of(find, flow);
        if sought.community_ids.is_some() {
            table.will_ask_filters(FlowColumn::CommunityId.index());
        }
        Ok(Some(Self {
            find: *find,
            sought,
            rows: table.groups(),
            table,
            named,
        }))
    }

    pub(crate) fn groups(&self) -> usize {
        self.rows.len()
    }

    /// The row groups that may have flows whose packets are in this row group of the packets.
    pub(crate) fn of_packets(&self, group: usize) -> impl Iterator<Item = usize> {
        let column = FlowColumn::RowGroup.index();
        let group = i64::try_from(group).expect("a file has fewer row groups");
        (0..self.groups()).filter(move |&of| self.table.may_be(of, column, group))
    }

    /// Passes the flows of a row group that may be wanted, with a name of each if `names`, to `take`.
    pub(crate) fn each(
        &self,
        group: usize,
        names: bool,
        mut take: impl FnMut(Place, Option<&str>),
    ) -> Result<(), ArchiveError> {
        let rows = self.sought.rows(&self.table, group, self.rows[group])?;
        if rows.is_empty() {
            return Ok(());
        }
        let columns = if names {
            &[FACTS, NAMES].concat()
        } else {
            FACTS
        };
        let columns: Vec<usize> = columns.iter().map(|column| column.index()).collect();
        let read = self.table.batch(group, &columns, &rows)?;
        let mut places = Places::of(&read);
        let named = names.then(|| NameCells::of(&read, FACTS.len()));
        for row in 0..read.rows() {
            let place = places.at(row).map_err(|value| ArchiveError::Table {
                file: self.named.clone(),
                source: value.into(),
            })?;
            if !self.find.may_be_within(place.first_ns, place.last_ns) {
                continue;
            }
            if let Some(filter) = self.find.filter
                && !place.hides_addresses
                && !filter.may_match(&place.facts)
            {
                continue;
            }
            take(place, named.as_ref().and_then(|names| names.get(row)));
        }
        Ok(())
    }
}

/// Classes, and packets of each.
pub(crate) type ByClass = Rc<[(String, u64)]>;

/// What a flow's packets come to, besides its [`Place`].
pub(crate) struct Totals<'a> {
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    /// Of both directions.
    pub(crate) wire_bytes: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) score: Option<f32>,
    pub(crate) classes: &'a ByClass,
    pub(crate) name: Option<&'a str>,
}

/// Columns of [`Totals`], after [`FACTS`].
const TOTALS: &[FlowColumn] = &[
    FlowColumn::ReversePackets,
    FlowColumn::WireBytes,
    FlowColumn::ReverseWireBytes,
    FlowColumn::LoggedBytes,
    FlowColumn::ScoreMax,
    FlowColumn::Classes,
];

/// More bytes on the wire than any packet has.
const PACKET_BYTES: u64 = 1 << 33;

impl Flows<'_> {
    /// Passes every flow of a row group, with what its packets come to, to `take`.
    pub(crate) fn totals(
        &self,
        group: usize,
        mut take: impl FnMut(&Place, &Totals<'_>),
    ) -> Result<(), ArchiveError> {
        let columns = [FACTS, TOTALS, NAMES].concat();
        let columns: Vec<usize> = columns.iter().map(|column| column.index()).collect();
        let whole: Vec<Range<usize>> = std::iter::once(0..self.rows[group]).collect();
        let read = self.table.batch(group, &columns, &whole)?;
        self.each_total(&read, &mut take)
            .map_err(|value| ArchiveError::Table {
                file: self.named.clone(),
                source: value.into(),
            })
    }

    fn each_total(
        &self,
        read: &Batch,
        take: &mut impl FnMut(&Place, &Totals<'_>),
    ) -> Result<(), WrongValue> {
        let of = FACTS.len();
        let ints = |at: usize| IntColumn::of(TOTALS[at].spec(), read.ints(of + at));
        let [reverse, wire, reverse_wire, kept] = [0, 1, 2, 3].map(ints);
        let scores = read.floats(of + 4);
        let mut classes = Classes::of(read.texts(of + 5));
        let names = NameCells::of(read, of + TOTALS.len());
        let mut places = Places::of(read);
        for row in 0..read.rows() {
            let place = places.at(row)?;
            let (packets, most) = (place.rows as u64, place.rows as u64 * PACKET_BYTES);
            let at_most = |column: FlowColumn, value: u64, most: u64| match value <= most {
                true => Ok(value),
                false => Err(WrongValue {
                    column: column.spec().name,
                    value: value.cast_signed(),
                }),
            };
            let back: u64 = at_most(TOTALS[0], reverse.there(row)?, packets)?;
            let there = at_most(FlowColumn::Packets, place.there as u64, packets)?;
            at_most(TOTALS[0], there + back, packets)?;
            let there = at_most(TOTALS[1], wire.there(row)?, most)?;
            let back = at_most(TOTALS[2], reverse_wire.there(row)?, most)?;
            let classes = classes.at(row);
            let sum = classes
                .iter()
                .fold(0_u64, |sum, (_, n)| sum.saturating_add(*n));
            at_most(TOTALS[5], sum, packets)?;
            let totals = Totals {
                first_ns: place.first_ns,
                last_ns: place.last_ns,
                wire_bytes: there + back,
                kept_bytes: at_most(TOTALS[3], kept.there(row)?, most)?,
                score: scores.get(row),
                classes,
                name: names.get(row),
            };
            take(&place, &totals);
        }
        Ok(())
    }
}

/// Packets by class, as JSON, each text parsed once.
struct Classes<'a> {
    texts: Option<TextCells<'a>>,
    /// By number of the text; `None` until it is asked for.
    parsed: Vec<Option<ByClass>>,
    none: ByClass,
}

impl<'a> Classes<'a> {
    fn of(texts: Option<TextCells<'a>>) -> Self {
        let parsed = vec![None; texts.map_or(0, |texts| texts.entries())];
        let none = Rc::default();
        Self {
            texts,
            parsed,
            none,
        }
    }

    /// Those of a row; none where its text makes no sense.
    fn at(&mut self, row: usize) -> &ByClass {
        let Some((texts, code)) = self.texts.and_then(|texts| Some((texts, texts.code(row)?)))
        else {
            return &self.none;
        };
        self.parsed[code].get_or_insert_with(|| {
            let parsed: Result<BTreeMap<String, u64>, _> = serde_json::from_str(texts.entry(code));
            parsed.map_or_else(|_| Rc::default(), |parsed| parsed.into_iter().collect())
        })
    }
}

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
    FlowColumn::Packets,
];

/// The values of [`FACTS`] for a flow.
pub(crate) struct Place {
    first_ns: u64,
    last_ns: u64,
    /// Its addresses, that of the first packet's sender first.
    pub(crate) ends: [Option<Address>; 2],
    pub(crate) facts: FlowFacts,
    pub(crate) hides_addresses: bool,
    /// Where its packets are.
    pub(crate) group: usize,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    /// How many of them the first packet's sender sent.
    pub(crate) there: usize,
}

impl Place {
    /// Its flow, of which the tables do not hold the EtherType; and whether the sender of its first packet is the
    /// low endpoint.
    pub(crate) fn key(&self) -> (FlowKey, bool) {
        let [Some((family, source)), Some((_, destination))] = self.ends else {
            return (FlowKey::NONE, true);
        };
        let [from, to] = match family {
            AddressFamily::Mac => [0, 0],
            AddressFamily::Ipv4 | AddressFamily::Ipv6 => self.facts.ports,
        };
        let end = |address, port| Endpoint { address, port };
        let (source, destination) = (end(source, from), end(destination, to));
        FlowKey::new(family, self.facts.protocol, source, destination)
    }
}

/// [`FACTS`], flow by flow.
struct Places<'a> {
    read: &'a Batch,
    times: [IntColumn<'a>; 2],
    addresses: [Addresses<'a>; 2],
    ports: [IntColumn<'a>; 2],
    protocol: IntColumn<'a>,
    /// Row group, first row, number of rows, and packets from the first end.
    place: [IntColumn<'a>; 4],
}

impl<'a> Places<'a> {
    fn of(read: &'a Batch) -> Self {
        let ints = |at: usize| IntColumn::of(FACTS[at].spec(), read.ints(at));
        Self {
            read,
            times: [0, 1].map(ints),
            addresses: [2, 3].map(|at| Addresses::of(read.texts(at))),
            ports: [4, 5].map(ints),
            protocol: ints(6),
            place: [8, 9, 10, 11].map(ints),
        }
    }

    fn at(&mut self, row: usize) -> Result<Place, WrongValue> {
        let ends = self.addresses.each_mut().map(|column| column.at(row));
        let protocol = self.protocol.get(row)?;
        let [first, last] = &self.times;
        let [from, to] = &self.ports;
        let [group, first_row, rows, there] = &self.place;
        let ip = |end: Option<Address>| end.and_then(|(family, address)| ip_addr(family, address));
        let [source, destination] = ends.map(ip);
        let addresses = protocol.and(source.zip(destination));
        Ok(Place {
            first_ns: first.time(row)?,
            last_ns: last.time(row)?,
            ends,
            facts: FlowFacts {
                addresses: addresses.map(|(source, destination)| [source, destination]),
                ports: [
                    from.get(row)?.unwrap_or(NO_PORT),
                    to.get(row)?.unwrap_or(NO_PORT),
                ],
                protocol: protocol.unwrap_or(NO_PROTOCOL),
            },
            hides_addresses: self.read.bool(7, row) != Some(false),
            group: group.there(row)?,
            first_row: first_row.there(row)?,
            rows: rows.there(row)?,
            there: there.there(row)?,
        })
    }
}

/// An address as it is in flow keys.
pub(crate) type Address = (AddressFamily, u128);

/// A column of addresses, each parsed once.
struct Addresses<'a> {
    texts: Option<TextCells<'a>>,
    /// By number of the text; `None` until it is asked for.
    parsed: Vec<Option<Option<Address>>>,
}

impl<'a> Addresses<'a> {
    fn of(texts: Option<TextCells<'a>>) -> Self {
        let parsed = vec![None; texts.map_or(0, |texts| texts.entries())];
        Self { texts, parsed }
    }

    fn at(&mut self, row: usize) -> Option<Address> {
        let texts = self.texts?;
        let code = texts.code(row)?;
        *self.parsed[code].get_or_insert_with(|| address(texts.entry(code)))
    }
}

/// An address as in the tables.
fn address(text: &str) -> Option<Address> {
    match text.parse() {
        Ok(IpAddr::V4(v4)) => return Some((AddressFamily::Ipv4, v4.to_bits().into())),
        Ok(IpAddr::V6(v6)) => return Some((AddressFamily::Ipv6, v6.to_bits())),
        Err(_) => {}
    }
    let mut address = 0;
    let mut bytes = 0;
    for byte in text.split(':') {
        address = address << 8 | u128::from(u8::from_str_radix(byte, 16).ok()?);
        bytes += 1;
    }
    (bytes == 6).then_some((AddressFamily::Mac, address))
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
    fn of(find: &Find<'_>, flow: Option<&FlowKey>) -> Self {
        let mut hosts = find.filter.map_or_else(Vec::new, Filter::host_bounds);
        let ends = flow.into_iter().flat_map(|flow| {
            let ends = [flow.low, flow.high];
            ends.map(|end| ip_addr(flow.family, end.address))
        });
        hosts.extend(ends.flatten().map(|address| vec![address]));
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
        let read = table.batch(group, &[src, dst, hides], &whole)?;
        let ends = [0, 1].map(|at| Wanting::of(read.texts(at), &self.hosts));
        let mut found = Vec::new();
        for row in 0..read.rows() {
            let has = |set: usize| ends.iter().any(|end| end.has(row, set));
            let hides = || read.bool(2, row) != Some(false);
            if (0..self.hosts.len()).all(has) || hides() {
                add_range(&mut found, row..row + 1);
            }
        }
        Ok(found)
    }
}

/// Which texts of a column are in which sets.
struct Wanting<'a> {
    texts: Option<TextCells<'a>>,
    /// Of each set, by number of the text.
    sets: Vec<Vec<bool>>,
}

impl<'a> Wanting<'a> {
    fn of(texts: Option<TextCells<'a>>, sets: &[Vec<String>]) -> Self {
        let entries = texts.map_or(0, |texts| texts.entries());
        let is_in = |set: &Vec<String>, code| {
            texts.is_some_and(|texts| set.iter().any(|text| text == texts.entry(code)))
        };
        let of_set = |set: &Vec<String>| (0..entries).map(|code| is_in(set, code)).collect();
        Self {
            texts,
            sets: sets.iter().map(of_set).collect(),
        }
    }

    fn has(&self, row: usize, set: usize) -> bool {
        let code = self.texts.and_then(|texts| texts.code(row));
        code.is_some_and(|code| self.sets[set][code])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_tables_write_them() {
        assert_eq!(
            address("10.0.0.1"),
            Some((AddressFamily::Ipv4, 0x0a00_0001))
        );
        assert_eq!(address("::1"), Some((AddressFamily::Ipv6, 1)));
        assert_eq!(
            address("00:1b:21:0a:0b:0c"),
            Some((AddressFamily::Mac, 0x001b_210a_0b0c))
        );
        for text in ["", "00:1b", "zz:1b:21:0a:0b:0c", "not dissected"] {
            assert_eq!(address(text), None, "{text}");
        }
    }
}
