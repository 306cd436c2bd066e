//! The checks before a recording changes anything: run by `--check`, and first at each start, so
//! that a failed start leaves nothing behind.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{Access, access};
use strata_capture::live::{ANY, Device, Exclusive};
use strata_capture::{Input, InputOptions};
use strata_control::api::TcpEndpoint;
use strata_role::{RoleError, require, require_valid};
use strata_sandbox::User;
use strata_send::Mirror;
use strata_store::{Log, MANIFEST_NAME};

use crate::beside::eve::is_named_socket;
use crate::error::{At as _, Result};
use crate::notice::RecordNotice;
use crate::setup::Setup;
use crate::setup::log_dir::refuse_foreign;
use crate::spec::{DestinationSpec, InputSpec, InterfaceSpec, RecordSpec};
use crate::{live, setup::cpus};

/// The purpose of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A start follows.
    Start,
    /// Only the result is wanted.
    CheckOnly,
}

/// Whether a recording into the same log is running. Its own addresses are in use then, and the
/// check may be for its reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Running {
    No,
    Yes,
}

/// Checks everything that a start needs and that can be checked without side effects. Does not
/// contact a relay.
///
/// A running recording into the same log, which uses the addresses, is not an error here: the check
/// may be for its reload. A start finds the log locked.
pub(crate) fn check(setup: &Setup, purpose: Purpose) -> Result<()> {
    let spec = &setup.spec;
    let running = match &spec.destination {
        DestinationSpec::Log(log) => output(&log.dir)?,
        DestinationSpec::Relay(_) | DestinationSpec::Nowhere => Running::No,
    };
    if running == Running::Yes && purpose == Purpose::CheckOnly {
        (setup.tell)(&RecordNotice::LogInUse(spec.destination.name()).into());
    }
    match &spec.input {
        InputSpec::Interfaces(spec) => interfaces(setup, spec)?,
        InputSpec::Files(paths) => paths.iter().try_for_each(file)?,
    }
    setup.triggers(1)?;
    if let Some(name) = &spec.mirror_to {
        Mirror::open(name).at("--mirror-to")?;
    }
    for path in &spec.triggers.eve {
        eve(path).at_with(|| format!("--eve {}", path.display()))?;
    }
    let addresses = &setup.addresses;
    if let Some(path) = &addresses.socket {
        socket(path, running).at(path.display())?;
    }
    if let Some(tcp) = &addresses.tcp {
        listen(tcp, running)?;
    }
    if let Some(webhook) = &addresses.webhook {
        webhook.check().at("alerts.webhook")?;
    }
    Ok(())
}

/// Checks the directory of the log. This comes before its files are read, since what is wrong with
/// it is the reason why they cannot be.
pub(crate) fn directory(spec: &RecordSpec) -> Result<()> {
    spec.destination
        .dir()
        .map_or(Ok(()), |dir| output(dir).map(drop))
}

fn interfaces(setup: &Setup, spec: &InterfaceSpec) -> Result<()> {
    let workers = spec.workers()?;
    setup.spec.destination.check_limit(workers)?;
    live::options(setup, spec)?.check()?;
    for &core in spec.cores.iter().flatten() {
        // In a thread of its own, which ends with it.
        let pinned = thread::scope(|scope| scope.spawn(|| cpus::pin(core)).join());
        let online = || fs::read_to_string("/sys/devices/system/cpu/online");
        require(pinned.is_ok_and(|pinned| pinned.is_ok()), || {
            match online() {
                Ok(online) => format!(
                    "--cores: CPU {core} cannot be used; online on this machine: {}",
                    online.trim()
                ),
                Err(_) => format!("--cores: CPU {core} cannot be used"),
            }
        })?;
    }
    let mut known = HashSet::new();
    for name in &spec.capture.interfaces {
        let device = Device::named(name)?;
        let others = spec.capture.interfaces.len() > 1;
        let is_new = known.insert(device.index) && !(others && name == ANY);
        require_valid(is_new, || {
            format!(
                "-i {name}: this interface is named twice, and each packet would be recorded twice"
            )
        })?;
        let problem = match spec.capture.exclusive {
            Exclusive::Yes | Exclusive::Native => device.offers().xdp_problem,
            Exclusive::Auto | Exclusive::No if known.len() == 1 => device.offers().packet_problem,
            // They are up, and whether they may be captured is the same for all.
            Exclusive::Auto | Exclusive::No => None,
        };
        if let Some(problem) = problem {
            return Err(RoleError::Refused(format!("{name}: {problem}")).into());
        }
    }
    if let Some(user) = spec.sandbox.as_ref().and_then(|s| s.user.as_deref()) {
        User::named(user).at("-Z")?;
    }
    Ok(())
}

