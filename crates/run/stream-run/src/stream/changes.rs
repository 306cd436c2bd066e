//! Waiting until a stream has grown: the appender writes the stream's file when more can be read.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// Between looks, where the kernel does not tell of changes: too many watches, or a file system that
/// others change too.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A watch of a stream's file.
pub(crate) struct Changes(Option<OwnedFd>);

impl Changes {
    /// From now on, changes are not missed.
    pub(crate) fn of(path: &Path) -> Self {
        let watch = || {
            let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            inotify::add_watch(&watch, path, WatchFlags::MODIFY)?;
            Ok::<_, rustix::io::Errno>(watch)
        };
        Self(watch().ok())
    }

    /// Waits until the file was changed since the last call, or for this time, or until a signal.
    pub(crate) fn wait(&self, limit: Duration) {
        let Some(watch) = &self.0 else {
            thread::sleep(limit.min(LOOK_EVERY));
            return;
        };
        let limit = Timespec::try_from(limit).ok();
        let _ = poll(&mut [PollFd::new(watch, PollFlags::IN)], limit.as_ref());
        // They say that the file was changed, and no more than that.
        let mut events = [0; 4096];
        while rustix::io::read(watch, &mut events).is_ok_and(|len| len > 0) {}
    }
}
