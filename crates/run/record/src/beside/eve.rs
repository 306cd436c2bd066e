//! Follows Suricata's alerts: flows that it alerts on are kept whole.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_control::EveStatus;
use strata_pipeline::{Alerts, TriggerOptions, eve_alert};
use strata_role::{RoleError, Tell};
use strata_sandbox::{Owner, Role, SocketFile};

use crate::error::{At as _, Result};
use crate::notice::{EveCounts, RecordNotice};
use crate::spec::TriggerSpec;

/// How often the source of alerts is polled.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A longer line is not an event.
const LINE_MAX: usize = 1 << 20;
/// How long a file is read after logrotate has renamed it, and after the last line in it: Suricata writes
/// there until it handles the signal that logrotate sends later. As long as fluent-bit's `Rotate_Wait`.
const RENAMED_WAIT: Duration = Duration::from_secs(5);
/// Renamed files that are read at once; of more, the oldest is let go of.
const RENAMED_MAX: usize = 8;
/// Maximum number of connections to the socket at a time.
const CONNECTIONS_MAX: usize = 16;

impl TriggerSpec {
    /// The trigger options of each worker.
    pub(crate) fn options(&self, workers: u16, alerts: &Arc<Alerts>) -> Result<TriggerOptions> {
        let look_back = usize::try_from(self.look_back_bytes).map_err(|_| {
            RoleError::Refused(String::from(
                "--look-back: more memory than this machine can address",
            ))
        })?;
        Ok(TriggerOptions {
            look_back_bytes: look_back / usize::from(workers.max(1)),
            first_bytes: self.first_bytes,
            alerts: (!self.eve.is_empty()).then(|| Arc::clone(alerts)),
        })
    }

    /// Opens the sources of alerts. The existing contents of a file count only if the input is a
    /// file too (`whole`).
    pub(crate) fn open(&self, whole: bool, owner: &Owner) -> Result<Option<EveSource>> {
        let open = |path: &PathBuf| Source::open(path, whole, owner).at("--eve");
        let sources = self.eve.iter().map(open).collect::<Result<Vec<_>>>()?;
        Ok((!sources.is_empty()).then_some(EveSource(sources)))
    }

    /// The files that alerts are read from: they may be rotated.
    pub(crate) fn followed(&self) -> impl Iterator<Item = PathBuf> {
        self.eve.iter().filter(|path| path.is_file()).cloned()
    }
}

/// Whether a path is to become a socket if nothing is there: any other is meant to be a file.
pub(crate) fn is_named_socket(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    matches!(ending, Some("sock" | "socket"))
}

/// Where alerts come from, opened.
pub(crate) struct EveSource(Vec<Source>);

impl EveSource {
    /// Processes alerts until the result is dropped; those already there before it returns.
    pub(crate) fn start(self, alerts: &Arc<Alerts>, tell: &Tell) -> Result<EveReader> {
        let Self(mut sources) = self;
        let mut look = {
            let (alerts, tell) = (Arc::clone(alerts), Arc::clone(tell));
            move |counts: &mut EveCounts| {
                let mut taking = Taking {
                    alerts: &alerts,
                    counts,
                    tell: &tell,
                };
                sources
                    .iter_mut()
                    .for_each(|source| source.look(&mut taking));
            }
        };
        let mut counts = EveCounts::default();
        look(&mut counts);
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, tell) = (Arc::clone(&stop), Arc::clone(tell));
        let read = Arc::new(Mutex::new(counts));
        let known = Arc::clone(&read);
        let raised = Arc::clone(alerts);
        let work = move || {
            strata_role::sandbox::thread(Role::Files);
            while !stopped.load(Ordering::Relaxed) {
                thread::park_timeout(LOOK_EVERY);
                look(&mut counts);
                *known.lock().unwrap_or_else(PoisonError::into_inner) = counts;
            }
            tell(&RecordNotice::Eve(counts, raised.flows()).into());
        };
        let thread = thread::Builder::new().name("strata-eve".into()).spawn(work);
        Ok(EveReader {
            stop,
            alerts: Arc::clone(alerts),
            read,
            thread: Some(thread.map_err(RoleError::Thread)?),
        })
    }
}

/// A thread that processes alerts. It ends when this is dropped.
pub(crate) struct EveReader {
    stop: Arc<AtomicBool>,
    alerts: Arc<Alerts>,
    read: Arc<Mutex<EveCounts>>,
    thread: Option<JoinHandle<()>>,
}

