//! The collectors of a translator, at the other end of RDMA connections.

mod generations;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::api::status::LinkStatus;
use strata_dta::key_increment::largest::{Kept, Largest};
use strata_dta::protocol::packed::stated_count;
use strata_dta::protocol::{Datagram, Primitive, Report};
use strata_dta::{Operation, Operations, Origin, Remote, RemoteCounters, Room, Sink, Translator};
use strata_rdma::Failure;
use strata_role::{At as _, Result, RoleError, Tell};
use strata_sys::socket;
use strata_wire::{clamped, exact};

use super::connector::{Connector, Event, Granted, Identity, MTU, Opened, WINDOW};
use super::event::{self, Told};
use super::link::{Link, exchange, write_largest};
use super::turns::Turns;
use crate::service::notices::collector;
use crate::service::pushing::{Budget, count_of, each, is_immediate};
use crate::store::candidates;
use crate::store::counted::counted;
use crate::store::plan::{Manifest, NamedList, Plan};
use crate::store::share::Share;

/// How long reports wait for operations to be acknowledged, before they are dropped.
const ROOM_WAIT: Duration = Duration::from_millis(100);
/// Between looks at connections meanwhile.
const ROOM_LOOK: Duration = Duration::from_millis(1);
/// How long the start waits for that.
const GRANT_WAIT: Duration = Duration::from_secs(10);
/// Between looks at the stop flag while collectors connect.
const STOP_LOOK: Duration = Duration::from_millis(50);
/// Maximum number of operations of a report: copies of a value, or of two paths and a word of the dictionary.
const OPERATIONS_MAX: usize = 9;

/// All collectors.
pub(crate) struct Collectors {
    remotes: Vec<Remote>,
    links: Vec<Link>,
    events: Receiver<(usize, Event)>,
    /// Those whose connections have failed, and why, until that is reported.
    failed: Vec<(usize, String)>,
    /// Immediate reports that are looked at.
    budget: Budget,
    told: u64,
    untold: u64,
    now_ns: u64,
    started: Instant,
    plan: Plan,
    /// Of stores with generations.
    turns: Option<Turns>,
    /// Whether another generation has begun, until that is taken note of.
    has_turned: bool,
    /// Since when collectors are waited for to begin one.
    turning_since: Option<Instant>,
}

/// The lists of one of several collectors, under the numbers that they have there: list L of all is
/// list L / C of collector L mod C.
pub(crate) fn lists_of(lists: &[NamedList], collector: usize, collectors: usize) -> Vec<NamedList> {
    let collectors = exact::<u32>(collectors);
    let here = lists
        .iter()
        .filter(|list| list.number % collectors == exact::<u32>(collector));
    here.map(|list| NamedList {
        number: list.number / collectors,
        ..list.clone()
    })
    .collect()
}

impl Collectors {
    /// Connects to all of them, each of which has `opened` or is tried again.
    pub(crate) fn start(
        opened: Vec<(SocketAddr, Option<Opened>)>,
        identity: &Identity,
        (manifest, plan): (&Manifest, &Plan),
        reporters: usize,
        started: Instant,
    ) -> Result<Self> {
        let (sender, events) = mpsc::channel();
        let count = opened.len();
        let write_len_max = [
            plan.key_write.slot_len(),
            plan.postcarding.chunk_len(),
            plan.append.slot_len(),
        ];
        let write_len_max = write_len_max.into_iter().fold(64, usize::max);
        let link = |(index, (address, opened)): (usize, (SocketAddr, Option<Opened>))| {
            let lists = lists_of(&manifest.lists, index, count);
            let manifest = manifest
                .of_collector(lists, Share::new(index, count))
                .text();
            let events = (index, sender.clone());
            Ok(Link {
                address,
                connector: Connector::start(address, identity.clone(), manifest, opened, events)?,
                port: None,
                connections: 0,
                problem: None,
                written: Vec::new(),
                others: 0,
                entries: 0,
                events: 0,
                told: 0,
                untold: 0,
                granted: None,
            })
        };
        let links = opened.into_iter().enumerate().map(link);
        Ok(Self {
            links: links.collect::<Result<_>>()?,
            remotes: (0..count)
                .map(|_| Remote::unconnected(write_len_max, MTU, reporters))
                .collect(),
            events,
            failed: Vec::new(),
            budget: Budget::new(),
            told: 0,
            untold: 0,
            now_ns: 0,
            started,
            plan: plan.clone(),
            turns: Turns::new(plan, count),
            has_turned: false,
            turning_since: None,
        })
    }

