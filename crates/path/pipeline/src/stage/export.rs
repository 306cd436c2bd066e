//! The stage that shows packets to others while they are recorded, and gives them those that policies
//! export. What is recorded does not depend on it.

use strata_capture::Packets;
use strata_wire::{FlowShare, Interface, exact};

use super::batch::{Batch, Chosen, Known, is_in};
use super::lanes::Lanes;
use crate::classifier::bits;
use crate::exports::{ExportedPacket, Exports};
use crate::tap::{NO_CLASS, Tap, Tapped, TappedHeaders};

/// Taps, and what takes what policies export.
#[derive(Debug)]
pub(crate) struct ExportStage {
    taps: Vec<Tapping>,
    exports: Option<Box<dyn Exports>>,
    /// How many packets one stands for, where only a share of flows is captured.
    one_in: u32,
}

/// A tap, and whether it wants packets now.
#[derive(Debug)]
struct Tapping {
    tap: Box<dyn Tap>,
    is_wanted: bool,
}

impl ExportStage {
    /// `None` if there is neither.
    pub(crate) fn new(
        taps: Vec<Box<dyn Tap>>,
        exports: Option<Box<dyn Exports>>,
    ) -> Option<Box<Self>> {
        let is_used = !taps.is_empty() || exports.is_some();
        let tapping = |tap| Tapping {
            tap,
            is_wanted: false,
        };
        is_used.then(|| {
            Box::new(Self {
                taps: taps.into_iter().map(tapping).collect(),
                exports,
                one_in: 1,
            })
        })
    }

    /// Asks whether packets are wanted, until this is called again.
    pub(crate) fn look_at_taps(&mut self) {
        for Tapping { tap, is_wanted } in &mut self.taps {
            *is_wanted = tap.is_wanted();
        }
    }

    fn is_tapped(&self) -> bool {
        self.taps.iter().any(|one| one.is_wanted)
    }

    /// Shows a packet to those who want packets.
    fn show(&mut self, tapped: &Tapped<'_>) {
        for Tapping { tap, is_wanted } in &mut self.taps {
            if *is_wanted {
                tap.take(tapped);
            }
        }
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
        for Tapping { tap, .. } in &mut self.taps {
            tap.interface(id, interface);
        }
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
        for Tapping { tap, .. } in &mut self.taps {
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
        if self.is_tapped() {
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
            self.show(&Tapped {
                packet: chosen.get(at),
                headers,
                header_len: batch.header_end[at],
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
        if self.is_tapped() {
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
        for lane in bits(passed) {
            self.show(&Tapped {
                packet: chosen.get(lane),
                headers: lanes.headers(lane),
                header_len: lanes.header_len[lane],
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
