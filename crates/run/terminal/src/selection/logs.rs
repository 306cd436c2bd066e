//! The logs that a command reads: one, or several, whose packets are merged by time.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::thread;

use anyhow::{Result, bail};
use strata_capture::TIME_OUT_OF_RANGE;
use strata_filter::Filter;
use strata_query::{
    Exported, ExportedFlows, Find, FlowOptions, FlowRecord, Kept, LoggedPacket, MEMORY_BYTES,
    PacketCopy, flows,
};
use strata_store::{Log, StoreError};
use strata_wire::Printable;
use tracing::{error, info, warn};

use crate::arguments::key::KeyArgs;
use crate::output::refuse;
use crate::progress::Progress;
use crate::text;

use super::merge::{Batch, Stream, merge};
use super::{KeptArgs, SpanArgs, check_fit, each, first_packet_ns, span_text};

/// Logs read at a time: each has a thread.
const LOGS_MAX: usize = 64;
/// Memory for packets of compacted logs that wait within their log, for all logs together.
const WAITING_BYTES: usize = 512 << 20;

/// A log and its name on the command line.
#[derive(Debug)]
struct Named {
    name: String,
    log: Log,
}

/// The logs that a command reads.
#[derive(Debug)]
pub struct Logs {
    logs: Vec<Named>,
}

/// What logs lack although they should have it.
#[derive(Debug, Default)]
pub struct Lacking {
    /// Packets of which the number is known.
    pub packets: u64,
    /// The first warning of it; `None` if nothing is missing as far as is known.
    pub problem: Option<String>,
}

