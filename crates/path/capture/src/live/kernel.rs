//! What the kernel does for us before it copies a packet: filter, cut, spreading over workers. All eBPF.
//!
//! ```text
//! filter -> not wanted: counted, not copied
//!        -> wanted: is its flow in the cut table?  -> that many bytes of it
//!                                           else   -> the snapshot length
//! ```
//!
//! A socket for many interfaces first rejects packets of all others, and counts what it admits (`common`).
//! Before the filter, what crosses a bridge between two captured ports is left out where it leaves (`bridged`);
//! `indexes` is a table of interfaces for both. `cut` has that table, `limit` the most that is copied of any
//! packet, `spread` the program that chooses a worker, `sampler` the share of flows that is captured; `hash`
//! finds flows in user space and in the programs alike.

mod bridged;
mod common;
mod cut;
mod hash;
mod indexes;
mod limit;
mod sampler;
mod spread;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use strata_bpf::{
    Alu, Assembler, Condition, Label, Program, ProgramKind, Reg, Shared, SocketMap, TooLarge, Width,
};
use strata_filter::{Filter, KernelView};
use strata_sys::{interface as asked, socket};
use strata_wire::{Counters, LinkType, exact, mix64};

use super::error::LiveError;
use super::headers::{SLL2_LEN, VLAN_TAG_LEN};
use super::host::interface::Device;
use super::options::{Direction, LiveOptions};
use bridged::BridgePorts;
use common::Admits;
pub(super) use common::Common;
use cut::look_up;
pub use cut::{CUT_BYTES_MIN, CutTable};
pub use limit::CopyLimit;
pub use sampler::{FlowSampler, ShareFollower};
use spread::spread;

/// The shared memory starts with counters: for each of 64 slots, by CPU, a cache line.
const COUNTER_SLOTS: usize = 64;
const SLOT_WORDS: usize = 8;
const COUNTER_WORDS: usize = COUNTER_SLOTS * SLOT_WORDS;
/// In a cache line of its own.
const SHARE_AT: usize = cut::SECOND_AT + 8;
/// Maximum bytes of a packet that are copied, next to it.
const LENGTH_AT: usize = SHARE_AT + 1;
/// Counters of a slot, by word.
const FILTERED_PACKETS: i16 = 0;
const FILTERED_BYTES: i16 = 8;
const LEFT_OUT_PACKETS: i16 = 16;
const LEFT_OUT_BYTES: i16 = 24;

/// `bpf_get_smp_processor_id`, `bpf_skb_load_bytes` (linux/bpf.h).
const CPU: i32 = 8;
const LOAD_BYTES: i32 = 26;
/// For XDP: `bpf_xdp_get_buff_len`, `bpf_xdp_load_bytes`, `bpf_xdp_adjust_tail`,
/// `bpf_xdp_adjust_meta`, `bpf_ktime_get_tai_ns`, `bpf_redirect_map`.
const BUFFER_LENGTH: i32 = 188;
const XDP_LOAD_BYTES: i32 = 189;
const ADJUST_TAIL: i32 = 65;
const ADJUST_META: i32 = 54;
const TAI_NS: i32 = 208;
const REDIRECT_MAP: i32 = 51;
/// `struct xdp_md`, `enum xdp_action`.
const XDP_DATA: i16 = 0;
const XDP_DATA_META: i16 = 8;
const XDP_QUEUE: i16 = 16;
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
/// linux/if_link.h.
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
/// `struct __sk_buff`.
const SKB_LEN: i16 = 0;
const SKB_PACKET_TYPE: i16 = 4;
const SKB_PROTOCOL: i16 = 16;
const SKB_VLAN_PRESENT: i16 = 20;
const SKB_IFINDEX: i16 = 40;
/// `SKF_NET_OFF`, `SKF_LL_OFF` (linux/filter.h): offsets from the network header,
/// and from the link layer header.
const NETWORK: i32 = -0x10_0000;
const LINK: i32 = -0x20_0000;

const EACH_PORT: &str = "; or capture packets at each port that they pass: agents with --all-copies, recordings \
without --bridge-ports, --in-only and --out-only";

