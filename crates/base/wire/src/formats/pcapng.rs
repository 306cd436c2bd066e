//! The vocabulary of pcapng (draft-ietf-opsawg-pcapng): block types and option lists.

pub mod options;

/// Block types of draft-ietf-opsawg-pcapng, sections 4 and 10.1.
pub mod block_type {
    /// Interface description (section 4.2).
    pub const INTERFACE: u32 = 1;
    /// Packet, obsolete (appendix A).
    pub const PACKET: u32 = 2;
    /// Simple packet (section 4.4).
    pub const SIMPLE_PACKET: u32 = 3;
    /// Name resolution (section 4.5).
    pub const NAME_RESOLUTION: u32 = 4;
    /// Interface statistics (section 4.6).
    pub const INTERFACE_STATISTICS: u32 = 5;
    /// Enhanced packet (section 4.3).
    pub const ENHANCED_PACKET: u32 = 6;
    /// systemd journal export (as Wireshark writes it).
    pub const SYSTEMD_JOURNAL: u32 = 9;
    /// Decryption secrets (section 4.7).
    pub const DECRYPTION_SECRETS: u32 = 10;
    /// Custom, may be copied into other files (section 4.8).
    pub const CUSTOM: u32 = 0x0000_0BAD;
    /// Custom, must not be copied into other files (section 4.8).
    pub const CUSTOM_PRIVATE: u32 = 0x4000_0BAD;
    /// Section header (section 4.1); reads the same in both byte orders.
    pub const SECTION: u32 = 0x0A0D_0D0A;
}
