//! Who sends: what is known and counted of each interface of each sender.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use strata_control::agent_client::{
    CollectedSession, CollectorReport, NAME_BYTES_MAX, SESSIONS_MAX as REPORTED_MAX,
};
use strata_control::{RefusedStatus, SenderStatus};
use strata_exporter::{Announcement, Datagram, Kind, SealError, Sequence};
use strata_role::{Notice, Tell};
use strata_wire::pcapng::options::{self, code};
use strata_wire::{Interface, KeepKind, LinkType};

/// Interfaces of senders at most; of more, one that is silent is forgotten, or the new one refused.
const SENDERS_MAX: usize = 4096;
/// Interfaces that may be forgotten have been silent for this long.
const SILENT: Duration = Duration::from_secs(60);
/// The interval of searches for them: strangers must not make it busy.
const SEARCH_EVERY: Duration = Duration::from_millis(100);
/// Sessions of an interface: the latest are remembered, for datagrams that come late.
const SESSIONS_MAX: usize = 4;

/// `if_MACaddr` (draft-ietf-opsawg-pcapng, section 4.2).
const IF_MAC_ADDRESS: u16 = 6;

/// What a collector counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CollectorCounts {
    /// Packets that were to be written.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that could not be written, or are still in memory.
    pub not_written: u64,
    /// Datagrams that name the sender, and have no sequence number.
    pub announcements: u64,
    /// Datagrams of addresses that are not listened to.
    pub strangers: u64,
    /// Datagrams that are not of this format, or damaged.
    pub unreadable: u64,
    /// Datagrams in clear, or forged, where they have to be encrypted.
    pub forged: u64,
    /// Datagrams that were encrypted at a time other than now.
    pub old: u64,
    /// Datagrams that came twice, too late, or contradict those before.
    pub refused: u64,
    /// Datagrams of interfaces beyond those that are remembered.
    pub too_many: u64,
    /// Datagrams, or runs of them, that found the socket's buffer full.
    pub socket_drops: u64,
}

impl CollectorCounts {
    /// Counts a datagram that could not be decrypted.
    pub(super) fn sealed(&mut self, error: SealError) {
        let count = match error {
            SealError::Clear | SealError::NoKey | SealError::Forged => &mut self.forged,
            SealError::Old => &mut self.old,
            SealError::Repeated => &mut self.refused,
            SealError::TooMany => &mut self.too_many,
        };
        *count += 1;
    }

    /// Datagrams that were not accepted.
    #[must_use]
    pub fn refused(&self) -> RefusedStatus {
        RefusedStatus {
            strangers: self.strangers,
            forged: self.forged,
            old: self.old,
            unreadable: self.unreadable,
            repeated: self.refused,
            too_many: self.too_many,
        }
    }
}

/// What was handed out of a datagram, or of several.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// Packets without all their bytes.
    pub(super) cut: u64,
}

impl Taken {
    fn add(&mut self, more: Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.packets, more.packets);
        add(&mut self.bytes, more.bytes);
        add(&mut self.cut, more.cut);
    }
}

/// A run of a sender: numbers begin at 0 in each.
#[derive(Debug, Default)]
struct Session {
    number: u32,
    headers: Sequence,
    packets: Sequence,
    taken: Taken,
    /// As last announced.
    dropped: u64,
    /// Whether its end was announced.
    has_ended: bool,
}

/// An interface of a sender.
#[derive(Debug)]
struct Origin {
    announced: Option<Announcement>,
    /// Its numbers in what is written, with what it was written as: of headers, and of packets.
    written: [Option<(u16, LinkType, String)>; 2],
    /// The latest last.
    sessions: Vec<Session>,
    /// Sums of sessions that are forgotten.
    earlier: Sums,
    heard: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    taken: Taken,
    lost: u64,
    before: u64,
    datagrams: u64,
    lost_datagrams: u64,
    dropped: u64,
    sessions: u64,
    broken_off: u64,
}

impl Sums {
    /// Numbers are what senders say: sums of forged ones end at the largest there is.
    fn add(&mut self, session: &Session) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        self.sessions += 1;
        self.broken_off += u64::from(!session.has_ended);
        let mut arrived = 0;
        for counters in [session.headers.counters(), session.packets.counters()] {
            arrived += counters.packets;
            add(&mut self.lost, counters.lost);
            add(&mut self.before, counters.before);
            add(&mut self.datagrams, counters.datagrams);
            add(&mut self.lost_datagrams, counters.lost_datagrams);
        }
        self.taken.add(session.taken);
        add(&mut self.dropped, session.dropped);
        // In datagrams that arrived: what was damaged, or of which other pieces did not arrive.
        add(
            &mut self.lost,
            arrived.saturating_sub(session.taken.packets),
        );
    }
}

