//! The memory that one switch writes into, with any transport.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use strata_blocks::{RelayedHeader, SEGMENTS_AT};
use strata_rdma::{Access, Psn, QueuePairOptions, Region};
use strata_roce::icrc::{IcrcCheck, outer};
use strata_sys::disk::AnyBlock;
use strata_sys::shared::SharedMemory;
use strata_wire::roce::{MASK_24, Service, icrc};
use strata_wire::segment::Segments;

use crate::error::{RelayError, io_error};
use crate::memory::{Blocks, seal_shared};
use crate::protocol::relay::Place;
use crate::protocol::{Begin, HelloPath, WelcomePath};
use crate::random::random;
use crate::relay::{Inner, Peer};

/// The name of shared memory in /proc.
const MEMORY_NAME: &str = "strata-relay";
/// Virtual address of a software region's first byte.
const VA: u64 = 1 << 40;

/// Where a switch writes.
pub(super) enum Memory {
    /// A responder's blocks, by key and queue pair.
    Software { rkey: u32, qpn: u32 },
    /// Memory mapped by the switch.
    Shared {
        mapping: Arc<SharedMemory>,
        stride: usize,
    },
    /// Memory written by a NIC.
    #[cfg(feature = "verbs")]
    Nic {
        connected: strata_roce::verbs::Connected,
        stride: usize,
    },
}