/// What the rings of a capture share.
#[derive(Debug)]
pub(super) struct Kernel {
    shared: Option<Arc<Shared>>,
    filter: Option<Filter>,
    snaplen: u32,
    direction: Direction,
    promiscuous: bool,
    cut: Option<CutTable>,
    limit: Option<CopyLimit>,
    /// Kept for interfaces that come back: by then loading may not be permitted.
    loaded: Mutex<Vec<(Purpose, Arc<Program>)>>,
    sampler: Option<FlowSampler>,
    /// Whether a sampler is needed.
    sample: bool,
    /// Random: for hashes, and for the number of the fanout group.
    key: u64,
    workers: u16,
    /// The loopback interface; `None` in a namespace that has renamed it.
    loopback: Option<u32>,
    /// If they are wanted.
    bridge_ports: Option<io::Result<BridgePorts>>,
}

/// What a program is for. One serves all interfaces of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Admitting packets, on interfaces with this link type, of which one may show each packet twice.
    Admit(LinkType, Option<u32>),
    /// Admitting packets of many interfaces with Ethernet headers, for one worker.
    Common { worker: u16 },
    /// Spreading packets over workers.
    Spread { ethernet: bool },
}

/// Where XDP programs may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum XdpModes {
    /// In the driver only: later, the kernel may already have merged packets into ones that no
    /// frame holds.
    Native,
    /// After the driver, too.
    Any,
}

/// A program on an interface; detached when the value is dropped.
#[derive(Debug)]
pub(super) struct Attached {
    _link: OwnedFd,
    /// Keeps the interface promiscuous.
    _promiscuous: Option<OwnedFd>,
    /// In the driver, before the kernel makes a socket buffer for a packet.
    pub(super) native: bool,
}

/// Where the filter of an interface is evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Placed {
    /// The kernel evaluates it.
    InKernel,
    /// It must be evaluated in user space, and why.
    InUserSpace(String),
}

impl Kernel {
    pub(super) fn new(options: &LiveOptions, workers: u16, key: u64) -> Self {
        let words = if options.cut {
            cut::WORDS
        } else {
            cut::WORDS_WITHOUT
        };
        // Without permission for it, everything is done in user space.
        let shared = Shared::new(words).ok().map(Arc::new);
        let table = |shared: &Arc<Shared>| CutTable::new(Arc::clone(shared), mix64(key));
        Self {
            cut: shared.as_ref().filter(|_| options.cut).map(table),
            limit: shared.clone().map(CopyLimit::new),
            sampler: shared
                .as_ref()
                .filter(|_| options.sample)
                .map(|shared| FlowSampler::new(Arc::clone(shared), mix64(key ^ 2))),
            sample: options.sample,
            loaded: Mutex::default(),
            shared,
            filter: options.filter.clone(),
            snaplen: options.snaplen,
            direction: options.direction,
            promiscuous: options.promiscuous,
            key,
            workers,
            loopback: asked::index("lo").ok(),
            bridge_ports: (!options.bridge_ports.is_empty() || !options.one_way.is_empty())
                .then(|| BridgePorts::new(&options.bridge_ports, &options.one_way)),
        }
    }

    pub(super) fn cut_table(&self) -> Option<CutTable> {
        self.cut.clone()
    }

