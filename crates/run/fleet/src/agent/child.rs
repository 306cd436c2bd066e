//! The process of an agent that records.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use strata_agent::Plan;
use strata_auth::authority::write_private;
use strata_control::client::Client;
use strata_control::{ExportTimesRequest, Status};
use strata_role::{At as _, Notice, Result, RoleError, Tell, wait_for};

use super::tally::Counts;

/// How long a recording may take to start beside another, and how often it is looked whether it has.
const START: Duration = Duration::from_secs(120);
const READY_EVERY: Duration = Duration::from_millis(50);
/// A time that does not come: the last that TOML has, ns since 1970.
pub(super) const NEVER: u64 = i64::MAX.unsigned_abs();
/// How long a recording may take to end, and how long a check of its configuration.
const END: Duration = Duration::from_secs(10);
const CHECK: Duration = Duration::from_secs(120);
/// Memory of the rings of all interfaces together, KiB, and bounds of each: a host may have many.
const RINGS_KIB: usize = 256 << 10;
const RING_KIB_MIN: usize = 2 << 10;
const RING_KIB_MAX: usize = 32 << 10;
/// Bytes of a line of its messages.
const LINE_MAX: usize = 8 << 10;

/// How recordings are started.
#[derive(Clone)]
pub(super) struct Recorder {
    pub(super) program: PathBuf,
    pub(super) options: Vec<String>,
    /// Where their files are.
    pub(super) dir: PathBuf,
    /// For keys that are assigned.
    pub(super) keys: PathBuf,
    pub(super) tell: Tell,
}

/// A recording.
pub(super) struct Child {
    process: Process,
    config: PathBuf,
    /// The socket that serves its counters.
    pub(super) socket: PathBuf,
}

/// A process with its messages.
struct Process {
    process: process::Child,
    /// Can be read once it has ended.
    end: OwnedFd,
    messages: Messages,
}

/// What a process says on standard error.
struct Messages {
    /// Read without waiting; `None` once the other end is closed.
    from: Option<OwnedFd>,
    line: Vec<u8>,
    last: String,
    tell: Option<Tell>,
}

impl Recorder {
    fn command(&self, plan: &Plan, config: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args([
            "record",
            "--end-with-parent",
            &process::id().to_string(),
            "-i",
            &plan.interfaces.join(","),
        ]);
        let ring_kib = RINGS_KIB / plan.interfaces.len().max(1);
        let ring_kib = ring_kib.clamp(RING_KIB_MIN, RING_KIB_MAX);
        command.args(["-B", &ring_kib.to_string()]);
        for ports in &plan.bridge_ports {
            command.args(["--bridge-ports", &ports.join(",")]);
        }
        for (option, names) in [("--in-only", &plan.in_only), ("--out-only", &plan.out_only)] {
            if !names.is_empty() {
                command.args([option, &names.join(",")]);
            }
        }
        // What is not exported is not copied.
        command.args(["-s", &plan.snaplen.to_string()]);
        command.arg("--config").arg(config).args(&self.options);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // systemd waits for the agent; a mode would be refused, there is no log.
        command
            .env_remove("NOTIFY_SOCKET")
            .env_remove("STRATA_MODE");
        for name in [
            "STRATA_DEFAULT",
            "STRATA_POLICY",
            "STRATA_SOCKET",
            "STRATA_DETAIL",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// Finds what is wrong with a plan (`record --check`).
    pub(super) fn check(&self, plan: &Plan) -> Result<()> {
        if let Some(problem) = &plan.problem {
            return Err(RoleError::Refused(problem.clone()));
        }
        if let Some(keys) = &plan.keys {
            write(&self.keys, keys)?;
        }
        let config = self.dir.join("checked.toml");
        write(&config, &plan.config)?;
        let mut command = self.command(plan, &config);
        let mut process = Process::spawn(command.arg("--check"), None)?;
        match process.wait(CHECK)? {
            Some(status) if status.success() => Ok(()),
            Some(_) => Err(RoleError::Refused(process.messages.last)),
            None => {
                process.kill();
                let what = "the check of the policies did not end in time";
                Err(RoleError::Refused(what.into()))
            }
        }
    }

    /// Starts a recording; beside another one, it exports nothing until it learns from when
    /// ([`Child::between`]).
    pub(super) fn start(&self, plan: &Plan, beside: Option<&Child>) -> Result<Child> {
        let first = self.dir.join("strata.toml");
        let is_taken = beside.is_some_and(|other| other.config == first);
        let (config, socket) = match is_taken {
            false => (first, self.dir.join("record.sock")),
            true => (
                self.dir.join("strata-2.toml"),
                self.dir.join("record-2.sock"),
            ),
        };
        match beside {
            None => write(&config, &plan.config)?,
            Some(_) => write(&config, &plan.config_from(NEVER))?,
        }
        let mut command = self.command(plan, &config);
        let command = command.arg("--socket").arg(&socket);
        Ok(Child {
            process: Process::spawn(command, Some(self.tell.clone()))?,
            config,
            socket,
        })
    }
}

/// Writes a file that a recording reads: it may name keys, and where they are.
fn write(path: &Path, text: &str) -> Result<()> {
    write_private(path, text).at_with(|| format!("{}: cannot write", path.display()))
}

impl Child {
    /// What can be read when there is something to look at.
    pub(super) fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.process.wakes()
    }

    /// Why it has ended, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        match self.process.look() {
            Ok(None) => None,
            Ok(Some(status)) => Some(self.why(&status.to_string())),
            Err(error) => Some(self.why(&error.chain())),
        }
    }

    fn why(&self, how: &str) -> String {
        let last = &self.process.messages.last;
        format!("the recording has ended ({how}): {last}")
    }

    /// Waits so long, and passes on its messages; returns why it has ended if it does meanwhile.
    pub(super) fn watch(&mut self, most: Duration) -> Option<String> {
        match self.process.wait(most) {
            Ok(None) => None,
            Ok(Some(status)) => Some(self.why(&status.to_string())),
            Err(error) => Some(self.why(&error.chain())),
        }
    }

    /// Waits until it captures; returns why it does not, if it does not in time.
    pub(super) fn ready(&mut self) -> Option<String> {
        let started = Instant::now();
        // Its workers say what the kernel has counted.
        let captures = |status: Status| !status.interfaces.is_empty();
        while !self.client().status().is_ok_and(captures) {
            if let Some(why) = self.watch(READY_EVERY) {
                return Some(why);
            }
            if started.elapsed() > START {
                return Some("the recording did not begin to capture in time".into());
            }
        }
        None
    }

    fn client(&self) -> Client {
        Client::at(self.socket.clone())
    }

    /// What it has counted so far, if it says that.
    pub(super) fn counted(&self) -> Option<Counts> {
        let status = self.client().status().ok()?;
        Some(Counts::of(&status))
    }

    /// Lets it follow a plan for the same interfaces.
    pub(super) fn reload(&mut self, plan: &Plan) -> Result<()> {
        write(&self.config, &plan.config)?;
        self.process.signal(Signal::HUP)
    }

    /// Lets it export only what is captured from one time on and before another, ns since 1970. When this
    /// returns, it has done so, before these times.
    pub(super) fn between(&self, from: Option<u64>, until: Option<u64>) -> Result<()> {
        let asked = self
            .client()
            .set_export_times(&ExportTimesRequest { from, until });
        asked.map_err(|error| RoleError::Refused(error.to_string()))
    }

    /// Ends it, by force if it does not end by itself.
    pub(super) fn end(mut self) {
        let _ = self.process.signal(Signal::TERM);
        if !matches!(self.process.wait(END), Ok(Some(_))) {
            self.process.kill();
        }
    }
}

