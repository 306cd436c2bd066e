//! A job: some block files of one worker, made into parts in `staging/`.

pub(crate) mod defined;
pub(crate) mod intake;
pub(crate) mod protection;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;

use strata_blocks::ClassCount;
use strata_store::{
    ARCHIVE_NAME, BlockFile, Damage, Disk, Gone, Log, Part, Recording, Select, StoreError,
};
use strata_wire::{Interface, Meta};

use crate::columns::addresses::addresses;
use crate::columns::filler::keeps;
use crate::columns::sorted::Sorted;
use crate::compact::anomalous::Anomalous;
use crate::compact::jobs::intake::{Ended, Intake, Runs};
use crate::error::ArchiveError;
use crate::keys::Recipients;
use crate::part::{Counters, Job, PartWriter, Share};
use crate::retention::{FlowRetention, retention_name};
use crate::run::Run;
use crate::run::flow::Flow;

/// The result of a job.
pub(crate) enum Outcome {
    /// Parts and the block files that they replace.
    Parts(Made),
    /// A file, by name, is damaged.
    Damaged(Damage, String),
}

/// Parts, in `staging/`.
pub(crate) struct Made {
    pub(crate) parts: Vec<Part>,
    /// The block files that these were made of.
    pub(crate) gone: Vec<Gone>,
    /// What was left out, by class and granularity: nothing, unless only what policies protect was
    /// wanted.
    pub(crate) left_out: Vec<ClassCount>,
}

/// Where parts are written, to whom they are encrypted, if at all, and when to write no more.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) encrypt_to: &'a Recipients,
    /// Once it is set, the job ends with [`ArchiveError::Interrupted`], within the row group that it
    /// writes.
    pub(crate) stop: &'a AtomicBool,
    /// More than one: blocks are taken in beside the writing of parts, which this many threads share.
    pub(crate) threads: NonZeroUsize,
    /// Write only flows that policies may protect, and count the rest.
    pub(crate) only_protected: bool,
}

impl Target<'_> {
    pub(crate) fn go_on(&self) -> Result<(), ArchiveError> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(ArchiveError::Interrupted),
            false => Ok(()),
        }
    }
}

/// Makes parts from block files, in `staging/`.
///
/// # Errors
///
/// If it is told to stop, or files cannot be read or written: what is in `staging/` is then to be
/// removed.
pub(crate) fn run_job(
    log: &Log,
    output: Target<'_>,
    recording: &Recording,
    files: &[BlockFile],
    next_part: u32,
) -> Result<Outcome, ArchiveError> {
    let mut intake = Intake::new(recording, output.only_protected);
    let mut work = Work {
        output,
        recording,
        anomalous: Anomalous::of(log, recording),
        open: BTreeMap::new(),
        parts: Vec::new(),
        next_part,
    };
    let taken = if output.threads == NonZeroUsize::MIN {
        take_in_all(log, output, recording, files, &mut intake, &mut work)?
    } else {
        let take_in =
            |runs: &mut Ahead| take_in_all(log, output, recording, files, &mut intake, runs);
        work.behind(take_in)?
    };
    let gone = match taken {
        Ok(gone) => gone,
        Err((damage, name)) => return Ok(Outcome::Damaged(damage, name)),
    };
    let parts = work.finish(&intake)?;
    Ok(Outcome::Parts(Made {
        parts,
        gone,
        left_out: intake.into_left_out(),
    }))
}

/// Takes in the blocks of files; returns their entries for the manifest. The inner error is that of the
/// file of this name.
fn take_in_all(
    log: &Log,
    output: Target<'_>,
    recording: &Recording,
    files: &[BlockFile],
    intake: &mut Intake,
    runs: &mut impl Runs,
) -> Result<Result<Vec<Gone>, (Damage, String)>, ArchiveError> {
    let mut gone = Vec::new();
    for file in files {
        match take_in(log, output, recording, file, intake, runs)? {
            Ok(this) => gone.push(this),
            Err(damage) => return Ok(Err((damage, file.name.clone()))),
        }
    }
    intake.end_run(runs)?;
    Ok(Ok(gone))
}

