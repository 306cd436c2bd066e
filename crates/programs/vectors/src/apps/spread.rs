//! An application in several threads (section 6.1 of the *Flow paper: load balancing): records are spread by flow, or
//! by what the application chooses, and go to queues, one for each thread. They go in rounds, so that the rows of a
//! round are written in the order of its records, and do not depend on the number of threads.

use std::mem;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};

use anyhow::{Result, anyhow};
use strata_gpv::agent::{Record, Run};
use strata_gpv::{Full, Key};
use strata_gpv_run::Sender;
use strata_terminal::table::Cell;

use super::rows::Rows;
use super::{App, Place, Sink, States};

/// Records of a round.
const RECORDS: usize = 4096;
/// Rounds that threads work on. When there are as many, reading waits; vectors that come by UDP in the meantime wait
/// in the socket, and are counted as lost if it is full.
const ROUNDS_MAX: usize = 2;

/// A cell that owns its text.
enum Held {
    Flag(bool),
    U32(u32),
    U64(u64),
    F64(f64),
    Word(Option<String>),
    Text(String),
    Maybe(Option<u64>),
}

impl Held {
    fn of(cell: &Cell<'_>) -> Self {
        match *cell {
            Cell::Flag(flag) => Self::Flag(flag),
            Cell::U32(number) => Self::U32(number),
            Cell::U64(number) => Self::U64(number),
            Cell::F64(number) => Self::F64(number),
            Cell::Word(word) => Self::Word(word.map(str::to_owned)),
            Cell::Text(text) => Self::Text(text.to_owned()),
            Cell::Maybe(number) => Self::Maybe(number),
        }
    }

    fn cell(&self) -> Cell<'_> {
        match self {
            Self::Flag(flag) => Cell::Flag(*flag),
            Self::U32(number) => Cell::U32(*number),
            Self::U64(number) => Cell::U64(*number),
            Self::F64(number) => Cell::F64(*number),
            Self::Word(word) => Cell::Word(word.as_deref()),
            Self::Text(text) => Cell::Text(text),
            Self::Maybe(number) => Cell::Maybe(*number),
        }
    }
}

/// Rows of a thread, and their places.
type Placed = Vec<(Place, Vec<Held>)>;

impl Sink for Placed {
    fn push(&mut self, place: Place, cells: &[Cell<'_>]) -> Result<()> {
        Vec::push(self, (place, cells.iter().map(Held::of).collect()));
        Ok(())
    }
}

/// Writes the rows of all threads in the order of their places.
fn write(mut placed: Placed, rows: &mut Rows) -> Result<()> {
    // Rows with the same place are of one thread, and stay in its order.
    placed.sort_by_key(|(place, _)| *place);
    let mut cells = Vec::new();
    for (_, held) in &placed {
        cells.clear();
        cells.extend(held.iter().map(Held::cell));
        rows.write(&cells)?;
    }
    Ok(())
}

/// Records of a round for one thread.
#[derive(Default)]
struct Batch {
    records: Vec<Copied>,
    runs: Vec<Run>,
    tuples: Vec<Full>,
}

/// A record whose runs and tuples are in its batch, after those of the previous record.
struct Copied {
    sender: Sender,
    number: u64,
    key: Key,
    runs: usize,
    tuples: usize,
}

impl Batch {
    fn push(&mut self, sender: Sender, number: u64, record: &Record<'_, Full>) {
        self.records.push(Copied {
            sender,
            number,
            key: record.key,
            runs: record.runs.len(),
            tuples: record.tuples.len(),
        });
        self.runs.extend_from_slice(record.runs);
        self.tuples.extend_from_slice(record.tuples);
    }

    /// Gives its records to the application.
    fn take<A: App>(&self, states: &mut States<'_, A>, rows: &mut Placed) -> Result<()> {
        let (mut runs, mut tuples) = (self.runs.as_slice(), self.tuples.as_slice());
        for copied in &self.records {
            let (own_runs, other_runs) = runs.split_at(copied.runs);
            let (own_tuples, other_tuples) = tuples.split_at(copied.tuples);
            (runs, tuples) = (other_runs, other_tuples);
            let record = Record {
                key: copied.key,
                runs: own_runs,
                tuples: own_tuples,
            };
            states.take(copied.sender, copied.number, &record, rows)?;
        }
        states.settle(rows)
    }
}

/// A thread and its queues. Neither is ever full: see [`ROUNDS_MAX`].
struct Worker<'scope> {
    batch: Batch,
    queue: SyncSender<Batch>,
    done: Receiver<Result<Placed>>,
    thread: ScopedJoinHandle<'scope, Result<(Placed, Vec<String>)>>,
}

