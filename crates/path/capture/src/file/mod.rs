//! One capture file as a source of packets.
//!
//! A source reads its file in large pieces into a window and describes the
//! packets in it; a batch borrows them from there, so that a packet is copied
//! once, by the kernel or the decompressor, or not at all.

mod ahead;
mod blocks;
mod interface;
mod mapped;
mod open;
mod options;
mod order;
mod pcap;
mod pcapng;
mod shift;
mod time;
mod window;

use std::io::{self, Read};
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{CaptureError, Place, Warning, WarningKind};
use crate::packet::{BATCH_MAX, Descriptor};
use crate::walkers::CLOSE_BYTES;
use open::{Format, Opened};
use window::{Fetched, Window};

use strata_wire::{Meta, prefetch};

/// Where an input comes from.
pub enum InputSource {
    /// A file; `-` is standard input.
    File(PathBuf),
    /// Uncompressed bytes of a capture file, and their name in messages. It is read to its end.
    Reader(PathBuf, Box<dyn Read + Send + Sync>),
}

impl std::fmt::Debug for InputSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Reader(name, _) => f.debug_tuple("Reader").field(name).finish_non_exhaustive(),
        }
    }
}

/// How inputs are read.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct InputOptions {
    /// Bytes of each file that are in memory at a time. Grows for larger packets and blocks, to 129
    /// MiB at most. The default, 256 KiB, fits a core's second-level cache; clamped to between 4
    /// KiB and 16 MiB.
    pub window_bytes: usize,
    /// Whether each file is read, and decompressed, by a thread of its own while its packets are
    /// processed: eight windows per file instead of one. Never for standard input, pipes, devices and files
    /// in view.
    pub read_ahead: bool,
    /// Regular files of at least this size are not copied: their packets are looked at where the page
    /// cache has them. The default is 4 MiB.
    pub viewed_bytes_min: u64,
    /// Once this is set, pipes and devices end behind what has arrived by then, and standard input that is
    /// a regular file where it is.
    pub stop: Option<Arc<AtomicBool>>,
    /// Counts the bytes of all files that are behind, decompressed, as often as a window moves on.
    pub read_bytes: Option<Arc<AtomicU64>>,
}

impl Default for InputOptions {
    fn default() -> Self {
        Self {
            window_bytes: 256 << 10,
            read_ahead: false,
            viewed_bytes_min: 4 << 20,
            stop: None,
            read_bytes: None,
        }
    }
}

/// Maximum option bytes of all interfaces together, since readers keep them: 1 KiB for each of the
/// possible 65,535, where a crafted file could describe that many of 16 MiB.
const INTERFACE_OPTIONS_BYTES_MAX: usize = 64 << 20;

/// Interface ids are dense and fit 16 bits: at most 65,535 of them.
#[derive(Debug, Default)]
pub(crate) struct InterfaceIds {
    next: u16,
    options_bytes: usize,
}

impl InterfaceIds {
    const MAX: u32 = u16::MAX as u32;

    /// As [`InterfaceIds::take`]; `None` if there is no room, which changes nothing.
    fn try_take(&mut self, options_bytes: usize) -> Option<u16> {
        let (id, next) = (self.next, self.next.checked_add(1)?);
        let options_bytes = self.options_bytes.checked_add(options_bytes)?;
        if options_bytes > INTERFACE_OPTIONS_BYTES_MAX {
            return None;
        }
        (self.next, self.options_bytes) = (next, options_bytes);
        Some(id)
    }

    /// The next id, for an interface with this many bytes of options; `at` is where in the window
    /// it is described.
    fn take(
        &mut self,
        options_bytes: usize,
        notes: &Notes,
        at: usize,
    ) -> Result<u16, CaptureError> {
        match self.try_take(options_bytes) {
            Some(id) => Ok(id),
            None if self.next == u16::MAX => Err(CaptureError::TooManyInterfaces {
                place: notes.place(at),
                max: Self::MAX,
            }),
            None => Err(CaptureError::LongInterfaces {
                place: notes.place(at),
                max: INTERFACE_OPTIONS_BYTES_MAX,
            }),
        }
    }
}

/// The result of [`Source::fill`].
#[derive(Debug)]
pub(crate) enum Filled {
    /// The queue holds at least one packet.
    Packets,
    /// The queue is empty; the next item of the file is not a packet but this.
    Meta(Meta),
    /// The queue is empty, and nothing more will come.
    End,
}

/// Why a hot loop stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The queue is full.
    Full,
    /// The packet or block at the position needs this many bytes in the window.
    Need(usize),
    /// Something other than a well-formed packet is at the position.
    Other,
}

/// What a hot loop works on.
struct Work<'a> {
    /// The window's bytes; packets are described by offsets from its start.
    bytes: &'a [u8],
    /// Where the next packet or block starts in `bytes`.
    at: usize,
    /// Has space for [`BATCH_MAX`] descriptors.
    queue: &'a mut Vec<Descriptor>,
    /// For options that cannot be borrowed from the window.
    scratch: &'a mut Vec<u8>,
    notes: &'a mut Notes,
    source: u16,
}