/// Takes in the blocks of a file; returns its entry for the manifest. The inner error is the file's.
fn take_in(
    log: &Log,
    output: Target<'_>,
    recording: &Recording,
    file: &BlockFile,
    intake: &mut Intake,
    runs: &mut impl Runs,
) -> Result<Result<Gone, Damage>, ArchiveError> {
    let mut gone = Gone {
        name: file.name.clone(),
        recording: recording.id,
        worker: file.worker,
        packets: 0,
        first_seq: 0,
        next_seq: 0,
        incomplete: 0,
    };
    let select = Select {
        once: true,
        ..Select::default()
    };
    intake.begin_file();
    for block in log.blocks_in(recording, file, &select) {
        output.go_on()?;
        let block = match block {
            Ok(block) => block,
            Err(StoreError::Damage(damage)) => return Ok(Err(damage)),
            // The disk cannot read this file: the others are compacted all the same.
            Err(StoreError::Io { file, source, .. }) => {
                return Ok(Err(Damage {
                    file,
                    offset: 0,
                    problem: format!("the file cannot be read: {source}"),
                    missing: None,
                }));
            }
            Err(error) => return Err(error.into()),
        };
        if block.header.packets > 0 {
            if gone.packets == 0 {
                gone.first_seq = block.header.first_seq;
            }
            gone.packets = gone.packets.saturating_add(block.header.packets.into());
            gone.next_seq = block.header.next_seq;
            gone.incomplete = gone.incomplete.saturating_add(block.incomplete.into());
        }
        if let Err(damage) = intake.block(&block, runs)? {
            return Ok(Err(damage));
        }
    }
    // Without the interface, the part would have neither their addresses nor their payload.
    Ok(intake.undefined().map_or(Ok(gone), |(offset, problem)| {
        Err(Damage {
            file: log.disk().display(&file.name),
            offset,
            problem,
            missing: None,
        })
    }))
}

/// A job in progress: it turns runs into parts.
struct Work<'a> {
    output: Target<'a>,
    recording: &'a Recording,
    /// Which of the model's classes are anomalous.
    anomalous: Anomalous,
    /// By hour and retention class.
    open: BTreeMap<(String, String), PartWriter>,
    parts: Vec<Part>,
    next_part: u32,
}

impl Runs for Work<'_> {
    /// Sorts the run and writes it into the parts of its hour.
    fn run(&mut self, ended: Ended) -> Result<Run, ArchiveError> {
        let Ended {
            run,
            verdicts,
            context,
            ..
        } = &ended;
        let hour = hour_name(run.time[0] + run.late[0]);
        let retentions = self.retentions(&ended);
        let sorted = Sorted::of(run, &retentions);
        let (addresses, keeps) = (addresses(run), keeps());
        let mut flows = &sorted.flows[..];
        let (mut rows, mut with_payload) = (&sorted.rows[..], &sorted.with_payload[..]);
        let counters = Counters::of(run, verdicts, &retentions);
        while let Some(&first) = flows.first() {
            self.output.go_on()?;
            let class = retentions[first as usize];
            let same = |flow: &&u32| retentions[**flow as usize] == class;
            let flow_count = flows.iter().take_while(same).count();
            let row_count: u64 = flows[..flow_count]
                .iter()
                .map(|flow| run.flows[*flow as usize].stats.packets)
                .map(|[there, back]| there + back)
                .sum();
            let row_count = usize::try_from(row_count).expect("a run has half a million packets");
            let of_share = |row: &&u32| {
                let slot = run.slot[**row as usize];
                retentions[(slot / 2) as usize] == class
            };
            let payload_count = with_payload.iter().take_while(of_share).count();
            let share = Share {
                run,
                rows: &rows[..row_count],
                with_payload: &with_payload[..payload_count],
                counters: &counters[&class],
                verdicts,
                flows: &flows[..flow_count],
                addresses: &addresses,
                keeps: &keeps,
                class_names: &context.classes,
            };
            let job = self.job(&ended.interfaces);
            let retention = class.name(&context.classes);
            let writer = self.writer(&job, &hour, retention, &context.mode)?;
            writer.write(&job, &share)?;
            flows = &flows[flow_count..];
            rows = &rows[row_count..];
            with_payload = &with_payload[payload_count..];
        }
        Ok(ended.emptied())
    }

    fn close(&mut self, intake: &Intake) -> Result<(), ArchiveError> {
        self.close_parts(&intake.interfaces, &intake.metas)
    }
}

/// What a thread that takes in blocks tells the one that writes parts.
enum Step {
    Run(Box<Ended>),
    Close(Arc<HashMap<u16, Interface>>, Vec<Meta>),
}

/// Hands over runs to be written beside the taking in of the next: two are in memory then.
struct Ahead {
    to: SyncSender<Step>,
    /// Runs that were written.
    emptied: Receiver<Run>,
}

impl Ahead {
    /// Waits until the run before is written.
    fn send(&self, step: Step) -> Result<(), ArchiveError> {
        // The error with which writing ended is the one that is returned.
        self.to.send(step).map_err(|_| ArchiveError::Interrupted)
    }
}

impl Runs for Ahead {
    fn run(&mut self, ended: Ended) -> Result<Run, ArchiveError> {
        self.send(Step::Run(Box::new(ended)))?;
        // The first time, none has been written yet.
        Ok(self.emptied.try_recv().unwrap_or_else(|_| Run::default()))
    }

