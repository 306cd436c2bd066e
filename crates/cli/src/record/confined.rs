//! Gives up what a recording from interfaces does not need once it has opened them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::thread::CapabilitySet;
use strata_capture::live::SocketOpener;
use strata_confine::{Helper, Owner, User, confine_files, give_up_capabilities, serve};

use super::target::log_directory;

/// Arguments of the process that opens packet sockets.
#[derive(Debug, clap::Args)]
pub(crate) struct HelperArgs {
    /// Change to this user.
    #[arg(long)]
    user: Option<String>,
}

/// Opens packet sockets for another process until that is gone.
pub(crate) fn helper(args: &HelperArgs) -> Result<()> {
    let user = args.user.as_deref().map(User::named).transpose()?;
    Ok(serve(user.as_ref())?)
}

/// Starts the helper, and gives what opens packet sockets through it.
pub(super) fn opener(user: Option<&str>) -> Result<SocketOpener> {
    let mut arguments = vec!["helper"];
    if let Some(user) = user {
        arguments.extend(["--user", user]);
    }
    let helper =
        Helper::start(&arguments).context("cannot start the process that opens sockets")?;
    let helper = Arc::new(helper);
    Ok(SocketOpener::new(move |cooked| {
        helper.packet_socket(cooked)
    }))
}

/// What a recording still reaches.
pub(super) struct Reach<'a> {
    /// The log's directory.
    pub(super) log: &'a Path,
    /// The directory that was made for the socket of the API, and the one around it.
    pub(super) socket_dirs: Option<[PathBuf; 2]>,
    /// Files that are read again: configuration, policies.
    pub(super) files: Vec<PathBuf>,
}

/// Makes the log for its owner, changes to that, gives up all capabilities, and reaches only what it has to. To be done
/// before threads are started.
pub(super) fn give_up(owner: &Owner, reach: &Reach<'_>) -> Result<()> {
    let dir = |path: &Path| {
        let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        parent.map_or_else(|| PathBuf::from("."), Path::to_path_buf)
    };
    let mut write = vec![reach.log.to_owned()];
    write.extend(reach.socket_dirs.iter().map(|[dir, _]| dir.clone()));
    log_directory(reach.log, owner)?;
    // Editors put another file in a file's place: its directory is what stays.
    let read: Vec<PathBuf> = reach.files.iter().map(|file| dir(file)).collect();
    let user = owner.user.as_ref();
    give_up_capabilities(user, CapabilitySet::empty(), Some(reach.log))?;
    if user.is_some() {
        let writes = Access::WRITE_OK | Access::EXEC_OK;
        let may = accessat(CWD, reach.log, writes, AtFlags::EACCESS);
        may.with_context(|| {
            format!(
                "{}: the user of -Z cannot write here: make it the owner (chown), or name a \
                 directory that does not exist yet",
                reach.log.display()
            )
        })?;
    }
    if let Err(error) = confine_files(&read, &write) {
        eprintln!("strata: goes on without confining files: {error}");
    }
    Ok(())
}

/// Says why a file cannot be read, where confinement is why.
pub(super) fn explain(error: anyhow::Error) -> anyhow::Error {
    let denied = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };
    if error.chain().any(denied) {
        return error.context(
            "a recording reaches only its log, its socket and the directories of the files it \
             was started with; start it anew with other files, or with --no-sandbox",
        );
    }
    error
}
