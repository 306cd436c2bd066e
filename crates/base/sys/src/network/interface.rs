//! What the kernel knows about network interfaces, by name.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change,
    move_mount, open_tree,
};
use rustix::net::SocketType;
use rustix::net::netdevice::name_to_index;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::memory::mapping::Mapping;
use crate::network::socket::{check, open};

/// Moves this thread, and the threads that it starts from then on, into a network namespace. In `/sys` they see
/// the interfaces of that namespace, by mounts that no other process sees.
///
/// # Errors
///
/// If it is no network namespace, or this is not permitted (`CAP_SYS_ADMIN`), or Linux is older than 5.2.
pub fn enter_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
    // SAFETY: threads share their file descriptors as before.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    // A sysfs has the interfaces of the namespace in which it was mounted, and nothing that is mounted within.
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let clone = clone | OpenTreeFlags::AT_RECURSIVE;
    let within = ["/sys/fs", "/sys/kernel"];
    let trees = within.map(|path| open_tree(CWD, path, clone));
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("sysfs", "/sys", "sysfs", flags, None)?;
    for (path, tree) in within.into_iter().zip(trees) {
        move_mount(
            tree?,
            "",
            CWD,
            path,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )?;
    }
    Ok(())
}

/// Asks the kernel about an interface by name; `request` is one of `SIOCGIF*`, and the answer is in
/// the union of `ifreq`.
fn ask(name: &str, request: libc::Ioctl) -> io::Result<libc::ifreq> {
    let socket = control_socket()?;
    let mut asked = ifreq(name)?;
    // SAFETY: every `SIOCGIF*` request reads and writes one `ifreq`.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut asked) };
    check(done).map(|()| asked)
}

/// A socket for requests about interfaces.
fn control_socket() -> io::Result<OwnedFd> {
    open(libc::AF_INET, SocketType::DGRAM)
}

fn ifreq(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeros is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte is reserved for the closing NUL.
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    Ok(request)
}

/// `IFF_*` flags.
///
/// # Errors
///
/// What the operating system says; `ENODEV` if there is no such interface, as everywhere here.
pub fn flags(name: &str) -> io::Result<u16> {
    let answer = ask(name, libc::SIOCGIFFLAGS)?;
    // SAFETY: SIOCGIFFLAGS fills this field; it is an integer.
    let flags = unsafe { answer.ifr_ifru.ifru_flags };
    Ok(u16::from_ne_bytes(flags.to_ne_bytes()))
}

