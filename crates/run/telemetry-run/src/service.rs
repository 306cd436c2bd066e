//! The role of a telemetry collector: reports by UDP in, a store's memory out.

pub(crate) mod frames;
pub(crate) mod notices;
pub(crate) mod pushing;
pub(crate) mod ready;
pub(crate) mod serving;
pub(crate) mod status;
pub(crate) mod status_file;
pub(crate) mod streaming;
pub(crate) mod target;
pub(crate) mod wire;

mod datagrams;
mod guard;
mod spec;

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::thread::CapabilitySet;
use strata_dta::append::End;
use strata_dta::event::flow::{ANOMALIES, LOSSES};
use strata_dta::generations::{Generation, Turning};
use strata_dta::int::mapping::Mapper;
use strata_dta::int::table::{DEFAULT, Table};
use strata_dta::postcarding::CACHE_ROWS;
use strata_dta::protocol::Nack;
use strata_dta::reporter::{Reporter, ReporterOptions};
use strata_dta::translator::{Options, Rate};
use strata_dta::{Local, Origin, Remote, Translator};
use strata_role::sandbox::{Reach, give_up, make_private_files, unconfined};
use strata_role::{
    At as _, Feed, Handle, Notice, Result, RoleError, Spec, Tell, require, warn_if_shared,
};
use strata_sandbox::SocketFile;
use strata_sys::socket::{self, Receiver};
use strata_wire::{exact, unix_ns};

use self::datagrams::Int;
pub use self::spec::{TelemetryOutcome, TelemetrySpec};
use super::store::ends;
use crate::api::status::TelemetryStatus;
use crate::service::frames::Frames;
use crate::service::notices::Reports;
use crate::service::pushing::Pushing;
use crate::service::ready::{Ready, connect};
use crate::service::serving::Api;
use crate::service::status::{FROM_INT, Received, Snapshot};
use crate::service::status_file::StatusFile;
use crate::service::streaming::Streaming;
use crate::service::target::Target;
use crate::service::wire::remote::Collectors;
use crate::store::fading::Fading;
use crate::store::plan::{EntryKind, NamedList, Plan};
use crate::store::sink::{Done, Mapped};
use crate::store::witnesses::{Estimate, Slots, Witnesses};

/// Datagrams, or runs of them, that are taken with one system call.
const BATCH: usize = 32;
/// System calls for datagrams before time is looked at again.
const ROUNDS: usize = 64;
/// Buffer of a socket.
const BUFFER_BYTES: u32 = 64 << 20;
/// Between looks at what waits in the cache and in batches.
const TICK: Duration = Duration::from_millis(2);
/// Between looks at the stop flag, while nothing waits.
const IDLE: Duration = Duration::from_millis(50);
/// Between descriptions of what was counted.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// How long a collector that ends takes what has arrived: its socket may be full, and reporters may
/// go on sending.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// How long the last operations may take to be acknowledged.
const FINISH_LIMIT: Duration = Duration::from_secs(2);

impl Spec for TelemetrySpec {
    type Running = ();
    type Outcome = TelemetryOutcome;
    type Error = RoleError;
    const THREAD: &'static str = "telemetry";