    /// Generations, if stores have several.
    pub(crate) fn turns(&self) -> Option<&Turns> {
        self.turns.as_ref()
    }

    /// Whether another generation has begun since the last time.
    pub(crate) fn take_turned(&mut self) -> bool {
        std::mem::take(&mut self.has_turned)
    }

    /// One for each collector.
    pub(crate) fn sinks(&mut self) -> &mut [Remote] {
        &mut self.remotes
    }

    fn look_at_clock(&mut self) {
        self.now_ns = exact::<u64>(self.started.elapsed().as_nanos());
        for remote in &mut self.remotes {
            remote.set_now(self.now_ns);
        }
    }

    /// Waits a little, if this datagram may need more operations than its collectors can take now.
    pub(crate) fn make_room(&mut self, datagram: &[u8]) {
        let operation = match Primitive::of(datagram) {
            Some(Primitive::KeyIncrement) => Operation::FetchAdd,
            _ => Operation::Write,
        };
        let count = stated_count(datagram).map_or(1, usize::from);
        // More than half a window is never waited for: the rest is dropped, and asked for again.
        let needed = (count * OPERATIONS_MAX).min(WINDOW / 2);
        if self.has_room(operation, needed) {
            return;
        }
        let start = Instant::now();
        loop {
            self.look_at_clock();
            self.exchange();
            if self.has_room(operation, needed) || start.elapsed() > ROOM_WAIT {
                return;
            }
            // An error of a socket is one of its connection, which the next exchange finds.
            let _ = socket::wait_any(self.sockets(), ROOM_LOOK);
        }
    }

    /// Whether every collector that is there can take `needed` operations.
    fn has_room(&self, operation: Operation, needed: usize) -> bool {
        self.remotes
            .iter()
            .all(|remote| match remote.room(operation) {
                Room::Operations(room) => room >= needed,
                Room::Gone => true,
            })
    }

    /// Sends what waits, takes answers, connects and disconnects.
    pub(crate) fn turn(&mut self, translator: &mut Translator, tell: &Tell) {
        self.look_at_clock();
        while let Ok((index, event)) = self.events.try_recv() {
            self.happened(index, event, translator, tell);
        }
        self.begin_generations(translator, tell);
        self.exchange();
        for (index, why) in std::mem::take(&mut self.failed) {
            self.links[index].connector.again();
            self.away(index, why, tell);
            self.look_at_turns(translator, tell);
        }
    }

    fn connected(
        &mut self,
        index: usize,
        granted: Granted,
        translator: &mut Translator,
        tell: &Tell,
    ) {
        let Granted {
            requester,
            port,
            qpn,
            va,
            rkey,
            ends,
            events,
            largest,
            others,
            values,
            generation,
        } = granted;
        let youngest = self.youngest();
        // What it says of the keys with large counts is of the generation that it had.
        let has_it = youngest
            .is_none_or(|youngest| generation.is_some_and(|(number, _)| number == youngest.number));
        let (largest, others) = match has_it {
            true => (largest, others),
            false => (Vec::new(), Some(0)),
        };
        let generation = youngest.map_or(0, |youngest| youngest.index);
        let offset = self
            .plan
            .generations()
            .map_or(0, |all| all.offset(generation));
        let len = exact::<usize>(self.plan.dictionary.len);
        translator.continue_values(index, values.into_iter().take(len));
        let collectors = exact::<u32>(self.links.len());
        for (list, end) in ends {
            let list = list
                .checked_mul(collectors)
                .and_then(|list| list.checked_add(exact::<u32>(index)));
            if let Some(list) = list {
                translator.continue_list(list, end);
            }
        }
        let link = &mut self.links[index];
        link.port = Some((port, qpn));
        link.connections += 1;
        link.problem = None;
        (link.events, link.told) = (events, 0);
        let remote = &mut self.remotes[index];
        remote.reconnect(requester, va, rkey);
        let rows = candidates::entries(&self.plan, generation).len();
        link.others = candidates::others(others);
        link.written = vec![0; rows];
        for (row, written, ..) in &largest {
            // A collector may say what it likes.
            if let Some(known) = link.written.get_mut(*row) {
                *known = *written;
            }
        }
        let kept = largest.into_iter().map(|(row, _, key, count)| Kept {
            row,
            key,
            place: candidates::place(&self.plan, self.plan.hasher.hash(key.bytes()), offset),
            count,
        });
        remote.keep_largest(Largest::continued(rows, others, kept));
        tell(&collector(link.address, None));
    }

