//! The packets of a recording's parts, rebuilt as far as they were kept, in order of arrival.

pub(crate) mod cells;
pub(crate) mod decided;
pub(crate) mod find;
pub(crate) mod reasons;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use strata_archive::parts::{
    self, Input, PAGE_ROWS, PacketRows, PayloadReader, Rebuild, Row, TableReader, Unreadable,
};
use strata_archive::{ArchiveError, PacketColumn};
use strata_store::{Damage, Disk, FileKind, Log, Part, Recording};
use strata_wire::FlowKey;

use crate::by_time::{Arrival, ByTime, Waiting};
use crate::parts::find::Find;

pub(crate) type Source = Box<dyn std::error::Error + Send + Sync>;

/// Rows read at a time.
const ROWS_AT_ONCE: usize = 1 << 17;

/// A part being read.
struct OpenPart {
    table: TableReader<Input>,
    payload: Payload,
    mode: String,
    named: String,
    payload_named: String,
    /// Row groups still to be read.
    groups: usize,
}

/// The payload file of a part.
pub(crate) enum Payload {
    /// No packet of the part was kept beyond its headers.
    None,
    /// It is missing or damaged, for this reason.
    Lost(ArchiveError),
    File(PayloadReader),
}

impl Payload {
    /// Opens the payload file of a part. Without it, packets that were kept as headers can be read.
    pub(crate) fn open(disk: &dyn Disk, part: &Part) -> Result<Self, ArchiveError> {
        if part.file(FileKind::Payload).is_none() {
            return Ok(Self::None);
        }
        match parts::open(disk, part, FileKind::Payload) {
            Ok(input) => Ok(Self::File(PayloadReader::new(&input))),
            Err(error) if error.is_damage() || error.is_missing() => Ok(Self::Lost(error)),
            Err(error) => Err(error),
        }
    }

    /// The bytes of a packet kept beyond its headers; `None` if they cannot be read.
    pub(crate) fn of(&mut self, row: &Row<'_>) -> Result<Option<&[u8]>, Source> {
        let offset = row.payload_offset.ok_or("a packet without its payload")?;
        let reader = match self {
            Self::None => return Err("a part without its payload".into()),
            Self::Lost(_) => return Ok(None),
            Self::File(reader) => reader,
        };
        let Some(bytes) = reader.packet(offset) else {
            return Ok(None);
        };
        if bytes.len() as u64 != u64::from(row.header_len) + u64::from(row.payload_len) {
            return Err("a payload does not have its original length".into());
        }
        Ok(Some(bytes))
    }

    /// Members that could not be read so far.
    fn take_unreadable(&mut self) -> Vec<Unreadable> {
        match self {
            Self::File(reader) => reader.take_unreadable(),
            Self::None | Self::Lost(_) => Vec::new(),
        }
    }
}

/// A row group to be read: its part, number and rows.
struct Ahead {
    /// No packet of it arrived earlier; `None` if that is not known, and it is read first.
    earliest: Option<u64>,
    part: u32,
    group: usize,
    rows: Vec<Range<usize>>,
}

/// The packets of a recording's parts in the order of arrival.
pub(crate) struct Parts<'a> {
    log: &'a Log,
    find: &'a Find<'a>,
    /// The only flow that is wanted; `None` for all.
    flow: Option<FlowKey>,
    /// By start time, the earliest last.
    parts_ahead: Vec<&'a Part>,
    /// In the same order.
    ahead: Vec<Ahead>,
    open: BTreeMap<u32, OpenPart>,
    waiting: ByTime,
    damage: Vec<Damage>,
    /// What its packets are called in messages, which no longer tell of which part they are.
    named: Arc<str>,
}

impl<'a> Parts<'a> {
    /// Keeps up to `memory_bytes` of waiting packets in memory.
    pub(crate) fn new(
        log: &'a Log,
        recording: &Recording,
        (find, flow): (&'a Find<'a>, Option<FlowKey>),
        memory_bytes: usize,
    ) -> Self {
        let mut parts_ahead: Vec<&Part> = parts_of(log, recording).collect();
        parts_ahead.sort_by_key(|part| std::cmp::Reverse((part.ts_min_ns, part.id)));
        Self {
            log,
            find,
            flow,
            parts_ahead,
            ahead: Vec::new(),
            open: BTreeMap::new(),
            waiting: ByTime::new(memory_bytes),
            damage: Vec::new(),
            named: format!("{} (compacted)", log.disk().display("packets")).into(),
        }
    }

    /// What the packets are called in messages.
    pub(crate) fn named(&self) -> Arc<str> {
        Arc::clone(&self.named)
    }

    /// What could not be read.
    pub(crate) fn take_damage(&mut self) -> Vec<Damage> {
        std::mem::take(&mut self.damage)
    }

