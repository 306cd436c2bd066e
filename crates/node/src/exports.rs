//! Exports of a recording: headers and packets that policies send to analysers (`docs/export.md`).
//!
//! ```text
//! worker -> what policies export, copied -> bounded queue -> this thread: datagrams -> UDP
//! ```
//!
//! While interfaces are captured, workers never wait for this thread: what does not fit into its queue
//! is lost for the export alone, and counted here and, by the numbers of packets, by the collector.
//! Sockets are opened before anything is captured, so that the capture filter can leave out what they
//! send.

mod own;
mod queue;
mod streams;
mod target;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use rustix::system::uname;
use strata_capture::live::Device;
use strata_control::Controller;
use strata_control::config::ExportPlan;
use strata_filter::Filter;
use strata_sandbox::Role;

use crate::error::{NodeError, Result};
use crate::notice::{Notice, Tell};
use crate::sandbox;
use own::Own;
use queue::Chunk;
pub(crate) use queue::ExportQueue;
use streams::Streams;
use target::Target;

/// Chunks of some 64 KiB that wait for the thread, of all workers together.
const QUEUE_MAX: usize = 64;

/// Destinations with their sockets, before the recording starts.
#[derive(Debug)]
pub(crate) struct Exports {
    plan: ExportPlan,
    host: String,
    targets: Vec<Target>,
}

impl Exports {
    /// Opens a socket to each destination.
    pub(crate) fn open(plan: ExportPlan) -> Result<Self> {
        let targets: Result<Vec<Target>> = plan.destinations.iter().map(Target::open).collect();
        let own_name = || uname().nodename().to_string_lossy().into_owned();
        Ok(Self {
            host: plan.host.clone().unwrap_or_else(own_name),
            targets: targets?,
            plan,
        })
    }

    /// What a recording of these interfaces captures: what `filter` matches, but for what these
    /// sockets send.
    pub(crate) fn without_own(
        &self,
        filter: Option<&Filter>,
        interfaces: &[String],
    ) -> Result<Option<Filter>> {
        let without = own::filter(&self.own(), filter)?;
        // A filter that has no meaning on an interface would match none of its packets.
        let fits = |name: &String| match Device::named(name) {
            Ok(device) => without.compile(device.link).is_ok(),
            Err(_) => true,
        };
        Ok(match interfaces.iter().all(fits) {
            true => Some(without),
            false => filter.cloned(),
        })
    }

    fn own(&self) -> Vec<Own> {
        self.targets.iter().map(Target::own).collect()
    }

    /// Starts to export what workers take into the queues, one for each of them. If `waits`, they wait
    /// for this.
    pub(crate) fn start(
        &self,
        workers: usize,
        controller: &Arc<Controller>,
        waits: bool,
        tell: &Tell,
    ) -> Result<(Exporting, Vec<ExportQueue>)> {
        for target in &self.targets {
            tell(&Notice::Exporting {
                name: target.name.to_string(),
                to: target.destination.clone(),
            });
        }
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        let targets: std::io::Result<Vec<Target>> =
            self.targets.iter().map(Target::try_clone).collect();
        let names: Vec<_> = self.targets.iter().map(|target| target.name).collect();
        let queue = |sender: SyncSender<Chunk>| ExportQueue::new(sender, &names, self.own(), waits);
        let queues = (0..workers).map(|_| queue(sender.clone())).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let streams = Streams::new(
            targets?,
            (self.plan.clone(), self.host.clone()),
            Arc::clone(controller),
            waits,
            Arc::clone(tell),
        )?;
        let stopped = Arc::clone(&stop);
        let work = move || {
            sandbox::thread(Role::Server);
            streams.run(&receiver, &stopped);
        };
        let thread = thread::Builder::new()
            .name("strata-export".into())
            .spawn(work)
            .map_err(NodeError::Thread)?;
        let thread = Some(thread);
        Ok((Exporting { stop, thread }, queues))
    }
}

/// The thread that exports. It ends when this is dropped, after what workers have given it.
#[derive(Debug)]
pub(crate) struct Exporting {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Exporting {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