    fn away(&mut self, index: usize, why: String, tell: &Tell) {
        self.remotes[index].disconnect(Failure::Timeout);
        if let Some(turns) = &mut self.turns {
            turns.leave(index);
        }
        let link = &mut self.links[index];
        (link.port, link.granted) = (None, None);
        // Not every second, as long as the reason is the same.
        if link.problem.as_ref() != Some(&why) {
            tell(&collector(link.address, Some(&why)));
        }
        link.problem = Some(why);
    }

    /// Sends what waits and takes answers.
    fn exchange(&mut self) {
        let youngest = self.youngest().map_or(0, |youngest| youngest.index);
        let both = self.links.iter_mut().zip(&mut self.remotes).enumerate();
        for (index, (link, remote)) in both {
            let Some((port, qpn)) = &mut link.port else {
                continue;
            };
            write_largest(
                remote,
                (&self.plan, youngest),
                (&mut link.written, &mut link.others),
                &mut link.entries,
            );
            let done = exchange(remote, port, *qpn, self.now_ns);
            let why = match (done, remote.failure()) {
                (Err(error), _) => error.to_string(),
                (Ok(()), Some(failure)) => failure.to_string(),
                (Ok(()), None) => continue,
            };
            remote.disconnect(Failure::Timeout);
            link.port = None;
            let why = format!("collector {}: {why}", link.address);
            self.failed.push((index, why));
        }
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_settled(&self) -> bool {
        self.remotes.iter().all(Remote::is_settled)
    }

    /// Waits until every collector is connected or has failed to.
    ///
    /// # Errors
    ///
    /// If one refuses: it would do so again and again.
    pub(crate) fn wait_connected(
        &mut self,
        translator: &mut Translator,
        stop: &AtomicBool,
        tell: &Tell,
    ) -> Result<()> {
        let start = Instant::now();
        let is_new = |link: &Link| {
            // One that takes long to begin a generation is not waited for.
            let waits = link.granted.is_none() || start.elapsed() < GRANT_WAIT;
            link.connections == 0 && link.problem.is_none() && waits
        };
        while self.links.iter().any(is_new) && !stop.load(Ordering::Relaxed) {
            match self.events.recv_timeout(STOP_LOOK) {
                Ok((_, Event::Away(error))) if !error.passes() => return Err(error.into()),
                Ok((index, event)) => self.happened(index, event, translator, tell),
                Err(_) => {}
            }
            for (index, why) in std::mem::take(&mut self.failed) {
                self.links[index].connector.again();
                self.away(index, why, tell);
            }
        }
        Ok(())
    }

    fn happened(&mut self, index: usize, event: Event, translator: &mut Translator, tell: &Tell) {
        match event {
            Event::Connected(granted) => self.arrived(index, *granted, translator, tell),
            Event::Away(error) => {
                self.away(index, RoleError::from(error).chain(), tell);
                self.look_at_turns(translator, tell);
            }
            Event::Turned(number) => {
                if let Some(turns) = &mut self.turns {
                    turns.turned(index, number);
                }
                self.look_at_turns(translator, tell);
            }
            Event::Faded(fade) => {
                if let Some(largest) = self.remotes[index].largest() {
                    largest.fade(|count| fade.left_of(count));
                }
            }
        }
    }

    /// Where answers come in.
    pub(crate) fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        let ports = self.links.iter().filter_map(|link| link.port.as_ref());
        ports.map(|(port, _)| port.as_fd()).collect()
    }

