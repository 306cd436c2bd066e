//! The responder's side of a queue pair: its state, and its answers.

use std::collections::VecDeque;
use std::net::IpAddr;

use strata_wire::roce::{
    Aeth, CREDIT_UNLIMITED, Extensions, NakCode, Opcode, Operation, Repr, Service, Syndrome,
};

use super::{Access, Replies};
use crate::psn::Psn;

/// Atomic operations whose answers a queue pair can replay by default.
const ATOMICS_KEPT: usize = 16;
/// The RNR timer it requests: 0.64 ms (IBTA table 46).
const RNR_TIMER: u8 = 12;

/// The parameters of a connected queue pair.
#[derive(Clone, Debug)]
pub struct QueuePairOptions {
    /// Its own number.
    pub number: u32,
    /// The requester's.
    pub peer_number: u32,
    /// Where requests come from; others are dropped.
    pub peer: IpAddr,
    /// Reliable or not.
    pub service: Service,
    /// Sequence number of the first request.
    pub first_psn: Psn,
    /// Payload bytes of a packet.
    pub mtu: usize,
    /// Protection domain.
    pub domain: u32,
    /// What is permitted through it.
    pub access: Access,
}

/// Whether a queue pair accepts requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueuePairState {
    /// Yes.
    Ready,
    /// No: it has refused one. Connect again.
    Error(NakCode),
}

/// Counters of a responder, in packets unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResponderCounters {
    /// Requests executed.
    pub executed: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Duplicate requests.
    pub duplicates: u64,
    /// RC: requests that arrived before a missing one, and were dropped.
    pub out_of_order: u64,
    /// UC: sequence numbers that were skipped.
    pub missing: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Acknowledgements, positive and negative.
    pub answers: u64,
}

/// A message that has taken a posted receive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// The data of a SEND; none of a WRITE with immediate data, which are in the region.
    pub data: Vec<u8>,
    /// Immediate data.
    pub immediate: Option<u32>,
}

/// Receives that were posted, and what they have received: never more than were posted.
#[derive(Debug, Default)]
pub(super) struct Receives {
    pub(super) posted: usize,
    /// Bytes that each can hold.
    pub(super) len_max: usize,
    /// A SEND of several packets, in progress.
    pub(super) gathered: Option<Vec<u8>>,
    pub(super) received: VecDeque<Received>,
}

/// A WRITE of several packets, in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) rkey: u32,
    pub(super) va: u64,
    pub(super) remaining: u64,
}

/// The responder's side of a queue pair.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) options: QueuePairOptions,
    pub(super) expected: Psn,
    pub(super) state: QueuePairState,
    /// Messages completed; 24 bits of it are sent.
    pub(super) msn: u32,
    pub(super) message: Option<Message>,
    pub(super) gap_reported: bool,
    pub(super) ack_due: bool,
    /// In the order of their numbers.
    pub(super) atomics: VecDeque<(Psn, u64)>,
    pub(super) atomics_kept: usize,
    pub(super) receives: Receives,
    pub(super) counters: ResponderCounters,
}

impl QueuePair {
    /// Its parameters.
    #[must_use]
    pub fn options(&self) -> &QueuePairOptions {
        &self.options
    }

    /// The sequence number it expects.
    #[must_use]
    pub fn expected(&self) -> Psn {
        self.expected
    }

    /// Whether it accepts requests.
    #[must_use]
    pub fn state(&self) -> QueuePairState {
        self.state
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> ResponderCounters {
        self.counters
    }

    pub(super) fn new(options: QueuePairOptions) -> Self {
        Self {
            expected: options.first_psn,
            state: QueuePairState::Ready,
            msn: 0,
            message: None,
            gap_reported: false,
            ack_due: false,
            atomics: VecDeque::with_capacity(ATOMICS_KEPT),
            atomics_kept: ATOMICS_KEPT,
            receives: Receives::default(),
            counters: ResponderCounters::default(),
            options,
        }
    }

    /// The request with the expected number is executed, and perhaps its message completed.
    pub(super) fn advance(&mut self, psn: Psn, completes: bool) {
        self.expected = psn.plus(1);
        self.gap_reported = false;
        self.msn = self.msn.wrapping_add(u32::from(completes));
        self.counters.executed = self.counters.executed.saturating_add(1);
    }

    pub(super) fn answer(
        &mut self,
        psn: Psn,
        syndrome: Syndrome,
        original: Option<u64>,
        out: &mut Replies,
    ) {
        let operation = match original {
            Some(_) => Operation::AtomicAcknowledge,
            None => Operation::Acknowledge,
        };
        let repr = Repr {
            opcode: Opcode {
                service: Service::Rc,
                operation,
            },
            dest_qp: self.options.peer_number,
            psn: psn.get(),
            ack_request: false,
            payload_len: 0,
            extensions: Extensions {
                aeth: Some(Aeth {
                    syndrome,
                    msn: self.msn,
                }),
                atomic_original: original,
                ..Extensions::default()
            },
        };
        out.packets.push(&repr, &[]);
        out.from.push(self.options.number);
        self.counters.answers = self.counters.answers.saturating_add(1);
    }

    /// Acknowledges everything so far.
    pub(super) fn acknowledge(&mut self, out: &mut Replies) {
        self.ack_due = false;
        let latest = self.expected.minus(1);
        self.answer(latest, Syndrome::Ack(CREDIT_UNLIMITED), None, out);
    }

    /// Refuses a request. RC accepts no further ones; UC drops the message.
    pub(super) fn refuse(&mut self, psn: Psn, code: NakCode, out: &mut Replies) {
        self.counters.refused = self.counters.refused.saturating_add(1);
        self.message = None;
        self.receives.gathered = None;
        match self.options.service {
            Service::Rc => {
                if std::mem::take(&mut self.ack_due) {
                    self.acknowledge(out);
                }
                self.state = QueuePairState::Error(code);
                self.answer(psn, Syndrome::Nak(code), None, out);
            }
            Service::Uc => self.expected = psn.plus(1),
        }
    }
}

impl QueuePair {
    /// Asks the requester to come again later, since no receive is posted (IBTA §9.7.5.2.8). What
    /// it has sent after this packet is dropped without a word: it will be resent too.
    pub(super) fn not_ready(&mut self, psn: Psn, out: &mut Replies) {
        if self.options.service == Service::Uc {
            return self.refuse(psn, NakCode::InvalidRequest, out);
        }
        if std::mem::take(&mut self.ack_due) {
            self.acknowledge(out);
        }
        self.counters.refused = self.counters.refused.saturating_add(1);
        self.gap_reported = true;
        self.answer(psn, Syndrome::RnrNak(RNR_TIMER), None, out);
    }

    pub(super) fn complete(&mut self, data: Vec<u8>, immediate: Option<u32>) {
        self.receives.posted = self.receives.posted.saturating_sub(1);
        self.receives
            .received
            .push_back(Received { data, immediate });
    }
}