impl Logs {
    /// Opens the log named first, and those named by the first words after it: directories with a log. Returns
    /// the words that are left, such as those of a filter.
    ///
    /// A bar may show how much is read.
    ///
    /// # Errors
    ///
    /// If one cannot be opened, or there are too many.
    pub fn open<'a>(
        first: &Path,
        words: &'a [String],
        key: &KeyArgs,
        progress: &Progress,
    ) -> Result<(Self, &'a [String])> {
        let more = words.iter().take_while(|word| names_log(word));
        let (more, filter) = words.split_at(more.count());
        if more.len() >= LOGS_MAX {
            return Err(refuse(format!(
                "{} logs: at most {LOGS_MAX} can be read together",
                more.len() + 1
            )));
        }
        let dirs = [first].into_iter().chain(more.iter().map(Path::new));
        let dirs: Vec<&Path> = dirs.collect();
        each_once(&dirs)?;
        let logs = dirs.into_iter().map(|dir| {
            Ok(Named {
                name: dir.display().to_string(),
                log: key.open_watched(dir, progress)?,
            })
        });
        let logs = logs.collect::<Result<_>>()?;
        Ok((Self { logs }, filter))
    }

    /// The number of logs.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.logs.len()
    }

    /// The only log; `None` if there are several.
    #[must_use]
    pub fn only(&self) -> Option<&Log> {
        match self.logs.as_slice() {
            [only] => Some(&only.log),
            _ => None,
        }
    }

    /// The logs, and where they are.
    pub fn all(&self) -> impl Iterator<Item = (&Path, &Log)> {
        let logs = self.logs.iter();
        logs.map(|named| (Path::new(&named.name), &named.log))
    }

    /// The name of a log, if there are several.
    #[must_use]
    pub fn name(&self, log: usize) -> Option<&str> {
        (self.logs.len() > 1).then_some(&self.logs[log].name)
    }

    /// The names of the logs; empty if there is only one.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let names = (0..self.logs.len()).filter_map(|log| self.name(log));
        names.map(str::to_owned).collect()
    }

    /// What is wanted of these logs: a time without a date is on the day of the first packet of all.
    ///
    /// # Errors
    ///
    /// If a log cannot be read, or a time is none.
    pub fn find<'a>(&self, span: &SpanArgs, filter: Option<&'a Filter>) -> Result<Find<'a>> {
        let times = self.logs.iter().map(|named| first_packet_ns(&named.log));
        let times: Vec<u64> = times.collect::<Result<_>>()?;
        // A log without packets has no day.
        let with_packets = times.iter().filter(|&&first_ns| first_ns > 0);
        let first_ns = with_packets.min().map_or(0, |&first_ns| first_ns);
        span.find_on_day_of(first_ns, filter)
    }

    /// Warns of packets that logs should have and lack, such as those of a recording that was killed, or of one whose
    /// disk was full, since they may have been wanted; not of those that arrived at other times.
    ///
    /// # Errors
    ///
    /// If a log cannot be read.
    pub fn say_lost(&self, find: &Find<'_>) -> Result<Lacking> {
        let mut lacking = Lacking::default();
        for named in &self.logs {
            let losses = named.log.losses()?.within(find.from_ns, find.to_ns);
            lacking.packets = lacking.packets.saturating_add(losses.packets());
            for what in losses.texts(text::time) {
                let problem = format!(
                    "{} {what}; the selection may lack some of them (see `strata info`)",
                    Printable(&named.name)
                );
                warn!("{problem}");
                lacking.problem.get_or_insert(problem);
            }
        }
        Ok(lacking)
    }

    /// Warns of recordings with times that are not those of their files, because no log can hold them: all that is
    /// shown has these times.
    pub fn say_other_times(&self) {
        for named in &self.logs {
            for recording in named.log.recordings() {
                let mut warnings = recording.warnings.iter();
                if warnings.any(|warning| warning.contains(TIME_OUT_OF_RANGE)) {
                    warn!(
                        "{}: recording {} has packets from {TIME_OUT_OF_RANGE}: they are selected and shown with other \
                         times (see `strata info`)",
                        Printable(&named.name),
                        recording.id
                    );
                }
            }
        }
    }

    /// Says why nothing was found, as far as that is known: no log has this class, or the packets arrived at other times.
    /// The reason may be misspelled.
    pub fn say_nothing_found(&self, find: &Find<'_>, kept: Option<&KeptArgs>) {
        if let Some(class) = kept.and_then(|kept| kept.class.as_ref()) {
            let recordings = self.logs.iter().flat_map(|named| named.log.recordings());
            let classes: BTreeSet<&String> = recordings.flat_map(|one| &one.classes).collect();
            if !classes.is_empty() && !classes.contains(class) {
                let classes: Vec<&str> = classes.into_iter().map(String::as_str).collect();
                warn!(
                    "no packet has the class {}: the classes here are {}",
                    Printable(class),
                    Printable(&classes.join(", "))
                );
            }
        }
        if let Some(reason) = kept.and_then(|kept| kept.reason.as_ref()) {
            info!(
                "no selected packet was kept for {}: write the reason as `strata read` prints it, whole or up to a colon",
                Printable(reason)
            );
        }
        if let Some(process) = kept.and_then(|kept| kept.process.as_ref()) {
            info!(
                "no selected packet has the process {}: only logs recorded with --processes name processes, by at most \
                 15 characters",
                Printable(process)
            );
        }
        self.say_spans(find);
    }

    /// Says which logs have no packets from the wanted time, if others have some.
    pub fn say_not_in_time(&self, find: &Find<'_>) {
        let has_times = find.from_ns.is_some() || find.to_ns.is_some();
        if has_times && self.logs.len() > 1 {
            self.say_spans(find);
        }
    }

    fn say_spans(&self, find: &Find<'_>) {
        for (index, named) in self.logs.iter().enumerate() {
            let Some(text) = span_text(&named.log, find) else {
                continue;
            };
            match self.name(index) {
                Some(name) => info!("{}: {text}", Printable(name)),
                None => info!("{text}"),
            }
        }
    }

    /// Hands out the wanted packets, and the index of the log of each, until `take` breaks or fails. Packets of a
    /// log come in the order of an export; of several, the next packet of all is the one that arrived first.
    /// Returns sums over all logs.
    ///
    /// # Errors
    ///
    /// If `take` fails. If a log cannot be read to its end, this is said when the others have been read.
    pub fn each(
        &self,
        find: &Find<'_>,
        kept: &Kept,
        mut take: impl FnMut(usize, &LoggedPacket<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<Exported> {
        if let [only] = self.logs.as_slice() {
            return each(MEMORY_BYTES, &only.log, find, kept.clone(), |packet| {
                take(0, packet)
            });
        }
        let waiting_bytes = WAITING_BYTES / self.logs.len();
        thread::scope(|scope| {
            let start = |named| {
                let Named { log, .. }: &Named = named;
                let (find, kept) = (*find, kept.clone());
                Stream::start(scope, move |batch: &mut Batch<PacketCopy>| {
                    each(waiting_bytes, log, &find, kept, |packet| {
                        Ok(batch.push(PacketCopy::of(packet)))
                    })
                })
            };
            let mut streams: Vec<_> = self.logs.iter().map(start).collect();
            merge(&mut streams, |log, packet| take(log, &packet.packet()))?;
            let read = streams.into_iter().map(Stream::end);
            let mut sum = Exported::default();
            self.sum(read, |exported| sum.add(exported))?;
            Ok(sum)
        })
    }

    /// Hands out the flows of the wanted packets, and the index of the log of each, until `take` fails. Flows of a
    /// log come as they end; of several, the next flow of all is the one whose last packet arrived first. Returns sums
    /// over all logs, without the numbers of flows and records.
    ///
    /// # Errors
    ///
    /// If `take` fails. If a log cannot be read to its end, this is said when the others have been read.
    pub fn each_flow(
        &self,
        find: &Find<'_>,
        options: &FlowOptions<'_>,
        mut take: impl FnMut(usize, &FlowRecord) -> Result<()>,
    ) -> Result<ExportedFlows> {
        if let [only] = self.logs.as_slice() {
            let mut failure = None;
            let mut one = |record| {
                take(0, &record).map_err(|error| {
                    failure = Some(error);
                    stopped()
                })
            };
            let read = flows(&only.log, find, options, &mut one);
            return match failure {
                Some(failure) => Err(failure),
                None => fitting(read?),
            };
        }
        let options = FlowOptions {
            memory_bytes: WAITING_BYTES / self.logs.len(),
            // All logs together have as many as a single one: their memory does not grow with their number.
            flows_max: options.flows_max / self.logs.len(),
            ..*options
        };
        thread::scope(|scope| {
            let start = |named| {
                let Named { log, .. }: &Named = named;
                let (find, options) = (*find, options);
                Stream::start(scope, move |batch: &mut Batch<FlowRecord>| {
                    let mut one = |record| match batch.push(record) {
                        ControlFlow::Continue(()) => Ok(()),
                        ControlFlow::Break(()) => Err(stopped()),
                    };
                    fitting(flows(log, &find, &options, &mut one)?)
                })
            };
            let mut streams: Vec<_> = self.logs.iter().map(start).collect();
            merge(&mut streams, |log, record| {
                take(log, &record)?;
                Ok(ControlFlow::Continue(()))
            })?;
            let read = streams.into_iter().map(Stream::end);
            let mut sum = ExportedFlows::default();
            self.sum(read, |exported| sum.add(exported))?;
            Ok(sum)
        })
    }

    /// Adds what was read of each log, in their order.
    fn sum<E>(&self, read: impl Iterator<Item = Result<E>>, mut add: impl FnMut(E)) -> Result<()> {
        let mut unread = 0_u64;
        for (named, read) in self.logs.iter().zip(read) {
            match read {
                Ok(read) => add(read),
                Err(problem) => {
                    error!("{}: {problem:#}", Printable(&named.name));
                    unread += 1;
                }
            }
        }
        match unread {
            0 => Ok(()),
            _ => bail!(
                "{unread} of {} logs could not be read to the end (see above)",
                self.logs.len()
            ),
        }
    }
}

/// The error by which the reading of flows ends early.
fn stopped() -> io::Error {
    io::Error::other("enough was read")
}

/// Flows, unless the filter fits the link type of no packet.
fn fitting(exported: ExportedFlows) -> Result<ExportedFlows> {
    check_fit(exported.misfit.as_ref())?;
    Ok(exported)
}

/// Refuses a log that is named twice.
///
/// # Errors
///
/// If one is.
pub fn each_once(dirs: &[&Path]) -> Result<()> {
    match named_again(dirs) {
        None => Ok(()),
        Some(dir) => Err(refuse(format!(
            "{}: this log is named twice, and each of its packets would be counted twice",
            dir.display()
        ))),
    }
}

/// The first of these paths that leads to a file or directory to which one before it leads, if there is one.
#[must_use]
pub fn named_again<'a>(paths: &[&'a Path]) -> Option<&'a Path> {
    let mut known = HashSet::new();
    let mut names = HashSet::new();
    paths.iter().copied().find(|path| {
        let is_new = match fs::metadata(path) {
            Ok(found) if found.is_file() || found.is_dir() => {
                known.insert((found.dev(), found.ino()))
            }
            _ => true,
        };
        !names.insert(*path) || !is_new
    })
}

/// Whether a word after the first log names another: there is one, readable or not.
fn names_log(word: &str) -> bool {
    let dir = Path::new(word);
    dir.is_dir() && !matches!(Log::open(dir), Err(StoreError::Missing { .. }))
}