    fn start(mut self, stop: Arc<AtomicBool>, tell: Tell) -> Result<Handle<Self>> {
        let table = self.table.as_deref().unwrap_or(DEFAULT);
        let table = Table::parse(table)
            .map_err(|error| RoleError::Refused(format!("the table of INT reports: {error}")))?;
        let lists = named_lists(&table);
        let (reports, listen) = bind(self.listen)?;
        let int = self.int.map(bind).transpose()?;
        let frames = self.interface.as_deref();
        let frames = frames.map(|interface| Frames::open(interface, listen));
        let frames = frames.transpose()?;
        let endpoints = self.api.bind(&self.owner)?;
        make_private_files();
        warn_if_shared(&self.store, &tell);
        // Last, so that what is refused leaves no store behind.
        let ready = self.ready(&lists, &stop, &tell)?;
        if self.sandboxed {
            let socket = endpoints.socket.as_ref();
            let reach = Reach {
                home: Some(self.store.clone()),
                write: self
                    .to_stream
                    .iter()
                    .flat_map(|feed| feed.writes())
                    .collect(),
                delete: socket
                    .and_then(SocketFile::own_dirs)
                    .into_iter()
                    .flatten()
                    .collect(),
                ..Reach::default()
            };
            give_up(&self.owner, &reach, CapabilitySet::empty(), &tell)?;
        } else {
            unconfined();
        }
        let come = Reports {
            address: listen,
            way: frames.as_ref().map(Frames::how),
            int: int.as_ref().map(|(_, address)| *address),
        };
        let notice = ready.notice(&self.store, &come);
        let collectors = self.collectors.as_ref();
        let collectors = collectors.map_or(1, |collectors| collectors.addresses.len());
        let feed = self
            .to_stream
            .take()
            .map(|feed| feed.open(&tell))
            .transpose()?;
        let mut service = Service::new(self, ready, (table, lists), (reports, listen), int)?;
        service.frames = frames;
        service.stream_to(feed, collectors);
        if let Target::There(collectors) = &mut service.sink {
            collectors.wait_connected(&mut service.translator, &stop, &tell)?;
        }
        let first = service.status_text();
        service.status_file.start(&first, &tell)?;
        let pushes = service.pushing.pushes();
        service.api = Api::serve(&service.dir, pushes, endpoints, &tell)?;
        tell(&notice);
        guard::note_panics();
        let stopped = Arc::clone(&stop);
        Handle::run((), stop, move || service.serve(&stopped, &tell))
    }
}

impl TelemetrySpec {
    /// Opens the store, or asks the collectors.
    fn ready(&self, lists: &[NamedList], stop: &AtomicBool, tell: &Tell) -> Result<Ready> {
        if let Some(collectors) = &self.collectors {
            require(self.fade.is_none(), || {
                "--reset-counters and --halve-counters apply only where the memory is: give them \
                 to `strata telemetry collect`"
                    .to_owned()
            })?;
            require(!self.api.is_wanted(), || {
                "--socket and --config: the API answers from a store, and with --collector the stores \
                 are elsewhere: give them to `strata telemetry collect`"
                    .to_owned()
            })?;
            let place = (self.store.as_path(), &self.owner);
            return connect(collectors, place, &self.layout, lists, stop, tell);
        }
        let ready = Ready::here(&self.store, &self.layout, lists, &self.owner)?;
        require(
            self.fade.is_none() || ready.plan().generations().is_none(),
            || {
                format!(
                    "{}: in a store with generations, each generation has its own counters, which \
                     cannot be reset or halved: leave out --reset-counters and --halve-counters",
                    self.store.display()
                )
            },
        )?;
        Ok(ready)
    }
}

/// The lists of a table, and those that recordings report to (`--report-to`) unless the table has
/// something else there.
fn named_lists(table: &Table) -> Vec<NamedList> {
    let mut lists: Vec<NamedList> = Vec::new();
    for (number, name, is_event) in table.lists() {
        if lists.iter().all(|list| list.number != number) {
            lists.push(NamedList {
                number,
                name: name.to_owned(),
                entries: if is_event {
                    EntryKind::NodeEvent
                } else {
                    EntryKind::Bytes
                },
            });
        }
    }
    let recordings = [(ANOMALIES, "anomalies"), (LOSSES, "losses")];
    for (number, name) in table.watched().chain(recordings) {
        let is_free = |list: &NamedList| list.number != number && list.name != name;
        if lists.iter().all(is_free) {
            lists.push(NamedList {
                number,
                name: name.to_owned(),
                entries: EntryKind::FlowEvent,
            });
        }
    }
    lists
}

fn bind(address: SocketAddr) -> Result<(UdpSocket, SocketAddr)> {
    let socket = socket::udp(address, BUFFER_BYTES);
    let socket = socket.at_with(|| format!("cannot listen on UDP {address}"))?;
    let address = socket
        .local_addr()
        .at("cannot get the address of the socket")?;
    Ok((socket, address))
}

