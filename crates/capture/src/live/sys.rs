//! The system calls of live capture that the standard library does not have.
//!
//! Everything unsafe of this crate stands here: what crosses into the kernel by
//! address, and the memory that the kernel shares with us.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use strata_wire::exact;

/// Memory shared with the kernel, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory that one value owns; nothing in it is tied to
// the thread that made it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a descriptor at `offset`, for reading and writing,
    /// present in memory from the start.
    pub(crate) fn of(fd: BorrowedFd<'_>, len: usize, offset: i64) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses; it overlaps
        // nothing.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                fd.as_raw_fd(),
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { start, len })
    }

    /// Memory of our own that the kernel is to be told of, zero at first.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: as in `of`.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { start, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// For telling the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// All of it. Only what the kernel has handed over has a meaning; of the rest,
    /// bytes may be any.
    pub(crate) fn whole(&self) -> &[u8] {
        // SAFETY: inside the mapping. The kernel writes frames that it has, which
        // nobody looks at: slots lead to frames that it has handed over.
        unsafe { self.bytes(0, self.len) }
    }

    /// The 32-bit word at `at`, which the kernel writes too.
    pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.len);
        // SAFETY: inside the mapping and aligned; mappings start at a page.
        // Whoever shares the word uses single aligned loads and stores.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// Bytes that the kernel has handed over and does not touch until they are
    /// given back.
    ///
    /// # Safety
    ///
    /// For as long as the slice lives, nobody else writes these bytes.
    pub(crate) unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: inside the mapping; the caller answers for the rest.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at), len) }
    }

    /// As [`Mapping::bytes`], for writing.
    ///
    /// # Safety
    ///
    /// For as long as the slice lives, nobody else reads or writes these bytes.
    pub(crate) unsafe fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: inside the mapping; the caller answers for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(at), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `of` mapped, and nothing borrows from it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Blocks of a TPACKET_V3 ring, which go to and fro between the kernel and us.
///
/// A block is readable between [`Blocks::take`] and [`Blocks::give_back`]; the
/// status word in each says whose it is.
#[derive(Debug)]
pub(crate) struct Blocks {
    memory: Mapping,
    block_bytes: usize,
    /// The block that is ours, or will be next.
    index: usize,
    ours: bool,
}

/// `block_status` in `struct tpacket_block_desc` (linux/if_packet.h).
const BLOCK_STATUS_AT: usize = 8;

impl Blocks {
    pub(crate) fn new(memory: Mapping, block_bytes: usize) -> Self {
        assert!(block_bytes > 0 && memory.len().is_multiple_of(block_bytes));
        Self {
            memory,
            block_bytes,
            index: 0,
            ours: false,
        }
    }

    fn status(&self) -> &AtomicU32 {
        self.memory
            .word(self.index * self.block_bytes + BLOCK_STATUS_AT)
    }

    /// Whether the next block has been handed over; then it is ours.
    pub(crate) fn take(&mut self) -> bool {
        // Acquire: what the kernel wrote into the block before is visible after.
        let status = self.status().load(Ordering::Acquire);
        self.ours = status & libc::TP_STATUS_USER != 0;
        self.ours
    }

    /// The share of blocks that wait for us, the one that is ours included.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn fill(&self) -> f64 {
        let blocks = self.memory.len() / self.block_bytes;
        let waits = |ahead: &usize| {
            let at = (self.index + ahead) % blocks * self.block_bytes + BLOCK_STATUS_AT;
            self.memory.word(at).load(Ordering::Relaxed) & libc::TP_STATUS_USER != 0
        };
        (0..blocks).take_while(waits).count() as f64 / blocks as f64
    }

    /// The bytes of the block that is ours; empty if none is.
    pub(crate) fn block(&self) -> &[u8] {
        if !self.ours {
            return &[];
        }
        let at = self.index * self.block_bytes;
        // SAFETY: the kernel leaves a block alone from setting TP_STATUS_USER until
        // it is given back, which takes `&mut self`.
        unsafe { self.memory.bytes(at, self.block_bytes) }
    }

    /// As [`Blocks::block`], for putting back what was taken out of packets.
    pub(crate) fn block_mut(&mut self) -> &mut [u8] {
        if !self.ours {
            return &mut [];
        }
        let at = self.index * self.block_bytes;
        // SAFETY: as for `block`.
        unsafe { self.memory.bytes_mut(at, self.block_bytes) }
    }

    /// Gives the block back to the kernel and goes to the next.
    pub(crate) fn give_back(&mut self) {
        if !std::mem::take(&mut self.ours) {
            return;
        }
        // Release: we have read everything before the kernel may write.
        self.status()
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.index = (self.index + 1) % (self.memory.len() / self.block_bytes);
    }
}

