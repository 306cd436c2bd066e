//! A part being written: its files, in `staging/` until they are listed.

pub(crate) mod counts;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};

use parquet::data_type::ByteArray;
use serde::{Deserialize, Serialize};
use strata_blocks::{BlockBuilder, ClassCount};
use strata_capture::PacketRef;
use strata_store::{
    Damage, Disk, ENCRYPTED, FileKind, Part, PartFile, Recording, STAGING, is_remote,
};
use strata_tables::{Column, TableWriter};
use strata_wire::{Interface, KeepKind, Meta};

use crate::columns::addresses::Addresses;
use crate::columns::filler::{Filler, Filling};
use crate::columns::packets::{self, PacketColumn};
use crate::columns::verdicts::Verdict;
use crate::error::ArchiveError;
use crate::files::payload::PayloadWriter;
use crate::files::{Input, Output, SUM_BYTES, Sums};
use crate::flows::{self, FlowColumn};
use crate::keys::{PartKey, Recipients};
use crate::part::counts::CountsWriter;
use crate::retention::FlowRetention;
use crate::run::Run;

/// The checksums file: JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SumsFile {
    /// Bytes under one checksum.
    pub(crate) piece_bytes: usize,
    pub(crate) files: Vec<FileSums>,
}

/// CRC-32C of each piece of a file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FileSums {
    pub(crate) kind: FileKind,
    pub(crate) pieces: Vec<u32>,
}

/// The name of a file before it is listed.
pub(crate) fn staging_name(part: u32, kind: FileKind, encrypted: bool) -> String {
    let ending = if encrypted { ENCRYPTED } else { "" };
    format!("{STAGING}/{part:08}.{}{ending}", kind.dir())
}

/// What a job tells its parts about itself.
pub(crate) struct Job<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) recording: &'a Recording,
    pub(crate) interfaces: &'a HashMap<u16, Interface>,
    /// This many threads make columns, and compress payload.
    pub(crate) threads: NonZeroUsize,
    /// To whom its parts are encrypted, if at all.
    pub(crate) encrypt_to: &'a Recipients,
    /// Once it is set, parts are written no further.
    pub(crate) stop: &'a AtomicBool,
}

/// Counters per class.
const KEEPS: usize = KeepKind::ALL.len();

/// A part being written.
pub(crate) struct PartWriter {
    part: Part,
    key: Option<PartKey>,
    packets: TableWriter<Output>,
    flows: TableWriter<Output>,
    payload: Option<PayloadWriter>,
    counters: Counters,
    counts: CountsWriter,
    groups: usize,
}

/// Counters for the packets of a run that go into one part, or of a whole part.
pub(crate) struct Counters {
    /// By class and granularity: [`KEEPS`] entries per class.
    counts: Vec<ClassCount>,
    ts_min_ns: u64,
    ts_max_ns: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            counts: vec![ClassCount::default(); 256 * KEEPS],
            ts_min_ns: u64::MAX,
            ts_max_ns: 0,
        }
    }
}

impl Counters {
    /// Counts the rows of a run by the retention class of their flows, in order of arrival, which
    /// is their order in memory.
    pub(crate) fn of(
        run: &Run,
        verdicts: &[Verdict],
        retentions: &[FlowRetention],
    ) -> BTreeMap<FlowRetention, Self> {
        let mut counters: Vec<(FlowRetention, Self)> = Vec::new();
        for row in 0..run.len() {
            let retention = retentions[(run.slot[row] / 2) as usize];
            let known = counters.iter().position(|(of, _)| *of == retention);
            let at = known.unwrap_or_else(|| {
                counters.push((retention, Self::default()));
                counters.len() - 1
            });
            counters[at].1.count(run, verdicts, row);
        }
        counters.into_iter().collect()
    }

    fn count(&mut self, run: &Run, verdicts: &[Verdict], row: usize) {
        let class = verdicts[run.verdict[row] as usize].class;
        let keep = run.keep[row];
        let count = &mut self.counts[usize::from(class) * KEEPS + usize::from(keep.code())];
        (count.class, count.keep) = (class, keep);
        count.packets += 1;
        count.wire_bytes += u64::from(run.wire[row].max(run.captured[row]));
        count.logged_bytes += u64::from(run.header_len[row]) + u64::from(run.payload_len[row]);
        self.ts_min_ns = self.ts_min_ns.min(run.time[row]);
        self.ts_max_ns = self.ts_max_ns.max(run.time[row]);
    }

