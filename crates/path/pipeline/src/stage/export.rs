//! The stage that shows packets to others while they are recorded, and gives them those that policies
//! export. What is recorded does not depend on it.

use strata_capture::Packets;
use strata_wire::{FlowShare, Interface, exact};

use super::batch::{Batch, Chosen, Known, is_in};
use super::lanes::Lanes;
use crate::classifier::bits;
use crate::exports::{ExportedPacket, Exports};
use crate::tap::{NO_CLASS, Tap, Tapped, TappedHeaders};

/// A tap, and what takes what policies export.
#[derive(Debug)]
pub(crate) struct ExportStage {
    tap: Option<Box<dyn Tap>>,
    /// Whether the tap wants packets now.
    is_tapped: bool,
    exports: Option<Box<dyn Exports>>,
    /// How many packets one stands for, where only a share of flows is captured.
    one_in: u32,
}

impl ExportStage {
    /// `None` if there is neither.
    pub(crate) fn new(
        tap: Option<Box<dyn Tap>>,
        exports: Option<Box<dyn Exports>>,
    ) -> Option<Box<Self>> {
        let is_used = tap.is_some() || exports.is_some();
        is_used.then(|| {
            Box::new(Self {
                tap,
                is_tapped: false,
                exports,
                one_in: 1,
            })
        })
    }

    /// Asks whether packets are wanted, until this is called again.
    pub(crate) fn look_at_tap(&mut self) {
        self.is_tapped = self.tap.as_mut().is_some_and(|tap| tap.is_wanted());
    }

    /// The share of flows that packets to come belong to.
    pub(crate) fn captured(&mut self, share: FlowShare) {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 1 on"
        )]
        let one_in = (1.0 / share.ratio()).round().min(f64::from(u32::MAX)) as u32;
        self.one_in = one_in;
    }

    /// An interface, before its first packet, or again when its description changes.
    pub(crate) fn interface(&mut self, id: u16, interface: &Interface) {
        if let Some(exports) = &mut self.exports {
            exports.interface(id, interface);
        }
    }

    /// A batch is over, or none has come for a while.
    pub(crate) fn batch_done(&mut self) {
        if let Some(exports) = &mut self.exports {
            exports.batch_done();
        }
    }

    /// No more packets come.
    pub(crate) fn finish(&mut self) {
        if let Some(tap) = &mut self.tap {
            tap.finish();
        }
        if let Some(exports) = &mut self.exports {
            exports.finish();
        }
    }

    /// The packets of a batch that passed the filter, also those that policies discard.
    pub(crate) fn columns<P: Packets + ?Sized>(
        &mut self,
        batch: &Batch,
        chosen: Chosen<'_, P>,
        known: Known<'_>,
    ) {
        if self.is_tapped {
            self.show_columns(batch, chosen, known);
        }
        if self.exports.is_some() {
            self.export_columns(batch, chosen, known);
        }
    }

    #[inline(never)]
    fn show_columns<P: Packets + ?Sized>(
        &mut self,
        batch: &Batch,
        chosen: Chosen<'_, P>,
        known: Known<'_>,
    ) {
        let Some(tap) = &mut self.tap else {
            return;
        };
        let mut others = batch.others.iter();
        for at in 0..chosen.len() {
            let plain;
            let headers = if batch.is_plain(at) {
                plain = batch.plain(at);
                TappedHeaders::Plain(&plain)
            } else {
                let (_, headers) = others
                    .next()
                    .expect("a packet is plain or among the others");
                TappedHeaders::Other(headers)
            };
            tap.take(&Tapped {
                packet: chosen.get(at),
                headers,
                class: class_in(batch, at, known),
            });
        }
    }

    #[inline(never)]
    fn export_columns<P: Packets + ?Sized>(
        &mut self,
        batch: &Batch,
        chosen: Chosen<'_, P>,
        known: Known<'_>,
    ) {
        let policing = known.policing.filter(|policing| policing.has_exports());
        let (Some(taker), Some(policing)) = (&mut self.exports, policing) else {
            return;
        };
        for at in 0..chosen.len() {
            let exports = policing.exports(exact::<u8>(at));
            if exports.is_empty() {
                continue;
            }
            let packet = ExportedPacket {
                packet: chosen.get(at),
                header_len: batch.header_end[at],
                class: class_in(batch, at, known),
                one_in: self.one_in,
            };
            taker.take(&packet, exports);
        }
    }

    /// The same for up to 64 packets one by one, of which these passed the filter.
    pub(crate) fn lanes<P: Packets + ?Sized>(
        &mut self,
        lanes: &Lanes,
        chosen: Chosen<'_, P>,
        passed: u64,
        known: Known<'_>,
    ) {
        if self.is_tapped {
            self.show_lanes(lanes, chosen, passed, known);
        }
        if self.exports.is_some() {
            self.export_lanes(lanes, chosen, passed, known);
        }
    }

    #[inline(never)]
    fn show_lanes<P: Packets + ?Sized>(
        &mut self,
        lanes: &Lanes,
        chosen: Chosen<'_, P>,
        passed: u64,
        known: Known<'_>,
    ) {
        let Some(tap) = &mut self.tap else {
            return;
        };
        for lane in bits(passed) {
            tap.take(&Tapped {
                packet: chosen.get(lane),
                headers: lanes.headers(lane),
                class: class_of(lanes, lane, known),
            });
        }
    }

    #[inline(never)]
    fn export_lanes<P: Packets + ?Sized>(
        &mut self,
        lanes: &Lanes,
        chosen: Chosen<'_, P>,
        passed: u64,
        known: Known<'_>,
    ) {
        let policing = known.policing.filter(|policing| policing.has_exports());
        let (Some(taker), Some(policing)) = (&mut self.exports, policing) else {
            return;
        };
        for lane in bits(passed) {
            let exports = policing.exports(lanes.policed[lane]);
            if exports.is_empty() {
                continue;
            }
            let packet = ExportedPacket {
                packet: chosen.get(lane),
                header_len: lanes.header_len[lane],
                class: class_of(lanes, lane, known),
                one_in: self.one_in,
            };
            taker.take(&packet, exports);
        }
    }
}

/// The class of a packet of a batch in columns.
fn class_in(batch: &Batch, at: usize, known: Known<'_>) -> u8 {
    match is_in(&batch.wanted, at) {
        true => known.classifier.class(batch.verdicts[at]),
        false => NO_CLASS,
    }
}

fn class_of(lanes: &Lanes, lane: usize, known: Known<'_>) -> u8 {
    let classifier = known.classifier;
    match lanes.wanted & 1 << lane != 0 {
        true => classifier.class(classifier.classified()[lane]),
        false => NO_CLASS,
    }
}
