//! Unix sockets with a path in the file system.
//!
//! A socket is made in a directory that only we can access, gets its owner and mode there, and is
//! then moved to its name. So no client connects before it is finished, nothing but a socket is
//! ever replaced, and no one can put something else in its place.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Stat, chmodat, chownat, fstat, mkdirat,
    openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::geteuid;

use crate::owner::{Owner, OwnerError, make_dir, open_dir};

/// Connections waiting to be accepted.
const BACKLOG: i32 = 128;
/// Who may connect: the owner, and the group if one is named.
const MODE: Mode = Mode::from_raw_mode(0o600);
const GROUP_MODE: Mode = Mode::from_raw_mode(0o660);
/// The name of a socket that has a directory of its own.
pub const SOCKET_NAME: &str = "control.sock";
/// Left-over directories checked when a socket is made.
const LEFT_OVER_MAX: usize = 1024;
/// An empty socket directory older than this is left over.
const OLD_SECONDS: i64 = 60;

/// The directory for sockets of this user's programs, as systemd has it: the user's or the
/// system's.
#[must_use]
pub fn runtime_dir() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !geteuid().is_root() => PathBuf::from(dir).join("strata"),
        _ => PathBuf::from("/run/strata"),
    }
}

/// Why the socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Something else has that name.
    #[error(
        "{}: this file exists and is not a socket, so it is left unchanged: name another path for the socket", .0.display()
    )]
    NotASocket(PathBuf),
    /// The socket is in use.
    #[error("{}: another program listens there: name another socket", .0.display())]
    InUse(PathBuf),
    /// The kernel refused.
    #[error("{}: cannot {what}: {source}", path.display())]
    System {
        /// The socket.
        path: PathBuf,
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// Its directory cannot be made, or cannot be given to its owner.
    #[error(transparent)]
    Owner(#[from] OwnerError),
}

/// A listening socket. Dropping it removes the socket, if its directory permits that.
#[derive(Debug)]
pub struct SocketFile {
    listener: UnixListener,
    path: PathBuf,
    dir: OwnedFd,
    name: OsString,
    /// Device and inode, to tell it from a replacement.
    id: (u64, u64),
    /// The directory made for this socket, if any: the directory around it, and its name.
    own_dir: Option<(OwnedFd, OsString)>,
}

impl SocketFile {
    /// Listens at `path`. Its directory is made if missing, and otherwise stays as it is; the
    /// socket belongs to `owner`. A socket without a listener is left from a program that was
    /// killed, and is replaced.
    ///
    /// # Errors
    ///
    /// If anything else has that name.
    pub fn bind(path: &Path, owner: &Owner) -> Result<Self, SocketError> {
        let system = |what| failed(path, what);
        let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let parent = parent.unwrap_or_else(|| Path::new("."));
        let made = make_dir(parent, owner)?;
        let dir = open_dir(parent).map_err(system("open its directory"))?;
        let name = path.file_name().ok_or(Errno::ISDIR);
        let name = name.map_err(system("make a socket of that name"))?;
        let above = || {
            let above = parent.parent().filter(|dir| !dir.as_os_str().is_empty())?;
            let above = open_dir(above).ok()?;
            Some((above, parent.file_name()?.to_owned()))
        };
        let (listener, id) = bind_in(&dir, name, path, owner)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            dir,
            name: name.to_owned(),
            id,
            own_dir: made.then(above).flatten(),
        })
    }

    /// Listens in a directory of its own below `base`, which is made if missing and belongs to the
    /// user who runs the program. Sockets left there by killed programs are removed.
    ///
    /// # Errors
    ///
    /// If the socket cannot be made.
    pub fn bind_in_own_dir(base: &Path, name: &str, owner: &Owner) -> Result<Self, SocketError> {
        std::fs::create_dir_all(base).map_err(failed_io(base, "create this directory"))?;
        let opened = open_dir(base).map_err(failed(base, "open it"))?;
        remove_left_over(&opened);
        let mut socket = Self::bind(&base.join(name).join(SOCKET_NAME), owner)?;
        socket.own_dir = Some((opened, name.into()));
        Ok(socket)
    }

    /// The listener; blocking.
    #[must_use]
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory that was made for it, which it removes when dropped, and the one around it.
    #[must_use]
    pub fn own_dirs(&self) -> Option<[PathBuf; 2]> {
        self.own_dir.as_ref()?;
        let dir = self.path.parent()?;
        Some([dir.to_owned(), dir.parent()?.to_owned()])
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| id(&found) == self.id) {
            // One that cannot be removed is replaced by the next program.
            let _ = unlinkat(&self.dir, &self.name, AtFlags::empty());
            if let Some((above, name)) = &self.own_dir {
                let _ = unlinkat(above, name, AtFlags::REMOVEDIR);
            }
        }
    }
}

fn failed<'a>(path: &'a Path, what: &'static str) -> impl Fn(Errno) -> SocketError + use<'a> {
    move |source| failed_io(path, what)(source.into())
}

fn failed_io<'a>(
    path: &'a Path,
    what: &'static str,
) -> impl Fn(io::Error) -> SocketError + use<'a> {
    move |source| SocketError::System {
        path: path.to_owned(),
        what,
        source,
    }
}

