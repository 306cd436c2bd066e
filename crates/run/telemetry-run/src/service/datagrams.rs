//! What becomes of datagrams, one after the other.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;

use strata_dta::int::mapping::Mapper;
use strata_dta::protocol::packed::is_packed;
use strata_dta::protocol::{Datagram, Flags, NACK_PORT, Primitive, Report};
use strata_dta::reporter::{Reporter, ReporterOptions};
use strata_dta::{Origin, REDUNDANCY_MAX, Translator};
use strata_role::{At as _, Notice, Result, Tell};
use strata_sys::socket::Receiver;
use strata_wire::{exact, unix_ns};

use super::guard::{Fault, each_guarded};
use super::{BATCH, FROM_INT, Service};
use crate::service::streaming::Streaming;
use crate::service::target::Target;
use crate::store::witnesses::{Found, Witness};

/// Between answers of queries known ahead about packets of which hops may still report.
const SETTLE_NS: u64 = 100_000_000;

/// Telemetry reports of INT, on their way to the translator.
pub(super) struct Int {
    pub(super) socket: Arc<UdpSocket>,
    pub(super) listen: SocketAddr,
    pub(super) mapper: Mapper,
    pub(super) reporter: Reporter,
    pub(super) origin: Origin,
    /// Of the reporter.
    pub(super) session: u8,
    /// Datagrams that ended in a fault.
    pub(super) failed: u64,
    /// When queries known ahead were last answered for what had waited.
    pub(super) settled_ns: u64,
}

impl Service {
    /// Takes datagrams of either socket and of the interface; 0 without any.
    #[inline(never)]
    pub(super) fn receive(&mut self, receiver: &mut Receiver<BATCH>, tell: &Tell) -> Result<usize> {
        let now_ns = self.now_ns();
        let reports = Arc::clone(&self.reports);
        let mut count = receiver
            .receive(reports.as_fd(), |run| {
                let source = canonical(run.source);
                let run = datagrams(run.bytes, run.segment);
                self.datagrams(source, run, now_ns, tell);
            })
            .at("cannot receive reports")?;
        if let Some(mut frames) = self.frames.take() {
            let received = frames.receive(&mut |source, datagram| {
                self.datagrams(source, std::iter::once(datagram), now_ns, tell);
            });
            count = count.saturating_add(received);
            self.frames = Some(frames);
        }
        if let Some(mut int) = self.int.take() {
            let socket = Arc::clone(&int.socket);
            let received = receiver.receive(socket.as_fd(), |run| {
                let source = canonical(run.source);
                each_guarded(
                    &mut (&mut *self, &mut int),
                    datagrams(run.bytes, run.segment),
                    |(service, int), datagram| service.int_datagram(int, source, datagram, now_ns),
                    |(service, int), fault| service.after_int_fault(int, fault, source, tell),
                );
            });
            if now_ns.saturating_sub(int.settled_ns) >= SETTLE_NS {
                int.settled_ns = now_ns;
                self.settle(&mut int, now_ns);
            }
            self.flush_int(&mut int, now_ns);
            self.int = Some(int);
            count = count.saturating_add(received.at("cannot receive INT reports")?);
        }
        Ok(count)
    }