    /// `None` if no program was loaded that observes it.
    pub(super) fn copy_limit(&self) -> Option<CopyLimit> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        self.limit.clone().filter(|_| !loaded.is_empty())
    }

    pub(super) fn sampler(&self) -> Option<FlowSampler> {
        self.sampler.clone()
    }

    /// Packets that the filter has skipped in the kernel so far.
    pub(super) fn filtered(&self) -> Counters {
        let mut sum = Counters::default();
        if let Some(shared) = &self.shared {
            for slot in shared.words()[..COUNTER_WORDS].chunks_exact(SLOT_WORDS) {
                sum.packets = sum.packets.saturating_add(slot[0].load(Relaxed));
                sum.bytes = sum.bytes.saturating_add(slot[1].load(Relaxed));
            }
        }
        sum
    }

    /// Admits packets of an interface through the filter.
    pub(super) fn admit(&self, fd: BorrowedFd<'_>, device: &Device) -> Result<Placed, LiveError> {
        let wanted = match &self.filter {
            _ if self.sample => "sampling by a CPU budget",
            _ if self.bridge_ports.is_some() => "capturing bridged packets only once",
            Some(_) => "filter",
            None => "cut",
        };
        let why = match self.load(device) {
            Ok(program) => {
                attach(fd, &program).map_err(device.error("SO_ATTACH_BPF"))?;
                self.note_port(device);
                return Ok(Placed::InKernel);
            }
            Err(why) => why,
        };
        let needs_bpf = self.cut.is_some() || self.sample || self.bridge_ports.is_some();
        if self.direction != Direction::Both || needs_bpf {
            return Err(LiveError::NoBpf {
                interface: device.name.clone(),
                wanted,
                why,
                instead: match &self.bridge_ports {
                    Some(_) if !self.sample && self.cut.is_none() => EACH_PORT,
                    _ => "",
                },
            });
        }
        socket::attach_snaplen(fd, self.snaplen).map_err(device.error("SO_ATTACH_FILTER"))?;
        Ok(Placed::InUserSpace(why))
    }

    /// Admits packets of the members of a common socket, which are noted one by one.
    pub(super) fn admit_members(&self, fd: BorrowedFd<'_>, common: &Common) -> io::Result<()> {
        attach(fd, &common.program)
    }

    /// Tells the programs the index of an interface, if it is the port of a bridge.
    pub(super) fn note_port(&self, device: &Device) {
        if let Some(Ok(ports)) = &self.bridge_ports {
            ports.note(&device.name, device.index);
        }
    }

    /// Measures a program's run time, if anyone wants to know it.
    fn measure(&self, program: Arc<Program>) {
        if let Some(sampler) = &self.sampler {
            sampler.measure(program);
        }
    }

    fn load(&self, device: &Device) -> Result<Arc<Program>, String> {
        let seen_twice = device.seen_twice(self.loopback);
        let purpose = Purpose::Admit(device.link, seen_twice);
        let shared = self.shared.as_ref().ok_or("eBPF is not permitted")?;
        self.loaded(purpose, "strata_filter", || {
            self.assemble(device.link, seen_twice, None, shared)
        })
    }

    /// The program for this purpose.
    fn loaded(
        &self,
        purpose: Purpose,
        name: &str,
        write: impl FnOnce() -> Result<Vec<u64>, String>,
    ) -> Result<Arc<Program>, String> {
        let mut all = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = all.iter().find(|(known, _)| *known == purpose) {
            return Ok(Arc::clone(known));
        }
        let program = Program::load(ProgramKind::SocketFilter, name, &write()?);
        let program = Arc::new(program.map_err(|error| error.to_string())?);
        all.push((purpose, Arc::clone(&program)));
        self.measure(Arc::clone(&program));
        Ok(program)
    }

    /// The program that admits packets with this link-layer header. On `seen_twice`, each is seen as sent and
    /// as received.
    fn assemble(
        &self,
        link: LinkType,
        seen_twice: Option<u32>,
        admits: Option<&Admits<'_>>,
        shared: &Shared,
    ) -> Result<Vec<u64>, String> {
        let mut asm = Assembler::new();
        let (accept, reject, ignore) = (asm.label(), asm.label(), asm.label());
        let sampled_out = asm.label();
        asm.set(Reg::R6, Reg::R1);
        if let Some(admits) = admits {
            admits.write_first(&mut asm, ignore);
        }
        self.check_direction(&mut asm, seen_twice, ignore);
        match &self.bridge_ports {
            Some(Ok(ports)) => ports.write(&mut asm, ignore),
            Some(Err(error)) => return Err(error.to_string()),
            None => {}
        }
        let cooked = link == LinkType::LINUX_SLL2;
        if let Some(filter) = &self.filter {
            let view = if cooked {
                KernelView::Cooked
            } else {
                KernelView::Packet
            };
            let program = filter.compile(link).map_err(|e| e.to_string())?;
            let written = program.write_ebpf(&mut asm, view, accept, reject);
            written.map_err(|error| error.to_string())?;
        } else {
            whole_length(&mut asm, cooked);
            asm.jump(accept);
        }
        asm.bind(sampled_out);
        count(&mut asm, shared, [LEFT_OUT_PACKETS, LEFT_OUT_BYTES]);
        asm.jump(ignore);
        asm.bind(reject);
        count(&mut asm, shared, [FILTERED_PACKETS, FILTERED_BYTES]);
        asm.bind(ignore);
        asm.set(Reg::R0, 0);
        asm.exit();
        asm.bind(accept);
        let network = match link {
            LinkType::ETHERNET => Some(14),
            LinkType::LINUX_SLL2 | LinkType::RAW => Some(0),
            _ => None,
        };
        if let Some(sampler) = &self.sampler {
            sampler.write(&mut asm, network, LOAD_BYTES, sampled_out);
        }
        if let Some(admits) = admits {
            admits.write_last(&mut asm, ignore);
        }
        self.length(&mut asm, network, LOAD_BYTES);
        asm.exit();
        asm.finish().map_err(|error: TooLarge| error.to_string())
    }

    /// `R0` = how much of the packet is enough. `load_bytes` is the helper for it.
    fn length(&self, asm: &mut Assembler, network: Option<i32>, load_bytes: i32) {
        let done = asm.label();
        if let (Some(table), Some(network)) = (&self.cut, network) {
            look_up(asm, table, network, load_bytes, done);
        }
        let snaplen = self.snaplen.cast_signed();
        asm.set(Reg::R0, snaplen);
        asm.bind(done);
        let shorter = asm.label();
        asm.jump_if(Condition::LessEqual, Reg::R0, snaplen, shorter);
        asm.set(Reg::R0, snaplen);
        asm.bind(shorter);
        if let Some(limit) = &self.limit {
            limit.write(asm);
        }
    }

    /// Sends packets of an interface to AF_XDP sockets by their queues, for as long as the result
    /// lives: what passes the filter is taken away from the host.
    pub(super) fn take_away(
        &self,
        device: &Device,
        sockets: &SocketMap,
        modes: XdpModes,
    ) -> Result<Attached, LiveError> {
        let fail = |why: String| LiveError::NoXdp {
            interface: device.name.clone(),
            why,
        };
        self.prepare(device)?;
        let promiscuous = self.promiscuous.then(|| promiscuous(device)).transpose()?;
        let words = self.assemble_xdp(sockets).map_err(fail)?;
        let program = Program::load(ProgramKind::Xdp, "strata_xdp", &words)
            .map_err(|error| fail(error.to_string()))?;
        let native = program.attach_xdp(device.index, XDP_FLAGS_DRV_MODE);
        let native_error = match native {
            Ok(link) => {
                self.measure(Arc::new(program));
                return Ok(Attached {
                    _link: link,
                    _promiscuous: promiscuous,
                    native: true,
                });
            }
            Err(error) if modes == XdpModes::Native => {
                return Err(fail(format!(
                    "its driver does not run the XDP program: {error}"
                )));
            }
            Err(error) => error,
        };
        match program.attach_xdp(device.index, XDP_FLAGS_SKB_MODE) {
            Ok(link) => {
                self.measure(Arc::new(program));
                Ok(Attached {
                    _link: link,
                    _promiscuous: promiscuous,
                    native: false,
                })
            }
            Err(error) => Err(fail(format!("native: {native_error}; generic: {error}"))),
        }
    }

    /// Filter, then time and length in front of the packet, then its tail cut off.
    fn assemble_xdp(&self, sockets: &SocketMap) -> Result<Vec<u64>, String> {
        let shared = self.shared.as_ref().ok_or("eBPF is not permitted")?;
        let mut asm = Assembler::new();
        let (accept, reject, pass) = (asm.label(), asm.label(), asm.label());
        let (whole, sampled_out) = (asm.label(), asm.label());
        asm.set(Reg::R6, Reg::R1);
        match &self.filter {
            Some(filter) => {
                let program = filter
                    .compile(LinkType::ETHERNET)
                    .map_err(|e| e.to_string())?;
                let written = program.write_ebpf(&mut asm, KernelView::Xdp, accept, reject);
                written.map_err(|error| error.to_string())?;
            }
            None => {
                asm.call(BUFFER_LENGTH);
                asm.set(Reg::R7, Reg::R0);
                asm.jump(accept);
            }
        }
        asm.bind(sampled_out);
        count(&mut asm, shared, [LEFT_OUT_PACKETS, LEFT_OUT_BYTES]);
        // It would have been taken away.
        asm.set(Reg::R0, XDP_DROP);
        asm.exit();
        asm.bind(reject);
        count(&mut asm, shared, [FILTERED_PACKETS, FILTERED_BYTES]);
        asm.jump(pass);
        asm.bind(accept);
        if let Some(sampler) = &self.sampler {
            sampler.write(&mut asm, Some(14), XDP_LOAD_BYTES, sampled_out);
        }
        self.length(&mut asm, Some(14), XDP_LOAD_BYTES);
        // Negative: this many bytes fewer at the end.
        asm.set(Reg::R2, Reg::R0);
        asm.alu64(Alu::Sub, Reg::R2, Reg::R7);
        asm.jump_if(Condition::GreaterEqual, Reg::R0, Reg::R7, whole);
        asm.set(Reg::R1, Reg::R6);
        asm.call(ADJUST_TAIL);
        asm.bind(whole);
        asm.call(TAI_NS);
        asm.set(Reg::R8, Reg::R0);
        asm.set(Reg::R1, Reg::R6);
        asm.set(Reg::R2, -16);
        asm.call(ADJUST_META);
        asm.jump_if(Condition::NotEqual, Reg::R0, 0, pass);
        asm.load(Width::Word, Reg::R1, Reg::R6, XDP_DATA_META);
        asm.load(Width::Word, Reg::R2, Reg::R6, XDP_DATA);
        asm.set(Reg::R3, Reg::R1);
        asm.alu64(Alu::Add, Reg::R3, 16);
        asm.jump_if(Condition::Greater, Reg::R3, Reg::R2, pass);
        asm.store(Width::Double, Reg::R1, 0, Reg::R8);
        asm.store(Width::Double, Reg::R1, 8, Reg::R7);
        asm.load(Width::Word, Reg::R2, Reg::R6, XDP_QUEUE);
        asm.map(Reg::R1, sockets.number());
        asm.set(Reg::R3, XDP_PASS);
        asm.call(REDIRECT_MAP);
        asm.exit();
        asm.bind(pass);
        asm.set(Reg::R0, XDP_PASS);
        asm.exit();
        asm.finish().map_err(|error: TooLarge| error.to_string())
    }

    /// Skips packets of the unwanted direction, and those sent on an interface that has each twice.
    fn check_direction(&self, asm: &mut Assembler, seen_twice: Option<u32>, ignore: Label) {
        let outgoing = i32::from(libc::PACKET_OUTGOING);
        if self.direction == Direction::Both && seen_twice.is_none() {
            return;
        }
        asm.load(Width::Word, Reg::R0, Reg::R6, SKB_PACKET_TYPE);
        match (self.direction, seen_twice) {
            (Direction::In, _) => asm.jump_if(Condition::Equal, Reg::R0, outgoing, ignore),
            (Direction::Out, _) => asm.jump_if(Condition::NotEqual, Reg::R0, outgoing, ignore),
            (Direction::Both, None) => {}
            (Direction::Both, Some(index)) => {
                let other = asm.label();
                asm.jump_if(Condition::NotEqual, Reg::R0, outgoing, other);
                asm.load(Width::Word, Reg::R0, Reg::R6, SKB_IFINDEX);
                asm.jump_if(Condition::Equal, Reg::R0, index.cast_signed(), ignore);
                asm.bind(other);
            }
        }
    }

    /// Makes a socket one of the workers over which an interface's flows are spread. All of them
    /// join before any admits packets.
    pub(super) fn join(&self, fd: BorrowedFd<'_>, device: &Device) -> Result<(), LiveError> {
        if self.workers < 2 {
            return Ok(());
        }
        let fail = |call: &'static str| device.error(call);
        let no_bpf = |why: String| LiveError::NoBpf {
            interface: device.name.clone(),
            wanted: "spreading flows over workers",
            why,
            instead: "",
        };
        // An interface that comes back has a new number, and so a new group.
        #[allow(clippy::cast_possible_truncation)]
        let group = mix64(self.key ^ u64::from(device.index)) as u16;
        let argument = u32::from(group) | libc::PACKET_FANOUT_EBPF << 16;
        socket::set_number(fd, libc::SOL_PACKET, libc::PACKET_FANOUT, argument)
            .map_err(fail("PACKET_FANOUT"))?;
        let program = self.spreader(device).map_err(no_bpf)?;
        let number = program.as_fd().as_raw_fd().cast_unsigned();
        socket::set_number(fd, libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, number)
            .map_err(fail("PACKET_FANOUT_DATA"))
    }
}

