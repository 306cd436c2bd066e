//! Control options of `strata record`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use strata_control::config::Config;
use strata_record::SteeringSpec;

/// Control options of `strata record`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Steering")]
pub(super) struct SteerArgs {
    /// Read this configuration file (TOML): modes, policies, thresholds. `strata config init`
    /// writes one to start from.
    #[arg(long, value_name = "FILE", env = "STRATA_CONFIG")]
    config: Option<PathBuf>,

    /// Add the policies in this file, which has the format of the configuration file, after those
    /// of --config.
    #[arg(long, value_name = "FILE", env = "STRATA_POLICY")]
    policy: Option<PathBuf>,

    /// Set the action for packets that no policy matches: full, header, partial N, drop, classify
    /// (let the model decide), mirror (and classify), or header -> NAME or payload -> NAME (export
    /// to a destination in the configuration file, and classify). By default, the action in the
    /// configuration file, else classify.
    #[arg(long, value_name = "ACTION", env = "STRATA_DEFAULT")]
    default: Option<String>,

    /// Also decode this kind of tunnel on this UDP port, as in vxlan=8473. Kinds are vxlan,
    /// vxlan-gpe, geneve, gtp-u, gre-udp, mpls-udp and teredo; may be given several times.
    /// `[tunnels]` in the configuration file can name further ports. The log stores the ports for
    /// the commands that read it, unless a relay writes the log; in that case, give the ports to
    /// those commands, too.
    #[arg(
        long,
        value_name = "NAME=PORT",
        env = "STRATA_TUNNEL_PORT",
        value_delimiter = ','
    )]
    tunnel_port: Vec<String>,

    /// Listen on this Unix socket for `strata status`, `mode`, `detail`, `policy`, `rotate`, `model`
    /// and `ask --running`. By default, a live capture listens on a socket in /run/strata or
    /// $XDG_RUNTIME_DIR/strata.
    #[arg(long, value_name = "PATH", env = "STRATA_SOCKET")]
    socket: Option<PathBuf>,

    /// Check everything that a start needs (command line, configuration, policies, model, files,
    /// interfaces, addresses), and exit. Nothing is created or sent.
    #[arg(long)]
    pub(super) check: bool,
}

impl SteerArgs {
    /// Where it has to listen, from the command line or in the configuration file.
    pub(super) fn socket(&self) -> Result<Option<PathBuf>> {
        match (&self.socket, &self.config) {
            (Some(socket), _) => Ok(Some(socket.clone())),
            (None, Some(config)) => Ok(Config::read(config)?.control.socket),
            (None, None) => Ok(None),
        }
    }

    /// Whether there are files that can be reloaded.
    pub(super) fn has_files(&self) -> bool {
        self.config.is_some() || self.policy.is_some()
    }

    pub(super) fn spec(&self) -> Result<SteeringSpec> {
        let default = self.default.as_deref().map(str::parse).transpose();
        Ok(SteeringSpec {
            config: self.config.clone(),
            policy: self.policy.clone(),
            default: default.context("--default")?,
            socket: self.socket.clone(),
            tunnel_ports: self.tunnel_port.clone(),
        })
    }
}