/// What becomes of datagrams.
struct Service {
    dir: PathBuf,
    status_file: StatusFile,
    plan: Plan,
    sink: Target,
    translator: Translator,
    origins: HashMap<SocketAddr, Origin>,
    /// The reporter of the latest datagram.
    latest: Option<(SocketAddr, Origin)>,
    allowed: Vec<IpNet>,
    reports: Arc<UdpSocket>,
    listen: SocketAddr,
    frames: Option<Frames>,
    int: Option<Int>,
    received: Received,
    witnesses: Witnesses,
    fading: Option<Fading>,
    turning: Option<Turning>,
    /// Of the generations that hold something.
    offsets: Vec<u64>,
    /// What was done before the youngest of them began.
    before: Done,
    nacks: Vec<Nack>,
    pushing: Pushing,
    streaming: Option<Streaming>,
    /// Served as long as this is there.
    api: Api,
    started: Instant,
    /// Held as long as the store is written.
    _lock: std::fs::File,
}

impl Service {
    fn new(
        spec: TelemetrySpec,
        ready: Ready,
        (table, lists): (Table, Vec<NamedList>),
        (reports, listen): (UdpSocket, SocketAddr),
        int: Option<(UdpSocket, SocketAddr)>,
    ) -> Result<Self> {
        let started = Instant::now();
        let plan = ready.plan().clone();
        let mut options = Options::new(plan.hasher);
        options.key_write = Some(plan.key_write);
        options.postcarding = Some(plan.postcarding);
        let rows = spec.path_rows.map(exact::<usize>);
        options.cache_rows = rows.map_or(CACHE_ROWS, usize::next_power_of_two);
        options.append = Some(plan.append);
        options.key_increment = Some(plan.key_increment);
        options.rate = spec.rate.map(|rate| Rate {
            operations_per_second: rate,
            burst: (rate / 100).max(64),
        });
        let (mut translator, sink, turning, lock) = match ready {
            Ready::Here(writing) => {
                let writing = *writing;
                let ends = ends(&spec.store, &writing.plan)?;
                let end = |list: u32| ends[list as usize];
                let mut translator = Translator::new::<Local<Mapped>>(options, end);
                let values = plan.written_values(writing.memory.words(), 0);
                translator.continue_values(0, values);
                let (memory, turning) = Mapped::open(writing.memory, &plan, unix_ns());
                let sink = Target::Here(Local::over(memory));
                (translator, sink, turning, writing.lock)
            }
            Ready::There(there) => {
                let there = *there;
                options.collectors = there.opened.len();
                let reporters = usize::from(options.reporters_max);
                let translator = Translator::new::<Remote>(options, |_| End::default());
                let (identity, store) = (&there.identity, (&there.manifest, &plan));
                let collectors =
                    Collectors::start(there.opened, identity, store, reporters, started)?;
                let sink = Target::There(Box::new(collectors));
                (translator, sink, None, there.lock)
            }
        };
        let int = match int {
            Some((socket, listen)) => {
                let [session, ..] = getrandom::u32()
                    .map_err(std::io::Error::other)?
                    .to_le_bytes();
                let origin = translator.reporter(FROM_INT.ip());
                Some(Int {
                    socket: Arc::new(socket),
                    listen,
                    mapper: Mapper::new(table, plan.parameters.entry_bytes),
                    reporter: Reporter::new(ReporterOptions::new(session)),
                    session,
                    failed: 0,
                    origin: origin.expect("the first reporter"),
                    settled_ns: 0,
                })
            }
            None => None,
        };
        let mut service = Self {
            sink,
            plan,
            translator,
            status_file: StatusFile::new(&spec.store),
            dir: spec.store,
            origins: HashMap::new(),
            latest: None,
            allowed: spec.allowed,
            reports: Arc::new(reports),
            listen,
            frames: None,
            int,
            received: Received::default(),
            witnesses: Witnesses::default(),
            fading: spec.fade.map(|fade| Fading::new(fade, Instant::now())),
            turning,
            offsets: vec![0],
            before: Done::default(),
            nacks: Vec::new(),
            pushing: Pushing::new(Arc::default(), lists),
            streaming: None,
            api: Api::default(),
            started,
            _lock: lock,
        };
        service.look_at_generations(true);
        Ok(service)
    }