/// Whether a capture file is readable. Only regular files are opened: a pipe has one reader.
fn file(path: &PathBuf) -> Result<()> {
    let is_stdin = path.as_os_str() == "-";
    if is_stdin || fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Ok(());
    }
    let mut options = InputOptions::default();
    options.read_ahead = false;
    Input::open(std::slice::from_ref(path), &options)?;
    Ok(())
}

/// Whether a log can be written in this directory, and whether one is being written.
fn output(dir: &Path) -> Result<Running> {
    refuse_foreign(dir)?;
    let cannot = || format!("{}: cannot create the log", dir.display());
    if !dir.exists() {
        may_make(dir).at_with(cannot)?;
        return Ok(Running::No);
    }
    require(dir.is_dir(), || {
        format!("{}: is not a directory", dir.display())
    })?;
    may_write(dir).at_with(cannot)?;
    if !dir.join(MANIFEST_NAME).exists() {
        return Ok(Running::No);
    }
    match Log::open(dir)?.is_being_written() {
        true => Ok(Running::Yes),
        false => Ok(Running::No),
    }
}

/// Whether a path may be created, with its parent directories.
fn may_make(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let above = path.ancestors().skip(1).find(|above| above.exists());
    may_write(above.unwrap_or(Path::new("/")))
}

/// Whether files may be created in a directory.
fn may_write(dir: &Path) -> io::Result<()> {
    if !dir.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    Ok(access(dir, Access::WRITE_OK | Access::EXEC_OK)?)
}

const NO_SOCKET: &str =
    "this file exists and is not a socket, so it is left unchanged: name another path";

fn refuse(problem: &str) -> strata_role::Result<()> {
    Err(RoleError::Refused(problem.to_owned()))
}

fn eve(path: &Path) -> strata_role::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            let is_free = UnixStream::connect(path).is_err();
            require(is_free, || {
                String::from("another program listens there: name another socket")
            })
        }
        Ok(found) if found.is_dir() => refuse("is a directory"),
        Ok(found) if found.is_file() => Ok(File::open(path).map(drop)?),
        Ok(_) => Ok(()),
        // A dangling link is no place for a socket either.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            require(is_named_socket(path), || {
                String::from(
                    "no such file: start Suricata first, or name a socket to create (one that ends \
                     in .sock or .socket)",
                )
            })?;
            require(!path.is_symlink(), || NO_SOCKET.to_owned())?;
            Ok(may_make(path)?)
        }
        Err(error) => Err(error.into()),
    }
}

fn socket(path: &Path, running: Running) -> strata_role::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            let is_free = UnixStream::connect(path).is_err();
            require(is_free || running == Running::Yes, || {
                String::from("another program listens there")
            })
        }
        Ok(_) => refuse(NO_SOCKET),
        Err(_) => Ok(may_make(path)?),
    }
}

fn listen(tcp: &TcpEndpoint, running: Running) -> Result<()> {
    match TcpListener::bind(&tcp.address) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && running == Running::Yes => Ok(()),
        bound => {
            let named = || format!("control.listen: {}: cannot listen", tcp.address);
            bound.map(drop).at_with(named)
        }
    }
}