    /// When the next packet arrived.
    pub(crate) fn head(&mut self) -> Result<Option<u64>, ArchiveError> {
        loop {
            let first = self.waiting.first().map_err(in_temporary_file)?;
            let due = |earliest: u64| first.is_none_or(|(time, _): Arrival| time >= earliest);
            if self
                .parts_ahead
                .last()
                .is_some_and(|part| due(part.ts_min_ns))
            {
                self.open_part()?;
            } else if self
                .ahead
                .last()
                .is_some_and(|group| group.earliest.is_none_or(due))
            {
                self.take_in()?;
            } else {
                return Ok(first.map(|(time, _)| time));
            }
        }
    }

    /// The next packet, whose time [`Parts::head`] returned.
    pub(crate) fn next(&mut self) -> Result<Option<Waiting<'_>>, ArchiveError> {
        self.waiting.next().map_err(in_temporary_file)
    }

    fn open_part(&mut self) -> Result<(), ArchiveError> {
        let Some(part) = self.parts_ahead.pop() else {
            return Ok(());
        };
        let opened = match self.open(part) {
            Err(error) if error.is_missing() => {
                self.missing(&error, part);
                None
            }
            Err(error) if error.is_damage() => {
                self.damaged(&error, part.packets);
                None
            }
            opened => opened?,
        };
        let Some((open, groups)) = opened else {
            return Ok(());
        };
        if !groups.is_empty() {
            self.open.insert(part.id, open);
        }
        self.ahead.extend(groups);
        self.ahead
            .sort_by_key(|group| std::cmp::Reverse((group.earliest, group.part, group.group)));
        Ok(())
    }

    /// Opens a part, unless nothing of it is wanted.
    fn open(&self, part: &Part) -> Result<Option<(OpenPart, Vec<Ahead>)>, ArchiveError> {
        let disk = self.log.disk().as_ref();
        let wanted = find::wanted(disk, part, (self.find, self.flow.as_ref()))?;
        if wanted.as_ref().is_some_and(BTreeMap::is_empty) {
            return Ok(None);
        }
        let named = |kind| disk.display(part.file(kind).map_or("", |file| &file.name));
        let input = parts::open(disk, part, FileKind::Packets)?;
        let table = TableReader::open(input, named(FileKind::Packets), PacketColumn::SPECS)?;
        let payload = Payload::open(disk, part)?;
        let mut groups = Vec::new();
        for (group, count) in table.groups().into_iter().enumerate() {
            let rows = match &wanted {
                None => Some(std::iter::once(0..count).collect()),
                Some(wanted) => wanted.get(&group).cloned(),
            };
            groups.extend(rows.map(|rows| Ahead {
                earliest: table.min(group, PacketColumn::Time.index()),
                part: part.id,
                group,
                rows,
            }));
        }
        let open = OpenPart {
            mode: table.about("strata.mode").unwrap_or("").to_owned(),
            table,
            payload,
            named: named(FileKind::Packets),
            payload_named: named(FileKind::Payload),
            groups: groups.len(),
        };
        Ok(Some((open, groups)))
    }

    /// Adds the packets of the next row group.
    fn take_in(&mut self) -> Result<(), ArchiveError> {
        let Some(ahead) = self.ahead.pop() else {
            return Ok(());
        };
        let Some(mut part) = self.open.remove(&ahead.part) else {
            return Ok(());
        };
        let taken = self.rows_of(&mut part, &ahead);
        self.waiting.end_run();
        for member in part.payload.take_unreadable() {
            let (packets, problem) = (member.packets, member.problem);
            self.damage.push(Damage {
                file: part.payload_named.clone(),
                offset: member.at,
                problem: format!("{packets} packets in the member from here on: {problem}"),
                missing: None,
            });
        }
        taken?;
        part.groups -= 1;
        if part.groups > 0 {
            self.open.insert(ahead.part, part);
        }
        Ok(())
    }

    /// Adds the packets of a row group, but for those whose rows are damaged, and those of flows that may have damaged
    /// rows: each packet's headers follow from those before it.
    fn rows_of(&mut self, part: &mut OpenPart, ahead: &Ahead) -> Result<(), ArchiveError> {
        let count: usize = ahead.rows.iter().map(Range::len).sum();
        let mut taken = Taken::default();
        let (mut at, mut most) = (0_usize, ROWS_AT_ONCE);
        while at < count {
            let end = count.min(at.saturating_add(most));
            let portion = match read(part, ahead, at..end)? {
                Portion::Rows(rows) => rows,
                // What is before it is read again, without it.
                Portion::Damaged(page, error) if page.start > at => {
                    let mut end = at;
                    if let Portion::Rows(before) = read(part, ahead, at..page.start)? {
                        let whole = taken.whole(&before);
                        end += whole.end;
                        self.flows(part, &before, whole)?;
                    }
                    taken.lose(end..page.end, error);
                    at = page.end;
                    continue;
                }
                Portion::Damaged(page, error) => {
                    at = page.end;
                    taken.lose(page, error);
                    continue;
                }
            };
            let mut whole = taken.whole(&portion);
            if end == count {
                whole.end = portion.count();
            } else if whole.end == 0 {
                // A flow that is longer than the portion.
                most = most.saturating_mul(2);
                continue;
            }
            at += whole.end;
            most = ROWS_AT_ONCE;
            self.flows(part, &portion, whole)?;
        }
        if let Some(error) = taken.problem {
            self.damaged(&error, taken.lost);
        }
        Ok(())
    }

    /// Adds the packets of whole flows.
    fn flows(
        &mut self,
        part: &mut OpenPart,
        rows: &PacketRows,
        of: Range<usize>,
    ) -> Result<(), ArchiveError> {
        let mut data = Vec::new();
        let mut rebuild = Rebuild::default();
        let mut wrong = Wrong::default();
        let (waiting_packets, mode) = (&mut self.waiting, &part.mode);
        let payload = &mut part.payload;
        let mut lost = 0_u64;
        rows.each(of, |row, problem| -> Result<(), ArchiveError> {
            data.clear();
            let rebuilt = rebuild.header(row, problem, &mut data);
            let whole = rebuilt.and_then(|()| match row.payload_len {
                0 => Ok(Some(&data[..])),
                // Its headers alone would lack their checksum, which is computed from the payload.
                _ => payload.of(row),
            });
            match whole {
                Ok(Some(data)) => waiting_packets
                    .push(&waiting(row, mode, data))
                    .map_err(in_temporary_file)?,
                // The payload reader reports others.
                Ok(None) => lost += u64::from(matches!(payload, Payload::Lost(_))),
                Err(problem) => wrong.count(problem),
            }
            Ok(())
        })?;
        if let (1.., Payload::Lost(error)) = (lost, &part.payload) {
            self.damage.push(Damage {
                file: part.payload_named.clone(),
                offset: error.damaged_at(),
                problem: format!("{lost} packets cannot be read: {error}"),
                missing: None,
            });
        }
        if let Some(problem) = wrong.first {
            self.damage.push(Damage {
                file: part.named.clone(),
                offset: 0,
                problem: format!(
                    "{} packets cannot be reconstructed: {problem}",
                    wrong.packets
                ),
                missing: None,
            });
        }
        Ok(())
    }

    /// Reports packets that cannot be read.
    fn damaged(&mut self, error: &ArchiveError, packets: u64) {
        let (file, problem) = match error {
            ArchiveError::Table { file, source } => (file, source.to_string()),
            ArchiveError::Io { file, source, .. } => (file, source.to_string()),
            _ => unreachable!("the caller has looked"),
        };
        self.damage.push(Damage {
            file: file.clone(),
            offset: error.damaged_at(),
            problem: format!("{packets} packets cannot be read: {problem}"),
            missing: None,
        });
    }

    /// Reports the missing files of a part that cannot be read.
    fn missing(&mut self, error: &ArchiveError, part: &Part) {
        let found = parts::missing_files(self.log.disk().as_ref(), part);
        if found.is_empty() {
            // An object store, which is not asked for the others.
            let file = part.file(FileKind::Packets).map_or("", |file| &file.name);
            let file = match error {
                ArchiveError::Io { file, .. } => file.clone(),
                _ => self.log.disk().display(file),
            };
            self.damage
                .push(Damage::missing(file, part.id, part.packets));
        }
        self.damage
            .extend(found.into_iter().map(|(_, damage)| damage));
    }
}

