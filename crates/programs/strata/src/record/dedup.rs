//! Options of `strata record` for packets that are captured twice.

use anyhow::Result;
use strata_pipeline::Dedup;
use strata_reading::export::dedup::{Ignored, differing, window_ns};

/// Options of `strata record` for packets that are captured twice.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Duplicates")]
pub(super) struct DedupArgs {
    /// Record only one copy of each packet, for example if two mirror ports see the same packets. A
    /// packet is a copy if a recorded packet has the same headers, length and captured payload, and
    /// its time differs by at most TIME (such as 50ms; up to 10s). Copies are counted (duplicates).
    /// Each worker remembers the packets of the last TIME + 100 ms, up to 1,048,576 packets in 40
    /// MiB; a packet that cannot be compared with all packets within TIME is recorded and counted
    /// (uncompared). Over IPv4, a retransmission is not a copy if the sender numbers its packets
    /// (IPv4 ID); over IPv6, or with IPv4 ID 0, an identical retransmission within TIME counts as a
    /// copy.
    #[arg(long, value_name = "TIME", conflicts_with = "early_cut")]
    dedup: Option<String>,

    /// With --dedup, ignore differences in these fields between two copies of a packet, as on both
    /// sides of a router or switch. May be given several times, or separated by commas.
    #[arg(
        long,
        value_enum,
        value_name = "FIELDS",
        value_delimiter = ',',
        requires = "dedup"
    )]
    dedup_ignore: Vec<Ignored>,
}

impl DedupArgs {
    /// What is removed; `None` for nothing.
    pub(super) fn spec(&self) -> Result<Option<Dedup>> {
        let Some(time) = &self.dedup else {
            return Ok(None);
        };
        Ok(Some(Dedup {
            window_ns: window_ns(time)?,
            differing: differing(&self.dedup_ignore),
        }))
    }
}
