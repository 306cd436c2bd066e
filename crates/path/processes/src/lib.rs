//! Which process of this host sends and receives a packet.
//!
//! - [`Processes`]: what the kernel tells, from when it is opened on.
//! - [`Process`]: a process, as comments of packets have it.
//!
//! ```text
//! lib         finding the processes of a packet
//! comment     a process as a comment, and back
//! host        cgroups, and the sockets that there are at the start
//! program     the programs: which process has which socket, which socket has which connection
//! table       what programs write and we read
//! ```
//!
//! Programs run in the kernel for all processes (attached to the root cgroup, version 2) and write into tables in
//! shared memory. Readers look a packet's addresses and ports up there, without a system call, so this works after all
//! privileges have been dropped. Programs use only what the kernel promises to keep (linux/bpf.h), so they need neither
//! its types nor the right to read its memory.
//!
//! The process of a socket is the one that created it, or that has it at the start; of an incoming connection, that of
//! the socket that listens. A process that takes over a socket is not noticed.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
#![deny(missing_docs)]

mod comment;
mod host;
mod program;
mod table;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use strata_bpf::{CgroupHook, LoadError, Program, ProgramKind};
use strata_wire::dissect::{dissect, protocol};
use strata_wire::{AddressFamily, Endpoint, LinkType, TunnelKey};

pub use comment::{Process, Side, of_comment, of_options, push_comment};
use host::Cgroups;
use program::Way;
use table::{Entry, Table, of_connection};

/// Why processes are not known.
#[derive(Debug, thiserror::Error)]
pub enum ProcessesError {
    /// The tree of cgroups cannot be read.
    #[error("cannot read the cgroup tree: {0}; mount cgroup2, as systemd does")]
    Cgroups(#[source] io::Error),
    /// A table cannot be made.
    #[error(
        "cannot create an eBPF map of processes: {0}; CAP_BPF and CAP_NET_ADMIN, or root, are needed"
    )]
    Table(#[source] io::Error),
    /// A program was refused.
    #[error(
        "cannot load the eBPF program for {what}: {source}; Linux 5.8 is needed, and CAP_BPF and CAP_NET_ADMIN, or root"
    )]
    Load {
        /// What it runs for.
        what: &'static str,
        /// Why.
        source: LoadError,
    },
    /// A program cannot be attached.
    #[error("cannot attach the eBPF program for {what} to the root cgroup: {source}")]
    Attach {
        /// What it runs for.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Processes cannot be listed.
    #[error("cannot list the processes in /proc: {0}")]
    List(#[source] io::Error),
    /// No key for the tables.
    #[error("cannot get random numbers from the system: {0}")]
    Random(String),
}

/// Packets of TCP and UDP by what is known of their processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounts {
    /// One process at least is known.
    pub known: u64,
    /// None is: of other hosts only, or not found.
    pub unknown: u64,
}

impl ProcessCounts {
    /// The sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            known: self.known.saturating_add(other.known),
            unknown: self.unknown.saturating_add(other.unknown),
        }
    }
}

/// What the kernel tells of processes, as long as it is open. Clones share it.
///
/// Memory: 6 MiB, for 32,768 sockets, and as many connections and pairs of UDP endpoints. When there are more, the one
/// that was used first is forgotten, of four.
#[derive(Clone, Debug)]
pub struct Processes {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    sockets: Table,
    flows: Table,
    cgroups: Cgroups,
    refused: u64,
    sees_all: bool,
    /// Programs run as long as these are open.
    _attached: Vec<OwnedFd>,
}

