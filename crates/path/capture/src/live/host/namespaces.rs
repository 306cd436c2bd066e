//! Network namespaces: which one is at the other end of an interface (of a veth, that of a container), and
//! capturing in another one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use strata_sys::interface as asked;

use super::netlink::{Netlink, attribute, malformed, u32_at};

/// Where tools give namespaces names: `ip netns`, and Docker.
const NAMED: [&str; 2] = ["/run/netns", "/run/docker/netns"];
/// Names that are looked at in each.
const NAMES_MAX: usize = 4096;

/// `RTM_GETLINK`, `RTM_GETNSID` (linux/rtnetlink.h).
const GET_LINK: u16 = 18;
const GET_NAMESPACE: u16 = 90;
/// `IFLA_LINK_NETNSID` (linux/if_link.h).
const LINK_NAMESPACE: u16 = 37;
/// `NETNSA_NSID`, `NETNSA_FD` (linux/net_namespace.h).
const ID: u16 = 1;
const DESCRIPTOR: u16 = 3;
/// `struct ifinfomsg`, and `struct rtgenmsg` with what pads it.
const LINK_LEN: usize = 16;
const GENERAL_LEN: usize = 4;

/// Names of the network namespaces at the other end of this one's interfaces, by the index of these. Those
/// without a name are left out.
///
/// # Errors
///
/// If the kernel refuses to list interfaces.
pub fn namespaces_behind() -> io::Result<BTreeMap<u32, String>> {
    let mut netlink = Netlink::open()?;
    let mut ids = BTreeMap::new();
    for (_, link) in netlink.dump(GET_LINK, &[0; LINK_LEN])? {
        if let Some(id) = attribute(&link, LINK_LEN, LINK_NAMESPACE) {
            ids.insert(u32_at(&link, 4)?, u32_at(id, 0)?);
        }
    }
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let names = names(&mut netlink);
    let named = |(index, id)| Some((index, names.get(&id)?.clone()));
    Ok(ids.into_iter().filter_map(named).collect())
}

/// Moves this thread, and the threads that it starts from then on, into a network namespace: one with this
/// name, as `ip netns` and Docker give them, or that of the process with this number, or the one at this path.
///
/// # Errors
///
/// If there is none, or this is not permitted (`CAP_SYS_ADMIN`), or Linux is older than 5.2; with the path.
pub fn enter_namespace(which: &str) -> Result<(), (PathBuf, io::Error)> {
    let path = path_of(which);
    let entered = File::open(&path).and_then(|file| asked::enter_namespace(file.as_fd()));
    entered.map_err(|error| (path, error))
}

/// Where a namespace is.
fn path_of(which: &str) -> PathBuf {
    if which.contains('/') {
        return which.into();
    }
    let named = NAMED.iter().map(|dir| Path::new(dir).join(which));
    let mut named = named.filter(|path| path.exists());
    let of_process = || match which.parse::<u32>() {
        Ok(pid) => PathBuf::from(format!("/proc/{pid}/ns/net")),
        // Its error names where it was expected.
        Err(_) => Path::new(NAMED[0]).join(which),
    };
    named.next().unwrap_or_else(of_process)
}

/// Names of namespaces, by the number that this one has for them.
fn names(netlink: &mut Netlink) -> BTreeMap<u32, String> {
    let mut names = BTreeMap::new();
    for dir in NAMED {
        let entries = fs::read_dir(dir).into_iter().flatten().take(NAMES_MAX);
        for entry in entries.flatten() {
            // One that is gone meanwhile, or none, has no number.
            if let Ok(Some(id)) = number(netlink, &entry.path()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                names.entry(id).or_insert(name);
            }
        }
    }
    names
}

fn number(netlink: &mut Netlink, path: &Path) -> io::Result<Option<u32>> {
    let file = File::open(path)?;
    let mut body = vec![0; GENERAL_LEN];
    body.extend(8_u16.to_ne_bytes());
    body.extend(DESCRIPTOR.to_ne_bytes());
    body.extend(file.as_raw_fd().to_ne_bytes());
    let answer = netlink.one(GET_NAMESPACE, &body)?;
    let id = attribute(&answer, GENERAL_LEN, ID).ok_or_else(malformed)?;
    // -1: none of this one's interfaces leads there.
    Ok(Some(u32_at(id, 0)?).filter(|id| id.cast_signed() >= 0))
}
