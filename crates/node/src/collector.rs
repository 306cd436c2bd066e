//! The role of a collector of exported packets: datagrams of many senders in, one pcapng stream out
//! (`docs/export.md`).
//!
//! What comes from an address that is not on the list, cannot be read, or contradicts what came before
//! costs a count and nothing else.

mod senders;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ipnet::IpNet;
use strata_capture::{PacketRef, PcapNgWriter, WriteError};
use strata_exporter::{
    Announcement, Datagram, FormatError, Header, HeaderReader, Kind, Label, PacketReader,
};
use strata_sys::socket::{self, Received, Receiver};
use strata_wire::pcapng::options;

use crate::error::{At as _, NodeError, Result};
use crate::notice::{Notice, Tell};
use senders::Senders;

pub use senders::{CollectedFrom, CollectorCounts};

/// Datagrams, or runs of them, that are taken with one system call.
const BATCH: usize = 32;
/// Buffer of the socket: a burst of all senders.
const BUFFER_BYTES: u32 = 32 << 20;
/// System calls for what is left in the socket at the end: as much as its buffer holds of small datagrams.
const LAST_ROUNDS: usize = 4096;
/// Between looks at the stop flag; what was written is flushed as often.
const IDLE: Duration = Duration::from_millis(100);
/// Of what is written.
const WRITE_BYTES: usize = 256 << 10;

/// A collector.
#[derive(Clone, Debug)]
pub struct CollectorSpec {
    /// Where datagrams come in.
    pub listen: SocketAddr,
    /// Networks of senders that are listened to; anyone who reaches the address, if there is none.
    pub allowed: Vec<IpNet>,
    /// End after so many packets.
    pub packets_max: Option<u64>,
    /// Whether each packet has a comment with its policy, its class and how many it stands for.
    pub comments: bool,
}

/// What a collector did.
#[derive(Clone, Debug)]
pub struct CollectorOutcome {
    /// By sender and interface.
    pub from: Vec<CollectedFrom>,
    /// Of all senders together, and what was of none.
    pub counts: CollectorCounts,
}

/// A collector that listens.
pub struct Collector {
    spec: CollectorSpec,
    socket: UdpSocket,
    address: SocketAddr,
    tell: Tell,
}

impl Collector {
    /// Listens.
    ///
    /// # Errors
    ///
    /// If the address is not of this host, or in use.
    pub fn open(spec: CollectorSpec, tell: Tell) -> Result<Self> {
        let named = || format!("--listen {}: cannot listen", spec.listen);
        let socket = socket::udp(spec.listen, BUFFER_BYTES).at_with(named)?;
        let address = socket.local_addr().at_with(named)?;
        Ok(Self {
            spec,
            socket,
            address,
            tell,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Writes what comes as pcapng, until `stop`, or as many packets as are wanted.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn run(self, output: impl Write, stop: &AtomicBool) -> Result<CollectorOutcome> {
        let output = Shared::new(output);
        let mut intake = Intake {
            allowed: self.spec.allowed,
            headers: HeaderReader::new(),
            packets: PacketReader::new(),
            staged: Staged::new(self.spec.comments),
            senders: Senders::new(self.tell.clone()),
            writer: PcapNgWriter::new(output.clone(), &[]).map_err(cannot_write)?,
            failed: None,
        };
        (self.tell)(&Notice::Collecting {
            address: self.address,
        });
        let mut receiver = Receiver::<BATCH>::default();
        let most = self.spec.packets_max;
        let is_enough = |packets| most.is_some_and(|most| packets >= most);
        while !stop.load(Ordering::Relaxed) && !is_enough(intake.senders.counts.packets) {
            if !socket::wait(self.socket.as_fd(), false, IDLE)? {
                output.clone().flush()?;
                continue;
            }
            receiver.receive(self.socket.as_fd(), |received| intake.take(received))?;
            if let Some(error) = intake.failed.take() {
                return Err(cannot_write(error));
            }
        }
        // What had arrived by now, but no more than the socket holds: others may send for ever.
        for _ in 0..LAST_ROUNDS {
            let has_all = is_enough(intake.senders.counts.packets);
            let take = |received: &Received<'_>| intake.take(received);
            if has_all || receiver.receive(self.socket.as_fd(), take)? == 0 {
                break;
            }
        }
        if let Some(error) = intake.failed.take() {
            return Err(cannot_write(error));
        }
        intake.writer.finish().map_err(cannot_write)?;
        let mut counts = intake.senders.counts;
        counts.socket_drops = u64::from(socket::dropped(self.socket.as_fd())?);
        Ok(CollectorOutcome {
            from: intake.senders.into_list(),
            counts,
        })
    }
}

fn cannot_write(error: WriteError) -> NodeError {
    match error {
        WriteError::Io(error) => error.into(),
        other => NodeError::Refused(other.to_string()),
    }
}

/// A buffered output that is flushed while a writer has it.
struct Shared<W: Write>(Rc<RefCell<BufWriter<W>>>);

impl<W: Write> Shared<W> {
    fn new(output: W) -> Self {
        let output = BufWriter::with_capacity(WRITE_BYTES, output);
        Self(Rc::new(RefCell::new(output)))
    }
}

impl<W: Write> Clone for Shared<W> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<W: Write> Write for Shared<W> {
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

/// What becomes of datagrams.
struct Intake<W: Write> {
    allowed: Vec<IpNet>,
    headers: HeaderReader,
    packets: PacketReader,
    staged: Staged,
    senders: Senders,
    writer: PcapNgWriter<Shared<W>>,
    /// Why nothing can be written any more.
    failed: Option<WriteError>,
}

impl<W: Write> Intake<W> {
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
            } else if self.failed.is_none() && self.datagram(sender, datagram).is_err() {
                self.senders.counts.unreadable += 1;
            }
        }
    }

    fn datagram(&mut self, sender: IpAddr, bytes: &[u8]) -> std::result::Result<(), FormatError> {
        let datagram = Datagram::read(bytes)?;
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
        let writer = &mut self.writer;
        let written = self
            .staged
            .packets(interface, |packet| writer.packet(packet));
        self.failed = self.failed.take().or(written.err());
        let taken = self.staged.entries.len() as u64;
        self.senders.taken(sender, &datagram, taken);
        Ok(())
    }
}
