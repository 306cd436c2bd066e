//! How messages get to the relay's memory.

use std::net::SocketAddr;
use std::time::Duration;

use strata_rdma::{
    Event, Failure, PacketBatch, Psn, Requester, RequesterCounters, RequesterOptions,
};
use strata_roce::Port;
use strata_roce::raw::RawToPeer;
use strata_roce::shared::SharedToPeer;
use strata_roce::udp::{UdpPort, UdpToPeer};
use strata_store::SEGMENTS_AT;
use strata_wire::roce::Service;

use crate::control::{HelloPath, Welcome, WelcomePath};
use crate::error::{RelayError, io_error};

use super::{LinkOptions, Transport};

/// To the blocks of one connection.
pub(super) enum Road {
    /// RDMA WRITEs.
    Rdma {
        requester: Box<Requester>,
        port: Box<dyn Port>,
        out: PacketBatch,
        rkey: u32,
        va: u64,
    },
    /// Copies.
    Shared { memory: SharedToPeer, messages: u64 },
}

impl Road {
    /// The road that both ends have agreed on; `udp` is a bound socket, and where it
    /// is reached.
    pub(super) fn new(
        options: &LinkOptions,
        welcome: &Welcome,
        ours: &HelloPath,
        udp: Option<(UdpPort, SocketAddr)>,
        relay: SocketAddr,
    ) -> Result<Self, RelayError> {
        let protocol = |problem: &str| RelayError::Protocol {
            peer: relay.to_string(),
            problem: problem.to_owned(),
        };
        match (&welcome.path, ours, udp) {
            (WelcomePath::SharedMemory { token }, HelloPath::SharedMemory, _) => {
                let (blocks, stride) = (welcome.blocks, welcome.block_stride);
                let len = blocks.checked_mul(stride);
                let len = len.ok_or_else(|| protocol("invalid sizes of blocks"))?;
                let file = options.memory.fetch(relay.port(), token, len as u64)?;
                let memory = SharedToPeer::map(file, blocks, stride, SEGMENTS_AT);
                Ok(Self::Shared {
                    memory: memory.map_err(io_error("shared memory"))?,
                    messages: 0,
                })
            }
            (
                &WelcomePath::Rdma {
                    qpn,
                    rkey,
                    va,
                    mtu,
                    port,
                    ..
                },
                &HelloPath::Rdma { reliable, psn, .. },
                Some((udp, local)),
            ) => {
                if ![256, 512, 1024, 2048, 4096].contains(&mtu) {
                    return Err(protocol("an MTU that RDMA does not have"));
                }
                let relay = SocketAddr::new(relay.ip(), port);
                let service = if reliable { Service::Rc } else { Service::Uc };
                let mut requester = RequesterOptions::new(service, qpn, Psn::new(psn), mtu);
                requester.on_loss = options.on_loss;
                Ok(Self::Rdma {
                    requester: Box::new(Requester::new(requester)),
                    port: port_to(options, udp, local, relay)?,
                    out: PacketBatch::new(),
                    rkey,
                    va,
                })
            }
            _ => Err(protocol("another transport than was asked for")),
        }
    }

    pub(super) fn counters(&self) -> RequesterCounters {
        match self {
            Self::Rdma { requester, .. } => requester.counters(),
            Self::Shared { messages, .. } => RequesterCounters {
                posted: *messages,
                acknowledged: *messages,
                ..RequesterCounters::default()
            },
        }
    }

    /// Packets that wait to be sent.
    pub(super) fn gathered(&self) -> usize {
        match self {
            Self::Rdma { out, .. } => out.len(),
            Self::Shared { .. } => 0,
        }
    }

    /// Packets that may be posted now.
    pub(super) fn room(&self) -> usize {
        match self {
            Self::Rdma { requester, .. } => requester.room(),
            Self::Shared { .. } => usize::MAX,
        }
    }

    /// Number of the packet that is posted next, and its sequence number.
    pub(super) fn next(&self) -> (u64, u32) {
        match self {
            Self::Rdma { requester, .. } => (requester.next(), requester.next_psn().get()),
            Self::Shared { .. } => (0, 0),
        }
    }

    /// Every packet before this one has arrived, or is given up.
    pub(super) fn settled(&self) -> u64 {
        match self {
            Self::Rdma { requester, .. } => requester.settled(),
            Self::Shared { .. } => u64::MAX,
        }
    }

    /// Writes a message at `at` of a block; how far blocks are apart is the `stride`.
    pub(super) fn post(
        &mut self,
        (block, stride): (usize, usize),
        at: usize,
        message: &[u8],
        now_ns: u64,
    ) {
        match self {
            Self::Rdma {
                requester,
                out,
                rkey,
                va,
                ..
            } => {
                let va = *va + (block * stride + at) as u64;
                // Room was asked for before. A failed queue pair ends the connection
                // with the next answer.
                let _ = requester.write(va, *rkey, message, now_ns, out);
            }
            Self::Shared { memory, messages } => {
                memory.write(block, at, message);
                *messages += 1;
            }
        }
    }

    /// Sends what was gathered.
    pub(super) fn send(&mut self) -> Result<(), RelayError> {
        if let Self::Rdma {
            requester,
            port,
            out,
            ..
        } = self
            && !out.is_empty()
        {
            requester.request_ack(out);
            let sent = port.send(out);
            out.clear();
            sent.map_err(io_error("RDMA packets: cannot send"))?;
        }
        Ok(())
    }

    /// Takes answers, and lets time pass.
    pub(super) fn poll(&mut self, now_ns: u64) -> Result<(), RelayError> {
        let Self::Rdma {
            requester,
            port,
            out,
            ..
        } = self
        else {
            return Ok(());
        };
        let mut failure: Option<Failure> = None;
        let mut note = |event: Option<Event>| {
            if let Some(Event::Failed(why)) = event {
                failure = Some(why);
            }
        };
        if requester.service() == Service::Rc {
            port.receive(&mut |packet| note(requester.receive(packet, now_ns, out)))
                .map_err(io_error("RDMA packets: cannot receive"))?;
            note(requester.tick(now_ns, out));
        }
        match failure {
            Some(failure) => Err(failure.into()),
            None => self.send(),
        }
    }

    /// Waits for so long for something to come back.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<(), RelayError> {
        match self {
            Self::Rdma {
                requester, port, ..
            } if requester.in_flight() > 0 => port
                .wait(limit)
                .map_err(io_error("RDMA packets: cannot wait")),
            _ => {
                std::thread::sleep(limit);
                Ok(())
            }
        }
    }
}

fn port_to(
    options: &LinkOptions,
    udp: UdpPort,
    local: SocketAddr,
    relay: SocketAddr,
) -> Result<Box<dyn Port>, RelayError> {
    let what = "RDMA packets";
    let port: Box<dyn Port> = match &options.transport {
        Transport::Raw(_, interface) => {
            Box::new(RawToPeer::new(interface, udp, local, relay).map_err(io_error(what))?)
        }
        Transport::Udp(_) | Transport::SharedMemory => {
            Box::new(UdpToPeer::new(udp, local, relay).map_err(io_error(what))?)
        }
    };
    Ok(match &options.wrap {
        Some(wrap) => wrap(port),
        None => port,
    })
}
