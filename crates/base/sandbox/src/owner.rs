//! Who owns the files and directories that Strata makes.
//!
//! Ownership is changed through descriptors only, no link is followed, and only what Strata made
//! itself changes owner: a path can be replaced between checking and using it, a descriptor cannot.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, fchmod, fchown, fstat, mkdirat, open, openat,
    statat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};

use crate::privileges::{Group, User};

/// Directories of a log and of sockets: the owner writes, the group reads.
const DIR_MODE: Mode = Mode::from_raw_mode(0o750);
/// The same with a group of its own, inherited by everything made below.
const GROUP_DIR_MODE: Mode = Mode::from_raw_mode(0o2750);
const GROUP_FILE_MODE: Mode = Mode::from_raw_mode(0o640);
/// Group and others must not have been able to write to what changes owner.
const OTHERS_WRITE: u32 = 0o022;
/// Maximum depth of a log's directories (`packets/hour=.../retention=...`).
const DEPTH_MAX: usize = 4;

/// Who is to own what is made; by default the user who runs the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Another user.
    pub user: Option<User>,
    /// Another group, whose members may read.
    pub group: Option<Group>,
}

/// Why ownership cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The kernel refused.
    #[error("{}: cannot {what}: {source}", path.display())]
    System {
        /// The file or directory.
        path: PathBuf,
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The existing directory was made by somebody else.
    #[error(
        "{}: Strata did not create this directory, so its group does not change: run `chgrp \
         GROUP` and `chmod \
         g+s` on it first, or name a directory that does not exist yet", .0.display()
    )]
    NotOurs(PathBuf),
    /// The last part of the path is a link.
    #[error(
        "{}: this is a link or not a directory, and its target may belong to another user: name \
         the log's directory itself", .0.display()
    )]
    Link(PathBuf),
    /// Others can write to a directory of secrets.
    #[error(
        "{}: other users can write to this directory (mode {mode:04o}) and replace the keys in \
         it: run `chmod go-w {}`, and replace the keys if this may have happened",
         path.display(), path.display()
    )]
    Open {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A directory of secrets is another user's.
    #[error(
        "{}: this directory belongs to uid {uid}, who can replace the keys in it, but this \
         command runs as uid {own}: `chown` it, or name another directory", path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        uid: u32,
        /// Who uses it.
        own: u32,
    },
    /// The kernel does not let new files inherit the directory's group.
    #[error(
        "{}: cannot make new files inherit the group ({source}): in a systemd unit, use Group= \
         instead, or RestrictSUIDSGID=no", path.display()
    )]
    Inherit {
        /// The directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl Owner {
    fn uid(&self) -> Option<Uid> {
        self.user.as_ref().map(User::uid)
    }

    fn gid(&self) -> Option<Gid> {
        let users = self.user.as_ref().map(User::gid);
        self.group.as_ref().map(Group::gid).or(users)
    }

    pub(crate) fn ids(&self) -> (Option<Uid>, Option<Gid>) {
        (self.uid(), self.gid())
    }

    /// Whether a directory already has this owner.
    fn has(&self, dir: &Stat) -> bool {
        let user = self.uid().is_none_or(|uid| uid.as_raw() == dir.st_uid);
        let inherits = dir.st_mode & Mode::SGID.as_raw_mode() != 0;
        let group = self.group.as_ref();
        user && group.is_none_or(|group| group.gid().as_raw() == dir.st_gid && inherits)
    }

    /// Gives an open file or directory, which Strata has just made, to the owner. `path` is for messages.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn take(&self, fd: impl AsFd, is_dir: bool, path: &Path) -> Result<(), OwnerError> {
        let failed = |what| {
            move |source: Errno| OwnerError::System {
                path: path.to_owned(),
                what,
                source: source.into(),
            }
        };
        if *self == Self::default() {
            return Ok(());
        }
        fchown(&fd, self.uid(), self.gid()).map_err(failed("change its owner"))?;
        match (&self.group, is_dir) {
            (None, _) => Ok(()),
            (Some(_), true) => fchmod(&fd, GROUP_DIR_MODE).map_err(|source| OwnerError::Inherit {
                path: path.to_owned(),
                source: source.into(),
            }),
            (Some(_), false) => fchmod(&fd, GROUP_FILE_MODE).map_err(failed("let its group read")),
        }
    }
}

fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    parent.unwrap_or_else(|| Path::new("."))
}

fn system(path: &Path, what: &'static str) -> impl Fn(Errno) -> OwnerError {
    let path = path.to_owned();
    move |source| OwnerError::System {
        path: path.clone(),
        what,
        source: source.into(),
    }
}

