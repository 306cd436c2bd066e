//! The responder: what an RDMA NIC does with requests (IBTA §9.7.4, §9.7.5, §10.6).
//!
//! Memory is written only where a region of the queue pair's protection domain, found by its remote
//! key, permits it, and entirely within its bounds. It is never read remotely: a switch has no
//! business reading what others have logged. A READ gets what a NIC answers for a region without
//! that right, a NAK for remote access error (0x62).

mod queue_pair;

use std::collections::BTreeMap;
use std::net::IpAddr;

use strata_wire::roce::{
    CREDIT_UNLIMITED, DEFAULT_PARTITION_KEY, NakCode, Operation, Packet, Reth, Service, Syndrome,
};

use strata_wire::exact;

use queue_pair::Message;
pub use queue_pair::{QueuePair, QueuePairOptions, QueuePairState, Received, ResponderCounters};

use crate::batch::PacketBatch;
use crate::psn::Psn;

/// The memory of a region.
pub trait Memory {
    /// Writes `bytes` at `at`. The responder has checked that they lie within the region.
    ///
    /// # Errors
    ///
    /// [`Refused`] if nothing may be written there now; then nothing is.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Refused>;

    /// Replaces the 8 bytes at `at`, a native integer, and returns the previous value.
    ///
    /// # Errors
    ///
    /// As [`Memory::write`].
    fn update(&mut self, at: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, Refused>;
}

/// The memory refuses the access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

impl Memory for Vec<u8> {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Refused> {
        let at = usize::try_from(at).map_err(|_| Refused)?;
        let end = at.checked_add(bytes.len()).ok_or(Refused)?;
        let target = self.get_mut(at..end).ok_or(Refused)?;
        target.copy_from_slice(bytes);
        Ok(())
    }

    fn update(&mut self, at: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, Refused> {
        let at = usize::try_from(at).map_err(|_| Refused)?;
        let end = at.checked_add(8).ok_or(Refused)?;
        let target = self.get_mut(at..end).ok_or(Refused)?;
        let before = u64::from_ne_bytes((&*target).try_into().map_err(|_| Refused)?);
        target.copy_from_slice(&change(before).to_ne_bytes());
        Ok(before)
    }
}

/// What remote queue pairs may do in a region, or through a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// WRITE.
    pub write: bool,
    /// FETCH_ADD and CMP_SWAP.
    pub atomic: bool,
}

/// A registered memory region.
#[derive(Debug)]
pub struct Region<M> {
    /// Its remote key.
    pub rkey: u32,
    /// Its first virtual address.
    pub va: u64,
    /// Its bytes.
    pub len: u64,
    /// Protection domain: only queue pairs of the same domain can access it.
    pub domain: u32,
    /// What is permitted.
    pub access: Access,
    /// The memory.
    pub memory: M,
}

/// Answers to be sent.
#[derive(Debug, Default)]
pub struct Replies {
    /// The packets.
    pub packets: PacketBatch,
    /// Which queue pair of the responder sends each.
    pub from: Vec<u32>,
}

impl Replies {
    /// Drops all packets, keeps the memory.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.from.clear();
    }
}

/// Why a packet was dropped without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dropped {
    /// Transport version or partition key are not ours.
    Header,
    /// No such queue pair, or it has another service or peer.
    QueuePair,
    /// The queue pair has refused a request before.
    Failed,
    /// A packet that no requester sends.
    NoRequest,
}

/// Memory regions and queue pairs of one port.
#[derive(Debug)]
pub struct Responder<M> {
    regions: BTreeMap<u32, Region<M>>,
    queue_pairs: BTreeMap<u32, QueuePair>,
}

impl<M> Default for Responder<M> {
    fn default() -> Self {
        Self {
            regions: BTreeMap::new(),
            queue_pairs: BTreeMap::new(),
        }
    }
}

impl<M: Memory> Responder<M> {
    /// Without regions and queue pairs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers memory, replacing any region with the same key.
    pub fn register(&mut self, region: Region<M>) {
        self.regions.insert(region.rkey, region);
    }

    /// Deregisters a region.
    pub fn deregister(&mut self, rkey: u32) -> Option<Region<M>> {
        self.regions.remove(&rkey)
    }

    /// A region.
    pub fn region_mut(&mut self, rkey: u32) -> Option<&mut Region<M>> {
        self.regions.get_mut(&rkey)
    }

    /// Connects a queue pair, replacing any with the same number.
    pub fn connect(&mut self, options: QueuePairOptions) {
        let number = options.number;
        self.queue_pairs.insert(number, QueuePair::new(options));
    }

