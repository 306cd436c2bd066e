//! Asking of interfaces.

use anyhow::Result;
use strata_filter::Filter;
use strata_terminal::packets::live;
use strata_terminal::signals::stop_on_signal;
use strata_terminal::text::count_of;

use super::Args;
use super::answer::Answers;
use super::asking::Asking;
use super::captured::{LACKS, Shown};

pub(super) fn ask(
    args: &Args,
    filter: Option<Filter>,
    asking: &mut Asking,
    answers: &mut Answers,
) -> Result<()> {
    asking.check(&LACKS)?;
    let stop = stop_on_signal()?;
    let mut shown = Shown {
        asking,
        answers,
        is_live: true,
    };
    for (name, lost) in live((&args.interfaces, &args.sandbox), filter, &stop, &mut shown)? {
        asking.incomplete.push(format!(
            "{name}: {} arrived faster than the queries processed them, and were left out",
            count_of(lost, "packet")
        ));
    }
    Ok(())
}
