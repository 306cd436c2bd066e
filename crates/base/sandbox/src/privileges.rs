//! User and capabilities.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{Gid, Resource, Rlimit, Uid, geteuid, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_gid, set_thread_groups, set_thread_uid,
};

/// Why privileges cannot be dropped.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// There is no such user.
    #[error("there is no user '{0}'")]
    NoSuchUser(String),
    /// There is no such group.
    #[error("there is no group '{0}'")]
    NoSuchGroup(String),
    /// The kernel refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

fn fail<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> PrivilegeError {
    move |error| PrivilegeError::System {
        what,
        source: error.into(),
    }
}

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// The user of this name.
    ///
    /// # Errors
    /// If there is no such name.
    pub fn named(name: &str) -> Result<Self, PrivilegeError> {
        let found = nix::unistd::User::from_name(name);
        let found = found.map_err(fail("look up users"))?;
        let user = found.ok_or_else(|| PrivilegeError::NoSuchUser(name.to_owned()))?;
        Ok(Self {
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
        })
    }

    /// Its user ID.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.uid
    }

    pub(crate) fn uid(&self) -> Uid {
        Uid::from_raw(self.uid)
    }

    pub(crate) fn gid(&self) -> Gid {
        Gid::from_raw(self.gid)
    }
}

/// A group of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    gid: u32,
}

impl Group {
    /// The group of this name.
    ///
    /// # Errors
    /// If there is no such name.
    pub fn named(name: &str) -> Result<Self, PrivilegeError> {
        let found = nix::unistd::Group::from_name(name);
        let found = found.map_err(fail("look up groups"))?;
        let group = found.ok_or_else(|| PrivilegeError::NoSuchGroup(name.to_owned()))?;
        Ok(Self {
            gid: group.gid.as_raw(),
        })
    }

    pub(crate) fn gid(&self) -> Gid {
        Gid::from_raw(self.gid)
    }
}

/// What is needed to write to a directory of somebody else.
const OF_OTHERS: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH);

/// Changes to `user`, if given, and drops all capabilities of this thread, and those it starts,
/// except `keep`. If the process stays the same user and may write to one of `dirs` only by a
/// capability, it keeps that one.
///
/// Lifts the limit on locked memory, if permitted: memory registered with the kernel counts
/// as locked.
///
/// # Errors
///
/// The kernel's refusal.
pub fn give_up_capabilities(
    user: Option<&User>,
    keep: CapabilitySet,
    dirs: &[&Path],
) -> Result<(), PrivilegeError> {
    lift_limits();
    let mut keep = keep;
    if user.is_none() && dirs.iter().any(|dir| !is_ours(dir)) {
        keep |= OF_OTHERS;
    }
    let had = capabilities(None).map_err(fail("read capabilities"))?;
    let keep = keep & had.permitted;
    // The ambient and bounding sets are useless without the right to execute other programs.
    let _ = clear_ambient_capability_set();
    for capability in CapabilitySet::all().iter() {
        let _ = remove_capability_from_bounding_set(capability);
    }
    if let Some(user) = user {
        become_user(user)?;
    }
    let sets = CapabilitySets {
        effective: keep,
        permitted: keep,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).map_err(fail("drop capabilities"))?;
    set_no_new_privs(true).map_err(fail("set no_new_privs"))
}

fn lift_limits() {
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    // The limit stays if raising it is not permitted.
    let _ = setrlimit(Resource::Memlock, unlimited);
}

fn become_user(user: &User) -> Result<(), PrivilegeError> {
    set_keep_capabilities(true).map_err(fail("keep capabilities"))?;
    let gid = Gid::from_raw(user.gid);
    set_thread_groups(&[gid]).map_err(fail("change groups"))?;
    set_thread_gid(gid).map_err(fail("change the group"))?;
    set_thread_uid(Uid::from_raw(user.uid)).map_err(fail("change the user"))?;
    set_keep_capabilities(false).map_err(fail("keep capabilities"))
}

/// Drops the capabilities of this thread, and those it starts, but lets programs that it executes have
/// `keep`: this thread cannot use them as it is. If it may write to `dir` only by a capability, it
/// keeps that one for itself too.
///
/// # Errors
///
/// The kernel's refusal.
pub fn keep_for_programs(keep: CapabilitySet, dir: &Path) -> Result<(), PrivilegeError> {
    lift_limits();
    let had = capabilities(None).map_err(fail("read capabilities"))?;
    let own = match is_ours(dir) {
        true => CapabilitySet::empty(),
        false => OF_OTHERS & had.permitted,
    };
    let keep = (keep | own) & had.permitted;
    for capability in (CapabilitySet::all() - keep).iter() {
        // Without the right to, the set stays: no_new_privs holds all the same.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let sets = CapabilitySets {
        effective: own,
        permitted: keep,
        // Those that a service manager has made ambient stay so.
        inheritable: had.inheritable & keep,
    };
    set_capabilities(None, sets).map_err(fail("drop capabilities"))?;
    set_no_new_privs(true).map_err(fail("set no_new_privs"))
}

/// Whether files can be made in a directory without any capability.
fn is_ours(dir: &Path) -> bool {
    const OTHERS_WRITE: u32 = 0o002;
    fs::metadata(dir).is_ok_and(|metadata| {
        metadata.uid() == geteuid().as_raw() || metadata.mode() & OTHERS_WRITE != 0
    })
}
