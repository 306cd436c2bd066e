//! The interfaces of a worker's input, and the capture filter on them.

use std::sync::Arc;

use strata_blocks::{BlockBuilder, Sink, SinkError};
use strata_capture::Packets;
use strata_classify::LANES;
use strata_filter::Program;
use strata_wire::{Counters, Interface, LinkType, Meta};

use super::{DEFINITIONS_LEN, EVERY_PLACE, Worker, fetch};
use crate::flows::wire_bytes;
use crate::policing::Policing;

/// One interface of the input and what the filter means on it.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) interface: Interface,
    /// `None` if there is no filter; `Err` if it cannot be applied to this link type, so that none
    /// of its packets matches. Shared by all interfaces of a link type.
    pub(super) filter: Option<Arc<Result<Program, String>>>,
    /// Its number in the rules of the policies.
    pub(super) rules_number: u8,
}

/// An interface's number in the rules of the policies.
fn rules_number(policing: Option<&Policing>, interface: &Interface) -> u8 {
    policing.map_or(0, |policing| policing.interface(interface.name()))
}

impl<S: Sink> Worker<S> {
    /// Looks up the interfaces' numbers in the rules of the policies.
    pub(super) fn name_interfaces(&mut self) {
        for source in &mut self.sources {
            source.rules_number = rules_number(self.policing.as_deref(), &source.interface);
        }
    }

    /// What the filter means on a link type.
    fn filter_on(&mut self, link: LinkType) -> Option<Arc<Result<Program, String>>> {
        let filter = self.options.filter.as_ref()?;
        // Few: a file of 65,535 interfaces has one or two link types.
        if let Some((_, known)) = self.filters.iter().find(|(of, _)| *of == link) {
            return Some(Arc::clone(known));
        }
        let compiled = Arc::new(filter.compile(link).map_err(|e| e.to_string()));
        self.filters.push((link, Arc::clone(&compiled)));
        Some(compiled)
    }

    /// Link types on which the filter cannot be applied, and why.
    #[must_use]
    pub fn filter_problems(&self) -> Vec<(LinkType, String)> {
        let mut problems = Vec::new();
        for source in &self.sources {
            if let Some(Err(problem)) = source.filter.as_deref() {
                let entry = (source.interface.link, problem.clone());
                if !problems.contains(&entry) {
                    problems.push(entry);
                }
            }
        }
        problems
    }

    /// Why the filter cannot be applied to any interface so far; `None` if it can
    /// be applied to one, or there is no filter or interface.
    #[must_use]
    pub fn filter_fits_nowhere(&self) -> Option<String> {
        let mut problem = None;
        for source in &self.sources {
            match source.filter.as_deref() {
                Some(Err(error)) => problem = Some(error.clone()),
                _ => return None,
            }
        }
        problem
    }

    /// Records what an input says about itself.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn meta(&mut self, meta: Meta) -> Result<(), SinkError> {
        let room = BlockBuilder::meta_len(&meta);
        if self.block.room() < room + DEFINITIONS_LEN && !self.block.is_empty() {
            self.next_block()?;
        }
        self.block.push_meta(&meta);
        if let Meta::Interface { id, interface } = meta {
            if let Some(exports) = &mut self.exports {
                exports.interface(id, &interface);
            }
            let source = Source {
                filter: self.filter_on(interface.link),
                rules_number: rules_number(self.policing.as_deref(), &interface),
                interface,
            };
            // Ids are dense and in order.
            let index = usize::from(id);
            if index < self.sources.len() {
                self.sources[index] = source;
            } else {
                self.sources.push(source);
            }
        }
        Ok(())
    }

    /// Moves the places, from `start` on, of the packets that pass the filter to the front; counts
    /// the others. Returns how many pass.
    pub(super) fn choose(
        &mut self,
        batch: &(impl Packets + ?Sized),
        start: usize,
        places: &mut [u8],
    ) -> usize {
        if self.options.filter.is_none() {
            return places.len();
        }
        let (mut passed, mut filtered) = (0, Counters::default());
        for &place in &EVERY_PLACE[..places.len()] {
            let at = start + usize::from(place);
            fetch(batch, at + LANES, 0);
            let packet = batch.get(at);
            let source = &self.sources[usize::from(packet.interface)];
            let passes = match source.filter.as_deref() {
                None => true,
                Some(Ok(program)) => program.matches(packet.data, packet.wire_len),
                Some(Err(_)) => false,
            };
            if passes {
                places[passed] = place;
                passed += 1;
            } else {
                filtered.add(wire_bytes(&packet));
            }
        }
        self.count_filtered(filtered);
        passed
    }
}