    fn add(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            if count.packets > 0 {
                (sum.class, sum.keep) = (count.class, count.keep);
                sum.packets += count.packets;
                sum.wire_bytes += count.wire_bytes;
                sum.logged_bytes += count.logged_bytes;
            }
        }
        self.ts_min_ns = self.ts_min_ns.min(other.ts_min_ns);
        self.ts_max_ns = self.ts_max_ns.max(other.ts_max_ns);
    }
}

/// The rows of a run that go into one part.
pub(crate) struct Share<'a> {
    pub(crate) run: &'a Run,
    /// In the order of the table.
    pub(crate) rows: &'a [u32],
    /// Those with payload, by flow, then by arrival.
    pub(crate) with_payload: &'a [u32],
    pub(crate) counters: &'a Counters,
    pub(crate) verdicts: &'a [Verdict],
    /// Numbers of its flows, in the order of the table.
    pub(crate) flows: &'a [u32],
    pub(crate) addresses: &'a Addresses,
    pub(crate) keeps: &'a [ByteArray; 4],
    pub(crate) class_names: &'a [String],
}

impl PartWriter {
    pub(crate) fn create(
        job: &Job<'_>,
        id: u32,
        hour: &str,
        retention: &str,
        mode: &str,
    ) -> Result<Self, ArchiveError> {
        let about = [
            ("strata.recording", job.recording.id.to_string()),
            ("strata.part", id.to_string()),
            ("strata.mode", mode.to_owned()),
            ("strata.model", job.recording.model.clone()),
        ];
        let key = (!job.encrypt_to.is_empty()).then(PartKey::generate);
        let wrapped = key.as_ref().map(|key| key.wrap(job.encrypt_to));
        let wrapped = wrapped.transpose();
        let wrapped = wrapped.map_err(ArchiveError::io(job.disk.display(""), "encrypt"))?;
        let table = |kind: FileKind, columns| {
            let name = staging_name(id, kind, key.is_some());
            let output = Output::create(job.disk, &name, key.as_ref())?;
            TableWriter::new(output, kind.dir(), columns, &about)
                .and_then(|table| table.with_threads(job.threads))
                .map_err(|source| ArchiveError::table(&job.disk.display(&name), source))
        };
        Ok(Self {
            packets: table(FileKind::Packets, PacketColumn::SPECS)?,
            flows: table(FileKind::Flows, FlowColumn::SPECS)?,
            payload: None,
            counters: Counters::default(),
            counts: CountsWriter::default(),
            groups: 0,
            part: Part {
                id,
                recording: job.recording.id,
                hour: hour.to_owned(),
                retention: retention.to_owned(),
                ts_min_ns: u64::MAX,
                ts_max_ns: 0,
                packets: 0,
                flows: 0,
                counts: Vec::new(),
                key: wrapped,
                files: Vec::new(),
            },
            key,
        })
    }