fn id(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

fn is_socket(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::Socket
}

/// The address of a name in an open directory: wherever its path leads by now, and however long it
/// is.
fn address(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}

fn unix_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Whether a socket has lost its listener. Never waits.
fn is_left_over(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<bool> {
    match connect(unix_socket()?, &address(dir, name)?) {
        Err(Errno::CONNREFUSED) => Ok(true),
        // One that does not accept at once, or is of another type, is in use.
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS | Errno::PROTOTYPE) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A directory in `dir` that only we can access. Removed when dropped.
struct Private<'a> {
    within: &'a OwnedFd,
    name: OsString,
    dir: OwnedFd,
}

impl<'a> Private<'a> {
    fn make(within: &'a OwnedFd) -> rustix::io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = OsString::from(format!(".strata-{}-{number}", std::process::id()));
            match mkdirat(within, &name, Mode::RWXU) {
                Err(Errno::EXIST) => {}
                made => {
                    made?;
                    let flags =
                        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let dir = openat(within, &name, flags, Mode::empty())?;
                    let found = fstat(&dir)?;
                    let ours = found.st_uid == geteuid().as_raw();
                    if !ours || found.st_mode & 0o077 != 0 {
                        return Err(Errno::PERM);
                    }
                    return Ok(Self { within, name, dir });
                }
            }
        }
    }
}

impl Drop for Private<'_> {
    fn drop(&mut self) {
        let _ = unlinkat(&self.dir, SOCKET_NAME, AtFlags::empty());
        let _ = unlinkat(self.within, &self.name, AtFlags::REMOVEDIR);
    }
}

/// Listens at a name in `dir`; `path` is for messages.
fn bind_in(
    dir: &OwnedFd,
    name: &OsStr,
    path: &Path,
    owner: &Owner,
) -> Result<(UnixListener, (u64, u64)), SocketError> {
    let system = |what| failed(path, what);
    let made = OsStr::new(SOCKET_NAME);
    let private = Private::make(dir).map_err(system("make a socket there"))?;
    let listener = unix_socket().map_err(system("make a socket"))?;
    let at = address(&private.dir, made).map_err(system("make a socket"))?;
    bind(&listener, &at).map_err(system("make a socket"))?;
    let (uid, gid) = owner.ids();
    let none = AtFlags::empty();
    if uid.is_some() || gid.is_some() {
        chownat(&private.dir, made, uid, gid, none).map_err(system("change its owner"))?;
    }
    let mode = match owner.group {
        Some(_) => GROUP_MODE,
        None => MODE,
    };
    chmodat(&private.dir, made, mode, none).map_err(system("set who may connect"))?;
    listen(&listener, BACKLOG).map_err(system("listen"))?;
    let ours = statat(&private.dir, made, AtFlags::SYMLINK_NOFOLLOW);
    let id = id(&ours.map_err(system("look at it"))?);
    place(&private, dir, name, path)?;
    let listener = UnixListener::from(listener);
    let blocking = listener.set_nonblocking(false);
    blocking.map_err(failed_io(path, "listen"))?;
    Ok((listener, id))
}

/// Moves the socket to its name, where there is nothing or a socket without a listener.
fn place(
    private: &Private<'_>,
    dir: &OwnedFd,
    name: &OsStr,
    path: &Path,
) -> Result<(), SocketError> {
    let system = |what| failed(path, what);
    let moved = |flags| renameat_with(private.dir.as_fd(), SOCKET_NAME, dir.as_fd(), name, flags);
    match moved(RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => {}
        done => return done.map_err(system("move it to its name")),
    }
    let look = |dir: &OwnedFd, name: &OsStr| statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    let there = look(dir, name).map_err(system("look at the existing file"))?;
    if !is_socket(&there) {
        return Err(SocketError::NotASocket(path.to_owned()));
    }
    if !is_left_over(dir, name).map_err(system("see whether a program listens there"))? {
        return Err(SocketError::InUse(path.to_owned()));
    }
    moved(RenameFlags::EXCHANGE).map_err(system("replace the existing socket"))?;
    // What came out must be what was checked, or it goes back.
    let out = look(&private.dir, OsStr::new(SOCKET_NAME));
    if out.is_ok_and(|out| id(&out) == id(&there)) {
        return Ok(());
    }
    moved(RenameFlags::EXCHANGE).map_err(system("put back the existing file"))?;
    Err(SocketError::InUse(path.to_owned()))
}

/// Whether nothing has changed in a directory for a while.
fn is_old(dir: &Stat) -> bool {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec.saturating_sub(dir.st_mtime) > OLD_SECONDS
}

/// Removes directories with a socket without a listener, and empty ones.
fn remove_left_over(base: &OwnedFd) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(listed) = openat(base, ".", flags, Mode::empty()).and_then(Dir::new) else {
        return;
    };
    for entry in listed.flatten().take(LEFT_OVER_MAX) {
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let text = name.to_string_lossy();
        let is_of_ours = ["record-", "relay-", "collector-"];
        if !is_of_ours.iter().any(|kind| text.starts_with(kind)) {
            continue;
        }
        let flags = flags | OFlags::NOFOLLOW;
        let Ok(dir) = openat(base, name, flags, Mode::empty()) else {
            continue;
        };
        let socket = OsStr::new(SOCKET_NAME);
        let is_left = match statat(&dir, socket, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => is_socket(&found) && is_left_over(&dir, socket).unwrap_or(false),
            // Its user could not remove the directory. A new one is about to get its socket.
            Err(_) => fstat(&dir).is_ok_and(|dir| is_old(&dir)),
        };
        if is_left {
            let _ = unlinkat(&dir, socket, AtFlags::empty());
            // Fails if there is more in it.
            let _ = unlinkat(base, name, AtFlags::REMOVEDIR);
        }
    }
}
