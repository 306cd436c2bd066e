//! The switch's end: connects [`Switch`], its side of the protocol, to sockets, a worker and the
//! clock.

mod open;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_auth::secret::Secret;
use strata_auth::tls::ClientTls;
use strata_blocks::{BlockEnd, BlockSource, Incoming};
use strata_rdma::OnLoss;
use strata_roce::Port;
use strata_store::{About, SavedLedger};
use strata_sys::pause;
use strata_wire::roce::{Service, UDP_PORT};
use strata_wire::segment::Layout;
use strata_wire::{Ledger, exact};

use crate::error::RelayError;
use crate::handover::MemoryFrom;
use crate::protocol::switch::{LinkReport, Resumption, Search, Switch, SwitchOptions, Turn};
use crate::protocol::{End, Shortage};
use open::Opened;

/// The transport of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// RoCEv2 through a kernel UDP socket.
    Udp(Service),
    /// RoCEv2 in our own frames, through this interface.
    Raw(Service, String),
    /// Memory of the same machine.
    SharedMemory,
}

/// Wraps a port: for tests that lose packets.
pub type WrapPort = Arc<dyn Fn(Box<dyn Port>) -> Box<dyn Port> + Send + Sync>;

/// Called with a worker's number and the degradation that its relay requests, whenever the request changes.
pub type OnShortage = Arc<dyn Fn(u16, &Shortage) + Send + Sync>;

/// Called with a sentence for the user.
pub type OnNews = Arc<dyn Fn(String) + Send + Sync>;

/// How long the relay is waited for before that is reported.
const SAID_AFTER_NS: u64 = 1_000_000_000;

/// The options of a link.
#[derive(Clone)]
pub struct LinkOptions {
    /// The relay: `HOST:PORT`.
    pub relay: String,
    /// A description of the recording.
    pub about: About,
    /// The recording's name, by which the relay recognizes it.
    pub session: String,
    /// The worker whose packets these are.
    pub worker: u16,
    /// The transport of packets.
    pub transport: Transport,
    /// The response to loss on a reliable connection.
    pub on_loss: OnLoss,
    /// The layout of segments.
    pub layout: Layout,
    /// A block open this long is sent to disk even if it is not full.
    pub flush_interval: Duration,
    /// The time to wait for a lost relay once there is nothing more to record, or while files are read; `None`: 10 s,
    /// or 60 s where files are read.
    pub patience: Option<Duration>,
    /// Whether files are read. Then packets wait for the relay, and unconfirmed packets are sent again after a loss of
    /// the relay, unless `on_loss` says to skip or the service is unreliable.
    pub reads_files: bool,
    /// Becomes true when the recording is to end. The wait for a relay that is away, or stores
    /// nothing, is then limited to five seconds.
    pub stop: Option<Arc<AtomicBool>>,
    /// Called with the degradation that the relay requests.
    pub on_shortage: Option<OnShortage>,
    /// Called with messages for the user while the link runs: that it waits for the relay, and that the relay is back.
    pub on_news: Option<OnNews>,
    /// TLS of the control connection.
    pub tls: Option<ClientTls>,
    /// The secret that both ends prove to know.
    pub secret: Option<Secret>,
    /// Whether packets may be sent to another machine without proof that it is the relay.
    pub insecure: bool,
    /// The relay from which shared memory is accepted.
    pub memory: MemoryFrom,
    /// For tests.
    pub wrap: Option<WrapPort>,
}

impl std::fmt::Debug for LinkOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkOptions")
            .field("relay", &self.relay)
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}

impl LinkOptions {
    /// How long a lost relay is waited for.
    fn patience(&self) -> Duration {
        let seconds = if self.reads_files { 60 } else { 10 };
        self.patience.unwrap_or(Duration::from_secs(seconds))
    }

    /// Whether what was sent and not confirmed is sent again after the relay was lost. A sender that keeps no
    /// copies of messages keeps none of packets either.
    fn resends(&self) -> bool {
        let is_reliable = match &self.transport {
            Transport::Udp(service) | Transport::Raw(service, _) => *service == Service::Rc,
            Transport::SharedMemory => true,
        };
        self.reads_files && is_reliable && self.on_loss == OnLoss::Resend
    }

    /// Filters in tcpdump's language that exclude the traffic to and from the relay, for an interface over which it is
    /// reached.
    ///
    /// # Errors
    ///
    /// If the relay's name has no address.
    pub fn own_traffic(&self) -> Result<Vec<String>, RelayError> {
        if let Transport::SharedMemory = self.transport {
            return Ok(Vec::new());
        }
        let test = |address: SocketAddr| {
            let (ip, port) = (address.ip().to_canonical(), address.port());
            format!("not (host {ip} and (port {port} or udp port {UDP_PORT}))")
        };
        Ok(open::addresses(&self.relay)?.map(test).collect())
    }

