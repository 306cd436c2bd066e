//! The memory that the host of a controller writes.

/// Memory that the controller reads too. What is written arrives whole, and in order: over RDMA, by a
/// reliable connection.
pub trait Memory {
    /// Writes bytes at an address, in the address space of the bus or NIC that carries them.
    fn write(&mut self, at: u64, bytes: &[u8]);
}
