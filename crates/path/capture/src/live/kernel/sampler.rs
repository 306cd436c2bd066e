//! Flow sampling in the kernel, before packets are copied, to keep within a CPU budget.
//!
//! A packet's flow is hashed from its outermost headers, the same in either direction. A word of
//! shared memory says up to which hash flows are captured ([`FlowShare`]); the rest is counted.
//! Addresses and ports are used for TCP and UDP; addresses alone for other protocols, and for
//! fragments and IPv4 options, where ports may be missing. What has no IP header after at most two
//! VLAN tags is sampled packet by packet.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "offsets in our stack and in a packet's first bytes, and numbers of changes, of which the kept ones are the last"
)]

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use strata_bpf::{Alu, Assembler, Condition, Label, Program, Reg, Shared, Width, run_time_stats};
use strata_wire::{AddressFamily, Counters, FlowKey, FlowShare, exact};

use super::hash::{HEADERS_AT as AT, copy_headers, fold, raw_ipv4, raw_ipv6, step, write_step};
use super::{COUNTER_SLOTS, LOAD_BYTES, SHARE_AT, SKB_PROTOCOL, SLOT_WORDS};

/// `bpf_get_prandom_u32` (linux/bpf.h).
const RANDOM: i32 = 7;
/// Changes of the share that are remembered for late workers.
const CHANGES_MAX: usize = 1024;

