//! Flow records of what is recorded, sent to a collector of flows while it is recorded (`record --flows-to`).
//!
//! ```text
//! worker -> FlowTap: headers, copied -> bounded queue -> sender: flows, IPFIX (RFC 7011) -> UDP
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
use strata_role::{Notice, Tell};
use strata_sandbox::Role;

pub use collector::{FlowCollector, PORT};
pub use queue::FlowTap;
use queue::Spare;
use sender::Sender;

/// Chunks that wait for the sender, of all workers together: some 16 MiB at most.
const QUEUE_MAX: usize = 64;
/// Datagrams per second at most: flows often end together, and a collector has to keep up.
const DATAGRAMS_PER_SECOND: u64 = 10_000;

/// Where flow records go, and when one ends of a flow that goes on.
#[derive(Clone, Copy, Debug)]
pub struct FlowsSpec {
    /// The collector.
    pub to: SocketAddr,
    /// When a record ends.
    pub timeouts: Timeouts,
}

/// The collector with its socket, before the recording starts.
#[derive(Debug)]
pub struct FlowRecords {
    collector: FlowCollector,
    timeouts: Timeouts,
}

impl FlowRecords {
    /// Opens a socket.
    ///
    /// # Errors
    ///
    /// If there is no socket, or no way to the collector.
    pub fn open(spec: &FlowsSpec) -> io::Result<Self> {
        Ok(Self {
            collector: FlowCollector::connect(spec.to, DATAGRAMS_PER_SECOND)?,
            timeouts: spec.timeouts,
        })
    }

    /// A test in tcpdump's language that what the socket sends fails.
    ///
    /// # Errors
    ///
    /// If the socket does not say where it is.
    pub fn own_traffic(&self) -> io::Result<String> {
        self.collector.own_traffic()
    }

    /// Starts to send flows of what workers are shown, each through one of the taps. If `waits`, they wait for the
    /// sender. `hash_seed` keys fingerprints of flows.
    ///
    /// # Errors
    ///
    /// If there is no thread.
    pub fn start(
        &self,
        workers: u16,
        hash_seed: [u64; 2],
        controller: &Arc<Controller>,
        waits: bool,
        tell: &Tell,
    ) -> io::Result<(Sending, Vec<FlowTap>)> {
        let collector = self.collector.try_clone()?;
        let (to, timeouts) = (collector.to(), self.timeouts);
        let (chunks, receiver) = sync_channel(QUEUE_MAX);
        let (lost, spare) = (Arc::new(AtomicU64::new(0)), Spare::default());
        let taps = (0..workers)
            .map(|worker| FlowTap::new(worker, chunks.clone(), spare.clone(), &lost, waits))
            .collect();
        let sender = Sender::new(
            collector,
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
            format!("sending flows to {to} as IPFIX"),
        ));
        let thread = Some(thread);
        Ok((Sending { thread }, taps))
    }
}

/// The thread that sends. It ends when all taps have, and this is dropped: after what they have given it.
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
