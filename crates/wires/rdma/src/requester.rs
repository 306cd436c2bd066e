//! The requester's side of a queue pair (IBTA §9.7.3, §9.7.5; TitanLog §V-A, §VI-B).
//!
//! Packets are counted from 0 without ever wrapping; on the wire they are `base + count` in 24
//! bits. Those from `settled` to `next` are in flight:
//!
//! ```text
//!  acknowledged or given up | in flight, at most `window`    |
//!                       settled                            next
//! ```

mod recovery;

use strata_wire::roce::{
    AtomicEth, BTH_LEN, Extensions, HEADERS_LEN_MAX, ICRC_LEN, NakCode, Opcode, Operation, Repr,
    Reth, Service,
};

use strata_wire::exact;

use crate::batch::PacketBatch;
use crate::psn::Psn;

/// The packets of a message; the last, and the only one, without and with immediate data.
struct Operations {
    first: Operation,
    middle: Operation,
    last: [Operation; 2],
    only: [Operation; 2],
}

const WRITE: Operations = Operations {
    first: Operation::WriteFirst,
    middle: Operation::WriteMiddle,
    last: [Operation::WriteLast, Operation::WriteLastImm],
    only: [Operation::WriteOnly, Operation::WriteOnlyImm],
};

const SEND: Operations = Operations {
    first: Operation::SendFirst,
    middle: Operation::SendMiddle,
    last: [Operation::SendLast, Operation::SendLastImm],
    only: [Operation::SendOnly, Operation::SendOnlyImm],
};

/// What a requester of a reliable connection does when packets are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnLoss {
    /// Resends from the first lost one on (go-back-N), from the copies it keeps.
    #[default]
    Resend,
    /// Counts what was lost and continues after it: the sequence number steps back to the one that
    /// the responder expects (TitanLog §VI-B). For senders that cannot keep copies, such as a
    /// mirror port.
    Skip,
}

/// The parameters of a requester.
#[derive(Clone, Debug)]
pub struct RequesterOptions {
    /// Reliable or not.
    pub service: Service,
    /// The responder's queue pair.
    pub dest_qp: u32,
    /// Sequence number of the first packet.
    pub first_psn: Psn,
    /// Payload bytes of a packet: 256, 512, 1024, 2048 or 4096 (IBTA §9.6.1.7).
    pub mtu: usize,
    /// Maximum packets in flight, a power of two up to 2^22. Ignored for UC.
    pub window: usize,
    /// What to do about loss. Ignored for UC.
    pub on_loss: OnLoss,
    /// Requests an acknowledgement at least every this many packets.
    pub ack_interval: u64,
    /// After this long without progress, resends what is in flight.
    pub timeout_ns: u64,
    /// How many times in a row, before the queue pair is given up.
    pub retries: u32,
    /// Maximum reads and atomic operations in flight: as many answers as the responder can repeat (IBTA
    /// §9.7.5.1.3, its "responder resources"; 16 for ours and for common NICs). With more, an
    /// answer that is lost could never be had again.
    pub atomics_max: usize,
}

impl RequesterOptions {
    /// The defaults.
    #[must_use]
    pub fn new(service: Service, dest_qp: u32, first_psn: Psn, mtu: usize) -> Self {
        Self {
            service,
            dest_qp,
            first_psn,
            mtu,
            window: 512,
            on_loss: OnLoss::Resend,
            ack_interval: 32,
            timeout_ns: 50_000_000,
            retries: 100,
            atomics_max: 16,
        }
    }
}

/// Why a queue pair can no longer be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// Refused by the responder.
    #[error("the responder answered with a NAK: {0:?}")]
    Nak(NakCode),
    /// No answer, after all retries.
    #[error("the responder does not answer")]
    Timeout,
}

/// Why nothing was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// Too many packets are in flight: try again once some have settled.
    #[error("the window is full")]
    WindowFull,
    /// The queue pair has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// What a response or a timeout has caused, other than progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The atomic operation of this packet was executed; the value before it. Answers that
    /// overtake each other are reported in the order of their arrival.
    AtomicDone {
        /// The packet's number.
        number: u64,
        /// The value before.
        original: u64,
    },
    /// The read of this packet was answered: the payload of the answer, which was just received, is what
    /// was read.
    ReadDone {
        /// The packet's number.
        number: u64,
    },
    /// This many packets, from this number on, did not arrive and will not be resent.
    Lost {
        /// Number of the first.
        first: u64,
        /// How many.
        packets: u64,
    },
    /// The queue pair can no longer be used: connect again.
    Failed(Failure),
}