    /// Removes a queue pair.
    pub fn disconnect(&mut self, number: u32) -> Option<QueuePair> {
        self.queue_pairs.remove(&number)
    }

    /// A queue pair.
    #[must_use]
    pub fn queue_pair(&self, number: u32) -> Option<&QueuePair> {
        self.queue_pairs.get(&number)
    }

    /// Posts `count` more receives of a queue pair, of `len_max` bytes each, for SEND and immediate
    /// data. Returns whether there is such a queue pair. Memory: as much as is posted.
    pub fn post_receives(&mut self, number: u32, count: usize, len_max: usize) -> bool {
        let Some(qp) = self.queue_pairs.get_mut(&number) else {
            return false;
        };
        qp.receives.posted = qp.receives.posted.saturating_add(count);
        qp.receives.len_max = len_max;
        true
    }

    /// Keeps the answers of `count` atomic operations of a queue pair, 16 until then: its requester
    /// may have as many in flight. Returns whether there is such a queue pair. Memory: 16 bytes each.
    ///
    /// # Panics
    ///
    /// If no answer is kept, or more than numbers can tell apart.
    pub fn keep_atomics(&mut self, number: u32, count: usize) -> bool {
        assert!((1..1 << 22).contains(&count), "atomic operations");
        let Some(qp) = self.queue_pairs.get_mut(&number) else {
            return false;
        };
        qp.atomics_kept = count;
        let excess = qp.atomics.len().saturating_sub(count);
        qp.atomics.drain(..excess);
        true
    }

    /// The next message of a queue pair that has taken a posted receive.
    pub fn take_received(&mut self, number: u32) -> Option<Received> {
        let qp = self.queue_pairs.get_mut(&number)?;
        qp.receives.received.pop_front()
    }

    /// Processes a request from `source` with a valid ICRC. Answers go to `out`, except plain
    /// acknowledgements, which wait for [`Responder::acknowledge`].
    ///
    /// # Errors
    ///
    /// Why it was silently dropped.
    pub fn receive(
        &mut self,
        source: IpAddr,
        packet: &Packet<'_>,
        out: &mut Replies,
    ) -> Result<(), Dropped> {
        if packet.version() != 0 || packet.partition_key() != DEFAULT_PARTITION_KEY {
            return Err(Dropped::Header);
        }
        let qp = self.queue_pairs.get_mut(&packet.dest_qp());
        let qp = qp.ok_or(Dropped::QueuePair)?;
        let opcode = packet.opcode();
        if opcode.service != qp.options.service || source != qp.options.peer {
            return Err(Dropped::QueuePair);
        }
        if qp.state != QueuePairState::Ready {
            return Err(Dropped::Failed);
        }
        if (Operation::ReadResponseFirst as u8..=Operation::AtomicAcknowledge as u8)
            .contains(&(opcode.operation as u8))
        {
            return Err(Dropped::NoRequest);
        }
        let psn = Psn::new(packet.psn());
        let ahead = psn.since(qp.expected);
        match opcode.service {
            Service::Uc => {
                if ahead != 0 {
                    qp.message = None;
                    qp.receives.gathered = None;
                    // As the sender says: any gap of 24 bits, any number of times.
                    let missing = exact::<u64>(ahead.max(0));
                    qp.counters.missing = qp.counters.missing.saturating_add(missing);
                }
            }
            Service::Rc if ahead > 0 => {
                qp.counters.out_of_order = qp.counters.out_of_order.saturating_add(1);
                if !std::mem::replace(&mut qp.gap_reported, true) {
                    qp.ack_due = false;
                    let missing = qp.expected;
                    qp.answer(missing, Syndrome::Nak(NakCode::PsnSequence), None, out);
                }
                return Ok(());
            }
            Service::Rc if ahead < 0 => {
                duplicate(qp, psn, opcode.operation, out);
                return Ok(());
            }
            Service::Rc => {}
        }
        self.execute(packet, psn, out);
        Ok(())
    }

    /// Sends the requested acknowledgements, one per queue pair: to be called after each burst of
    /// requests.
    pub fn acknowledge(&mut self, out: &mut Replies) {
        for qp in self.queue_pairs.values_mut().filter(|qp| qp.ack_due) {
            qp.acknowledge(out);
        }
    }

