//! The process of an agent that records.

use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use strata_agent::Plan;

use crate::error::{At as _, NodeError, Result};
use crate::notice::{Notice, Tell};

/// How long a recording may take to end, and how long a check of its configuration.
const END: Duration = Duration::from_secs(10);
const CHECK: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes of a line of its messages.
const LINE_MAX: u64 = 8 << 10;

/// How recordings are started.
#[derive(Clone)]
pub(super) struct Recorder {
    pub(super) program: PathBuf,
    pub(super) options: Vec<String>,
    /// Where their configuration is, and their socket.
    pub(super) config: PathBuf,
    pub(super) socket: PathBuf,
    pub(super) tell: Tell,
}

/// A recording's process.
#[derive(Debug)]
pub(super) struct Child {
    process: process::Child,
    /// Its last message.
    said: Arc<Mutex<String>>,
}

impl Recorder {
    fn command(&self, plan: &Plan, config: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args([
            "record",
            "--end-with-parent",
            "-i",
            &plan.interfaces.join(","),
        ]);
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

    /// Writes a configuration once `record --check` has found nothing wrong with it.
    fn configure(&self, plan: &Plan) -> Result<()> {
        let new = self.config.with_extension("toml.new");
        fs::write(&new, &plan.config).at_with(|| format!("{}: cannot write", new.display()))?;
        let mut command = self.command(plan, &new);
        let mut child = Child::spawn(command.arg("--check"), None)?;
        match child.wait(CHECK) {
            Some(status) if status.success() => {}
            Some(_) => return Err(NodeError::Refused(child.said())),
            None => {
                let _ = child.process.kill();
                let _ = child.process.wait();
                return Err(NodeError::Refused(
                    "the check of policies does not end".into(),
                ));
            }
        }
        fs::rename(&new, &self.config).at(self.config.display())
    }

    /// Starts a recording.
    pub(super) fn start(&self, plan: &Plan) -> Result<Child> {
        self.configure(plan)?;
        let mut command = self.command(plan, &self.config);
        Child::spawn(command.arg("--socket").arg(&self.socket), Some(&self.tell))
    }

    /// Lets the recording read its configuration again.
    pub(super) fn reload(&self, plan: &Plan, child: &Child) -> Result<()> {
        self.configure(plan)?;
        child.signal(Signal::HUP)
    }
}

impl Child {
    /// Starts a process. Its messages are passed on, and the last is kept.
    fn spawn(command: &mut Command, tell: Option<&Tell>) -> Result<Self> {
        let mut process = command.spawn().at("cannot start the recording")?;
        let said = Arc::new(Mutex::new(String::new()));
        let (kept, tell) = (Arc::clone(&said), tell.map(Arc::clone));
        if let Some(messages) = process.stderr.take() {
            let pass_on = move || {
                let mut messages = BufReader::new(messages);
                let mut line = Vec::new();
                while matches!(
                    messages
                        .by_ref()
                        .take(LINE_MAX)
                        .read_until(b'\n', &mut line),
                    Ok(1..)
                ) {
                    let text = String::from_utf8_lossy(&line);
                    let text: String = text.chars().filter(|one| !one.is_control()).collect();
                    line.clear();
                    if let Some(tell) = &tell {
                        tell(&Notice::OfRecording(text.clone()));
                    }
                    let text = text
                        .strip_prefix("strata: ")
                        .map_or(text.clone(), str::to_owned);
                    *kept.lock().unwrap_or_else(PoisonError::into_inner) = text;
                }
            };
            let thread = thread::Builder::new().name("strata-messages".into());
            thread.spawn(pass_on).map_err(NodeError::Thread)?;
        }
        Ok(Self { process, said })
    }

    fn said(&self) -> String {
        self.said
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits for its end; `None` if it does not come in time.
    fn wait(&mut self, most: Duration) -> Option<ExitStatus> {
        let started = Instant::now();
        while started.elapsed() < most {
            if let Ok(Some(status)) = self.process.try_wait() {
                // Its last message may be on its way.
                thread::sleep(LOOK_EVERY);
                return Some(status);
            }
            thread::sleep(LOOK_EVERY);
        }
        None
    }

    /// Why it has ended, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.process.try_wait().ok().flatten()?;
        thread::sleep(LOOK_EVERY);
        Some(format!(
            "the recording has ended ({status}): {}",
            self.said()
        ))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw);
        let pid = pid.expect("a process has a number above 0");
        Ok(kill_process(pid, signal).map_err(std::io::Error::from)?)
    }

    /// Ends it, by force if it does not end by itself.
    pub(super) fn end(mut self) {
        let _ = self.signal(Signal::TERM);
        if self.wait(END).is_none() {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}