/// A packet socket that receives nothing until it is bound. `cooked` ones leave
/// out the link layer header.
pub(crate) fn packet_socket(cooked: bool) -> io::Result<OwnedFd> {
    let kind = if cooked {
        libc::SOCK_DGRAM
    } else {
        libc::SOCK_RAW
    };
    // SAFETY: no pointer is passed.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind | libc::SOCK_CLOEXEC, 0) };
    owned(fd)
}

/// An AF_XDP socket.
pub(crate) fn xdp_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointer is passed.
    owned(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })
}

/// Nanoseconds by which the clock TAI is ahead of the time of day.
pub(crate) fn tai_ahead_ns() -> u64 {
    let ns = |clock: libc::clockid_t| {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: writes one `timespec`; where the clock is not known it stays zero.
        unsafe { libc::clock_gettime(clock, &raw mut now) };
        i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
    };
    // Whole seconds: leap seconds since 1972, or 0 where nobody has set them.
    let ahead = (ns(libc::CLOCK_TAI) - ns(libc::CLOCK_REALTIME) + 500_000_000) / 1_000_000_000;
    exact::<u64>(ahead.max(0)) * 1_000_000_000
}

/// Binds a packet socket to an interface, 0 for all, and to every protocol.
pub(crate) fn bind_packet(fd: BorrowedFd<'_>, ifindex: u32) -> io::Result<()> {
    // SAFETY: all zeros is a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = exact::<u16>(libc::AF_PACKET);
    address.sll_protocol = exact::<u16>(libc::ETH_P_ALL).to_be();
    address.sll_ifindex = index_for_kernel(ifindex);
    bind(fd, &address)
}

/// Binds a packet socket to an interface to send only: it receives nothing.
pub(crate) fn bind_packet_to_send(fd: BorrowedFd<'_>, ifindex: u32) -> io::Result<()> {
    // SAFETY: all zeros is a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = exact::<u16>(libc::AF_PACKET);
    address.sll_ifindex = index_for_kernel(ifindex);
    bind(fd, &address)
}

/// Sends datagrams in one call, at most 64; gives how many were sent, at least one. `flags`
/// are those of `sendmmsg`.
pub(crate) fn send_many(
    fd: BorrowedFd<'_>,
    datagrams: &[&[u8]],
    flags: c_int,
) -> io::Result<usize> {
    const MAX: usize = 64;
    // SAFETY: all zeros is a valid `iovec`, and a valid `mmsghdr`.
    let mut parts: [libc::iovec; MAX] = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut messages: [libc::mmsghdr; MAX] = unsafe { std::mem::zeroed() };
    let mut count = 0;
    for ((datagram, part), message) in datagrams.iter().zip(&mut parts).zip(&mut messages) {
        part.iov_base = datagram.as_ptr().cast_mut().cast();
        part.iov_len = datagram.len();
        message.msg_hdr.msg_iov = part;
        message.msg_hdr.msg_iovlen = 1;
        count += 1;
    }
    // SAFETY: `count` messages, each of one part that borrows from `datagrams`; sending
    // only reads them.
    let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), count, flags) };
    check(sent)?;
    usize::try_from(sent).map_err(io::Error::other)
}

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock of `bpf_ktime_get_ns`.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one `timespec`; cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let (seconds, ns) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + ns
}

