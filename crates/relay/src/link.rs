//! The switch's end: connects [`Switch`], what the protocol says of its side, to sockets, a
//! worker and the clock.

mod open;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_rdma::OnLoss;
use strata_roce::Port;
use strata_store::{About, BlockEnd, BlockSource, Incoming, SavedLedger};
use strata_wire::roce::Service;
use strata_wire::segment::Layout;
use strata_wire::{Ledger, exact};

use crate::error::RelayError;
use crate::handover::MemoryFrom;
use crate::protocol::switch::{LinkReport, Search, Switch, SwitchOptions, Turn};
use crate::protocol::{End, Shortage};
use crate::secret::Secret;
use crate::tls::SwitchTls;
use open::Opened;

/// How packets travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// RoCEv2 through a UDP socket of the kernel.
    Udp(Service),
    /// RoCEv2 in frames of our own, through this interface.
    Raw(Service, String),
    /// Memory of the same machine.
    SharedMemory,
}

/// Puts something before a port: for tests that lose packets.
pub type WrapPort = Arc<dyn Fn(Box<dyn Port>) -> Box<dyn Port> + Send + Sync>;

/// Is told of a worker's link what its relay asks to be given up, whenever that changes.
pub type OnShortage = Arc<dyn Fn(u16, &Shortage) + Send + Sync>;

/// How a link works.
#[derive(Clone)]
pub struct LinkOptions {
    /// The relay: `HOST:PORT`.
    pub relay: String,
    /// What is recorded.
    pub about: About,
    /// The recording's name, by which the relay knows it again.
    pub session: String,
    /// The worker whose packets these are.
    pub worker: u16,
    /// How packets travel.
    pub transport: Transport,
    /// What is done about loss on a reliable connection.
    pub on_loss: OnLoss,
    /// How packets are cut.
    pub layout: Layout,
    /// A block that was begun so long ago is sent to disk though it is not full.
    pub flush_interval: Duration,
    /// Once there is nothing more to record, a relay that is away is waited for so long.
    pub patience: Duration,
    /// Becomes true when the recording is to end. A relay that is away, or stores nothing, is
    /// then waited for no longer than five seconds.
    pub stop: Option<Arc<AtomicBool>>,
    /// Is told what the relay asks to be given up.
    pub on_shortage: Option<OnShortage>,
    /// TLS of the control connection.
    pub tls: Option<SwitchTls>,
    /// What both ends prove to know.
    pub secret: Option<Secret>,
    /// Whether packets are sent to another machine of which nothing proves that it is the
    /// relay.
    pub insecure: bool,
    /// Whom shared memory is taken from.
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
    /// The usual values.
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
            patience: Duration::from_secs(10),
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

/// A link that is running.
#[derive(Debug)]
pub struct Link {
    end: BlockEnd,
    accounting: Arc<Mutex<End>>,
    thread: JoinHandle<LinkReport>,
}

impl Link {
    /// Connects to the relay, and then sends what comes from `source`, whose sink
    /// `end` is of, until it is finished.
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
        let opened = Opened::open(&options, (0, 0), started, interrupted)?;
        let switch = SwitchOptions {
            flush_interval_ns: ns(options.flush_interval),
            patience_ns: ns(options.patience),
        };
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
            runner.switch.report().clone()
        };
        let thread = thread::Builder::new()
            .name("strata-link".into())
            .spawn(work)
            .map_err(crate::error::io_error("link thread: cannot start"))?;
        Ok(Self {
            end,
            accounting,
            thread,
        })
    }

    /// Waits until all that was handed over is on the relay's disk, and closes the
    /// recording there if `ledger` has its counters.
    ///
    /// # Panics
    ///
    /// If the link's thread has.
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

/// As ns, which last for 584 years.
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
    /// What was told of last.
    told: Shortage,
}

impl Runner {
    /// The time, as the protocol has it; it also hears now whether it is to end.
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
            // If that cannot be sent, the relay knows what it was told before.
            let _ = opened.say();
            // Hangs up, and frees the port that answers come to.
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
            // Who has heard the last word does not mind that it is hung up on.
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

    /// Says what the relay asks to be given up, if that has changed.
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

    /// Connects again; `None` if it is given up.
    fn search(&mut self) -> Option<Opened> {
        loop {
            let now = self.now();
            match self.switch.search(now) {
                Search::Connect => {
                    let is_over = || {
                        let now = ns(self.started.elapsed());
                        is_set(self.options.stop.as_ref()) && self.switch.is_out_of_patience(now)
                    };
                    let numbers = self.switch.next_numbers();
                    match Opened::open(&self.options, numbers, self.started, is_over) {
                        Ok(mut opened) => {
                            self.switch.connected(&mut opened.connection);
                            return Some(opened);
                        }
                        Err(error) => {
                            let now = self.now();
                            self.switch.refused(&error, now);
                        }
                    }
                }
                Search::Wait(until) => {
                    // Blocks that come meanwhile stay where they are: the worker finds none
                    // free, and waits or counts what it drops.
                    let wait = Duration::from_nanos(until.saturating_sub(now));
                    if self.switch.wants_block() && !self.switch.is_ending() {
                        let incoming = self.source.receive(wait);
                        self.take(incoming, None);
                    } else {
                        thread::sleep(wait);
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
            // Blocks that were handed over before the end come before it.
            if self.switch.is_ending() {
                return;
            }
            let incoming = self.source.receive(Duration::from_secs(1));
            self.take(incoming, None);
        }
    }
}
