//! Contents of blocks, read ahead by a few threads: a search knows from the index which blocks it
//! wants, and a disk is fastest with several requests at a time.

use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use strata_blocks::BlockHeader;

use crate::block::content::{Content, Failed, content};
use crate::disk::{Disk, DiskFile};

/// Threads that read.
const THREADS: usize = 4;

struct Job {
    name: String,
    offset: u64,
    header: BlockHeader,
    reply: SyncSender<Result<Content, Failed>>,
}

/// Threads that read contents. They end when it is dropped.
pub(crate) struct Fetcher {
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Fetcher {
    /// `direct`: bypass the page cache, where the file system supports that.
    pub(crate) fn start(disk: &Arc<dyn Disk>, direct: bool) -> io::Result<Self> {
        let (jobs, inbox) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let (disk, inbox) = (Arc::clone(disk), Arc::clone(&inbox));
            let thread = thread::Builder::new().name("strata-reader".into());
            threads.push(thread.spawn(move || work(disk.as_ref(), direct, &inbox))?);
        }
        Ok(Self {
            jobs: Some(jobs),
            threads,
        })
    }

    /// Starts reading the content of a block, which arrives through the returned channel.
    pub(crate) fn fetch(
        &self,
        name: &str,
        offset: u64,
        header: BlockHeader,
    ) -> Receiver<Result<Content, Failed>> {
        let (reply, outbox) = sync_channel(1);
        let job = Job {
            name: name.to_owned(),
            offset,
            header,
            reply,
        };
        if let Some(jobs) = &self.jobs {
            // If the thread is gone, waiting for its reply fails.
            let _ = jobs.send(job);
        }
        outbox
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(disk: &dyn Disk, direct: bool, inbox: &Mutex<Receiver<Job>>) {
    let mut open: Option<(String, Box<dyn DiskFile>)> = None;
    loop {
        let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else {
            return;
        };
        if open.as_ref().is_none_or(|(name, _)| *name != job.name) {
            open = None;
            let opened = if direct {
                disk.open_direct(&job.name)
            } else {
                disk.open(&job.name, false)
            };
            match opened {
                Ok(file) => open = Some((job.name, file)),
                Err(error) => {
                    let _ = job.reply.send(Err(Failed::Disk(error)));
                    continue;
                }
            }
        }
        if let Some((_, file)) = &open {
            // The reader may be gone.
            let _ = job
                .reply
                .send(content(file.as_ref(), &job.header, job.offset));
        }
    }
}
