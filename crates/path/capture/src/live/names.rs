//! Interfaces by their other names and by number.

use std::io;

use strata_sys::interface as asked;
use strata_wire::exact;

use super::interface::ANY;
use super::netlink::{Netlink, attribute, malformed, text};

/// `struct ifinfomsg`.
const LINK_HEADER_LEN: usize = 16;

/// The names of interfaces that are given by name, by another name (`ip link property add dev eth0 altname uplink`)
/// or by number (`ip link`). A name comes before a number. What is none of these stays as it is, and cannot be
/// opened.
#[must_use]
pub fn interface_names(given: &[String]) -> Vec<String> {
    let named = |given: &String| name_of(given).unwrap_or_else(|| given.clone());
    given.iter().map(named).collect()
}

/// The name that an interface has now.
fn name_of(given: &str) -> Option<String> {
    if given == ANY {
        return None;
    }
    // The kernel finds short names among both kinds.
    if let Ok(index) = asked::index(given) {
        return asked::name(index).ok();
    }
    if let Ok(name) = name_behind(given) {
        return Some(name);
    }
    let index: u32 = given.parse().ok()?;
    asked::name(index).ok()
}

/// The name of the interface that has this other name, which may be longer than a name.
fn name_behind(other: &str) -> io::Result<String> {
    /// linux/rtnetlink.h, linux/if_link.h.
    const RTM_GETLINK: u16 = 18;
    const IFLA_IFNAME: u16 = 3;
    const IFLA_ALT_IFNAME: u16 = 53;
    /// With the closing NUL (`ALTIFNAMSIZ`).
    const LEN_MAX: usize = 128;
    if other.len() >= LEN_MAX {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let mut body = vec![0; LINK_HEADER_LEN];
    let value = [other.as_bytes(), &[0]].concat();
    body.extend(exact::<u16>(value.len().saturating_add(4)).to_ne_bytes());
    body.extend(IFLA_ALT_IFNAME.to_ne_bytes());
    body.extend(&value);
    body.resize(body.len().next_multiple_of(4), 0);
    let link = Netlink::open()?.one(RTM_GETLINK, &body)?;
    let name = attribute(&link, LINK_HEADER_LEN, IFLA_IFNAME).ok_or_else(malformed)?;
    Ok(text(name))
}
