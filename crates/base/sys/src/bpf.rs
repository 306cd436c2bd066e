//! bpf(2): programs and maps.
//!
//! The kernel proves programs safe, so loading one is: what it writes in our memory is atomics
//! ([`Shared`]) or copied ([`Array`]).
#![allow(unsafe_code)]

mod cgroup;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::memory::mapping::Mapping;
use crate::memory::shared::SharedMemory;
pub use cgroup::CgroupHook;

/// Commands, types and flags (linux/bpf.h).
mod uapi {
    pub(super) const MAP_CREATE: libc::c_int = 0;
    pub(super) const MAP_UPDATE: libc::c_int = 2;
    pub(super) const PROG_LOAD: libc::c_int = 5;
    pub(super) const PROG_TEST_RUN: libc::c_int = 10;
    pub(super) const INFO_BY_FD: libc::c_int = 15;
    pub(super) const PROG_QUERY: libc::c_int = 16;
    pub(super) const LINK_CREATE: libc::c_int = 28;
    pub(super) const ENABLE_STATS: libc::c_int = 32;
    pub(super) const MAP_ARRAY: u32 = 2;
    pub(super) const MAP_XSKMAP: u32 = 17;
    pub(super) const MMAPABLE: u32 = 1 << 10;
    pub(super) const ATTACH_XDP: u32 = 37;
    pub(super) const ATTACH_TCX_INGRESS: u32 = 46;
    pub(super) const ATTACH_TCX_EGRESS: u32 = 47;
    pub(super) const TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
}

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ProgramKind {
    /// Socket filter; also selects the member of a fanout group.
    SocketFilter = 1,
    /// Traffic control: like a socket filter, but can be tested on packets that start with the
    /// link-layer header.
    Classifier = 3,
    /// The driver's receive path.
    Xdp = 6,
    /// Packets of the sockets of a cgroup: see [`Program::attach_cgroup`].
    CgroupPacket = 8,
    /// New sockets of a cgroup.
    CgroupSocket = 9,
}

/// Why the kernel refused a program.
#[derive(Debug, thiserror::Error)]
#[error("{source}{}", tail(.log))]
pub struct LoadError {
    /// The error of the system call.
    pub source: io::Error,
    /// The verifier's log, if it ran.
    pub log: String,
}

impl LoadError {
    /// Whether the process lacks the right to load programs.
    #[must_use]
    pub fn is_permission(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied && self.log.is_empty()
    }
}

/// The end of the verifier's log, which has the reason.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.len().saturating_sub(4);
    match lines.len() {
        0 => String::new(),
        _ => format!(": {}", lines[from..].join("; ")),
    }
}

/// A program in the kernel; freed when nothing refers to it.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
}

/// The result of a test run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestRun {
    /// The program's result.
    pub result: u32,
    /// The packet afterwards.
    pub data: Vec<u8>,
    /// Nanoseconds of a run, on average.
    pub duration_ns: u32,
}

/// The part of `union bpf_attr` that loads programs.
#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    kind: u32,
    insn_count: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// The part of `union bpf_attr` that runs tests.
#[repr(C)]
#[derive(Default)]
struct TestRunAttr {
    program: u32,
    result: u32,
    data_in_len: u32,
    data_out_len: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_in_len: u32,
    context_out_len: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    padding: u32,
}

