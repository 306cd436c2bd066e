//! Batches in columns, shown to the tap.

use strata_blocks::Sink;
use strata_capture::Packets;

use super::Worker;
use super::decide::plain as plain_at;
use super::wide::{Wide, is_in};
use crate::tap::{NO_CLASS, Tapped, TappedHeaders};

impl<S: Sink> Worker<S> {
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
}