impl Process {
    /// Starts a process. Its messages go to `tell`, and the last is kept.
    fn spawn(command: &mut Command, tell: Option<Tell>) -> Result<Self> {
        let mut process = command.spawn().at("cannot start the recording")?;
        let followed = Self::follow(&mut process, tell);
        let (end, messages) = followed.inspect_err(|_| {
            let _ = process.kill();
            let _ = process.wait();
        })?;
        Ok(Self {
            process,
            end,
            messages,
        })
    }

    fn follow(process: &mut process::Child, tell: Option<Tell>) -> Result<(OwnedFd, Messages)> {
        let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        let pid = pid.expect("a process has a number above 0");
        let end = pidfd_open(pid, PidfdFlags::empty()).map_err(std::io::Error::from)?;
        let from = process.stderr.take().map(OwnedFd::from);
        if let Some(from) = &from {
            let flags = fcntl_getfl(from).map_err(std::io::Error::from)?;
            fcntl_setfl(from, flags | OFlags::NONBLOCK).map_err(std::io::Error::from)?;
        }
        let messages = Messages {
            from,
            line: Vec::new(),
            last: String::new(),
            tell,
        };
        Ok((end, messages))
    }

    fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let messages = self.messages.from.as_ref().map(AsFd::as_fd);
        messages.into_iter().chain([self.end.as_fd()])
    }

    /// Waits for its end, and passes messages on meanwhile; `None` if it does not come in time.
    fn wait(&mut self, most: Duration) -> Result<Option<ExitStatus>> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.look()? {
                return Ok(Some(status));
            }
            let left = most.saturating_sub(started.elapsed());
            let all: Vec<BorrowedFd<'_>> = self.wakes().collect();
            if left.is_zero() || !wait_for(&all, left)? {
                return Ok(None);
            }
        }
    }

    /// Passes on what it has printed, all of it if it has ended: then returns how.
    fn look(&mut self) -> Result<Option<ExitStatus>> {
        // In this order: what a process has printed is in the pipe before it ends.
        let status = self.process.try_wait()?;
        self.messages.read();
        Ok(status)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(pidfd_send_signal(&self.end, signal).map_err(std::io::Error::from)?)
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Messages {
    /// Reads what is there.
    fn read(&mut self) {
        let mut bytes = [0; 4096];
        while let Some(from) = &self.from {
            match rustix::io::read(from, &mut bytes).map_err(|error| error.kind()) {
                Ok(len @ 1..) => bytes[..len].iter().for_each(|byte| self.put(*byte)),
                Err(ErrorKind::Interrupted) => {}
                Err(ErrorKind::WouldBlock) => return,
                Ok(_) | Err(_) => {
                    self.from = None;
                    self.end_of_line();
                }
            }
        }
    }

    fn put(&mut self, byte: u8) {
        if byte != b'\n' {
            self.line.push(byte);
        }
        if byte == b'\n' || self.line.len() >= LINE_MAX {
            self.end_of_line();
        }
    }

    fn end_of_line(&mut self) {
        let text = String::from_utf8_lossy(&self.line);
        let text: String = text.chars().filter(|one| !one.is_control()).collect();
        self.line.clear();
        if text.is_empty() {
            return;
        }
        let text = match text.strip_prefix("strata: ") {
            Some(rest) => rest.to_owned(),
            None => text,
        };
        if let Some(tell) = &self.tell {
            tell(&Notice::info("recording", format!("recording: {text}")));
        }
        self.last = text;
    }
}
