//! Packets of captures, interfaces and logs, one by one, for commands that compute something from
//! them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use strata_archive::ArchiveError;
use strata_capture::live::{Live, LiveNext, LiveOptions, interface_names};
use strata_capture::{Input, InputOptions, Next, PacketRef, Packets};
use strata_filter::Filter;
use strata_query::{ByLink, Find, LoggedPacket, packets_until};
use strata_role::sandbox::Reach;
use strata_store::{Damage, Log, damage_counts, damage_texts};
use strata_wire::{LinkType, Meta};
use tracing::{error, warn};

use crate::arguments::key::KeyArgs;
use crate::confined::SandboxArgs;
use crate::output::refuse;
use crate::selection::{check_fit, say_no_match, say_untested};
use crate::text;

/// Enough for the headers of any packet, tunnels included.
const SNAPLEN: u32 = 512;

/// What happens while packets come from captures or interfaces.
pub trait Take {
    /// What it needs once the source is open, of interfaces. Certificates that it needs are read now, and
    /// names of servers looked up.
    fn prepare(&mut self) -> Result<Reach> {
        Ok(Reach::default())
    }

    /// The source is open, and packets will come: outputs are created now. Packets must match the
    /// filter, which the source does not evaluate.
    fn begin(&mut self, filter: Option<Filter>) -> Result<()>;

    /// A packet.
    fn packet(&mut self, link: LinkType, packet: &PacketRef<'_>) -> Result<()>;

    /// A batch is over, or none came for a moment.
    fn pause(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether enough came.
    fn is_done(&self) -> bool {
        false
    }
}

/// Reads capture files to their end, or until `stop`.
pub fn captured(
    read: &[PathBuf],
    filter: Option<Filter>,
    stop: &Arc<AtomicBool>,
    take: &mut impl Take,
) -> Result<()> {
    let mut options = InputOptions::default();
    options.read_ahead = true;
    options.stop = Some(Arc::clone(stop));
    let mut input = Input::open(read, &options)?;
    take.begin(filter)?;
    let read = read_all(&mut input, stop, take);
    // Of several damaged files, the first is the error that is returned.
    while read.is_err()
        && let Err(error) = input.advance()
    {
        text::warn(&error.to_string());
    }
    for warning in input.take_warnings() {
        text::warn(&warning.to_string());
    }
    read
}

fn read_all(input: &mut Input, stop: &AtomicBool, take: &mut impl Take) -> Result<()> {
    let mut links: Vec<LinkType> = Vec::new();
    while !take.is_done() && !stop.load(Ordering::Relaxed) {
        match input.advance()? {
            Next::End => break,
            Next::Meta(Meta::Interface { interface, .. }) => links.push(interface.link),
            Next::Meta(_) => {}
            Next::Packets => {
                for packet in input.batch().iter() {
                    take.packet(links[usize::from(packet.interface)], &packet)?;
                }
                take.pause()?;
            }
        }
    }
    Ok(())
}

/// Reads interfaces until `stop`, in the sandbox; of each that lost packets, its name and how many.
pub fn live(
    (interfaces, sandbox): (&[String], &SandboxArgs),
    filter: Option<Filter>,
    stop: &AtomicBool,
    take: &mut impl Take,
) -> Result<Vec<(String, u64)>> {
    let filter = filter.map(Filter::on_interfaces);
    let mut options = LiveOptions::default();
    options.interfaces = interface_names(interfaces);
    options.snaplen = SNAPLEN;
    options.filter.clone_from(&filter);
    options.opener = sandbox.opener();
    let mut live = Live::open(&options, 1)?.remove(0);
    let mut reach = take.prepare()?;
    reach.interfaces.clone_from(&options.interfaces);
    sandbox.confine(&reach)?;
    // Else the kernel does it.
    take.begin(filter.filter(|_| live.filter_in_user_space().is_some()))?;
    let mut links: Vec<LinkType> = Vec::new();
    while !take.is_done() && !stop.load(Ordering::Relaxed) {
        match live.advance()? {
            LiveNext::Packets => {
                let batch = live.batch();
                for index in 0..batch.len() {
                    let packet = batch.get(index);
                    take.packet(links[usize::from(packet.interface)], &packet)?;
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
        take.pause()?;
    }
    let counts = live.counts()?.into_iter();
    let lost = counts.filter(|(_, counts)| counts.dropped > 0);
    Ok(lost.map(|(name, counts)| (name, counts.dropped)).collect())
}

/// Opens a log. `does` is what `-r` does with a capture file, for those who name one instead.
pub fn open_log(key: &KeyArgs, dir: &Path, does: &str) -> Result<Log> {
    if dir.is_file() {
        let name = dir.display();
        return Err(refuse(format!(
            "{name} is a file, and a log is a directory: -r {name} {does} a capture file"
        )));
    }
    key.open(dir)
}

/// Says where a log is damaged; how much, if it is.
pub fn damaged(damage: &[Damage]) -> Option<String> {
    for text in damage_texts(damage) {
        error!("{text}");
    }
    damage_counts(damage).map(|counts| format!("{counts} in the log"))
}

/// Reads packets of a log until `take` breaks; the damaged places, which are skipped, or why the
/// log cannot be read to its end. Fails if `take` does.
pub fn logged(
    log: &Log,
    find: &Find<'_>,
    take: impl FnMut(&LoggedPacket<'_>, &PacketRef<'_>) -> Result<ControlFlow<()>>,
) -> Result<Result<Vec<Damage>, ArchiveError>> {
    let filter = find.filter.cloned();
    let mut by_link = filter.map(|filter| ByLink::new(filter, say_no_match));
    let read = packets_until(log, find, by_link.as_mut(), take)?;
    check_fit(by_link.as_ref().and_then(ByLink::misfit))?;
    say_untested(by_link.map_or(0, |by_link| by_link.untested()));
    Ok(read)
}
