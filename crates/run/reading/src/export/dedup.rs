//! `--dedup`: packets that were captured twice, in exports and, by the same options, in recordings.

use anyhow::Result;
use clap::ValueEnum;
use strata_query::{Doubles, DoublesCounts};
use strata_terminal::output::refuse;
use strata_terminal::text;
use strata_wire::sighting::Differing;
use tracing::{info, warn};

/// Longest time between two copies of a packet.
const WINDOW_MAX_NS: u64 = 10_000_000_000;

/// What counts as a double.
#[derive(Debug, clap::Args)]
pub(super) struct DedupArgs {
    /// Omit duplicates, for example if two mirror ports see the same packets: packets with the same
    /// headers and length as a packet captured at most TIME (such as 50ms) earlier, and the same
    /// payload as far as both copies kept it. The copy with the most kept bytes is written. For
    /// pcapng and pcap.
    #[arg(long, value_name = "TIME")]
    pub(super) dedup: Option<String>,

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

/// What may differ between two copies of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ignored {
    /// Ethernet addresses.
    Macs,
    /// VLAN tags.
    Tags,
    /// TTL or hop limit, and the checksum of the IPv4 header.
    Ttl,
}

impl DedupArgs {
    /// What removes doubles, if it is wanted.
    pub(super) fn doubles(&self) -> Result<Option<Doubles>> {
        let Some(time) = &self.dedup else {
            return Ok(None);
        };
        let window_ns = window_ns(time)?;
        Ok(Some(Doubles::new(window_ns, differing(&self.dedup_ignore))))
    }
}

/// The value of `--dedup`, ns.
///
/// # Errors
///
/// If it is no length of time, or more than ten seconds.
pub fn window_ns(time: &str) -> Result<u64> {
    let window_ns =
        text::short_duration_ns(time).map_err(|problem| refuse(format!("--dedup: {problem}")))?;
    if window_ns > WINDOW_MAX_NS {
        return Err(refuse(format!(
            "--dedup {time}: at most 10s is allowed, because packets of that time are kept in \
             memory"
        )));
    }
    Ok(window_ns)
}

/// What may differ between two copies, by `--dedup-ignore`.
#[must_use]
pub fn differing(ignored: &[Ignored]) -> Differing {
    Differing {
        macs: ignored.contains(&Ignored::Macs),
        tags: ignored.contains(&Ignored::Tags),
        ttl: ignored.contains(&Ignored::Ttl),
    }
}

/// Says what was removed.
pub(super) fn say(counts: DoublesCounts) {
    info!(
        "{} omitted as duplicates",
        text::count_of(counts.removed, "packet")
    );
    if counts.uncompared > 0 {
        warn!(
            "{} written without a --dedup check, so some may be duplicates: their headers have no payload \
             checksum, and part of their payload was not kept",
            text::count_of(counts.uncompared, "packet")
        );
    }
    if counts.unchecked > 0 {
        warn!(
            "{} written before the --dedup window ended, because more than 256 MiB or 1,048,576 packets \
             were waiting: duplicates that arrived later are written too; give a shorter time",
            text::count_of(counts.unchecked, "packet")
        );
    }
}
