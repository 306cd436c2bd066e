//! Flow records of what is recorded, sent to a collector of flows while it is recorded (`record --flows-to`).
//!
//! ```text
//! worker -> FlowTap: headers, copied -> bounded queue -> sender: flows, IPFIX or NetFlow 9 -> UDP
//! ```
//!
//! Records are made as an export of the log makes them (`strata_archive::Metering`), of all packets that are captured,
//! in the order of arrival. While interfaces are captured, workers never wait for the sender: what does not fit into its queue is
//! missing from the flows, and counted. Datagrams that the network does not take are counted, and not sent again: the
//! collector sees a gap in their numbers.
#![forbid(unsafe_code)]

mod collector;
mod queue;
mod sender;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};

use strata_archive::Timeouts;
use strata_control::Controller;
use strata_query::FlowProtocol;
use strata_role::{Notice, Tell};
use strata_sandbox::Role;

pub use collector::{FlowCollector, usual_port};
pub use queue::FlowTap;
use queue::Spare;
use sender::Sender;

/// Chunks that wait for the sender, of all workers together: some 16 MiB at most.
const QUEUE_MAX: usize = 64;
/// Maximum number of datagrams per second: flows often end together, and a collector has to keep up.
const DATAGRAMS_PER_SECOND: u64 = 10_000;

/// The collector of flow records, and the timeouts that end the record of a continuing flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowsSpec {
    /// The collector.
    pub to: SocketAddr,
    /// What it takes.
    pub protocol: FlowProtocol,
    /// The timeouts that end a record.
    pub timeouts: Timeouts,
}

/// The collector with its socket, before the recording starts.
#[derive(Debug)]
pub struct FlowRecords {
    collector: FlowCollector,
    protocol: FlowProtocol,
    timeouts: Timeouts,
}

impl FlowRecords {
    /// Opens a socket.
    ///
    /// # Errors
    ///
    /// If a socket cannot be created, or there is no route to the collector.
    pub fn open(spec: &FlowsSpec) -> io::Result<Self> {
        Ok(Self {
            collector: FlowCollector::connect(spec.to, DATAGRAMS_PER_SECOND)?,
            protocol: spec.protocol,
            timeouts: spec.timeouts,
        })
    }

    /// A filter in tcpdump's language that excludes the datagrams that the socket sends.
    ///
    /// # Errors
    ///
    /// If the socket's own address cannot be determined.
    pub fn own_traffic(&self) -> io::Result<String> {
        self.collector.own_traffic()
    }

    /// Starts to send the flows of the packets that workers see; each worker has one of the taps. If `waits`, workers
    /// wait for the sender. `hash_seed` keys fingerprints of flows.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub fn start(
        &self,
        workers: u16,
        hash_seed: [u64; 2],
        controller: &Arc<Controller>,
        waits: bool,
        tell: &Tell,
    ) -> io::Result<(Sending, Vec<FlowTap>)> {
        let collector = self.collector.try_clone()?;
        let (to, timeouts, protocol) = (collector.to(), self.timeouts, self.protocol);
        let (chunks, receiver) = sync_channel(QUEUE_MAX);
        let (lost, spare) = (Arc::new(AtomicU64::new(0)), Spare::default());
        let taps = (0..workers)
            .map(|worker| FlowTap::new(worker, chunks.clone(), spare.clone(), &lost, waits))
            .collect();
        let sender = Sender::new(
            (collector, protocol),
            (usize::from(workers), hash_seed, timeouts),
            (lost, spare),
            (!waits, Arc::clone(controller), Arc::clone(tell)),
        )?;
        let work = move || {
            strata_role::sandbox::thread(Role::Server);
            sender.run(&receiver);
        };
        let thread = thread::Builder::new()
            .name("strata-flows".into())
            .spawn(work)?;
        tell(&Notice::info(
            "flows",
            format!("sending flows to {to} as {protocol}"),
        ));
        let thread = Some(thread);
        Ok((Sending { thread }, taps))
    }
}

/// The thread that sends. It ends once all taps have ended and this value is dropped, after it has sent all that the
/// taps gave.
#[derive(Debug)]
pub struct Sending {
    thread: Option<JoinHandle<()>>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
