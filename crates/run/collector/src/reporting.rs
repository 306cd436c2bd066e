//! What a collector tells the controller of its senders: what has arrived, so that it can be compared with what was
//! sent. A controller that is away costs collecting nothing.

use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use strata_control::agent_client::{
    AgentClient, AgentClientError, CollectorReport, Enrolment, Identity,
};
use strata_role::sandbox::{self, make_private_files};
use strata_role::{At as _, Notice, Result, RoleError, Tell, Waker, warn_if_shared};
use strata_sandbox::{Role, make_secret_dir};

/// The interval of reports, and of attempts after a failure.
const EVERY: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_secs(5);
/// How long the last report may take.
const LAST: Duration = Duration::from_secs(2);

/// The controller to which a collector reports.
#[derive(Clone, Debug)]
pub struct ReportTo {
    /// `HOST:PORT`.
    pub address: String,
    /// As the controller has written it; needed until there is a certificate.
    pub token_file: Option<PathBuf>,
    /// The name of the destination for which it collects.
    pub name: String,
    /// Its directory, made if it does not exist.
    pub state: PathBuf,
}

/// What the thread and the collector share.
struct Shared {
    latest: Mutex<CollectorReport>,
    is_last: AtomicBool,
    waker: Waker,
}

/// Reports before they are sent.
pub(super) struct Prepared {
    enrolment: Enrolment,
    identity: Option<Identity>,
    _lock: File,
}

impl Prepared {
    /// Opens the directory.
    pub(super) fn open(to: &ReportTo, tell: &Tell) -> Result<Self> {
        make_private_files();
        make_secret_dir(&to.state)?;
        warn_if_shared(&to.state, tell);
        let path = to.state.join("lock");
        let lock = File::create(&path).at(path.display())?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(RoleError::Refused(format!(
                    "{}: another collector is running with this directory",
                    to.state.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(error).at(path.display()),
        }
        let enrolment = Enrolment {
            address: to.address.clone(),
            token_file: to.token_file.clone(),
            name: to.name.clone(),
            is_collector: true,
            dir: to.state.clone(),
        };
        let identity = enrolment.begin()?;
        Ok(Self {
            enrolment,
            identity,
            _lock: lock,
        })
    }

    /// Starts to report.
    pub(super) fn start(self, tell: &Tell) -> Result<Reporting> {
        let shared = Arc::new(Shared {
            latest: Mutex::default(),
            is_last: AtomicBool::new(false),
            waker: Waker::new()?,
        });
        let (ending, ended) = channel();
        let work = Work {
            prepared: self,
            number: getrandom::u64().map_err(std::io::Error::other)?,
            was_refused: false,
            client: None,
            shared: Arc::clone(&shared),
            tell: Arc::clone(tell),
            _ending: ending,
        };
        let thread = thread::Builder::new().name("strata-report".into());
        let thread = thread.spawn(move || work.run());
        thread.map_err(RoleError::thread("reports to the controller"))?;
        Ok(Reporting { shared, ended })
    }
}

/// Reports that are being sent.
pub(super) struct Reporting {
    shared: Arc<Shared>,
    /// Its other end is gone when the thread is.
    ended: Receiver<()>,
}

impl Reporting {
    /// This is what is known now.
    pub(super) fn set(&self, report: CollectorReport) {
        let latest = self.shared.latest.lock();
        *latest.unwrap_or_else(PoisonError::into_inner) = report;
    }

    /// This is what is known at the end: sends it, if the controller answers soon.
    pub(super) fn end(self, report: CollectorReport) {
        self.set(report);
        self.shared.is_last.store(true, Ordering::Release);
        self.shared.waker.wake();
        let _ = self.ended.recv_timeout(LAST);
    }
}

struct Work {
    prepared: Prepared,
    /// The number of this run, by which a copy of this collector is noticed.
    number: u64,
    was_refused: bool,
    client: Option<AgentClient>,
    shared: Arc<Shared>,
    tell: Tell,
    _ending: Sender<()>,
}

impl Work {
    fn run(mut self) {
        sandbox::thread(Role::Server);
        let mut told: Option<String> = None;
        let mut was_connected = false;
        loop {
            let is_last = self.shared.is_last.load(Ordering::Acquire);
            let latest = self.shared.latest.lock();
            let mut report = latest.unwrap_or_else(PoisonError::into_inner).clone();
            (report.run, report.was_refused) = (self.number, self.was_refused);
            let wait = match self.send(&report) {
                Ok(()) => {
                    if told.take().is_some() || !was_connected {
                        let address = &self.prepared.enrolment.address;
                        let what = format!("controller {address}: connected");
                        (self.tell)(&Notice::info("controller", what));
                    }
                    was_connected = true;
                    EVERY
                }
                Err(error) => {
                    self.client = None;
                    let problem = error.chain();
                    if told.as_ref() != Some(&problem) {
                        let what = format!(
                            "{problem}; the counts of received packets are not reported to the controller"
                        );
                        (self.tell)(&Notice::warning(what));
                        told = Some(problem);
                    }
                    AGAIN
                }
            };
            if is_last {
                return;
            }
            self.shared.waker.wait(Some(wait));
        }
    }

    fn send(&mut self, report: &CollectorReport) -> Result<()> {
        let Prepared {
            enrolment,
            identity,
            ..
        } = &mut self.prepared;
        let known = match identity {
            Some(known) => known,
            None => identity.insert(enrolment.enrol()?),
        };
        let client = match &mut self.client {
            Some(client) => client,
            None => self.client.insert(enrolment.client(known)?),
        };
        enrolment.renew(known, client)?;
        match client.collected(report) {
            Ok(()) => {
                self.was_refused = false;
                Ok(())
            }
            Err(AgentClientError::Refused {
                is_copy: true,
                why,
                address,
                ..
            }) => {
                self.was_refused = true;
                Err(RoleError::Refused(format!("controller {address}: {why}")))
            }
            Err(AgentClientError::Refused {
                is_stranger: true,
                why,
                address,
                ..
            }) => {
                if enrolment.may_enrol_again(&why) {
                    *identity = None;
                }
                Err(RoleError::Refused(format!(
                    "controller {address} refuses: {why}"
                )))
            }
            Err(error) => Err(RoleError::Refused(error.to_string())),
        }
    }
}
