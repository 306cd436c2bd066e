//! The threads that write blocks from memory to files.
//!
//! Each block gets its place in a file first, so that a worker's blocks are in the order they were
//! filled, whichever thread writes them. A block is reported only once it is synced.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_blocks::SinkError;
use strata_sys::DiskBlock;

use crate::disk::DiskFile;
use crate::error::{StoreError, io_error};
use crate::writer::{InFlight, OpenFile, PlacedAt};

use super::log::{Placed, settle};

/// Maximum number of blocks that a thread writes and syncs together.
const TOGETHER: usize = 8;

/// File handles that a thread keeps open.
const HANDLES_MAX: usize = 64;

/// Called once a block is synced, or could not be written; it gets the memory back.
pub type BlockDone<B> = Box<dyn FnOnce(B, Result<(), StoreError>) + Send>;

struct Job<B> {
    placed: Placed,
    block: B,
    done: BlockDone<B>,
}

/// How long the threads have been writing, all together.
#[derive(Debug)]
struct Busy {
    done: Duration,
    /// Since when each of them is writing; `None` for one that waits.
    since: Vec<Option<Instant>>,
}

impl Busy {
    fn begins(busy: &Mutex<Self>, thread: usize) {
        let mut busy = busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.since[thread] = Some(Instant::now());
    }

    fn ends(busy: &Mutex<Self>, thread: usize) {
        let mut busy = busy.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(since) = busy.since[thread].take() {
            busy.done += since.elapsed();
        }
    }
}

/// The threads that write blocks.
pub struct RelayWriters<B> {
    sender: Option<SyncSender<Job<B>>>,
    threads: Vec<JoinHandle<()>>,
    busy: Arc<Mutex<Busy>>,
}

impl<B> std::fmt::Debug for RelayWriters<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayWriters")
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

impl<B: DiskBlock> RelayWriters<B> {
    /// Starts this many threads, each with up to `in_flight` blocks in flight to the disk
    /// ([`RelayLog::in_flight`](super::RelayLog::in_flight)).
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub fn start(threads: usize, in_flight: usize) -> Result<Self, StoreError> {
        // Bounded by the blocks of all switches' regions; beyond that, senders wait.
        let (sender, receiver) = mpsc::sync_channel(1024);
        let receiver = Arc::new(Mutex::new(receiver));
        let threads = threads.max(1);
        let busy = Arc::new(Mutex::new(Busy {
            done: Duration::ZERO,
            since: vec![None; threads],
        }));
        let spawn = |number: usize| {
            let (receiver, busy) = (Arc::clone(&receiver), Arc::clone(&busy));
            thread::Builder::new()
                .name(format!("strata-writer-{number}"))
                .spawn(move || write_blocks(&receiver, in_flight, &busy, number))
                .map_err(io_error("writer thread".into(), "start"))
        };
        let started: Result<_, _> = (0..threads).map(spawn).collect();
        Ok(Self {
            sender: Some(sender),
            threads: started?,
            busy,
        })
    }

    /// How long all threads together have been writing so far, and the number of threads.
    #[must_use]
    pub fn busy(&self) -> (Duration, usize) {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let now: Duration = busy.since.iter().flatten().map(Instant::elapsed).sum();
        (busy.done + now, busy.since.len())
    }

    /// Queues a block for writing. `done` is called from one of the threads.
    pub fn write(&self, placed: Placed, block: B, done: BlockDone<B>) {
        let job = Job {
            placed,
            block,
            done,
        };
        if let Some(sender) = &self.sender
            && let Err(mpsc::SendError(job)) = sender.send(job)
        {
            (job.done)(job.block, Err(SinkError::WriterGone.into()));
        }
    }
}

impl<B> Drop for RelayWriters<B> {
    /// Waits until everything is written.
    fn drop(&mut self) {
        self.sender = None;
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}

/// Waiting jobs, at least one; `None` once there will be no more.
fn gather<B>(receiver: &Mutex<Receiver<Job<B>>>) -> Option<Vec<Job<B>>> {
    let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
    let mut jobs = vec![receiver.recv().ok()?];
    while jobs.len() < TOGETHER
        && let Ok(job) = receiver.try_recv()
    {
        jobs.push(job);
    }
    Some(jobs)
}

/// The outcome of a job.
struct Ended<B> {
    placed: PlacedAt,
    block: B,
    done: BlockDone<B>,
    outcome: Result<(), StoreError>,
}

/// A thread's handles, by file name.
type Handles = HashMap<String, Box<dyn DiskFile>>;

fn write_blocks<B: DiskBlock>(
    receiver: &Mutex<Receiver<Job<B>>>,
    in_flight: usize,
    busy: &Mutex<Busy>,
    number: usize,
) {
    let mut handles = Handles::new();
    let mut in_flight = InFlight::new(in_flight);
    while let Some(jobs) = gather(receiver) {
        Busy::begins(busy, number);
        if handles.len() > HANDLES_MAX {
            handles.clear();
        }
        let mut all = write(&mut in_flight, &mut handles, jobs);
        for Ended {
            placed, outcome, ..
        } in &mut all
        {
            if outcome.is_ok()
                && let Some(handle) = handles.get_mut(placed.file().name())
            {
                // A second sync of the same file has nothing to do.
                *outcome = handle.sync().map_err(placed.file().error("sync"));
            }
        }
        for ended in all {
            let outcome = settle(&ended.placed, ended.outcome);
            (ended.done)(ended.block, outcome);
        }
        Busy::ends(busy, number);
    }
}

/// Writes blocks, several in flight at a time.
fn write<B: DiskBlock>(
    in_flight: &mut InFlight<B>,
    handles: &mut Handles,
    jobs: Vec<Job<B>>,
) -> Vec<Ended<B>> {
    let mut waiting = VecDeque::new();
    let mut all = Vec::new();
    for Job {
        placed: Placed(placed),
        block,
        done,
    } in jobs
    {
        if !in_flight.has_room() {
            all.extend(complete(in_flight, &mut waiting));
        }
        match open(handles, placed.file()) {
            Ok(handle) => {
                in_flight.submit(handle.as_mut(), placed, block);
                waiting.push_back(done);
            }
            Err(error) => all.push(Ended {
                placed,
                block,
                done,
                outcome: Err(error),
            }),
        }
    }
    while let Some(ended) = complete(in_flight, &mut waiting) {
        all.push(ended);
    }
    all
}

/// Waits for the first block in flight.
fn complete<B: DiskBlock>(
    in_flight: &mut InFlight<B>,
    waiting: &mut VecDeque<BlockDone<B>>,
) -> Option<Ended<B>> {
    let (placed, block, written) = in_flight.complete()?;
    let done = waiting.pop_front()?;
    let outcome = written.map_err(placed.file().error("write"));
    Some(Ended {
        placed,
        block,
        done,
        outcome,
    })
}

fn open<'a>(
    handles: &'a mut Handles,
    file: &OpenFile,
) -> Result<&'a mut Box<dyn DiskFile>, StoreError> {
    match handles.entry(file.name().to_owned()) {
        Entry::Occupied(open) => Ok(open.into_mut()),
        Entry::Vacant(place) => Ok(place.insert(file.open()?)),
    }
}
