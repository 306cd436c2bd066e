//! From a path to a recognised format.

mod lz4;
mod xz;

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufRead, Cursor, ErrorKind, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, ioctl_fionread};
use strata_sys::AlignedBytes;
use strata_wire::pcapng::block_type;

use super::Notes;
use super::pcap::Pcap;
use super::pcapng::Section;
use super::window::{Fetched, Window};
use crate::error::CaptureError;
use lz4::Lz4;
use xz::Xz;

/// What a source reads.
pub(super) enum Format {
    Pcap(Pcap),
    PcapNg(Section),
}

/// Bytes read from a compressed file at a time.
const COMPRESSED_BYTES: usize = 128 << 10;

/// An opened input, from its first byte on.
pub(super) enum Opened {
    /// A regular file whose bytes are packets as they are.
    Plain(File),
    Stream {
        reader: Box<dyn Read + Send + Sync>,
        compressed: bool,
        /// Whether it comes as another program writes it: by a pipe, a socket or a device.
        is_live: bool,
    },
}

impl Opened {
    pub(super) fn is_compressed(&self) -> bool {
        matches!(self, Self::Stream { compressed, .. } if *compressed)
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self, Self::Stream { is_live, .. } if *is_live)
    }
}

/// Opens a file, or standard input for `-`, with a decompressor if its first bytes need one.
pub(super) fn open(path: &Path, stop: Option<&Arc<AtomicBool>>) -> Result<Opened, CaptureError> {
    let failed = |source| CaptureError::Open {
        path: path.to_owned(),
        source,
    };
    let may_wait = Arc::new(AtomicBool::new(true));
    let mut raw = open_raw(path, stop, &may_wait).map_err(failed)?;
    let is_live = matches!(&raw, Raw::Stream(stream) if stream.is_live);
    let start = first_bytes(&mut raw).map_err(failed)?;
    let kind = Compression::by_magic(&start);
    let raw: Box<dyn Read + Send + Sync> = match raw {
        Raw::Stream(stream) => Box::new(stream),
        Raw::File(file) if kind.is_none() && (&file).rewind().is_ok() => {
            return Ok(Opened::Plain(file));
        }
        Raw::File(file) => Box::new(file),
    };
    let whole = Cursor::new(start).chain(raw);
    let reader: Box<dyn Read + Send + Sync> = match kind {
        None => Box::new(whole),
        Some(Compression::Gzip) => {
            let decoder = MultiGzDecoder::new(Buffered::new(whole));
            Box::new(Careful::new(decoder, may_wait))
        }
        Some(Compression::Xz) => {
            let decoder = Xz::new(Buffered::new(whole));
            Box::new(Careful::new(decoder, may_wait))
        }
        Some(Compression::Bzip2) => {
            let decoder = MultiBzDecoder::new(Buffered::new(whole));
            Box::new(Careful::new(decoder, may_wait))
        }
        Some(Compression::Lz4) => {
            let decoder = Lz4::new(Buffered::new(whole));
            Box::new(Careful::new(decoder, may_wait))
        }
        Some(Compression::Zstd) => {
            let buffered = Buffered::new(whole);
            let decoder = zstd::stream::read::Decoder::with_buffer(buffered).map_err(failed)?;
            Box::new(Careful::new(decoder, may_wait))
        }
    };
    Ok(Opened::Stream {
        reader,
        compressed: kind.is_some(),
        is_live,
    })
}

/// An opened input before its first bytes are looked at.
enum Raw {
    File(File),
    Stream(Stream),
}

impl Read for Raw {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::Stream(stream) => stream.read(buffer),
        }
    }
}

