//! Which of the packets that come are written.

use strata_filter::{Filter, Program};
use strata_role::{Notice, Tell};
use strata_wire::LinkType;

/// Link types whose programs are kept: senders say which they have.
const LINKS_MAX: usize = 16;

/// The packets that a user wants.
pub(super) struct Choice {
    only: Option<u32>,
    filter: Option<Filter>,
    /// The filter by link type; `None` if it has no meaning there.
    programs: Vec<(LinkType, Option<Program>)>,
    tell: Tell,
}

impl Choice {
    pub(super) fn new(only: Option<u32>, filter: Option<Filter>, tell: Tell) -> Self {
        Self {
            only,
            filter,
            programs: Vec::new(),
            tell,
        }
    }

    /// Whether packets of an identity may be.
    pub(super) fn has(&self, identity: u32) -> bool {
        self.only.is_none_or(|only| only == identity)
    }

    /// Says of packets of a link type whether they are, by their bytes and length on the wire.
    pub(super) fn of(&mut self, link: LinkType) -> impl Fn(&[u8], u32) -> bool {
        let is_everything = self.filter.is_none();
        let program = self.program(link);
        move |bytes, wire_len| match program {
            Some(program) => program.matches(bytes, wire_len),
            None => is_everything,
        }
    }

    fn program(&mut self, link: LinkType) -> Option<&Program> {
        let filter = self.filter.as_ref()?;
        let known = self.programs.iter().position(|(known, _)| *known == link);
        let at = known.unwrap_or_else(|| {
            let compiled = filter.compile(link);
            if let Err(error) = &compiled {
                let what = format!(
                    "the filter cannot be used for packets of link type {} ({error}): none of them \
                     match",
                    link.0
                );
                (self.tell)(&Notice::warning(what));
            }
            self.programs.truncate(LINKS_MAX - 1);
            self.programs.push((link, compiled.ok()));
            self.programs.len() - 1
        });
        self.programs[at].1.as_ref()
    }
}
