//! What capture files hold in addition to their packets.

mod clock;

pub use clock::{unix_ns, unix_seconds};

use crate::formats::pcapng::options::{self, code};
use crate::{KeepKind, LinkType};

/// What an interface's comment begins with that says what its packets were cut to.
const KEPT: &str = "strata: granularity=";

/// Something in a capture file that is not a packet, in the file's order.
///
/// All bodies and options are normalised to little-endian pcapng, so that they
/// can be written into a little-endian section as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meta {
    /// An interface, delivered before the first packet that uses it.
    Interface {
        /// Its id: dense from 0 over all inputs and sections.
        id: u16,
        /// What is known about it.
        interface: Interface,
    },
    /// A pcapng section begins (draft-ietf-opsawg-pcapng, section 4.1). A pcap
    /// file has none.
    Section {
        /// Options of the section header: comment, hardware, os, application.
        options: Vec<u8>,
    },
    /// A block that is neither packet, interface nor section header: name
    /// resolution, interface statistics, decryption secrets, systemd journal,
    /// custom.
    Block {
        /// One of [`block_type`](crate::formats::pcapng::block_type).
        block_type: u32,
        /// The interface that interface statistics are about; the body's first
        /// four bytes hold the file's own number, which a writer replaces.
        interface: Option<u16>,
        /// The block's body without type, lengths; a multiple of 4 bytes.
        /// Times within it count nanoseconds since 1970.
        body: Vec<u8>,
    },
}

/// A capture interface: the context in which a packet's bytes have a meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// What the first bytes of its packets mean.
    pub link: LinkType,
    /// Bytes kept of each packet at most, as the file says; 0 is no limit. There are files with
    /// longer packets.
    pub snaplen: u32,
    /// Option list (see [`options`]) without `if_tsresol` and `if_tsoffset`, which the timestamps
    /// already include. With `if_tsoffset`, those of the file were out of range, and are the
    /// timestamps plus that number of seconds.
    pub options: Vec<u8>,
}

impl Interface {
    /// An interface without options.
    #[must_use]
    pub fn new(link: LinkType, snaplen: u32) -> Self {
        Self {
            link,
            snaplen,
            options: Vec::new(),
        }
    }

    /// The interface's name (`if_name`), such as `eth0`; `None` without a name or if it is not
    /// UTF-8.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.text(code::IF_NAME)
    }

    /// What its packets were cut to before they came, as a comment says that a collector of exported packets writes:
    /// to headers, or in part ([`KeepKind::as_arrived`]). [`KeepKind::Full`] if there is none, as in captures.
    #[must_use]
    pub fn kept(&self) -> KeepKind {
        let mut said = options::comments(&self.options).filter_map(|comment| {
            let name = comment.strip_prefix(KEPT)?;
            // A collector says nothing else; a file may come from anyone.
            let kinds = [KeepKind::Header, KeepKind::Partial];
            kinds.into_iter().find(|kind| kind.name() == name)
        });
        said.next().unwrap_or(KeepKind::Full)
    }

    /// Adds that comment.
    #[allow(clippy::missing_panics_doc, reason = "the comment is short")]
    pub fn set_kept(&mut self, kept: KeepKind) {
        let comment = format!("{KEPT}{}", kept.name());
        options::push_comment(&mut self.options, &comment).expect("it is short");
    }

    /// The interface's description (`if_description`).
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.text(code::IF_DESCRIPTION)
    }

    /// Bits of frame check sequence at the end of each packet (`if_fcslen`).
    #[must_use]
    pub fn fcs_bits(&self) -> Option<u8> {
        options::find(&self.options, code::IF_FCSLEN).and_then(|value| value.first().copied())
    }

    fn text(&self, code: u16) -> Option<&str> {
        let value = options::find(&self.options, code)?;
        // Some writers count a closing NUL as part of the text.
        let value = value.strip_suffix(&[0]).unwrap_or(value);
        std::str::from_utf8(value).ok()
    }
}
