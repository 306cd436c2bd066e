//! Datagrams for a destination, which leave many at a time.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use strata_auth::keys::{SALT_LEN, SealKeys};
use strata_control::ExportStatus;
use strata_exporter::{Channel, Destination, Sealer, identity_in};
use strata_sys::socket::{self, Message, send_many};
use strata_wire::{exact, unix_seconds};

use super::own::Own;
use super::pending::{End, Pending};
use super::target::Target;

/// Datagrams that leave in one system call, and as one message at most (`UDP_MAX_SEGMENTS`, linux/udp.h).
const BURST: usize = 64;
/// They leave before that once they have this number of bytes: about what one message may have.
const BURST_BYTES: usize = 60_000;
/// How often a full socket is waited for, 100 ms each, where that is allowed.
const WAITS: u32 = 50;
/// Seconds in a row without a problem until its end is reported: it may come and go.
const OVER: u32 = 5;

/// What encrypts the datagrams to a destination.
#[derive(Debug)]
struct Sealing {
    keys: SealKeys,
    /// Random, of this run: with it, every identity has a cipher of its own.
    salt: [u8; SALT_LEN],
    /// By identity.
    sealers: BTreeMap<u32, Sealer>,
}

impl Sealing {
    fn new(keys: SealKeys) -> io::Result<Self> {
        let mut salt = [0; SALT_LEN];
        getrandom::fill(&mut salt).map_err(io::Error::other)?;
        Ok(Self {
            keys,
            salt,
            sealers: BTreeMap::new(),
        })
    }

    /// Uses other keys from now on. An identity without a key is not sent any more.
    fn use_keys(&mut self, keys: SealKeys) {
        for (identity, sealer) in &mut self.sealers {
            if let Some(key) = keys.to_seal(*identity) {
                sealer.use_key(&key);
            }
        }
        self.keys = keys;
    }

    /// Appends a datagram, encrypted; returns whether there is a key for its identity.
    fn seal(&mut self, datagram: &[u8], out: &mut Vec<u8>) -> bool {
        let identity = identity_in(datagram);
        if let Some(sealer) = self.sealers.get_mut(&identity) {
            sealer.seal(exact(unix_seconds()), datagram, out);
            return true;
        }
        let Some(key) = self.keys.to_seal(identity) else {
            return false;
        };
        let sealer = Sealer::new(&key, self.salt);
        let sealer = self.sealers.entry(identity).or_insert(sealer);
        sealer.seal(exact(unix_seconds()), datagram, out);
        true
    }
}

/// Datagrams for a destination.
#[derive(Debug)]
pub(super) struct Outbox {
    target: Target,
    /// By socket.
    pending: Vec<Pending>,
    /// Of all sockets: datagrams that wait, and their bytes.
    waiting: (usize, usize),
    /// Whether runs of datagrams leave as one message, which the kernel or the network card cuts; not once it has
    /// refused that, until the path is another.
    merges: bool,
    waits: bool,
    sealing: Option<Sealing>,
    /// Bytes of a datagram at most, before it is encrypted.
    pub(super) room: usize,
    /// Bytes of a datagram that the path carries in one packet: longer ones are not merged.
    carried: usize,
    pub(super) status: ExportStatus,
    /// A problem, until it is reported; whether one was, and is not over.
    problem: Option<io::Error>,
    has_told: bool,
    /// Whether there was one since the path was last measured, and how often not in a row.
    has_refused: bool,
    quiet: u32,
    /// Whether to look for a way to the destination: there was no way, or it is at another address.
    is_cut_off: bool,
}

/// What users should know of a destination.
#[derive(Debug)]
pub(super) enum News {
    /// Datagrams are not sent.
    Problem(io::Error),
    /// They have been, for some seconds.
    Over,
}