/// Where a source is, and the anomalies it found.
pub(crate) struct Notes {
    /// The path, and whether the file is compressed; the offset is that of the
    /// window's first byte.
    base: Place,
    warnings: Vec<Warning>,
}

impl Notes {
    fn place(&self, at: usize) -> Place {
        Place {
            // A file's offset, below 2^63, and one in a window.
            offset: self.base.offset.saturating_add(at as u64),
            ..self.base.clone()
        }
    }

    /// Counts a warning; one entry per kind, so their number is bounded by the kinds, and that of
    /// unknown block types by a constant.
    #[cold]
    fn warn(&mut self, kind: WarningKind, at: usize) {
        const MAX: usize = 64;
        if let Some(known) = self.warnings.iter_mut().find(|known| known.kind == kind) {
            known.count = known.count.saturating_add(1);
        } else if self.warnings.len() < MAX {
            self.warnings.push(Warning {
                place: self.place(at),
                kind,
                count: 1,
            });
        }
    }

    #[cold]
    fn damaged(&self, at: usize, what: impl Into<String>) -> CaptureError {
        CaptureError::Damaged {
            place: self.place(at),
            what: what.into(),
        }
    }
}

/// One input.
pub(crate) struct Source {
    index: u16,
    window: Window,
    queue: Vec<Descriptor>,
    scratch: Vec<u8>,
    notes: Notes,
    format: Format,
    finished: bool,
    /// Packets described since the window was moved.
    described: usize,
    /// Whether it comes as another program writes it.
    is_live: bool,
    /// Its length, of a regular file that is not compressed.
    plain_bytes: Option<u64>,
    read_bytes: Option<Arc<AtomicU64>>,
}

impl Source {
    /// Opens an input and reads its header.
    pub(crate) fn open(
        input: InputSource,
        index: u16,
        options: &InputOptions,
    ) -> Result<Self, CaptureError> {
        let (path, opened) = match input {
            InputSource::File(path) => {
                let opened = open::open(&path, options.stop.as_ref())?;
                (path, opened)
            }
            InputSource::Reader(name, reader) => {
                let opened = Opened::Stream {
                    reader,
                    compressed: false,
                    is_live: false,
                };
                (name, opened)
            }
        };
        let mut notes = Notes {
            base: Place {
                path: path.clone(),
                offset: 0,
                compressed: opened.is_compressed(),
            },
            warnings: Vec::new(),
        };
        let is_live = opened.is_live();
        // A user who interrupts a pipe must not have to wait for a thread, nor its packets for a full buffer.
        let read_ahead = options.read_ahead && !is_live && path.as_os_str() != "-";
        let bytes = options.window_bytes;
        let plain_bytes = match &opened {
            Opened::Plain(file) => file.metadata().ok().map(|about| about.len()),
            Opened::Stream { .. } => None,
        };
        let window = match opened {
            Opened::Plain(file) => {
                Window::of_file(file, bytes, read_ahead, options.viewed_bytes_min)
            }
            Opened::Stream { reader, .. } => Window::new(reader, bytes, read_ahead),
        };
        let mut window = window.map_err(|source| CaptureError::Open { path, source })?;
        let format = open::recognise(&mut window, &mut notes)?;
        Ok(Self {
            index,
            window,
            queue: Vec::with_capacity(BATCH_MAX),
            scratch: Vec::new(),
            notes,
            format,
            finished: false,
            described: 0,
            is_live,
            plain_bytes,
            read_bytes: options.read_bytes.clone(),
        })
    }

    /// Whether it comes as another program writes it: by a pipe, a socket or a device.
    pub(crate) fn is_live(&self) -> bool {
        self.is_live
    }

    /// Its length, of a regular file that is not compressed.
    pub(crate) fn plain_bytes(&self) -> Option<u64> {
        self.plain_bytes
    }

    pub(crate) fn queue(&self) -> &[Descriptor] {
        &self.queue
    }

    #[inline]
    pub(crate) fn window_bytes(&self) -> &[u8] {
        self.window.bytes()
    }

    #[inline]
    pub(crate) fn scratch_bytes(&self) -> &[u8] {
        &self.scratch
    }

    pub(crate) fn warnings(&self) -> &[Warning] {
        &self.notes.warnings
    }

    pub(crate) fn take_warnings(&mut self) -> Vec<Warning> {
        std::mem::take(&mut self.notes.warnings)
    }

    /// Describes the next packets, or delivers the next item that is not a packet. Overwrites the
    /// queue. After an error the source is at its end; a panic is one too, and ends no other source.
    pub(crate) fn fill(&mut self, ids: &mut InterfaceIds) -> Result<Filled, CaptureError> {
        // Of what it leaves half done, only where it was is looked at.
        let filled = panic::catch_unwind(AssertUnwindSafe(|| self.fill_inner(ids)));
        let result = filled.unwrap_or_else(|_| {
            self.notes.base.offset = self.window.base();
            let place = self.notes.place(self.window.position());
            Err(CaptureError::Fault { place })
        });
        if result.is_err() {
            self.finished = true;
            self.queue.clear();
        }
        result
    }

