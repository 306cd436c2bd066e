//! Whether a filter sees in packets what their flow is: the innermost IP header is the one that a filter without
//! `vlan`, `mpls` and the like looks at, and its transport header follows. It does not in packets with tags or in
//! tunnels, nor in those with extension headers of IPv6.

use strata_archive::parts::{Batch, IntCells};
use strata_archive::{ArchiveError, PacketColumn};
use strata_wire::LinkType;

use super::groups::{OfGroup, ranges};
use super::pieces::{Links, OpenPart};

/// What tells where the innermost IP header is.
const COLUMNS: [PacketColumn; 4] = [
    PacketColumn::Interface,
    PacketColumn::HeaderLayout,
    PacketColumn::LinkHeader,
    PacketColumn::Ip6NextHeader,
];

/// Bits of the column `header_layout` with the version of IP; none are set for a header stored as bytes.
const LAYOUT_VERSION: i64 = 0x0f;

/// Flows in each of whose packets a filter sees what they are, and the others; both in the order of their rows.
pub(super) fn by_sight(
    part: &OpenPart<'_>,
    group: usize,
    mut flows: Vec<OfGroup>,
    links: &Links,
) -> Result<(Vec<OfGroup>, Vec<OfGroup>), ArchiveError> {
    flows.sort_by_key(|flow| flow.first_row);
    let columns = COLUMNS.map(PacketColumn::index);
    let read = part.table.batch(group, &columns, &ranges(&flows))?;
    let headers = Headers::of(&read, links);
    let mut from = 0;
    let is_seen = |flow: &OfGroup| {
        let rows = from..from + flow.rows;
        from = rows.end;
        rows.into_iter().all(|row| headers.are_plain(row))
    };
    Ok(flows.into_iter().partition(is_seen))
}

struct Headers<'a> {
    read: &'a Batch,
    links: &'a Links,
    interfaces: IntCells<'a>,
    layouts: IntCells<'a>,
    next_headers: IntCells<'a>,
}

impl<'a> Headers<'a> {
    fn of(read: &'a Batch, links: &'a Links) -> Self {
        let [interfaces, layouts, next_headers] = [0, 1, 3].map(|at| read.ints(at));
        Self {
            read,
            links,
            interfaces,
            layouts,
            next_headers,
        }
    }

    fn are_plain(&self, row: usize) -> bool {
        let interface = self.interfaces.get(row);
        let interface = interface.and_then(|it| u16::try_from(it).ok());
        let link = interface.and_then(|it| self.links.get(&it));
        let header = self.read.texts(2).and_then(|headers| headers.bytes(row));
        let (Some(&link), Some(header), Some(layout)) = (link, header, self.layouts.get(row))
        else {
            return false;
        };
        is_plain(link, header, layout & LAYOUT_VERSION) && self.next_headers.get(row).is_none()
    }
}

/// Whether a link header says that IP of this version follows it at once.
fn is_plain(link: LinkType, header: &[u8], version: i64) -> bool {
    let ether_type: [u8; 2] = match version {
        4 => [0x08, 0x00],
        6 => [0x86, 0xdd],
        _ => return false,
    };
    // Its length, and where it has the type of what follows.
    let (len, at) = match link {
        LinkType::ETHERNET => (14, 12),
        LinkType::LINUX_SLL => (16, 14),
        LinkType::LINUX_SLL2 => (20, 0),
        LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => return header.is_empty(),
        _ => return false,
    };
    header.len() == len && header.get(at..at + 2) == Some(&ether_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ip_follows_a_plain_link_header() {
        let ethernet = |more: &[u8]| [&[2; 12], more].concat();
        let plain = [
            (LinkType::ETHERNET, ethernet(&[8, 0]), 4),
            (LinkType::ETHERNET, ethernet(&[0x86, 0xdd]), 6),
            (LinkType::RAW, Vec::new(), 4),
            (LinkType::LINUX_SLL2, [&[8, 0][..], &[0; 18]].concat(), 4),
        ];
        for (link, header, version) in plain {
            assert!(is_plain(link, &header, version), "{header:?}");
        }
        let other = [
            // VLAN, MPLS, PPPoE, and IPv4 in IPv4.
            (LinkType::ETHERNET, ethernet(&[0x81, 0, 0, 5, 8, 0]), 4),
            (
                LinkType::ETHERNET,
                ethernet(&[0x88, 0x47, 0, 0, 0x11, 64]),
                4,
            ),
            (LinkType::ETHERNET, ethernet(&[0x88, 0x64]), 4),
            (
                LinkType::ETHERNET,
                [ethernet(&[8, 0]), vec![0x45; 20]].concat(),
                4,
            ),
            // Stored as bytes, and another link.
            (LinkType::ETHERNET, ethernet(&[8, 0]), 0),
            (LinkType::PPP, vec![0, 0x21], 4),
            (LinkType::RAW, vec![0x45; 20], 4),
        ];
        for (link, header, version) in other {
            assert!(!is_plain(link, &header, version), "{header:?}");
        }
    }
}
