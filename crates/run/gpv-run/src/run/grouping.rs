//! Vectors as bytes: the cache and the form that its vectors leave in.

use std::sync::Arc;

use strata_gpv::export::{Destination, Exporter, FlowRules, Rules, RulesHandle};
use strata_gpv::format::paper::{self, PaperTuple};
use strata_gpv::{
    Basic, Cache, CacheCounters, Columns, Grouped as _, Packet, Parameters, ParametersError,
    Sequenced, Vector,
};
use strata_role::RoleError;

use crate::error::{Result, VectorError};
use crate::form::Form;
use crate::seed::seed;

/// Who gets vectors.
pub(super) struct To {
    pub(super) id: u32,
    pub(super) flows: FlowRules,
}

/// What was given to a destination.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Given {
    pub(super) sent: u64,
    pub(super) filtered: u64,
    /// Vectors that the form, or a datagram, cannot hold.
    pub(super) not_carried: u64,
}

/// A cache, and datagrams of its vectors.
pub(super) enum Grouping {
    Strata(Box<Exporter>, Sending),
    Paper(PaperGrouping<Basic>),
    PaperSeq(PaperGrouping<Sequenced>),
}

impl Grouping {
    pub(super) fn new(
        form: Form,
        parameters: Parameters,
        columns: Columns,
        room: usize,
        to: Vec<To>,
    ) -> Result<Self> {
        let seed = seed()?;
        let refused = |error: ParametersError| VectorError::Refused(error.to_string());
        Ok(match form {
            Form::Strata => {
                let rules = rules(to, columns, room)?;
                let handle = RulesHandle::new(rules);
                let exporter = Exporter::new(parameters, seed, handle.clone()).map_err(refused)?;
                let sending = Sending {
                    handle,
                    columns,
                    room,
                };
                Self::Strata(Box::new(exporter), sending)
            }
            Form::Paper => {
                Self::Paper(PaperGrouping::new(parameters, seed, room, to).map_err(refused)?)
            }
            Form::PaperSeq => {
                Self::PaperSeq(PaperGrouping::new(parameters, seed, room, to).map_err(refused)?)
            }
        })
    }

    /// Sends vectors to these destinations from the next batch on. Only for the form strata: others stay as they are.
    pub(super) fn send_to(&mut self, to: Vec<To>) -> Result<()> {
        if let Self::Strata(_, sending) = self {
            sending
                .handle
                .set(rules(to, sending.columns, sending.room)?);
        }
        Ok(())
    }

    /// Takes packets; datagrams that are full go to `send`, with their destination.
    pub(super) fn push(&mut self, packets: &[Packet], send: impl FnMut(u32, &[u8])) {
        match self {
            Self::Strata(exporter, _) => {
                let packets = packets.iter().map(|packet| (*packet, [].as_slice()));
                exporter.push(packets, send);
            }
            Self::Paper(grouping) => grouping.push(packets, send),
            Self::PaperSeq(grouping) => grouping.push(packets, send),
        }
    }

    /// Lets go of what a slot holds.
    pub(super) fn flush_slot(&mut self, slot: u32, send: impl FnMut(u32, &[u8])) {
        match self {
            Self::Strata(exporter, _) => exporter.flush_slot(slot, send),
            Self::Paper(grouping) => grouping.flush_slot(slot, send),
            Self::PaperSeq(grouping) => grouping.flush_slot(slot, send),
        }
    }

    /// Sends the datagrams that are begun.
    pub(super) fn send_begun(&mut self, send: impl FnMut(u32, &[u8])) {
        match self {
            Self::Strata(exporter, _) => exporter.finish(send),
            Self::Paper(grouping) => grouping.send_begun(send),
            Self::PaperSeq(grouping) => grouping.send_begun(send),
        }
    }

    /// Says how many vectors there were so far, if the form does.
    pub(super) fn announce(&mut self, send: impl FnMut(u32, &[u8])) {
        if let Self::Strata(exporter, _) = self {
            exporter.end(send);
        }
    }

    /// Lets go of everything, and says how many vectors there were, if the form does.
    pub(super) fn end(&mut self, mut send: impl FnMut(u32, &[u8])) {
        match self {
            Self::Strata(exporter, _) => {
                exporter.flush(&mut send);
                exporter.end(&mut send);
            }
            Self::Paper(grouping) => grouping.flush(send),
            Self::PaperSeq(grouping) => grouping.flush(send),
        }
    }

