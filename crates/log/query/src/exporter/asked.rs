//! What to export, and what was exported.

use std::fmt;

use strata_processes::of_options;
use strata_store::{Damage, Select};
use strata_wire::{FlowKey, LinkType};

/// What to export.
#[derive(Default)]
pub struct ExportOptions<'a> {
    /// Which blocks may hold wanted packets.
    pub select: Select,
    /// Whether a packet is wanted, by link type, bytes kept and wire length; `None` for all.
    #[allow(clippy::type_complexity)]
    pub matches: Option<Box<dyn FnMut(LinkType, &[u8], u32) -> bool + 'a>>,
    /// Only packets of this flow, those that a search counts with it: in tags or tunnels, and later fragments
    /// whose first one is wanted; `None` for all. The ports of what is not IP are 0.
    pub flow: Option<FlowKey>,
    /// Whether to write class, score, granularity and reason in a comment of each packet. pcapng
    /// only.
    pub comments: bool,
    /// Only packets that were kept so.
    pub kept: Kept,
    /// TLS secrets to write before the packets, in the format of NSS key logs; may be empty. pcapng only.
    pub tls_keys: Vec<u8>,
}

/// How and why packets were kept, and of which process; the default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The name of their class.
    pub class: Option<String>,
    /// `full`, `partial`, `header`.
    pub granularity: Option<String>,
    /// The reason, as in an export's comments.
    pub reason: Option<String>,
    /// The name or PID of the process that sent or receives it (`record --processes`).
    pub process: Option<String>,
}

impl Kept {
    /// Whether that is every packet.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a process of the packet with these options is the one wanted, if any is.
    pub fn is_of_process(&self, options: &[u8]) -> bool {
        let Some(wanted) = self.process.as_deref() else {
            return true;
        };
        let pid = wanted.parse::<u32>().ok();
        let mut processes = of_options(options).into_iter().flatten();
        processes.any(|process| *process.name == *wanted || pid == Some(process.pid))
    }

    /// Whether a packet was kept so; its processes are not compared.
    pub fn is(&self, class: &str, granularity: &str, reason: &str) -> bool {
        let is = |wanted: &Option<String>, there: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == there)
        };
        is(&self.class, class) && is(&self.granularity, granularity) && is(&self.reason, reason)
    }
}

impl fmt::Debug for ExportOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportOptions")
            .field("select", &self.select)
            .finish_non_exhaustive()
    }
}

/// The kind of file to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FileFormat {
    /// pcapng.
    #[default]
    PcapNg,
    /// pcap with nanosecond timestamps.
    Pcap,
}

/// What was exported.
#[derive(Debug, Default)]
pub struct Exported {
    /// Packets written.
    pub packets: u64,
    /// Packets examined.
    pub examined: u64,
    /// Records of blocks decoded.
    pub decoded: u64,
    /// Packets left out, since the log lacks a definition that they refer to: `damage` says which, and
    /// where.
    pub left_out: u64,
    /// Packets that the filter could not test, as [`ByLink::untested`](crate::ByLink::untested) counts them.
    pub untested: u64,
    /// Damaged places that were skipped.
    pub damage: Vec<Damage>,
}

impl Exported {
    /// Adds what was exported of another log.
    pub fn add(&mut self, other: Self) {
        self.packets = self.packets.saturating_add(other.packets);
        self.examined = self.examined.saturating_add(other.examined);
        self.decoded = self.decoded.saturating_add(other.decoded);
        self.left_out = self.left_out.saturating_add(other.left_out);
        self.untested = self.untested.saturating_add(other.untested);
        self.damage.extend(other.damage);
    }
}
