//! A PCI device that this process drives by itself: its registers, and where memory is for it.
//!
//! Nothing here is safe from the device: whatever address it is given, it reads and writes, unless an
//! IOMMU is in between. So addresses given to it must be those of [`bus_address`], of memory that lives
//! until the device is idle.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::OFlags;

use crate::memory::mapping::Mapping;
use crate::memory::shared::SharedMemory;

/// Where the command is in the configuration space (PCI Local Bus Specification 3.0, §6.2.2).
const COMMAND: u64 = 4;
/// It answers for its memory; it may read and write memory by itself; it does not raise INTx.
const COMMAND_BITS: u16 = 1 << 1 | 1 << 2 | 1 << 10;

/// The registers of a device's first memory region (BAR0).
#[derive(Debug)]
pub struct Registers {
    memory: Mapping,
    config: File,
    command: u16,
}

impl Registers {
    /// Those of a device that no driver has, by its directory in `/sys/bus/pci/devices`. It may read and write
    /// memory from now on.
    ///
    /// # Errors
    ///
    /// If a driver has it, or what the operating system says.
    pub fn open(device: &Path) -> io::Result<Self> {
        if let Ok(driver) = std::fs::read_link(device.join("driver")) {
            let driver = driver.file_name().map(|name| name.display().to_string());
            return Err(io::Error::other(format!(
                "the driver {} is bound to it: write its address to {}",
                driver.as_deref().unwrap_or("of another name"),
                device.join("driver/unbind").display()
            )));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let config = options.open(device.join("config"))?;
        let mut command = [0; 2];
        config.read_exact_at(&mut command, COMMAND)?;
        let command = u16::from_le_bytes(command);
        config.write_all_at(&(command | COMMAND_BITS).to_le_bytes(), COMMAND)?;
        let sync = i32::try_from(OFlags::SYNC.bits()).map_err(io::Error::other)?;
        let region = options.custom_flags(sync).open(device.join("resource0"))?;
        let len = usize::try_from(region.metadata()?.len()).map_err(io::Error::other)?;
        let memory = Mapping::of(region.as_fd(), len, 0, false)?;
        Ok(Self {
            memory,
            config,
            command,
        })
    }

    /// Bytes of them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether there are no registers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A register of 32 bits.
    ///
    /// # Panics
    /// If there is no such register.
    #[must_use]
    pub fn read(&self, at: usize) -> u32 {
        u32::from_le(self.memory.word(at).load(Ordering::Acquire))
    }

    /// Writes one, after all that was written to memory before.
    ///
    /// # Panics
    /// If there is no such register.
    pub fn write(&self, at: usize, value: u32) {
        fence(Ordering::SeqCst);
        self.memory.word(at).store(value.to_le(), Ordering::Release);
    }
}

/// The device reads and writes no memory any more.
impl Drop for Registers {
    fn drop(&mut self) {
        let quiet = self.command & !(1 << 2) | 1 << 10;
        let _ = self.config.write_all_at(&quiet.to_le_bytes(), COMMAND);
    }
}

/// Where a byte of memory is for devices. Only memory of huge pages stays where it is
/// ([`SharedMemory::create_huge`]).
///
/// # Errors
///
/// What the operating system says; without CAP_SYS_ADMIN it does not tell.
///
/// # Panics
///
/// If the byte is beyond the memory.
pub fn bus_address(memory: &SharedMemory, at: usize) -> io::Result<u64> {
    assert!(at < memory.len(), "within the memory");
    // Present in memory, so it has to be read indeed.
    std::hint::black_box(memory.copy_out(at, 1));
    let address = memory.start().as_ptr().addr() + at;
    let page = rustix::param::page_size();
    let mut entry = [0; 8];
    // Documentation/admin-guide/mm/pagemap.rst: 8 bytes a page; bits 0 to 54 its frame, 63 whether it is present.
    let map = File::open("/proc/self/pagemap")?;
    map.read_exact_at(&mut entry, (address / page * 8) as u64)?;
    let entry = u64::from_le_bytes(entry);
    let frame = entry & ((1 << 55) - 1);
    if entry >> 63 == 0 || frame == 0 {
        return Err(io::Error::other(
            "the kernel hides physical addresses: CAP_SYS_ADMIN is needed",
        ));
    }
    Ok(frame * page as u64 + (address % page) as u64)
}
