//! Gives up what a recording from interfaces does not need once it has opened them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::thread::CapabilitySet;
use strata_capture::live::SocketOpener;
use strata_confine::{Helper, User, confine_files, give_up_capabilities, serve};

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
    /// The socket of the API, if there is one.
    pub(super) socket: Option<PathBuf>,
    /// Files that are read again: configuration, policies.
    pub(super) files: Vec<PathBuf>,
}

/// Changes to `user`, gives up all capabilities, and reaches only what it has to. To be done
/// before threads are started.
pub(super) fn give_up(user: Option<&str>, reach: &Reach<'_>) -> Result<()> {
    let dir = |path: &Path| {
        let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        parent.map_or_else(|| PathBuf::from("."), Path::to_path_buf)
    };
    let mut write = vec![reach.log.to_owned()];
    fs::create_dir_all(reach.log).with_context(|| reach.log.display().to_string())?;
    if let Some(socket) = &reach.socket {
        let dir = dir(socket);
        // Without it, the recording runs without a socket, and says so.
        let made = fs::create_dir_all(&dir);
        write.extend(made.is_ok().then_some(dir));
    }
    // Editors put another file in a file's place: its directory is what stays.
    let read: Vec<PathBuf> = reach.files.iter().map(|file| dir(file)).collect();
    let user = user.map(User::named).transpose()?;
    if let Some(user) = &user {
        for path in &write {
            user.own(path)?;
        }
    }
    give_up_capabilities(user.as_ref(), CapabilitySet::empty(), Some(reach.log))?;
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