/// The part of `union bpf_attr` that makes maps.
#[repr(C)]
#[derive(Default)]
struct MapAttr {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

/// The part of `union bpf_attr` for entries of maps.
#[repr(C)]
#[derive(Default)]
struct ElementAttr {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The part of `union bpf_attr` for descriptions.
#[repr(C)]
#[derive(Default)]
struct InfoAttr {
    fd: u32,
    bytes: u32,
    info: u64,
}

/// The part of `union bpf_attr` for queries.
#[repr(C)]
#[derive(Default)]
struct QueryAttr {
    target: u32,
    kind: u32,
    flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    padding: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

/// The part of `union bpf_attr` for statistics.
#[repr(C)]
#[derive(Default)]
struct StatsAttr {
    kind: u32,
}

/// The part of `union bpf_attr` for links.
#[repr(C)]
#[derive(Default)]
struct LinkAttr {
    program: u32,
    target: u32,
    kind: u32,
    flags: u32,
}

impl Program {
    /// Loads a program under a name of at most 15 letters, digits and underscores.
    ///
    /// # Errors
    ///
    /// The kernel's error, with the end of its verifier's log.
    pub fn load(kind: ProgramKind, name: &str, insns: &[u64]) -> Result<Self, LoadError> {
        let mut named = [0; 16];
        for (to, from) in named.iter_mut().take(15).zip(name.bytes()) {
            *to = from;
        }
        let mut attr = LoadAttr {
            kind: kind as u32,
            insn_count: u32_of(insns.len()),
            insns: insns.as_ptr() as u64,
            // Determines which helpers it may call; ours is compatible.
            license: c"Dual MIT/GPL".as_ptr() as u64,
            name: named,
            ..LoadAttr::default()
        };
        // SAFETY: instructions and licence live through the call.
        let loaded = unsafe { bpf(uapi::PROG_LOAD, &mut attr) };
        let fail = match loaded {
            Ok(fd) => return Ok(Self { fd: owned(fd) }),
            Err(error) => error,
        };
        // Again, for the reason: logging costs time where it is not needed.
        let mut log = vec![0_u8; 1 << 20];
        attr.log_level = 1;
        attr.log = log.as_mut_ptr() as u64;
        attr.log_size = u32_of(log.len());
        // SAFETY: as above, and the log buffer has the given length.
        if let Ok(fd) = unsafe { bpf(uapi::PROG_LOAD, &mut attr) } {
            return Ok(Self { fd: owned(fd) });
        }
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
        log.truncate(end);
        Err(LoadError {
            source: fail,
            log: String::from_utf8_lossy(&log).into_owned(),
        })
    }

    /// Runs the program on a packet, `repeat` times.
    ///
    /// # Errors
    ///
    /// The kernel's error; it refuses packets shorter than an Ethernet header.
    pub fn test_run(&self, packet: &[u8], repeat: u32) -> io::Result<TestRun> {
        // XDP programs may move the packet's start and end.
        let mut data = vec![0_u8; packet.len() + 256];
        let mut attr = TestRunAttr {
            program: raw(self.fd.as_fd()),
            data_in_len: u32_of(packet.len()),
            data_out_len: u32_of(data.len()),
            data_in: packet.as_ptr() as u64,
            data_out: data.as_mut_ptr() as u64,
            repeat,
            ..TestRunAttr::default()
        };
        // SAFETY: both buffers live through the call and have the given lengths.
        unsafe { bpf(uapi::PROG_TEST_RUN, &mut attr) }?;
        data.truncate(attr.data_out_len as usize);
        Ok(TestRun {
            result: attr.result,
            data,
            duration_ns: attr.duration,
        })
    }

    /// Runs an XDP program `repeat` times on copies of `frame`, `batch` at a time, and sends them
    /// where it directs. To the program they arrive on the interface, so `XDP_TX` sends them out of
    /// it.
    ///
    /// # Errors
    ///
    /// The kernel's error (Linux 5.18 or later is needed); [`io::ErrorKind::Interrupted`] if a
    /// signal arrived: then it has run fewer times.
    pub fn run_live_frames(
        &self,
        ifindex: u32,
        frame: &[u8],
        repeat: u32,
        batch: u32,
    ) -> io::Result<()> {
        let frame_len = u32::try_from(frame.len()).map_err(io::Error::other)?;
        // struct xdp_md: data, data_end, data_meta, interface, queue, egress.
        let context: [u32; 6] = [0, frame_len, 0, ifindex, 0, 0];
        let mut attr = TestRunAttr {
            program: raw(self.fd.as_fd()),
            data_in_len: frame_len,
            data_in: frame.as_ptr() as u64,
            repeat,
            context_in_len: u32_of(size_of_val(&context)),
            context_in: context.as_ptr() as u64,
            flags: uapi::TEST_XDP_LIVE_FRAMES,
            batch,
            ..TestRunAttr::default()
        };
        // SAFETY: frame and context live through the call and have the given lengths.
        unsafe { bpf(uapi::PROG_TEST_RUN, &mut attr) }.map(drop)
    }