/// Sets which share of flows the kernel admits, and tells what that costs and saves; shared by all workers of a
/// capture.
#[derive(Debug, Clone)]
pub struct FlowSampler {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    key: u64,
    /// Counts changes; the last one in `changes` has this number.
    number: AtomicU64,
    /// From when, by the wall clock in ns, and which share.
    changes: Mutex<VecDeque<(u64, FlowShare)>>,
    programs: Mutex<Vec<Arc<Program>>>,
    /// Measures run times while it is open; else why they are not measured.
    stats: Result<OwnedFd, String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FlowSampler {
    /// One that admits every flow.
    pub(super) fn new(shared: Arc<Shared>, key: u64) -> Self {
        let sampler = Self {
            inner: Arc::new(Inner {
                shared,
                key,
                number: AtomicU64::new(0),
                changes: Mutex::default(),
                programs: Mutex::default(),
                stats: run_time_stats().map_err(|error| error.to_string()),
            }),
        };
        sampler.set(FlowShare::ALL, 0);
        sampler
    }

    /// From now on this share of flows is captured; `now_ns` is the wall clock, ns since 1970.
    pub fn set(&self, share: FlowShare, now_ns: u64) {
        let mut changes = lock(&self.inner.changes);
        if changes.len() == CHANGES_MAX {
            changes.pop_front();
        }
        changes.push_back((now_ns, share));
        self.inner.shared.words()[SHARE_AT].store(u64::from(share.0), Relaxed);
        self.inner.number.fetch_add(1, Release);
    }

    /// Packets of flows that were not captured so far, and their bytes.
    #[must_use]
    pub fn sampled_out(&self) -> Counters {
        let mut sum = Counters::default();
        let words = &self.inner.shared.words()[..COUNTER_SLOTS * SLOT_WORDS];
        for slot in words.chunks_exact(SLOT_WORDS) {
            sum.packets = sum.packets.saturating_add(slot[2].load(Relaxed));
            sum.bytes = sum.bytes.saturating_add(slot[3].load(Relaxed));
        }
        sum
    }

    /// How long the capture's programs have run in the kernel, on all CPUs together.
    ///
    /// # Errors
    ///
    /// Why that is not known.
    pub fn kernel_time(&self) -> Result<Duration, String> {
        self.inner.stats.as_ref().map_err(Clone::clone)?;
        let mut sum = Duration::ZERO;
        for program in lock(&self.inner.programs).iter() {
            let time = program.run_time().map_err(|error| error.to_string())?;
            sum = sum.saturating_add(time);
        }
        Ok(sum)
    }

    /// Measures another program's run time too.
    pub(super) fn measure(&self, program: Arc<Program>) {
        lock(&self.inner.programs).push(program);
    }

    /// The smallest share with which a TCP or UDP flow without fragments is captured.
    #[must_use]
    pub fn least_share(&self, flow: &FlowKey) -> FlowShare {
        let key = self.inner.key;
        let end = |end| match flow.family {
            AddressFamily::Ipv6 => fold(key, raw_ipv6(end)),
            AddressFamily::Ipv4 | AddressFamily::Mac => step(key, raw_ipv4(end)),
        };
        let hash = step(key, end(flow.low).wrapping_add(end(flow.high)));
        FlowShare(exact::<u32>(hash >> 32))
    }

    /// What a worker follows changes with.
    #[must_use]
    pub fn follow(&self) -> ShareFollower {
        ShareFollower {
            sampler: self.clone(),
            seen: 0,
        }
    }

    /// Continues at `over` if the flow of the packet in `R6` is not captured. Uses `R8` and `R9`.
    /// `network` is where the network header starts, if packets of the interface have one at a
    /// known place.
    pub(super) fn write(
        &self,
        asm: &mut Assembler,
        network: Option<i32>,
        load_bytes: i32,
        over: Label,
    ) {
        let shared = self.inner.shared.number();
        let keep = asm.label();
        asm.shared_address(Reg::R9, shared, exact::<i32>(SHARE_AT * 8));
        asm.load(Width::Double, Reg::R9, Reg::R9, 0);
        asm.set_u64(Reg::R0, u64::from(FlowShare::ALL.0));
        asm.jump_if(Condition::GreaterEqual, Reg::R9, Reg::R0, keep);
        let decide = asm.label();
        let random = asm.label();
        if let Some(network) = network {
            self.write_hash(asm, network, load_bytes, random);
            asm.set(Reg::R0, Reg::R1);
            asm.alu64(Alu::ShiftRight, Reg::R0, 32);
            asm.jump(decide);
        }
        asm.bind(random);
        asm.call(RANDOM);
        asm.bind(decide);
        asm.jump_if(Condition::Greater, Reg::R0, Reg::R9, over);
        asm.bind(keep);
    }

    /// `R1` = the hash of the packet's flow, or continues at `none`.
    fn write_hash(&self, asm: &mut Assembler, network: i32, load_bytes: i32, none: Label) {
        let (ipv4, ipv6, end) = (asm.label(), asm.label(), asm.label());
        write_network_header(asm, network, load_bytes, [ipv4, ipv6, none]);
        asm.bind(ipv4);
        self.write_ipv4(asm, load_bytes, none);
        asm.jump(end);
        asm.bind(ipv6);
        self.write_ipv6(asm, load_bytes, none);
        asm.bind(end);
        asm.set_u64(Reg::R1, self.inner.key);
        write_step(asm, Reg::R1, Reg::R3);
    }

    /// `R3` = the sum of both ends' hashes, of the IPv4 header at `R8`.
    fn write_ipv4(&self, asm: &mut Assembler, load_bytes: i32, none: Label) {
        copy_headers(asm, load_bytes, Reg::R8, 24, none);
        let (plain, not_plain) = (asm.label(), asm.label());
        asm.load(Width::Byte, Reg::R5, Reg::R10, AT + 9);
        asm.load(Width::Byte, Reg::R0, Reg::R10, AT);
        asm.jump_if(Condition::NotEqual, Reg::R0, 0x45, not_plain);
        asm.load(Width::Half, Reg::R0, Reg::R10, AT + 6);
        asm.network_order(Reg::R0, 16);
        asm.alu64(Alu::And, Reg::R0, 0x3fff);
        asm.jump_if(Condition::Equal, Reg::R0, 0, plain);
        asm.bind(not_plain);
        asm.set(Reg::R5, 0);
        asm.bind(plain);
        clear_other_ports(asm, 20);
        for (address, port) in [(12, 20), (16, 22)] {
            asm.load(Width::Word, Reg::R2, Reg::R10, AT + address);
            asm.alu64(Alu::ShiftLeft, Reg::R2, 16);
            asm.load(Width::Half, Reg::R0, Reg::R10, AT + port);
            asm.alu64(Alu::Or, Reg::R2, Reg::R0);
            asm.set_u64(Reg::R1, self.inner.key);
            write_step(asm, Reg::R1, Reg::R2);
            asm.alu64(Alu::Add, Reg::R3, Reg::R1);
        }
    }

    /// `R3` = the sum of both ends' hashes, of the IPv6 header at `R8`.
    fn write_ipv6(&self, asm: &mut Assembler, load_bytes: i32, none: Label) {
        copy_headers(asm, load_bytes, Reg::R8, 44, none);
        asm.load(Width::Byte, Reg::R5, Reg::R10, AT + 6);
        clear_other_ports(asm, 40);
        for (address, port) in [(8, 40), (24, 42)] {
            asm.set_u64(Reg::R1, self.inner.key);
            for word in [address, address + 8] {
                asm.load(Width::Double, Reg::R2, Reg::R10, AT + word);
                write_step(asm, Reg::R1, Reg::R2);
            }
            asm.load(Width::Half, Reg::R2, Reg::R10, AT + port);
            write_step(asm, Reg::R1, Reg::R2);
            asm.alu64(Alu::Add, Reg::R3, Reg::R1);
        }
    }
}

/// `R8` = where the network header starts, after at most two VLAN tags; continues with what it is.
fn write_network_header(
    asm: &mut Assembler,
    network: i32,
    load_bytes: i32,
    [ipv4, ipv6, none]: [Label; 3],
) {
    if load_bytes == LOAD_BYTES {
        asm.set(Reg::R8, network);
        asm.load(Width::Word, Reg::R0, Reg::R6, SKB_PROTOCOL);
    } else {
        asm.set(Reg::R8, network - 2);
        copy_headers(asm, load_bytes, Reg::R8, 2, none);
        asm.load(Width::Half, Reg::R0, Reg::R10, AT);
        asm.set(Reg::R8, network);
    }
    asm.network_order(Reg::R0, 16);
    for tags in 0..3 {
        asm.jump_if(Condition::Equal, Reg::R0, 0x0800, ipv4);
        asm.jump_if(Condition::Equal, Reg::R0, 0x86dd, ipv6);
        if tags == 2 {
            break;
        }
        let tag = asm.label();
        asm.jump_if(Condition::Equal, Reg::R0, 0x8100, tag);
        asm.jump_if(Condition::NotEqual, Reg::R0, 0x88a8, none);
        asm.bind(tag);
        copy_headers(asm, load_bytes, Reg::R8, 4, none);
        asm.load(Width::Half, Reg::R0, Reg::R10, AT + 2);
        asm.network_order(Reg::R0, 16);
        asm.alu64(Alu::Add, Reg::R8, 4);
    }
    asm.jump(none);
}

/// Sets the ports on the stack to 0 unless the protocol in `R5` is TCP or UDP; `R3` = 0.
fn clear_other_ports(asm: &mut Assembler, ports: i16) {
    let has_ports = asm.label();
    asm.jump_if(Condition::Equal, Reg::R5, 6, has_ports);
    asm.jump_if(Condition::Equal, Reg::R5, 17, has_ports);
    asm.store(Width::Word, Reg::R10, AT + ports, 0);
    asm.bind(has_ports);
    asm.set(Reg::R3, 0);
}

/// Tells one worker when the share of flows changes.
#[derive(Debug)]
pub struct ShareFollower {
    sampler: FlowSampler,
    /// The number of the change handed out last.
    seen: u64,
}

impl ShareFollower {
    /// The share in which a packet with this time was captured, if it differs from that of the
    /// packets before.
    #[inline]
    pub fn at(&mut self, ts_ns: u64) -> Option<FlowShare> {
        if self.sampler.inner.number.load(Acquire) == self.seen {
            return None;
        }
        let changes = lock(&self.sampler.inner.changes);
        let last = self.sampler.inner.number.load(Acquire);
        let mut found = None;
        let first = last + 1 - changes.len() as u64;
        for (number, &(since_ns, share)) in (first..).zip(changes.iter()) {
            // The kernel may have stamped a packet just before looking at it.
            if number > self.seen && since_ns <= ts_ns {
                found = Some(share);
                self.seen = number;
            }
        }
        found
    }
}
