//! The operator's page beside a recording.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use strata_control::client::own_socket_path;
use strata_terminal::output::refuse;
use tracing::warn;

/// Where the page is, if no address is given.
const ADDRESS: &str = "127.0.0.1:9470";

/// The option of `strata record` that serves the page.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Steering")]
pub(super) struct PageArgs {
    /// Serve the operator's page of this log and this recording on 127.0.0.1:9470 or this loopback
    /// address. A separate process, `strata serve`, serves the page and ends with the recording.
    /// For users on other machines, run `strata serve --token-file` yourself.
    #[arg(
        long,
        value_name = "ADDR:PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ADDRESS
    )]
    serve: Option<String>,
}

/// A page that is served. Its process ends with this one.
pub(super) struct Page {
    process: Option<Child>,
}

impl PageArgs {
    /// Starts the page of a log and of the recording that listens on `socket`, or on its own one.
    ///
    /// Before the recording, which may start no programs.
    pub(super) fn start(
        &self,
        log: Option<&Path>,
        socket: impl FnOnce() -> Result<Option<PathBuf>>,
    ) -> Result<Page> {
        let Some(address) = &self.serve else {
            return Ok(Page::none());
        };
        let listen: SocketAddr = address.parse().map_err(|_| {
            refuse(format!(
                "--serve={address}: write an address and a port, as in {ADDRESS}"
            ))
        })?;
        if !listen.ip().is_loopback() {
            return Err(refuse(format!(
                "--serve={address}: other machines can reach this address: run `strata serve LOG \
                 --socket SOCKET --listen {address} --token-file FILE` separately"
            )));
        }
        let log = log.ok_or_else(|| refuse("--serve shows a log: add -o DIR"))?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command
            .args(["serve", "--listen", address, "--end-with-parent"])
            .arg(std::process::id().to_string())
            .arg("--socket")
            .arg(socket()?.unwrap_or_else(own_socket_path))
            .arg("--")
            .arg(log)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let process = command
            .spawn()
            .context("--serve: cannot start strata serve")?;
        Ok(Page {
            process: Some(process),
        })
    }
}

impl Page {
    pub(super) fn none() -> Self {
        Self { process: None }
    }

    /// Says once if the process that serves the page has exited: the recording matters more.
    pub(super) fn look(&mut self) {
        let Some(process) = &mut self.process else {
            return;
        };
        if let Ok(Some(status)) = process.try_wait() {
            self.process = None;
            warn!(
                "--serve: `strata serve` has exited ({status}); the recording continues. To see \
                 the page again, run `strata serve LOG --socket SOCKET`"
            );
        }
    }
}