    /// Writes its share of a run as a row group in each table.
    pub(crate) fn write(&mut self, job: &Job<'_>, share: &Share<'_>) -> Result<(), ArchiveError> {
        let run = share.run;
        let payload_at = self.write_payload(job, share)?;
        let mut flow_ids = vec![0; run.flows.len()];
        for (ordinal, flow) in (self.part.flows..).zip(share.flows) {
            let id =
                i64::from(self.part.id) << 32 | i64::try_from(ordinal).expect("flows of a part");
            flow_ids[*flow as usize] = id;
        }
        let filling = Filling {
            run,
            rows: share.rows,
            verdicts: share.verdicts,
            flow_ids: &flow_ids,
            payload_at: &payload_at,
            recording: job.recording.id,
            addresses: share.addresses,
            keeps: share.keeps,
        };
        let (id, encrypted) = (self.part.id, self.key.is_some());
        let named = |kind| job.disk.display(&staging_name(id, kind, encrypted));
        let written = self.packets.group(job.stop, || {
            let mut filler = Filler::new(filling);
            move |index, column: &mut Column| packets::fill(index, &mut filler, column)
        });
        written.map_err(|source| ArchiveError::table(&named(FileKind::Packets), source))?;
        let rows = flows::flow_rows(
            share.run,
            share.flows,
            share.addresses,
            share.class_names,
            &flows::Place {
                recording: job.recording.id,
                flow_ids: &flow_ids,
                group: self.groups,
            },
        );
        let written = self.flows.group(job.stop, || {
            |index, column: &mut Column| flows::fill(index, &rows, column)
        });
        written.map_err(|source| ArchiveError::table(&named(FileKind::Flows), source))?;
        self.counters.add(share.counters);
        self.counts.add(run, share.rows, share.verdicts);
        self.part.packets += share.rows.len() as u64;
        self.part.flows += share.flows.len() as u64;
        self.groups += 1;
        Ok(())
    }

    fn write_payload(
        &mut self,
        job: &Job<'_>,
        share: &Share<'_>,
    ) -> Result<Vec<Option<u64>>, ArchiveError> {
        let run = share.run;
        let mut written = Vec::with_capacity(share.with_payload.len());
        for &number in share.with_payload {
            if job.stop.load(Ordering::Relaxed) {
                return Err(ArchiveError::Interrupted);
            }
            let row = number as usize;
            let Some(interface) = job.interfaces.get(&run.interface[row]) else {
                // The file is left as it is, since its definitions are missing (`Intake::undefined`).
                continue;
            };
            let len = usize::from(run.header_len[row]) + run.payload_len[row] as usize;
            let at = run.kept_at[row];
            let packet = PacketRef {
                ts_ns: run.time[row],
                interface: run.interface[row],
                wire_len: run.wire[row],
                data: &run.kept[at..at + len],
                options: &[],
                has_timestamp: true,
            };
            let writer = match &mut self.payload {
                Some(writer) => writer,
                none => {
                    let key = self.key.as_ref();
                    let name = staging_name(self.part.id, FileKind::Payload, key.is_some());
                    let output = Output::create(job.disk, &name, key)?;
                    none.insert(PayloadWriter::new(
                        output,
                        job.disk.display(&name),
                        job.threads,
                    )?)
                }
            };
            written.push((row, writer.packet(&packet, interface)?));
        }
        let mut payload_at = Vec::new();
        if let Some(writer) = self.payload.as_mut().filter(|_| !written.is_empty()) {
            let settled = writer.settle()?;
            payload_at.resize(run.len(), None);
            for (row, unsettled) in written {
                payload_at[row] = settled.place(unsettled);
            }
        }
        Ok(payload_at)
    }

    /// Finishes its files, synced, and returns its entry for the manifest.
    pub(crate) fn finish(mut self, job: &Job<'_>, metas: &[Meta]) -> Result<Part, ArchiveError> {
        let (id, key) = (self.part.id, self.key.as_ref());
        let named = job
            .disk
            .display(&staging_name(id, FileKind::Packets, key.is_some()));
        let counts = self.counts.finish();
        if let Some(counts) = counts.map_err(|source| ArchiveError::table(&named, source))? {
            self.packets.note(counts::KEY, counts);
        }
        let mut sums = Vec::new();
        for (kind, table) in [
            (FileKind::Packets, self.packets),
            (FileKind::Flows, self.flows),
        ] {
            let named = job.disk.display(&staging_name(id, kind, key.is_some()));
            let output = table.finish();
            let output = output.map_err(|source| ArchiveError::table(&named, source))?;
            let written = output.finish();
            sums.push((kind, written.map_err(ArchiveError::io(named, "write"))?));
        }
        if let Some(payload) = self.payload {
            sums.push((FileKind::Payload, payload.finish()?));
        }
        let mut block = BlockBuilder::new(64 << 10);
        for meta in metas {
            block.grow(BlockBuilder::meta_len(meta));
            block.push_meta(meta);
        }
        let recording = job.recording;
        let bytes = block.seal(recording.id, 0, 0, recording.hash_seed);
        sums.push((
            FileKind::Meta,
            write_small(job.disk, id, FileKind::Meta, key, bytes)?,
        ));
        let pieces = sums.iter().map(|(kind, sums)| FileSums {
            kind: *kind,
            pieces: sums.pieces.clone(),
        });
        let file = SumsFile {
            piece_bytes: SUM_BYTES,
            files: pieces.collect(),
        };
        let json = serde_json::to_vec(&file).expect("it has only plain fields");
        sums.push((
            FileKind::Sums,
            write_small(job.disk, id, FileKind::Sums, None, &json)?,
        ));
        let part = &self.part;
        let files = sums.into_iter().map(|(kind, sums)| PartFile {
            kind,
            name: final_name(part, kind, key.is_some()),
            bytes: sums.bytes,
            crc: sums.crc,
        });
        self.part.files = files.collect();
        let mut counts = self.counters.counts;
        counts.retain(|count| count.packets > 0);
        self.part.counts = counts;
        self.part.ts_min_ns = self.counters.ts_min_ns;
        self.part.ts_max_ns = self.counters.ts_max_ns;
        Ok(self.part)
    }
}