/// Packets that cannot be put together, and why the first of them cannot.
#[derive(Default)]
struct Wrong {
    packets: u64,
    first: Option<Source>,
}

impl Wrong {
    fn count(&mut self, problem: Source) {
        self.packets += 1;
        self.first.get_or_insert(problem);
    }
}

/// What was taken of a row group.
#[derive(Default)]
struct Taken {
    /// Packets whose rows are damaged, or follow from damaged ones.
    lost: u64,
    /// The first damage.
    problem: Option<ArchiveError>,
    /// What comes next comes after damaged rows.
    after_damage: bool,
    /// A flow that may have damaged rows.
    cut: Option<i64>,
}

impl Taken {
    /// The rows of flows that are whole, if more may follow of the last one. Rows before them are lost.
    fn whole(&mut self, rows: &PacketRows) -> Range<usize> {
        let count = rows.count();
        if std::mem::take(&mut self.after_damage) {
            self.cut = rows.flow_id(0);
        }
        let mut start = 0;
        if self.cut.is_some() && rows.flow_id(0) == self.cut {
            start = rows.flow_at(0).end;
            self.lost += start as u64;
        }
        if start == count {
            return count..count;
        }
        self.cut = None;
        start..rows.flow_at(count - 1).start.max(start)
    }

    /// Notes that rows cannot be read, and so not the flows that may have been in them.
    fn lose(&mut self, rows: Range<usize>, error: ArchiveError) {
        self.lost += rows.len() as u64;
        self.problem.get_or_insert(error);
        self.after_damage = true;
    }
}

