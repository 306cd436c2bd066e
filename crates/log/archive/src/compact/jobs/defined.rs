//! Whether what packets refer to is defined: interfaces and verdicts, in the packet's block or in an
//! earlier one of its file. A file of a relay without the block that does is readable, block by block,
//! and yet its packets have no link type, so nothing can be found or exported of them.

use std::collections::HashSet;

use strata_blocks::Record;
use strata_store::Block;
use strata_wire::Meta;

/// What the blocks of a file have defined so far, and the packets that refer to anything else.
#[derive(Debug, Default)]
pub(crate) struct Defined {
    interfaces: HashSet<u16>,
    verdicts: HashSet<u16>,
    missing: Missing,
}

/// Packets that refer to an interface or a verdict without a definition.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    packets: u64,
    /// Offset of the first block with such packets.
    offset: u64,
    /// The first interface and the first verdict, by number.
    interface: Option<u16>,
    verdict: Option<u16>,
}

impl Defined {
    /// Takes in the next block of the file. Records that cannot be read are reported by others.
    pub(crate) fn take_in(&mut self, block: &Block) {
        for record in block.records().map_while(Result::ok) {
            match record {
                Record::Verdict(id, _) => drop(self.verdicts.insert(id)),
                Record::Meta(Meta::Interface { id, .. }) => drop(self.interfaces.insert(id)),
                Record::Packet(packet) => {
                    let (interface, verdict) = (packet.interface, packet.verdict);
                    let interface = (!self.interfaces.contains(&interface)).then_some(interface);
                    let verdict = (!self.verdicts.contains(&verdict)).then_some(verdict);
                    self.missing.note(block.offset, interface, verdict);
                }
                Record::Meta(_) | Record::Context(_) | Record::FlowShare(_) => {}
            }
        }
    }

    pub(crate) fn problem(&self) -> Option<(u64, String)> {
        self.missing.problem()
    }
}

impl Missing {
    /// A packet of the block at `offset` refers to these, which are not defined; if there are any.
    pub(crate) fn note(&mut self, offset: u64, interface: Option<u16>, verdict: Option<u16>) {
        if interface.is_none() && verdict.is_none() {
            return;
        }
        if self.packets == 0 {
            self.offset = offset;
        }
        self.packets = self.packets.saturating_add(1);
        self.interface = self.interface.or(interface);
        self.verdict = self.verdict.or(verdict);
    }

    /// Where such packets begin, and how many there are.
    pub(crate) fn problem(&self) -> Option<(u64, String)> {
        if self.packets == 0 {
            return None;
        }
        let of = |what: &str, number: Option<u16>| number.map(|number| format!("{what} {number}"));
        let both = [of("interface", self.interface), of("verdict", self.verdict)];
        let both: Vec<String> = both.into_iter().flatten().collect();
        let problem = format!(
            "{} packets from here on refer to {}, which no earlier block of this file defines: the \
             defining block is missing, so these packets can be neither found nor exported",
            self.packets,
            both.join(" and "),
        );
        Some((self.offset, problem))
    }
}
