//! What answers, losses and timeouts cause.

use strata_wire::roce::{
    CREDIT_UNLIMITED, Extensions, NakCode, Operation, Packet, Repr, Service, Syndrome,
};

use super::{Asked, Event, Failure, OnLoss, Requester, Slot, State, set_ack_request};
use crate::batch::PacketBatch;
use crate::psn::Psn;

impl Requester {
    /// Processes a packet of the responder. Resent packets go to `out`.
    pub fn receive(
        &mut self,
        packet: &Packet<'_>,
        now_ns: u64,
        out: &mut PacketBatch,
    ) -> Option<Event> {
        let aeth = packet.aeth()?;
        if matches!(self.state, State::Failed(_)) || packet.opcode().service != Service::Rc {
            return None;
        }
        let ahead = Psn::new(packet.psn()).since(self.psn(self.settled));
        let in_flight = self.next.saturating_sub(self.settled);
        let Ok(offset) = u64::try_from(ahead) else {
            // For something settled before: of interest only to a probe.
            let latest = ahead == -1 && matches!(aeth.syndrome, Syndrome::Ack(_));
            return (latest && self.state == State::Probing)
                .then(|| self.skip(now_ns))
                .flatten();
        };
        if offset >= in_flight {
            return None;
        }
        // In flight, so it was counted.
        let number = self.settled.saturating_add(offset);
        match (packet.opcode().operation, aeth.syndrome) {
            (Operation::Acknowledge, Syndrome::Ack(_)) => {
                let all = self.settle(number.saturating_add(1), now_ns);
                if self.state == State::Probing {
                    return self.skip(now_ns);
                }
                if !all {
                    self.ask_again(now_ns, out);
                }
                None
            }
            (Operation::AtomicAcknowledge, Syndrome::Ack(_)) => {
                let original = packet.atomic_original()?;
                let is_awaited = self.answered(number, Asked::Atomic, now_ns, out);
                is_awaited.then_some(Event::AtomicDone { number, original })
            }
            (Operation::ReadResponseOnly, Syndrome::Ack(_)) => {
                let is_awaited = self.answered(number, Asked::Read, now_ns, out);
                is_awaited.then_some(Event::ReadDone { number })
            }
            (_, Syndrome::Nak(NakCode::PsnSequence)) => self.gap(number, now_ns, out),
            (_, Syndrome::Nak(code)) => {
                self.settle(number, now_ns);
                self.fail(Failure::Nak(code))
            }
            (_, Syndrome::RnrNak(timer)) => {
                self.settle(number, now_ns);
                self.state = State::Waiting {
                    until_ns: now_ns.saturating_add(rnr_timer_ns(timer)),
                };
                None
            }
            (_, Syndrome::Ack(_)) => None,
        }
    }

    /// An answer of a read or an atomic operation has come; whether it was awaited.
    fn answered(&mut self, number: u64, asked: Asked, now_ns: u64, out: &mut PacketBatch) -> bool {
        let slot = self.slot(number);
        let is_awaited = self.slots[slot] == Slot::Unanswered(asked);
        if is_awaited {
            self.slots[slot] = Slot::Answered;
        }
        if !self.settle(number.saturating_add(1), now_ns) {
            self.ask_again(now_ns, out);
        }
        is_awaited
    }

    /// The responder expects packet `number`: it dropped what came after.
    fn gap(&mut self, number: u64, now_ns: u64, out: &mut PacketBatch) -> Option<Event> {
        let psn = self.psn(number);
        // A responder says so once (IBTA §9.7.5.1.2): another one is a duplicate, perhaps from
        // before a resend. It may also have been overtaken by a later answer.
        if self.gap == Some(psn) || number < self.executed {
            return None;
        }
        self.counters.sequence_naks = self.counters.sequence_naks.saturating_add(1);
        let all = self.settle(number, now_ns);
        self.gap = Some(psn);
        match self.options.on_loss {
            OnLoss::Skip if all => self.skip(now_ns),
            OnLoss::Skip | OnLoss::Resend => {
                self.resend(now_ns, out);
                None
            }
        }
    }

    /// Everything before `number` was executed. Settles up to a read or an atomic operation without an
    /// answer, and returns false if there is one.
    fn settle(&mut self, number: u64, now_ns: u64) -> bool {
        if number > self.executed {
            self.executed = number;
            self.gap = None;
        }
        while self.settled < self.executed {
            let slot = self.slot(self.settled);
            match self.slots[slot] {
                Slot::Unanswered(_) => return false,
                Slot::Answered => self.asking = self.asking.saturating_sub(1),
                Slot::Plain => {}
            }
            self.settled = self.settled.saturating_add(1);
            self.counters.acknowledged = self.counters.acknowledged.saturating_add(1);
            self.progress_ns = now_ns;
            self.timeouts_in_row = 0;
        }
        true
    }