    /// Waits for answers.
    pub(crate) fn wait(&self, limit: Duration) -> Result<()> {
        socket::wait_any(self.sockets(), limit).at("cannot wait for answers of collectors")
    }

    /// Whether somebody at a collector wants immediate reports, and this datagram has such.
    #[inline]
    pub(crate) fn wants(&self, datagram: &[u8]) -> bool {
        self.links.iter().any(Link::is_watched) && is_immediate(datagram)
    }

    /// Tells those who want to know of the reports of a datagram, if all of them were `accepted`.
    #[cold]
    pub(crate) fn tell(
        &mut self,
        plan: &Plan,
        reporter: SocketAddr,
        time_ns: u64,
        datagram: &[u8],
        accepted: u64,
    ) {
        let Ok(datagram) = Datagram::new_checked(datagram) else {
            return;
        };
        if !self.budget.takes(count_of(&datagram), accepted) {
            self.untold += accepted;
            for link in self.links.iter_mut().filter(|link| link.is_watched()) {
                link.untold = link.untold.saturating_add(clamped::<u32>(accepted));
            }
            return;
        }
        let collectors = exact::<u32>(self.links.len());
        each(&datagram, |report| {
            let (index, report) = match report {
                Report::Append { list, data } => {
                    let list_there = list / collectors;
                    let report = Report::Append {
                        list: list_there,
                        data,
                    };
                    (exact::<usize>(list % collectors), report)
                }
                Report::KeyWrite { key, .. }
                | Report::KeyIncrement { key, .. }
                | Report::Postcard { key, .. } => {
                    (plan.hasher.hash(key).collector(self.links.len()), report)
                }
            };
            let (link, remote) = (&mut self.links[index], &mut self.remotes[index]);
            if !link.is_watched() {
                return;
            }
            let told = Told {
                time_ns,
                reporter,
                lost: link.untold,
                datagram: &event::datagram(&report),
            };
            let at = exact::<u64>(event::slot_at(link.told));
            if remote.tell(link.events, at, &told.emit(), link.told) {
                link.told = link.told.wrapping_add(1);
                link.untold = 0;
                self.told += 1;
            } else {
                link.untold = link.untold.saturating_add(1);
                self.untold += 1;
            }
        });
    }

    /// Immediate reports that collectors were notified of, and those that they were not.
    pub(crate) fn told(&self) -> (u64, u64) {
        (self.told, self.untold)
    }

    /// Operations of reports at all of them.
    pub(crate) fn operations(&self) -> Operations {
        let mut all = Operations::default();
        for (link, remote) in self.links.iter().zip(&self.remotes) {
            let Operations { writes, additions } = remote.operations();
            all.writes += writes - link.entries;
            all.additions += additions;
        }
        all
    }

    /// What became of a reporter's reports.
    pub(crate) fn counters(&self, origin: Origin) -> RemoteCounters {
        let mut all = RemoteCounters::default();
        for remote in &self.remotes {
            let RemoteCounters { confirmed, lost } = remote.counters()[usize::from(origin.0)];
            all.confirmed += confirmed;
            all.lost += lost;
        }
        all
    }

    /// Each, for `status.json`.
    pub(crate) fn status(&self) -> Vec<LinkStatus> {
        let each = self.links.iter().zip(&self.remotes).map(|(link, remote)| {
            let packets = remote.requester_counters();
            let operations = remote.operations();
            let reports = remote.counters().iter();
            let (confirmed, lost) = reports.fold((0, 0), |(confirmed, lost), one| {
                (confirmed + one.confirmed, lost + one.lost)
            });
            counted! {
                operations => LinkStatus {
                    writes,
                    additions,
                }
                address: Some(link.address.to_string()),
                connected: Some(link.port.is_some()),
                watched: Some(link.is_watched()),
                connections: Some(link.connections),
                problem: link.problem.clone(),
                confirmed: Some(confirmed),
                lost: Some(lost),
                in_flight: Some(remote.in_flight()),
                packets: Some(packets.posted),
                packets_resent: Some(packets.resent),
                timeouts: Some(packets.timeouts),
            }
        });
        each.collect()
    }
}
