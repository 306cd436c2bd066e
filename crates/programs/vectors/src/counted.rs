//! The message about packets that are in no vector, or not whole.

use strata_gpv_run::Counted;
use strata_terminal::text::count_of;
use tracing::{info, warn};

/// Says how many there were of each kind.
pub(super) fn say(counted: &Counted) {
    let packets = |number| count_of(number, "packet");
    if counted.filtered > 0 {
        info!("the filter does not match {}", packets(counted.filtered));
    }
    if counted.not_ip > 0 {
        info!("skipped {}: no IP header", packets(counted.not_ip));
    }
    if counted.cut > 0 {
        warn!(
            "{} cut within the transport header: fields that were not captured are 0",
            packets(counted.cut)
        );
    }
    if counted.dropped > 0 {
        warn!(
            "{} lost: they arrived faster than they were processed",
            packets(counted.dropped)
        );
    }
}
