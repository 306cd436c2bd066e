//! The relay: memory that switches write into, and that goes to disk when full.
//!
//! ```text
//! admission --- one thread: connections, until a session starts
//! session ----- one thread per connection of a switch: control, ownership of blocks
//! responder --- one thread: UDP packets into blocks (with a NIC: none)
//! writers ----- N threads: full blocks to files
//! ```

mod admission;
mod options;
mod session;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use strata_blocks::Definitions;
use strata_rdma::{Replies, Responder};
use strata_roce::icrc::IcrcCheck;
use strata_roce::udp::{RUNS, UdpPort};
use strata_sandbox::{SocketError, SocketFile, runtime_dir};
use strata_store::{Disk, RelayLog, RelayWriters, StoreError};
use strata_sys::disk::{AnyBlock, Memory};
use strata_sys::pause;
use strata_wire::roce::{Packet, UDP_PORT, icrc};

use crate::error::{RelayError, io_error};
use crate::handover::{Handover, dir_name};
use crate::memory::Blocks;
use crate::protocol::{Message, Shortage};
use admission::{Admission, Admitted};
pub use options::RelayOptions;

/// Called with each block of segments once it is on disk, and the definitions that its packets refer to. A thread that
/// writes blocks calls it, so it must not wait.
pub type BlockTap = Arc<dyn Fn(Memory<'_>, Definitions) + Send + Sync>;

/// What a relay has done.
#[derive(Debug, Default)]
pub struct RelayCounters {
    /// Switches currently connected.
    pub connected: AtomicU64,
    /// Connections so far.
    pub connections: AtomicU64,
    /// Blocks on disk.
    pub blocks: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Blocks of switches that were lost before announcing them.
    pub salvaged: AtomicU64,
    /// UDP packets that are not RoCEv2, or whose ICRC is wrong.
    pub bad_packets: AtomicU64,
}

/// The totals of a relay; see [`RelayCounters`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Blocks on disk.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks of lost switches.
    pub salvaged: u64,
    /// Why the log could not be completed, if so.
    pub failure: Option<String>,
}

/// The load of a relay's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskLoad {
    /// Blocks of memory of all connected switches.
    pub blocks: u64,
    /// Of these, blocks that wait for the disk.
    pub waiting: u64,
    /// Total time that writer threads have been writing.
    pub busy: Duration,
    /// The number of writer threads.
    pub writers: usize,
}

/// The other end of a queue pair.
struct Peer {
    /// Where answers go.
    address: SocketAddr,
    icrcs: icrc::Stream,
    check: IcrcCheck,
}

/// Shared by the responder's thread and the session threads. Packets reach a queue pair only from
/// the address of its switch's control connection.
#[derive(Default)]
struct Wire {
    responder: Responder<Blocks>,
    peers: BTreeMap<u32, Peer>,
}

impl Wire {
    fn has_region(&mut self, rkey: u32) -> bool {
        self.responder.region_mut(rkey).is_some()
    }
}

struct Inner {
    options: RelayOptions,
    log: Arc<RelayLog>,
    writers: RelayWriters<AnyBlock>,
    wire: Mutex<Wire>,
    /// Where UDP packets arrive.
    rdma_port: u16,
    /// How often the responder has emptied its socket.
    emptied: AtomicU64,
    stop: AtomicBool,
    counters: RelayCounters,
    /// Blocks of memory of all switches, and how many of them wait for the disk.
    memory_blocks: AtomicU64,
    waiting_blocks: AtomicU64,
    /// Tells connections that wait for an earlier one of the same switch to end.
    ended: Ended,
    /// What switches have to give up.
    shortage: Mutex<Shortage>,
    /// Why the log can no longer be written.
    failure: Mutex<Option<String>>,
    /// Hands memory over, if it has a socket for that.
    handover: Option<Handover>,
    /// Who sees blocks, if anyone.
    tap: Option<BlockTap>,
    /// Reports what went wrong with a switch, for the caller to show.
    report: Box<dyn Fn(&str) + Send + Sync>,
    #[cfg(feature = "verbs")]
    device: Option<strata_roce::verbs::Device>,
}

/// How many sessions have ended; their streams are free.
#[derive(Debug, Default)]
struct Ended {
    sessions: Mutex<u64>,
    changed: Condvar,
}