impl Kernel {
    fn spreader(&self, device: &Device) -> Result<Arc<Program>, String> {
        let ethernet = device.link == LinkType::ETHERNET;
        self.loaded(Purpose::Spread { ethernet }, "strata_spread", || {
            spread(ethernet, mix64(self.key ^ 1)).map_err(|error| error.to_string())
        })
    }

    /// Loads what a ring on this interface will need, should it replace an AF_XDP socket: by then
    /// loading may not be permitted.
    fn prepare(&self, device: &Device) -> Result<(), LiveError> {
        let mut loaded = self.load(device).map(drop);
        if self.workers > 1 {
            loaded = loaded.and_then(|()| self.spreader(device).map(drop));
        }
        loaded.map_err(|why| LiveError::NoXdp {
            interface: device.name.clone(),
            why,
        })
    }
}

/// Lets a program decide what a socket receives.
fn attach(fd: BorrowedFd<'_>, program: &Program) -> io::Result<()> {
    let number = program.as_fd().as_raw_fd().cast_unsigned();
    socket::set_number(fd, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, number)
}

/// A packet socket that receives nothing, and makes an interface promiscuous while it is open.
fn promiscuous(device: &Device) -> Result<OwnedFd, LiveError> {
    let opened = socket::packet_socket(false).map_err(device.error("socket"))?;
    socket::set_promiscuous(opened.as_fd(), device.index)
        .map_err(device.error("PACKET_MR_PROMISC"))?;
    Ok(opened)
}

