//! What would have been kept of packets with a policy, told from those in the log.

use std::io;

use serde::Serialize;
use strata_archive::ArchiveError;
use strata_query::{ByLink, ExportOptions, packets};
use strata_rules::Action;
use strata_store::Log;
use utoipa::ToSchema;

use crate::answers::refused::Refused;
use crate::search::Sought;
use crate::work::Stop;

/// Packets that are looked at: the others are taken to be like them.
const LOOKED_MAX: u64 = 20_000;

/// Sums over the packets looked at.
#[derive(Clone, Copy, Default)]
struct Sums {
    looked: u64,
    /// The number of arrived packets that those in the log stand for.
    arrived: u64,
    kept_bytes: u64,
    would_bytes: u64,
}

/// Result of a policy for packets in the log. A packet that is in the log as one of N stands for N.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Would {
    /// That arrived.
    packets: u64,
    /// With the policy.
    kept_bytes: u64,
    /// Without.
    now_bytes: u64,
    /// Whether the numbers are exact: nothing was sampled, and all packets were read.
    exact: bool,
}

/// `None` if the action leaves open what is kept, or nothing matched.
///
/// # Errors
///
/// If the log cannot be read.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "estimates of counts"
)]
pub fn would(
    log: &Log,
    (sought, action): (&Sought, Action),
    matched: u64,
    stop: &Stop,
) -> Result<Option<Would>, Refused> {
    let Action::Keep(granularity) = action else {
        return Ok(None);
    };
    let find = sought.find();
    let by_link = sought.filter.clone();
    let mut by_link = by_link.map(|filter| ByLink::new(filter, |_, _| {}));
    let options = ExportOptions {
        select: find.select(),
        matches: by_link.as_mut().map(ByLink::as_matches),
        ..ExportOptions::default()
    };
    let mut sums = Sums::default();
    let mut has_broken = false;
    let mut one = |packet: &strata_query::LoggedPacket<'_>| {
        // Any number can be written as that of a sample.
        let stands_for = one_in(&packet.judged.reason());
        let header_len = u32::from(packet.header_len);
        let kept = granularity.keep.kept_len(header_len, packet.captured_len);
        sums.looked = sums.looked.saturating_add(1);
        sums.arrived = sums.arrived.saturating_add(stands_for);
        sums.kept_bytes = sums.kept_bytes.saturating_add(packet.data.len() as u64);
        sums.would_bytes = sums
            .would_bytes
            .saturating_add(stands_for.saturating_mul(kept.into()));
        if sums.looked >= LOOKED_MAX || stop.go_on().is_break() {
            has_broken = true;
            return Err(io::Error::other("enough was read"));
        }
        Ok(())
    };
    match packets(log, &find, options, &mut one) {
        Ok(_) => {}
        Err(ArchiveError::Write(_)) if has_broken => {}
        Err(error) => return Err(error.into()),
    }
    if sums.looked == 0 {
        return Ok(None);
    }
    let all = matched.max(sums.looked) as f64 / sums.looked as f64;
    let one_in = granularity.sampling.map_or(1, |sampling| sampling.one_in);
    let told = |sum: u64, of: f64| (sum as f64 * of).round() as u64;
    Ok(Some(Would {
        packets: told(sums.arrived, all),
        kept_bytes: told(sums.would_bytes, all / f64::from(one_in.max(1))),
        now_bytes: told(sums.kept_bytes, all),
        exact: sums.looked >= matched && sums.arrived == sums.looked && one_in <= 1,
    }))
}

/// How many packets one stands for that was kept for this reason: N of `sampling:1/N`.
fn one_in(reason: &str) -> u64 {
    let share = reason.strip_prefix("sampling:1/");
    let number = share.map(|share| share.strip_suffix("-flows").unwrap_or(share));
    number.and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_of_a_sample_stands_for_the_others() {
        assert_eq!(one_in("sampling:1/10"), 10);
        assert_eq!(one_in("sampling:1/8-flows"), 8);
        for other in [
            "",
            "sampling",
            "sampling:1/",
            "sampling:1/x",
            "flow-trees:1/10",
        ] {
            assert_eq!(one_in(other), 1, "{other}");
        }
    }
}
