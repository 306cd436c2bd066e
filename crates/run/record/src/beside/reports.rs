//! A recording as a reporter of telemetry (`--report-to`): what it finds out goes to a collector as
//! DTA reports (`docs/telemetry.md`).
//!
//! ```text
//! worker -> vectors of its packets -> bounded queue -> this thread -> UDP
//! ```
//!
//! The vectors are those that queries get too (`strata_gpv_run::VectorTap`). While interfaces are captured, workers
//! never wait for this thread: what does not fit into its queue is lost and counted, as is what the
//! network does not take. Reports are not kept, so what the collector drops is not sent again. A second
//! thread reports what has changed of installed queries, whether packets come or not.

mod asked;
mod flows;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_classify::Model;
use strata_control::vectors::{Attached, Subscriber, WhenFull};
use strata_control::{Controller, ReportStatus};
use strata_dta::protocol::packed::stated_count;
use strata_dta::protocol::{Flags, Report};
use strata_dta::reporter::{Reporter, ReporterOptions};
use strata_gpv::agent::{Sequencer, SequencerOptions};
use strata_gpv::{Column, Columns};
use strata_role::{Notice, RoleError, Tell};
use strata_sandbox::Role;
use strata_wire::{exact, unix_ns};

use crate::error::{At as _, Result};
use asked::Asked;
use flows::Flows;

/// What is looked at of packets.
const COLUMNS: Columns = Columns::of(&[
    Column::Time,
    Column::Size,
    Column::TcpSeq,
    Column::TcpFlags,
    Column::PayloadLen,
    Column::Class,
]);
/// Reports wait at most about this long.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// Interval of reports of installed queries.
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// Reports in that time, while interfaces are captured: a flood of made-up flows must not become a
/// flood of reports.
const REPORTS_MAX: u32 = 10_000;
/// Caches that vectors come from, one of each worker: as many as there can be workers.
const CACHES_MAX: usize = 1 << 16;

