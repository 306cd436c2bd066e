//! How segments get to the relay's memory.

use strata_rdma::{
    Event, OnLoss, PacketBatch, Psn, Requester, RequesterCounters, RequesterOptions,
};
use strata_roce::shared::SharedToPeer;
use strata_wire::roce::{Packet, Service};

use crate::error::RelayError;
use crate::protocol::{HelloPath, WelcomePath};

/// The path to the blocks of one connection.
#[derive(Debug)]
pub enum Path {
    /// RDMA WRITEs.
    Rdma(Box<RdmaPath>),
    /// Copies.
    Shared {
        /// The relay's blocks.
        memory: SharedToPeer,
        /// The number of messages written.
        messages: u64,
    },
}

/// A queue pair, and the memory that it writes to.
#[derive(Debug)]
pub struct RdmaPath {
    requester: Requester,
    out: PacketBatch,
    rkey: u32,
    va: u64,
}

impl Path {
    /// The RDMA path that both ends have agreed on; `None` if they have not.
    #[must_use]
    pub fn rdma(ours: &HelloPath, theirs: &WelcomePath, on_loss: OnLoss) -> Option<Self> {
        let (
            &HelloPath::Rdma { reliable, psn, .. },
            &WelcomePath::Rdma {
                qpn, rkey, va, mtu, ..
            },
        ) = (ours, theirs)
        else {
            return None;
        };
        if ![256, 512, 1024, 2048, 4096].contains(&mtu) {
            return None;
        }
        let service = if reliable { Service::Rc } else { Service::Uc };
        let mut options = RequesterOptions::new(service, qpn, Psn::new(psn), mtu);
        options.on_loss = on_loss;
        Some(Self::Rdma(Box::new(RdmaPath {
            requester: Requester::new(options),
            out: PacketBatch::new(),
            rkey,
            va,
        })))
    }

    /// Whether every message arrives, or is known to be lost.
    pub(super) fn is_reliable(&self) -> bool {
        match self {
            Self::Rdma(rdma) => rdma.requester.service() == Service::Rc,
            Self::Shared { .. } => true,
        }
    }

    pub(super) fn counters(&self) -> RequesterCounters {
        match self {
            Self::Rdma(rdma) => rdma.requester.counters(),
            Self::Shared { messages, .. } => RequesterCounters {
                posted: *messages,
                acknowledged: *messages,
                ..RequesterCounters::default()
            },
        }
    }

    /// Packets waiting to be sent.
    pub(super) fn gathered(&self) -> usize {
        match self {
            Self::Rdma(rdma) => rdma.out.len(),
            Self::Shared { .. } => 0,
        }
    }

    /// Packets that may be posted now.
    pub(super) fn room(&self) -> usize {
        match self {
            Self::Rdma(rdma) => rdma.requester.room(),
            Self::Shared { .. } => usize::MAX,
        }
    }

    /// Number of the next packet to be posted, and its sequence number.
    pub(super) fn next(&self) -> (u64, u32) {
        match self {
            Self::Rdma(rdma) => (rdma.requester.next(), rdma.requester.next_psn().get()),
            Self::Shared { .. } => (0, 0),
        }
    }

    /// Every packet before this one has arrived, or was given up.
    pub(super) fn settled(&self) -> u64 {
        match self {
            Self::Rdma(rdma) => rdma.requester.settled(),
            Self::Shared { .. } => u64::MAX,
        }
    }

    /// Whether answers to packets are awaited.
    pub(super) fn is_waiting(&self) -> bool {
        match self {
            Self::Rdma(rdma) => rdma.requester.in_flight() > 0,
            Self::Shared { .. } => false,
        }
    }

    /// Writes a message at `at` of a block; blocks are `stride` bytes apart.
    pub(super) fn post(
        &mut self,
        (block, stride): (usize, usize),
        at: usize,
        message: &[u8],
        now_ns: u64,
    ) {
        match self {
            Self::Rdma(rdma) => {
                let va = rdma.va + (block * stride + at) as u64;
                let (rkey, out) = (rdma.rkey, &mut rdma.out);
                // There was space when last checked. A failed queue pair ends the connection with
                // the next answer.
                let _ = rdma.requester.write(va, rkey, message, now_ns, out);
            }
            Self::Shared { memory, messages } => {
                memory.write(block, at, message);
                *messages += 1;
            }
        }
    }

    /// The packets to be sent, if any; the caller clears the batch after sending.
    pub(super) fn outgoing(&mut self) -> Option<&mut PacketBatch> {
        let Self::Rdma(rdma) = self else {
            return None;
        };
        if rdma.out.is_empty() {
            return None;
        }
        rdma.requester.request_ack(&mut rdma.out);
        Some(&mut rdma.out)
    }

    /// Processes an answer.
    pub(super) fn receive(&mut self, packet: &Packet<'_>, now_ns: u64) -> Result<(), RelayError> {
        match self {
            Self::Rdma(rdma) => failure(rdma.requester.receive(packet, now_ns, &mut rdma.out)),
            Self::Shared { .. } => Ok(()),
        }
    }

    /// Advances the time.
    pub(super) fn tick(&mut self, now_ns: u64) -> Result<(), RelayError> {
        match self {
            Self::Rdma(rdma) if rdma.requester.service() == Service::Rc => {
                failure(rdma.requester.tick(now_ns, &mut rdma.out))
            }
            _ => Ok(()),
        }
    }

    /// When [`Path::tick`] is due.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        match self {
            Self::Rdma(rdma) if rdma.requester.service() == Service::Rc => {
                rdma.requester.deadline_ns()
            }
            _ => None,
        }
    }
}

fn failure(event: Option<Event>) -> Result<(), RelayError> {
    match event {
        Some(Event::Failed(failure)) => Err(failure.into()),
        _ => Ok(()),
    }
}