    /// What the cache did.
    pub(super) fn counters(&self) -> &CacheCounters {
        match self {
            Self::Strata(exporter, _) => exporter.cache_counters(),
            Self::Paper(grouping) => grouping.cache.counters(),
            Self::PaperSeq(grouping) => grouping.cache.counters(),
        }
    }

    /// What was given to a destination.
    pub(super) fn given(&self, id: u32) -> Option<Given> {
        let of_paper = |all: &[PaperTo]| {
            let found = all.iter().find(|to| to.id == id);
            found.map(|to| to.given)
        };
        match self {
            Self::Strata(exporter, _) => exporter.destination(id).map(|counters| Given {
                sent: counters.sent,
                filtered: counters.filtered,
                not_carried: counters.too_long,
            }),
            Self::Paper(grouping) => of_paper(&grouping.to),
            Self::PaperSeq(grouping) => of_paper(&grouping.to),
        }
    }
}

/// How the rules of an exporter are replaced.
pub(super) struct Sending {
    handle: RulesHandle,
    columns: Columns,
    room: usize,
}

/// All packets, and these destinations.
fn rules(to: Vec<To>, columns: Columns, room: usize) -> Result<Rules> {
    let destinations = to.into_iter().map(|to| Destination {
        id: to.id,
        columns,
        datagram_len: room,
        admit: Arc::new(to.flows),
    });
    let rules = Rules::new(FlowRules::all(), destinations.collect());
    Ok(rules.map_err(RoleError::own)?)
}

/// A cache of the paper's tuples, and datagrams of its vectors, one after the other.
pub(super) struct PaperGrouping<T> {
    cache: Cache<T>,
    to: Vec<PaperTo>,
    room: usize,
    scratch: Vec<u8>,
}

struct PaperTo {
    id: u32,
    flows: FlowRules,
    bytes: Vec<u8>,
    given: Given,
}

impl<T: PaperTuple> PaperGrouping<T> {
    fn new(
        parameters: Parameters,
        seed: u64,
        room: usize,
        to: Vec<To>,
    ) -> Result<Self, ParametersError> {
        let to = to.into_iter().map(|to| PaperTo {
            id: to.id,
            flows: to.flows,
            bytes: Vec::with_capacity(room),
            given: Given::default(),
        });
        Ok(Self {
            cache: Cache::new(parameters, seed)?,
            to: to.collect(),
            room,
            scratch: Vec::new(),
        })
    }

    fn push(&mut self, packets: &[Packet], mut send: impl FnMut(u32, &[u8])) {
        let (to, room, scratch) = (&mut self.to, self.room, &mut self.scratch);
        let mut out = |vector: &Vector<'_, T>| give(to, room, scratch, vector, &mut send);
        self.cache.push(packets, &mut out);
    }

    fn flush_slot(&mut self, slot: u32, mut send: impl FnMut(u32, &[u8])) {
        let (to, room, scratch) = (&mut self.to, self.room, &mut self.scratch);
        let mut out = |vector: &Vector<'_, T>| give(to, room, scratch, vector, &mut send);
        self.cache.flush_slot(slot, &mut out);
    }

    fn flush(&mut self, mut send: impl FnMut(u32, &[u8])) {
        let (to, room, scratch) = (&mut self.to, self.room, &mut self.scratch);
        let mut out = |vector: &Vector<'_, T>| give(to, room, scratch, vector, &mut send);
        self.cache.flush(&mut out);
        self.send_begun(send);
    }

    fn send_begun(&mut self, mut send: impl FnMut(u32, &[u8])) {
        for to in self.to.iter_mut().filter(|to| !to.bytes.is_empty()) {
            send(to.id, &to.bytes);
            to.bytes.clear();
        }
    }
}

fn give<T: PaperTuple>(
    to: &mut [PaperTo],
    room: usize,
    scratch: &mut Vec<u8>,
    vector: &Vector<'_, T>,
    send: &mut impl FnMut(u32, &[u8]),
) {
    scratch.clear();
    let is_carried = paper::emit(vector, scratch).is_ok() && scratch.len() <= room;
    for to in to {
        if !to.flows.has(vector.key()) {
            to.given.filtered += 1;
            continue;
        }
        if !is_carried {
            to.given.not_carried += 1;
            continue;
        }
        if to.bytes.len() + scratch.len() > room {
            send(to.id, &to.bytes);
            to.bytes.clear();
        }
        to.bytes.extend_from_slice(scratch);
        to.given.sent += 1;
    }
}