fn write_small(
    disk: &dyn Disk,
    part: u32,
    kind: FileKind,
    key: Option<&PartKey>,
    bytes: &[u8],
) -> Result<Sums, ArchiveError> {
    use std::io::Write as _;
    let name = staging_name(part, kind, key.is_some());
    let mut output = Output::create(disk, &name, key)?;
    let written = output.write_all(bytes).and_then(|()| output.finish());
    written.map_err(ArchiveError::io(disk.display(&name), "write"))
}

/// Files of a part that are not there, with what they hold. Object stores are not asked, and other
/// places only by a disk that reaches them.
#[must_use]
pub fn missing_files(disk: &dyn Disk, part: &Part) -> Vec<(FileKind, Damage)> {
    let files = part.files.iter().filter(|file| is_on_a_disk(&file.name));
    let missing = files.filter_map(|file| {
        let name = name_of(disk, part, file);
        let opened = disk.open(&name, false);
        if !opened.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return None;
        }
        let damage = Damage::missing(disk.display(&name), part.id, part.packets);
        Some((file.kind, damage))
    });
    missing.collect()
}

/// Whether a file is in the log's directory or another one, and not in an object store.
#[must_use]
pub fn is_on_a_disk(name: &str) -> bool {
    !is_remote(name) || name.starts_with("file://")
}

/// The current name of a part's file, which may still be staged.
#[must_use]
pub fn name_of(disk: &dyn Disk, part: &Part, file: &PartFile) -> String {
    if is_remote(&file.name) || disk.exists(&file.name) {
        return file.name.clone();
    }
    let staged = staging_name(part.id, file.kind, file.is_encrypted());
    // It may have been renamed meanwhile.
    if disk.exists(&staged) {
        staged
    } else {
        file.name.clone()
    }
}

/// Opens a file of a part.
///
/// # Errors
///
/// If it cannot be opened.
pub fn open(disk: &dyn Disk, part: &Part, kind: FileKind) -> Result<Input, ArchiveError> {
    let Some(file) = part.file(kind) else {
        return Input::open(disk, kind.dir());
    };
    Input::open(disk, &name_of(disk, part, file))
}

/// The name of a file within the log, once it is listed.
pub(crate) fn final_name(part: &Part, kind: FileKind, encrypted: bool) -> String {
    let (dir, id, extension) = (kind.dir(), part.id, kind.extension());
    let ending = if encrypted { ENCRYPTED } else { "" };
    match kind {
        FileKind::Packets | FileKind::Flows | FileKind::Payload => {
            let (hour, retention) = (&part.hour, &part.retention);
            format!("{dir}/hour={hour}/retention={retention}/{id:08}.{extension}{ending}")
        }
        FileKind::Meta => format!("{dir}/{id:08}.{extension}{ending}"),
        // Of the files as stored: can be checked without a key.
        FileKind::Sums => format!("{dir}/{id:08}.{extension}"),
    }
}
