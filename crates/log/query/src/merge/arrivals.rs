//! When the packets of a log arrived, without those that have no time.

use std::slice;

use strata_archive::parts::{self, TableReader};
use strata_archive::{ArchiveError, PacketColumn};
use strata_blocks::Record;
use strata_store::{Disk, FileKind, Log, Part, Recording, Select, StoreError};

use crate::parts::cells::{IntColumn, WrongValue};

/// The time of packets that have none, ns: only where the earliest packet is of this time, some may have none.
const UNTIMED_NS: u64 = 0;

/// When packets arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// The first and the last packet that have a time, ns; `None` if none has.
    pub span: Option<(u64, u64)>,
    /// Packets without a time.
    pub untimed: u64,
    /// Whether some packets could not be read, since they are encrypted, damaged or missing, and may have no time: they
    /// are in neither.
    pub is_partial: bool,
}

impl Arrivals {
    /// Takes in packets by the times of the first and the last, unless some of them may have no time: whether it has.
    #[must_use]
    pub fn take(&mut self, first_ns: u64, last_ns: u64) -> bool {
        let has_times = first_ns > UNTIMED_NS;
        if has_times {
            self.reach(first_ns, last_ns);
        }
        has_times
    }

    /// Takes in the packets of a part.
    ///
    /// Reads their times if some of them may have none.
    ///
    /// # Errors
    ///
    /// If a file cannot be read for reasons other than that it is encrypted, damaged or missing.
    pub fn part(&mut self, disk: &dyn Disk, part: &Part) -> Result<(), ArchiveError> {
        if part.packets == 0 || self.take(part.ts_min_ns, part.ts_max_ns) {
            return Ok(());
        }
        match self.rows(disk, part) {
            Err(error) if error.is_damage() || error.is_missing() || part.key.is_some() => {
                self.is_partial = true;
                Ok(())
            }
            read => read,
        }
    }

    /// Takes in the packets of the blocks that [`Arrivals::take`] does not, of a recording.
    ///
    /// # Errors
    ///
    /// If a file cannot be read; damage is skipped.
    pub fn blocks(&mut self, log: &Log, recording: &Recording) -> Result<(), StoreError> {
        let select = Select {
            to_ns: Some(UNTIMED_NS.saturating_add(1)),
            ..Select::default()
        };
        for block in log.blocks(recording, &select) {
            let block = match block {
                Ok(block) => block,
                Err(StoreError::Damage(_)) => {
                    self.is_partial = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if block.header.packets == 0 || block.header.ts_min_ns > UNTIMED_NS {
                continue;
            }
            for record in block.records().flatten() {
                if let Record::Packet(packet) = record {
                    self.packet(packet.has_timestamp.then_some(packet.ts_ns));
                }
            }
        }
        Ok(())
    }

    fn rows(&mut self, disk: &dyn Disk, part: &Part) -> Result<(), ArchiveError> {
        let name = part.file(FileKind::Packets).map_or("", |file| &file.name);
        let input = parts::open(disk, part, FileKind::Packets)?;
        let table = TableReader::open(input, disk.display(name), PacketColumn::SPECS)?;
        let wrong = |value: WrongValue| ArchiveError::Table {
            file: disk.display(name),
            source: value.into(),
        };
        let columns = [PacketColumn::Time, PacketColumn::HasTime];
        for (group, rows) in table.groups().into_iter().enumerate() {
            let whole = 0..rows;
            let read = table.batch(
                group,
                &columns.map(PacketColumn::index),
                slice::from_ref(&whole),
            )?;
            let times = IntColumn::of(columns[0].spec(), read.ints(0));
            for row in 0..rows {
                let time = times.time(row).map_err(wrong)?;
                let has_time = read.bool(1, row) != Some(false);
                self.packet(has_time.then_some(time));
            }
        }
        Ok(())
    }

    fn packet(&mut self, time_ns: Option<u64>) {
        match time_ns {
            Some(ns) => self.reach(ns, ns),
            None => self.untimed = self.untimed.saturating_add(1),
        }
    }

    fn reach(&mut self, first_ns: u64, last_ns: u64) {
        let (first, last) = self.span.unwrap_or((first_ns, last_ns));
        self.span = Some((first.min(first_ns), last.max(last_ns)));
    }
}