impl Ended {
    fn tell(&self) {
        *self.sessions() += 1;
        self.changed.notify_all();
    }

    fn sessions(&self) -> MutexGuard<'_, u64> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there are more than `seen`, or `limit` is over.
    fn wait(&self, seen: u64, limit: Duration) {
        let sessions = self.sessions();
        // What it returns is looked at anew.
        drop(
            self.changed
                .wait_timeout_while(sessions, limit, |sessions| *sessions == seen),
        );
    }
}

impl Inner {
    fn wire(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the receive queue was emptied.
    fn emptied(&self) -> u64 {
        self.emptied.load(Ordering::Acquire)
    }

    /// Whether everything received by the time of this count is in memory.
    fn has_taken_all(&self, emptied: u64) -> bool {
        #[cfg(feature = "verbs")]
        if self.device.is_some() {
            return true;
        }
        // The next pass may already have been under way.
        self.emptied() >= emptied + 2
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn failure(&self) -> Option<String> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone()
    }

    /// If the error means that the log can no longer be written, ends service to all switches;
    /// returns the message to the switch.
    fn note_failure(&self, error: &RelayError) -> Option<Message> {
        let reason = match error {
            RelayError::Failed(reason) => reason.clone(),
            RelayError::Store(error) if !passes(error) => {
                format!("the relay's log cannot be written: {error}")
            }
            _ => return None,
        };
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Message::Failed(failure.get_or_insert(reason).clone()))
    }
}

/// A running relay.
pub struct Relay {
    inner: Arc<Inner>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A relay that has bound its addresses, but does not serve yet: now is the time for anything that
/// needs privileges, or must precede threads.
pub struct BoundRelay {
    options: RelayOptions,
    listener: TcpListener,
    address: SocketAddr,
    /// Where RDMA packets arrive, unless a NIC receives them.
    udp: Option<UdpPort>,
    rdma_port: u16,
    memory_socket: Result<SocketFile, SocketError>,
    #[cfg(feature = "verbs")]
    device: Option<strata_roce::verbs::Device>,
}

impl std::fmt::Debug for BoundRelay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BoundRelay")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl BoundRelay {
    /// The directory created for the shared-memory socket, and its parent: it deletes what it
    /// created in these.
    #[must_use]
    pub fn socket_dirs(&self) -> Option<[PathBuf; 2]> {
        self.memory_socket.as_ref().ok()?.own_dirs()
    }

    /// Starts it with the log on `disk`. `report` is called when switches come and go, from any
    /// thread; `tap` sees what goes to the log.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn start(
        self,
        disk: Arc<dyn Disk>,
        tap: Option<BlockTap>,
        report: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Relay, RelayError> {
        let handover = match self.memory_socket {
            Ok(socket) => Some(Handover::start(socket)?),
            Err(error) => {
                report(&format!(
                    "switches on this machine cannot use shared memory: {error}"
                ));
                None
            }
        };
        let log = RelayLog::open(disk)?;
        let writers = RelayWriters::start(self.options.writers, log.in_flight())?;
        let inner = Arc::new(Inner {
            log,
            writers,
            wire: Mutex::new(Wire::default()),
            rdma_port: self.rdma_port,
            emptied: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            counters: RelayCounters::default(),
            memory_blocks: AtomicU64::new(0),
            waiting_blocks: AtomicU64::new(0),
            ended: Ended::default(),
            shortage: Mutex::default(),
            failure: Mutex::default(),
            handover,
            tap,
            report: Box::new(report),
            #[cfg(feature = "verbs")]
            device: self.device,
            options: self.options,
        });
        let mut threads = Vec::new();
        let (accepting, listener) = (Arc::clone(&inner), self.listener);
        let accept = move || accept(&accepting, &listener);
        threads.push(spawn("strata-accept", accept)?);
        if let Some(port) = self.udp {
            let responding = Arc::clone(&inner);
            let respond = move || respond(&responding, port);
            threads.push(spawn("strata-responder", respond)?);
        }
        Ok(Relay {
            inner,
            address: self.address,
            threads,
        })
    }
}