/// Counters of a requester, in packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequesterCounters {
    /// Posted, not counting resends.
    pub posted: u64,
    /// Acknowledged. UC has none.
    pub acknowledged: u64,
    /// Known to be lost, and not resent.
    pub lost: u64,
    /// Resent.
    pub resent: u64,
    /// NAKs for a missing packet.
    pub sequence_naks: u64,
    /// Timeouts.
    pub timeouts: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Ready,
    /// The responder was not ready: nothing is sent before this time.
    Waiting {
        until_ns: u64,
    },
    /// An old packet was resent, to learn from the answer what has arrived.
    Probing,
    Failed(Failure),
}

/// A packet in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Slot {
    /// An acknowledgement is all it needs.
    #[default]
    Plain,
    /// A read or an atomic operation without an answer.
    Unanswered(Asked),
    /// One with an answer, which has to wait for what was posted before.
    Answered,
}

/// What has an answer of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Read,
    Atomic,
}

/// The requester's side of a queue pair. Memory: `window` packets if copies are kept.
#[derive(Debug)]
pub struct Requester {
    options: RequesterOptions,
    base: Psn,
    settled: u64,
    next: u64,
    state: State,
    /// When something last settled, or was sent while nothing was in flight.
    progress_ns: u64,
    timeouts_in_row: u32,
    /// The gap reported by a NAK, until something settles.
    gap: Option<Psn>,
    /// All packets before this number were executed. What has not settled of them are reads and atomic
    /// operations whose answers are missing, and what was posted after such.
    executed: u64,
    /// Answers missing before this number were requested again, until the next timeout.
    asked: u64,
    /// Copies, by packet number modulo window.
    copies: Vec<u8>,
    lens: Vec<u32>,
    /// What is in flight, by packet number modulo window.
    slots: Vec<Slot>,
    /// Reads and atomic operations in flight, answered or not.
    asking: usize,
    counters: RequesterCounters,
}

impl Requester {
    /// A requester of a connected queue pair.
    ///
    /// # Panics
    ///
    /// If MTU or window are invalid.
    #[must_use]
    pub fn new(options: RequesterOptions) -> Self {
        assert!([256, 512, 1024, 2048, 4096].contains(&options.mtu), "MTU");
        assert!(
            options.window.is_power_of_two() && options.window <= 1 << 22,
            "window"
        );
        assert!(options.ack_interval > 0, "ack interval");
        let mut requester = Self {
            base: options.first_psn,
            settled: 0,
            next: 0,
            state: State::Ready,
            progress_ns: 0,
            timeouts_in_row: 0,
            gap: None,
            executed: 0,
            asked: 0,
            copies: Vec::new(),
            lens: Vec::new(),
            slots: Vec::new(),
            asking: 0,
            counters: RequesterCounters::default(),
            options,
        };
        if requester.options.service == Service::Rc {
            let window = requester.options.window;
            requester.slots = vec![Slot::Plain; window];
            if requester.options.on_loss == OnLoss::Resend {
                // At most 2^22 packets of less than 5 KiB.
                requester.copies = vec![0; window.saturating_mul(requester.stride())];
                requester.lens = vec![0; window];
            }
        }
        requester
    }

    /// Bytes of the longest packet.
    fn stride(&self) -> usize {
        const AROUND: usize = HEADERS_LEN_MAX + ICRC_LEN;
        self.options.mtu.saturating_add(AROUND)
    }