/// All senders.
pub(super) struct Senders {
    known: HashMap<(IpAddr, u32), Origin>,
    /// Interfaces that were forgotten, and their number, which may be larger.
    gone: Vec<SenderStatus>,
    forgotten: u64,
    /// Packets that are missing of these.
    forgotten_lost: u64,
    /// When one to be forgotten was last looked for.
    searched: Instant,
    next_interface: u16,
    /// Whether headers of an interface are written as an interface of their own.
    splits: bool,
    pub(super) counts: CollectorCounts,
    tell: Tell,
    has_told_collision: bool,
}

impl Senders {
    pub(super) fn new(splits: bool, tell: Tell) -> Self {
        Self {
            known: HashMap::new(),
            gone: Vec::new(),
            forgotten: 0,
            forgotten_lost: 0,
            searched: Instant::now(),
            next_interface: 0,
            splits,
            counts: CollectorCounts::default(),
            tell,
            has_told_collision: false,
        }
    }

    /// The interface of a sender, new or known; `None` if there are too many.
    fn from(&mut self, sender: IpAddr, identity: u32) -> Option<&mut Origin> {
        let key = (sender, identity);
        if self.known.len() >= SENDERS_MAX && !self.known.contains_key(&key) && !self.forget() {
            self.counts.too_many += 1;
            return None;
        }
        let is_elsewhere = |&(other, number): &(IpAddr, u32)| number == identity && other != sender;
        let from = match self.known.entry(key) {
            Entry::Occupied(_) => self.known.get_mut(&key),
            Entry::Vacant(_) => {
                if !self.has_told_collision && self.known.keys().any(is_elsewhere) {
                    self.has_told_collision = true;
                    (self.tell)(&Notice::warning(format!(
                        "identity {identity} is used by {sender} and by another address; the packets of \
                         the two are kept apart here, but a VXLAN receiver would mix them. Unless \
                         one host has changed its address, give each host its own range of numbers \
                         (export.identity); if these are agents, see whether `strata controller \
                         agents` names a copied directory"
                    )));
                }
                self.known.insert(key, Origin::new());
                self.known.get_mut(&key)
            }
        };
        let from = from?;
        from.heard = Instant::now();
        Some(from)
    }

    /// Forgets the interface that has been silent for longest, if that is long enough.
    fn forget(&mut self) -> bool {
        if self.searched.elapsed() < SEARCH_EVERY {
            return false;
        }
        self.searched = Instant::now();
        let oldest = self.known.iter().min_by_key(|(_, from)| from.heard);
        let oldest = oldest.filter(|(_, from)| from.heard.elapsed() >= SILENT);
        let Some(key) = oldest.map(|(key, _)| *key) else {
            return false;
        };
        if let Some(from) = self.known.remove(&key) {
            self.forgotten += 1;
            let status = from.status(key);
            self.forgotten_lost = self.forgotten_lost.saturating_add(status.lost);
            if self.gone.len() < SENDERS_MAX && has_sent(&status) {
                self.gone.push(status);
            }
        }
        true
    }

    /// Remembers who an identity is.
    pub(super) fn announced(&mut self, sender: IpAddr, announcement: Announcement) {
        self.counts.announcements += 1;
        if let Some(from) = self.from(sender, announcement.source.identity) {
            let session = from.session(announcement.source.session);
            // One that comes late says less.
            session.dropped = session.dropped.max(announcement.dropped);
            session.has_ended |= announcement.has_ended;
            session.headers.announced(announcement.headers);
            session.packets.announced(announcement.packets);
            from.announced = Some(announcement);
        }
    }

    /// The number of the interface that a datagram's packets are of; `None` if it is not to be read.
    /// An interface that is new in what is written goes to `write` first.
    pub(super) fn accept(
        &mut self,
        sender: IpAddr,
        datagram: &Datagram,
        write: &mut dyn FnMut(u16, &Interface),
    ) -> Option<u16> {
        let (next, splits) = (self.next_interface, self.splits);
        let from = self.from(sender, datagram.source.identity)?;
        let session = from.session(datagram.source.session);
        let accepted = session.accept(datagram);
        if !accepted {
            self.counts.refused += 1;
            return None;
        }
        let name = from.name(sender, datagram.source.identity);
        let place = usize::from(splits && datagram.kind != Kind::Headers);
        if let Some((number, link, as_name)) = &from.written[place]
            && *link == datagram.link
            && *as_name == name
        {
            return Some(*number);
        }
        if next == u16::MAX {
            self.counts.too_many += 1;
            return None;
        }
        let mut interface = from.interface(sender, datagram, &name);
        if splits {
            interface.set_kept(match datagram.kind {
                Kind::Headers => KeepKind::Header,
                Kind::Packets | Kind::Announcement => KeepKind::Partial,
            });
        }
        write(next, &interface);
        from.written[place] = Some((next, datagram.link, name));
        self.next_interface = next + 1;
        Some(next)
    }