    /// Takes datagrams of reports.
    #[inline]
    fn datagrams<'a>(
        &mut self,
        source: SocketAddr,
        datagrams: impl Iterator<Item = &'a [u8]>,
        now_ns: u64,
        tell: &Tell,
    ) {
        each_guarded(
            self,
            datagrams,
            |service, datagram| service.datagram(source, datagram, now_ns),
            |service, fault| service.after_fault(fault, source, tell),
        );
    }

    /// A datagram of reports ended in a fault: what it left half done is undone, and its reporter's
    /// numbers begin anew.
    #[cold]
    fn after_fault(&mut self, fault: &Fault, source: SocketAddr, tell: &Tell) {
        self.say_fault(fault, source, tell);
        self.nacks.clear();
        if let Some(origin) = self.origin(reporter_of(source, fault.is_packed)) {
            self.translator.after_fault(origin);
        }
    }

    /// As for reports; and what the mapper and the reporter of INT hold, from which others follow.
    #[cold]
    fn after_int_fault(&mut self, int: &mut Int, fault: &Fault, source: SocketAddr, tell: &Tell) {
        self.say_fault(fault, source, tell);
        int.failed = int.failed.saturating_add(1);
        int.mapper.forget();
        // Reports that wait in it may be half written.
        int.session = int.session.wrapping_add(1);
        int.reporter = Reporter::new(ReporterOptions::new(int.session));
        self.nacks.clear();
        self.translator.after_fault(int.origin);
    }

    /// Once: those that follow are counted.
    fn say_fault(&mut self, fault: &Fault, source: SocketAddr, tell: &Tell) {
        let failed = &mut self.received.failed;
        let is_first = *failed == 0;
        *failed = failed.saturating_add(1);
        if is_first {
            tell(&Notice::warning(format!(
                "a datagram from {source} was dropped because of a bug in strata ({}): please \
                 report it with these bytes: {}; further such datagrams are counted as 'failed'",
                fault.problem, fault.start,
            )));
        }
    }

    fn is_allowed(&mut self, address: IpAddr) -> bool {
        let networks = &self.allowed;
        let allowed = networks.is_empty() || networks.iter().any(|net| net.contains(&address));
        self.received.not_allowed += u64::from(!allowed);
        allowed
    }

    fn datagram(&mut self, source: SocketAddr, datagram: &[u8], now_ns: u64) {
        let is_numbered = is_packed(datagram);
        let reporter = reporter_of(source, is_numbered);
        let origin = match self.latest {
            Some((known, origin)) if known == reporter => origin,
            _ => {
                if !self.is_allowed(source.ip()) {
                    return;
                }
                let Some(origin) = self.origin(reporter) else {
                    self.translator.refuse_stranger();
                    return;
                };
                self.latest = Some((reporter, origin));
                origin
            }
        };
        self.put(source, origin, datagram, now_ns);
        if !self.nacks.is_empty() {
            self.answer(source, is_numbered);
        }
    }

    /// The number of a reporter; `None` if there are too many.
    fn origin(&mut self, reporter: SocketAddr) -> Option<Origin> {
        if let Some(&origin) = self.origins.get(&reporter) {
            return Some(origin);
        }
        let origin = self.translator.reporter_at(reporter)?;
        // As many as the translator has, and ports of theirs: bounded.
        if self.origins.len() < 1 << 16 {
            self.origins.insert(reporter, origin);
        }
        Some(origin)
    }

    fn put(&mut self, source: SocketAddr, origin: Origin, datagram: &[u8], now_ns: u64) {
        let is_pushed = match &self.sink {
            Target::Here(_) => self.pushing.wants(datagram),
            Target::There(collectors) => collectors.wants(datagram),
        };
        let is_streamed = self.streaming.is_some() && Streaming::wants(datagram);
        if is_pushed || is_streamed {
            let accepted = |translator: &Translator| translator.counters(origin).accepted;
            let before = accepted(&self.translator);
            self.take(origin, datagram, now_ns);
            let accepted = accepted(&self.translator).wrapping_sub(before);
            if is_pushed {
                let time_ns = unix_ns();
                match &mut self.sink {
                    Target::Here(_) => self.pushing.push(source, time_ns, datagram, accepted),
                    Target::There(collectors) => {
                        collectors.tell(&self.plan, source, time_ns, datagram, accepted);
                    }
                }
            }
            if let Some(streaming) = self.streaming.as_mut().filter(|_| is_streamed) {
                streaming.take(source, datagram, accepted);
            }
        } else {
            self.take(origin, datagram, now_ns);
        }
    }

    #[inline]
    fn take(&mut self, origin: Origin, datagram: &[u8], now_ns: u64) {
        let Self {
            translator,
            sink,
            nacks,
            ..
        } = self;
        sink.put(translator, origin, datagram, now_ns, nacks);
        if Primitive::of(datagram) == Some(Primitive::KeyWrite) {
            self.witness(datagram);
        }
    }

    /// One value of a datagram of Key-Write may be in the sample of values.
    #[inline]
    fn witness(&mut self, datagram: &[u8]) {
        if let Some(place) = self.witnesses.place() {
            self.put_witness(place, datagram);
        }
    }

    #[cold]
    fn put_witness(&mut self, place: usize, datagram: &[u8]) {
        let turn = self.done().key_write;
        let Some(Report::KeyWrite {
            redundancy,
            key,
            data,
        }) = one_of(datagram, turn)
        else {
            return;
        };
        let key = self.plan.hasher.hash(key);
        let witness = Witness::new(key, redundancy.min(REDUNDANCY_MAX), data, turn);
        let slots = self.slots();
        let Some(sink) = self.sink.here() else {
            return;
        };
        sink.flush();
        let words = sink.memory_as_is().words.words();
        let read = &mut |at, out: &mut [u8]| words.read(exact(at), out);
        // One that was refused or dropped is not there.
        if witness.find(&slots, read) == Some(Found::Same) {
            self.witnesses.put(place, witness);
        }
    }

    /// Sends what the translator wants the reporter to send again: version 2 to the port that
    /// the datagram came from, the published protocol to the port that it names.
    fn answer(&mut self, source: SocketAddr, numbered: bool) {
        let port = if numbered { source.port() } else { NACK_PORT };
        let to = SocketAddr::new(source.ip(), port);
        let mut bytes = Vec::new();
        for nack in self.nacks.drain(..) {
            bytes.clear();
            nack.emit(&mut bytes);
            match self.reports.send_to(&bytes, to) {
                Ok(_) => self.received.nacks += 1,
                // The requester has a timer, or has lost the report.
                Err(_) => self.received.nacks_failed += 1,
            }
        }
    }

    fn int_datagram(&mut self, int: &mut Int, source: SocketAddr, datagram: &[u8], now_ns: u64) {
        if !self.is_allowed(source.ip()) {
            return;
        }
        let time_ns = unix_ns();
        let mut full: Vec<Vec<u8>> = Vec::new();
        let Int {
            mapper,
            reporter,
            origin,
            ..
        } = int;
        // Errors are counted by the mapper.
        let _ = mapper.map(datagram, &mut |report| {
            let send = &mut |bytes: &[u8]| full.push(bytes.to_vec());
            reporter.report(report, Flags::of_event(report), time_ns, now_ns, send);
        });
        for bytes in full {
            self.put(FROM_INT, *origin, &bytes, now_ns);
        }
    }

    /// Answers queries known ahead for packets whose hops have not all reported.
    pub(super) fn settle(&mut self, int: &mut Int, now_ns: u64) {
        let time_ns = unix_ns();
        let mut full: Vec<Vec<u8>> = Vec::new();
        let Int {
            mapper, reporter, ..
        } = int;
        mapper.settle(&mut |report| {
            let send = &mut |bytes: &[u8]| full.push(bytes.to_vec());
            reporter.report(report, Flags::of_event(report), time_ns, now_ns, send);
        });
        for bytes in full {
            self.put(FROM_INT, int.origin, &bytes, now_ns);
        }
    }

    pub(super) fn flush_int(&mut self, int: &mut Int, now_ns: u64) {
        let mut rest: Vec<Vec<u8>> = Vec::new();
        int.reporter
            .flush(&mut |bytes: &[u8]| rest.push(bytes.to_vec()));
        for bytes in rest {
            self.put(FROM_INT, int.origin, &bytes, now_ns);
        }
    }
}