impl Relay {
    /// Starts a relay that writes the log on `disk`: [`Relay::bind`] and [`BoundRelay::start`].
    ///
    /// # Errors
    ///
    /// If an address is in use, or the log cannot be written.
    pub fn start(
        disk: Arc<dyn Disk>,
        options: RelayOptions,
        report: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, RelayError> {
        Self::bind(options)?.start(disk, None, report)
    }

    /// Binds the addresses of a relay, and its shared-memory socket.
    ///
    /// # Errors
    ///
    /// If one is in use.
    pub fn bind(options: RelayOptions) -> Result<BoundRelay, RelayError> {
        let listen = options.listen;
        let listener = TcpListener::bind(listen)
            .map_err(io_error(format!("{listen}: cannot listen for switches")))?;
        let address = listener
            .local_addr()
            .map_err(io_error("cannot get the address of the listener"))?;
        listener
            .set_nonblocking(true)
            .map_err(io_error("cannot set up the listener"))?;
        #[cfg(feature = "verbs")]
        let device = options.device.as_ref().map(|device| {
            let what = format!("{}: cannot open this RDMA device", device.name);
            strata_roce::verbs::Device::open(device).map_err(io_error(what))
        });
        #[cfg(feature = "verbs")]
        let device = device.transpose()?;
        #[cfg(feature = "verbs")]
        let in_software = device.is_none();
        #[cfg(not(feature = "verbs"))]
        let in_software = true;
        let mut udp = None;
        let mut rdma_port = UDP_PORT;
        if in_software {
            let rdma = SocketAddr::new(listen.ip(), options.rdma_port);
            let port = UdpPort::bind(rdma).map_err(io_error(format!(
                "{rdma}: cannot receive RoCEv2 (UDP); does another relay or an RDMA driver use the port?"
            )))?;
            rdma_port = port
                .local_address()
                .map_err(io_error("cannot get the address of the UDP socket"))?
                .port();
            udp = Some(port);
        }
        let memory_socket = memory_socket(&options, address.port())?;
        Ok(BoundRelay {
            options,
            listener,
            address,
            udp,
            rdma_port,
            memory_socket,
            #[cfg(feature = "verbs")]
            device,
        })
    }

    /// The address that switches connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has done so far.
    #[must_use]
    pub fn counters(&self) -> &RelayCounters {
        &self.inner.counters
    }

    /// Requests this degradation from all switches, including later ones, until the next request.
    pub fn ask(&self, shortage: Shortage) {
        let asked = &self.inner.shortage;
        *asked.lock().unwrap_or_else(PoisonError::into_inner) = shortage;
    }

    /// The load of its disk.
    #[must_use]
    pub fn disk_load(&self) -> DiskLoad {
        let (busy, writers) = self.inner.writers.busy();
        DiskLoad {
            blocks: self.inner.memory_blocks.load(Ordering::Relaxed),
            waiting: self.inner.waiting_blocks.load(Ordering::Relaxed),
            busy,
            writers,
        }
    }

    /// Why the log can no longer be written, if so: then no switch is served, and the relay must be stopped.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.inner.failure()
    }

    /// Stops: writes what is in memory, then disconnects all switches.
    pub fn stop(mut self) -> Totals {
        self.shut_down();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.inner.counters;
        Totals {
            blocks: load(&counters.blocks),
            bytes: load(&counters.bytes),
            salvaged: load(&counters.salvaged),
            failure: self.inner.failure(),
        }
    }