    /// Appends entries of lists to a stream from now on.
    fn stream_to(&mut self, feed: Option<Box<dyn Feed>>, collectors: usize) {
        // All collectors together have this number.
        let lists = u64::from(self.plan.append.lists()) * collectors as u64;
        let names = self.pushing.lists().to_vec();
        self.streaming = feed.map(|feed| Streaming::new(feed, names, lists));
    }

    /// Sends reports to the youngest generation from now on, if there is another one.
    fn look_at_generations(&mut self, has_turned: bool) {
        let Some((turning, generations)) = self.turning.as_ref().zip(self.plan.generations())
        else {
            return;
        };
        let offset = |generation: &Generation| generations.offset(generation.index);
        self.offsets.clear();
        self.offsets.extend(turning.present().iter().map(offset));
        if !has_turned {
            return;
        }
        let (plan, offset) = (&self.plan, self.offsets[0]);
        self.translator.turn_to(
            plan.key_write.shifted(offset),
            plan.postcarding.shifted(offset),
            plan.key_increment.shifted(offset),
        );
        // What is measured is how full the youngest is.
        self.witnesses = Witnesses::default();
        self.before = self.done();
    }

    /// Begins another generation, if it is time; nothing may wait in the sink.
    fn turn(&mut self) {
        if let Target::There(collectors) = &mut self.sink {
            if collectors.take_turned() {
                // What is measured is how full the youngest is.
                self.before = self.done();
            }
            return;
        }
        let Some(turning) = &mut self.turning else {
            return;
        };
        let Some(sink) = self.sink.here() else {
            return;
        };
        let has_turned = sink.unflushed().turn(turning, &self.plan, unix_ns());
        self.look_at_generations(has_turned);
    }

    fn now_ns(&self) -> u64 {
        exact::<u64>(self.started.elapsed().as_nanos())
    }

    /// Until it is stopped.
    fn serve(mut self, stop: &AtomicBool, tell: &Tell) -> Result<TelemetryOutcome> {
        let mut receiver = Receiver::<BATCH>::default();
        let (mut ticked, mut described) = (Instant::now(), Instant::now());
        while !stop.load(Ordering::Relaxed) {
            let held = self.held();
            let is_fading = self.fading.as_ref().is_some_and(Fading::is_going);
            let is_clearing = self.turning.as_ref().is_some_and(Turning::is_clearing);
            let is_settled = self.sink.there().is_none_or(Collectors::is_settled);
            let limit = match held > 0 || is_fading || is_clearing || !is_settled {
                true => TICK,
                false => IDLE,
            };
            let int = self.int.as_ref().map(|int| int.socket.as_fd());
            let answers = self.sink.there().map(Collectors::sockets);
            let sockets = std::iter::once(self.reports.as_fd()).chain(int);
            let sockets = sockets.chain(answers.into_iter().flatten());
            let frames = self.frames.iter().flat_map(Frames::sockets);
            let sockets = sockets.chain(frames);
            socket::wait_any(sockets, limit).at("cannot wait for reports")?;
            for _ in 0..ROUNDS {
                if self.receive(&mut receiver, tell)? == 0 {
                    break;
                }
            }
            let now = Instant::now();
            if now - ticked >= TICK {
                ticked = now;
                let now_ns = self.now_ns();
                self.sink.tick(&mut self.translator, now_ns);
            }
            self.sink.flush(&mut self.translator, tell);
            self.turn();
            if let (Some(fading), Some(sink)) = (&mut self.fading, self.sink.here()) {
                sink.unflushed().fade(fading, &self.plan, now);
            }
            if now - described >= STATUS_EVERY {
                described = now;
                self.look_at_drops(tell)?;
                let text = self.status_text();
                self.status_file.write(text);
            }
        }
        self.finish(tell)
    }

