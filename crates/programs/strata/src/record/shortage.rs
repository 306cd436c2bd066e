//! What a recording gave up by itself because something was short, in words for its status and its summary.

use strata_control::{LoweredStatus, ShedStatus};
use strata_terminal::listing::word;
use strata_wire::grouped;

/// When the mode or the budget of detail was lowered, from what to what, for how long, and what prevents it.
pub(crate) fn lowered(lowered: &LoweredStatus) -> String {
    let [from, to, at, why, prevent] = [
        &lowered.from,
        &lowered.to,
        &lowered.at,
        &lowered.why,
        &lowered.prevent,
    ]
    .map(|text| word(text));
    let instead = match lowered.now {
        true => format!("now: {to} instead of {from}, since {at} ({why})"),
        false => format!("not now; the latest time {to} instead of {from}, from {at} ({why})"),
    };
    format!(
        "{instead}; lowered {}, for {:.1} s in all; to prevent it: {prevent}",
        times(lowered.times),
        lowered.seconds,
    )
}

/// How often and how long payload was given up; `None` for never.
pub(crate) fn shed(shed: &ShedStatus) -> Option<String> {
    let now = match (shed.times, shed.now) {
        (0, _) => return None,
        (_, true) => format!(
            "now: at most {} bytes of each packet are captured; ",
            shed.bytes
        ),
        (_, false) => String::new(),
    };
    Some(format!(
        "{now}given up {}, for {:.1} s in all, because packets were lost",
        times(shed.times),
        shed.seconds
    ))
}

fn times(count: u64) -> String {
    match count {
        1 => String::from("once"),
        count => format!("{} times", grouped(count)),
    }
}