    fn execute(&mut self, packet: &Packet<'_>, psn: Psn, out: &mut Replies) {
        let Some(qp) = self.queue_pairs.get_mut(&packet.dest_qp()) else {
            return;
        };
        match packet.opcode().operation {
            Operation::WriteLastImm | Operation::WriteOnlyImm if qp.receives.posted == 0 => {
                qp.not_ready(psn, out);
            }
            Operation::WriteFirst
            | Operation::WriteMiddle
            | Operation::WriteLast
            | Operation::WriteLastImm
            | Operation::WriteOnly
            | Operation::WriteOnlyImm => match write(qp, &mut self.regions, packet) {
                Ok(completes) => {
                    if let Some(immediate) = packet.immediate() {
                        qp.complete(Vec::new(), Some(immediate));
                    }
                    qp.advance(psn, completes);
                    qp.ack_due |= packet.ack_request() && qp.options.service == Service::Rc;
                }
                Err(code) => qp.refuse(psn, code, out),
            },
            Operation::CompareSwap | Operation::FetchAdd => {
                match atomic(qp, &mut self.regions, packet) {
                    Ok(original) => {
                        if std::mem::take(&mut qp.ack_due) {
                            qp.acknowledge(out);
                        }
                        qp.advance(psn, true);
                        if qp.atomics.len() == qp.atomics_kept {
                            qp.atomics.pop_front();
                        }
                        qp.atomics.push_back((psn, original));
                        let done = Syndrome::Ack(CREDIT_UNLIMITED);
                        qp.answer(psn, done, Some(original), out);
                    }
                    Err(code) => qp.refuse(psn, code, out),
                }
            }
            // Like a NIC whose regions were registered without remote read.
            Operation::ReadRequest => qp.refuse(psn, NakCode::RemoteAccess, out),
            _ if qp.receives.posted == 0 => qp.not_ready(psn, out),
            _ => match send(qp, packet) {
                Ok(completes) => {
                    qp.advance(psn, completes);
                    qp.ack_due |= packet.ack_request() && qp.options.service == Service::Rc;
                }
                Err(code) => qp.refuse(psn, code, out),
            },
        }
    }
}

/// Takes a packet of a SEND into a posted receive; whether it ends its message.
fn send(qp: &mut QueuePair, packet: &Packet<'_>) -> Result<bool, NakCode> {
    use Operation::{SendFirst, SendLast, SendLastImm, SendMiddle, SendOnly, SendOnlyImm};
    let operation = packet.opcode().operation;
    let payload = packet.payload();
    let begins = matches!(operation, SendFirst | SendOnly | SendOnlyImm);
    let completes = matches!(operation, SendLast | SendLastImm | SendOnly | SendOnlyImm);
    if !begins && !completes && operation != SendMiddle {
        return Err(NakCode::InvalidRequest);
    }
    // One that is not completed is given up by the next (IBTA §9.8.2.2), of UC alone.
    let pending = qp.receives.gathered.take();
    let is_interrupted = qp.message.take().is_some() || (begins && pending.is_some());
    if is_interrupted && qp.options.service == Service::Rc {
        return Err(NakCode::InvalidRequest);
    }
    let mut gathered = match begins {
        true => Vec::new(),
        false => pending.ok_or(NakCode::InvalidRequest)?,
    };
    let mtu = qp.options.mtu;
    let length_is_right = match completes {
        true => payload.len() <= mtu && (begins || !payload.is_empty()),
        false => payload.len() == mtu,
    };
    let len = gathered.len().saturating_add(payload.len());
    if !length_is_right || len > qp.receives.len_max {
        return Err(NakCode::InvalidRequest);
    }
    gathered.extend_from_slice(payload);
    qp.counters.bytes = qp.counters.bytes.saturating_add(payload.len() as u64);
    if completes {
        qp.complete(gathered, packet.immediate());
    } else {
        qp.receives.gathered = Some(gathered);
    }
    Ok(completes)
}

/// A request that was executed before (IBTA §9.7.5.1.3).
fn duplicate(qp: &mut QueuePair, psn: Psn, operation: Operation, out: &mut Replies) {
    qp.counters.duplicates = qp.counters.duplicates.saturating_add(1);
    match operation {
        Operation::CompareSwap | Operation::FetchAdd => {
            // The oldest first, and all are older than what is expected.
            let age = |kept: Psn| qp.expected.since(kept);
            let found = qp
                .atomics
                .binary_search_by(|&(kept, _)| age(psn).cmp(&age(kept)));
            if let Ok(index) = found {
                let (_, original) = qp.atomics[index];
                let done = Syndrome::Ack(CREDIT_UNLIMITED);
                qp.answer(psn, done, Some(original), out);
            }
        }
        Operation::ReadRequest => {}
        _ => qp.ack_due = true,
    }
}