/// Binds a socket to an address structure of its family.
pub(crate) fn bind<T>(fd: BorrowedFd<'_>, address: &T) -> io::Result<()> {
    // SAFETY: the address is valid for its size, which is passed along.
    let done = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            std::ptr::from_ref(address).cast(),
            socklen::<T>(),
        )
    };
    check(done)
}

/// `setsockopt` with a plain value.
pub(crate) fn set_option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the value is valid for its size, which is passed along.
    let done = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            socklen::<T>(),
        )
    };
    check(done)
}

/// `getsockopt` into integers alone: every bit pattern of `T` must be a value.
pub(crate) fn get_option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    empty: T,
) -> io::Result<T> {
    let mut value = empty;
    let mut len = socklen::<T>();
    // SAFETY: the kernel writes at most `len` bytes, which the value has; callers
    // pass structures of integers only.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_mut(&mut value).cast(),
            &raw mut len,
        )
    };
    check(done).map(|()| value)
}

/// A classic BPF filter that keeps the first `snaplen` bytes of every packet, 0
/// for none of any.
pub(crate) fn attach_snaplen(fd: BorrowedFd<'_>, snaplen: u32) -> io::Result<()> {
    /// `BPF_RET | BPF_K` (linux/bpf_common.h).
    const RETURN: u16 = 0x06;
    let mut code = [libc::sock_filter {
        code: RETURN,
        jt: 0,
        jf: 0,
        k: snaplen,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: code.as_mut_ptr(),
    };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// The pending error of a socket, which is cleared by asking.
pub(crate) fn take_error(fd: BorrowedFd<'_>) -> Option<io::Error> {
    match get_option(fd, libc::SOL_SOCKET, libc::SO_ERROR, 0 as c_int) {
        Ok(0) => None,
        Ok(code) => Some(io::Error::from_raw_os_error(code)),
        Err(error) => Some(error),
    }
}

/// An event, which one thread signals and another waits for.
pub(crate) fn event() -> io::Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

/// Signals an event.
pub(crate) fn signal_event(event: BorrowedFd<'_>) {
    // It fails only if it was signalled 2^64 - 2 times and nobody waited.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// Waits until one of the descriptors has something, or the event is signalled, or the time is
/// over, or a signal came. The event is no longer signalled after that.
pub(crate) fn wait<'a>(
    fds: impl Iterator<Item = BorrowedFd<'a>>,
    event: BorrowedFd<'a>,
    timeout: Duration,
) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled: Vec<PollFd<'_>> = fds
        .chain([event])
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    if polled.last().is_some_and(|last| !last.revents().is_empty()) {
        // Nobody else reads it, so there is something.
        let _ = rustix::io::read(event, &mut [0; 8]);
    }
    Ok(())
}

/// Asks the kernel about an interface by name; `request` is one of `SIOCGIF*`, and
/// the answer stands in the union of `ifreq`.
fn interface_request(name: &str, request: libc::Ioctl) -> io::Result<libc::ifreq> {
    let socket = control_socket()?;
    let mut asked = ifreq(name)?;
    // SAFETY: every `SIOCGIF*` request reads and writes one `ifreq`.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut asked) };
    check(done).map(|()| asked)
}

/// A socket for requests about interfaces.
fn control_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointer is passed.
    owned(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })
}

fn ifreq(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeros is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays for the closing NUL.
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = std::ffi::c_char::from_ne_bytes([from]);
    }
    Ok(request)
}

/// `IFF_*` flags.
pub(crate) fn interface_flags(name: &str) -> io::Result<u16> {
    let answer = interface_request(name, libc::SIOCGIFFLAGS)?;
    // SAFETY: SIOCGIFFLAGS fills this field; it is an integer.
    let flags = unsafe { answer.ifr_ifru.ifru_flags };
    Ok(u16::from_ne_bytes(flags.to_ne_bytes()))
}

/// The ARP hardware type, `ARPHRD_*`.
pub(crate) fn interface_hardware(name: &str) -> io::Result<u16> {
    let answer = interface_request(name, libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR fills this field; its family is an integer.
    Ok(unsafe { answer.ifr_ifru.ifru_hwaddr.sa_family })
}

/// The index; fails with ENODEV if there is no such interface.
pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let answer = interface_request(name, libc::SIOCGIFINDEX)?;
    // SAFETY: SIOCGIFINDEX fills this field; it is an integer.
    let index = unsafe { answer.ifr_ifru.ifru_ifindex };
    u32::try_from(index).map_err(io::Error::other)
}