/// The ARP hardware type, `ARPHRD_*`.
///
/// # Errors
///
/// What the operating system says.
pub fn hardware(name: &str) -> io::Result<u16> {
    let answer = ask(name, libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR fills this field; its family is an integer.
    Ok(unsafe { answer.ifr_ifru.ifru_hwaddr.sa_family })
}

/// The address of an Ethernet interface.
///
/// # Errors
///
/// What the operating system says.
pub fn ethernet_address(name: &str) -> io::Result<[u8; 6]> {
    let answer = ask(name, libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR fills this field; its data are bytes.
    let [a, b, c, d, e, f, ..] = unsafe { answer.ifr_ifru.ifru_hwaddr.sa_data };
    Ok([a, b, c, d, e, f].map(|byte| byte.to_ne_bytes()[0]))
}

/// The index.
///
/// # Errors
///
/// What the operating system says.
pub fn index(name: &str) -> io::Result<u32> {
    Ok(name_to_index(control_socket()?, name)?)
}

/// The name that the interface of an index has now; `ENODEV` if there is no such interface.
///
/// # Errors
///
/// What the operating system says.
pub fn name(index: u32) -> io::Result<String> {
    let socket = control_socket()?;
    // SAFETY: all zeros is a valid `ifreq`.
    let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
    asked.ifr_ifru.ifru_ifindex = c_int::try_from(index).map_err(io::Error::other)?;
    // SAFETY: SIOCGIFNAME reads and writes one `ifreq`.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFNAME, &raw mut asked) };
    check(done)?;
    let bytes = asked.ifr_name.map(|byte| byte.to_ne_bytes()[0]);
    let name = CStr::from_bytes_until_nul(&bytes).map_err(io::Error::other)?;
    Ok(name.to_string_lossy().into_owned())
}

/// Bytes of the largest packet, without the link-layer header.
///
/// # Errors
///
/// What the operating system says.
pub fn mtu(name: &str) -> io::Result<u32> {
    let answer = ask(name, libc::SIOCGIFMTU)?;
    // SAFETY: SIOCGIFMTU fills this field; it is an integer.
    let mtu = unsafe { answer.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(io::Error::other)
}

/// An ethtool request (linux/ethtool.h): `buffer` starts with the command, and
/// holds the answer afterwards.
///
/// # Errors
///
/// What the operating system says; `EFAULT` if the answer is longer than the buffer.
pub fn ethtool(name: &str, buffer: &mut [u8]) -> io::Result<()> {
    let socket = control_socket()?;
    let mut request = ifreq(name)?;
    // The kernel does not ask how long the buffer is: a page that it cannot write follows it.
    let page = rustix::param::page_size();
    let end = buffer.len().next_multiple_of(page);
    let mut memory = Mapping::anonymous(end + page)?;
    memory.forbid(end)?;
    let at = end - buffer.len();
    // SAFETY: our own memory, before the forbidden page.
    unsafe { memory.bytes_mut(at, buffer.len()) }.copy_from_slice(buffer);
    request.ifr_ifru.ifru_data = memory.start().as_ptr().wrapping_add(at).cast();
    // SAFETY: SIOCETHTOOL reads and writes memory from `ifr_data` on, as much as the command needs
    // and no further than the forbidden page, where it fails.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    check(done)?;
    // SAFETY: as above; the call has returned, and no other code knows about the memory.
    buffer.copy_from_slice(unsafe { memory.bytes(at, buffer.len()) });
    Ok(())
}

/// Makes a card stamp every received packet with the time of its own clock, unless it already does.
/// How it stamps sent packets is unchanged.
///
/// # Errors
///
/// What the operating system says.
pub fn stamp_all_received(name: &str) -> io::Result<()> {
    /// linux/sockios.h, linux/net_tstamp.h.
    const SIOCSHWTSTAMP: libc::Ioctl = 0x89b0;
    const SIOCGHWTSTAMP: libc::Ioctl = 0x89b1;
    const HWTSTAMP_FILTER_ALL: c_int = 1;
    let socket = control_socket()?;
    // `struct hwtstamp_config`: flags, what is sent, what is received.
    let mut config: [c_int; 3] = [0; 3];
    let ask = |number: libc::Ioctl, config: &mut [c_int; 3]| {
        let mut request = ifreq(name)?;
        request.ifr_ifru.ifru_data = config.as_mut_ptr().cast();
        // SAFETY: both read or write one `struct hwtstamp_config`, which `config` is.
        let done = unsafe { libc::ioctl(socket.as_raw_fd(), number, &raw mut request) };
        check(done)
    };
    if ask(SIOCGHWTSTAMP, &mut config).is_ok() && config[2] == HWTSTAMP_FILTER_ALL {
        return Ok(());
    }
    config[2] = HWTSTAMP_FILTER_ALL;
    ask(SIOCSHWTSTAMP, &mut config)
}

/// Names of all interfaces by index.
///
/// # Errors
///
/// What the operating system says.
pub fn names() -> io::Result<Vec<(u32, String)>> {
    // SAFETY: returns a list that is freed below, or null.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut names = Vec::new();
    let mut entry = list;
    loop {
        // SAFETY: the list ends with an entry of index 0, which we do not pass.
        let (index, name) = unsafe { ((*entry).if_index, (*entry).if_name) };
        if index == 0 || name.is_null() {
            break;
        }
        // SAFETY: a NUL-terminated string in the list.
        let text = unsafe { CStr::from_ptr(name) };
        names.push((index, text.to_string_lossy().into_owned()));
        entry = entry.wrapping_add(1);
    }
    // SAFETY: what if_nameindex returned, once.
    unsafe { libc::if_freenameindex(list) };
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interface_is_found_by_its_name() {
        let names = names().unwrap();
        assert!(names.iter().any(|(_, name)| name == "lo"));
        for (number, name) in names {
            assert_eq!(index(&name).unwrap(), number, "{name}");
            assert_eq!(super::name(number).unwrap(), name);
        }
        let none = name(0).unwrap_err();
        assert_eq!(none.raw_os_error(), Some(libc::ENODEV));
        assert_eq!(
            index("none-such").unwrap_err().raw_os_error(),
            Some(libc::ENODEV)
        );
        assert!(i32::from(flags("lo").unwrap()) & libc::IFF_LOOPBACK != 0);
        assert!(mtu("lo").unwrap() >= 1500 && hardware("lo").unwrap() == libc::ARPHRD_LOOPBACK);
    }

    #[test]
    fn an_answer_that_is_longer_than_the_buffer_is_an_error() {
        /// `ETHTOOL_GDRVINFO`, next to `ETHTOOL_GFEATURES`: its answer has 196 bytes.
        const DRIVER_INFO: u32 = 3;
        let ask = |len: usize| {
            let mut buffer = vec![0; len];
            buffer[..4].copy_from_slice(&DRIVER_INFO.to_ne_bytes());
            ethtool("lo", &mut buffer).map_err(|error| error.raw_os_error())
        };
        // Some kernels say nothing about the loopback interface, then there is no answer either.
        if ask(196).is_ok() {
            assert_eq!(ask(100), Err(Some(libc::EFAULT)));
        }
    }
}
