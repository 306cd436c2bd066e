//! What this host has at the start: cgroups, and sockets with their processes.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::net::{AddressFamily, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::{CapabilitySet, capabilities};

use crate::table::{Entry, Table, of_socket};

/// Directories of cgroups that are known by name.
const CGROUPS_MAX: usize = 65_536;

/// The tree of cgroups, version 2.
#[derive(Debug)]
pub(crate) struct Cgroups {
    mount: PathBuf,
    /// If it is not mounted.
    _tree: Option<OwnedFd>,
    paths: HashMap<u64, Box<str>>,
}

impl Cgroups {
    /// Those that there are now.
    pub(crate) fn now() -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let mount = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let at = words.next()?;
            (words.next()? == "cgroup2").then(|| PathBuf::from(at))
        });
        let (mount, tree) = match mount {
            Some(mount) => (mount, None),
            // `ip netns exec` hides it.
            None => {
                let tree = unmounted()?;
                let path = format!("/proc/self/fd/{}", tree.as_raw_fd());
                (PathBuf::from(path), Some(tree))
            }
        };
        let mut cgroups = Self {
            mount,
            _tree: tree,
            paths: HashMap::new(),
        };
        let mut open = vec![cgroups.mount.clone()];
        while let Some(dir) = open.pop() {
            if cgroups.paths.len() == CGROUPS_MAX {
                break;
            }
            // One that has gone meanwhile has no processes.
            let (Ok(found), Ok(entries)) = (fs::metadata(&dir), fs::read_dir(&dir)) else {
                continue;
            };
            let path = dir.strip_prefix(&cgroups.mount).unwrap_or(Path::new(""));
            let path = path.to_string_lossy().into_owned();
            cgroups.paths.insert(found.ino(), path.into());
            let dirs = entries
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            open.extend(dirs.map(|entry| entry.path()));
        }
        Ok(cgroups)
    }

    /// The root's directory.
    pub(crate) fn root(&self) -> io::Result<File> {
        File::open(&self.mount)
    }

    /// The path of a cgroup, without the `/` it begins with; its number, if it was made later.
    pub(crate) fn path(&self, number: u64) -> Box<str> {
        let known = self.paths.get(&number).cloned();
        known.unwrap_or_else(|| format!("#{number}").into())
    }

    /// The number of a process's cgroup.
    fn of_process(&self, process: &Path) -> io::Result<u64> {
        let text = fs::read_to_string(process.join("cgroup"))?;
        let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
        // Every process is in the tree.
        let path = path.ok_or(Errno::NOENT)?;
        Ok(fs::metadata(self.mount.join(path))?.ino())
    }
}

/// The tree, for this process alone.
fn unmounted() -> io::Result<OwnedFd> {
    let tree = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(tree.as_fd())?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    Ok(fsmount(tree.as_fd(), flags, MountAttrFlags::empty())?)
}

/// Adds the sockets that processes have now, in all network namespaces: of those of several processes, that with the
/// lowest number. Returns the number of processes whose sockets may not be looked at.
pub(crate) fn add_sockets(cgroups: &Cgroups, sockets: &Table) -> io::Result<u64> {
    let mut pids: Vec<u32> = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let mut refused = 0_u64;
    for pid in pids {
        match add_of_process(pid, cgroups, sockets) {
            Ok(()) => {}
            // It has ended meanwhile.
            Err(error) if has_gone(&error) => {}
            Err(_) => refused = refused.saturating_add(1),
        }
    }
    Ok(refused)
}

/// Whether this process may look at the sockets of all others (CAP_SYS_PTRACE). Without the right, `/proc` may not even
/// list them (its mount option hidepid), so the number of those refused is not enough to tell.
pub(crate) fn may_see_all() -> io::Result<bool> {
    let own = capabilities(None)?;
    Ok(own.effective.contains(CapabilitySet::SYS_PTRACE))
}

fn has_gone(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::SRCH].map(|errno| Some(errno.raw_os_error()));
    gone.contains(&error.raw_os_error())
}

fn add_of_process(pid: u32, cgroups: &Cgroups, sockets: &Table) -> io::Result<()> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let numbers = socket_numbers(&process)?;
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(raw) = raw.filter(|_| !numbers.is_empty()) else {
        return Ok(());
    };
    let mut name = [0; 16];
    let comm = fs::read(process.join("comm"))?;
    for (to, from) in name.iter_mut().zip(comm.trim_ascii_end().iter().take(15)) {
        *to = *from;
    }
    let entry = Entry {
        pid: pid.into(),
        name,
        cgroup: cgroups.of_process(&process)?,
    };
    let of = pidfd_open(raw, PidfdFlags::empty())?;
    for number in numbers {
        let socket = match pidfd_getfd(&of, number, PidfdGetfdFlags::empty()) {
            Ok(socket) => socket,
            // It was closed meanwhile.
            Err(Errno::BADF) => continue,
            Err(error) => return Err(error.into()),
        };
        let domain = sockopt::socket_domain(&socket)?;
        if [AddressFamily::INET, AddressFamily::INET6].contains(&domain) {
            let cookie = sockopt::socket_cookie(&socket)?;
            sockets.add(&of_socket(cookie), &entry);
        }
    }
    Ok(())
}

/// Descriptors of a process that are sockets.
fn socket_numbers(process: &Path) -> io::Result<Vec<i32>> {
    let mut numbers = Vec::new();
    for file in fs::read_dir(process.join("fd"))?.flatten() {
        let target = fs::read_link(file.path());
        let is_socket = target.is_ok_and(|target| target.to_string_lossy().starts_with("socket:"));
        if is_socket {
            numbers.extend(
                file.file_name()
                    .to_str()
                    .and_then(|name| name.parse::<i32>().ok()),
            );
        }
    }
    Ok(numbers)
}
