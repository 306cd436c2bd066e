//! The relay's memory registered with an RDMA NIC, which then does what the
//! software responder does otherwise: nothing of the relay's CPU is touched per
//! packet. Through rdma-core's libibverbs.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::Arc;

use strata_store::RelayedHeader;
use strata_wire::roce::{MASK_24, UDP_PORT};

use crate::control::WelcomePath;
use crate::error::{RelayError, io_error};
use crate::shared::{Mapping, SharedBlock, copy_segments};

/// Which device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Its name, as `rdma link` and `ibv_devices` say.
    pub name: String,
    /// Index of its GID: a RoCEv2 one, of the address that switches connect to.
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
        // SAFETY: opened by `Device::open`; every connection holds the device, so
        // none is left.
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

/// A switch that wants to write.
pub(crate) struct Switch {
    pub(crate) reliable: bool,
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) mtu: usize,
    pub(crate) address: IpAddr,
    pub(crate) blocks: usize,
    pub(crate) stride: usize,
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    ///
    /// If there is none of that name, or it cannot be used.
    pub fn open(options: &DeviceOptions) -> Result<Self, RelayError> {
        let what = || format!("{}: RDMA device", options.name);
        let name = CString::new(options.name.as_str());
        let name = name.map_err(|error| io_error(what())(error.into()))?;
        // SAFETY: a C string that outlives the call.
        let raw = unsafe { strata_verbs_open(name.as_ptr(), options.gid_index.into()) };
        let raw = NonNull::new(raw);
        let raw = raw.ok_or_else(|| io_error(what())(io::Error::last_os_error()))?;
        Ok(Self(Arc::new(OpenDevice(raw))))
    }

    /// Registers memory for a switch, and connects a queue pair to its own.
    pub(crate) fn connect(&self, switch: &Switch) -> Result<Connected, RelayError> {
        let len = switch.blocks * switch.stride;
        let memory = Mapping::create(len).map_err(io_error("memory for a switch"))?;
        let gid = match switch.address.to_canonical() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let psn = getrandom::u32().unwrap_or(0) & MASK_24;
        let mtu = c_int::try_from(switch.mtu).unwrap_or(0);
        let (mut number, mut rkey) = (0, 0);
        // SAFETY: the device is open; the memory is mapped with this length and outlives
        // the registration, since `Connected` ends that first; the GID has 16 bytes.
        let raw = unsafe {
            strata_verbs_connect(
                self.0.0.as_ptr(),
                memory.start().cast(),
                len,
                switch.reliable.into(),
                switch.qpn,
                switch.psn,
                psn,
                mtu,
                gid.as_ptr(),
                &raw mut number,
                &raw mut rkey,
            )
        };
        let raw = NonNull::new(raw)
            .ok_or_else(|| io_error("queue pair for a switch")(io::Error::last_os_error()))?;
        Ok(Connected {
            pair: QueuePair(raw),
            welcome: WelcomePath::Rdma {
                qpn: number,
                rkey,
                va: memory.start().addr() as u64 + strata_store::SEGMENTS_AT as u64,
                mtu: switch.mtu,
                port: UDP_PORT,
                psn,
            },
            reliable: switch.reliable,
            stride: switch.stride,
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

/// Memory of a switch that the NIC writes. The order of fields is that of their end.
pub(crate) struct Connected {
    #[expect(dead_code, reason = "ends the connection when dropped")]
    pair: QueuePair,
    memory: Arc<Mapping>,
    welcome: WelcomePath,
    reliable: bool,
    stride: usize,
    _device: Arc<OpenDevice>,
}

impl Connected {
    pub(crate) fn welcome(&self) -> WelcomePath {
        self.welcome.clone()
    }

    pub(crate) fn is_reliable(&self) -> bool {
        self.reliable
    }

    pub(crate) fn seal(&self, place: usize, header: &RelayedHeader) -> SharedBlock {
        SharedBlock::seal(&self.memory, place * self.stride, header)
    }

    pub(crate) fn copy_segments(&self, place: usize) -> Vec<u8> {
        let len = self.stride - strata_store::SEGMENTS_AT;
        copy_segments(&self.memory, place * self.stride, len)
    }
}