    /// The default values.
    #[must_use]
    pub fn new(relay: String, about: About, session: String) -> Self {
        Self {
            relay,
            about,
            session,
            worker: 0,
            transport: Transport::Udp(Service::Rc),
            on_loss: OnLoss::Resend,
            layout: Layout::Mtu,
            flush_interval: Duration::from_secs(1),
            patience: None,
            reads_files: false,
            on_news: None,
            stop: None,
            on_shortage: None,
            tls: None,
            secret: None,
            insecure: false,
            memory: MemoryFrom::default(),
            wrap: None,
        }
    }
}

/// A running link.
#[derive(Debug)]
pub struct Link {
    end: BlockEnd,
    accounting: Arc<Mutex<End>>,
    thread: JoinHandle<LinkReport>,
}

impl Link {
    /// Connects to the relay, and then sends the blocks that come from `source`, fed by the sink of `end`, until it is
    /// finished.
    ///
    /// # Errors
    ///
    /// If the relay cannot be reached, or refuses.
    pub fn start(
        options: LinkOptions,
        source: BlockSource,
        end: BlockEnd,
    ) -> Result<Self, RelayError> {
        let started = Instant::now();
        let interrupted = || is_set(options.stop.as_ref());
        let switch = SwitchOptions {
            flush_interval_ns: ns(options.flush_interval),
            patience_ns: ns(options.patience()),
            reads_files: options.reads_files,
            resends: options.resends(),
        };
        let first = Resumption {
            resends: switch.resends,
            ..Resumption::default()
        };
        let opened = Opened::open(&options, first, started, interrupted)?;
        let switch = Switch::new(switch, &opened.connection);
        let accounting = Arc::new(Mutex::new(End::default()));
        let mut runner = Runner {
            options,
            source,
            switch,
            accounting: Arc::clone(&accounting),
            started,
            told: Shortage::default(),
        };
        let work = move || {
            runner.run(opened);
            runner.tell_shortage();
            runner.report()
        };
        let thread = thread::Builder::new()
            .name("strata-link".into())
            .spawn(work)
            .map_err(crate::error::io_error(
                "cannot start the thread that sends to the relay",
            ))?;
        Ok(Self {
            end,
            accounting,
            thread,
        })
    }

