//! What can go wrong while reading, and what is merely odd.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A position in an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The input's path; `-` is standard input.
    pub path: PathBuf,
    /// Byte offset from 0, in the decompressed bytes if the input is compressed.
    pub offset: u64,
    /// Whether the input is compressed.
    pub compressed: bool,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, offset, .. } = self;
        write!(f, "{}, byte {offset}", Name(path))?;
        if self.compressed {
            f.write_str(" of the decompressed data")?;
        }
        Ok(())
    }
}

/// A path as users see it.
struct Name<'a>(&'a Path);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.as_os_str() == "-" {
            f.write_str("standard input")
        } else {
            self.0.display().fmt(f)
        }
    }
}

/// Why an input cannot be read, or not any further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// No input was named.
    #[error("no capture file given: name one or more, or - for standard input")]
    NoInput,
    /// Standard input can be read only once.
    #[error("- (standard input) is named more than once: name it once")]
    StandardInputTwice,
    /// More inputs than an input index can count.
    #[error(
        "{count} capture files are more than can be merged at once ({max}): merge fewer at a time"
    )]
    TooManyInputs {
        /// Inputs named.
        count: usize,
        /// Inputs allowed.
        max: usize,
    },
    /// The file could not be opened.
    #[error("{}: cannot open it: {source}", Name(path))]
    Open {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// Reading or decompressing failed.
    #[error(
        "{place}: cannot read further: {source}; the packets before this place were read; check \
         the file itself (gzip -t, or -t of the program that compressed it)"
    )]
    Read {
        /// Where reading stopped.
        place: Place,
        /// What the operating system or the decompressor says.
        source: io::Error,
    },
    /// Reading panicked: a fault of Strata's own.
    #[error(
        "{place}: cannot read further because of a bug in Strata; the packets before this place \
         were read: please report it, with the file if possible"
    )]
    Fault {
        /// Where reading stopped.
        place: Place,
    },
    /// The file is empty; not even a file header is there.
    #[error(
        "{place}: the file is empty; a capture without packets has at least a file header: was the capture started?"
    )]
    Empty {
        /// Byte 0.
        place: Place,
    },
    /// The first bytes are not those of a supported format.
    #[error(
        "{place}: {found}; strata reads pcap and pcapng, plain or compressed with gzip, zstd, xz, bzip2 or lz4: {advice}"
    )]
    UnknownFormat {
        /// Byte 0.
        place: Place,
        /// What the file seems to be.
        found: String,
        /// What to do.
        advice: &'static str,
    },
    /// The format is known, but this variant of it is not supported.
    #[error("{place}: {what}: {advice}")]
    Unsupported {
        /// Where the file says so.
        place: Place,
        /// What is not supported.
        what: String,
        /// What to do.
        advice: &'static str,
    },
    /// The file contradicts itself; everything before this place was delivered.
    #[error(
        "{place}: the file is damaged here: {what}; only the packets before this place are readable"
    )]
    Damaged {
        /// Start of the faulty packet or block.
        place: Place,
        /// What is wrong.
        what: String,
    },
    /// Interface ids are 16 bits wide.
    #[error(
        "{place}: more than {max} interfaces in all inputs together: read fewer files at a time"
    )]
    TooManyInterfaces {
        /// The interface description that is one too many.
        place: Place,
        /// Interfaces allowed.
        max: u32,
    },
    /// Names, descriptions and comments of all interfaces together exceed the limit.
    #[error(
        "{place}: the options of all interfaces together take more than {max} bytes: read fewer \
         files at a time, or convert them to pcap, which has no such options \
         (editcap -F pcap IN OUT)"
    )]
    LongInterfaces {
        /// The interface description that exceeds it.
        place: Place,
        /// Bytes allowed.
        max: usize,
    },
}

impl CaptureError {
    /// Where, and in which input; `None` if no byte has been read.
    #[must_use]
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::NoInput
            | Self::StandardInputTwice
            | Self::TooManyInputs { .. }
            | Self::Open { .. } => None,
            Self::Read { place, .. }
            | Self::Fault { place }
            | Self::Empty { place }
            | Self::UnknownFormat { place, .. }
            | Self::Unsupported { place, .. }
            | Self::Damaged { place, .. }
            | Self::TooManyInterfaces { place, .. }
            | Self::LongInterfaces { place, .. } => Some(place),
        }
    }
}

/// Something odd in an input that could still be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Where it was first seen.
    pub place: Place,
    /// What it is.
    pub kind: WarningKind,
    /// How often it was seen in this input (since warnings were last taken).
    pub count: u64,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.kind)?;
        if self.count > 1 {
            write!(f, " ({} times in this file, first here)", self.count)?;
        }
        Ok(())
    }
}

/// What warnings say of packets whose times in the log are not those of their file. Logs contain it: that is
/// how commands that read them recognise these warnings.
pub const TIME_OUT_OF_RANGE: &str = "before 1970 or after the year 2554";

/// The kinds of [`Warning`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WarningKind {
    /// The file ends inside a packet or block.
    #[error(
        "the file ends in the middle of a packet or block that starts here; all packets before it were read"
    )]
    Truncated,
    /// The compressed stream ends early.
    #[error("the compressed stream ends early; all packets before this place were read")]
    CompressionTruncated,
    /// A timestamp does not fit 64 bits of nanoseconds since 1970: it was shifted, and the file's is
    /// known from the packet's interface (`if_tsoffset`).
    #[error(
        "the time of a packet is {TIME_OUT_OF_RANGE}; it was shifted into that range, and an export as pcapng restores it, by if_tsoffset on a separate interface"
    )]
    TimeShifted,
    /// A timestamp does not fit 64 bits of nanoseconds since 1970, and could not be shifted.
    #[error("a timestamp is {TIME_OUT_OF_RANGE}; it was set to the nearest time in between")]
    TimeOutOfRange,
    /// An option list is broken; the options before the break were kept.
    #[error("an option list is malformed; its options up to the fault were kept, the rest ignored")]
    Options,
    /// A block other than a packet is malformed; it was skipped.
    #[error("a name resolution, statistics, secrets or custom block is malformed; it was left out")]
    Block,
    /// A block of a type that is not known here was skipped.
    #[error("a block of unknown type {0:#010x} was left out")]
    UnknownBlock(u32),
}
