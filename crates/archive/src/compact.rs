//! Compaction: from block files to parts.
//!
//! A job takes some block files of one worker and makes parts of them in `staging/`. Once these are
//! synced, one replacement of `archive.json` lists the parts and removes the block files from the
//! log; then the parts' files are renamed and the block files deleted. Whatever is interrupted, a
//! packet is in exactly one tier, and the next compaction cleans up.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use strata_store::{
    Archive, BlockFile, Damage, Disk, Gone, Log, Part, Recording, Select, StoreError,
};
use strata_wire::Interface;

use crate::addresses::addresses;
use crate::anomalous::Anomalous;
use crate::changes::{clean_up, commit, delete_gone, lock, name_files, remove_staged};
use crate::encryption::recipients;
use crate::error::ArchiveError;
use crate::filler::keeps;
use crate::flow::Flow;
use crate::intake::{Intake, Runs};
use crate::keys::Recipients;
use crate::part::{Counters, Job, PartWriter, Share};
use crate::retention::{FlowRetention, retention_name};
use crate::sorted::Sorted;

/// Bytes of block files compacted in one go, to be redone after a crash.
const JOB_BYTES: u64 = 4 << 30;

/// The result of a compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Block files that were compacted.
    pub files: u64,
    /// Their bytes.
    pub bytes_before: u64,
    /// Packets in them.
    pub packets: u64,
    /// Bytes of the parts made from them.
    pub bytes_after: u64,
    /// Block files that were left alone because they are damaged.
    pub damage: Vec<Damage>,
    /// Models that cannot be read. Their recordings were left alone: it is not known which of their
    /// packets are evidence.
    pub unknown_models: Vec<Damage>,
    /// Whether it was told to stop before everything was compacted.
    pub interrupted: bool,
}

/// Compacts every block file that is no longer written to, encrypted if
/// [`encrypt_to`](crate::encrypt_to) has said so.
///
/// # Errors
///
/// If another process does the same, or files cannot be read or written. Work done so far is kept.
pub fn compact(
    disk: &Arc<dyn Disk>,
    progress: impl FnMut(&Compacted),
) -> Result<Compacted, ArchiveError> {
    compact_until(disk, &NEVER, progress)
}

/// Never set.
static NEVER: AtomicBool = AtomicBool::new(false);

/// As [`compact`], but ends soon after `stop` is set: with the block file that it has begun.
/// Files compacted by then stay so.
///
/// # Errors
///
/// As [`compact`].
pub fn compact_until(
    disk: &Arc<dyn Disk>,
    stop: &AtomicBool,
    mut progress: impl FnMut(&Compacted),
) -> Result<Compacted, ArchiveError> {
    let _lock = lock(disk.as_ref())?;
    let mut archive = clean_up(disk.as_ref())?;
    let log = Log::on(Arc::clone(disk))?;
    let to = recipients(disk.as_ref(), &archive)?;
    let mut done = Compacted::default();
    let mut unknown = HashSet::new();
    for (recording, files) in jobs(&log, JOB_BYTES) {
        let mut files = files;
        if unknown.contains(&recording.id) {
            continue;
        }
        if let Some(problem) = Anomalous::of(&log, recording).into_problem() {
            // Otherwise evidence would be filed with everything else, permanently.
            unknown.insert(recording.id);
            done.unknown_models.push(problem);
            progress(&done);
            continue;
        }
        while !files.is_empty() {
            if stop.load(Ordering::Relaxed) {
                done.interrupted = true;
                break;
            }
            let output = Target {
                disk: disk.as_ref(),
                encrypt_to: &to,
                stop,
            };
            let outcome = run_job(&log, output, recording, &files, archive.next_part);
            if outcome.is_err() {
                // The job may have failed for lack of the space freed here; its error is more
                // useful than a failed deletion.
                let _ = remove_staged(disk.as_ref(), &archive);
            }
            match outcome? {
                Outcome::Parts(parts, gone) => {
                    // Fewer than there are, if it was told to stop.
                    done.interrupted |= gone.len() < files.len();
                    files.truncate(gone.len());
                    done.files += files.len() as u64;
                    done.bytes_before += size_of(disk.as_ref(), &files)?;
                    done.packets += parts.iter().map(|part| part.packets).sum::<u64>();
                    done.bytes_after += parts.iter().map(Part::bytes).sum::<u64>();
                    commit(disk.as_ref(), &mut archive, &parts, gone)?;
                    break;
                }
                Outcome::Damaged(damage, name) => {
                    remove_staged(disk.as_ref(), &archive)?;
                    files.retain(|file| file.name != name);
                    done.damage.push(damage);
                }
            }
        }
        progress(&done);
    }
    drop(log);
    delete_gone(disk.as_ref(), &mut archive)?;
    Ok(done)
}