    /// Waits until everything handed over is on the relay's disk, and closes the recording there if
    /// `ledger` has its counters.
    ///
    /// # Panics
    ///
    /// If the link's thread has panicked.
    #[must_use]
    pub fn finish(self, ledger: Option<&Ledger>, warnings: Vec<String>) -> LinkReport {
        {
            let mut accounting = self
                .accounting
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            accounting.accounting = ledger.map(SavedLedger::from);
            accounting.warnings = warnings;
        }
        self.end.end();
        match self.thread.join() {
            Ok(report) => report,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// As ns, enough for 584 years.
fn ns(duration: Duration) -> u64 {
    exact::<u64>(duration.as_nanos())
}

fn is_set(flag: Option<&Arc<AtomicBool>>) -> bool {
    flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
}

struct Runner {
    options: LinkOptions,
    source: BlockSource,
    switch: Switch,
    accounting: Arc<Mutex<End>>,
    started: Instant,
    /// What was last passed to the callback.
    told: Shortage,
}

impl Runner {
    /// The time for the protocol; also checks whether to stop.
    fn now(&mut self) -> u64 {
        let now = ns(self.started.elapsed());
        if is_set(self.options.stop.as_ref()) {
            self.switch.stop(now);
        }
        now
    }

    fn run(&mut self, mut opened: Opened) {
        while let Err(problem) = self.serve(&mut opened) {
            let now = self.now();
            let connection = &mut opened.connection;
            self.switch.lost(connection, &problem, &self.source, now);
            self.tell_shortage();
            // If that cannot be sent, the relay knows what it was sent before.
            let _ = opened.say();
            // Closes the connection, and frees the port of answers.
            drop(opened);
            match self.search() {
                Some(again) => opened = again,
                None => return self.give_up(),
            }
        }
    }

    /// Works until the recording is closed, or the connection is lost.
    fn serve(&mut self, opened: &mut Opened) -> Result<(), RelayError> {
        loop {
            let now = self.now();
            // After the last message, a closed connection does not matter.
            while !self.switch.is_closed()
                && let Some(message) = opened.channel.poll()?
            {
                let connection = &mut opened.connection;
                self.switch
                    .receive(connection, message, &self.source, now)?;
                self.tell_shortage();
            }
            opened.receive_packets(now)?;
            let connection = &mut opened.connection;
            let turn = self.switch.step(connection, &self.source, now)?;
            opened.send_packets()?;
            opened.say()?;
            match turn {
                Turn::Again => {}
                Turn::Answers(wait) => opened.wait(Duration::from_nanos(wait))?,
                Turn::Receive(wait) => {
                    let incoming = self.source.receive(Duration::from_nanos(wait));
                    self.take(incoming, Some(opened));
                    opened.send_packets()?;
                }
                Turn::Done => return Ok(()),
            }
        }
    }

    /// Reports what the relay asks to be given up, if that has changed.
    fn tell_shortage(&mut self) {
        let shortage = self.switch.shortage();
        if !shortage.asks_as(&self.told) {
            self.told = shortage.clone();
            if let Some(tell) = &self.options.on_shortage {
                tell(self.options.worker, shortage);
            }
        }
    }

    fn take(&mut self, incoming: Incoming, opened: Option<&mut Opened>) {
        if matches!(incoming, Incoming::End) && !self.switch.is_ending() {
            let accounting = self
                .accounting
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.switch.end_with(accounting.clone());
        }
        let connection = opened.map(|opened| &mut opened.connection);
        self.switch.take(incoming, connection);
    }

    /// What the link has done. Where files are read, packets that were lost with the relay are a failure: they
    /// could have been kept.
    fn report(&self) -> LinkReport {
        let mut report = self.switch.report().clone();
        let mut parts = Vec::new();
        let (lost, unknown) = (report.lost.packets, report.unknown_packets);
        if self.options.reads_files && lost > 0 {
            parts.push(format!(
                "{lost} packets were sent and lost with the relay, or could not be sent"
            ));
        }
        if unknown > 0 {
            parts.push(format!(
                "{unknown} packets were sent after the relay's last confirmation: the relay's log \
                 shows whether they were stored"
            ));
        }
        let said = parts.join("; ");
        match (&mut report.failure, said.is_empty()) {
            (_, true) => {}
            (none @ None, false) if self.options.reads_files => *none = Some(said),
            (_, false) => report.problems.push(said),
        }
        report
    }

    fn tell(&self, news: String) {
        if let Some(tell) = &self.options.on_news {
            tell(news);
        }
    }

    /// Says that the relay is waited for.
    fn say_waiting(&self) {
        let (relay, seconds) = (&self.options.relay, self.options.patience().as_secs());
        let why = self
            .switch
            .searches_because()
            .unwrap_or("for an unknown reason");
        let then = match self.options.reads_files {
            true => {
                format!(" for up to {seconds} s in all (--relay-timeout), then the recording ends")
            }
            false => String::from(
                ": packets that do not fit into memory meanwhile are dropped and counted",
            ),
        };
        self.tell(format!(
            "relay {relay} is lost ({why}); waiting for it{then}"
        ));
    }

    /// Says that the relay is there again.
    fn say_found(&self, before: &LinkReport, waited_ns: u64) {
        let (relay, after) = (&self.options.relay, self.switch.report());
        let found = after.found.packets - before.found.packets;
        let lost = after.lost.packets - before.lost.packets;
        let again = match self.options.resends() {
            true => ", the others are sent again",
            false => "",
        };
        self.tell(format!(
            "relay {relay} is back after {} s: of the packets that it had not confirmed, \
             it has {found}{again}; {lost} are lost",
            waited_ns / SAID_AFTER_NS
        ));
    }

    /// Connects again; `None` if it gives up.
    fn search(&mut self) -> Option<Opened> {
        let begun = self.now();
        let before = self.switch.report().clone();
        let mut is_said = false;
        loop {
            let now = self.now();
            let waited = now.saturating_sub(begun);
            if !is_said && waited >= SAID_AFTER_NS {
                is_said = true;
                self.say_waiting();
            }
            match self.switch.search(now) {
                Search::Connect => {
                    let is_over = || {
                        let now = ns(self.started.elapsed());
                        is_set(self.options.stop.as_ref()) && self.switch.is_out_of_patience(now)
                    };
                    let numbers = self.switch.next_numbers();
                    match Opened::open(&self.options, numbers, self.started, is_over) {
                        Ok(mut opened) => {
                            let connection = &mut opened.connection;
                            self.switch.connected(connection, &self.source);
                            if is_said {
                                self.say_found(&before, waited);
                            }
                            return Some(opened);
                        }
                        Err(error) => {
                            let now = self.now();
                            self.switch.refused(&error, now);
                        }
                    }
                }
                Search::Wait(until) => {
                    // Blocks that come meanwhile stay where they are: the worker finds none free,
                    // and waits or counts what it drops.
                    let wait = Duration::from_nanos(until.saturating_sub(now));
                    if self.switch.wants_block() && !self.switch.is_ending() {
                        let incoming = self.source.receive(wait);
                        self.take(incoming, None);
                    } else {
                        pause::backoff(wait);
                    }
                }
                Search::GiveUp => return None,
            }
        }
    }

    /// Without a relay, everything that still comes is lost.
    fn give_up(&mut self) {
        loop {
            self.switch.give_up(&self.source);
            // Blocks handed over before the end come before it.
            if self.switch.is_ending() {
                return;
            }
            let incoming = self.source.receive(Duration::from_secs(1));
            self.take(incoming, None);
        }
    }
}