/// IPv4 as such, also on a socket for both families.
fn canonical(source: SocketAddr) -> SocketAddr {
    SocketAddr::new(source.ip().to_canonical(), source.port())
}

/// A report of a datagram; `turn` says which, evenly spread.
fn one_of(datagram: &[u8], turn: u64) -> Option<Report<'_>> {
    match Datagram::new_checked(datagram).ok()? {
        Datagram::Packed(packet) => {
            let nth = strata_wire::mix64(turn) % u64::from(packet.count());
            packet.reports().nth(exact::<usize>(nth))
        }
        Datagram::Published(packet) => packet.report().ok(),
    }
}

/// Those that number their reports, which are of version 2, do so each from its own port.
fn reporter_of(source: SocketAddr, is_numbered: bool) -> SocketAddr {
    match is_numbered {
        true => source,
        false => SocketAddr::new(source.ip(), 0),
    }
}

/// The datagrams of a run that the kernel has merged.
fn datagrams(bytes: &[u8], segment: Option<usize>) -> impl Iterator<Item = &[u8]> {
    let len = segment.filter(|&len| len > 0);
    let alone = match len {
        None => Some(bytes),
        Some(_) => None,
    };
    let merged = len.map(|len| bytes.chunks(len));
    merged.into_iter().flatten().chain(alone)
}
