//! What readers keep of an interface.

use strata_wire::LinkType;

use super::time::Clock;

/// An interface of a section, with the section's numbering.
#[derive(Debug, Clone, Copy)]
pub(super) struct Local {
    pub(super) id: u16,
    pub(super) clock: Clock,
    pub(super) snaplen: u32,
    pub(super) packet_bytes_max: u32,
    pub(super) link: LinkType,
}

/// Maximum bytes of a packet, by link type: as in libpcap 1.10 and Wireshark 4.0; a longer one is
/// treated as damage.
pub(super) fn packet_bytes_max(link: LinkType) -> u32 {
    match link.0 {
        // DBUS, USB_LINUX, USB_LINUX_MMAPPED, USBPCAP
        231 | 189 | 220 | 249 => 128 << 20,
        // EBHSCR
        279 => 32 << 20,
        _ => 256 << 10,
    }
}
