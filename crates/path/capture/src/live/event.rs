//! Waiting for packets, and being woken.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// An event, which one thread signals and another waits for.
pub(super) fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

/// Signals an event.
pub(super) fn signal_event(event: BorrowedFd<'_>) {
    // This fails only after 2^64 - 2 signals that were not waited for.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// Waits until one of the descriptors is ready, the event is signalled, the time is up, or a signal
/// arrives. The event is no longer signalled after that.
pub(super) fn wait<'a>(
    fds: impl Iterator<Item = BorrowedFd<'a>>,
    event: BorrowedFd<'a>,
    timeout: Duration,
) -> io::Result<()> {
    let mut polled: Vec<PollFd<'_>> = fds
        .chain([event])
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    if polled.last().is_some_and(|last| !last.revents().is_empty()) {
        // No other thread reads it, so there is something to read.
        let _ = rustix::io::read(event, &mut [0; 8]);
    }
    Ok(())
}