    /// Packets that can be posted now.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        match self.state {
            State::Ready if self.options.service == Service::Uc => usize::MAX,
            State::Ready => self.options.window.saturating_sub(self.in_flight()),
            State::Waiting { .. } | State::Probing | State::Failed(_) => 0,
        }
    }

    /// Reads and atomic operations that can be posted now.
    #[inline]
    #[must_use]
    pub fn atomic_room(&self) -> usize {
        self.room()
            .min(self.options.atomics_max.saturating_sub(self.asking))
    }

    /// Packets in flight.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> usize {
        exact::<usize>(self.next.saturating_sub(self.settled))
    }

    /// Number of the next packet to be posted.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// All packets before this number are acknowledged or given up.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Sequence number of the next packet to be posted.
    #[must_use]
    pub fn next_psn(&self) -> Psn {
        self.psn(self.next)
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> RequesterCounters {
        self.counters
    }

    /// The service of its queue pair.
    #[must_use]
    pub fn service(&self) -> Service {
        self.options.service
    }

    fn psn(&self, number: u64) -> Psn {
        self.base.plus(number)
    }

    #[allow(clippy::cast_possible_truncation)]
    fn slot(&self, number: u64) -> usize {
        // The window is a power of two, below 2^32.
        number as usize & self.options.window.wrapping_sub(1)
    }

    fn opcode(&self, operation: Operation) -> Opcode {
        Opcode {
            service: self.options.service,
            operation,
        }
    }

    /// Writes `data` at `va` of the responder: one packet, or FIRST, MIDDLE and LAST ones if it is
    /// longer than the MTU.
    ///
    /// # Errors
    ///
    /// If it does not fit the window, or the queue pair has failed.
    #[inline]
    pub fn write(
        &mut self,
        va: u64,
        rkey: u32,
        data: &[u8],
        now_ns: u64,
        out: &mut PacketBatch,
    ) -> Result<(), PostError> {
        let reth = Reth {
            va,
            rkey,
            dma_len: exact::<u32>(data.len()),
        };
        self.message(&WRITE, Some(reth), data, None, now_ns, out)
    }

    /// As [`Requester::write`], and tells the responder's CPU once the data are there: it finds
    /// `immediate` in [`Responder::take_received`](crate::Responder::take_received), which costs
    /// it a posted receive.
    ///
    /// # Errors
    ///
    /// As [`Requester::write`].
    pub fn write_immediate(
        &mut self,
        va: u64,
        rkey: u32,
        data: &[u8],
        immediate: u32,
        now_ns: u64,
        out: &mut PacketBatch,
    ) -> Result<(), PostError> {
        let reth = Reth {
            va,
            rkey,
            dma_len: exact::<u32>(data.len()),
        };
        self.message(&WRITE, Some(reth), data, Some(immediate), now_ns, out)
    }

    /// Sends `data` to a receive that the responder has posted, and perhaps 4 bytes with it.
    ///
    /// # Errors
    ///
    /// As [`Requester::write`].
    pub fn send(
        &mut self,
        data: &[u8],
        immediate: Option<u32>,
        now_ns: u64,
        out: &mut PacketBatch,
    ) -> Result<(), PostError> {
        self.message(&SEND, None, data, immediate, now_ns, out)
    }

    /// Posts a message as one packet, or as FIRST, MIDDLE and LAST ones.
    #[inline]
    fn message(
        &mut self,
        operations: &Operations,
        reth: Option<Reth>,
        data: &[u8],
        immediate: Option<u32>,
        now_ns: u64,
        out: &mut PacketBatch,
    ) -> Result<(), PostError> {
        let mtu = self.options.mtu;
        let packets = data.len().div_ceil(mtu).max(1);
        self.check_room(packets)?;
        let extensions = Extensions {
            reth,
            immediate,
            ..Extensions::default()
        };
        let with = usize::from(immediate.is_some());
        if packets == 1 {
            self.post(operations.only[with], extensions, data, now_ns, out);
            return Ok(());
        }
        for (number, piece) in (1..=packets).zip(data.chunks(mtu)) {
            let operation = match number {
                1 => operations.first,
                n if n == packets => operations.last[with],
                _ => operations.middle,
            };
            self.post(operation, extensions, piece, now_ns, out);
        }
        Ok(())
    }

    /// Adds to the 8 bytes at `va` of the responder. The previous value is reported by
    /// [`Event::AtomicDone`] with the returned number.
    ///
    /// # Errors
    ///
    /// As [`Requester::write`].
    ///
    /// # Panics
    ///
    /// If the service is UC, which has no atomic operations.
    pub fn fetch_add(
        &mut self,
        va: u64,
        rkey: u32,
        add: u64,
        now_ns: u64,
        out: &mut PacketBatch,
    ) -> Result<u64, PostError> {
        assert_eq!(self.options.service, Service::Rc, "UC has no atomics");
        self.check_room(1)?;
        if self.atomic_room() == 0 {
            return Err(PostError::WindowFull);
        }
        let atomic_eth = AtomicEth {
            va,
            rkey,
            swap_or_add: add,
            compare: 0,
        };
        let extensions = Extensions {
            atomic_eth: Some(atomic_eth),
            ..Extensions::default()
        };
        let number = self.next;
        self.post(Operation::FetchAdd, extensions, &[], now_ns, out);
        Ok(number)
    }

    /// Reads `len` bytes at `va` of the responder, at most the MTU. [`Event::ReadDone`] with the returned
    /// number comes with them. All that was posted before has been executed then.
    ///
    /// # Errors
    ///
    /// As [`Requester::write`].
    ///
    /// # Panics
    ///
    /// If the service is UC, which has no reads, or `len` is more than the MTU.
    pub fn read(
        &mut self,
        va: u64,
        rkey: u32,
        len: usize,
        now_ns: u64,
        out: &mut PacketBatch,
    ) -> Result<u64, PostError> {
        assert_eq!(self.options.service, Service::Rc, "UC has no reads");
        assert!(len <= self.options.mtu, "an answer of one packet");
        self.check_room(1)?;
        if self.atomic_room() == 0 {
            return Err(PostError::WindowFull);
        }
        let reth = Reth {
            va,
            rkey,
            dma_len: exact::<u32>(len),
        };
        let extensions = Extensions {
            reth: Some(reth),
            ..Extensions::default()
        };
        let number = self.next;
        self.post(Operation::ReadRequest, extensions, &[], now_ns, out);
        Ok(number)
    }

    #[inline]
    fn check_room(&self, packets: usize) -> Result<(), PostError> {
        if let State::Failed(failure) = self.state {
            return Err(failure.into());
        }
        if self.room() < packets {
            return Err(PostError::WindowFull);
        }
        Ok(())
    }

    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "own counters of packets, and a slot of the window; nothing is from outside"
    )]
    fn post(
        &mut self,
        operation: Operation,
        extensions: Extensions,
        payload: &[u8],
        now_ns: u64,
        out: &mut PacketBatch,
    ) {
        let number = self.next;
        let reliable = self.options.service == Service::Rc;
        let asked = match operation {
            Operation::FetchAdd => Some(Asked::Atomic),
            Operation::ReadRequest => Some(Asked::Read),
            _ => None,
        };
        let due = (number + 1).is_multiple_of(self.options.ack_interval);
        let repr = Repr {
            opcode: self.opcode(operation),
            dest_qp: self.options.dest_qp,
            psn: self.psn(number).get(),
            ack_request: reliable && (due || asked.is_some()),
            payload_len: payload.len(),
            extensions,
        };
        out.push(&repr, &[payload]);
        self.next += 1;
        self.counters.posted += 1;
        if !reliable {
            self.settled = self.next;
            self.executed = self.next;
            return;
        }
        if self.settled == number {
            self.progress_ns = now_ns;
        }
        let slot = self.slot(number);
        self.slots[slot] = asked.map_or(Slot::Plain, Slot::Unanswered);
        self.asking += usize::from(asked.is_some());
        if self.options.on_loss == OnLoss::Resend {
            let packet = out.get(out.len() - 1);
            let at = slot * self.stride();
            self.copies[at..at + packet.len()].copy_from_slice(packet);
            self.lens[slot] = exact::<u32>(packet.len());
        }
    }

    /// Requests an acknowledgement of the last packet of `out`, which this requester has just
    /// posted: for the end of a burst.
    pub fn request_ack(&mut self, out: &mut PacketBatch) {
        if self.options.service == Service::Rc
            && self.next > self.settled
            && let Some(last) = out.len().checked_sub(1)
        {
            set_ack_request(out.get_mut(last));
        }
    }
}

/// Sets the bit that requests an acknowledgement.
fn set_ack_request(packet: &mut [u8]) {
    debug_assert!(packet.len() >= BTH_LEN);
    packet[8] |= 0x80;
}
