//! Arguments of `strata record` about flows that matter more than others.

use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::system::sysinfo;
use strata_node::TriggerSpec;

use crate::{bounded, text};

/// Arguments of `strata record` about flows that matter more than others.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Attention")]
pub(super) struct TriggerArgs {
    /// Memory for the packets seen last, whole: 512MiB. When a packet of a flow is
    /// kept whole (by its class, a policy or an alert), the earlier ones of the flow
    /// that are still remembered become whole in the log too.
    #[arg(long, value_name = "SIZE", id = "look_back")]
    look_back: Option<String>,

    /// Keep the start of every flow whole: packets that begin within its first
    /// bytes, as in 4k.
    #[arg(long, value_name = "SIZE", id = "first_bytes")]
    first_bytes: Option<String>,

    /// Keep flows whole of which Suricata alerts. PATH is its eve.json, which is
    /// followed (with -r: read first), or a Unix socket that is made here for its
    /// eve-log of filetype unix_stream.
    #[arg(long, value_name = "PATH")]
    eve: Option<PathBuf>,
}

impl TriggerArgs {
    pub(super) fn spec(&self) -> Result<TriggerSpec> {
        let bytes = |text: &Option<String>| text.as_deref().map_or(Ok(0), text::bytes);
        let look_back_bytes = bytes(&self.look_back).context("--look-back")?;
        if look_back_bytes > 0 {
            // All of it is touched before packets come, and the rest is for all else.
            let most = sysinfo().totalram.max(4 << 20) / 2;
            bounded::size(
                look_back_bytes,
                "--look-back",
                &(1 << 20..=most >> 20 << 20),
            )?;
        }
        Ok(TriggerSpec {
            look_back_bytes,
            first_bytes: bytes(&self.first_bytes).context("--first-bytes")?,
            eve: self.eve.clone(),
        })
    }
}
