//! Exports of a recording: headers and packets that policies send to analysers (`docs/export.md`).
//!
//! ```text
//! worker -> what policies export, copied -> bounded queue -> this thread: datagrams -> UDP
//! ```
//!
//! While interfaces are captured, workers never wait for this thread: what does not fit into its queue
//! is lost for the export alone, and counted here and, by the numbers of packets, by the collector.
//! Sockets are opened before anything is captured, so that the capture filter can leave out what they
//! send. Workers leave out what is sent by those that are opened later.

mod dropped;
mod outbox;
pub(crate) mod own;
mod pending;
mod queue;
mod streams;
mod target;
mod ways;

use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::system::uname;
use strata_control::Controller;
use strata_control::config::ExportPlan;
use strata_exporter::Channel;
use strata_role::{RoleError, Tell};
use strata_sandbox::Role;

use crate::error::Result;
use crate::notice::RecordNotice;
use own::{Own, OwnTraffic};
pub(crate) use queue::ExportQueue;
use queue::{Chunk, Spare};
use streams::Streams;
use target::Target;

/// Chunks of some 256 KiB that wait for the thread, of all workers together.
const QUEUE_MAX: usize = 16;

/// Destinations with their sockets, before the recording starts.
#[derive(Debug)]
pub(crate) struct Exports {
    plan: ExportPlan,
    host: String,
    targets: Vec<Target>,
    new_plan: NewPlan,
}

/// The configuration since it was read again, until it is adopted.
type NewPlan = Arc<Mutex<Option<ExportPlan>>>;

impl Exports {
    /// Opens a socket to each destination, as far as it can be reached if that is enough.
    pub(crate) fn open(plan: ExportPlan) -> Result<Self> {
        let open = |named| Target::open(named, plan.must_reach);
        let targets: Result<Vec<Target>> = plan.destinations.iter().map(open).collect();
        let own_name = || uname().nodename().to_string_lossy().into_owned();
        Ok(Self {
            host: plan.host.clone().unwrap_or_else(own_name),
            targets: targets?,
            new_plan: NewPlan::default(),
            plan,
        })
    }

    /// Whether a configuration that was read again has keys if exports are encrypted, and only then.
    ///
    /// # Errors
    ///
    /// If not: that is decided at the start.
    pub(crate) fn check(&self, plan: Option<&ExportPlan>) -> Result<()> {
        let has_keys = plan.is_some_and(|plan| plan.keys.is_some());
        match has_keys == self.plan.keys.is_some() {
            true => Ok(()),
            false => Err(RoleError::Refused(String::from(
                "export.key_file: encryption of exports can only be changed at the start of a \
                 recording: restart it",
            ))
            .into()),
        }
    }

    /// Uses the keys of a configuration that was checked.
    pub(crate) fn adopt(&self, plan: Option<&ExportPlan>) {
        *self.new_plan.lock().unwrap_or_else(PoisonError::into_inner) = plan.cloned();
    }

    /// Tests in tcpdump's language that what these sockets send fails.
    pub(crate) fn own_traffic(&self) -> Vec<String> {
        let own = self.targets.iter().filter_map(Target::own);
        own.map(|own| Own::test(&own)).collect()
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
            tell(
                &RecordNotice::Exporting {
                    name: target.name.to_string(),
                    to: target.destination.clone(),
                    longest: target.frames(),
                    is_encrypted: self.plan.keys.is_some()
                        && target.destination.channel == Channel::Udp,
                }
                .into(),
            );
        }
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        let targets: std::io::Result<Vec<Target>> =
            self.targets.iter().map(Target::try_clone).collect();
        let names: Vec<_> = self.targets.iter().map(|target| target.name).collect();
        let own = Arc::new(OwnTraffic::new(self.targets.iter().map(Target::own)));
        let spare = Spare::default();
        let queue = |sender: SyncSender<Chunk>| {
            let times = Arc::clone(controller.export_times());
            ExportQueue::new(
                sender,
                &names,
                Arc::clone(&own),
                times,
                spare.clone(),
                waits,
            )
        };
        let queues = (0..workers).map(|_| queue(sender.clone())).collect();
        let (end, ended) = channel();
        let streams = Streams::new(
            targets?,
            (self.plan.clone(), self.host.clone()),
            Arc::clone(&self.new_plan),
            Arc::clone(&own),
            Arc::clone(controller),
            waits,
            Arc::clone(tell),
        )?;
        let work = move || {
            strata_role::sandbox::thread(Role::Server);
            streams.run(&receiver, &ended, &spare);
        };
        let thread = thread::Builder::new()
            .name("strata-export".into())
            .spawn(work)
            .map_err(RoleError::thread("exports packets"))?;
        let thread = Some(thread);
        let end = Some(end);
        Ok((Exporting { end, thread }, queues))
    }
}

/// The thread that exports. It ends when this is dropped, after what workers have given it.
#[derive(Debug)]
pub(crate) struct Exporting {
    /// Dropped once nothing more comes, also of what is counted.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Exporting {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
