//! One row of `packets` as it was read.

/// One row as read: the packet's fields, and what its header is rebuilt from. Texts and bytes are in the rows'
/// dictionaries.
#[derive(Debug, Default, Clone)]
pub struct Row<'a> {
    /// Arrival, ns.
    pub time: u64,
    pub(crate) late: u64,
    pub(crate) tie: i64,
    /// Its flow, within the log.
    pub flow_id: i64,
    /// Its recording.
    pub recording: u32,
    /// Its interface.
    pub interface: u16,
    pub(crate) src: Option<&'a [u8]>,
    pub(crate) dst: Option<&'a [u8]>,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) protocol: u8,
    pub(crate) tcp_flags: u16,
    /// Bytes on the wire.
    pub wire: u32,
    pub(crate) captured: Option<u32>,
    /// Bytes of headers kept, up to their end.
    pub header_len: u16,
    /// Bytes kept beyond the headers.
    pub payload_len: u32,
    /// Its class's name.
    pub class: &'a [u8],
    /// The class's share of the trees.
    pub score: Option<f32>,
    /// How much of it was kept.
    pub granularity: &'a [u8],
    /// Why.
    pub reason: &'a [u8],
    /// The share of flows captured.
    pub flow_share: f32,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) ip_id: i16,
    pub(crate) fragment: u16,
    pub(crate) flow_label: u32,
    pub(crate) next_header: Option<u8>,
    pub(crate) ip_len: Option<u16>,
    pub(crate) ip_checksum: Option<u16>,
    pub(crate) ip_options: Option<&'a [u8]>,
    pub(crate) seq: i32,
    pub(crate) ack: i32,
    pub(crate) window: u16,
    pub(crate) tsval: i32,
    pub(crate) tsecr: i32,
    pub(crate) tcp_options: Option<&'a [u8]>,
    pub(crate) checksum: Option<u16>,
    pub(crate) link_header: Option<&'a [u8]>,
    pub(crate) transport_header: Option<&'a [u8]>,
    pub(crate) header: Option<&'a [u8]>,
    pub(crate) layout: u8,
    /// Whether the capture gave a time.
    pub has_time: bool,
    /// Packet options from a pcapng input.
    pub packet_options: Option<&'a [u8]>,
    /// Its place in the payload file.
    pub payload_offset: Option<u64>,
}

impl Row<'_> {
    /// The sort key for the order of arrival, within a run.
    #[must_use]
    pub fn arrival(&self) -> (u64, i64) {
        (self.time.wrapping_add(self.late), self.tie)
    }

    /// Bytes in the capture.
    #[must_use]
    pub fn captured(&self) -> u32 {
        self.captured.unwrap_or(self.wire)
    }
}