/// The threads of an application. Memory: up to [`ROUNDS_MAX`] rounds of records and of their rows.
pub(super) struct Spread<'scope> {
    workers: Vec<Worker<'scope>>,
    /// Records of the round that is not given to the threads yet.
    records: usize,
    /// Rounds whose rows were not written yet.
    rounds: usize,
}

impl<'scope> Spread<'scope> {
    /// Starts the threads.
    pub(super) fn new<'a: 'scope, A: App>(
        scope: &'scope Scope<'scope, '_>,
        app: &'a A,
        seed: u64,
        jobs: usize,
    ) -> Self {
        let worker = |_| {
            let (queue, batches) = sync_channel::<Batch>(ROUNDS_MAX);
            let (rows, done) = sync_channel(ROUNDS_MAX);
            let thread = scope.spawn(move || work(app, seed, &batches, &rows));
            Worker {
                batch: Batch::default(),
                queue,
                done,
                thread,
            }
        };
        Self {
            workers: (0..jobs).map(worker).collect(),
            records: 0,
            rounds: 0,
        }
    }

    /// Takes a record for the thread of this part.
    pub(super) fn take(
        &mut self,
        part: u64,
        sender: Sender,
        number: u64,
        record: &Record<'_, Full>,
        rows: &mut Rows,
    ) -> Result<()> {
        let worker = strata_wire::exact::<usize>(part % self.workers.len() as u64);
        self.workers[worker].batch.push(sender, number, record);
        self.records += 1;
        match self.records < RECORDS {
            true => Ok(()),
            false => self.give(rows),
        }
    }

    /// Gives a round to the threads, and writes the rows of an earlier one if there are too many.
    fn give(&mut self, rows: &mut Rows) -> Result<()> {
        if self.rounds == ROUNDS_MAX {
            self.write(rows)?;
        }
        for worker in &mut self.workers {
            let batch = mem::take(&mut worker.batch);
            worker.queue.send(batch).map_err(|_| ended())?;
        }
        self.records = 0;
        self.rounds += 1;
        Ok(())
    }

    /// Writes the rows of the oldest round.
    fn write(&mut self, rows: &mut Rows) -> Result<()> {
        let mut placed = Placed::new();
        for worker in &self.workers {
            placed.extend(worker.done.recv().map_err(|_| ended())??);
        }
        self.rounds -= 1;
        write(placed, rows)
    }

    /// Writes the rows of all records that were taken.
    pub(super) fn settle(&mut self, rows: &mut Rows) -> Result<()> {
        if self.records > 0 {
            self.give(rows)?;
        }
        while self.rounds > 0 {
            self.write(rows)?;
        }
        Ok(())
    }

    /// Writes the rows that wait for the end. What the rows lack.
    pub(super) fn finish(mut self, rows: &mut Rows) -> Result<Vec<String>> {
        self.settle(rows)?;
        let (mut placed, mut lacks) = (Placed::new(), Vec::new());
        for worker in self.workers {
            drop(worker.queue);
            let (rows, lack) = worker.thread.join().map_err(|_| ended())??;
            placed.extend(rows);
            lacks.extend(lack);
        }
        write(placed, rows)?;
        Ok(lacks)
    }
}

fn ended() -> anyhow::Error {
    anyhow!("a thread of the application ended early: this is a bug of Strata")
}

/// Takes batches until no more come.
fn work<A: App>(
    app: &A,
    seed: u64,
    batches: &Receiver<Batch>,
    done: &SyncSender<Result<Placed>>,
) -> Result<(Placed, Vec<String>)> {
    let mut states = States::new(app, seed);
    for batch in batches {
        let mut rows = Placed::new();
        let taken = batch.take(&mut states, &mut rows);
        if done.send(taken.map(|()| rows)).is_err() {
            // The command has failed, and says why.
            break;
        }
    }
    let mut rows = Placed::new();
    let lacks = states.finish(&mut rows)?;
    Ok((rows, lacks))
}
