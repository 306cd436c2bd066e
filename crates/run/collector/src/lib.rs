//! The role of a collector of exported packets: datagrams of many senders in, one pcapng stream out
//! (`docs/export.md`).
//!
//! What comes from an address that is not on the list, cannot be read, or contradicts what came before
//! costs a count and nothing else.

mod choice;
mod outlet;
mod reporting;
mod senders;
mod showing;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::thread::CapabilitySet;
use strata_auth::keys::SealKeys;
use strata_capture::{PacketRef, PcapNgWriter, WriteError};
use strata_control::SenderStatus;
use strata_control::agent_client::CollectorReport;
use strata_control::config::read_keys;
use strata_exporter::{
    Announcement, Datagram, FormatError, Header, HeaderReader, Kind, Label, Opener, PacketReader,
    is_sealed,
};
use strata_filter::Filter;
use strata_role::sandbox::{Reach, give_up, thread};
use strata_role::{At as _, Notice, Result, RoleError, Tell};
use strata_sandbox::{Owner, Role, SocketFile};
use strata_sys::pause;
use strata_sys::socket::{self, Received, Receiver};
use strata_wire::pcapng::options;
use strata_wire::{exact, unix_seconds};

use choice::Choice;
use reporting::{Prepared, Reporting};
use senders::{Senders, Taken};
use showing::Showing;

pub use outlet::Outlet;
pub use reporting::ReportTo;
pub use senders::CollectorCounts;
pub use showing::{ControlSocket, ShowSpec};

/// Datagrams, or runs of them, that are taken with one system call.
const BATCH: usize = 32;
/// Buffer of the socket: a burst of all senders.
const BUFFER_BYTES: u32 = 32 << 20;
/// System calls for what is left in the socket at the end: as much as its buffer holds of small datagrams.
const LAST_ROUNDS: usize = 4096;
/// The interval at which what has arrived is summed up, for the controller and for the status.
const SUM_EVERY: Duration = Duration::from_secs(1);
/// Between looks at the stop flag; what was written is flushed as often.
const IDLE: Duration = Duration::from_millis(100);

/// A collector.
#[derive(Clone, Debug)]
pub struct CollectorSpec {
    /// Where datagrams come in.
    pub listen: SocketAddr,
    /// Networks of senders that are listened to; any that reaches the address, if empty.
    pub allowed: Vec<IpNet>,
    /// End after this number of packets.
    pub packets_max: Option<u64>,
    /// Whether each packet has a comment with its policy, its class and how many it stands for.
    pub comments: bool,
    /// File with keys: datagrams have to be encrypted with one of them. Without it, they are in clear.
    pub key_file: Option<PathBuf>,
    /// The controller to which it reports what has arrived; none if it does not.
    pub report_to: Option<ReportTo>,
    /// Only packets of this identity are taken.
    pub only: Option<u32>,
    /// Only packets that match this are written.
    pub filter: Option<Filter>,
    /// Whether headers of a sender's interface are an interface of their own in what is written, so that a log knows
    /// what their sender kept.
    pub splits: bool,
    /// What it shows while it runs.
    pub show: ShowSpec,
    /// Drop what is not needed once it listens. Not if something else in this process needs it, or has dropped it.
    /// A process that keeps everything says so before ([`unconfined`](strata_role::sandbox::unconfined)).
    pub sandboxed: bool,
}

/// What a collector did.
#[derive(Debug)]
pub struct CollectorOutcome {
    /// By sender and interface.
    pub from: Vec<SenderStatus>,
    /// Of all senders together, and what was of none.
    pub counts: CollectorCounts,
    /// Why not all could be written.
    pub failure: Option<RoleError>,
}

/// A collector that listens.
pub struct Collector {
    spec: CollectorSpec,
    socket: UdpSocket,
    address: SocketAddr,
    opener: Option<Opener>,
    prepared: Option<Prepared>,
    control: Option<SocketFile>,
    tell: Tell,
}

