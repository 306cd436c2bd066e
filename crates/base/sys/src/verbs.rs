//! Memory registered with an RDMA NIC, which then does what the software responder does otherwise:
//! no CPU work per packet. Through rdma-core's libibverbs.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::memory::shared::SharedMemory;

/// Sequence numbers have 24 bits.
const PSN_MASK: u32 = 0xff_ffff;

/// Which device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Its name, as shown by `rdma link` and `ibv_devices`.
    pub name: String,
    /// Index of its GID: a RoCEv2 one, of the address that peers connect to.
    pub gid_index: u8,
}

#[repr(C)]
struct RawDevice {
    _private: [u8; 0],
}

#[repr(C)]
struct RawConnected {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn strata_verbs_open(name: *const c_char, gid_index: c_int) -> *mut RawDevice;
    fn strata_verbs_close(device: *mut RawDevice);
    fn strata_verbs_connect(
        device: *mut RawDevice,
        memory: *mut c_void,
        len: usize,
        reliable: c_int,
        reads: c_int,
        peer_number: u32,
        peer_psn: u32,
        own_psn: u32,
        mtu: c_int,
        peer_gid: *const u8,
        number: *mut u32,
        rkey: *mut u32,
    ) -> *mut RawConnected;
    fn strata_verbs_disconnect(connected: *mut RawConnected);
}

struct OpenDevice(NonNull<RawDevice>);

// SAFETY: libibverbs allows its calls from any thread (ibv_open_device(3) and
// rdma-core's documentation of thread safety).
unsafe impl Send for OpenDevice {}
// SAFETY: as above.
unsafe impl Sync for OpenDevice {}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: opened by `Device::open`; every connection holds the device, so all have ended.
        unsafe { strata_verbs_close(self.0.as_ptr()) };
    }
}

/// An open RDMA device.
#[derive(Clone)]
pub struct Device(Arc<OpenDevice>);

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Device")
    }
}

/// A peer that wants to write.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Reliable connection, or unreliable.
    pub reliable: bool,
    /// Its queue pair.
    pub qpn: u32,
    /// The sequence number of its first packet.
    pub psn: u32,
    /// RDMA MTU.
    pub mtu: usize,
    /// Its address.
    pub address: IpAddr,
    /// Bytes of memory that it may write into.
    pub len: usize,
    /// Whether it may read them too.
    pub reads: bool,
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    ///
    /// If there is no device of that name, or it cannot be used.
    pub fn open(options: &DeviceOptions) -> io::Result<Self> {
        let name = CString::new(options.name.as_str())?;
        // SAFETY: a C string that outlives the call.
        let raw = unsafe { strata_verbs_open(name.as_ptr(), options.gid_index.into()) };
        let raw = NonNull::new(raw);
        let raw = raw.ok_or_else(io::Error::last_os_error)?;
        Ok(Self(Arc::new(OpenDevice(raw))))
    }

    /// Registers memory for a peer, which /proc shows as `name`, and connects a queue pair to the
    /// peer's.
    ///
    /// # Errors
    ///
    /// What the operating system or the device says.
    pub fn connect(&self, name: &str, peer: &Peer) -> io::Result<Connected> {
        self.lend(SharedMemory::create(name, peer.len)?, peer)
    }

    /// As [`Device::connect`], with memory that is there.
    ///
    /// # Errors
    ///
    /// What the operating system or the device says.
    ///
    /// # Panics
    ///
    /// If it is shorter than the peer is to have.
    pub fn lend(&self, memory: SharedMemory, peer: &Peer) -> io::Result<Connected> {
        assert!(peer.len <= memory.len(), "memory for the peer");
        let gid = match peer.address.to_canonical() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let psn = getrandom::u32().map_err(io::Error::other)? & PSN_MASK;
        let mtu = c_int::try_from(peer.mtu).map_err(io::Error::other)?;
        let (mut number, mut rkey) = (0, 0);
        // SAFETY: the device is open; the memory is mapped with this length and outlives
        // the registration, since `Connected` ends that first; the GID has 16 bytes.
        let raw = unsafe {
            strata_verbs_connect(
                self.0.0.as_ptr(),
                memory.start().as_ptr().cast(),
                peer.len,
                peer.reliable.into(),
                peer.reads.into(),
                peer.qpn,
                peer.psn,
                psn,
                mtu,
                gid.as_ptr(),
                &raw mut number,
                &raw mut rkey,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Connected {
            pair: QueuePair(raw),
            number,
            rkey,
            psn,
            va: memory.start().as_ptr().addr() as u64,
            reliable: peer.reliable,
            memory: Arc::new(memory),
            _device: Arc::clone(&self.0),
        })
    }
}

struct QueuePair(NonNull<RawConnected>);

// SAFETY: as for the device.
unsafe impl Send for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: connected by `Device::connect`, and not used any more.
        unsafe { strata_verbs_disconnect(self.0.as_ptr()) };
    }
}

/// Memory of a peer that the NIC writes. Fields are in the order in which they are dropped.
pub struct Connected {
    #[expect(dead_code, reason = "ends the connection when dropped")]
    pair: QueuePair,
    memory: Arc<SharedMemory>,
    number: u32,
    rkey: u32,
    psn: u32,
    va: u64,
    reliable: bool,
    _device: Arc<OpenDevice>,
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connected")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Connected {
    /// Number of the queue pair.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Remote key of the memory.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Virtual address of its first byte.
    #[must_use]
    pub fn va(&self) -> u64 {
        self.va
    }

    /// Sequence number of the first packet that the NIC sends.
    #[must_use]
    pub fn psn(&self) -> u32 {
        self.psn
    }

    /// Whether the peer learns what has arrived.
    #[must_use]
    pub fn is_reliable(&self) -> bool {
        self.reliable
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }
}
