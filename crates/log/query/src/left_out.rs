//! Packets that a reader leaves out, since the log lacks a definition that they refer to.

use std::collections::BTreeMap;
use std::fmt;

use strata_blocks::PacketRecord;
use strata_store::{Block, Damage};

/// Where a packet is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// Its file, as shown in messages.
    pub(crate) file: &'a str,
    /// Of its block.
    pub(crate) offset: u64,
}

impl<'a> Place<'a> {
    pub(crate) fn of(block: &'a Block) -> Self {
        Self {
            file: &block.file,
            offset: block.offset,
        }
    }
}

/// A definition that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Missing {
    /// Of the interface with this number: without its link type, no filter can look at a packet, and no
    /// file can hold it.
    Interface(u16),
    /// Of a verdict: without it, a packet has no class and no reason that could be the wanted ones.
    Verdict,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(id) => write!(f, "the definition of their interface {id} is missing"),
            Self::Verdict => f.write_str(
                "the definition of their verdict, with their class and reason, is missing",
            ),
        }
    }
}

/// The packets of a file that lack the same definition.
#[derive(Debug)]
struct Lacking {
    /// Of the first block with such packets, and of the last.
    first: u64,
    last: u64,
    blocks: u64,
    packets: u64,
}

/// Packets that are left out, by file and definition.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    files: BTreeMap<String, BTreeMap<Missing, Lacking>>,
    pub(crate) packets: u64,
}

impl LeftOut {
    /// Counts a packet of an interface without a definition.
    #[cold]
    pub(crate) fn of_interface(&mut self, packet: &PacketRecord<'_>, place: Place<'_>) {
        self.count(Missing::Interface(packet.interface), place);
    }

    /// Counts a packet.
    #[cold]
    pub(crate) fn count(&mut self, missing: Missing, place: Place<'_>) {
        if !self.files.contains_key(place.file) {
            self.files.insert(place.file.to_owned(), BTreeMap::new());
        }
        let file = self.files.get_mut(place.file);
        let file = file.expect("it has just been put there");
        let lacking = file.entry(missing).or_insert(Lacking {
            first: place.offset,
            last: place.offset,
            blocks: 1,
            packets: 0,
        });
        if lacking.last != place.offset {
            lacking.last = place.offset;
            lacking.blocks += 1;
        }
        lacking.packets += 1;
        self.packets += 1;
    }

    /// One for each file and definition: where it begins, and the number of packets.
    pub(crate) fn into_damage(self) -> impl Iterator<Item = Damage> {
        let files = self.files.into_iter();
        files.flat_map(|(file, missing)| {
            missing.into_iter().map(move |(missing, lacking)| {
                let packets = match lacking.packets {
                    1 => String::from("1 packet"),
                    packets => format!("{} packets", strata_wire::grouped(packets)),
                };
                let of = match lacking.blocks {
                    1 => String::new(),
                    blocks => format!(" of {} blocks", strata_wire::grouped(blocks)),
                };
                Damage {
                    file: file.clone(),
                    offset: lacking.first,
                    problem: format!("{packets}{of} left out: {missing}"),
                    missing: None,
                }
            })
        })
    }
}