    /// How long it has run so far, on all CPUs, while [`run_time_stats`] was enabled.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn run_time(&self) -> io::Result<Duration> {
        // `struct bpf_prog_info` up to and including `run_time_ns`.
        const RUN_TIME: usize = 192 / 8;
        let mut info = [0_u64; RUN_TIME + 1];
        let mut attr = InfoAttr {
            fd: raw(self.fd.as_fd()),
            bytes: u32_of(size_of_val(&info)),
            info: info.as_mut_ptr() as u64,
        };
        // SAFETY: the buffer lives through the call and has the given length.
        unsafe { bpf(uapi::INFO_BY_FD, &mut attr) }?;
        Ok(Duration::from_nanos(info[RUN_TIME]))
    }

    /// Attaches an XDP program to an interface, for as long as the returned descriptor is open.
    /// `flags` are `XDP_FLAGS_*` (linux/if_link.h).
    ///
    /// # Errors
    ///
    /// If a program is attached already, or the driver does not support it.
    pub fn attach_xdp(&self, ifindex: u32, flags: u32) -> io::Result<OwnedFd> {
        let mut attr = LinkAttr {
            program: raw(self.fd.as_fd()),
            target: ifindex,
            kind: uapi::ATTACH_XDP,
            flags,
        };
        // SAFETY: plain numbers.
        unsafe { bpf(uapi::LINK_CREATE, &mut attr) }.map(owned)
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Memory shared by programs and us: an array of one value, made of 64-bit words, initially zero.
#[derive(Debug)]
pub struct Shared {
    fd: OwnedFd,
    memory: Mapping,
}

impl Shared {
    /// Makes `words` words.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn new(words: usize) -> io::Result<Self> {
        let bytes = words * 8;
        let mut attr = MapAttr {
            kind: uapi::MAP_ARRAY,
            key_bytes: 4,
            value_bytes: u32::try_from(bytes).map_err(io::Error::other)?,
            entries: 1,
            flags: uapi::MMAPABLE,
        };
        // SAFETY: plain numbers.
        let fd = owned(unsafe { bpf(uapi::MAP_CREATE, &mut attr) }?);
        let memory = Mapping::of(fd.as_fd(), bytes, 0, true)?;
        Ok(Self { fd, memory })
    }

    /// The number by which programs refer to it.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// All words.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        let words = self.memory.len() / 8;
        // SAFETY: the mapping is that long and page-aligned; others, programs included, may write
        // atomics.
        unsafe { std::slice::from_raw_parts(self.memory.start().as_ptr().cast(), words) }
    }
}

/// Values that programs look up by index, and that can be mapped: one after another, `value_bytes`
/// apart.
#[derive(Debug)]
pub struct Array {
    fd: OwnedFd,
}

impl Array {
    /// Makes `values` values, initially zero; `value_bytes` is a multiple of 8.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn new(value_bytes: u32, values: u32) -> io::Result<Self> {
        let mut attr = MapAttr {
            kind: uapi::MAP_ARRAY,
            key_bytes: 4,
            value_bytes: value_bytes.next_multiple_of(8),
            entries: values,
            flags: uapi::MMAPABLE,
        };
        // SAFETY: plain numbers.
        let fd = owned(unsafe { bpf(uapi::MAP_CREATE, &mut attr) }?);
        Ok(Self { fd })
    }

    /// The number by which programs refer to it.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// The first `len` bytes of its values, which programs may read and write concurrently.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn map(&self, len: usize) -> io::Result<SharedMemory> {
        SharedMemory::map(File::from(self.fd.try_clone()?), len)
    }
}

/// Maps receive queues to AF_XDP sockets.
#[derive(Debug)]
pub struct SocketMap {
    fd: OwnedFd,
}