    fn fill_inner(&mut self, ids: &mut InterfaceIds) -> Result<Filled, CaptureError> {
        self.queue.clear();
        self.scratch.clear();
        while !self.finished {
            let stop = self.describe();
            self.window
                .check()
                .map_err(|source| self.unreadable(source))?;
            if !self.queue.is_empty() {
                return Ok(Filled::Packets);
            }
            match stop {
                Stop::Full => {}
                Stop::Need(bytes) => self.fetch(bytes)?,
                Stop::Other => {
                    if let Some(meta) = self.other(ids)? {
                        return Ok(Filled::Meta(meta));
                    }
                }
            }
        }
        Ok(Filled::End)
    }

    /// Runs the format's hot loop over the window.
    fn describe(&mut self) -> Stop {
        let mut work = Work {
            at: self.window.position(),
            bytes: self.window.bytes(),
            queue: &mut self.queue,
            scratch: &mut self.scratch,
            notes: &mut self.notes,
            source: self.index,
        };
        let stop = match &self.format {
            Format::Pcap(pcap) => pcap.describe(&mut work),
            Format::PcapNg(section) => section.describe(&mut work),
        };
        let at = work.at;
        self.window.set_position(at);
        self.described = self.described.saturating_add(self.queue.len());
        stop
    }

    /// Handles what stopped the hot loop: `None` if there is nothing to deliver.
    fn other(&mut self, ids: &mut InterfaceIds) -> Result<Option<Meta>, CaptureError> {
        match &mut self.format {
            Format::Pcap(pcap) => pcap.other(&self.window, &self.notes, ids).map(Some),
            Format::PcapNg(section) => {
                let (len, meta) = match section.other(
                    self.window.rest(),
                    self.window.position(),
                    &mut self.notes,
                    ids,
                )? {
                    pcapng::Block::Need(bytes) => {
                        self.fetch(bytes)?;
                        return Ok(None);
                    }
                    pcapng::Block::Read { len, meta } => (len, meta),
                };
                self.window.skip(len);
                Ok(meta)
            }
        }
    }

    /// Brings headers that another core has read into this one's cache, as a hint.
    fn fetch_headers(&self) {
        /// A packet's own headers end in the line after that of its record's, or begin there.
        const LINE: usize = 64;
        let bytes = self.window.bytes();
        self.walk(|at| {
            prefetch(bytes, at);
            prefetch(bytes, at.saturating_add(LINE));
        });
    }

    fn walk(&self, touch: impl FnMut(usize)) {
        let (bytes, at) = (self.window.bytes(), self.window.position());
        match &self.format {
            Format::Pcap(pcap) => pcap.walk(bytes, at, touch),
            Format::PcapNg(section) => section.walk(bytes, at, touch),
        }
    }

    fn fetch_from(&mut self, bytes: usize, is_dense: bool) -> io::Result<Fetched> {
        if is_dense && self.window.is_mapped() {
            // All of it is looked at, and the kernel copies it faster than it can be fetched bit by bit.
            self.window.read_on()?;
        }
        self.window.fetch(bytes)
    }

    /// Reads more of the file into the window, so that `bytes` from the position are there, or
    /// finishes.
    fn fetch(&mut self, bytes: usize) -> Result<(), CaptureError> {
        // As those before: where headers are close, the CPU's own prefetching is faster than walkers.
        let is_dense = self.window.position() / CLOSE_BYTES < self.described;
        let fetched = self.fetch_from(bytes, is_dense);
        self.described = 0;
        let before = std::mem::replace(&mut self.notes.base.offset, self.window.base());
        if let Some(count) = &self.read_bytes {
            let more = self.notes.base.offset.saturating_sub(before);
            count.fetch_add(more, Ordering::Relaxed);
        }
        match fetched {
            Ok(Fetched::Enough) => {
                if self.window.is_cold() && !is_dense {
                    self.fetch_headers();
                }
            }
            Ok(Fetched::End { cut }) => {
                self.finished = true;
                let at = self.window.position();
                if cut {
                    self.notes.warn(WarningKind::CompressionTruncated, at);
                } else if !self.window.rest().is_empty() {
                    self.notes.warn(WarningKind::Truncated, at);
                }
            }
            Err(source) => return Err(self.unreadable(source)),
        }
        Ok(())
    }

    /// The error of a file that cannot be read beyond the window.
    fn unreadable(&self, source: io::Error) -> CaptureError {
        let place = self.notes.place(self.window.bytes().len());
        CaptureError::Read { place, source }
    }
}

/// An offset or length within a window or its scratch.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "a window has at most 2^28 bytes, its scratch less than 2^30"
)]
fn offset32(at: usize) -> u32 {
    debug_assert!(at < 1 << 30);
    at as u32
}

#[cfg(test)]
mod tests;