/// A directory, to address its entries.
pub(crate) fn open_dir(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

/// Makes a directory and its missing parents, and gives them to `owner`; an existing one stays as
/// it is. Returns whether it was missing.
///
/// # Errors
///
/// The kernel's error.
pub fn make_dir(path: &Path, owner: &Owner) -> Result<bool, OwnerError> {
    let failed = system(path, "create this directory");
    match open_dir(path) {
        Ok(_) => return Ok(false),
        Err(Errno::NOENT) => {}
        Err(error) => return Err(failed(error)),
    }
    let Some(name) = path.file_name() else {
        return Err(failed(Errno::NOENT));
    };
    make_dir(parent(path), owner)?;
    let above = open_dir(parent(path)).map_err(&failed)?;
    match mkdirat(&above, name, DIR_MODE) {
        Err(Errno::EXIST) => return Ok(false),
        made => made.map_err(&failed)?,
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(&above, name, flags, Mode::empty()).map_err(&failed)?;
    // In a directory that others may write to, it could have been replaced by now.
    if fstat(&dir).map_err(&failed)?.st_uid != geteuid().as_raw() {
        return Err(failed(Errno::PERM));
    }
    owner.take(&dir, true, path)?;
    Ok(true)
}

/// Makes a directory for keys and certificates, or takes one that no other user can write to: such a
/// user could replace even private files.
///
/// # Errors
///
/// If it is another user's, or group or others can write to it; and the kernel's.
pub fn make_secret_dir(path: &Path) -> Result<(), OwnerError> {
    make_dir(path, &Owner::default())?;
    let failed = system(path, "look at this directory");
    let dir = open_dir(path).map_err(&failed)?;
    let found = fstat(&dir).map_err(&failed)?;
    let own = geteuid().as_raw();
    if found.st_uid != own {
        return Err(OwnerError::Foreign {
            path: path.to_owned(),
            uid: found.st_uid,
            own,
        });
    }
    match found.st_mode & OTHERS_WRITE {
        0 => Ok(()),
        _ => Err(OwnerError::Open {
            path: path.to_owned(),
            mode: found.st_mode & 0o7777,
        }),
    }
}

/// Makes the directory of a log for `owner`, or gives it one in which Strata has already recorded:
/// `entries` are the names that Strata makes in a log, `manifest` the file that identifies a log.
/// What others may have put there keeps its owner.
///
/// # Errors
///
/// If the kernel refuses, or if a directory that is not ours is to get a group.
pub fn make_log_dir(
    path: &Path,
    manifest: &str,
    entries: &[&str],
    owner: &Owner,
) -> Result<(), OwnerError> {
    if make_dir(path, owner)? || *owner == Owner::default() {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match open(path, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOTDIR) => return Err(OwnerError::Link(path.to_owned())),
        opened => opened.map_err(system(path, "open this directory"))?,
    };
    let found = fstat(&dir).map_err(system(path, "look at this directory"))?;
    if owner.has(&found) {
        return Ok(());
    }
    let is_log = statat(&dir, manifest, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile);
    if !is_log || !is_ours_alone(&found) {
        return match &owner.group {
            Some(_) => Err(OwnerError::NotOurs(path.to_owned())),
            // The user may have access already; if not, the first write says so.
            None => Ok(()),
        };
    }
    for name in entries {
        take_entry(&dir, name.as_ref(), owner, &path.join(name), DEPTH_MAX)?;
    }
    // Last: from here on the new owner may put anything into it.
    owner.take(&dir, true, path)
}

/// Whether only the user who runs the program can have put anything there.
fn is_ours_alone(found: &Stat) -> bool {
    found.st_uid == geteuid().as_raw() && found.st_mode & OTHERS_WRITE == 0
}

/// Gives a directory entry, with everything below it, to `owner`. Links, files with other names
/// elsewhere, and what belongs to somebody else stay as they are.
fn take_entry(
    dir: &OwnedFd,
    name: &OsStr,
    owner: &Owner,
    path: &Path,
    depth: usize,
) -> Result<(), OwnerError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(dir, name, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(()),
        opened => opened.map_err(system(path, "open it"))?,
    };
    let found = fstat(&file).map_err(system(path, "look at it"))?;
    if !is_ours_alone(&found) {
        return Ok(());
    }
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile if found.st_nlink == 1 => owner.take(&file, false, path),
        FileType::Directory if depth > 0 => {
            let failed = system(path, "list it");
            for entry in Dir::read_from(&file).map_err(&failed)? {
                let entry = entry.map_err(&failed)?;
                let name = entry.file_name().to_bytes();
                if name != b"." && name != b".." {
                    let name = OsStr::from_bytes(name);
                    take_entry(&file, name, owner, &path.join(name), depth - 1)?;
                }
            }
            owner.take(&file, true, path)
        }
        _ => Ok(()),
    }
}