impl Outbox {
    /// Datagrams to a collector are encrypted if there are keys.
    pub(super) fn new(target: Target, waits: bool, keys: Option<&SealKeys>) -> io::Result<Self> {
        let keys = keys.filter(|_| target.destination.channel == Channel::Udp);
        let sealing = keys.cloned().map(Sealing::new).transpose()?;
        Ok(Self {
            status: ExportStatus {
                name: target.name.to_string(),
                to: target.destination.to_string(),
                ..ExportStatus::default()
            },
            room: target.room(sealing.is_some()),
            carried: target.carries(),
            sealing,
            pending: (0..target.ways()).map(|_| Pending::default()).collect(),
            waiting: (0, 0),
            merges: true,
            is_cut_off: target.own().is_none(),
            target,
            waits,
            problem: None,
            has_told: false,
            has_refused: false,
            quiet: 0,
        })
    }

    /// Encrypts with other keys from now on.
    pub(super) fn use_keys(&mut self, keys: &SealKeys) {
        if let Some(sealing) = &mut self.sealing {
            sealing.use_keys(keys.clone());
        }
    }

    /// Whether datagrams of an identity can be sent: they may have to be encrypted.
    pub(super) fn has_key(&self, identity: u32) -> bool {
        let sealing = self.sealing.as_ref();
        sealing.is_none_or(|sealing| sealing.keys.to_seal(identity).is_some())
    }

    pub(super) fn destination(&self) -> &Destination {
        &self.target.destination
    }

    /// Sends to this address from the next look on, if it is known.
    pub(super) fn use_address(&mut self, address: Option<SocketAddr>) {
        self.is_cut_off |= self.target.use_address(address);
    }

    /// Looks for a way to the destination if there was no way. Returns the ends of the socket that sends from
    /// now on, if it is another.
    pub(super) fn reach(&mut self) -> Option<Own> {
        if !self.is_cut_off || !self.target.may_wait {
            return None;
        }
        let before = self.target.own();
        match self.target.connect() {
            Ok(()) => self.is_cut_off = false,
            Err(error) => self.refused(error),
        }
        let now = self.target.own().filter(|own| before != Some(*own));
        self.merges |= now.is_some();
        now
    }

    /// Measures the path again; returns whether datagrams have to become shorter or may be longer.
    pub(super) fn measure(&mut self) -> bool {
        if !std::mem::take(&mut self.has_refused) {
            self.status.problem.clear();
            self.quiet = self.quiet.saturating_add(1);
        }
        let room = self.target.room(self.sealing.is_some());
        let is_other = std::mem::replace(&mut self.room, room) != room;
        let carried = self.target.carries();
        self.merges |= std::mem::replace(&mut self.carried, carried) != carried;
        is_other
    }

    /// A problem, once while it lasts, and that it is over.
    pub(super) fn take_news(&mut self) -> Option<News> {
        let problem = self.problem.take().filter(|_| !self.has_told);
        self.has_told |= problem.is_some();
        match problem {
            Some(problem) => Some(News::Problem(problem)),
            None if self.has_told && self.quiet >= OVER => {
                self.has_told = false;
                Some(News::Over)
            }
            None => None,
        }
    }

    fn refused(&mut self, error: io::Error) {
        self.has_refused = true;
        self.quiet = 0;
        self.status.problem = error.to_string();
        // The resolver reports why a name has no address.
        if self.target.has_address() {
            self.problem.get_or_insert(error);
        }
    }

    /// Counts datagrams as not sent, but for announcements: they have no packets.
    fn not_sent(&mut self, ends: &[End]) {
        let lost = ends.iter().filter(|end| !end.is_announcement);
        self.status.not_sent += lost.count() as u64;
    }

    /// Adds a datagram; several leave together.
    pub(super) fn put(&mut self, datagram: &[u8]) {
        self.add(datagram, false);
    }

    /// The same, of an announcement.
    pub(super) fn announce(&mut self, datagram: &[u8]) {
        self.add(datagram, true);
    }

