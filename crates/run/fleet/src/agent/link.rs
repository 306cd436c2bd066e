//! An agent's thread that asks its controller.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_agent::{Assignment, CpuUse, ExportCount, Report};
use strata_control::agent_client::{AgentClient, AgentClientError, Enrolment, Identity, Interrupt};
use strata_control::client::Client;
use strata_control::{CpuStatus, Status};
use strata_role::{Notice, Result, RoleError, Tell, Waker};
use strata_wire::unix_ns;

use super::Desk;
use super::tally::{Counts, PROBLEM_CHARS_MAX};

/// After a failure, and after further ones twice as long each time, up to the most.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// A controller notices within this time that a connection is gone.
const BUSY: Duration = Duration::from_millis(100);
/// The supervisor takes what was assigned within this time: it may be ending a recording.
const TAKEN: Duration = Duration::from_secs(60);

/// An agent that has been refused for this long because another one has its certificate ends its recording: that one
/// exports with the same identities. An agent that starts again is refused for less than that.
const YIELD: Duration = Duration::from_secs(10);

pub(super) struct Link {
    pub(super) enrolment: Enrolment,
    /// The number of this run, by which a copy of this agent is noticed.
    pub(super) number: u64,
    /// Whether this run was refused last, because another one had reported first.
    pub(super) was_refused: Cell<bool>,
    pub(super) desk: Desk,
    pub(super) interrupt: Interrupt,
    /// Wakes this: the supervisor has taken something, or the agent ends.
    pub(super) waker: Waker,
    /// Wakes the supervisor.
    pub(super) supervisor: Waker,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) tell: Tell,
}

fn refused(error: &impl std::fmt::Display) -> RoleError {
    RoleError::Refused(error.to_string())
}

