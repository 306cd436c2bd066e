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
mod shift;
mod time;
mod window;

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::error::{CaptureError, Place, Warning, WarningKind};
use crate::packet::{BATCH_MAX, Descriptor};
use open::Format;
use window::{Fetched, Window};

use strata_wire::{Meta, prefetch};

/// How inputs are read.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct InputOptions {
    /// Bytes of each file that are in memory at a time. Grows for larger packets and blocks, to 129
    /// MiB at most. The default, 256 KiB, fits a core's second-level cache; clamped to between 4
    /// KiB and 16 MiB.
    pub window_bytes: usize,
    /// Whether each file is read, and decompressed, by a thread of its own while its packets are
    /// processed: eight windows per file instead of one. Never for standard input.
    pub read_ahead: bool,
    /// Once this is set, standard input, pipes and devices count as ended.
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

    /// Reads more of the file into the window, so that `bytes` from the position are there, or
    /// finishes.
    fn fetch(&mut self, bytes: usize) -> Result<(), CaptureError> {
        let fetched = self.window.fetch(bytes);
        self.notes.base.offset = self.window.base();
        match fetched {
            Ok(Fetched::Enough) if self.window.is_read_ahead() => self.fetch_headers(),
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// How a file of a format begins, and what is before and after a packet's bytes.
    struct Kind {
        name: &'static str,
        start: Vec<u8>,
        header: fn(u32, u32) -> Vec<u8>,
        trailer: fn(u32) -> Vec<u8>,
    }

    fn words(numbers: &[u32], big: bool) -> Vec<u8> {
        let bytes = |number: &u32| match big {
            true => number.to_be_bytes(),
            false => number.to_le_bytes(),
        };
        numbers.iter().flat_map(bytes).collect()
    }

    fn pcap(magic: u32, big: bool) -> Vec<u8> {
        let mut start = words(&[magic, 0, 0, 0, 262_144, 1], big);
        start[4..8].copy_from_slice(if big { &[0, 2, 0, 4] } else { &[2, 0, 4, 0] });
        start
    }

    fn pcapng(big: bool) -> Vec<u8> {
        let mut start = words(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 0, !0, !0, 28], big);
        start[12..16].copy_from_slice(if big { &[0, 1, 0, 0] } else { &[1, 0, 0, 0] });
        let interface = words(&[1, 20, if big { 1 << 16 } else { 1 }, 262_144, 20], big);
        start.extend_from_slice(&interface);
        start
    }

    fn block(index: u32, len: u32, big: bool) -> Vec<u8> {
        let total = 32 + len.next_multiple_of(4);
        words(&[6, total, 0, 0x0005_e5c0, index, len, len], big)
    }

    fn block_end(len: u32, big: bool) -> Vec<u8> {
        let mut end = vec![0; len.next_multiple_of(4) as usize - len as usize];
        end.extend_from_slice(&words(&[32 + len.next_multiple_of(4)], big));
        end
    }

    fn kinds() -> [Kind; 6] {
        const SECONDS: u32 = 0x6553_f100;
        let kind = |name, start, header, trailer| Kind {
            name,
            start,
            header,
            trailer,
        };
        let none: fn(u32) -> Vec<u8> = |_| Vec::new();
        [
            kind(
                "pcap, us",
                pcap(0xa1b2_c3d4, false),
                |index, len| words(&[SECONDS + index % 200, index, len, len], false),
                none,
            ),
            kind(
                "pcap, us, big-endian",
                pcap(0xa1b2_c3d4, true),
                |index, len| words(&[SECONDS + index % 200, index, len, len], true),
                none,
            ),
            kind(
                "pcap, ns, big-endian",
                pcap(0xa1b2_3c4d, true),
                |index, len| words(&[SECONDS + index % 200, index, len, len + 1], true),
                none,
            ),
            kind(
                "pcap, modified",
                pcap(0xa1b2_cd34, false),
                |index, len| words(&[SECONDS + index % 200, index, len, len, 0, 0], false),
                none,
            ),
            kind(
                "pcapng",
                pcapng(false),
                |index, len| block(index, len, false),
                |len| block_end(len, false),
            ),
            kind(
                "pcapng, big-endian",
                pcapng(true),
                |index, len| block(index, len, true),
                |len| block_end(len, true),
            ),
        ]
    }

    /// In files of each format walkers go to each header that is described afterwards, and to no
    /// other place.
    #[test]
    fn walkers_find_the_headers_of_each_format() {
        for Kind {
            name,
            start,
            header,
            trailer,
        } in kinds()
        {
            let mut bytes = start;
            for index in 0..3_000_u32 {
                let len = 40 + index * 7 % 1_400;
                bytes.extend(header(index, len));
                bytes.extend((0..len).map(|n| n.to_le_bytes()[0]));
                bytes.extend(trailer(len));
            }
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&bytes).unwrap();
            let options = InputOptions {
                window_bytes: 4 << 20,
                ..InputOptions::default()
            };
            let (mut source, mut ids) = (
                Source::open(file.path(), 0, &options).unwrap(),
                InterfaceIds::default(),
            );
            while !matches!(source.fill(&mut ids).unwrap(), Filled::Packets) {}
            assert_eq!(
                source.window.base() + source.window.bytes().len() as u64,
                bytes.len() as u64
            );
            let mut walked = Vec::new();
            source.walk(|at| walked.push(at));
            let back = walked.windows(2).filter(|pair| pair[1] < pair[0]);
            assert!(back.count() > 150, "{name}: one walker went alone");
            walked.sort_unstable();
            let header_bytes = header(0, 0).len();
            let mut described = Vec::new();
            while matches!(source.fill(&mut ids).unwrap(), Filled::Packets) {
                let offsets = source.queue().iter().map(|found| found.offset as usize);
                described.extend(offsets.map(|at| at - header_bytes));
            }
            assert_eq!(walked, described, "{name}");
        }
    }

    /// A panic while a file is read ends that, with the place in its error.
    #[test]
    fn a_panic_is_an_error_of_its_file() {
        struct Faulty(Vec<u8>);

        impl std::io::Read for Faulty {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                assert!(!self.0.is_empty(), "as a fault in a decompressor would be");
                let bytes = std::mem::take(&mut self.0);
                buffer[..bytes.len()].copy_from_slice(&bytes);
                Ok(bytes.len())
            }
        }

        let mut start = pcap(0xa1b2_c3d4, false);
        let header = start.len();
        start.extend(words(&[1, 2, 4, 4], false));
        start.extend_from_slice(b"bytes");
        let mut notes = Notes {
            base: Place {
                path: "some.pcap".into(),
                offset: 0,
                compressed: false,
            },
            warnings: Vec::new(),
        };
        for read_ahead in [false, true] {
            let faulty = Box::new(Faulty(start.clone()));
            let mut window = Window::new(faulty, 4096, read_ahead).unwrap();
            if read_ahead {
                // Its thread reads on before it hands over anything, and is gone.
                let error = open::recognise(&mut window, &mut notes).err().unwrap();
                assert!(error.to_string().contains("some.pcap"), "{error}");
                continue;
            }
            let format = open::recognise(&mut window, &mut notes).unwrap();
            let mut source = Source {
                index: 0,
                window,
                queue: Vec::with_capacity(BATCH_MAX),
                scratch: Vec::new(),
                notes: Notes {
                    base: notes.base.clone(),
                    warnings: Vec::new(),
                },
                format,
                finished: false,
            };
            let mut ids = InterfaceIds::default();
            let first = source.fill(&mut ids).unwrap();
            assert!(matches!(first, Filled::Meta(Meta::Interface { .. })));
            assert!(matches!(source.fill(&mut ids).unwrap(), Filled::Packets));
            let error = source.fill(&mut ids).unwrap_err();
            let offset = error.place().unwrap().offset;
            assert_eq!(offset, header as u64 + 20, "{error}");
            assert!(error.to_string().contains("some.pcap, byte 44"), "{error}");
            assert!(matches!(source.fill(&mut ids).unwrap(), Filled::End));
        }
    }
}
