//! Packets as a source hands them to the pipeline.

/// Maximum number of packets in a batch. A batch of full-size packets then fills about one source's window, and its
/// descriptors take 8 KiB.
pub const BATCH_MAX: usize = 256;

/// Where one packet of a batch lies.
///
/// ```text
///  0        8        12       16       20        24       28    30    32
///  | ts_ns  | offset | len    | wire   | options | opt len| iface| src |
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Descriptor {
    pub(crate) ts_ns: u64,
    /// Of the captured bytes in the source's window.
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) wire_len: u32,
    /// Of the options in window or scratch, with the two flags below.
    pub(crate) options_at: u32,
    pub(crate) options_len: u32,
    pub(crate) interface: u16,
    pub(crate) source: u16,
}

const _: () = assert!(size_of::<Descriptor>() == 32);

impl Descriptor {
    /// In `options_at`: the options lie in the source's scratch, not its window.
    pub(crate) const IN_SCRATCH: u32 = 1 << 31;
    /// In `options_at`: the file gives no time for this packet.
    pub(crate) const NO_TIME: u32 = 1 << 30;
    pub(crate) const OPTIONS_OFFSET: u32 = Self::NO_TIME - 1;
}

/// One packet, borrowed from its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRef<'a> {
    /// Nanoseconds since 1970-01-01 00:00 UTC; 0 without a timestamp.
    pub ts_ns: u64,
    /// Global interface id, as in [`Meta::Interface`](strata_wire::Meta::Interface).
    pub interface: u16,
    /// The packet's length on the wire in bytes, as the file says. May be wrong: it can be smaller
    /// than `data`.
    pub wire_len: u32,
    /// The captured bytes.
    pub data: &'a [u8],
    /// Packet options as a list of [`options`](strata_wire::pcapng::options); empty for pcap.
    pub options: &'a [u8],
    /// False where the file gives no time (pcapng's simple packets).
    pub has_timestamp: bool,
}

/// Packets in order, wherever they are: in a file's window, in a capture ring, in memory. What a
/// worker takes.
pub trait Packets {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The packet at `index`.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Self::len).
    fn get(&self, index: usize) -> PacketRef<'_>;
}

impl Packets for [PacketRef<'_>] {
    #[inline]
    fn len(&self) -> usize {
        <[PacketRef<'_>]>::len(self)
    }

    #[inline]
    fn get(&self, index: usize) -> PacketRef<'_> {
        self[index]
    }
}