    /// These packets of a datagram that was accepted were handed out.
    pub(super) fn taken(&mut self, sender: IpAddr, datagram: &Datagram, taken: Taken) {
        if let Some(from) = self.known.get_mut(&(sender, datagram.source.identity)) {
            from.session(datagram.source.session).taken.add(taken);
        }
    }

    /// What is known of each interface, by sender and identity; the number of those that were forgotten, and of the
    /// packets that are missing of them.
    pub(super) fn status(&self) -> (Vec<SenderStatus>, u64, u64) {
        let known = self.known.iter();
        let mut list: Vec<SenderStatus> = known.map(|(key, from)| from.status(*key)).collect();
        list.sort_by_cached_key(order);
        (list, self.forgotten, self.forgotten_lost)
    }

    /// What is known of each session, for the controller: of too many, those that were heard of last.
    pub(super) fn report(&self, counts: &CollectorCounts) -> CollectorReport {
        let mut known: Vec<(&u32, &Origin)> = self
            .known
            .iter()
            .map(|((_, identity), from)| (identity, from))
            .collect();
        known.sort_by_key(|(_, from)| std::cmp::Reverse(from.heard));
        let of = |(identity, from): (&u32, &Origin)| -> Vec<CollectedSession> {
            let name = from.announced.as_ref().map_or_else(String::new, shown);
            let sessions = from.sessions.iter();
            sessions
                .map(|session| session.collected(*identity, &name))
                .collect()
        };
        let mut sessions: Vec<CollectedSession> = Vec::new();
        let mut places = HashMap::new();
        for session in known.into_iter().flat_map(of) {
            let key = (session.identity, session.session);
            match places.get(&key) {
                Some(&place) => merge(&mut sessions[place], &session),
                None => {
                    places.insert(key, sessions.len());
                    sessions.push(session);
                }
            }
        }
        let left_out = sessions.len().saturating_sub(REPORTED_MAX) as u64;
        sessions.truncate(REPORTED_MAX);
        let not_accepted = [
            counts.strangers,
            counts.forged,
            counts.old,
            counts.unreadable,
            counts.refused,
            counts.too_many,
        ];
        CollectorReport {
            program: env!("CARGO_PKG_VERSION").to_owned(),
            run: 0,
            was_refused: false,
            sessions,
            not_accepted: not_accepted.iter().sum(),
            not_written: counts.not_written,
            socket_drops: counts.socket_drops,
            left_out,
        }
    }

    /// Those from which something was exported, by sender and identity, with those that were forgotten.
    pub(super) fn into_list(self) -> Vec<SenderStatus> {
        let (known, ..) = self.status();
        let mut list = self.gone;
        list.extend(known.into_iter().filter(has_sent));
        list.sort_by_cached_key(order);
        list
    }
}

fn has_sent(from: &SenderStatus) -> bool {
    from.datagrams > 0 || from.lost > 0
}

/// In which senders are listed.
fn order(from: &SenderStatus) -> (Option<IpAddr>, u32) {
    (from.sender.parse().ok(), from.identity)
}

/// Adds what came of a session from another address, which its sender had before or has now. Its numbers went on: those
/// of before the first datagram from there are, or are not, among those from here.
fn merge(into: &mut CollectedSession, other: &CollectedSession) {
    let known = into.accounted().max(other.accounted());
    into.packets = into.packets.saturating_add(other.packets);
    into.before = into.before.min(other.before);
    let found = into.packets.saturating_add(into.before);
    into.lost = known.saturating_sub(found);
}

/// As much of a name as a controller takes.
fn shortened(name: &str) -> String {
    let mut short = String::new();
    for letter in name.chars().filter(|letter| !letter.is_control()) {
        if short.len() + letter.len_utf8() > NAME_BYTES_MAX {
            break;
        }
        short.push(letter);
    }
    short
}