/// Returns whether the write ends its message.
fn write<M: Memory>(
    qp: &mut QueuePair,
    regions: &mut BTreeMap<u32, Region<M>>,
    packet: &Packet<'_>,
) -> Result<bool, NakCode> {
    let operation = packet.opcode().operation;
    let payload = packet.payload();
    let len = payload.len() as u64;
    let mtu = qp.options.mtu as u64;
    if qp.receives.gathered.take().is_some() && qp.options.service == Service::Rc {
        return Err(NakCode::InvalidRequest);
    }
    let message = match (packet.reth(), qp.message.take()) {
        // A message starts when no other is in progress.
        (Some(reth), None) => {
            check(qp, regions, &reth)?;
            Message {
                rkey: reth.rkey,
                va: reth.va,
                remaining: u64::from(reth.dma_len),
            }
        }
        (Some(reth), Some(_)) if qp.options.service == Service::Uc => {
            // The previous one will not be completed (IBTA §9.8.2.2).
            check(qp, regions, &reth)?;
            Message {
                rkey: reth.rkey,
                va: reth.va,
                remaining: u64::from(reth.dma_len),
            }
        }
        (None, Some(message)) => message,
        (Some(_), Some(_)) | (None, None) => return Err(NakCode::InvalidRequest),
    };
    let is_only = matches!(operation, Operation::WriteOnly | Operation::WriteOnlyImm);
    let is_last = matches!(operation, Operation::WriteLast | Operation::WriteLastImm);
    let completes = is_only || is_last;
    let length_is_right = if completes {
        len == message.remaining && len <= mtu && (is_only || len > 0)
    } else {
        len == mtu && len < message.remaining
    };
    if !length_is_right {
        return Err(NakCode::InvalidRequest);
    }
    if !payload.is_empty() {
        let region = regions.get_mut(&message.rkey);
        let region = region.ok_or(NakCode::RemoteAccess)?;
        let at = message.va.wrapping_sub(region.va);
        let written = region.memory.write(at, payload);
        written.map_err(|Refused| NakCode::RemoteAccess)?;
        qp.counters.bytes = qp.counters.bytes.saturating_add(len);
    }
    if !completes {
        qp.message = Some(Message {
            // Within the region, which was checked when the message began.
            va: message.va.checked_add(len).ok_or(NakCode::RemoteAccess)?,
            remaining: message.remaining.saturating_sub(len),
            ..message
        });
    }
    Ok(completes)
}

/// Whether the whole range of a RETH may be written (IBTA §10.6.3).
fn check<M>(
    qp: &QueuePair,
    regions: &BTreeMap<u32, Region<M>>,
    reth: &Reth,
) -> Result<(), NakCode> {
    if reth.dma_len == 0 {
        // Nothing is accessed, so nothing is checked (IBTA §9.7.4.1.6).
        return Ok(());
    }
    let region = regions.get(&reth.rkey).ok_or(NakCode::RemoteAccess)?;
    let allowed = region.access.write && qp.options.access.write;
    let inside = within(region, reth.va, u64::from(reth.dma_len));
    if allowed && inside && region.domain == qp.options.domain {
        Ok(())
    } else {
        Err(NakCode::RemoteAccess)
    }
}

fn within<M>(region: &Region<M>, va: u64, len: u64) -> bool {
    va.checked_sub(region.va)
        .and_then(|at| at.checked_add(len))
        .is_some_and(|end| end <= region.len)
}

/// Executes an atomic operation; returns the value before it.
fn atomic<M: Memory>(
    qp: &mut QueuePair,
    regions: &mut BTreeMap<u32, Region<M>>,
    packet: &Packet<'_>,
) -> Result<u64, NakCode> {
    let request = packet.atomic_eth().ok_or(NakCode::InvalidRequest)?;
    let is_interrupted = qp.message.is_some() || qp.receives.gathered.is_some();
    if is_interrupted || !request.va.is_multiple_of(8) || !packet.payload().is_empty() {
        return Err(NakCode::InvalidRequest);
    }
    let region = regions.get_mut(&request.rkey);
    let region = region.ok_or(NakCode::RemoteAccess)?;
    let allowed = region.access.atomic && qp.options.access.atomic;
    if !allowed || region.domain != qp.options.domain || !within(region, request.va, 8) {
        return Err(NakCode::RemoteAccess);
    }
    let swaps = packet.opcode().operation == Operation::CompareSwap;
    let change = |before: u64| match swaps {
        true if before == request.compare => request.swap_or_add,
        true => before,
        false => before.wrapping_add(request.swap_or_add),
    };
    // Within the region, so not before its start.
    let at = request.va.wrapping_sub(region.va);
    let done = region.memory.update(at, &change);
    done.map_err(|Refused| NakCode::RemoteAccess)
}
