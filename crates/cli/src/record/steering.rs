//! Arguments of `strata record` for steering.

use std::path::PathBuf;

use anyhow::{Context, Result};
use strata_node::SteeringSpec;

/// Arguments of `strata record` for steering.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Steering")]
pub(super) struct SteerArgs {
    /// Configuration file (TOML): modes, policies, thresholds. `strata
    /// config-reference` describes it.
    #[arg(long, value_name = "FILE", env = "STRATA_CONFIG")]
    config: Option<PathBuf>,

    /// File with policies, in the form of the configuration file; they go after
    /// those of that.
    #[arg(long, value_name = "FILE", env = "STRATA_POLICY")]
    policy: Option<PathBuf>,

    /// What is done with packets that no policy matches: full, header, partial N,
    /// drop, classify (let the model decide) or mirror (and classify).
    #[arg(long, value_name = "ACTION", env = "STRATA_DEFAULT")]
    default: Option<String>,

    /// Unix socket on which `strata status`, `mode` and `policy` reach this
    /// recording. Without it, one in /run/strata or $XDG_RUNTIME_DIR/strata while
    /// interfaces are captured.
    #[arg(long, value_name = "PATH", env = "STRATA_SOCKET")]
    socket: Option<PathBuf>,

    /// Check everything that a start would need, and end: command line, configuration,
    /// policies, model, files, interfaces, addresses. Nothing is made or sent.
    #[arg(long)]
    pub(super) check: bool,
}

impl SteerArgs {
    pub(super) fn spec(&self) -> Result<SteeringSpec> {
        let default = self.default.as_deref().map(str::parse).transpose();
        Ok(SteeringSpec {
            config: self.config.clone(),
            policy: self.policy.clone(),
            default: default.context("--default")?,
            socket: self.socket.clone(),
        })
    }
}
