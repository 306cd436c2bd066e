//! Options of `strata record` for full-capture triggers.

use std::path::PathBuf;

use anyhow::Result;
use strata_record::TriggerSpec;
use strata_terminal::bounded;

/// Options of `strata record` for full-capture triggers.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Full-capture triggers")]
pub(super) struct TriggerArgs {
    /// Hold the latest packets whole in this much memory, as in 512MiB, for flows that turn out to
    /// matter.
    ///
    /// When a packet of a flow is kept whole (by its class, a policy or an alert), the flow's earlier
    /// packets that are still in memory are kept whole too.
    #[arg(long, value_name = "SIZE", id = "look_back")]
    look_back: Option<String>,

    /// Keep the start of every flow whole: the packets that begin within its first SIZE bytes, as
    /// in 4k.
    #[arg(long, value_name = "SIZE", id = "first_bytes")]
    first_bytes: Option<String>,

    /// Keep flows whole once Suricata alerts on them. PATH is Suricata's eve.json.
    ///
    /// The file must exist. Strata reads new alerts as Suricata writes them (with -r, it reads all alerts before
    /// the packets). If PATH ends in .sock or .socket and does not exist, Strata creates a Unix
    /// socket there, for an eve-log with `filetype: unix_stream`. May be given several times. After
    /// logrotate renames the file, Strata reads it until Suricata has not written to it for 5 s.
    #[arg(long, value_name = "PATH")]
    eve: Vec<PathBuf>,
}

impl TriggerArgs {
    pub(super) fn spec(&self) -> Result<TriggerSpec> {
        let bytes = |text: &Option<String>, option| {
            let bytes = text.as_deref().map(|text| bounded::bytes(text, option));
            bytes.unwrap_or(Ok(0))
        };
        let look_back_bytes = bytes(&self.look_back, "--look-back")?;
        if look_back_bytes > 0 {
            // All of it is touched before packets arrive; the other half is for everything else.
            let most = strata_record::machine_bytes().max(4 << 20) / 2;
            bounded::size(
                look_back_bytes,
                "--look-back",
                &(1 << 20..=most >> 20 << 20),
            )?;
        }
        Ok(TriggerSpec {
            look_back_bytes,
            first_bytes: bytes(&self.first_bytes, "--first-bytes")?,
            eve: self.eve.clone(),
        })
    }
}