    fn close(&mut self, intake: &Intake) -> Result<(), ArchiveError> {
        let interfaces = Arc::clone(&intake.interfaces);
        self.send(Step::Close(interfaces, intake.metas.clone()))
    }
}

impl<'a> Work<'a> {
    /// Writes the runs that `take_in` hands over, on a thread of its own.
    fn behind<T>(
        &mut self,
        take_in: impl FnOnce(&mut Ahead) -> Result<T, ArchiveError>,
    ) -> Result<T, ArchiveError> {
        thread::scope(|scope| {
            let (to, from) = mpsc::sync_channel(0);
            let (back, emptied) = mpsc::channel();
            let writing = scope.spawn(move || -> Result<(), ArchiveError> {
                for step in from {
                    match step {
                        Step::Run(ended) => {
                            // Nobody takes the last one.
                            let _ = back.send(self.run(*ended)?);
                        }
                        Step::Close(interfaces, metas) => self.close_parts(&interfaces, &metas)?,
                    }
                }
                Ok(())
            });
            let taken = take_in(&mut Ahead { to, emptied });
            let written = writing.join();
            written.unwrap_or_else(|panic| resume_unwind(panic))?;
            taken
        })
    }

    /// Ends the parts that are open.
    fn close_parts(
        &mut self,
        interfaces: &HashMap<u16, Interface>,
        metas: &[Meta],
    ) -> Result<(), ArchiveError> {
        let job = self.job(interfaces);
        for writer in std::mem::take(&mut self.open).into_values() {
            self.parts.push(writer.finish(&job, metas)?);
        }
        Ok(())
    }

    /// What its parts have to know.
    fn job<'b>(&self, interfaces: &'b HashMap<u16, Interface>) -> Job<'b>
    where
        'a: 'b,
    {
        Job {
            disk: self.output.disk,
            encrypt_to: self.output.encrypt_to,
            stop: self.output.stop,
            threads: self.output.threads,
            recording: self.recording,
            interfaces,
        }
    }

    /// The part of an hour and retention class, begun if need be.
    fn writer(
        &mut self,
        job: &Job<'_>,
        hour: &str,
        retention: String,
        mode: &str,
    ) -> Result<&mut PartWriter, ArchiveError> {
        match self.open.entry((hour.to_owned(), retention)) {
            Entry::Occupied(open) => Ok(open.into_mut()),
            Entry::Vacant(vacant) => {
                let (hour, retention) = vacant.key();
                let id = self.next_part;
                // What `archive.json` says is the next one, which may have been written by others.
                self.next_part = id.checked_add(1).ok_or_else(|| {
                    let problem = std::io::Error::other("the numbers of parts are used up");
                    ArchiveError::io(self.output.disk.display(ARCHIVE_NAME), "number a part")(
                        problem,
                    )
                })?;
                let writer = PartWriter::create(job, id, hour, retention, mode)?;
                Ok(vacant.insert(writer))
            }
        }
    }

    /// The retention class of each flow's packets in this run: protected if a policy says so; an
    /// anomalous one if any of them is anomalous, so that they stay together; else that of most.
    fn retentions(&self, ended: &Ended) -> Vec<FlowRetention> {
        let names = &ended.context.classes;
        let is_anomalous = |class: u8| {
            let name = names.get(usize::from(class));
            name.is_some_and(|name| self.anomalous.holds(name))
        };
        let of = |flow: &Flow| {
            if ended.protection.may_cover(&flow.key) {
                return FlowRetention::Protected;
            }
            let most = flow
                .stats
                .classes
                .iter()
                .max_by_key(|(class, packets)| (is_anomalous(*class), *packets));
            most.map_or(FlowRetention::Unknown, |(class, _)| {
                FlowRetention::Class(*class)
            })
        };
        let flows = ended.run.flows.iter();
        flows.map(of).collect()
    }

    fn finish(mut self, intake: &Intake) -> Result<Vec<Part>, ArchiveError> {
        let only_metas = self.open.is_empty() && self.parts.is_empty() && !intake.metas.is_empty();
        if only_metas && !self.output.only_protected {
            // The inputs' metadata are kept even if there were no packets.
            let job = self.job(&intake.interfaces);
            let hour = hour_name(self.recording.started_ns);
            let mode = &intake.context.mode;
            let retention = retention_name(intake.context.classes.first().map(String::as_str));
            let writer = PartWriter::create(&job, self.next_part, &hour, &retention, mode)?;
            self.open.insert((hour, retention), writer);
        }
        self.close_parts(&intake.interfaces, &intake.metas)?;
        Ok(self.parts)
    }
}

/// An hour as in directory names.
pub(crate) fn hour_name(ns: u64) -> String {
    match jiff::Timestamp::from_nanosecond(i128::from(ns)) {
        Ok(time) => time.strftime("%Y-%m-%dT%H").to_string(),
        Err(_) => String::from("beyond"),
    }
}