/// Writes the contents of a log's block files as parts to another disk, as compaction would, to be
/// read as tables; the log is not changed. Damaged files are skipped and reported.
///
/// # Errors
///
/// If files cannot be read or written.
pub fn snapshot(log: &Log, output: &dyn Disk) -> Result<(Vec<Part>, Vec<Damage>), ArchiveError> {
    let mut next_part = log.archive().next_part;
    let target = Target {
        disk: output,
        encrypt_to: &Recipients::default(),
        stop: &NEVER,
    };
    let (mut all, mut damage) = (Vec::new(), Vec::new());
    for recording in log.recordings() {
        for file in &recording.files {
            let files = std::slice::from_ref(file);
            match run_job(log, target, recording, files, next_part)? {
                Outcome::Parts(parts, _) => {
                    name_files(output, &parts)?;
                    next_part = parts
                        .iter()
                        .map(|part| part.id + 1)
                        .fold(next_part, u32::max);
                    all.extend(parts);
                }
                Outcome::Damaged(problem, _) => {
                    remove_staged(output, &Archive::default())?;
                    damage.push(problem);
                }
            }
        }
    }
    Ok((all, damage))
}

fn size_of(disk: &dyn Disk, files: &[BlockFile]) -> Result<u64, ArchiveError> {
    let size = |file: &BlockFile| {
        let opened = disk.open(&file.name, false);
        let size = opened.and_then(|opened| opened.size());
        size.map_err(ArchiveError::io(disk.display(&file.name), "open"))
    };
    files.iter().map(size).sum()
}

/// Block files that are no longer written to, grouped into jobs: consecutive files of one worker.
fn jobs(log: &Log, job_bytes: u64) -> Vec<(&Recording, Vec<BlockFile>)> {
    let being_written = log.being_written();
    let mut jobs = Vec::new();
    for recording in log.recordings() {
        let running = being_written(recording);
        let mut by_worker: BTreeMap<u16, Vec<BlockFile>> = BTreeMap::new();
        for file in &recording.files {
            // Blocks still to come may yet promote packets in it.
            let may_change = running && recording.look_back;
            if (file.sealed && !may_change) || !running {
                by_worker.entry(file.worker).or_default().push(file.clone());
            }
        }
        for files in by_worker.into_values() {
            let mut job = Vec::new();
            let mut bytes = 0;
            for file in files {
                if bytes + file.bytes > job_bytes && !job.is_empty() {
                    jobs.push((recording, std::mem::take(&mut job)));
                    bytes = 0;
                }
                bytes += file.bytes;
                job.push(file);
            }
            if !job.is_empty() {
                jobs.push((recording, job));
            }
        }
    }
    jobs
}

enum Outcome {
    Parts(Vec<Part>, Vec<Gone>),
    /// A file, by name, is damaged.
    Damaged(Damage, String),
}

/// Where parts are written, to whom they are encrypted, if at all, and when to write no more.
#[derive(Clone, Copy)]
struct Target<'a> {
    disk: &'a dyn Disk,
    encrypt_to: &'a Recipients,
    stop: &'a AtomicBool,
}