/// Rows of a row group, or those of them that are in the first damaged page.
enum Portion {
    Rows(PacketRows),
    Damaged(Range<usize>, ArchiveError),
}

/// Reads some of the rows ahead, counted from the first.
fn read(part: &OpenPart, ahead: &Ahead, of: Range<usize>) -> Result<Portion, ArchiveError> {
    let some = between(&ahead.rows, of.clone());
    let error = match PacketRows::read(&part.table, ahead.group, &some) {
        Ok(rows) => return Ok(Portion::Rows(rows)),
        Err(error) if error.is_damage() => error,
        Err(error) => return Err(error),
    };
    let mut at = of.start;
    for page in in_pages(&some) {
        let rows = at..at + page.len();
        match PacketRows::read(&part.table, ahead.group, &[page]) {
            Err(error) if error.is_damage() => return Ok(Portion::Damaged(rows, error)),
            Err(error) => return Err(error),
            Ok(_) => at = rows.end,
        }
    }
    Ok(Portion::Damaged(of, error))
}

/// Whether an export can read the encrypted parts that it needs: those that may have packets within the times of `find`,
/// and those that have metadata of captures, at any time. Opens a file of each such part.
///
/// # Errors
///
/// If the key of one is not given, or another one is ([`ArchiveError::lacks_key`]). Other errors are those of the export.
pub fn check_keys(log: &Log, find: &Find<'_>) -> Result<(), ArchiveError> {
    for part in log.archive().parts.iter().filter(|part| part.key.is_some()) {
        let kind = match find.may_be_within(part.ts_min_ns, part.ts_max_ns) {
            true => FileKind::Packets,
            false if part.file(FileKind::Meta).is_some() => FileKind::Meta,
            false => continue,
        };
        match parts::open(log.disk().as_ref(), part, kind) {
            Err(error) if error.lacks_key() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn parts_of<'a>(log: &'a Log, recording: &Recording) -> impl Iterator<Item = &'a Part> {
    let id = recording.id;
    log.archive()
        .parts
        .iter()
        .filter(move |part| part.recording == id)
}

fn in_temporary_file(source: std::io::Error) -> ArchiveError {
    ArchiveError::Io {
        file: std::env::temp_dir().display().to_string(),
        action: "keep packets in a temporary file (set TMPDIR to use another directory)",
        source,
    }
}

/// Some of the rows in ranges, counted from the first.
fn between(rows: &[Range<usize>], some: Range<usize>) -> Vec<Range<usize>> {
    let mut before = 0;
    let part = |range: &Range<usize>| {
        let start = range.start + some.start.saturating_sub(before).min(range.len());
        let end = range.start + some.end.saturating_sub(before).min(range.len());
        before += range.len();
        (start < end).then_some(start..end)
    };
    rows.iter().filter_map(part).collect()
}

/// The same rows in pieces, each of one page.
fn in_pages(rows: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut pages = Vec::new();
    for range in rows {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min((start / PAGE_ROWS + 1) * PAGE_ROWS);
            pages.push(start..end);
            start = end;
        }
    }
    pages
}

fn waiting<'a>(row: &Row<'a>, mode: &'a str, data: &'a [u8]) -> Waiting<'a> {
    Waiting {
        arrival: row.arrival(),
        ts_ns: row.time,
        wire_len: row.wire,
        captured_len: row.captured(),
        header_len: row.header_len,
        interface: row.interface,
        has_timestamp: row.has_time,
        score: row.score,
        flow_share: row.flow_share,
        texts: [row.class, row.granularity, row.reason, mode.as_bytes()],
        key: None,
        options: row.packet_options.unwrap_or(&[]),
        data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_hold_all_rows_in_order() {
        let rows = [0..10, 20..20 + ROWS_AT_ONCE * 2, 400_000..400_001];
        let expected: Vec<usize> = rows.iter().cloned().flatten().collect();
        for size in [7, 10, 4_099, ROWS_AT_ONCE, expected.len()] {
            let starts = (0..expected.len()).step_by(size);
            let portions = starts.map(|at| between(&rows, at..expected.len().min(at + size)));
            let all: Vec<usize> = portions.flatten().flatten().collect();
            assert!(all == expected, "{size}");
        }
        let pages = in_pages(&rows);
        assert!(
            pages
                .iter()
                .all(|page| page.start / PAGE_ROWS == (page.end - 1) / PAGE_ROWS)
        );
        assert_eq!(pages.into_iter().flatten().collect::<Vec<_>>(), expected);
    }
}