/// The threads that report. They end when this is dropped, after what workers have given them.
pub(crate) struct Reports {
    feed: Arc<Subscriber>,
    /// Ends the second one.
    ends: Option<mpsc::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Reports {
    /// Begins to report to a collector what workers record from now on. If `waits`, they wait for it.
    pub(crate) fn start(
        to: SocketAddr,
        controller: &Arc<Controller>,
        model: &Model,
        waits: bool,
        tell: &Tell,
    ) -> Result<Self> {
        let when_full = if waits {
            WhenFull::Wait
        } else {
            WhenFull::Lose
        };
        let attached = controller
            .subscribers()
            .attach_inside(COLUMNS.0, when_full)
            .map_err(|error| RoleError::Refused(format!("--report-to {to}: {error}")))?;
        let feed = attached.subscriber();
        let session = getrandom::u32().map_err(std::io::Error::other)?;
        let sender = Sender {
            socket: connected(to).at_with(|| format!("--report-to {to}"))?,
            reporter: Reporter::new(ReporterOptions {
                // There are no requests for reports that are not kept.
                kept_max: 0,
                ..ReporterOptions::new(session.to_le_bytes()[0])
            }),
            status: ReportStatus {
                to: to.to_string(),
                ..ReportStatus::default()
            },
            left: REPORTS_MAX,
            is_limited: !waits,
            latest: 0,
            started: Instant::now(),
            started_ns: unix_ns(),
            controller: Arc::clone(controller),
            tell: Arc::clone(tell),
        };
        controller.set_reports(sender.status.clone());
        let anomalous = model.classes.iter().map(|class| class.anomalous).collect();
        let sender = Arc::new(Mutex::new(sender));
        let (ends, ended) = mpsc::channel();
        let mut reports = Self {
            feed,
            ends: Some(ends),
            threads: Vec::new(),
        };
        let of_packets = Arc::clone(&sender);
        reports.spawn("strata-reports", move || {
            run(attached, &of_packets, Flows::new(anomalous));
        })?;
        reports.spawn("strata-asked", move || report_queries(&sender, &ended))?;
        Ok(reports)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let work = move || {
            strata_role::sandbox::thread(Role::Server);
            work();
        };
        let thread = thread::Builder::new().name(name.into()).spawn(work);
        self.threads
            .push(thread.map_err(RoleError::thread("reports telemetry"))?);
        Ok(())
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        self.feed.close();
        // After packets, the changes that they have made in queries.
        for thread in self.threads.drain(..) {
            let _ = thread.join();
            self.ends = None;
        }
    }
}

/// A socket that sends to this address without waiting.
fn connected(to: SocketAddr) -> std::io::Result<UdpSocket> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn lock(sender: &Mutex<Sender>) -> MutexGuard<'_, Sender> {
    sender.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports once in a while what has changed of installed queries, until `ended`.
fn report_queries(sender: &Mutex<Sender>, ended: &Receiver<()>) {
    let controller = Arc::clone(&lock(sender).controller);
    let mut asked = Asked::default();
    loop {
        let wait = ended.recv_timeout(ASKED_EVERY);
        let queries = controller.queries().reported();
        if !queries.is_empty() {
            let mut sender = lock(sender);
            sender.left = REPORTS_MAX;
            asked.report(&queries, &mut |report| sender.report(report));
            sender.send_all();
        }
        if let Err(RecvTimeoutError::Disconnected) = wait {
            return;
        }
    }
}

/// Reports what comes until the recording is over.
fn run(mut attached: Attached, sender: &Mutex<Sender>, mut flows: Flows) {
    // Datagrams of a worker come in order, so nothing has to wait.
    let mut sequencer = Sequencer::new(SequencerOptions {
        waiting_max: 0,
        caches_max: CACHES_MAX,
        ..SequencerOptions::default()
    });
    let mut flushed = Instant::now();
    loop {
        let is_late = flushed.elapsed() >= FLUSH_EVERY;
        let ready = attached.next_now();
        if is_late || ready.is_none() {
            lock(sender).flush(&mut flows, is_late);
            flushed = if is_late { Instant::now() } else { flushed };
        }
        let Some(datagram) = ready.or_else(|| attached.blocking_next()) else {
            break;
        };
        let mut sender = lock(sender);
        // What cannot be read is counted as lost with the next.
        let _ = sequencer.datagram_at_once(&datagram, |_, vectors| {
            for vector in vectors {
                flows.take(vector, &mut |report| sender.report(report));
            }
        });
        let lost = sequencer.counters().lost;
        if lost > sender.status.vectors_lost {
            sender.status.vectors_lost = lost;
            flows.skip();
        }
    }
    for (cache, sent) in attached.subscriber().end().caches {
        let _ = sequencer.finish(cache, Some(sent), |_, _| ());
    }
    let mut sender = lock(sender);
    sender.status.vectors_lost = sequencer.counters().lost;
    sender.flush(&mut flows, true);
}

/// Reports on their way to the network.
struct Sender {
    socket: UdpSocket,
    reporter: Reporter,
    status: ReportStatus,
    /// How many more may be made until the next flush.
    left: u32,
    is_limited: bool,
    /// Reports of the latest datagram.
    latest: u64,
    started: Instant,
    started_ns: u64,
    controller: Arc<Controller>,
    tell: Tell,
}

impl Sender {
    /// Whether there was room for it.
    fn report(&mut self, report: &Report<'_>) -> bool {
        if self.is_limited && self.left == 0 {
            self.status.over_limit += 1;
            return false;
        }
        self.left = self.left.saturating_sub(1);
        let now_ns = exact::<u64>(self.started.elapsed().as_nanos());
        let time_ns = self.started_ns + now_ns;
        let mut full = Vec::new();
        let keep = &mut |bytes: &[u8]| full.push(bytes.to_vec());
        self.reporter
            .report(report, Flags::of_event(report), time_ns, now_ns, keep);
        for datagram in full {
            self.send(&datagram);
        }
        true
    }

    /// Sends what waits, and says what was sent so far. Where it is time, as much may be reported
    /// again.
    fn flush(&mut self, flows: &mut Flows, is_time: bool) {
        if is_time {
            self.left = REPORTS_MAX;
        }
        flows.flush(&mut |report| self.report(report));
        self.send_all();
    }

    /// Sends what waits, and says what was sent so far.
    fn send_all(&mut self) {
        let mut rest = Vec::new();
        self.reporter
            .flush(&mut |bytes: &[u8]| rest.push(bytes.to_vec()));
        for datagram in rest {
            self.send(&datagram);
        }
        self.controller.set_reports(self.status.clone());
    }

    /// Sends a datagram, or counts that it was not.
    fn send(&mut self, datagram: &[u8]) {
        let count = stated_count(datagram).expect("a reporter's datagrams have a count");
        let count = u64::from(count);
        let mut sent = self.socket.send(datagram);
        if let Err(error) = &sent
            && error.kind() == ErrorKind::ConnectionRefused
        {
            // That is about the datagram before, and this one is still here.
            self.warn(error);
            self.status.reports -= self.latest;
            self.status.not_sent += self.latest;
            self.latest = 0;
            sent = self.socket.send(datagram);
        }
        if let Err(error) = sent {
            self.warn(&error);
            self.status.not_sent += count;
            return;
        }
        self.latest = count;
        self.status.reports += count;
        self.status.datagrams += 1;
    }

    /// The first time that something is not sent.
    fn warn(&self, error: &std::io::Error) {
        if self.status.not_sent == 0 {
            let to = &self.status.to;
            (self.tell)(&Notice::warning(format!(
                "--report-to {to}: {error}; the recording continues, and reports that cannot be \
                 sent are counted"
            )));
        }
    }
}