/// Opens without decompressing.
fn open_raw(
    path: &Path,
    stop: Option<&Arc<AtomicBool>>,
    may_wait: &Arc<AtomicBool>,
) -> io::Result<Raw> {
    let is_stored = |found: &Metadata| found.is_file() || found.is_dir();
    let file = if path.as_os_str() == "-" {
        // The standard library's own has a buffer, of which poll knows nothing.
        File::from(io::stdin().as_fd().try_clone_to_owned()?)
    } else if fs::metadata(path).is_ok_and(|found| !is_stored(&found)) {
        // Else opening a named pipe waits for its writer, uninterrupted.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path)?
    } else {
        return Ok(Raw::File(File::open(path)?));
    };
    let is_live = !is_stored(&file.metadata()?);
    Ok(Raw::Stream(Stream {
        file,
        is_live,
        stop: stop.cloned(),
        may_wait: Arc::clone(may_wait),
        last_bytes: None,
    }))
}

/// Standard input, a pipe or a device, which ends when `stop` is set, behind what has arrived by then: a user
/// who interrupts the program must not have to wait for the next packet.
struct Stream {
    file: File,
    /// Whether it is no regular file.
    is_live: bool,
    stop: Option<Arc<AtomicBool>>,
    /// Whether a read waits for bytes if none have arrived; otherwise it fails with `WouldBlock`.
    may_wait: Arc<AtomicBool>,
    /// Once `stop` was found set: the bytes that are still to be read.
    last_bytes: Option<u64>,
}

/// How long a wait for input ignores `stop`.
const STOP_CHECK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// How long a read that must not wait does.
const NO_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

impl Stream {
    fn is_stopped(&self) -> bool {
        let stop = self.stop.as_ref();
        stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Bytes that can be read without waiting: of a regular file none, since all of it is there, and of
    /// some devices, which do not say it.
    fn arrived(&self) -> u64 {
        match self.is_live.then(|| ioctl_fionread(&self.file)) {
            Some(Ok(bytes)) => bytes,
            Some(Err(_)) | None => 0,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.last_bytes.is_none() && self.is_stopped() {
                self.last_bytes = Some(self.arrived());
            }
            let last = self.last_bytes.map(usize::try_from);
            let most = match last {
                Some(Ok(0)) => return Ok(0),
                Some(Ok(last)) => buffer.len().min(last),
                // More than there is memory.
                Some(Err(_)) | None => buffer.len(),
            };
            let may_wait = self.may_wait.load(Ordering::Relaxed);
            let wait = match may_wait {
                true => &STOP_CHECK,
                false => &NO_WAIT,
            };
            let mut waits = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut waits, Some(wait)) {
                // Another reader was faster.
                Ok(0) if last.is_some() => return Ok(0),
                Ok(0) if !may_wait => return Err(ErrorKind::WouldBlock.into()),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => match rustix::io::read(&self.file, &mut buffer[..most]) {
                    // Another reader was faster.
                    Err(Errno::AGAIN) => {}
                    read => {
                        let read = read?;
                        if let Some(last_bytes) = &mut self.last_bytes {
                            *last_bytes = last_bytes.saturating_sub(read as u64);
                        }
                        return Ok(read);
                    }
                },
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// As `BufReader`, but its memory begins at a page, where the kernel copies fast.
struct Buffered<R> {
    inner: R,
    memory: AlignedBytes,
    start: usize,
    end: usize,
}

impl<R: Read> Buffered<R> {
    fn new(inner: R) -> Self {
        Self {
            inner,
            memory: AlignedBytes::zeroed(COMPRESSED_BYTES),
            start: 0,
            end: 0,
        }
    }
}

impl<R: Read> BufRead for Buffered<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            self.end = self.inner.read(&mut self.memory)?;
            self.start = 0;
        }
        Ok(&self.memory[self.start..self.end])
    }

    fn consume(&mut self, bytes: usize) {
        self.start = self.start.saturating_add(bytes).min(self.end);
    }
}

impl<R: Read> Read for Buffered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

/// Reads a decompressor in small pieces, because one that meets damage discards what it has decoded
/// in the same call. So at most one piece before the damage is lost, independent of the read size,
/// and the error comes after everything before it. What has been decoded is not held back until more of a
/// stream comes.
struct Careful<R> {
    inner: R,
    /// Of the stream that `inner` reads.
    may_wait: Arc<AtomicBool>,
    piece: [u8; PIECE_BYTES],
    start: usize,
    end: usize,
    failed: Option<io::Error>,
}

/// Bytes of a piece. Smaller ones are slow: 64 bytes take three times as long.
const PIECE_BYTES: usize = 512;

impl<R> Careful<R> {
    fn new(inner: R, may_wait: Arc<AtomicBool>) -> Self {
        Self {
            inner,
            may_wait,
            piece: [0; PIECE_BYTES],
            start: 0,
            end: 0,
            failed: None,
        }
    }
}

impl<R: Read> Read for Careful<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            if self.start == self.end {
                if self.failed.is_none() {
                    self.may_wait.store(done == 0, Ordering::Relaxed);
                    (self.start, self.end) = (0, 0);
                    match self.inner.read(&mut self.piece) {
                        Ok(0) => break,
                        Ok(read) => self.end = read,
                        // The decompressors go on from there with the next call.
                        Err(error) if done > 0 && error.kind() == ErrorKind::WouldBlock => break,
                        Err(error) => self.failed = Some(error),
                    }
                }
                if let Some(error) = self.failed.take_if(|_| done == 0) {
                    return Err(error);
                }
                if self.failed.is_some() {
                    break;
                }
            }
            let from = &self.piece[self.start..self.end];
            let to = &mut buffer[done..];
            let len = from.len().min(to.len());
            to[..len].copy_from_slice(&from[..len]);
            // Within both.
            self.start = self.start.wrapping_add(len);
            done = done.wrapping_add(len);
        }
        Ok(done)
    }
}

