//! Packets to be sent.

use strata_wire::roce::{Repr, icrc};

/// Packets one after another in one buffer, so that a transport can send many with one call. Each
/// starts with its BTH and ends with its ICRC, which is zero until [`PacketBatch::seal`].
#[derive(Clone, Debug, Default)]
pub struct PacketBatch {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl PacketBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Drops all packets, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Number of packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Appends a packet; see [`Repr::emit`].
    ///
    /// # Panics
    ///
    /// If the payload does not have the length that `repr` gives.
    #[inline]
    pub fn push(&mut self, repr: &Repr, payload: &[&[u8]]) {
        repr.emit(payload, &mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// Appends a packet unchanged.
    pub fn push_bytes(&mut self, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
        self.ends.push(self.bytes.len());
    }

    fn start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// One packet.
    ///
    /// # Panics
    ///
    /// If there is no such packet.
    #[must_use]
    pub fn get(&self, index: usize) -> &[u8] {
        &self.bytes[self.start(index)..self.ends[index]]
    }

    /// One packet, mutably.
    ///
    /// # Panics
    ///
    /// If there is no such packet.
    pub fn get_mut(&mut self, index: usize) -> &mut [u8] {
        let start = self.start(index);
        &mut self.bytes[start..self.ends[index]]
    }

    /// How many packets from `from` on can be sent as one run with `UDP_SEGMENT`, and their bytes:
    /// all as long as the first, except the last, which may be shorter; at most `packets_max`
    /// packets and `bytes_max` bytes.
    ///
    /// # Panics
    ///
    /// If there is no such packet.
    #[must_use]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "places among `ends`, which only grow; all are below its length"
    )]
    pub fn run(&self, from: usize, packets_max: usize, bytes_max: usize) -> (usize, &[u8]) {
        let start = self.start(from);
        let size = self.ends[from] - start;
        let mut count = 1;
        while count < packets_max && from + count < self.len() {
            let next = self.ends[from + count] - self.ends[from + count - 1];
            let total = self.ends[from + count] - start;
            if next > size || total > bytes_max {
                break;
            }
            count += 1;
            if next < size {
                break;
            }
        }
        (count, &self.bytes[start..self.ends[from + count - 1]])
    }

    /// Writes the ICRC of packet `index`, which is sent with this IPv4 identification.
    ///
    /// # Panics
    ///
    /// If there is no such packet.
    #[inline]
    pub fn seal(&mut self, index: usize, identification: u16, icrcs: &mut icrc::Stream) {
        icrcs.put(identification, self.get_mut(index));
    }

    /// The packets in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_after_a_shorter_packet_and_before_a_longer_one() {
        let mut batch = PacketBatch::new();
        for len in [8, 8, 8, 4, 8, 12, 12] {
            batch.push_bytes(&vec![0; len]);
        }
        let mut at = 0;
        let mut runs = Vec::new();
        while at < batch.len() {
            let (count, bytes) = batch.run(at, 64, 65_000);
            runs.push((count, bytes.len()));
            at += count;
        }
        assert_eq!(runs, [(4, 28), (1, 8), (2, 24)]);
        assert_eq!(batch.run(0, 2, 65_000).0, 2);
        assert_eq!(batch.run(0, 64, 20).0, 2);
    }
}
