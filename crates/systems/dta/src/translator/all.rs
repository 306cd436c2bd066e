//! All reports of a datagram at once, where nothing can hold any of them back.
//!
//! A packed datagram has reports of one shape, so whatever depends on the shape is decided once,
//! and what is left is a loop per primitive: hash, place, store.

use crate::protocol::{Primitive, Refusal, packed};
use crate::sink::{Operation, Origin, Room, Sink};
use crate::tally;

use super::Translator;

impl Translator {
    /// Takes the reports of a datagram, and counts them, if there is no rate limit and a single
    /// collector that takes any number of operations. Whether it did.
    pub(super) fn put_all<S: Sink>(
        &mut self,
        packet: &packed::Packet<'_>,
        origin: Origin,
        now_ns: u64,
        sinks: &mut [S],
    ) -> bool {
        let [sink] = sinks else {
            return false;
        };
        let takes_all = |operation| sink.room(operation) == Room::Operations(usize::MAX);
        let is_free = takes_all(Operation::Write) && takes_all(Operation::FetchAdd);
        if !is_free || self.limit.is_some() {
            return false;
        }
        let counters = &mut self.reporters[usize::from(origin.0)].counters;
        let count = u64::from(packet.count());
        let hasher = &self.options.hasher;
        // How many are refused alone, or why all are.
        let refused = match packet.primitive() {
            Primitive::KeyWrite => match &self.options.key_write {
                Some(store) => store.put_all(hasher, packet, origin, sink).map(|()| 0),
                None => Err(Refusal::NotServed),
            },
            Primitive::KeyIncrement => match &self.options.key_increment {
                Some(store) => {
                    let added = store.add_all(hasher, packet, origin, sink);
                    added.inspect(|&large| counters.refused.add(Refusal::Increment, large))
                }
                None => Err(Refusal::NotServed),
            },
            Primitive::Append => match &mut self.lists {
                Some(lists) => {
                    let put = lists.put_all(packet, origin, now_ns, sinks);
                    put.inspect(|&of_no_list| counters.refused.add(Refusal::List, of_no_list))
                }
                None => Err(Refusal::NotServed),
            },
            Primitive::Postcard => match &mut self.cache {
                Some(cache) => {
                    let done = cache.put_all(packet, origin, now_ns, sinks);
                    tally::add(&mut counters.superseded, done.superseded);
                    counters.refused.add(Refusal::Hop, done.hop);
                    counters.refused.add(Refusal::Value, done.value);
                    Ok(done.hop.wrapping_add(done.value))
                }
                None => Err(Refusal::NotServed),
            },
        };
        match refused {
            // Some of the datagram's.
            Ok(refused) => tally::add(&mut counters.accepted, count.saturating_sub(refused)),
            Err(refusal) => counters.refused.add(refusal, count),
        }
        true
    }
}