impl EveReader {
    /// What was read so far, and whether it met packets.
    pub(crate) fn status(&self) -> EveStatus {
        let read = *self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let (flows, matched) = self.alerts.flows();
        EveStatus {
            lines: read.lines,
            alerts: read.alerts,
            invalid: read.invalid,
            flows,
            matched,
        }
    }
}

impl Drop for EveReader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Where lines go.
struct Taking<'a> {
    alerts: &'a Alerts,
    counts: &'a mut EveCounts,
    tell: &'a Tell,
}

/// Where alerts come from.
enum Source {
    Socket {
        socket: SocketFile,
        connections: Vec<(UnixStream, Lines)>,
    },
    Followed(Follower),
}

/// A file that another may take the name of.
struct Follower {
    path: PathBuf,
    file: File,
    lines: Lines,
    /// Those that had the name before, oldest first.
    renamed: Vec<Renamed>,
}

/// A file that has lost its name, in which a line may still be written.
struct Renamed {
    file: File,
    lines: Lines,
    /// When it was renamed, or the last line came.
    quiet_since: Instant,
}

impl Source {
    fn open(path: &Path, whole: bool, owner: &Owner) -> Result<Self> {
        let named = || path.display().to_string();
        match fs::metadata(path) {
            Ok(found) if found.file_type().is_socket() => {}
            Ok(_) => {
                let mut file = File::open(path).at_with(named)?;
                if !whole {
                    file.seek(SeekFrom::End(0)).at_with(named)?;
                }
                return Ok(Self::Followed(Follower {
                    path: path.to_owned(),
                    file,
                    lines: Lines::default(),
                    renamed: Vec::new(),
                }));
            }
            Err(error) if error.kind() == ErrorKind::NotFound && is_named_socket(path) => {}
            Err(error) => return Err(error).at_with(named),
        }
        let socket = SocketFile::bind(path, owner)?;
        socket.listener().set_nonblocking(true).at_with(named)?;
        Ok(Self::Socket {
            socket,
            connections: Vec::new(),
        })
    }

    /// Processes what was added since.
    fn look(&mut self, taking: &mut Taking<'_>) {
        match self {
            Self::Followed(follower) => follower.look(taking, Instant::now()),
            Self::Socket {
                socket,
                connections,
            } => {
                while connections.len() < CONNECTIONS_MAX
                    && let Ok((connection, _)) = socket.listener().accept()
                    && connection.set_nonblocking(true).is_ok()
                {
                    connections.push((connection, Lines::default()));
                }
                connections.retain_mut(|(connection, lines)| lines.read(connection, taking));
            }
        }
    }
}

impl Follower {
    fn look(&mut self, taking: &mut Taking<'_>, now: Instant) {
        self.renamed.retain_mut(|renamed| {
            let before = taking.counts.lines;
            renamed.lines.read(&mut renamed.file, taking);
            if taking.counts.lines > before {
                renamed.quiet_since = now;
            }
            now.saturating_duration_since(renamed.quiet_since) < RENAMED_WAIT
        });
        self.lines.read(&mut self.file, taking);
        let (Ok(named), Ok(ours), Ok(position)) = (
            fs::metadata(&self.path),
            self.file.metadata(),
            self.file.stream_position(),
        ) else {
            return;
        };
        let is_ours = (named.dev(), named.ino()) == (ours.dev(), ours.ino());
        if is_ours && ours.len() >= position {
            return;
        }
        // The name now belongs to another file, or the file was emptied.
        let Ok(opened) = File::open(&self.path) else {
            return;
        };
        taking.counts.rotations += 1;
        let file = std::mem::replace(&mut self.file, opened);
        let lines = std::mem::take(&mut self.lines);
        if !is_ours {
            self.renamed.push(Renamed {
                file,
                lines,
                quiet_since: now,
            });
            let surplus = self.renamed.len().saturating_sub(RENAMED_MAX);
            self.renamed.drain(..surplus);
        }
        self.lines.read(&mut self.file, taking);
    }
}

/// Lines of a stream.
#[derive(Default)]
struct Lines {
    partial: Vec<u8>,
    /// Whether an invalid line was reported.
    complained: bool,
    /// Whether the rest of a line that is too long is still to come.
    skipping: bool,
}

impl Lines {
    /// Processes what is available; returns whether more may come.
    fn read(&mut self, from: &mut impl Read, taking: &mut Taking<'_>) -> bool {
        let mut buffer = [0; 64 << 10];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return false,
                Ok(read) => self.take(&buffer[..read], taking),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }

