//! Follows Suricata's alerts: flows that it alerts on are kept whole.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use strata_pipeline::{Alerts, TriggerOptions, eve_alert};
use strata_sandbox::{Owner, Role, SocketFile};

use crate::error::{At as _, NodeError, Result};
use crate::notice::{Notice, Tell};
use crate::sandbox;
use crate::spec::TriggerSpec;

/// How often the source of alerts is polled.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A longer line is not an event.
const LINE_MAX: usize = 1 << 20;
/// Most connections to the socket at a time.
const CONNECTIONS_MAX: usize = 16;

impl TriggerSpec {
    /// The trigger options of each worker.
    pub(crate) fn options(&self, workers: u16, alerts: &Arc<Alerts>) -> Result<TriggerOptions> {
        let look_back = usize::try_from(self.look_back_bytes).map_err(|_| {
            NodeError::Refused(String::from(
                "--look-back: more memory than this machine addresses",
            ))
        })?;
        Ok(TriggerOptions {
            look_back_bytes: look_back / usize::from(workers.max(1)),
            first_bytes: self.first_bytes,
            alerts: self.eve.is_some().then(|| Arc::clone(alerts)),
        })
    }

    /// Opens the source of alerts. The existing contents of a file count only if the input is a
    /// file too (`whole`).
    pub(crate) fn open(&self, whole: bool, owner: &Owner) -> Result<Option<EveSource>> {
        let Some(path) = &self.eve else {
            return Ok(None);
        };
        let source = Source::open(path, whole, owner).at("--eve")?;
        Ok(Some(EveSource(source)))
    }

    /// The file that alerts are read from, if any: it may be rotated.
    pub(crate) fn followed(&self) -> Option<PathBuf> {
        self.eve.clone().filter(|path| path.is_file())
    }
}

/// Whether a path is to become a socket if nothing is there: any other is meant to be a file.
pub(crate) fn is_named_socket(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    matches!(ending, Some("sock" | "socket"))
}

/// Where alerts come from, opened.
pub(crate) struct EveSource(Source);

impl EveSource {
    /// Processes alerts until the result is dropped; those already there before it returns.
    pub(crate) fn start(self, alerts: &Arc<Alerts>, tell: &Tell) -> Result<EveReader> {
        let Self(mut source) = self;
        let mut lines = Lines::default();
        source.look(alerts, &mut lines, tell);
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, alerts, tell) = (Arc::clone(&stop), Arc::clone(alerts), Arc::clone(tell));
        let work = move || {
            sandbox::thread(Role::Files);
            while !stopped.load(Ordering::Relaxed) {
                thread::park_timeout(LOOK_EVERY);
                source.look(&alerts, &mut lines, &tell);
            }
        };
        let thread = thread::Builder::new().name("strata-eve".into()).spawn(work);
        Ok(EveReader {
            stop,
            thread: Some(thread.map_err(NodeError::Thread)?),
        })
    }
}

/// A thread that processes alerts. It ends when this is dropped.
pub(crate) struct EveReader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
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

/// Where alerts come from.
enum Source {
    Socket {
        socket: SocketFile,
        connections: Vec<(UnixStream, Lines)>,
    },
    Followed {
        path: PathBuf,
        file: File,
    },
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
                let path = path.to_owned();
                return Ok(Self::Followed { path, file });
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
    fn look(&mut self, alerts: &Alerts, lines: &mut Lines, tell: &Tell) {
        match self {
            Self::Followed { path, file } => {
                lines.read(file, alerts, tell);
                // Rotated: the name now belongs to another file, or the file was truncated.
                let (Ok(named), Ok(ours), Ok(position)) = (
                    fs::metadata(&*path),
                    file.metadata(),
                    file.stream_position(),
                ) else {
                    return;
                };
                let rotated = named.ino() != ours.ino() || ours.len() < position;
                if rotated && let Ok(opened) = File::open(&*path) {
                    *file = opened;
                    *lines = Lines::default();
                    lines.read(file, alerts, tell);
                }
            }
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
                connections.retain_mut(|(connection, lines)| lines.read(connection, alerts, tell));
            }
        }
    }
}

/// Lines of a stream.
#[derive(Default)]
struct Lines {
    partial: Vec<u8>,
    /// Whether an invalid line was reported.
    complained: bool,
}

impl Lines {
    /// Processes what is available; returns whether more may come.
    fn read(&mut self, from: &mut impl Read, alerts: &Alerts, tell: &Tell) -> bool {
        let mut buffer = [0; 64 << 10];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return false,
                Ok(read) => self.take(&buffer[..read], alerts, tell),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }

    fn take(&mut self, bytes: &[u8], alerts: &Alerts, tell: &Tell) {
        self.partial.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(len) = self.partial[start..].iter().position(|&byte| byte == b'\n') {
            let line = self.partial[start..start + len].trim_ascii();
            start += len + 1;
            if line.is_empty() {
                continue;
            }
            match eve_alert(line) {
                Ok(Some(alert)) => alerts.raise(alert),
                Ok(None) => {}
                Err(error) if !self.complained => {
                    self.complained = true;
                    tell(&Notice::NotEve(error.to_string()));
                }
                Err(_) => {}
            }
        }
        self.partial.drain(..start);
        if self.partial.len() > LINE_MAX {
            self.partial.clear();
        }
    }
}