impl Processes {
    /// Has the kernel tell from now on, and looks for the sockets that there are.
    ///
    /// # Errors
    ///
    /// If the kernel is too old, or the process lacks the right.
    pub fn open() -> Result<Self, ProcessesError> {
        let seed = || getrandom::u64().map_err(|error| ProcessesError::Random(error.to_string()));
        let table = || Table::new(seed()?).map_err(ProcessesError::Table);
        let (sockets, flows) = (table()?, table()?);
        let cgroups = Cgroups::now().map_err(ProcessesError::Cgroups)?;
        let root = cgroups.root().map_err(ProcessesError::Cgroups)?;
        let packets = |way| program::of_packets(&sockets, &flows, way);
        let programs = [
            (
                "sockets",
                ProgramKind::CgroupSocket,
                CgroupHook::Socket,
                program::of_sockets(&sockets),
            ),
            (
                "packets sent",
                ProgramKind::CgroupPacket,
                CgroupHook::Sent,
                packets(Way::Sent),
            ),
            (
                "packets received",
                ProgramKind::CgroupPacket,
                CgroupHook::Received,
                packets(Way::Received),
            ),
        ];
        let mut attached = Vec::new();
        for (what, kind, hook, words) in programs {
            let load = |source| ProcessesError::Load { what, source };
            let attach = |source| ProcessesError::Attach { what, source };
            let program = Program::load(kind, "strata_process", &words).map_err(load)?;
            attached.push(program.attach_cgroup(root.as_fd(), hook).map_err(attach)?);
        }
        // A socket that is made meanwhile is noted by its program.
        let refused = host::add_sockets(&cgroups, &sockets).map_err(ProcessesError::List)?;
        let sees_all = host::may_see_all().map_err(ProcessesError::List)?;
        Ok(Self {
            inner: Arc::new(Inner {
                sockets,
                flows,
                cgroups,
                refused,
                sees_all,
                _attached: attached,
            }),
        })
    }

    /// The processes of this host that send and receive a packet. Of a packet in a tunnel, those of the inner packet.
    #[must_use]
    pub fn of_packet(&self, link: LinkType, packet: &[u8]) -> Found {
        let headers = dissect(link, packet, TunnelKey::Inner);
        let Some(flow) = headers.key else {
            return Found::default();
        };
        let is_candidate = [protocol::TCP, protocol::UDP].contains(&flow.protocol);
        // A later fragment has none.
        let has_ports = flow.low.port != 0 && flow.high.port != 0;
        if !is_candidate || !has_ports {
            return Found::default();
        }
        let (from, to) = match headers.low_to_high {
            true => (flow.low, flow.high),
            false => (flow.high, flow.low),
        };
        let end = |end: Endpoint| Some((address(flow.family, end.address)?, end.port));
        let find = |own: Endpoint, peer: Endpoint| {
            let key = of_connection([end(own)?, end(peer)?], flow.protocol);
            self.process(&self.inner.flows.find(&key)?)
        };
        Found {
            sender: find(from, to),
            receiver: find(to, from),
            is_candidate,
        }
    }

    fn process(&self, entry: &Entry) -> Option<Process> {
        let printable = |byte: u8| match byte {
            b' '..=b'~' => char::from(byte),
            _ => '.',
        };
        let name = entry.name.iter().take_while(|&&byte| byte != 0);
        let cgroup = self.inner.cgroups.path(entry.cgroup);
        let of_cgroup = cgroup.bytes().map(|byte| match byte {
            b' ' => '.',
            other => printable(other),
        });
        Some(Process {
            // Numbers of processes have 22 bits.
            pid: u32::try_from(entry.pid).ok()?,
            name: name.map(|&byte| printable(byte)).collect::<String>().into(),
            cgroup: of_cgroup
                .take(comment::CGROUP_MAX)
                .collect::<String>()
                .into(),
        })
    }

    /// Processes whose sockets may not be looked at, so that only those they create later are known.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.inner.refused
    }

    /// Whether the processes of all users could be looked at (CAP_SYS_PTRACE). If not, [`refused`](Self::refused) may
    /// lack those that `/proc` hides.
    #[must_use]
    pub fn sees_all(&self) -> bool {
        self.inner.sees_all
    }

    /// Sockets and connections that were forgotten since there were too many, or were not noted since two CPUs wrote at
    /// once. Most were not in use any more.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        let Inner { sockets, flows, .. } = &*self.inner;
        sockets.forgotten().saturating_add(flows.forgotten())
    }
}

/// The processes of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The one that sends it.
    pub sender: Option<Process>,
    /// The one that receives it.
    pub receiver: Option<Process>,
    /// Whether it is of a protocol whose processes are known, and has ports.
    pub is_candidate: bool,
}

/// An address as programs write it: IPv4 as IPv6 has it (RFC 4291 §2.5.5.2).
fn address(family: AddressFamily, address: u128) -> Option<[u8; 16]> {
    match family {
        AddressFamily::Ipv4 => Some((0xffff_0000_0000 | address).to_be_bytes()),
        AddressFamily::Ipv6 => Some(address.to_be_bytes()),
        AddressFamily::Mac => None,
    }
}