/// `R7` = the packet's final length: with the tag that the kernel has taken out, and the header
/// that it will get.
fn whole_length(asm: &mut Assembler, cooked: bool) {
    let untagged = asm.label();
    asm.load(Width::Word, Reg::R7, Reg::R6, SKB_LEN);
    if cooked {
        asm.alu64(Alu::Add, Reg::R7, exact::<i32>(SLL2_LEN));
    }
    asm.load(Width::Word, Reg::R0, Reg::R6, SKB_VLAN_PRESENT);
    asm.jump_if(Condition::Equal, Reg::R0, 0, untagged);
    asm.alu64(Alu::Add, Reg::R7, exact::<i32>(VLAN_TAG_LEN));
    asm.bind(untagged);
}

/// Adds the packet, whose length is in `R7`, to these counters.
fn count(asm: &mut Assembler, shared: &Shared, [packets, bytes]: [i16; 2]) {
    asm.call(CPU);
    asm.alu64(Alu::And, Reg::R0, 63);
    asm.alu64(Alu::ShiftLeft, Reg::R0, 6);
    asm.shared_address(Reg::R1, shared.number(), 0);
    asm.alu64(Alu::Add, Reg::R1, Reg::R0);
    asm.set(Reg::R2, 1);
    asm.atomic_add(Reg::R1, packets, Reg::R2);
    asm.atomic_add(Reg::R1, bytes, Reg::R7);
}

const _: () = assert!(COUNTER_SLOTS == 64 && SLOT_WORDS * 8 == 1 << 6);
