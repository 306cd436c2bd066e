//! A filter for packets of any link type.

use strata_filter::{CompileError, Filter, Program};
use strata_wire::LinkType;

/// A filter, compiled per link type as packets of new types appear.
#[derive(Debug)]
pub struct ByLink {
    filter: Filter,
    /// Short: searched for every packet.
    programs: Vec<(LinkType, Result<Program, CompileError>)>,
    refused: fn(LinkType, &CompileError),
    untested: u64,
}

impl ByLink {
    /// Tells `refused` of each link type that the filter cannot be tested on, once: it matches no
    /// packet of that.
    pub fn new(filter: Filter, refused: fn(LinkType, &CompileError)) -> Self {
        Self {
            filter,
            programs: Vec::new(),
            refused,
            untested: 0,
        }
    }

    /// Whether a packet, as far as it was kept, matches.
    pub fn matches(&mut self, link: LinkType, packet: &[u8], wire_len: u32) -> bool {
        let program = self.program(link);
        let tested = program.map_or(Some(false), |program| program.test(packet, wire_len));
        let is_cut = packet.len() < wire_len as usize;
        self.untested = self
            .untested
            .saturating_add(u64::from(tested.is_none() && is_cut));
        tested == Some(true)
    }

    /// Packets that do not match since the filter tests bytes of theirs that were not kept: they might have matched.
    #[must_use]
    pub const fn untested(&self) -> u64 {
        self.untested
    }

    /// Why the filter can be tested on none of the link types that packets came of; `None` if it can on
    /// one, or no packets came.
    #[must_use]
    pub fn misfit(&self) -> Option<&CompileError> {
        let mut programs = self.programs.iter().map(|(_, program)| program);
        match programs.clone().any(Result::is_ok) {
            true => None,
            false => programs.find_map(|program| program.as_ref().err()),
        }
    }

    fn program(&mut self, link: LinkType) -> Result<&Program, &CompileError> {
        let known = self.programs.iter().position(|(of, _)| *of == link);
        let at = known.unwrap_or_else(|| {
            let compiled = self.filter.compile(link);
            if let Err(problem) = &compiled {
                (self.refused)(link, problem);
            }
            self.programs.push((link, compiled));
            self.programs.len() - 1
        });
        let (_, program) = &self.programs[at];
        program.as_ref()
    }

    /// [`ByLink::matches`] as `ExportOptions` takes it.
    #[allow(clippy::type_complexity, reason = "the field has this type")]
    pub fn as_matches(&mut self) -> Box<dyn FnMut(LinkType, &[u8], u32) -> bool + '_> {
        Box::new(|link, packet, wire_len| self.matches(link, packet, wire_len))
    }
}
