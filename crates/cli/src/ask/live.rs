//! Asking of interfaces.

use std::sync::atomic::Ordering;

use anyhow::Result;
use strata_capture::Packets;
use strata_capture::live::{Live, LiveNext, LiveOptions};
use strata_filter::Filter;
use strata_wire::{LinkType, Meta};
use tracing::warn;

use super::Args;
use super::answer::Answers;
use super::asking::Asking;
use super::captured::LACKS;
use crate::signals::stop_on_signal;
use crate::text::count_of;

/// Enough for the headers of any packet, tunnels included.
const SNAPLEN: u32 = 512;

pub(super) fn ask(
    args: &Args,
    filter: Option<Filter>,
    asking: &mut Asking,
    answers: &mut Answers,
) -> Result<()> {
    asking.check(&LACKS)?;
    let stop = stop_on_signal()?;
    let mut options = LiveOptions::default();
    options.interfaces.clone_from(&args.interfaces);
    options.snaplen = SNAPLEN;
    options.filter.clone_from(&filter);
    let mut lives = Live::open(&options, 1)?;
    let mut live = lives.remove(0);
    if live.filter_in_user_space().is_some() {
        asking.filter(filter);
    }
    answers.open()?;
    let mut links: Vec<LinkType> = Vec::new();
    while !asking.is_done() && !stop.load(Ordering::Relaxed) {
        match live.advance()? {
            LiveNext::Packets => {
                let batch = live.batch();
                for index in 0..batch.len() {
                    let packet = batch.get(index);
                    asking.packet(links[usize::from(packet.interface)], &packet, 0)?;
                }
            }
            LiveNext::Meta(Meta::Interface { id, interface }) => {
                let at = usize::from(id);
                links.resize(links.len().max(at + 1), interface.link);
                links[at] = interface.link;
            }
            LiveNext::Meta(_) | LiveNext::Idle => {}
        }
        for event in live.take_events() {
            warn!("{event}");
        }
        answers.show(asking)?;
    }
    for (name, counts) in live.counts()? {
        if counts.dropped > 0 {
            asking.incomplete.push(format!(
                "{name}: {} came faster than they were asked of, and are in no answer",
                count_of(counts.dropped, "packet")
            ));
        }
    }
    Ok(())
}