impl Session {
    /// For the controller.
    fn collected(&self, identity: u32, name: &str) -> CollectedSession {
        let mut sums = Sums::default();
        sums.add(self);
        CollectedSession {
            identity,
            session: self.number,
            name: shortened(name),
            packets: sums.taken.packets,
            lost: sums.lost,
            before: sums.before,
        }
    }

    fn accept(&mut self, datagram: &Datagram) -> bool {
        match datagram.kind {
            Kind::Headers => self.headers.accept(datagram),
            Kind::Packets | Kind::Announcement => self.packets.accept(datagram),
        }
    }
}

impl Origin {
    fn new() -> Self {
        Self {
            announced: None,
            written: [None, None],
            sessions: Vec::new(),
            earlier: Sums::default(),
            heard: Instant::now(),
        }
    }

    fn session(&mut self, number: u32) -> &mut Session {
        let place = match self
            .sessions
            .iter()
            .position(|known| known.number == number)
        {
            Some(place) => place,
            None => {
                if self.sessions.len() >= SESSIONS_MAX {
                    self.earlier.add(&self.sessions.remove(0));
                }
                self.sessions.push(Session {
                    number,
                    ..Session::default()
                });
                self.sessions.len() - 1
            }
        };
        &mut self.sessions[place]
    }

    /// Names of host and interface, or what stands for them.
    fn name(&self, sender: IpAddr, identity: u32) -> String {
        match &self.announced {
            Some(known) => shown(known),
            None => format!("{sender}:{identity}"),
        }
    }

    /// As it is written.
    fn interface(&self, sender: IpAddr, datagram: &Datagram, name: &str) -> Interface {
        let mut interface = Interface::new(datagram.link, 0);
        let identity = datagram.source.identity;
        let mut description = format!("identity {identity} from {sender}");
        if let Some(known) = &self.announced {
            if known.index > 0 {
                description += &format!(", interface {}", known.index);
            }
            for name in [&known.alias, &known.behind] {
                if !name.is_empty() {
                    description += &format!(", {name}");
                }
            }
        }
        let list = &mut interface.options;
        for (code, text) in [(code::IF_NAME, name), (code::IF_DESCRIPTION, &description)] {
            options::push(list, code, text.as_bytes()).expect("names are short");
        }
        if let Some(known) = self.announced.as_ref().filter(|known| known.mac != [0; 6]) {
            options::push_fixed(list, IF_MAC_ADDRESS, known.mac);
        }
        interface
    }

    fn status(&self, (sender, identity): (IpAddr, u32)) -> SenderStatus {
        let mut sums = self.earlier;
        self.sessions.iter().for_each(|session| sums.add(session));
        // The latest may go on.
        let is_on = self.sessions.last().is_some_and(|last| !last.has_ended);
        sums.broken_off -= u64::from(is_on);
        SenderStatus {
            sender: sender.to_string(),
            identity,
            name: self.announced.as_ref().map_or_else(String::new, shown),
            packets: sums.taken.packets,
            bytes: sums.taken.bytes,
            cut: sums.taken.cut,
            lost: sums.lost,
            before: sums.before,
            datagrams: sums.datagrams,
            lost_datagrams: sums.lost_datagrams,
            dropped: sums.dropped,
            sessions: sums.sessions,
            broken_off: sums.broken_off,
            silent_seconds: self.heard.elapsed().as_secs_f64(),
        }
    }
}

/// Host and interface; a capture file's interfaces often have no name.
fn shown(announcement: &Announcement) -> String {
    let Announcement {
        host, interface, ..
    } = announcement;
    match interface.is_empty() {
        true => host.clone(),
        false => format!("{host}:{interface}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(packets: u64, lost: u64, before: u64) -> CollectedSession {
        CollectedSession {
            packets,
            lost,
            before,
            ..CollectedSession::default()
        }
    }

    /// Numbers 0 to 9 came from one address but for two, 15 to 29 from another but for one.
    #[test]
    fn a_sender_that_changes_its_address_is_counted_once() {
        for (mut one, other) in [
            (session(8, 2, 0), session(14, 1, 15)),
            (session(14, 1, 15), session(8, 2, 0)),
        ] {
            merge(&mut one, &other);
            assert_eq!(one, session(22, 8, 0));
        }
    }

    #[test]
    fn names_are_as_long_as_a_controller_takes() {
        assert_eq!(shortened("web-1:tap0"), "web-1:tap0");
        let long = shortened(&"ä".repeat(300));
        assert!(long.len() <= NAME_BYTES_MAX && long.len() > NAME_BYTES_MAX - 2);
    }
}
