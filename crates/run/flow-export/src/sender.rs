//! The thread that makes flows of packets and sends their records.

use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_archive::{Metering, Timeouts};
use strata_control::{Controller, FlowsStatus};
use strata_query::{FlowProtocol, FlowRecord, RecordFormat, RecordWriter};
use strata_role::{Notice, Tell};
use strata_wire::unix_ns;

use crate::collector::FlowCollector;
use crate::queue::{Chunk, Spare};

/// How often idle flows end, and records go that wait for more.
const TURN: Duration = Duration::from_secs(1);
/// A packet may be this old when the thread looks at it: flows end that were idle until then.
const LATE_NS: u64 = 2_000_000_000;
/// What is metered ends with its last packet.
const BEGINNING_NS: u64 = 0;
/// How often a collector gets the templates again, which may have been started meanwhile.
const TEMPLATES_EVERY: Duration = Duration::from_secs(60);
/// A collector works again once all datagrams were taken for so long.
const WORKS_AFTER: Duration = Duration::from_secs(10);

/// Counts datagrams, and those that are not delivered, as far as that is known.
struct Datagrams {
    collector: FlowCollector,
    counts: Arc<Counts>,
    tell: Tell,
    /// When the last one was not delivered, until that is long ago.
    failed: Option<Instant>,
}

/// What became of datagrams.
#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    undelivered: AtomicU64,
    /// Whether some were not delivered lately.
    is_failing: AtomicBool,
}

impl Datagrams {
    /// Counts one that was not delivered; says so if it is the first.
    fn lost(&mut self, error: &io::Error) {
        self.counts.undelivered.fetch_add(1, Ordering::Relaxed);
        self.counts.is_failing.store(true, Ordering::Relaxed);
        if self.failed.replace(Instant::now()).is_none() {
            (self.tell)(&Notice::warning(format!(
                "flows to {error}; the recording continues, and datagrams that are not delivered are \
                 counted"
            )));
        }
    }

    fn works(&mut self) {
        // Where no one listens, the answer comes with the next.
        if self.failed.is_some_and(|at| at.elapsed() >= WORKS_AFTER) {
            self.failed = None;
            self.counts.is_failing.store(false, Ordering::Relaxed);
            let to = self.collector.to();
            (self.tell)(&Notice::info(
                "flows",
                format!("flows to {to}: sending works again"),
            ));
        }
    }
}

impl Write for Datagrams {
    /// Never fails: the recording goes on, and so do numbers of records.
    fn write(&mut self, datagram: &[u8]) -> io::Result<usize> {
        let mut sent = self.collector.write(datagram);
        if let Err(error) = &sent
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            // That is the answer to one before, and this one was not sent.
            self.lost(error);
            sent = self.collector.write(datagram);
        }
        match sent {
            Ok(_) => self.works(),
            Err(error) => self.lost(&error),
        }
        self.counts.sent.fetch_add(1, Ordering::Relaxed);
        Ok(datagram.len())
    }

    /// The answer to the last one, if it is there.
    fn flush(&mut self) -> io::Result<()> {
        if let Err(error) = self.collector.flush() {
            self.lost(&error);
        }
        Ok(())
    }
}

/// Sends records, and counts those that cannot be.
fn writes(
    writer: &mut RecordWriter<Datagrams>,
    counts: &Counts,
    unfit: &mut u64,
) -> impl FnMut(Vec<Value>) -> Result<(), Infallible> {
    |values| {
        // A collector that is there from now on needs them first.
        if counts.is_failing.load(Ordering::Relaxed) {
            writer.repeat_templates();
        }
        if writer.write(&FlowRecord::of(values)).is_err() {
            *unfit += 1;
        }
        Ok(())
    }
}

/// Makes flows of packets and sends their records.
pub(crate) struct Sender {
    /// By worker: all packets of a flow come from one.
    meterings: Vec<Metering>,
    writer: RecordWriter<Datagrams>,
    spare: Spare,
    lost: Arc<AtomicU64>,
    counts: Arc<Counts>,
    unfit: u64,
    to: String,
    /// Whether packets have the time of the clock.
    is_live: bool,
    templates_sent: Instant,
    controller: Arc<Controller>,
}

impl Sender {
    pub(crate) fn new(
        (collector, protocol): (FlowCollector, FlowProtocol),
        (workers, hash_seed, timeouts): (usize, [u64; 2], Timeouts),
        (lost, spare): (Arc<AtomicU64>, Spare),
        (is_live, controller, tell): (bool, Arc<Controller>, Tell),
    ) -> io::Result<Self> {
        let to = collector.to().to_string();
        let counts = Arc::new(Counts::default());
        let datagrams = Datagrams {
            collector,
            counts: Arc::clone(&counts),
            tell,
            failed: None,
        };
        // Records do not say which recording they are of, and have no names.
        let metering = || Metering::new(timeouts, 0, hash_seed).without_names();
        Ok(Self {
            meterings: std::iter::repeat_with(metering).take(workers).collect(),
            writer: RecordWriter::new(datagrams, RecordFormat::Datagrams(protocol))?,
            spare,
            lost,
            counts,
            unfit: 0,
            to,
            is_live,
            templates_sent: Instant::now(),
            controller,
        })
    }

    /// Works until all taps have ended.
    pub(crate) fn run(mut self, chunks: &Receiver<Chunk>) {
        self.publish();
        let mut turned = Instant::now();
        loop {
            match chunks.recv_timeout(TURN.saturating_sub(turned.elapsed())) {
                Ok(chunk) => self.take(chunk),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if turned.elapsed() >= TURN {
                self.turn();
                turned = Instant::now();
            }
        }
        self.end();
    }

    fn take(&mut self, chunk: Chunk) {
        let metering = &mut self.meterings[usize::from(chunk.worker)];
        let mut write = writes(&mut self.writer, &self.counts, &mut self.unfit);
        for packet in chunk.packets() {
            let Ok(()) = metering.packet(&packet, &mut write);
        }
        self.spare.put(chunk);
    }

    /// Ends idle flows, and sends what waits.
    fn turn(&mut self) {
        if self.is_live {
            let until_ns = unix_ns().saturating_sub(LATE_NS);
            let mut write = writes(&mut self.writer, &self.counts, &mut self.unfit);
            for metering in &mut self.meterings {
                let Ok(()) = metering.pass(until_ns, &mut write);
            }
        }
        if self.templates_sent.elapsed() >= TEMPLATES_EVERY {
            self.templates_sent = Instant::now();
            self.writer.repeat_templates();
        }
        self.send();
    }

    fn send(&mut self) {
        if self.writer.send().is_err() {
            self.unfit += 1;
        }
        self.publish();
    }

    /// Sends the flows that go on.
    fn end(mut self) {
        let mut write = writes(&mut self.writer, &self.counts, &mut self.unfit);
        for metering in &mut self.meterings {
            let Ok(()) = metering.finish(BEGINNING_NS, &mut write);
        }
        drop(write);
        self.send();
    }

    fn status(&self) -> FlowsStatus {
        let crowded_out = self.meterings.iter().map(|one| one.crowded_out);
        FlowsStatus {
            to: self.to.clone(),
            flows: self.writer.written,
            records: self.writer.records(),
            datagrams: self.counts.sent.load(Ordering::Relaxed),
            undelivered: self.counts.undelivered.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            unfit: self.unfit,
            crowded_out: crowded_out.fold(0, u64::saturating_add),
        }
    }

    fn publish(&self) {
        self.controller.set_flows(self.status());
    }
}
