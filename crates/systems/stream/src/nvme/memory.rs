//! What whoever gives commands writes.

/// Memory that the controller reads too. What is written arrives whole, and in order: over RDMA, by a
/// reliable connection.
pub trait Memory {
    /// Writes bytes at an address, as whoever carries them counts addresses.
    fn write(&mut self, at: u64, bytes: &[u8]);
}