    /// Answers of reads or atomic operations were lost, or overtaken: repeats these operations and nothing
    /// else, each once until the next timeout. Were all that is in flight repeated whenever an
    /// answer is missing, each repetition would be answered by many packets, and each of these
    /// overtaken by another be a reason to repeat it all: more packets with every round.
    fn ask_again(&mut self, now_ns: u64, out: &mut PacketBatch) {
        if self.options.on_loss == OnLoss::Skip {
            if self.state == State::Ready {
                self.resend(now_ns, out);
            }
            return;
        }
        for number in self.settled.max(self.asked)..self.executed {
            if matches!(self.slots[self.slot(number)], Slot::Unanswered(_)) {
                self.repeat(number, out);
            }
        }
        self.asked = self.executed;
    }

    /// Sends the copy of a packet.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a slot of the window, whose copies are that many strides; an own counter"
    )]
    fn repeat(&mut self, number: u64, out: &mut PacketBatch) {
        let slot = self.slot(number);
        let at = slot * self.stride();
        let len = self.lens[slot] as usize;
        out.push_bytes(&self.copies[at..at + len]);
        self.counters.resent += 1;
    }

    /// Gives up everything in flight. The sequence number steps back to where the responder is, so
    /// that the next packet is the one it expects.
    fn skip(&mut self, now_ns: u64) -> Option<Event> {
        let (first, packets) = (self.settled, self.next.saturating_sub(self.settled));
        self.state = State::Ready;
        if packets == 0 {
            return None;
        }
        self.base = self.base.minus(packets);
        self.settled = self.next;
        self.executed = self.next;
        self.asked = self.next;
        self.asking = 0;
        self.counters.lost = self.counters.lost.saturating_add(packets);
        self.progress_ns = now_ns;
        Some(Event::Lost { first, packets })
    }

    /// Resends everything in flight, except what is known to have been executed and needs no
    /// answer. Without copies, an empty packet with an acknowledged number
    /// asks the responder where it is (IBTA §9.7.5.1.3: a duplicate is acknowledged with the latest
    /// number).
    fn resend(&mut self, now_ns: u64, out: &mut PacketBatch) {
        self.progress_ns = now_ns;
        if self.options.on_loss == OnLoss::Skip {
            self.state = State::Probing;
            let probe = Repr {
                opcode: self.opcode(Operation::WriteOnly),
                dest_qp: self.options.dest_qp,
                psn: self.psn(self.settled).minus(1).get(),
                ack_request: true,
                payload_len: 0,
                extensions: Extensions::default(),
            };
            out.push(&probe, &[]);
            return;
        }
        let before = out.len();
        for number in self.settled..self.next {
            let slot = self.slot(number);
            if number >= self.executed || matches!(self.slots[slot], Slot::Unanswered(_)) {
                self.repeat(number, out);
            }
        }
        self.asked = self.executed;
        if out.len() > before
            && let Some(last) = out.len().checked_sub(1)
        {
            set_ack_request(out.get_mut(last));
        }
    }

    fn fail(&mut self, failure: Failure) -> Option<Event> {
        self.state = State::Failed(failure);
        Some(Event::Failed(failure))
    }

    /// When [`Requester::tick`] is due; `None` if nothing is pending.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        match self.state {
            State::Waiting { until_ns } => Some(until_ns),
            State::Failed(_) => None,
            State::Ready | State::Probing => {
                let at = || self.progress_ns.saturating_add(self.options.timeout_ns);
                (self.next > self.settled).then(at)
            }
        }
    }

    /// Advances time. Resent packets go to `out`.
    pub fn tick(&mut self, now_ns: u64, out: &mut PacketBatch) -> Option<Event> {
        if now_ns < self.deadline_ns()? {
            return None;
        }
        if let State::Waiting { .. } = self.state {
            self.state = State::Ready;
            if self.options.on_loss == OnLoss::Skip {
                return self.skip(now_ns);
            }
            self.resend(now_ns, out);
            return None;
        }
        self.counters.timeouts = self.counters.timeouts.saturating_add(1);
        self.timeouts_in_row = self.timeouts_in_row.saturating_add(1);
        if self.timeouts_in_row > self.options.retries {
            return self.fail(Failure::Timeout);
        }
        self.gap = None;
        self.resend(now_ns, out);
        None
    }
}

/// How long to wait after an RNR NAK (IBTA table 46), in ns.
fn rnr_timer_ns(code: u8) -> u64 {
    // In units of 10 µs.
    const TIMES: [u64; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    TIMES[usize::from(code.min(CREDIT_UNLIMITED))].saturating_mul(10_000)
}
