//! Reading ahead: a thread fills the buffers that a window goes through.

use std::io::{self, ErrorKind, Read};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;

use strata_sys::AlignedBytes;

/// Bytes kept free before the data, for what the previous buffer left unused: most packets and
/// blocks fit. Whole pages, so that reads begin at one.
pub(super) const HEADROOM: usize = 64 << 10;
const _: () = assert!(HEADROOM.is_multiple_of(strata_sys::ALIGNMENT));
/// Buffers in rotation: one in use, others ready or being filled.
const BUFFERS: usize = 8;
/// Used buffers that go back at a time: a reader that waits for one is woken by a system call,
/// which may take as long as ten packets.
const BACK_AT_A_TIME: usize = BUFFERS / 2;

/// How a reader ended.
#[derive(Debug)]
pub(super) enum Ended {
    Whole,
    /// A compressed stream was truncated.
    Cut,
    Failed(io::Error),
}

/// A filled buffer.
pub(super) struct Chunk {
    /// The data is from [`HEADROOM`] to `end`.
    pub(super) buffer: AlignedBytes,
    pub(super) end: usize,
    /// Set on the last chunk.
    pub(super) ended: Option<Ended>,
}

/// The consumer's end of the reading thread, which ends with its file, or when this is dropped.
pub(super) struct Ahead {
    // Only ever used through `&mut`; the mutex makes it `Sync`.
    filled: Mutex<Receiver<Chunk>>,
    empty: SyncSender<AlignedBytes>,
    /// Buffers to be given back: fewer than [`BACK_AT_A_TIME`].
    used: Vec<AlignedBytes>,
    buffer_len: usize,
}

impl Ahead {
    /// Reads `reader` in a thread of its own, `bytes` at a time.
    pub(super) fn start(reader: Box<dyn Read + Send + Sync>, bytes: usize) -> io::Result<Self> {
        let buffer_len = HEADROOM.saturating_add(bytes);
        let (to_window, filled) = mpsc::sync_channel(BUFFERS);
        let (empty, to_fill) = mpsc::sync_channel(BUFFERS);
        for _ in 0..BUFFERS {
            // There is capacity, and the receiver exists.
            let _ = empty.send(AlignedBytes::zeroed(buffer_len));
        }
        thread::Builder::new()
            .name("strata-reader".into())
            .spawn(move || fill_all(reader, &to_fill, &to_window))?;
        Ok(Self {
            filled: Mutex::new(filled),
            empty,
            used: Vec::with_capacity(BACK_AT_A_TIME),
            buffer_len,
        })
    }

    /// The next chunk; waits for it.
    pub(super) fn next(&mut self) -> io::Result<Chunk> {
        let filled = self.filled.get_mut().unwrap_or_else(|e| e.into_inner());
        let gone = |_| io::Error::other("the reading thread is gone");
        filled.recv().map_err(gone)
    }

    /// Returns a buffer to be filled. One that is not of this reader, or that is not filled any
    /// more, is dropped.
    pub(super) fn give_back(&mut self, buffer: AlignedBytes) {
        if buffer.len() != self.buffer_len {
            return;
        }
        self.used.push(buffer);
        if self.used.len() == BACK_AT_A_TIME {
            for buffer in self.used.drain(..) {
                let _ = self.empty.try_send(buffer);
            }
        }
    }
}

fn fill_all(
    mut reader: Box<dyn Read + Send + Sync>,
    to_fill: &Receiver<AlignedBytes>,
    to_window: &SyncSender<Chunk>,
) {
    while let Ok(mut buffer) = to_fill.recv() {
        let mut end = HEADROOM;
        let mut ended = None;
        while end < buffer.len() && ended.is_none() {
            match read(&mut reader, &mut buffer[end..]) {
                Ok(bytes) => end = end.saturating_add(bytes),
                Err(how) => ended = Some(how),
            }
        }
        let last = ended.is_some();
        let chunk = Chunk { buffer, end, ended };
        if to_window.send(chunk).is_err() || last {
            return;
        }
    }
}

/// Reads at least one byte, or says how the reader ended.
pub(super) fn read(reader: &mut impl Read, buffer: &mut [u8]) -> Result<usize, Ended> {
    loop {
        match reader.read(buffer) {
            Ok(0) => return Err(Ended::Whole),
            Ok(bytes) => return Ok(bytes),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // What decompressors report when their input ends within a stream.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(Ended::Cut),
            Err(error) => return Err(Ended::Failed(error)),
        }
    }
}