impl Memory {
    /// Creates the memory of a switch; returns also where it is, and the distance between its
    /// blocks.
    pub(super) fn new(
        inner: &Inner,
        begin: &Begin,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<(Self, WelcomePath, usize), RelayError> {
        let (block_bytes, blocks) = (inner.options.block_bytes, inner.options.blocks.max(2));
        let memory = Blocks::new(blocks, block_bytes);
        let stride = memory.stride();
        match begin.path {
            HelloPath::SharedMemory => {
                let handover = inner.handover.as_ref().ok_or_else(|| {
                    let problem = "this relay has no socket for shared memory: see the messages of \
                                   the relay at its start, and --memory-socket";
                    RelayError::Refused(problem.into())
                })?;
                let mapping = SharedMemory::create(MEMORY_NAME, stride * blocks);
                let mapping = Arc::new(mapping.map_err(io_error("cannot create shared memory"))?);
                let path = WelcomePath::SharedMemory {
                    token: handover.offer(&mapping)?,
                };
                Ok((Self::Shared { mapping, stride }, path, stride))
            }
            HelloPath::Rdma { mtu, .. } if ![256, 512, 1024, 2048, 4096].contains(&mtu) => {
                Err(RelayError::Refused(format!("{mtu} is not an RDMA MTU")))
            }
            HelloPath::Rdma { .. } => {
                #[cfg(feature = "verbs")]
                if let Some(device) = &inner.device {
                    let switch = verbs_switch(&begin.path, peer, blocks * stride);
                    let connected = device.connect(MEMORY_NAME, &switch);
                    let connected =
                        connected.map_err(io_error("cannot connect a queue pair to a switch"))?;
                    let path = WelcomePath::Rdma {
                        qpn: connected.number(),
                        rkey: connected.rkey(),
                        va: connected.va() + SEGMENTS_AT as u64,
                        mtu: switch.mtu,
                        port: strata_wire::roce::UDP_PORT,
                        psn: connected.psn(),
                    };
                    return Ok((Self::Nic { connected, stride }, path, stride));
                }
                let (memory, path) = Self::in_software(inner, begin, memory, local, peer)?;
                Ok((memory, path, stride))
            }
        }
    }

    /// Gives the blocks to the responder, with a queue pair for the switch.
    fn in_software(
        inner: &Inner,
        begin: &Begin,
        memory: Blocks,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<(Self, WelcomePath), RelayError> {
        let HelloPath::Rdma {
            reliable,
            qpn: peer_number,
            psn,
            port,
            mtu,
        } = begin.path
        else {
            return Err(RelayError::Refused("no queue pair".into()));
        };
        let (number, rkey) = numbers(inner)?;
        let access = Access {
            write: true,
            atomic: true,
        };
        let qp = QueuePairOptions {
            number,
            peer_number,
            peer: unmapped(peer.ip()),
            service: if reliable { Service::Rc } else { Service::Uc },
            first_psn: Psn::new(psn),
            mtu,
            domain: number,
            access,
        };
        let from = SocketAddr::new(unmapped(peer.ip()), port);
        let to = SocketAddr::new(unmapped(local.ip()), inner.rdma_port);
        let both = IcrcCheck::new(from, to).zip(outer(to, from));
        let (check, back) =
            both.ok_or_else(|| RelayError::Refused("addresses of two families".into()))?;
        let mut wire = inner.wire();
        wire.responder.register(Region {
            rkey,
            va: VA,
            len: memory.bytes(),
            domain: number,
            access,
            memory,
        });
        wire.responder.connect(qp);
        wire.peers.insert(
            number,
            Peer {
                address: from,
                icrcs: icrc::Stream::new(back),
                check,
            },
        );
        let path = WelcomePath::Rdma {
            qpn: number,
            rkey,
            va: VA + SEGMENTS_AT as u64,
            mtu,
            port: inner.rdma_port,
            psn: 0,
        };
        Ok((Self::Software { rkey, qpn: number }, path))
    }

    /// Whether every packet before this sequence number has been seen.
    pub(super) fn has_arrived(&self, inner: &Inner, end_psn: u32) -> bool {
        match self {
            Self::Software { qpn, .. } => {
                let wire = inner.wire();
                let qp = wire.responder.queue_pair(*qpn);
                qp.is_none_or(|qp| qp.expected().since(Psn::new(end_psn)) >= 0)
            }
            // A copy is complete before it is announced.
            Self::Shared { .. } => true,
            // So is an acknowledged write; unreliable ones are given time.
            #[cfg(feature = "verbs")]
            Self::Nic { connected, .. } => connected.is_reliable(),
        }
    }

    /// Takes a block from the switch and sets its header; `None` if a writer has it.
    pub(super) fn take(
        &self,
        inner: &Inner,
        place: Place,
        header: &RelayedHeader,
    ) -> Option<AnyBlock> {
        match self {
            Self::Software { rkey, .. } => {
                let mut wire = inner.wire();
                let region = wire.responder.region_mut(*rkey)?;
                let memory = region.memory.take(place.index)?;
                drop(wire);
                Some(memory.seal(header))
            }
            Self::Shared { mapping, stride } => place
                .is_free
                .then(|| seal_shared(mapping, place.index * stride, header)),
            #[cfg(feature = "verbs")]
            Self::Nic { connected, stride } => place.is_free.then(|| {
                let memory = connected.memory();
                seal_shared(memory, place.index * stride, header)
            }),
        }
    }

    /// Lets the switch write into a block again.
    pub(super) fn give_back(&self, inner: &Inner, index: usize, block: AnyBlock) {
        if let Self::Software { rkey, .. } = self {
            let mut wire = inner.wire();
            if let Some(region) = wire.responder.region_mut(*rkey) {
                region.memory.give_back_sealed(index, block);
            }
        }
    }

    /// Bytes of the block with this number, written with `key`, up to its last segment; `None` if a
    /// writer has it.
    pub(super) fn used(&self, inner: &Inner, place: Place, key: u32, number: u64) -> Option<usize> {
        #[allow(clippy::cast_possible_truncation)]
        let end = |bytes: &[u8]| {
            let segments = Segments::new(bytes, key, number as u32);
            segments.last().map_or(0, |(range, _)| range.end)
        };
        match self {
            Self::Software { rkey, .. } => {
                let mut wire = inner.wire();
                let region = wire.responder.region_mut(*rkey)?;
                let memory = region.memory.take(place.index)?;
                let used = end(memory.segments());
                region.memory.give_back(place.index, memory);
                Some(used)
            }
            Self::Shared { mapping, stride } => {
                let copy = copy_segments(inner, mapping, place.index * stride);
                place.is_free.then(|| end(&copy))
            }
            #[cfg(feature = "verbs")]
            Self::Nic { connected, stride } => {
                let copy = copy_segments(inner, connected.memory(), place.index * stride);
                place.is_free.then(|| end(&copy))
            }
        }
    }

    /// The switch is gone.
    pub(super) fn release(&self, inner: &Inner) {
        if let Self::Software { rkey, qpn } = self {
            let mut wire = inner.wire();
            wire.peers.remove(qpn);
            wire.responder.disconnect(*qpn);
            wire.responder.deregister(*rkey);
        }
    }
}

/// The segments of a block at `at`, to examine its contents.
fn copy_segments(inner: &Inner, mapping: &SharedMemory, at: usize) -> Vec<u8> {
    mapping.copy_out(at + SEGMENTS_AT, inner.options.block_bytes)
}

/// The switch's end, as a NIC needs it.
#[cfg(feature = "verbs")]
fn verbs_switch(path: &HelloPath, peer: SocketAddr, len: usize) -> strata_roce::verbs::Peer {
    let (reliable, qpn, psn, mtu) = match *path {
        HelloPath::Rdma {
            reliable,
            qpn,
            psn,
            mtu,
            ..
        } => (reliable, qpn, psn, mtu),
        HelloPath::SharedMemory => (true, 0, 0, 0),
    };
    strata_roce::verbs::Peer {
        reads: false,
        reliable,
        qpn,
        psn,
        mtu,
        address: peer.ip(),
        len,
    }
}

/// IPv4-mapped addresses as IPv4, as a dual-stack socket shows them.
fn unmapped(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// Queue pair number and memory key, both random, so that no switch can guess where another writes.
fn numbers(inner: &Inner) -> Result<(u32, u32), RelayError> {
    loop {
        let random = random()?;
        #[allow(clippy::cast_possible_truncation)]
        let (number, rkey) = (random as u32 & MASK_24, (random >> 32) as u32);
        let mut wire = inner.wire();
        let first = inner.options.first_qpn.filter(|_| wire.peers.is_empty());
        let number = first.unwrap_or(number);
        // 0 and 1 are reserved for management (IBTA §3.5.3).
        if number > 1 && !wire.peers.contains_key(&number) && !wire.has_region(rkey) {
            return Ok((number, rkey));
        }
    }
}