    fn finish(mut self, tell: &Tell) -> Result<TelemetryOutcome> {
        tell(&Notice::ending(false));
        let mut receiver = Receiver::<BATCH>::default();
        let start = Instant::now();
        while self.receive(&mut receiver, tell)? > 0 && start.elapsed() < DRAIN_LIMIT {}
        if let Some(mut int) = self.int.take() {
            let now_ns = self.now_ns();
            for _ in 0..2 {
                self.settle(&mut int, now_ns);
            }
            self.flush_int(&mut int, now_ns);
            self.int = Some(int);
        }
        self.write_all(tell)?;
        self.look_at_drops(tell)?;
        self.streaming.as_mut().map_or(Ok(()), Streaming::finish)?;
        let status = Box::new(self.snapshot(false).status());
        let text = TelemetryStatus::Run(status.clone()).text();
        self.status_file.finish(text);
        Ok(TelemetryOutcome {
            streamed: self.streaming.as_ref().map(Streaming::counts),
            status,
        })
    }

    /// Writes all that waits in the cache and in batches, to collectors that take it.
    fn write_all(&mut self, tell: &Tell) -> Result<()> {
        let start = Instant::now();
        loop {
            match &mut self.sink {
                Target::Here(sink) => {
                    self.translator.finish(std::slice::from_mut(sink));
                    sink.flush();
                    return Ok(());
                }
                Target::There(collectors) => {
                    self.translator.finish(collectors.sinks());
                    collectors.turn(&mut self.translator, tell);
                }
            }
            let held = self.held();
            let Target::There(collectors) = &self.sink else {
                return Ok(());
            };
            if (held == 0 && collectors.is_settled()) || start.elapsed() > FINISH_LIMIT {
                return Ok(());
            }
            collectors.wait(TICK)?;
        }
    }

    /// Reports that are not in memory yet.
    fn held(&self) -> u64 {
        let cache = self.translator.cache();
        let lists = self.translator.lists();
        cache.map_or(0, |cache| cache.counters().held)
            + lists.map_or(0, |lists| lists.counters().held)
    }

    fn slots(&self) -> Slots {
        let places = &self.plan.places;
        Slots {
            at: places.key_write_at + self.offsets[0],
            count: places.key_write_slots,
            len: exact(places.key_write_slot_bytes),
        }
    }

    fn done(&self) -> Done {
        Done::of(&self.translator, self.sink.operations())
    }

    /// How many values can still be read.
    fn estimate(&self) -> Estimate {
        // Memory elsewhere is not read.
        let Target::Here(sink) = &self.sink else {
            return Estimate::default();
        };
        let words = sink.memory_as_is().words.words();
        let read = |at, out: &mut [u8]| words.read(exact(at), out);
        self.witnesses
            .ask(&self.slots(), self.done().key_write, read)
    }

    fn look_at_drops(&mut self, tell: &Tell) -> Result<()> {
        let int = self.int.as_ref().map(|int| &*int.socket);
        let sockets = std::iter::once(&*self.reports).chain(int);
        let drops: u64 = sockets
            // A kernel that does not say counts none.
            .filter_map(|socket| socket::dropped(socket.as_fd()).ok())
            .map(u64::from)
            .sum();
        // The kernel's counters wrap.
        self.received.socket_drops = self.received.socket_drops.max(drops);
        if let Some(frames) = &mut self.frames
            && let Some(problem) = frames.look()?
        {
            tell(&Notice::warning(problem));
        }
        Ok(())
    }

    fn snapshot(&self, running: bool) -> Snapshot<'_> {
        Snapshot {
            running,
            now_ns: unix_ns(),
            listen: self.listen,
            frames: self.frames.as_ref(),
            int: self
                .int
                .as_ref()
                .map(|int| (int.listen, int.mapper.counters(), int.failed)),
            received: self.received,
            translator: &self.translator,
            done: self.done(),
            before: self.before,
            turning: self.turning.as_ref(),
            pushes: match &self.sink {
                Target::Here(_) => self.pushing.counts(),
                Target::There(collectors) => collectors.told(),
            },
            streamed: self.streaming.as_ref().map(Streaming::counts),
            estimate: self.estimate(),
            rounds: self.fading.as_ref().map(Fading::rounds),
            plan: &self.plan,
            collectors: self.sink.there(),
        }
    }

    /// What `status.json` has while this runs.
    fn status_text(&self) -> String {
        TelemetryStatus::Run(Box::new(self.snapshot(true).status())).text()
    }
}
