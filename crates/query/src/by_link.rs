//! A filter for packets of any link type.

use strata_filter::{CompileError, Filter, Program};
use strata_wire::LinkType;

/// A filter, compiled per link type as packets of new types appear.
#[derive(Debug)]
pub struct ByLink {
    filter: Filter,
    /// Short: searched for every packet.
    programs: Vec<(LinkType, Option<Program>)>,
    refused: fn(LinkType, &CompileError),
}

impl ByLink {
    /// Tells `refused` of each link type that the filter cannot be tested on, once: it matches no
    /// packet of that.
    pub fn new(filter: Filter, refused: fn(LinkType, &CompileError)) -> Self {
        Self {
            filter,
            programs: Vec::new(),
            refused,
        }
    }

    /// Whether a packet, as far as it was kept, matches.
    pub fn matches(&mut self, link: LinkType, packet: &[u8], wire_len: u32) -> bool {
        let known = self.programs.iter().position(|(of, _)| *of == link);
        let at = known.unwrap_or_else(|| {
            let compiled = self.filter.compile(link);
            if let Err(problem) = &compiled {
                (self.refused)(link, problem);
            }
            self.programs.push((link, compiled.ok()));
            self.programs.len() - 1
        });
        let (_, program) = &self.programs[at];
        program
            .as_ref()
            .is_some_and(|program| program.matches(packet, wire_len))
    }

    /// [`ByLink::matches`] as `ExportOptions` takes it.
    #[allow(clippy::type_complexity, reason = "the field has this type")]
    pub fn as_matches(&mut self) -> Box<dyn FnMut(LinkType, &[u8], u32) -> bool + '_> {
        Box::new(|link, packet, wire_len| self.matches(link, packet, wire_len))
    }
}
