//! Which interfaces are ports of a bridge.

use std::collections::BTreeMap;
use std::io;

use super::netlink::{Netlink, attribute, text, u32_at};

/// `RTM_GETLINK` (linux/rtnetlink.h), and `struct ifinfomsg` before its attributes.
const GET_LINK: u16 = 18;
const LINK_LEN: usize = 16;
/// `IFLA_MASTER`, `IFLA_LINKINFO` and in it `IFLA_INFO_SLAVE_KIND` (linux/if_link.h).
const MASTER: u16 = 10;
const LINK_INFO: u16 = 18;
const SLAVE_KIND: u16 = 4;
/// Kinds of interfaces that forward among their ports. Those of Open vSwitch's kernel module are `ovs-system`'s.
const KINDS: [&str; 2] = ["bridge", "openvswitch"];

/// Indexes of the bridges of this network namespace, by the indexes of their ports.
///
/// # Errors
///
/// If the kernel refuses to list interfaces.
pub fn bridges_of_ports() -> io::Result<BTreeMap<u32, u32>> {
    let mut ports = BTreeMap::new();
    for (_, link) in Netlink::open()?.dump(GET_LINK, &[0; LINK_LEN])? {
        let info = attribute(&link, LINK_LEN, LINK_INFO);
        let kind = info.and_then(|info| attribute(info, 0, SLAVE_KIND));
        if kind.is_some_and(|kind| KINDS.contains(&&*text(kind)))
            && let Some(master) = attribute(&link, LINK_LEN, MASTER)
        {
            ports.insert(u32_at(&link, 4)?, u32_at(master, 0)?);
        }
    }
    Ok(ports)
}