impl SocketMap {
    /// A map for `queues` queues.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn new(queues: u32) -> io::Result<Self> {
        let mut attr = MapAttr {
            kind: uapi::MAP_XSKMAP,
            key_bytes: 4,
            value_bytes: 4,
            entries: queues,
            flags: 0,
        };
        // SAFETY: plain numbers.
        let fd = owned(unsafe { bpf(uapi::MAP_CREATE, &mut attr) }?);
        Ok(Self { fd })
    }

    /// The number by which programs refer to it.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Sends the packets of a queue to this socket.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = raw(socket);
        let mut attr = ElementAttr {
            map: raw(self.fd.as_fd()),
            key: std::ptr::from_ref(&queue) as u64,
            value: std::ptr::from_ref(&value) as u64,
            ..ElementAttr::default()
        };
        // SAFETY: key and value live through the call and have the map's sizes.
        unsafe { bpf(uapi::MAP_UPDATE, &mut attr) }.map(drop)
    }
}

/// Whether programs are attached to an interface's traffic control by `tcx`, without a queueing
/// discipline that shows them.
///
/// # Errors
///
/// The kernel's error; `CAP_NET_ADMIN` is needed.
pub fn has_tcx(ifindex: u32) -> io::Result<bool> {
    for kind in [uapi::ATTACH_TCX_INGRESS, uapi::ATTACH_TCX_EGRESS] {
        let mut attr = QueryAttr {
            target: ifindex,
            kind,
            ..QueryAttr::default()
        };
        // SAFETY: no addresses: only the number is requested.
        match unsafe { bpf(uapi::PROG_QUERY, &mut attr) } {
            Ok(_) if attr.count > 0 => return Ok(true),
            // Nothing is attached; the interface is gone; before Linux 6.6 there is no tcx.
            Ok(_) => {}
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENODEV | libc::EINVAL) => {}
                _ => return Err(error),
            },
        }
    }
    Ok(false)
}

/// Makes the kernel measure the run time of all programs while the returned descriptor is open.
/// That costs two clock readings per run.
///
/// # Errors
///
/// The kernel's error; `CAP_SYS_ADMIN` is needed.
pub fn run_time_stats() -> io::Result<OwnedFd> {
    let mut attr = StatsAttr::default();
    // SAFETY: plain numbers.
    unsafe { bpf(uapi::ENABLE_STATS, &mut attr) }.map(owned)
}

/// # Safety
///
/// The attributes must be those of the command, and what they point to must be
/// valid through the call.
unsafe fn bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<RawFd> {
    // SAFETY: the structure has the given length; the caller guarantees the rest.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of::<T>(),
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    RawFd::try_from(done).map_err(io::Error::other)
}

fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: called with descriptors that bpf(2) has just made.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A length in memory, which the kernel expects in 32 bits.
fn u32_of(len: usize) -> u32 {
    u32::try_from(len).expect("programs and packets are far below 4 GiB")
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    u32::try_from(fd.as_raw_fd()).expect("open descriptors are not negative")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a network namespace of the thread's own, where the loopback interface is number 1.
    #[test]
    fn programs_of_tcx_are_found() {
        const LOOPBACK: u32 = 1;
        let found = std::thread::spawn(|| {
            // SAFETY: no pointer is passed; only this thread moves.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                let why = io::Error::last_os_error();
                assert!(std::env::var_os("CI").is_none(), "{why}");
                eprintln!("not run: {why}");
                return;
            }
            assert!(!has_tcx(LOOPBACK).unwrap());
            // r0 = TCX_NEXT; exit
            let next = [0xffff_ffff_0000_00b7, 0x95];
            let program = Program::load(ProgramKind::Classifier, "next", &next).unwrap();
            for kind in [uapi::ATTACH_TCX_INGRESS, uapi::ATTACH_TCX_EGRESS] {
                let mut attr = LinkAttr {
                    program: raw(program.as_fd()),
                    target: LOOPBACK,
                    kind,
                    flags: 0,
                };
                // SAFETY: plain numbers.
                let link = match unsafe { bpf(uapi::LINK_CREATE, &mut attr) } {
                    Ok(link) => owned(link),
                    // Before Linux 6.6.
                    Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return,
                    Err(error) => panic!("{error}"),
                };
                assert!(has_tcx(LOOPBACK).unwrap());
                drop(link);
                assert!(!has_tcx(LOOPBACK).unwrap());
            }
        });
        found.join().unwrap();
    }
}