    fn add(&mut self, datagram: &[u8], is_announcement: bool) {
        let bytes = &mut self.pending[0].bytes;
        let before = bytes.len();
        let has_key = match &mut self.sealing {
            Some(sealing) => sealing.seal(datagram, bytes),
            None => {
                bytes.extend_from_slice(datagram);
                true
            }
        };
        let added = bytes.len() - before;
        match has_key {
            true => self.end(0, added, is_announcement),
            false => self.status.not_sent += u64::from(!is_announcement),
        }
    }

    /// Adds a frame in VXLAN, which leaves by one of the sockets.
    pub(super) fn put_frame(&mut self, way: usize, header: &[u8], frame: &[u8]) {
        let bytes = &mut self.pending[way].bytes;
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(frame);
        self.end(way, header.len() + frame.len(), false);
    }

    /// How many sockets there are.
    pub(super) fn ways(&self) -> usize {
        self.pending.len()
    }

    fn end(&mut self, way: usize, added: usize, is_announcement: bool) {
        let pending = &mut self.pending[way];
        pending.ends.push(End {
            at: pending.bytes.len(),
            is_announcement,
        });
        let (datagrams, bytes) = &mut self.waiting;
        *datagrams += 1;
        *bytes += added;
        // All of them together: those of one socket then come at most a burst before those of another.
        if *datagrams >= BURST || *bytes >= BURST_BYTES {
            self.flush();
        }
    }

    /// Sends what waits.
    pub(super) fn flush(&mut self) {
        self.waiting = (0, 0);
        for way in 0..self.pending.len() {
            let mut pending = std::mem::take(&mut self.pending[way]);
            self.send(way, &pending);
            pending.bytes.clear();
            pending.ends.clear();
            self.pending[way] = pending;
        }
    }

    fn send(&mut self, way: usize, pending: &Pending) {
        let ends = &pending.ends;
        let (mut next, mut waits, mut refused) = (0, 0, 0);
        while next < ends.len() {
            let Some(socket) = self.target.socket(way) else {
                self.not_sent(&ends[next..]);
                break;
            };
            let runs = pending.runs(next, if self.merges { self.carried } else { 0 });
            let messages: Vec<Message<'_>> = runs.iter().map(|run| pending.message(run)).collect();
            let to = socket::Destination::Own;
            match send_many::<BURST>(socket, &to, &messages, true) {
                Ok(sent) => {
                    let gone = next..runs[sent - 1].end;
                    self.status.bytes += pending.datagrams(gone.clone()).len() as u64;
                    next = gone.end;
                    let gone = &ends[gone];
                    let announcements = gone.iter().filter(|end| end.is_announcement).count();
                    self.status.announcements += announcements as u64;
                    self.status.datagrams += (gone.len() - announcements) as u64;
                }
                Err(error) if runs[0].len() > 1 && refuses_runs(&error) => self.merges = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // That is about a datagram before: this one is still here.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && refused < BURST => {
                    refused += 1;
                    self.status.not_sent += 1;
                    self.status.datagrams = self.status.datagrams.saturating_sub(1);
                    self.refused(error);
                }
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock && self.waits && waits < WAITS =>
                {
                    waits += 1;
                    let limit = Duration::from_millis(100);
                    let _ = socket::wait(socket, true, limit);
                }
                // Longer than the path carries: those after may fit, and later ones will.
                Err(error)
                    if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) =>
                {
                    self.status.not_sent += u64::from(!ends[next].is_announcement);
                    next += 1;
                }
                Err(error) => {
                    self.not_sent(&ends[next..]);
                    next = ends.len();
                    self.is_cut_off |= error.kind() != ErrorKind::WouldBlock;
                    self.refused(error);
                }
            }
        }
    }
}

