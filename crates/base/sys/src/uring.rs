//! io_uring(7): writes that the kernel completes on its own.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::thread;

use io_uring::{IoUring, Probe, opcode, types};

/// A queue of writes in the kernel. Nothing here knows what the bytes belong to:
/// [`Writes`](crate::disk::Writes) keeps them until the kernel has released them.
pub(crate) struct Ring {
    ring: IoUring,
    /// Writes whose outcome the kernel has not reported.
    in_flight: usize,
}

impl Ring {
    /// A queue of this many writes at a time.
    ///
    /// # Errors
    ///
    /// If the kernel is older than 5.6, or forbids it (seccomp, `kernel.io_uring_disabled`).
    pub(crate) fn new(entries: usize) -> io::Result<Self> {
        let entries = u32::try_from(entries.next_power_of_two()).map_err(io::Error::other)?;
        let ring = IoUring::new(entries)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Write::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { ring, in_flight: 0 })
    }

    /// Lets the kernel keep the pages of these buffers mapped.
    pub(crate) fn register(&mut self, buffers: &[&[u8]]) -> io::Result<()> {
        let vectors: Vec<libc::iovec> = buffers
            .iter()
            .map(|buffer| libc::iovec {
                iov_base: buffer.as_ptr().cast_mut().cast(),
                iov_len: buffer.len(),
            })
            .collect();
        // SAFETY: the kernel takes references to the pages of memory that is there now, and only
        // ever reads them, for writes. If the memory is freed later, the pages live on with the
        // ring; naming a freed buffer writes old bytes, no more.
        unsafe { self.ring.submitter().register_buffers(&vectors) }
    }

    /// Starts writing bytes, this many from an address on, at `offset`; the end is reported under
    /// `number`.
    ///
    /// # Safety
    ///
    /// The bytes stay in place, and no code in this process writes to them, until [`Ring::next`] or
    /// [`Ring::try_next`] has reported the end of this write, or [`Ring::drain`] that of all.
    pub(crate) unsafe fn write(
        &mut self,
        file: &File,
        (start, len): (*const u8, usize),
        offset: u64,
        registered: Option<u16>,
        number: u64,
    ) -> io::Result<()> {
        let fd = types::Fd(file.as_raw_fd());
        let len = u32::try_from(len).map_err(io::Error::other)?;
        let entry = match registered {
            Some(buffer) => opcode::WriteFixed::new(fd, start, len, buffer)
                .offset(offset)
                .build(),
            None => opcode::Write::new(fd, start, len).offset(offset).build(),
        };
        // SAFETY: the descriptor is open, and the caller keeps the bytes.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(number)) };
        pushed.map_err(|_| io::Error::other("the queue of io_uring is full"))?;
        self.in_flight += 1;
        // What the kernel does not take now it takes with the next call.
        let _ = self.ring.submit();
        Ok(())
    }

    /// Waits for a write to end: its number, and how many of its bytes are written.
    ///
    /// # Panics
    ///
    /// If nothing is in flight, or the kernel refuses a ring that it has made.
    pub(crate) fn next(&mut self) -> (u64, io::Result<usize>) {
        assert!(self.in_flight > 0, "nothing to wait for");
        loop {
            if let Some(end) = self.try_next() {
                return end;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if is_for_a_moment(&error) => thread::yield_now(),
                Err(error) => panic!("io_uring_enter: {error}"),
            }
        }
    }

    /// The end of a write, if one has ended.
    pub(crate) fn try_next(&mut self) -> Option<(u64, io::Result<usize>)> {
        let end = self.ring.completion().next()?;
        self.in_flight -= 1;
        let written = usize::try_from(end.result());
        let outcome = written.map_err(|_| io::Error::from_raw_os_error(-end.result()));
        Some((end.user_data(), outcome))
    }

    /// Waits until the kernel no longer holds any bytes; returns whether that is certain.
    pub(crate) fn drain(&mut self) -> bool {
        while self.in_flight > 0 {
            if self.try_next().is_some() {
                continue;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if is_for_a_moment(&error) => thread::yield_now(),
                Err(_) => return false,
            }
        }
        true
    }
}

/// A signal, or the kernel is temporarily short of memory.
fn is_for_a_moment(error: &io::Error) -> bool {
    let moments = [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ENOMEM];
    error
        .raw_os_error()
        .is_some_and(|code| moments.contains(&code))
}
