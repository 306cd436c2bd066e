//! Asking of capture files.

use std::fs;
use std::io::{IsTerminal, stdin};
use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use strata_capture::PacketRef;
use strata_filter::Filter;
use strata_gpv::Column;
use strata_role::sandbox::Reach;
use strata_terminal::packets::{Take, captured};
use strata_terminal::signals::stop_on_signal;
use strata_wire::LinkType;

use super::Args;
use super::answer::Answers;
use super::asking::Asking;
use super::questions::Lack;

const NO_QUEUE: &str = "a capture has no queue lengths";

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
        why: "packets have a class only once they are recorded: query a log",
    },
];

pub(super) fn ask(
    args: &Args,
    filter: Option<Filter>,
    asking: &mut Asking,
    answers: &mut Answers,
) -> Result<()> {
    asking.check(&LACKS)?;
    let stop = stop_on_signal()?;
    // Another program may be writing it now: `tcpdump -w - | strata ask -r -`.
    let is_piped = args.read.iter().any(|path| match path.as_os_str() == "-" {
        true => !stdin().is_terminal(),
        false => fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()),
    });
    let mut shown = Shown {
        asking,
        answers,
        is_live: is_piped,
    };
    captured(&args.read, filter, &stop, &mut shown)?;
    if stop.load(Ordering::Relaxed) && !is_piped {
        bail!("interrupted: the answer covers the packets read so far");
    }
    Ok(())
}

/// Packets into queries; if they come as they arrive, the answer so far is shown.
pub(super) struct Shown<'a> {
    pub(super) asking: &'a mut Asking,
    pub(super) answers: &'a mut Answers,
    pub(super) is_live: bool,
}

impl Take for Shown<'_> {
    fn prepare(&mut self) -> Result<Reach> {
        Ok(self.answers.reach())
    }

    fn begin(&mut self, filter: Option<Filter>) -> Result<()> {
        self.asking.filter(filter);
        self.answers.open()
    }

    fn packet(&mut self, link: LinkType, packet: &PacketRef<'_>) -> Result<()> {
        Ok(self.asking.packet(link, packet, 0)?)
    }

    fn pause(&mut self) -> Result<()> {
        match self.is_live {
            true => self.answers.show(self.asking),
            false => Ok(()),
        }
    }

    fn is_done(&self) -> bool {
        self.asking.is_done()
    }
}