impl Collector {
    /// Listens.
    ///
    /// # Errors
    ///
    /// If the address is not of this host, or in use, or the keys or the control socket cannot be used.
    pub fn open(spec: CollectorSpec, tell: Tell) -> Result<Self> {
        let board = Arc::clone(&spec.show.board);
        let tell: Tell = Arc::new(move |notice: &Notice| {
            board.notice(notice);
            tell(notice);
        });
        let named = || format!("--listen {}: cannot listen", spec.listen);
        let socket = socket::udp(spec.listen, BUFFER_BYTES).at_with(named)?;
        let address = socket.local_addr().at_with(named)?;
        let keys = spec.key_file.as_deref().map(keys).transpose()?;
        let report_to = spec.report_to.as_ref();
        let prepared = report_to.map(|to| Prepared::open(to, &tell));
        let control = spec.show.socket.as_ref();
        let control = control.map(|socket| socket.bind(&tell)).transpose()?;
        Ok(Self {
            control: control.flatten(),
            prepared: prepared.transpose()?,
            spec,
            socket,
            address,
            opener: keys.map(Opener::new),
            tell,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Writes what comes as pcapng, until `stop`, or as many packets as are wanted; `reload` asks to read
    /// the keys again.
    ///
    /// # Errors
    ///
    /// If it cannot give up its privileges, or not receive. Why it cannot write is in the outcome.
    pub fn run(
        self,
        output: Outlet<'_>,
        stop: &AtomicBool,
        mut reload: impl FnMut() -> bool,
    ) -> Result<CollectorOutcome> {
        let output = Shared::new(output);
        let mut intake = Intake {
            allowed: self.spec.allowed,
            opener: self.opener,
            told: Told::default(),
            tell: Arc::clone(&self.tell),
            choice: Choice::new(self.spec.only, self.spec.filter, Arc::clone(&self.tell)),
            headers: HeaderReader::new(),
            packets: PacketReader::new(),
            staged: Staged::new(self.spec.comments),
            senders: Senders::new(self.spec.splits, self.tell.clone()),
            writer: PcapNgWriter::new(output.clone(), &[]).map_err(cannot_write)?,
            output,
            failed: None,
        };
        if self.spec.sandboxed {
            let to = self.spec.report_to.as_ref();
            let token = to.and_then(|to| to.token_file.as_ref());
            let reach = Reach {
                again: self.spec.key_file.iter().chain(token).cloned().collect(),
                write: to.iter().map(|to| to.state.clone()).collect(),
                delete: self
                    .control
                    .as_ref()
                    .and_then(SocketFile::own_dirs)
                    .into_iter()
                    .flatten()
                    .collect(),
                ..Reach::default()
            };
            let owner = Owner::default();
            give_up(&owner, &reach, CapabilitySet::empty(), &self.tell)?;
        }
        thread(Role::Server);
        let reporting = self.prepared.map(|prepared| prepared.start(&self.tell));
        let reporting = reporting.transpose()?;
        let listen = (self.address.to_string(), intake.opener.is_some());
        let mut showing = Showing::start(self.spec.show, self.control, listen)?;
        let what = format!("collecting on UDP {}", self.address);
        (self.tell)(&Notice::serving(self.address, what));
        let key_file = self.spec.key_file.as_deref();
        let mut look = |intake: &mut Intake<'_>| {
            if reload() {
                intake.read_keys(key_file);
            }
        };
        await_reader(
            &self.socket,
            &mut intake,
            stop,
            (&mut showing, reporting.as_ref()),
            &mut look,
        )?;
        let wanted = (stop, self.spec.packets_max);
        collect(
            &self.socket,
            &mut intake,
            wanted,
            (&mut showing, reporting.as_ref()),
            &mut look,
        )?;
        let mut output = intake.output.0.borrow_mut();
        let mut counts = intake.senders.counts;
        counts.not_written = counts.packets - output.packets();
        counts.socket_drops = u64::from(socket::dropped(self.socket.as_fd())?);
        intake.senders.counts = counts;
        showing.publish(&intake.senders, output.packets(), counts.socket_drops);
        if let Some(reporting) = reporting {
            reporting.end(intake.senders.report(&counts));
        }
        let failed = intake.failed.take().map(cannot_write);
        Ok(CollectorOutcome {
            from: intake.senders.into_list(),
            counts,
            failure: output.take_failure().or(failed),
        })
    }
}

/// Waits until a program reads the pipe, if the output is one: until then, datagrams wait in the buffer of the socket,
/// and the collector shows its status, with those that found the buffer full.
fn await_reader(
    socket: &UdpSocket,
    intake: &mut Intake<'_>,
    stop: &AtomicBool,
    (showing, reporting): (&mut Showing, Option<&Reporting>),
    look: &mut dyn FnMut(&mut Intake<'_>),
) -> Result<()> {
    let is_awaited = |intake: &Intake<'_>| intake.output.0.borrow_mut().is_awaited();
    let mut summed = Instant::now();
    while is_awaited(intake)? {
        if stop.load(Ordering::Relaxed) {
            intake.output.0.borrow_mut().give_up_reader();
            break;
        }
        look(intake);
        if summed.elapsed() >= SUM_EVERY {
            summed = Instant::now();
            let drops = u64::from(socket::dropped(socket.as_fd())?);
            showing.publish(&intake.senders, 0, drops);
            if let Some(reporting) = reporting {
                reporting.set(intake.sum(drops));
            }
        }
        pause::backoff(IDLE);
    }
    Ok(())
}

/// Writes what comes until it is to stop, or there are as many packets as are wanted.
fn collect(
    socket: &UdpSocket,
    intake: &mut Intake<'_>,
    (stop, most): (&AtomicBool, Option<u64>),
    (showing, reporting): (&mut Showing, Option<&Reporting>),
    look: &mut dyn FnMut(&mut Intake<'_>),
) -> Result<()> {
    let mut receiver = Receiver::<BATCH>::default();
    let is_enough = |packets| most.is_some_and(|most| packets >= most);
    let mut flushed = Instant::now();
    let mut summed = flushed;
    while !stop.load(Ordering::Relaxed)
        && !is_enough(intake.senders.counts.packets)
        && !intake.has_failed()
    {
        look(intake);
        if socket::wait(socket.as_fd(), false, IDLE)? {
            receiver.receive(socket.as_fd(), |received| intake.take(received))?;
        }
        // Also while datagrams keep coming: somebody may be looking.
        if flushed.elapsed() >= IDLE {
            flushed = Instant::now();
            intake.output.flush()?;
        }
        if summed.elapsed() >= SUM_EVERY {
            summed = Instant::now();
            // What is in memory is not what cannot be written.
            intake.output.flush()?;
            let drops = u64::from(socket::dropped(socket.as_fd())?);
            showing.publish(&intake.senders, intake.output.packets(), drops);
            if let Some(reporting) = reporting {
                reporting.set(intake.sum(drops));
            }
        }
    }
    // What had arrived by now, but no more than the socket holds: others may send for ever. It is counted also
    // if it cannot be written.
    for _ in 0..LAST_ROUNDS {
        let has_all = is_enough(intake.senders.counts.packets);
        let take = |received: &Received<'_>| intake.take(received);
        if has_all || receiver.receive(socket.as_fd(), take)? == 0 {
            break;
        }
    }
    Ok(intake.output.flush()?)
}

/// The keys in a file.
fn keys(file: &Path) -> Result<SealKeys> {
    let keys = read_keys(file);
    keys.map_err(|error| RoleError::Refused(format!("--key-file: {error}")))
}

fn cannot_write(error: WriteError) -> RoleError {
    match error {
        WriteError::Io(error) => error.into(),
        other => RoleError::Refused(other.to_string()),
    }
}

/// The output, which is looked at while a writer has it.
#[derive(Clone)]
struct Shared<'a>(Rc<RefCell<Outlet<'a>>>);

impl<'a> Shared<'a> {
    fn new(output: Outlet<'a>) -> Self {
        Self(Rc::new(RefCell::new(output)))
    }

    fn packets(&self) -> u64 {
        self.0.borrow().packets()
    }
}

impl Write for Shared<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

/// The packets of a datagram.
struct Staged {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// The comment of packets with this label, as an option; most have that of the packet before.
    comment: Option<(Label, Vec<u8>)>,
    comments: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    ts_ns: u64,
    wire_len: u32,
    /// Where its bytes end.
    end: usize,
    label: Label,
}

/// The class of packets that were not classified.
const NO_CLASS: u8 = u8::MAX;

/// What a sender says of a packet, as Wireshark shows it.
fn comment(label: Label) -> String {
    let mut text = format!("strata: policy={}", label.policy);
    if label.class != NO_CLASS {
        let _ = write!(text, " class={}", label.class);
    }
    if label.one_in > 1 {
        let _ = write!(text, " one_in={}", label.one_in);
    }
    text
}

impl Staged {
    fn new(comments: bool) -> Self {
        Self {
            bytes: Vec::new(),
            entries: Vec::new(),
            comment: None,
            comments,
        }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    fn push(&mut self, packet: &Header<'_>) {
        self.bytes.extend_from_slice(packet.bytes);
        self.entries.push(Entry {
            ts_ns: packet.ts_ns,
            wire_len: packet.wire_len,
            end: self.bytes.len(),
            label: packet.label,
        });
    }

    /// What there is.
    fn taken(&self) -> Taken {
        let (mut cut, mut start) = (0, 0);
        for entry in &self.entries {
            let len = entry.end.saturating_sub(start);
            cut += u64::from(u64::from(entry.wire_len) > len as u64);
            start = entry.end;
        }
        Taken {
            packets: self.entries.len() as u64,
            bytes: self.bytes.len() as u64,
            cut,
        }
    }

    /// The options of packets with this label.
    fn options(comment_of: &mut Option<(Label, Vec<u8>)>, label: Label) -> &[u8] {
        if comment_of.as_ref().is_none_or(|(of, _)| *of != label) {
            let mut list = Vec::new();
            options::push_comment(&mut list, &comment(label)).expect("it is short");
            *comment_of = Some((label, list));
        }
        comment_of.as_ref().map_or(&[], |(_, list)| list)
    }

    /// Hands out the packets until one cannot be taken.
    fn packets<E>(
        &mut self,
        interface: u16,
        mut take: impl FnMut(&PacketRef<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut start = 0;
        for entry in &self.entries {
            let options = match self.comments {
                true => Self::options(&mut self.comment, entry.label),
                false => &[],
            };
            take(&PacketRef {
                ts_ns: entry.ts_ns,
                interface,
                wire_len: entry.wire_len,
                data: &self.bytes[start..entry.end],
                options,
                has_timestamp: true,
            })?;
            start = entry.end;
        }
        Ok(())
    }
}

/// Why datagrams were not taken, as far as it was reported.
#[derive(Debug, Default)]
struct Told(BTreeSet<String>);

impl Told {
    /// Each reason once.
    fn once(&mut self, tell: &Tell, sender: IpAddr, why: &str) {
        if self.0.insert(why.to_owned()) {
            tell(&Notice::warning(format!(
                "a datagram from {sender} is not accepted: {why}; later ones are only counted"
            )));
        }
    }
}

/// What becomes of datagrams.
struct Intake<'a> {
    allowed: Vec<IpNet>,
    /// Of datagrams that have to be encrypted.
    opener: Option<Opener>,
    told: Told,
    tell: Tell,
    choice: Choice,
    headers: HeaderReader,
    packets: PacketReader,
    staged: Staged,
    senders: Senders,
    writer: PcapNgWriter<Shared<'a>>,
    /// What the writer writes to.
    output: Shared<'a>,
    /// Why something cannot be written, but for what its output says.
    failed: Option<WriteError>,
}

impl Intake<'_> {
    /// Whether nothing can be written any more.
    fn has_failed(&self) -> bool {
        self.failed.is_some() || self.output.0.borrow().has_failed()
    }

    /// Takes a datagram, or a run of them that the kernel has merged.
    fn take(&mut self, received: &Received<'_>) {
        let sender = received.source.ip().to_canonical();
        let segment = received.segment.unwrap_or(received.bytes.len()).max(1);
        if received.bytes.is_empty() {
            self.senders.counts.unreadable += 1;
        }
        for datagram in received.bytes.chunks(segment) {
            let is_allowed = self.allowed.is_empty()
                || self.allowed.iter().any(|network| network.contains(&sender));
            if !is_allowed {
                self.senders.counts.strangers += 1;
            } else {
                self.opened(sender, datagram);
            }
        }
    }

    /// What has arrived so far, for the controller.
    fn sum(&self, socket_drops: u64) -> CollectorReport {
        self.senders.report(&CollectorCounts {
            socket_drops,
            ..self.senders.counts
        })
    }

    /// Uses the keys that are in the file now; those before, if they cannot be used.
    fn read_keys(&mut self, file: Option<&Path>) {
        let (Some(file), Some(opener)) = (file, &mut self.opener) else {
            return;
        };
        match keys(file) {
            Ok(keys) => {
                opener.use_keys(keys);
                self.told = Told::default();
            }
            Err(error) => (self.tell)(&Notice::warning(format!(
                "{}; the previous keys are still used",
                error.chain()
            ))),
        }
    }

    /// Takes a datagram that may have to be decrypted.
    fn opened(&mut self, sender: IpAddr, bytes: &[u8]) {
        let Some(mut opener) = self.opener.take() else {
            if self.datagram(sender, bytes).is_err() {
                self.senders.counts.unreadable += 1;
                if is_sealed(bytes) {
                    let what = "it is encrypted: give the key (--key-file)";
                    self.told.once(&self.tell, sender, what);
                }
            }
            return;
        };
        match opener.open(bytes, exact(unix_seconds())) {
            Ok(datagram) => {
                if self.datagram(sender, datagram).is_err() {
                    self.senders.counts.unreadable += 1;
                }
            }
            Err(error) => {
                self.senders.counts.sealed(error);
                self.told.once(&self.tell, sender, &error.to_string());
            }
        }
        self.opener = Some(opener);
    }

    fn datagram(&mut self, sender: IpAddr, bytes: &[u8]) -> std::result::Result<(), FormatError> {
        let datagram = Datagram::read(bytes)?;
        if !self.choice.has(datagram.source.identity) {
            return Ok(());
        }
        if datagram.kind == Kind::Announcement {
            self.senders.announced(sender, Announcement::read(bytes)?);
            return Ok(());
        }
        let Some(interface) = self
            .senders
            .accept(sender, &datagram, &mut |id, interface| {
                let written = self.writer.interface(id, interface);
                self.failed = self.failed.take().or(written.err());
            })
        else {
            return Ok(());
        };
        // Nothing of a datagram that turns out to be damaged is written.
        let staged = &mut self.staged;
        staged.clear();
        let take = |_, packet: &Header<'_>| staged.push(packet);
        match datagram.kind {
            Kind::Headers => self.headers.read(bytes, take)?,
            Kind::Packets | Kind::Announcement => self.packets.read(bytes, take)?,
        };
        let taken = self.staged.taken();
        let (writer, counts) = (&mut self.writer, &mut self.senders.counts);
        let is_chosen = self.choice.of(datagram.link);
        let written = self.staged.packets(interface, |packet| {
            if !is_chosen(packet.data, packet.wire_len) {
                return Ok(());
            }
            counts.packets += 1;
            counts.bytes = counts.bytes.saturating_add(packet.data.len() as u64);
            writer.packet(packet)
        });
        self.failed = self.failed.take().or(written.err());
        self.senders.taken(sender, &datagram, taken);
        let packets = self.senders.counts.packets;
        self.output.0.borrow_mut().mark(packets);
        Ok(())
    }
}
