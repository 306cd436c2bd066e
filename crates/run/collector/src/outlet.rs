//! Where a collector's stream goes: a file, or a pipe whose reader may not be there yet, or read no more.
//!
//! Whatever happens to it costs no counts: what cannot be written any more is taken all the same, and counted.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use strata_role::{At as _, Notice, Result, RoleError, Tell};
use strata_sandbox::Owner;
use strata_sys::{pause, socket};

/// Of what is written.
const BUFFER_BYTES: usize = 256 << 10;
/// Between looks at the stop flag.
const LOOK: Duration = Duration::from_millis(100);
/// How long a reader may do nothing, all in all, once the collector is to end.
const PATIENCE: Duration = Duration::from_secs(2);
/// A pipe that can be written to has room for at least this number of bytes (`PIPE_BUF`).
const PIPE_BYTES: usize = 4096;

fn tell_awaited(name: &str, tell: &Tell) {
    let what = "waiting until a program opens this pipe for reading";
    tell(&Notice::warning(format!("{name}: {what}")));
}

/// Where a collector writes.
#[derive(Debug)]
pub struct Outlet<'a> {
    name: String,
    /// `None` if no program opened the pipe for reading before the end.
    file: Option<File>,
    /// Whether it is a pipe that had no reader when it was looked at last.
    awaits: bool,
    /// Whether it is waited for, so that a reader that stalls does not keep the process from
    /// ending.
    waits: bool,
    stop: &'a AtomicBool,
    patience: Duration,
    buffer: Vec<u8>,
    /// Bytes that were given, and those that were written.
    given: u64,
    written: u64,
    /// After how many bytes how many packets end, of those in the buffer.
    marks: VecDeque<(u64, u64)>,
    packets: u64,
    /// Of a pipe within this process: packets that its reader took, once that has ended.
    taken: Option<&'a OnceLock<u64>>,
    failure: Option<io::Error>,
}