/// Makes parts from block files, in `staging/`. If told to stop, from the first of them only: what
/// is gone says from which.
fn run_job(
    log: &Log,
    output: Target<'_>,
    recording: &Recording,
    files: &[BlockFile],
    next_part: u32,
) -> Result<Outcome, ArchiveError> {
    let mut intake = Intake::new(recording);
    let mut work = Work {
        output,
        recording,
        anomalous: Anomalous::of(log, recording),
        open: BTreeMap::new(),
        parts: Vec::new(),
        next_part,
    };
    let mut gone = Vec::new();
    for file in files {
        if !gone.is_empty() && output.stop.load(Ordering::Relaxed) {
            break;
        }
        let mut this = Gone {
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
        for block in log.blocks_in(recording, file, &select) {
            let block = match block {
                Ok(block) => block,
                Err(StoreError::Damage(damage)) => {
                    return Ok(Outcome::Damaged(damage, file.name.clone()));
                }
                Err(error) => return Err(error.into()),
            };
            if block.header.packets > 0 {
                if this.packets == 0 {
                    this.first_seq = block.header.first_seq;
                }
                this.packets += u64::from(block.header.packets);
                this.next_seq = block.header.next_seq;
                this.incomplete += u64::from(block.incomplete);
            }
            if let Err(damage) = intake.block(&block, &mut work)? {
                return Ok(Outcome::Damaged(damage, file.name.clone()));
            }
        }
        gone.push(this);
    }
    Ok(Outcome::Parts(work.finish(&mut intake)?, gone))
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
    fn run(&mut self, intake: &Intake) -> Result<(), ArchiveError> {
        let Intake {
            run,
            verdicts,
            context,
            ..
        } = intake;
        let hour = hour_name(run.time[0] + run.late[0]);
        let retentions = self.retentions(intake);
        let sorted = Sorted::of(run, &retentions);
        let (addresses, keeps) = (addresses(run), keeps());
        let mut flows = &sorted.flows[..];
        let (mut rows, mut with_payload) = (&sorted.rows[..], &sorted.with_payload[..]);
        let counters = Counters::of(run, &verdicts.all, &retentions);
        while let Some(&first) = flows.first() {
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
                verdicts: &verdicts.all,
                flows: &flows[..flow_count],
                addresses: &addresses,
                keeps: &keeps,
                class_names: &context.classes,
            };
            let job = self.job(&intake.interfaces);
            let retention = class.name(&context.classes);
            let writer = self.writer(&job, &hour, retention, &context.mode)?;
            writer.write(&job, &share)?;
            flows = &flows[flow_count..];
            rows = &rows[row_count..];
            with_payload = &with_payload[payload_count..];
        }
        Ok(())
    }

    fn close(&mut self, intake: &Intake) -> Result<(), ArchiveError> {
        let job = self.job(&intake.interfaces);
        for writer in std::mem::take(&mut self.open).into_values() {
            self.parts.push(writer.finish(&job, &intake.metas)?);
        }
        Ok(())
    }
}

impl<'a> Work<'a> {
    /// What its parts have to know.
    fn job<'b>(&self, interfaces: &'b HashMap<u16, Interface>) -> Job<'b>
    where
        'a: 'b,
    {
        Job {
            disk: self.output.disk,
            encrypt_to: self.output.encrypt_to,
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
                self.next_part += 1;
                let writer = PartWriter::create(job, id, hour, retention, mode)?;
                Ok(vacant.insert(writer))
            }
        }
    }

    /// Each flow's retention class: protected if a policy says so; an anomalous one if any of
    /// its packets is anomalous, so that a flow stays together; else that of most packets.
    fn retentions(&self, intake: &Intake) -> Vec<FlowRetention> {
        let names = &intake.context.classes;
        let is_anomalous = |class: u8| {
            let name = names.get(usize::from(class));
            name.is_some_and(|name| self.anomalous.holds(name))
        };
        let of = |flow: &Flow| {
            if intake.protection.may_cover(&flow.key) {
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
        let flows = intake.run.flows.iter();
        flows.map(of).collect()
    }

    fn finish(mut self, intake: &mut Intake) -> Result<Vec<Part>, ArchiveError> {
        intake.end_run(&mut self)?;
        let only_metas = self.open.is_empty() && self.parts.is_empty() && !intake.metas.is_empty();
        if only_metas {
            // The inputs' metadata are kept even if there were no packets.
            let job = self.job(&intake.interfaces);
            let hour = hour_name(self.recording.started_ns);
            let mode = &intake.context.mode;
            let retention = retention_name(intake.context.classes.first().map(String::as_str));
            let writer = PartWriter::create(&job, self.next_part, &hour, &retention, mode)?;
            self.open.insert((hour, retention), writer);
        }
        self.close(intake)?;
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