enum Compression {
    Gzip,
    Zstd,
    Xz,
    Bzip2,
    Lz4,
}

impl Compression {
    /// RFC 1952 section 2.3.1; RFC 8878 sections 3.1.1 and 3.1.2; the .xz file format, section 2.1.1.1; LZ4 Frame Format
    /// Description. bzip2 has no specification but its program: `BZh` and the size of blocks.
    fn by_magic(start: &[u8]) -> Option<Self> {
        match start {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0xfd, b'7', b'z', b'X'] => Some(Self::Xz),
            [b'B', b'Z', b'h', b'1'..=b'9'] => Some(Self::Bzip2),
            start if start == lz4::MAGIC => Some(Self::Lz4),
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Up to 4 bytes.
fn first_bytes(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut start = vec![0; 4];
    let mut len = 0;
    while len < start.len() {
        match reader.read(&mut start[len..]) {
            Ok(0) => break,
            Ok(bytes) => len = len.saturating_add(bytes),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    start.truncate(len);
    Ok(start)
}

/// Reads the file header and returns the format.
pub(super) fn recognise(window: &mut Window, notes: &mut Notes) -> Result<Format, CaptureError> {
    let fetched = fetch(window, notes, Pcap::HEADER_BYTES)?;
    let start = window.rest();
    if start.is_empty() {
        let place = notes.place(0);
        return Err(match fetched {
            Fetched::End { cut: true } => cut_header(notes, "compressed stream"),
            _ => CaptureError::Empty { place },
        });
    }
    if start.starts_with(&block_type::SECTION.to_be_bytes()) {
        for need in Section::header_needs() {
            let bytes = need(window.rest()).map_err(|what| notes.damaged(0, what))?;
            if fetch(window, notes, bytes)? != Fetched::Enough {
                return Err(cut_header(notes, "pcapng section header"));
            }
        }
        return Ok(Format::PcapNg(Section::new()));
    }
    let Some(magic) = Pcap::magic(start) else {
        return Err(unknown(start, notes));
    };
    let Some(header) = start.first_chunk::<{ Pcap::HEADER_BYTES }>() else {
        return Err(cut_header(notes, "pcap file header"));
    };
    let pcap =
        Pcap::parse(magic, header).map_err(|(offset, what, advice)| CaptureError::Unsupported {
            place: notes.place(offset),
            what,
            advice,
        })?;
    window.set_position(Pcap::HEADER_BYTES);
    Ok(Format::Pcap(pcap))
}

fn fetch(window: &mut Window, notes: &Notes, bytes: usize) -> Result<Fetched, CaptureError> {
    window.fetch(bytes).map_err(|source| CaptureError::Read {
        place: notes.place(window.bytes().len()),
        source,
    })
}

fn cut_header(notes: &Notes, what: &str) -> CaptureError {
    CaptureError::Unsupported {
        place: notes.place(0),
        what: format!("the file ends within its {what}"),
        advice: "it has no packets; capture or copy it again",
    }
}

const CONVERT: &str = "convert it with Wireshark's editcap: editcap -F pcapng IN OUT";
const UNPACK: &str = "decompress it first";

/// Formats that are not supported, by their first bytes: what they are, what to do.
const UNSUPPORTED: &[(&[u8], &str, &str)] = &[
    (b"snoop\0\0\0", "this is a snoop capture", CONVERT),
    (
        b"RTSS",
        "this is a Microsoft Network Monitor 1 capture",
        CONVERT,
    ),
    (
        b"GMBU",
        "this is a Microsoft Network Monitor 2 capture",
        CONVERT,
    ),
    (b"btsnoop\0", "this is a Bluetooth btsnoop capture", CONVERT),
    (b"TRSNIFF data", "this is a Sniffer capture", CONVERT),
    (b"ObserverPktBuffer", "this is an Observer capture", CONVERT),
    (b"iptrace ", "this is an AIX iptrace capture", CONVERT),
    (
        b"\x7fver",
        "this is an EtherPeek or OmniPeek capture",
        CONVERT,
    ),
    (b"5VW\0", "this is an Accellent 5Views capture", CONVERT),
    (
        b"\xa1\xb2\x34\xcd",
        "this is a pcap file of a variant without a description (magic a1b234cd)",
        CONVERT,
    ),
    (
        b"\xcd\x34\xb2\xa1",
        "this is a pcap file of a variant without a description (magic a1b234cd)",
        CONVERT,
    ),
    (
        b"\xa1\x2b\x3c\x4d",
        "this is a pcap file of a variant without a description (magic a12b3c4d)",
        CONVERT,
    ),
    (
        b"\x4d\x3c\x2b\xa1",
        "this is a pcap file of a variant without a description (magic a12b3c4d)",
        CONVERT,
    ),
    (
        b"\x1c\x00\x01\xac",
        "this is an IXIA hardware capture",
        CONVERT,
    ),
    (
        b"\xac\x01\x00\x1c",
        "this is an IXIA hardware capture",
        CONVERT,
    ),
    (
        b"\x1c\x00\x01\xab",
        "this is an IXIA software capture",
        CONVERT,
    ),
    (
        b"\xab\x01\x00\x1c",
        "this is an IXIA software capture",
        CONVERT,
    ),
    (
        b"\x02\x21\x4c\x18",
        "this is an lz4 file of the legacy format",
        UNPACK,
    ),
    (b"PK\x03\x04", "this is a zip archive", UNPACK),
    (
        b"PAR1",
        "this is a Parquet file",
        "read it with a SQL engine",
    ),
];

/// Names a format that is not supported, by its first bytes.
fn unknown(start: &[u8], notes: &Notes) -> CaptureError {
    let place = notes.place(0);
    if let Some((_, found, advice)) = UNSUPPORTED
        .iter()
        .find(|(magic, ..)| start.starts_with(magic))
    {
        return CaptureError::UnknownFormat {
            place,
            found: (*found).to_owned(),
            advice,
        };
    }
    let hex: Vec<String> = start
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    CaptureError::UnknownFormat {
        place,
        found: format!(
            "this is not a known capture format (it starts with {})",
            hex.join(" ")
        ),
        advice: "if Wireshark opens it (Endace ERF, for one, has no signature), convert it with \
        editcap -F pcapng IN OUT",
    }
}
