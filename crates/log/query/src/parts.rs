//! The packets of a recording's parts, rebuilt as far as they were kept, in order of arrival.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use strata_archive::parts::{self, Input, PAGE_ROWS, PayloadReader, Rebuild, Row, TableReader};
use strata_archive::{ArchiveError, PacketColumn};
use strata_store::{Damage, FileKind, Log, Part, Recording};

use crate::by_time::{Arrival, ByTime, Waiting};
use crate::find::{self, Find};

pub(crate) type Source = Box<dyn std::error::Error + Send + Sync>;

/// Rows read at a time.
const ROWS_AT_ONCE: usize = 1 << 17;

/// A part being read.
struct OpenPart {
    table: TableReader<Input>,
    payload: Option<PayloadReader>,
    mode: String,
    named: String,
    payload_named: String,
    /// Row groups still to be read.
    groups: usize,
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
        find: &'a Find<'a>,
        memory_bytes: usize,
    ) -> Self {
        let mut parts_ahead: Vec<&Part> = parts_of(log, recording).collect();
        parts_ahead.sort_by_key(|part| std::cmp::Reverse((part.ts_min_ns, part.id)));
        Self {
            log,
            find,
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
        let wanted = find::wanted(disk, part, self.find)?;
        if wanted.as_ref().is_some_and(BTreeMap::is_empty) {
            return Ok(None);
        }
        let named = |kind| disk.display(part.file(kind).map_or("", |file| &file.name));
        let input = parts::open(disk, part, FileKind::Packets)?;
        let table = TableReader::open(input, named(FileKind::Packets), PacketColumn::SPECS)?;
        let payload = match part.file(FileKind::Payload) {
            Some(_) => Some(PayloadReader::new(&parts::open(
                disk,
                part,
                FileKind::Payload,
            )?)),
            None => None,
        };
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
        for member in part
            .payload
            .iter_mut()
            .flat_map(PayloadReader::take_unreadable)
        {
            let (packets, problem) = (member.packets, member.problem);
            self.damage.push(Damage {
                file: part.payload_named.clone(),
                offset: member.at,
                problem: format!("{packets} packets in the member from here on: {problem}"),
            });
        }
        taken?;
        part.groups -= 1;
        if part.groups > 0 {
            self.open.insert(ahead.part, part);
        }
        Ok(())
    }

    /// Adds the packets of a row group, but for those whose rows are damaged.
    fn rows_of(&mut self, part: &mut OpenPart, ahead: &Ahead) -> Result<(), ArchiveError> {
        let mut taken = Taken::default();
        for some in in_portions(&ahead.rows) {
            match read_rows(part, ahead.group, &some) {
                Ok(rows) => self.take_rows(part, &mut taken, rows)?,
                Err(error) if error.is_damage() => {
                    for page in in_pages(&some) {
                        match read_rows(part, ahead.group, std::slice::from_ref(&page)) {
                            Ok(rows) => self.take_rows(part, &mut taken, rows)?,
                            Err(error) if error.is_damage() => taken.lose(page.len(), error),
                            Err(error) => return Err(error),
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
        self.flows(part, &mut taken.rows)?;
        if let Some(error) = taken.problem {
            self.damaged(&error, taken.lost);
        }
        Ok(())
    }

    /// Adds the packets of flows that are whole.
    fn take_rows(
        &mut self,
        part: &mut OpenPart,
        taken: &mut Taken,
        rows: Vec<Row>,
    ) -> Result<(), ArchiveError> {
        let whole = taken.add(rows);
        self.flows(part, &mut taken.rows[..whole])?;
        taken.rows.drain(..whole);
        Ok(())
    }

    /// Adds the packets of whole flows.
    fn flows(&mut self, part: &mut OpenPart, rows: &mut [Row]) -> Result<(), ArchiveError> {
        let mut data = Vec::new();
        let (mut wrong, mut first_wrong) = (0_u64, None);
        for flow in rows.chunk_by_mut(|one, next| one.flow_id == next.flow_id) {
            flow.sort_by_key(Row::arrival);
            let mut rebuild = Rebuild::default();
            for row in flow {
                data.clear();
                let rebuilt = header(&mut rebuild, row, &mut data);
                let whole = rebuilt.and_then(|()| match row.payload_len {
                    0 => Ok(Some(&data[..])),
                    _ => payload_of(part.payload.as_mut(), row),
                });
                let data = match whole {
                    Ok(Some(data)) => data,
                    // The payload reader reports it.
                    Ok(None) => continue,
                    Err(problem) => {
                        wrong += 1;
                        first_wrong.get_or_insert(problem);
                        continue;
                    }
                };
                let pushed = self.waiting.push(&waiting(row, &part.mode, data));
                pushed.map_err(in_temporary_file)?;
            }
        }
        if let Some(problem) = first_wrong {
            self.damage.push(Damage {
                file: part.named.clone(),
                offset: 0,
                problem: format!("{wrong} packets cannot be put together: {problem}"),
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
        });
    }
}

/// Rows of a row group, as they are read.
#[derive(Default)]
struct Taken {
    /// Of the last flow, of which more may follow.
    rows: Vec<Row>,
    /// Packets whose rows are damaged, or follow from damaged ones.
    lost: u64,
    /// The first damage.
    problem: Option<ArchiveError>,
    /// What comes next comes after damaged rows.
    after_damage: bool,
    /// A flow that may have damaged rows: each packet's headers follow from those before it.
    cut: Option<i64>,
}

impl Taken {
    /// Adds rows; returns how many of all are of whole flows.
    fn add(&mut self, mut rows: Vec<Row>) -> usize {
        if std::mem::take(&mut self.after_damage) {
            self.cut = rows.first().map(|row| row.flow_id);
        }
        if self.cut.is_some() {
            let cut = rows.iter().take_while(|row| Some(row.flow_id) == self.cut);
            let cut = cut.count();
            self.lost += cut as u64;
            rows.drain(..cut);
        }
        self.rows.append(&mut rows);
        let last = self.rows.last().map(|row| row.flow_id);
        let of_last = self.rows.iter().rev();
        let of_last = of_last.take_while(|row| Some(row.flow_id) == last);
        self.rows.len() - of_last.count()
    }

    /// Notes that rows cannot be read, and so not the flows that may have been in them.
    fn lose(&mut self, rows: usize, error: ArchiveError) {
        self.lost += (rows + self.rows.len()) as u64;
        self.rows.clear();
        self.problem.get_or_insert(error);
        self.after_damage = true;
    }
}

/// Rows of a row group.
fn read_rows(
    part: &OpenPart,
    group: usize,
    rows: &[Range<usize>],
) -> Result<Vec<Row>, ArchiveError> {
    let all: Vec<usize> = (0..PacketColumn::ALL.len()).collect();
    let columns = part.table.read(group, &all, rows)?;
    let count = rows.iter().map(Range::len).sum();
    parts::rows(&columns, count).map_err(|source| ArchiveError::Table {
        file: part.named.clone(),
        source,
    })
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
        action: "keep packets in a temporary file (TMPDIR says where)",
        source,
    }
}

/// Ranges of rows, at most [`ROWS_AT_ONCE`] in each portion.
fn in_portions(rows: &[Range<usize>]) -> Vec<Vec<Range<usize>>> {
    let mut portions = vec![Vec::new()];
    let mut room = ROWS_AT_ONCE;
    for range in rows {
        let mut start = range.start;
        while start < range.end {
            if room == 0 {
                portions.push(Vec::new());
                room = ROWS_AT_ONCE;
            }
            let end = range.end.min(start + room);
            room -= end - start;
            if let Some(portion) = portions.last_mut() {
                portion.push(start..end);
            }
            start = end;
        }
    }
    portions
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

pub(crate) fn header(rebuild: &mut Rebuild, row: &Row, out: &mut Vec<u8>) -> Result<(), Source> {
    rebuild.header(row, out)?;
    if out.len() != usize::from(row.header_len) {
        return Err("a header does not have the length that it had".into());
    }
    Ok(())
}

/// The bytes of a packet kept beyond its headers; `None` if they cannot be read.
pub(crate) fn payload_of<'a>(
    payload: Option<&'a mut PayloadReader>,
    row: &Row,
) -> Result<Option<&'a [u8]>, Source> {
    let offset = row.payload_offset.ok_or("a packet without its payload")?;
    let payload = payload.ok_or("a part without its payload")?;
    let Some(bytes) = payload.packet(offset) else {
        return Ok(None);
    };
    if bytes.len() as u64 != u64::from(row.header_len) + u64::from(row.payload_len) {
        return Err("a payload does not have the length that it had".into());
    }
    Ok(Some(bytes))
}

fn waiting<'a>(row: &'a Row, mode: &'a str, data: &'a [u8]) -> Waiting<'a> {
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
        texts: [
            row.class.data(),
            row.granularity.data(),
            row.reason.data(),
            mode.as_bytes(),
        ],
        options: row
            .packet_options
            .as_ref()
            .map_or(&[], |bytes| bytes.data()),
        data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_hold_all_rows_in_order() {
        let rows = [0..10, 20..20 + ROWS_AT_ONCE * 2, 400_000..400_001];
        let portions = in_portions(&rows);
        let len = |portion: &Vec<Range<usize>>| portion.iter().map(Range::len).sum::<usize>();
        assert_eq!(portions.len(), 3);
        assert!(portions.iter().all(|portion| len(portion) <= ROWS_AT_ONCE));
        let all: Vec<usize> = portions.into_iter().flatten().flatten().collect();
        let expected: Vec<usize> = rows.iter().cloned().flatten().collect();
        assert_eq!(all, expected);
        let pages = in_pages(&rows);
        assert!(
            pages
                .iter()
                .all(|page| page.start / PAGE_ROWS == (page.end - 1) / PAGE_ROWS)
        );
        assert_eq!(pages.into_iter().flatten().collect::<Vec<_>>(), expected);
    }
}