impl<'a> Outlet<'a> {
    /// Creates a file for `owner`, or opens a named pipe. A file that exists keeps its owner. A program that reads the
    /// pipe may come later (`Outlet::is_awaited`); if the pipe can be written to, but not read, it is waited for here,
    /// at most until `stop`.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, with its name, or not be given to its owner.
    pub fn create(path: &Path, owner: &Owner, stop: &'a AtomicBool, tell: &Tell) -> Result<Self> {
        let name = path.display().to_string();
        let is_pipe = path
            .metadata()
            .is_ok_and(|found| found.file_type().is_fifo());
        if !is_pipe {
            let is_new = !path.exists();
            let file = File::create(path).at_with(|| format!("{name}: cannot write"))?;
            if is_new {
                owner.take(&file, false, path)?;
            }
            return Ok(Self::new(name, Some(file), false, stop));
        }
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut options = OpenOptions::new();
        // Without a reader, a pipe cannot be opened for writing (fifo(7)): for this moment, it is this process.
        let reader = options.read(true).custom_flags(flags).open(path);
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(flags);
        let mut has_told = false;
        loop {
            match options.open(path) {
                Ok(file) => {
                    drop(reader);
                    let mut outlet = Self::new(name, Some(file), true, stop);
                    outlet.awaits = true;
                    if outlet.is_awaited().at(path.display())? {
                        tell_awaited(&outlet.name, tell);
                    }
                    return Ok(outlet);
                }
                Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(Self::new(name, None, true, stop));
                    }
                    if !std::mem::replace(&mut has_told, true) {
                        tell_awaited(&name, tell);
                    }
                    pause::backoff(LOOK);
                }
                Err(error) => return Err(error).at_with(|| format!("{name}: cannot write")),
            }
        }
    }

    /// Whether its pipe has had no reader yet.
    ///
    /// # Errors
    ///
    /// If the pipe cannot be polled.
    pub(super) fn is_awaited(&mut self) -> io::Result<bool> {
        if let Some(file) = self.file.as_ref().filter(|_| self.awaits) {
            let fd = PollFd::new(file, PollFlags::OUT);
            let mut all = [fd];
            match poll(&mut all, Some(&Timespec::default())) {
                // A pipe without readers is in error (`pipe_poll`).
                Ok(_) => self.awaits = all[0].revents().contains(PollFlags::ERR),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.awaits)
    }

    /// Waits for no reader any more: nothing can be written.
    pub(super) fn give_up_reader(&mut self) {
        self.awaits = false;
        self.file = None;
    }

    /// Writes to what is open already: a pipe or a socket, or a file.
    ///
    /// # Errors
    ///
    /// If it cannot be examined.
    pub fn open(name: &str, to: OwnedFd, stop: &'a AtomicBool) -> Result<Self> {
        let file = File::from(to);
        let waits = !file.metadata().at(name)?.is_file();
        Ok(Self::new(name.to_owned(), Some(file), waits, stop))
    }

    /// Writes to a pipe whose reader is in this process, and is waited for. If it ends before the pipe does, it says
    /// first in `taken` the number of packets that it took: the others count as not written.
    #[must_use]
    pub fn own(to: OwnedFd, stop: &'a AtomicBool, taken: &'a OnceLock<u64>) -> Self {
        let name = String::from("pipe");
        Self {
            taken: Some(taken),
            ..Self::new(name, Some(File::from(to)), false, stop)
        }
    }

    fn new(name: String, file: Option<File>, waits: bool, stop: &'a AtomicBool) -> Self {
        Self {
            name,
            file,
            awaits: false,
            waits,
            stop,
            patience: PATIENCE,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            given: 0,
            written: 0,
            marks: VecDeque::new(),
            packets: 0,
            taken: None,
            failure: None,
        }
    }

    /// `packets` packets end here.
    pub(super) fn mark(&mut self, packets: u64) {
        if self.failure.is_none() {
            // What is not to be written takes no mark of its own.
            match self.marks.back_mut() {
                Some((end, until)) if *end == self.given => *until = packets,
                _ => self.marks.push_back((self.given, packets)),
            }
            self.look();
        }
    }

    /// Packets that were written, and not left in a pipe whose reader has ended.
    pub(super) fn packets(&self) -> u64 {
        let taken = self.taken.and_then(OnceLock::get);
        taken.map_or(self.packets, |&taken| self.packets.min(taken))
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Why not all was written; that a reader has closed its pipe is its choice.
    pub(super) fn take_failure(&mut self) -> Option<RoleError> {
        let failure = self.failure.take()?;
        if failure.kind() == ErrorKind::BrokenPipe {
            return None;
        }
        let named: Result<()> = Err(failure).at_with(|| format!("{}: cannot write", self.name));
        named.err()
    }

    /// Writes what waits.
    pub(super) fn deliver(&mut self) {
        let mut at = 0;
        while at < self.buffer.len() && self.failure.is_none() {
            match self.push(at) {
                Ok(len) => at += len,
                Err(error) => self.failure = Some(error),
            }
        }
        self.written += at as u64;
        self.buffer.clear();
        self.look();
    }

    /// Counts packets that are written to their last byte.
    fn look(&mut self) {
        while let Some(&(end, packets)) = self.marks.front()
            && end <= self.written
        {
            self.packets = packets;
            self.marks.pop_front();
        }
    }

    /// Writes some of what is in the buffer from here on; returns how many bytes.
    fn push(&mut self, at: usize) -> io::Result<usize> {
        let timed_out = |text| io::Error::new(ErrorKind::TimedOut, text);
        let Some(file) = &mut self.file else {
            return Err(timed_out("no program opened this pipe for reading"));
        };
        let mut part = &self.buffer[at..];
        if self.waits {
            if !socket::wait(file.as_fd(), true, LOOK)? {
                if self.stop.load(Ordering::Relaxed) {
                    let left = self.patience.checked_sub(LOOK);
                    self.patience = left.ok_or_else(|| timed_out("its reader does not read"))?;
                }
                return Ok(0);
            }
            part = &part[..part.len().min(PIPE_BYTES)];
        }
        match file.write(part) {
            Ok(0) => Err(ErrorKind::WriteZero.into()),
            Err(error)
                if [ErrorKind::Interrupted, ErrorKind::WouldBlock].contains(&error.kind()) =>
            {
                Ok(0)
            }
            done => done,
        }
    }
}

impl Write for Outlet<'_> {
    /// Takes everything; what becomes of it shows later.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failure.is_none() {
            self.given += bytes.len() as u64;
            self.buffer.extend_from_slice(bytes);
            if self.buffer.len() >= BUFFER_BYTES {
                self.deliver();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.deliver();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets that the pipe still holds when its reader ends were not written, and are counted so.
    #[test]
    fn packets_left_in_a_pipe_of_its_own_are_not_written() {
        let (reader, writer) = io::pipe().unwrap();
        let (stop, taken) = (AtomicBool::new(false), OnceLock::new());
        let mut outlet = Outlet::own(writer.into(), &stop, &taken);
        for packet in 1..=100 {
            outlet.write_all(&[7; 10]).unwrap();
            outlet.mark(packet);
        }
        outlet.flush().unwrap();
        assert_eq!((outlet.packets(), outlet.has_failed()), (100, false));
        taken.set(60).unwrap();
        drop(reader);
        assert_eq!(outlet.packets(), 60);
        outlet.write_all(&[7; 10]).unwrap();
        outlet.mark(101);
        outlet.flush().unwrap();
        assert_eq!((outlet.packets(), outlet.has_failed()), (60, true));
        assert!(outlet.take_failure().is_none());
    }

    #[test]
    fn a_reader_that_took_everything_changes_no_count() {
        let (reader, writer) = io::pipe().unwrap();
        let (stop, taken) = (AtomicBool::new(false), OnceLock::new());
        let mut outlet = Outlet::own(writer.into(), &stop, &taken);
        outlet.write_all(&[7; 10]).unwrap();
        outlet.mark(3);
        outlet.flush().unwrap();
        taken.set(3).unwrap();
        assert_eq!(outlet.packets(), 3);
        drop(reader);
    }
}