/// Bytes of the largest packet without its link layer header.
pub(crate) fn interface_mtu(name: &str) -> io::Result<u32> {
    let answer = interface_request(name, libc::SIOCGIFMTU)?;
    // SAFETY: SIOCGIFMTU fills this field; it is an integer.
    let mtu = unsafe { answer.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(io::Error::other)
}

/// An ethtool request (linux/ethtool.h): `buffer` starts with the command, and
/// holds the answer afterwards. It must be as large as the command demands.
pub(crate) fn ethtool(name: &str, buffer: &mut [u8]) -> io::Result<()> {
    let socket = control_socket()?;
    let mut request = ifreq(name)?;
    request.ifr_ifru.ifru_data = buffer.as_mut_ptr().cast();
    // SAFETY: SIOCETHTOOL reads and writes `ifr_data`, as much as the command in it
    // says; callers size the buffer by the command's structure.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    check(done)
}

/// Has a card stamp every received packet with the time of its own clock, unless it does. What
/// it does with sent ones is left as it is.
pub(crate) fn stamp_all_received(name: &str) -> io::Result<()> {
    /// linux/sockios.h, linux/net_tstamp.h.
    const SIOCSHWTSTAMP: libc::Ioctl = 0x89b0;
    const SIOCGHWTSTAMP: libc::Ioctl = 0x89b1;
    const HWTSTAMP_FILTER_ALL: c_int = 1;
    let socket = control_socket()?;
    // `struct hwtstamp_config`: flags, what is sent, what is received.
    let mut config: [c_int; 3] = [0; 3];
    let ask = |number: libc::Ioctl, config: &mut [c_int; 3]| {
        let mut request = ifreq(name)?;
        request.ifr_ifru.ifru_data = config.as_mut_ptr().cast();
        // SAFETY: both read or write one `struct hwtstamp_config`, which `config` is.
        let done = unsafe { libc::ioctl(socket.as_raw_fd(), number, &raw mut request) };
        check(done)
    };
    if ask(SIOCGHWTSTAMP, &mut config).is_ok() && config[2] == HWTSTAMP_FILTER_ALL {
        return Ok(());
    }
    config[2] = HWTSTAMP_FILTER_ALL;
    ask(SIOCSHWTSTAMP, &mut config)
}

/// Nanoseconds since 1970.
pub(crate) fn realtime_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    exact::<u64>(now.expect("the clock is after 1970").as_nanos())
}

/// Names of all interfaces by index.
pub(crate) fn interface_names() -> io::Result<Vec<(u32, String)>> {
    // SAFETY: returns a list that is freed below, or null.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut names = Vec::new();
    let mut entry = list;
    loop {
        // SAFETY: the list ends with an entry of index 0, which we do not pass.
        let (index, name) = unsafe { ((*entry).if_index, (*entry).if_name) };
        if index == 0 || name.is_null() {
            break;
        }
        // SAFETY: a NUL-terminated string of the list.
        let text = unsafe { std::ffi::CStr::from_ptr(name) };
        names.push((index, text.to_string_lossy().into_owned()));
        // SAFETY: not yet the last entry.
        entry = unsafe { entry.add(1) };
    }
    // SAFETY: what if_nameindex returned, once.
    unsafe { libc::if_freenameindex(list) };
    Ok(names)
}

/// Fetches the cache line at `bytes[at]`, if there is one.
#[inline(always)]
pub(crate) fn prefetch(bytes: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint and does not fault, whatever the address;
        // SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, at);
}

pub(crate) fn index_for_kernel(ifindex: u32) -> c_int {
    // Indices are positive and small.
    exact::<c_int>(ifindex)
}

fn socklen<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).expect("structures of the kernel are small")
}

fn check(done: c_int) -> io::Result<()> {
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn owned(fd: c_int) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: a descriptor that was just made and that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
