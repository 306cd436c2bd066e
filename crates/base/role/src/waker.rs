//! Wakes a role that waits for something to happen: from other threads, and from signal handlers.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Two ends of a connection, with something in it while there is a reason to look. Clones wake the same
/// role.
#[derive(Clone, Debug)]
pub struct Waker {
    reader: Arc<UnixStream>,
    writer: Arc<UnixStream>,
}

impl Waker {
    /// A new one.
    ///
    /// # Errors
    ///
    /// If the system lacks descriptors.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(Self {
            reader: Arc::new(reader),
            writer: Arc::new(writer),
        })
    }

    /// Ends the wait, or the next one if no thread waits.
    pub fn wake(&self) {
        // If it is full, it wakes too.
        let _ = (&*self.writer).write(&[0]);
    }

    /// What a signal handler writes a byte to.
    ///
    /// # Errors
    ///
    /// If the system lacks descriptors.
    pub fn writer(&self) -> io::Result<UnixStream> {
        self.writer.try_clone()
    }

    /// Waits until it is woken, at most so long.
    pub fn wait(&self, most: Option<Duration>) {
        self.wait_with(&[], most);
    }

    /// The same, also until one of these can be read or has ended.
    pub fn wait_with(&self, others: &[BorrowedFd<'_>], most: Option<Duration>) {
        let own = [self.reader.as_fd()];
        let all = own.iter().chain(others);
        let mut all: Vec<PollFd<'_>> = all
            .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        // A signal ends the wait as well: its flag is looked at.
        let _ = poll(&mut all, most.map(timespec).as_ref());
        let mut bytes = [0; 64];
        while matches!((&*self.reader).read(&mut bytes), Ok(1..)) {}
    }
}

/// Waits until one of these can be read or has ended; returns whether that is so in time.
///
/// # Errors
///
/// If the system cannot wait for them.
pub fn wait_for(of: &[BorrowedFd<'_>], most: Duration) -> io::Result<bool> {
    let mut all: Vec<PollFd<'_>> = of
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    match poll(&mut all, Some(&timespec(most))) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn timespec(most: Duration) -> Timespec {
    Timespec::try_from(most).expect("waits are shorter than an age")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_wait_ends_when_it_is_woken_and_not_before() {
        let waker = Waker::new().unwrap();
        waker.wake();
        waker.wake();
        waker.wait(None);
        let started = Instant::now();
        waker.wait(Some(Duration::from_millis(20)));
        assert!(started.elapsed() >= Duration::from_millis(20), "woken once");
        // More than it holds.
        for _ in 0..100_000 {
            waker.wake();
        }
        waker.wait(None);
        let other = waker.clone();
        let thread = std::thread::spawn(move || other.wake());
        waker.wait(None);
        thread.join().unwrap();
    }

    #[test]
    fn a_wait_ends_when_something_can_be_read() {
        let waker = Waker::new().unwrap();
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(writer);
        waker.wait_with(&[reader.as_fd()], None);
        assert!(wait_for(&[reader.as_fd()], Duration::from_secs(60)).unwrap());
    }
}
