//! Tunnels: their headers, and what is inside. Others end the packet.

use strata_wire::ethernet::ethertype;
use strata_wire::tunnel::{self, Inner, TunnelKind};

use super::walk::Walk;

/// Flags of GRE (RFC 2784 §2.1, RFC 2890 §2): each stands for 4 bytes behind the first 4.
const GRE_CHECKSUM: u16 = 0x8000;
const GRE_KEY: u16 = 0x2000;
const GRE_SEQUENCE: u16 = 0x1000;

/// Bytes of VXLAN's header, and of GENEVE's before its options.
const HEADER_LEN: usize = 8;

impl Walk<'_> {
    /// GRE of version 0 without routing: the key and the sequence number are kept, the checksum is 0.
    pub(super) fn gre(&mut self) -> Option<()> {
        let flags = self.keep_word()?;
        let kind = self.keep_word()?;
        if flags & !(GRE_CHECKSUM | GRE_KEY | GRE_SEQUENCE) != 0 {
            return None;
        }
        if flags & GRE_CHECKSUM != 0 {
            self.fill(0, 4)?;
        }
        for flag in [GRE_KEY, GRE_SEQUENCE] {
            if flags & flag != 0 {
                self.keep(4)?;
            }
        }
        self.inside(Inner::EtherType(kind))
    }

    /// VXLAN (RFC 7348 §5) and GENEVE (RFC 8926 §3.4), if all that is reserved in their headers is 0: other traffic may
    /// have their ports. GENEVE's options are overwritten with 0.
    pub(super) fn tunnel_in_udp(&mut self, kind: TunnelKind) -> Option<()> {
        let rest = self.rest();
        let header: &[u8; HEADER_LEN] = rest.first_chunk()?;
        let is_plain = match kind {
            TunnelKind::Vxlan => header.starts_with(&[0x08, 0, 0, 0]),
            TunnelKind::Geneve => header[1] & 0x3f == 0,
            _ => false,
        };
        if !is_plain || header[7] != 0 {
            return None;
        }
        let (len, inner) = tunnel::of_udp(kind, rest.len(), rest)?;
        self.keep(HEADER_LEN)?;
        self.fill(0, len.checked_sub(HEADER_LEN)?)?;
        self.inside(inner?)
    }

    fn inside(&mut self, inner: Inner) -> Option<()> {
        self.enter()?;
        match inner {
            Inner::Ethernet | Inner::EtherType(ethertype::TEB) => self.ethernet(),
            Inner::EtherType(kind) => self.ethertype(kind),
            Inner::RawIp => self.raw_ip(),
        }
    }
}