impl Link {
    /// Starts to ask. A token that cannot be used is an error now, a controller that is away is not.
    pub(super) fn start(self) -> Result<JoinHandle<()>> {
        let identity = self.enrolment.begin()?;
        let thread = thread::Builder::new().name("strata-agent".into());
        thread
            .spawn(move || self.run(identity))
            .map_err(RoleError::thread("follows the controller"))
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits, but not beyond the end, or when `is_over`.
    fn wait_until(&self, most: Duration, is_over: impl Fn() -> bool) {
        let started = Instant::now();
        while !self.is_stopped() && !is_over() {
            let left = most.saturating_sub(started.elapsed());
            if left.is_zero() {
                break;
            }
            self.waker.wait(Some(left));
        }
    }

    fn wait(&self, most: Duration) {
        self.wait_until(most, || false);
    }

    fn run(self, mut identity: Option<Identity>) {
        let mut client = None;
        let (mut wait, mut told) = (AGAIN, String::new());
        let mut was_connected = false;
        let mut copied_since = None;
        while !self.is_stopped() {
            let (first, has_enrolled) = (!was_connected, identity.is_none());
            match self.ask(&mut identity, &mut client, first, &mut copied_since) {
                // Something has changed before there was an answer, or another request is still open.
                Ok(false) => {}
                Ok(true) => {
                    // It was printed when it was given a certificate.
                    if (first && !has_enrolled) || !told.is_empty() {
                        told.clear();
                        (self.tell)(&connected(&self.enrolment.address));
                    }
                    was_connected = true;
                    wait = AGAIN;
                }
                Err(error) => {
                    let problem = error.chain();
                    if problem != told {
                        let then = match copied_since {
                            Some(_) => "if that lasts, this agent captures nothing",
                            None => "the previous assignment stays in force",
                        };
                        (self.tell)(&Notice::warning(format!("{problem}; {then}")));
                        told = problem;
                    }
                    client = None;
                    // The recording of a copy ends in time.
                    let yields =
                        copied_since.map(|since: Instant| YIELD.saturating_sub(since.elapsed()));
                    let most = yields.filter(|left| !left.is_zero());
                    self.wait(most.map_or(wait, |left| wait.min(left)));
                    wait = (wait * 2).min(AGAIN_MAX);
                }
            }
        }
    }

    /// Asks once: for a certificate, if need be, and for something to do. The first time, for what it may have
    /// already: so there is an answer at once.
    fn ask(
        &self,
        identity: &mut Option<Identity>,
        client: &mut Option<AgentClient>,
        is_first: bool,
        copied_since: &mut Option<Instant>,
    ) -> Result<bool> {
        // Until this run is refused again.
        let refused_since = copied_since.take();
        let known = match identity {
            Some(known) => known,
            None => identity.insert(self.enrol()?),
        };
        let asking = match client {
            Some(client) => client,
            None => client.insert(self.enrolment.client(known)?),
        };
        self.enrolment.renew(known, asking)?;
        let until = self.interrupt.follow();
        let mut report = self.desk.lock().report.clone();
        report.time_ns = unix_ns();
        report.run = self.number;
        report.was_refused = self.was_refused.get();
        report.has = report.has.filter(|_| !is_first);
        self.add_counts(&mut report);
        self.add_problems(&mut report);
        let assigned = match asking.report(&report, until) {
            Ok(assigned) => assigned,
            Err(AgentClientError::Refused {
                is_stranger: true,
                why,
                ..
            }) => return Err(self.not_known(identity, &why)),
            Err(AgentClientError::Refused {
                is_copy: true, why, ..
            }) => {
                self.was_refused.set(true);
                let since = refused_since.unwrap_or_else(Instant::now);
                *copied_since = Some(since);
                if since.elapsed() >= YIELD {
                    self.desk.lock().inbox = Some(Assignment::default());
                    self.supervisor.wake();
                }
                return Err(RoleError::Refused(format!(
                    "controller {}: {why}",
                    self.enrolment.address
                )));
            }
            // It has not noticed yet that a wait was interrupted.
            Err(AgentClientError::Refused { is_busy: true, .. }) => {
                *copied_since = refused_since;
                self.wait(BUSY);
                return Ok(false);
            }
            Err(error) => return Err(refused(&error)),
        };
        if !asking.is_connected() {
            *copied_since = refused_since;
            return Ok(false);
        }
        self.was_refused.set(false);
        if let Some(assignment) = assigned {
            let stamp = assignment.stamp;
            self.desk.lock().inbox = Some(assignment);
            self.supervisor.wake();
            self.wait_until(TAKEN, || self.desk.lock().report.has == Some(stamp));
        }
        Ok(true)
    }

    /// Adds what this agent's recordings have counted.
    fn add_counts(&self, report: &mut Report) {
        let (number, socket) = {
            let shared = self.desk.lock();
            (shared.tally.number(), shared.socket.clone())
        };
        let status = socket.as_deref().and_then(status);
        let mut shared = self.desk.lock();
        if let Some(status) = status {
            shared.tally.saw(number, Counts::of(&status));
            report.cpu = status.cpu.map(cpu_use);
        }
        let all = shared.tally.all();
        (report.exports, report.dropped) = (all.exports, all.dropped);
    }

    /// Says which destinations cannot be looked up, also if nothing is recorded.
    fn add_problems(&self, report: &mut Report) {
        let problems = self.desk.lock().names.problems.clone();
        for (name, why) in problems {
            let problem = format!("its address is not known: {why}");
            let problem = problem.chars().take(PROBLEM_CHARS_MAX).collect();
            match report.exports.iter_mut().find(|to| to.name == name) {
                Some(to) => to.problem = problem,
                None => report.exports.push(ExportCount {
                    name,
                    problem,
                    ..ExportCount::default()
                }),
            }
        }
    }

    /// The controller does not know the certificate: it has forgotten this agent, or revoked it. With a
    /// token it may enrol again.
    fn not_known(&self, identity: &mut Option<Identity>, why: &str) -> RoleError {
        let Enrolment { address, .. } = &self.enrolment;
        if self.enrolment.may_enrol_again(why) {
            *identity = None;
        }
        RoleError::Refused(format!("controller {address} refuses: {why}"))
    }

    fn enrol(&self) -> Result<Identity> {
        let identity = self.enrolment.enrol()?;
        (self.tell)(&connected(&self.enrolment.address));
        Ok(identity)
    }
}

fn connected(address: &str) -> Notice {
    Notice::info("controller", format!("controller {address}: connected"))
}

/// The status of a recording; nothing without one.
fn status(socket: &Path) -> Option<Status> {
    fs::symlink_metadata(socket).ok()?;
    Client::new(Some(socket)).ok()?.status().ok()
}

fn cpu_use(cpu: CpuStatus) -> CpuUse {
    CpuUse {
        budget: thousandths(cpu.budget),
        left: thousandths(cpu.short.as_ref().map_or(cpu.budget, |short| short.budget)),
        used: thousandths(cpu.used),
        flows: thousandths(cpu.flow_share),
        short: cpu.short.map_or_else(String::new, |short| short.why),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn thousandths(share: f64) -> u32 {
    // A conversion to integers stops at their bounds.
    (share * 1000.0).round() as u32
}
