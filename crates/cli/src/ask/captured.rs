//! Asking of capture files.

use std::io::{IsTerminal, stdin};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use strata_capture::{Input, InputOptions, Next};
use strata_filter::Filter;
use strata_gpv::Column;
use strata_wire::{LinkType, Meta};

use super::Args;
use super::answer::Answers;
use super::asking::Asking;
use super::questions::Lack;
use crate::signals::stop_on_signal;
use crate::text;

const NO_QUEUE: &str = "a capture does not say how long the queue was that a packet waited in";

/// What packets of a capture, or of an interface, do not have.
pub(super) const LACKS: [Lack; 3] = [
    Lack {
        column: Column::QueueDepth,
        why: NO_QUEUE,
    },
    Lack {
        column: Column::HighQueue,
        why: NO_QUEUE,
    },
    Lack {
        column: Column::Class,
        why: "packets have a class once they are recorded: ask a log",
    },
];

pub(super) fn ask(
    args: &Args,
    filter: Option<Filter>,
    asking: &mut Asking,
    answers: &mut Answers,
) -> Result<()> {
    asking.check(&LACKS)?;
    asking.filter(filter);
    let stop = stop_on_signal()?;
    let mut options = InputOptions::default();
    options.read_ahead = true;
    options.stop = Some(Arc::clone(&stop));
    let mut input = Input::open(&args.read, &options)?;
    answers.open()?;
    // Another program may be writing it now: `tcpdump -w - | strata ask -r -`.
    let is_piped = args.read.iter().any(|path| path.as_os_str() == "-") && !stdin().is_terminal();
    let mut links: Vec<LinkType> = Vec::new();
    while !asking.is_done() {
        match input.advance()? {
            Next::End => break,
            Next::Meta(Meta::Interface { interface, .. }) => links.push(interface.link),
            Next::Meta(_) => {}
            Next::Packets => {
                for packet in input.batch().iter() {
                    asking.packet(links[usize::from(packet.interface)], &packet, 0)?;
                }
                if is_piped {
                    answers.show(asking)?;
                }
            }
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    for warning in input.take_warnings() {
        text::warn(&warning.to_string());
    }
    if stop.load(Ordering::Relaxed) && !is_piped {
        bail!("interrupted: the answer is of the packets before");
    }
    Ok(())
}
