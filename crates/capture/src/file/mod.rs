//! One capture file as a source of packets.
//!
//! A source reads its file in large pieces into a window and describes the
//! packets in it; a batch borrows them from there, so that a packet is copied
//! once, by the kernel or the decompressor.

mod ahead;
mod blocks;
mod interface;
mod open;
mod options;
mod order;
mod pcap;
mod pcapng;
mod time;
mod window;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::error::{CaptureError, Place, Warning, WarningKind};
use crate::packet::{BATCH_MAX, Descriptor};
use open::Format;
use window::{Fetched, Window};

use strata_wire::Meta;

/// How inputs are read.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct InputOptions {
    /// Bytes of each file that are in memory at a time. Grows for larger packets and blocks, to 129
    /// MiB at most. The default, 256 KiB, fits a core's second-level cache; clamped to between 4
    /// KiB and 16 MiB.
    pub window_bytes: usize,
    /// Whether each file is read, and decompressed, by a thread of its own while its packets are
    /// processed: four windows per file instead of one. Never for standard input.
    pub read_ahead: bool,
    /// Once this is set, standard input counts as ended.
    pub stop: Option<Arc<AtomicBool>>,
}

impl Default for InputOptions {
    fn default() -> Self {
        Self {
            window_bytes: 256 << 10,
            read_ahead: false,
            stop: None,
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

    /// The next id, for an interface with this many bytes of options; `at` is where in the window
    /// it is described.
    fn take(
        &mut self,
        options_bytes: usize,
        notes: &Notes,
        at: usize,
    ) -> Result<u16, CaptureError> {
        let id = self.next;
        match id.checked_add(1) {
            Some(next) => self.next = next,
            None => {
                return Err(CaptureError::TooManyInterfaces {
                    place: notes.place(at),
                    max: Self::MAX,
                });
            }
        }
        self.options_bytes = self.options_bytes.saturating_add(options_bytes);
        if self.options_bytes > INTERFACE_OPTIONS_BYTES_MAX {
            return Err(CaptureError::LongInterfaces {
                place: notes.place(at),
                max: INTERFACE_OPTIONS_BYTES_MAX,
            });
        }
        Ok(id)
    }
}

/// The result of [`Source::fill`].
#[derive(Debug)]
pub(crate) enum Filled {
    /// The queue holds at least one packet.
    Packets,
    /// The queue is empty.
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
            offset: self.base.offset + at as u64,
            ..self.base.clone()
        }
    }

    /// Counts a warning; one entry per kind, so their number is bounded by the kinds, and that of
    /// unknown block types by a constant.
    #[cold]
    fn warn(&mut self, kind: WarningKind, at: usize) {
        const MAX: usize = 64;
        if let Some(known) = self.warnings.iter_mut().find(|known| known.kind == kind) {
            known.count += 1;
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
}

impl Source {
    /// Opens a file and reads its header.
    pub(crate) fn open(
        path: &Path,
        index: u16,
        options: &InputOptions,
    ) -> Result<Self, CaptureError> {
        let (reader, compressed) = open::open(path, options.stop.as_ref())?;
        let mut notes = Notes {
            base: Place {
                path: path.to_owned(),
                offset: 0,
                compressed,
            },
            warnings: Vec::new(),
        };
        // A user who interrupts standard input must not have to wait for a thread.
        let read_ahead = options.read_ahead && path.as_os_str() != "-";
        let mut window =
            Window::new(reader, options.window_bytes, read_ahead).map_err(|source| {
                CaptureError::Open {
                    path: path.to_owned(),
                    source,
                }
            })?;
        let format = open::recognise(&mut window, &mut notes)?;
        Ok(Self {
            index,
            window,
            queue: Vec::with_capacity(BATCH_MAX),
            scratch: Vec::new(),
            notes,
            format,
            finished: false,
        })
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
    /// queue. After an error the source is at its end.
    pub(crate) fn fill(&mut self, ids: &mut InterfaceIds) -> Result<Filled, CaptureError> {
        let result = self.fill_inner(ids);
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
                self.window.set_position(self.window.position() + len);
                Ok(meta)
            }
        }
    }

    /// Reads more of the file into the window, so that `bytes` from the position are there, or
    /// finishes.
    fn fetch(&mut self, bytes: usize) -> Result<(), CaptureError> {
        let fetched = self.window.fetch(bytes);
        self.notes.base.offset = self.window.base();
        match fetched {
            Ok(Fetched::Enough) => {}
            Ok(Fetched::End { cut }) => {
                self.finished = true;
                let at = self.window.position();
                if cut {
                    self.notes.warn(WarningKind::CompressionTruncated, at);
                } else if !self.window.rest().is_empty() {
                    self.notes.warn(WarningKind::Truncated, at);
                }
            }
            Err(source) => {
                let place = self.notes.place(self.window.bytes().len());
                return Err(CaptureError::Read { place, source });
            }
        }
        Ok(())
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