/// Whether that is about a message which was to be cut: a kernel before 4.18 or a device that cannot, or datagrams
/// longer than the path carries. One by one, each says for itself.
fn refuses_runs(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let refusals = [Errno::IO, Errno::INVAL, Errno::MSGSIZE];
    let refusals = refusals.map(|refusal| Some(refusal.raw_os_error()));
    refusals.contains(&error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::fd::AsFd;

    use strata_control::config::NamedDestination;
    use strata_sys::socket::{Received, Receiver};

    use super::super::target::DATAGRAM_MAX;
    use super::*;

    /// An outbox that sends to this socket.
    fn outbox(receiver: &UdpSocket) -> Outbox {
        let to = format!("udp://{}", receiver.local_addr().unwrap());
        let target = Target::open(&named(&to), true);
        Outbox::new(target.unwrap(), false, None).unwrap()
    }

    fn named(to: &str) -> NamedDestination {
        NamedDestination {
            name: "here".parse().unwrap(),
            destination: to.parse().unwrap(),
            address: None,
        }
    }

    /// Datagrams that arrive, and as how many messages of the kernel.
    fn received(socket: &UdpSocket, count: usize) -> (Vec<Vec<u8>>, usize) {
        let (mut all, mut messages) = (Vec::new(), 0);
        let mut receiver = Receiver::<4>::default();
        let limit = Duration::from_secs(60);
        while all.len() < count && socket::wait(socket.as_fd(), false, limit).unwrap() {
            let take = |one: &Received<'_>| {
                let each = one.segment.unwrap_or(one.bytes.len());
                all.extend(one.bytes.chunks(each).map(<[u8]>::to_vec));
                messages += 1;
            };
            receiver.receive(socket.as_fd(), take).unwrap();
        }
        (all, messages)
    }

    fn receiver() -> UdpSocket {
        socket::udp((Ipv4Addr::LOCALHOST, 0).into(), 1 << 20).unwrap()
    }

    /// The port is closed: loopback says so at once.
    #[test]
    fn a_destination_that_refuses_is_a_problem_while_it_does() {
        let receiver = receiver();
        let mut outbox = outbox(&receiver);
        let address = receiver.local_addr().unwrap();
        drop(receiver);
        for _ in 0..3 {
            outbox.put(b"datagram");
            outbox.flush();
        }
        outbox.measure();
        let status = &outbox.status;
        assert!(status.not_sent > 0);
        assert!(status.problem.contains("refused"), "{}", status.problem);
        let _receiver = UdpSocket::bind(address).unwrap();
        // What is known of the datagram before comes with the next one.
        for _ in 0..2 {
            outbox.put(b"datagram");
            outbox.flush();
            outbox.measure();
        }
        assert_eq!(outbox.status.problem, "");
    }

    /// What cannot be sent until there is an address, and a way to it, is counted, but for announcements.
    #[test]
    fn a_destination_is_reached_when_it_can_be() {
        let nowhere = "udp://no.such.invalid:4740";
        assert!(Target::open(&named(nowhere), true).is_err());
        let target = Target::open(&named(nowhere), false).unwrap();
        let mut outbox = Outbox::new(target, false, None).unwrap();
        let put = |outbox: &mut Outbox| {
            outbox.put(b"datagram");
            outbox.announce(b"who");
            outbox.flush();
        };
        assert_eq!(outbox.reach(), None);
        outbox.measure();
        put(&mut outbox);
        assert_eq!(outbox.status.not_sent, 1);
        assert!(outbox.status.problem.contains("address of its name"));
        assert!(outbox.take_news().is_none(), "an agent says why");
        // No socket may send there without that option.
        outbox.use_address(Some((Ipv4Addr::BROADCAST, 1).into()));
        assert_eq!(outbox.reach(), None);
        outbox.measure();
        put(&mut outbox);
        assert_eq!(outbox.status.not_sent, 2);
        assert!(matches!(outbox.take_news(), Some(News::Problem(_))));
        assert_eq!(outbox.reach(), None);
        assert!(outbox.take_news().is_none(), "told once");
        let receivers = [receiver(), receiver()];
        for receiver in &receivers {
            let address = receiver.local_addr().unwrap();
            outbox.use_address(Some(address));
            assert_eq!(outbox.reach().unwrap().to, address);
            assert_eq!(outbox.reach(), None, "the same socket");
            outbox.use_address(None);
            assert_eq!(outbox.reach(), None, "the same address");
            put(&mut outbox);
            assert_eq!(received(receiver, 2).0, [&b"datagram"[..], b"who"]);
        }
        let status = &outbox.status;
        assert_eq!(
            (status.not_sent, status.datagrams, status.announcements),
            (2, 2, 2)
        );
        for _ in 0..=OVER {
            assert!(outbox.take_news().is_none());
            outbox.measure();
        }
        assert!(matches!(outbox.take_news(), Some(News::Over)));
        assert!(outbox.take_news().is_none() && outbox.status.problem.is_empty());
    }

    /// What is counted as sent is what arrives, announcements apart.
    #[test]
    fn what_is_sent_arrives_and_is_counted_by_its_kind() {
        let receiver = receiver();
        let mut outbox = outbox(&receiver);
        let mut expected = Vec::new();
        for number in 0_u8..100 {
            let datagram = vec![number; 10 + usize::from(number)];
            match number % 3 {
                0 => outbox.announce(&datagram),
                1 => outbox.put(&datagram),
                _ => outbox.put_frame(0, &datagram[..4], &datagram[4..]),
            }
            expected.push(datagram);
        }
        outbox.flush();
        assert!(received(&receiver, 100).0 == expected);
        let status = &outbox.status;
        assert_eq!((status.announcements, status.datagrams), (34, 66));
        assert_eq!(status.not_sent, 0);
        let bytes: usize = expected.iter().map(Vec::len).sum();
        assert_eq!(status.bytes, bytes as u64);
    }

    /// Datagrams of one length leave as one message, and arrive as they would alone, also if the kernel refuses that.
    #[test]
    fn runs_leave_as_one_message_unless_the_kernel_refuses() {
        for is_refused in [false, true] {
            let receiver = receiver();
            let mut outbox = outbox(&receiver);
            if is_refused {
                // It cuts only what it makes checksums for (udp_send_skb).
                let fd = outbox.target.socket(0).unwrap();
                socket::set_number(fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
            }
            let lens = (0..62).map(|at| if at == 40 { 30 } else { 700 });
            let expected: Vec<Vec<u8>> = (0..).zip(lens).map(|(at, len)| vec![at; len]).collect();
            for datagram in &expected {
                outbox.put(datagram);
            }
            let pending = &outbox.pending[0];
            assert_eq!(pending.runs(0, 700), [0..41, 41..62]);
            assert_eq!(pending.runs(41, 700).len(), 1);
            // Longer than the path carries: they leave in fragments.
            assert_eq!(pending.runs(0, 699).len(), 62);
            outbox.flush();
            let (arrived, messages) = received(&receiver, expected.len());
            assert!(arrived == expected);
            assert_eq!(messages, if is_refused { 62 } else { 2 });
            let status = &outbox.status;
            assert_eq!((status.datagrams, status.not_sent), (62, 0));
            assert_eq!(outbox.merges, !is_refused);
        }
    }

    /// No message is longer than IP can say, and none has more datagrams than the kernel takes.
    #[test]
    fn runs_have_bounds() {
        let receiver = receiver();
        let mut outbox = outbox(&receiver);
        for len in [1, 9, 1472, 8952, 30_000] {
            for number in 0..200 {
                outbox.put(&vec![number; len]);
                let pending = &outbox.pending[0];
                for run in pending.runs(0, DATAGRAM_MAX) {
                    assert!(run.len() <= BURST && pending.datagrams(run).len() <= DATAGRAM_MAX);
                }
            }
            outbox.flush();
            assert_eq!(outbox.status.not_sent, 0, "of {len} bytes");
            let sent = outbox.status.datagrams;
            assert_eq!(sent, 200, "of {len} bytes");
            outbox.status.datagrams = 0;
        }
    }
}
