//! Packets shown to the tap, and those that policies export.

use strata_blocks::Sink;
use strata_capture::Packets;
use strata_wire::{FlowShare, exact};

use super::Worker;
use super::decide::plain as plain_at;
use super::lanes::Lanes;
use super::wide::{Wide, is_in};
use crate::classifier::bits;
use crate::exports::ExportedPacket;
use crate::tap::{NO_CLASS, Tapped, TappedHeaders};

impl<S: Sink> Worker<S> {
    /// Shows the packets that passed the filter, also those that policies discard.
    #[inline(never)]
    pub(super) fn show(
        &mut self,
        batch: &(impl Packets + ?Sized),
        (start, places): (usize, &[u8]),
        passed: u64,
    ) {
        let Some(tap) = &mut self.tap else {
            return;
        };
        let lanes = &self.lanes;
        for lane in bits(passed) {
            let headers = match lanes.is_plain & 1 << lane != 0 {
                true => TappedHeaders::Plain(&lanes.plain[lane]),
                false => TappedHeaders::Other(&lanes.headers[lane]),
            };
            let class = match lanes.wanted & 1 << lane != 0 {
                true => self.classifier.class(self.classifier.classified()[lane]),
                false => NO_CLASS,
            };
            tap.take(&Tapped {
                packet: batch.get(start + usize::from(places[lane])),
                headers,
                class,
            });
        }
    }

    /// As [`Worker::show`].
    #[inline(never)]
    pub(super) fn show_columns(
        &mut self,
        wide: &Wide,
        batch: &(impl Packets + ?Sized),
        (start, places): (usize, &[u8]),
    ) {
        let Some(tap) = &mut self.tap else {
            return;
        };
        let mut others = wide.others.iter();
        for (at, &place) in places.iter().enumerate() {
            let plain;
            let headers = if is_in(&wide.columns.plain, at) {
                plain = plain_at(&wide.columns, at);
                TappedHeaders::Plain(&plain)
            } else {
                let (_, headers) = others
                    .next()
                    .expect("a packet is plain or among the others");
                TappedHeaders::Other(headers)
            };
            let class = match is_in(&wide.wanted, at) {
                true => self.classifier.class(wide.verdicts[at]),
                false => NO_CLASS,
            };
            tap.take(&Tapped {
                packet: batch.get(start + usize::from(place)),
                headers,
                class,
            });
        }
    }

    /// Gives up to 64 packets to whoever exports, also those that policies discard.
    #[inline(never)]
    pub(super) fn export(
        &mut self,
        batch: &(impl Packets + ?Sized),
        (start, places): (usize, &[u8]),
        passed: u64,
    ) {
        let one_in = self.stands_for();
        let (Some(taker), Some(policing)) = (&mut self.exports, &self.policing) else {
            return;
        };
        let lanes: &Lanes = &self.lanes;
        for lane in bits(passed) {
            let exports = policing.exports(lanes.policed[lane]);
            if exports.is_empty() {
                continue;
            }
            let class = match lanes.wanted & 1 << lane != 0 {
                true => self.classifier.class(self.classifier.classified()[lane]),
                false => NO_CLASS,
            };
            let packet = ExportedPacket {
                packet: batch.get(start + usize::from(places[lane])),
                header_len: lanes.header_len[lane],
                class,
                one_in,
            };
            taker.take(&packet, exports);
        }
    }

    /// As [`Worker::export`], for a batch in columns.
    #[inline(never)]
    pub(super) fn export_columns(
        &mut self,
        wide: &Wide,
        batch: &(impl Packets + ?Sized),
        (start, places): (usize, &[u8]),
    ) {
        let one_in = self.stands_for();
        let (Some(taker), Some(policing)) = (&mut self.exports, &self.policing) else {
            return;
        };
        for (at, &place) in places.iter().enumerate() {
            let exports = policing.exports(exact::<u8>(at));
            if exports.is_empty() {
                continue;
            }
            let class = match is_in(&wide.wanted, at) {
                true => self.classifier.class(wide.verdicts[at]),
                false => NO_CLASS,
            };
            let packet = ExportedPacket {
                packet: batch.get(start + usize::from(place)),
                header_len: wide.header_end[at],
                class,
                one_in,
            };
            taker.take(&packet, exports);
        }
    }

    /// How many packets one stands for, where only a share of flows is captured.
    fn stands_for(&self) -> u32 {
        let share = self.flow_share.map_or(1.0, FlowShare::ratio);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 1 on"
        )]
        let one_in = (1.0 / share).round().min(f64::from(u32::MAX)) as u32;
        one_in
    }
}
