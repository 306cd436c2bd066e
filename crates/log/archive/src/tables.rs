//! The tables, and rows made from what is still in block files: by the same code as compaction, a run at a
//! time, with only the columns that are wanted.

use strata_store::{BlockFile, Damage, Log, Recording, Select, StoreError};
use strata_tables::{Coded, Coding, Column, Spec, Values, field_ids_by_place};

use crate::columns::addresses::addresses;
use crate::columns::filler::{Filler, Filling, keeps};
use crate::columns::packets::{self, PacketColumn};
use crate::compact::jobs::intake::{Ended, Intake, Runs};
use crate::error::ArchiveError;
use crate::flows::{self, FlowColumn};
use crate::run::{RUN_PACKETS, Run, u32_of};

// Tables of many logs know a column by its field id, for as long as they exist: a column that is added has an id of its
// own (`Spec::field_id`). The three ids that follow these are those of `sensor`, `hour` and `retention`, which only
// Iceberg tables have (`python/strata/lake.py`), so ids of added columns begin at 49 in `packets` and at 61 in `flows`; the next free ids are 49 and 72.
const _: () = assert!(field_ids_by_place(PacketColumn::SPECS) == 45);
const _: () = assert!(field_ids_by_place(FlowColumn::SPECS) == 57);

/// A table of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// One row per packet.
    Packets,
    /// One row per flow and run.
    Flows,
}

impl Table {
    /// Its name, in SQL and as a directory of a log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Flows => "flows",
        }
    }

    /// Its columns, in order.
    #[must_use]
    pub fn specs(self) -> &'static [Spec] {
        match self {
            Self::Packets => PacketColumn::SPECS,
            Self::Flows => FlowColumn::SPECS,
        }
    }

    /// The column with this name.
    #[must_use]
    pub fn column(self, name: &str) -> Option<&'static Spec> {
        self.specs().iter().find(|spec| spec.name == name)
    }
}

/// Which rows of block files are wanted.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The table.
    pub table: Table,
    /// Its columns, by number.
    pub columns: Vec<usize>,
    /// Blocks that may hold wanted packets. Rows of other blocks may be included.
    pub select: Select,
}

/// Receives rows.
pub trait TakeRows {
    /// Takes some rows, the columns as in [`Rows::columns`]; false if no more are wanted.
    fn rows(&mut self, columns: Vec<Column>, count: usize) -> bool;

    /// Reports a block that is skipped, or packets whose definitions are missing.
    fn damage(&mut self, damage: Damage);
}

/// Passes the rows of a block file to `take`. `number` distinguishes the file from other ones and
/// from parts: it is the high half of `flow_id`, which otherwise depends only on what the file
/// holds, so that the tables match each other.
///
/// Memory: a run, some 150 bytes for each of up to 524,288 packets.
///
/// # Errors
///
/// If the file cannot be read.
pub fn rows_of_blocks(
    log: &Log,
    recording: &Recording,
    file: &BlockFile,
    number: u32,
    rows: &Rows,
    take: &mut impl TakeRows,
) -> Result<(), ArchiveError> {
    let all = Select::default();
    let specs = rows.table.specs();
    let is_of_a_run = |column: &usize| specs[*column].of_run;
    let select = if rows.table == Table::Flows || rows.columns.iter().any(is_of_a_run) {
        let looked = Select {
            without_records: true,
            ..rows.select.clone()
        };
        if log.blocks_in(recording, file, &looked).next().is_none() {
            return Ok(());
        }
        &all
    } else {
        &rows.select
    };
    let mut intake = Intake::new(recording, false);
    let asks_headers = |column: &usize| specs[*column].of_headers;
    intake.run.without_headers = !rows.columns.iter().any(asks_headers);
    let mut batches = Batches {
        rows,
        recording: recording.id,
        number,
        runs: 0,
        wants_more: true,
        take,
    };
    for block in log.blocks_in(recording, file, select) {
        if !batches.wants_more {
            return Ok(());
        }
        let problem = match block {
            Ok(block) => intake.block(&block, &mut batches)?.err(),
            Err(StoreError::Damage(damage)) => Some(damage),
            Err(error) => return Err(error.into()),
        };
        if let Some(damage) = problem {
            batches.take.damage(damage);
        }
    }
    if let Some((offset, problem)) = intake.undefined() {
        let file = log.disk().display(&file.name);
        batches.take.damage(Damage {
            file,
            offset,
            problem,
            missing: None,
        });
    }
    intake.end_run(&mut batches)
}

/// Turns runs into batches.
struct Batches<'a, T> {
    rows: &'a Rows,
    recording: u32,
    number: u32,
    runs: u32,
    wants_more: bool,
    take: &'a mut T,
}

impl<T: TakeRows> Runs for Batches<'_, T> {
    fn run(&mut self, ended: Ended) -> Result<Run, ArchiveError> {
        let (columns, count) = match self.rows.table {
            Table::Packets => self.packets(&ended),
            Table::Flows => self.flows(&ended),
        };
        self.runs += 1;
        if self.wants_more {
            self.wants_more = self.take.rows(columns, count);
        }
        Ok(ended.emptied())
    }

    fn close(&mut self, _: &Intake) -> Result<(), ArchiveError> {
        Ok(())
    }
}

impl<T> Batches<'_, T> {
    /// By flow of the run: its number in order of arrival, so that a run that has grown gives its
    /// earlier flows the same numbers.
    fn flow_ids(&self, run: &Run) -> Vec<i64> {
        let in_runs = i64::from(self.runs) * i64::from(u32_of(RUN_PACKETS));
        let first = (i64::from(self.number) << 32) | in_runs;
        (first..).take(run.flows.len()).collect()
    }

    fn packets(&self, ended: &Ended) -> (Vec<Column>, usize) {
        let run = &ended.run;
        let rows: Vec<u32> = (0..u32_of(run.len())).collect();
        let (addresses, keeps) = (addresses(run), keeps());
        let flow_ids = self.flow_ids(run);
        let mut filler = Filler::new(Filling {
            run,
            rows: &rows,
            verdicts: &ended.verdicts,
            flow_ids: &flow_ids,
            payload_at: &[],
            recording: self.recording,
            addresses: &addresses,
            keeps: &keeps,
        });
        let columns = self.columns(|index, column| packets::fill(index, &mut filler, column));
        (columns, run.len())
    }

    fn flows(&self, ended: &Ended) -> (Vec<Column>, usize) {
        let run = &ended.run;
        let addresses = addresses(run);
        let ids = self.flow_ids(run);
        let numbers: Vec<u32> = (0..u32_of(run.flows.len())).collect();
        let names = &ended.context.classes;
        let place = flows::Place {
            recording: self.recording,
            flow_ids: &ids,
            group: 0,
        };
        let rows = flows::flow_rows(run, &numbers, &addresses, names, &place);
        let columns = self.columns(|index, column| flows::fill(index, &rows, column));
        (columns, rows.len())
    }

    fn columns(&self, mut fill: impl FnMut(usize, &mut Column)) -> Vec<Column> {
        let filled = self.rows.columns.iter().map(|&index| {
            let spec = &self.rows.table.specs()[index];
            let mut column = Column::of(spec.kind);
            if spec.coding == Coding::Codes {
                column.values = Values::Coded(Coded::default());
            }
            fill(index, &mut column);
            column
        });
        filled.collect()
    }
}
