//! The processes of packets, as comments.

use std::ops::Range;

use strata_capture::live::RingBatch;
use strata_capture::{PacketRef, Packets as _};
use strata_processes::{ProcessCounts, Processes, Side, push_comment};
use strata_wire::{LinkType, Meta};

/// Adds processes to the packets of a worker.
pub(super) struct Annotator {
    processes: Processes,
    /// Link types by interface.
    links: Vec<Option<LinkType>>,
    /// Options of a batch, and those of each packet.
    options: Vec<u8>,
    places: Vec<Range<usize>>,
    pub(super) counts: ProcessCounts,
}

impl Annotator {
    pub(super) fn new(processes: Processes) -> Self {
        Self {
            processes,
            links: Vec::new(),
            options: Vec::new(),
            places: Vec::new(),
            counts: ProcessCounts::default(),
        }
    }

    /// Learns the link type of an interface.
    pub(super) fn meta(&mut self, meta: &Meta) {
        if let Meta::Interface { id, interface } = meta {
            let id = usize::from(*id);
            if self.links.len() <= id {
                self.links.resize(id + 1, None);
            }
            self.links[id] = Some(interface.link);
        }
    }

    /// The packets of a batch, with their processes.
    pub(super) fn annotate<'a>(&'a mut self, batch: &'a RingBatch<'_>) -> Vec<PacketRef<'a>> {
        self.options.clear();
        self.places.clear();
        for index in 0..batch.len() {
            let packet = batch.get(index);
            let start = self.options.len();
            let link = self.links.get(usize::from(packet.interface)).copied();
            if let Some(link) = link.flatten() {
                let found = self.processes.of_packet(link, packet.data);
                let sides = [
                    (Side::Sender, found.sender),
                    (Side::Receiver, found.receiver),
                ];
                for (side, process) in sides {
                    if let Some(process) = process {
                        push_comment(&mut self.options, side, &process);
                    }
                }
                let is_known = self.options.len() > start;
                match (is_known, found.is_candidate) {
                    (true, _) => self.counts.known += 1,
                    (false, true) => self.counts.unknown += 1,
                    (false, false) => {}
                }
            }
            self.places.push(start..self.options.len());
        }
        let with_options = |(index, place): (usize, &Range<usize>)| PacketRef {
            options: &self.options[place.clone()],
            ..batch.get(index)
        };
        self.places.iter().enumerate().map(with_options).collect()
    }
}