    fn take(&mut self, bytes: &[u8], taking: &mut Taking<'_>) {
        self.partial.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(len) = self.partial[start..].iter().position(|&byte| byte == b'\n') {
            let line = self.partial[start..start + len].trim_ascii();
            start += len + 1;
            if std::mem::take(&mut self.skipping) || line.is_empty() {
                continue;
            }
            taking.counts.lines += 1;
            match eve_alert(line) {
                Ok(Some(alert)) => {
                    taking.counts.alerts += 1;
                    taking.alerts.raise(alert);
                }
                Ok(None) => {}
                Err(error) => {
                    taking.counts.invalid += 1;
                    if !std::mem::replace(&mut self.complained, true) {
                        (taking.tell)(&RecordNotice::NotEve(error.to_string()).into());
                    }
                }
            }
        }
        self.partial.drain(..start);
        if self.partial.len() > LINE_MAX {
            self.partial.clear();
            // Its rest is not another line.
            if !std::mem::replace(&mut self.skipping, true) {
                taking.counts.lines += 1;
                taking.counts.invalid += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use strata_role::Notice;

    use super::*;

    fn alert(port: u16) -> String {
        format!(
            "{{\"timestamp\":\"2023-11-14T22:13:20.000000+0000\",\"event_type\":\"alert\",\
             \"src_ip\":\"10.0.0.1\",\"src_port\":{port},\"dest_ip\":\"10.0.0.2\",\"dest_port\":53,\
             \"proto\":\"UDP\",\"alert\":{{\"signature_id\":1,\"signature\":\"T\"}}}}\n"
        )
    }

    fn append(path: &Path, text: &str) {
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// logrotate renames the file, makes a new one, and only then signals: until Suricata has handled
    /// that, it writes to the renamed file.
    #[test]
    fn a_renamed_file_is_read_until_it_has_been_quiet() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("eve.json"), dir.path().join("eve.json.1"));
        append(&path, "");
        let source = Source::open(&path, false, &Owner::default()).unwrap();
        let Source::Followed(mut follower) = source else {
            panic!("a file is followed");
        };
        let (alerts, tell): (_, Tell) = (Alerts::default(), Arc::new(|_: &Notice| {}));
        let mut counts = EveCounts::default();
        let start = Instant::now();
        let mut look = |seconds: u64| {
            let mut taking = Taking {
                alerts: &alerts,
                counts: &mut counts,
                tell: &tell,
            };
            follower.look(&mut taking, start + Duration::from_secs(seconds));
            *taking.counts
        };
        append(&path, &alert(1));
        assert_eq!(look(0).alerts, 1);
        fs::rename(&path, &old).unwrap();
        // A line that is half there when the name is gone.
        let halves = alert(2);
        let (half, rest) = halves.split_at(40);
        append(&old, half);
        assert_eq!(look(1).alerts, 1);
        append(&path, &alert(3));
        assert_eq!((look(1).alerts, look(1).rotations), (2, 1));
        append(&old, rest);
        assert_eq!(look(2).alerts, 3);
        // It was quiet for less than that since.
        append(&old, &alert(4));
        assert_eq!(look(6).alerts, 4);
        append(&path, &alert(5));
        append(&old, &alert(6));
        assert_eq!(look(7).alerts, 6);
        look(12);
        append(&old, &alert(7));
        append(&path, "no event\n\n");
        let last = look(13);
        let wanted = EveCounts {
            lines: 7,
            alerts: 6,
            invalid: 1,
            rotations: 1,
        };
        assert_eq!(last, wanted);
    }

    #[test]
    fn a_file_that_is_emptied_is_read_from_its_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eve.json");
        append(&path, &alert(1));
        let source = Source::open(&path, true, &Owner::default()).unwrap();
        let Source::Followed(mut follower) = source else {
            panic!("a file is followed");
        };
        let (alerts, tell): (_, Tell) = (Alerts::default(), Arc::new(|_: &Notice| {}));
        let mut counts = EveCounts::default();
        let mut taking = Taking {
            alerts: &alerts,
            counts: &mut counts,
            tell: &tell,
        };
        follower.look(&mut taking, Instant::now());
        fs::write(&path, "").unwrap();
        follower.look(&mut taking, Instant::now());
        append(
            &path,
            &format!("{}\n{}", "x".repeat(LINE_MAX + 7), alert(2)),
        );
        follower.look(&mut taking, Instant::now());
        assert_eq!((counts.alerts, counts.invalid, counts.rotations), (2, 1, 1));
        assert_eq!(follower.renamed.len(), 0);
    }
}
