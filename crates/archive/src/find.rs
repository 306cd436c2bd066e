//! Finding: which rows of a part may be wanted, by its flows.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

use parquet::data_type::ByteArray;
use strata_filter::{Filter, FlowFacts};
use strata_store::{Disk, FileKind, Part, PartFile};

use crate::error::ArchiveError;
use crate::files::Input;
use crate::flows;
use crate::part::staging_name;
use crate::table::TableReader;

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
    /// Whether a time span may hold what is wanted.
    pub(crate) fn may_be_within(&self, first_ns: u64, last_ns: u64) -> bool {
        self.from_ns.is_none_or(|from| last_ns >= from) && self.to_ns.is_none_or(|to| first_ns < to)
    }

    fn is_everything(&self) -> bool {
        self.from_ns.is_none() && self.to_ns.is_none() && self.filter.is_none()
    }
}

/// The name of a part's file, which it may not have got yet.
#[must_use]
pub fn name_of(disk: &dyn Disk, part: &Part, file: &PartFile) -> String {
    if disk.exists(&file.name) {
        return file.name.clone();
    }
    let staged = staging_name(part.id, file.kind, file.is_encrypted());
    // It may have got its name in between.
    if disk.exists(&staged) {
        staged
    } else {
        file.name.clone()
    }
}

/// Opens a file of a part.
pub(crate) fn open(disk: &dyn Disk, part: &Part, kind: FileKind) -> Result<Input, ArchiveError> {
    let Some(file) = part.file(kind) else {
        return Input::open(disk, kind.dir());
    };
    Input::open(disk, &name_of(disk, part, file))
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
    let input = open(disk, part, FileKind::Flows)?;
    let table = TableReader::open(input, disk.display(name), flows::COLUMNS)?;
    let columns = [
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
    let numbers = columns.map(flows::column);
    let bound = find.filter.and_then(Filter::host_bound);
    let bound: Option<Vec<String>> =
        bound.map(|addresses| addresses.iter().map(IpAddr::to_string).collect());
    for (group, rows) in table.groups().into_iter().enumerate() {
        if let Some(texts) = &bound
            && !table.may_be_true(group, flows::column("hides_addresses"))
            && !table.may_hold(group, flows::column("src"), texts)?
            && !table.may_hold(group, flows::column("dst"), texts)?
        {
            continue;
        }
        let whole = 0..rows;
        let read = table.read(group, &numbers, std::slice::from_ref(&whole))?;
        let mut ints = [0, 1, 4, 5, 6, 7, 8, 9, 10].map(|n| read[n].ints());
        let mut texts = [2, 3].map(|n| read[n].bytes());
        for _ in 0..rows {
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
            let (start, len) = (size(first_row), size(count));
            let ranges = wanted.entry(size(group)).or_default();
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = start + len,
                _ => ranges.push(start..start + len),
            }
        }
    }
    Ok(Some(wanted))
}

fn both(addresses: [Option<&ByteArray>; 2], is_ip: bool) -> Option<[IpAddr; 2]> {
    let parse = |text: Option<&ByteArray>| -> Option<IpAddr> {
        std::str::from_utf8(text?.data()).ok()?.parse().ok()
    };
    let [source, destination] = addresses;
    is_ip.then_some(())?;
    Some([parse(source)?, parse(destination)?])
}