    fn shut_down(&mut self) {
        self.inner.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panicked thread has already reported it.
            let _ = thread.join();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Where memory is handed over; none, with the reason, if the default socket cannot be used.
fn memory_socket(
    options: &RelayOptions,
    port: u16,
) -> Result<Result<SocketFile, SocketError>, RelayError> {
    let Some(path) = &options.memory_socket else {
        let (dir, name) = (runtime_dir(), dir_name(port));
        return Ok(SocketFile::bind_in_own_dir(&dir, &name, &options.owner));
    };
    let socket = SocketFile::bind(path, &options.owner);
    let socket =
        socket.map_err(|error| io_error("cannot offer shared memory")(io::Error::other(error)));
    socket.map(Ok)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, RelayError> {
    let spawned = thread::Builder::new().name(name.into()).spawn(run);
    spawned.map_err(io_error(format!("{name}: cannot start the thread")))
}

/// Whether an error on a file may be gone when the switch asks again: the process or the machine
/// has too many files open.
fn passes(error: &StoreError) -> bool {
    match error {
        StoreError::Io { source, .. } => matches!(
            source.raw_os_error(),
            Some(libc::EMFILE | libc::ENFILE | libc::EINTR)
        ),
        StoreError::StreamTaken => true,
        _ => false,
    }
}

/// How long to wait for connections before checking the stop flag.
const WAIT: Duration = Duration::from_millis(50);
/// How long to wait after an error of a socket, which may still be there.
const ERROR_WAIT: Duration = Duration::from_millis(100);

fn accept(inner: &Arc<Inner>, listener: &TcpListener) {
    let mut sessions: Vec<JoinHandle<()>> = Vec::new();
    let mut admission = Admission::new(inner);
    while !inner.stopped() {
        let waited = admission.wait(listener, WAIT);
        if let Err(error) = waited.and_then(|()| admission.accept(listener)) {
            // Too many open files.
            (inner.report)(&format!("cannot accept a switch: {error}"));
            pause::backoff(ERROR_WAIT);
        }
        for admitted in admission.advance() {
            sessions.retain(|thread| !thread.is_finished());
            if sessions.len() >= inner.options.switches_max {
                admission.turn_away(admitted);
                continue;
            }
            let serving = Arc::clone(inner);
            match spawn("strata-switch", move || serve(&serving, admitted)) {
                Ok(thread) => sessions.push(thread),
                Err(error) => (inner.report)(&error.to_string()),
            }
        }
    }
    for session in sessions {
        let _ = session.join();
    }
}

fn serve(inner: &Arc<Inner>, admitted: Admitted) {
    let counters = &inner.counters;
    counters.connections.fetch_add(1, Ordering::Relaxed);
    counters.connected.fetch_add(1, Ordering::Relaxed);
    let peer = admitted.channel.peer().to_owned();
    if let Err(error) = session::serve(inner, admitted) {
        (inner.report)(&format!("switch {peer}: {error}"));
    }
    counters.connected.fetch_sub(1, Ordering::Relaxed);
    inner.ended.tell();
}

/// The work of an RDMA NIC: UDP packets into memory, answers back.
fn respond(inner: &Inner, mut port: UdpPort) {
    let mut replies = Replies::default();
    let mut single = strata_rdma::PacketBatch::new();
    while !inner.stopped() {
        match port.wait(Duration::from_millis(20)) {
            Ok(true) => {}
            Ok(false) => {
                inner.emptied.fetch_add(1, Ordering::Release);
                continue;
            }
            Err(error) => {
                (inner.report)(&format!("RoCEv2 socket: {error}"));
                pause::backoff(ERROR_WAIT);
                continue;
            }
        }
        let mut wire = inner.wire();
        let Wire { responder, peers } = &mut *wire;
        let mut bad = 0;
        let received = port.receive_with(&mut |source, place, bytes| {
            let packet = Packet::new_checked(bytes);
            let known = packet.and_then(|packet| {
                let peer = peers.get_mut(&packet.dest_qp())?;
                (peer.address.ip() == source.ip()
                    && peer.check.is_right(source.port(), &packet, place))
                .then_some(packet)
            });
            match known {
                // Drops are silent, as in a NIC.
                Some(packet) => drop(responder.receive(source.ip(), &packet, &mut replies)),
                None => bad += 1,
            }
        });
        responder.acknowledge(&mut replies);
        for (index, qpn) in replies.from.iter().enumerate() {
            if let Some(peer) = peers.get_mut(qpn) {
                single.clear();
                single.push_bytes(replies.packets.get(index));
                // An answer that cannot be sent counts as lost.
                let _ = port.send_to(peer.address, &mut peer.icrcs, &mut single);
            }
        }
        replies.clear();
        drop(wire);
        if bad > 0 {
            inner.counters.bad_packets.fetch_add(bad, Ordering::Relaxed);
        }
        match received {
            Ok(runs) if runs < RUNS => {
                inner.emptied.fetch_add(1, Ordering::Release);
            }
            Ok(_) => {}
            Err(error) => (inner.report)(&format!("RoCEv2 socket: {error}")),
        }
    }
}
