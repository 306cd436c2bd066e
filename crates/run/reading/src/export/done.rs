//! What an export wrote, and what is missing.

use anyhow::{Result, bail};
use strata_query::{Exported, ExportedFlows};
use strata_store::{Damage, damage_texts};
use strata_terminal::output::Completeness;
use strata_terminal::selection::{Lacking, report, say_untested};
use strata_terminal::text;
use tracing::{info, warn};

use super::files::FilesWritten;

/// What was written.
pub(super) enum Count {
    Packets(u64),
    Flows(FlowCounts),
}

pub(super) struct FlowCounts {
    pub(super) flows: u64,
    pub(super) records: u64,
    /// Flows whose records ended early, because too many were active.
    pub(super) crowded_out: u64,
    /// Flows whose records are too long for the stream.
    pub(super) too_long: u64,
    /// Flows that the collector's protocol cannot say, and why.
    pub(super) unfit: u64,
    pub(super) why_unfit: Option<&'static str>,
}

/// What was written, and what is missing.
pub(super) struct Done {
    pub(super) count: Count,
    pub(super) damage: Vec<Damage>,
    /// Packets that lack a definition.
    pub(super) left_out: u64,
    /// Packets that the filter could not test.
    pub(super) untested: u64,
    /// Packets omitted by --dedup.
    pub(super) doubles: Option<u64>,
    pub(super) written: FilesWritten,
}

/// The result as JSON. What does not apply to the format is null.
#[derive(serde::Serialize)]
pub(super) struct Answer {
    packets: Option<u64>,
    flows: Option<u64>,
    records: Option<u64>,
    crowded_out: Option<u64>,
    too_long: Option<u64>,
    unfit: Option<u64>,
    duplicates: Option<u64>,
    emptied: Option<u64>,
    files: Option<u64>,
    failed_commands: Option<u64>,
    left_out: u64,
    /// Packets that the logs are known to lack although they should have them.
    lost_packets: u64,
    damage: Vec<String>,
    #[serde(flatten)]
    completeness: Completeness,
}

impl Done {
    pub(super) fn of_packets(exported: Exported) -> Self {
        Self {
            count: Count::Packets(exported.packets),
            damage: exported.damage,
            left_out: exported.left_out,
            untested: exported.untested,
            doubles: None,
            written: FilesWritten::default(),
        }
    }

    pub(super) fn of_flows(exported: ExportedFlows, too_long: u64) -> Self {
        Self {
            count: Count::Flows(FlowCounts {
                flows: exported.flows,
                records: exported.records,
                crowded_out: exported.crowded_out,
                too_long,
                unfit: exported.unfit,
                why_unfit: exported.why_unfit,
            }),
            damage: exported.damage,
            left_out: exported.left_out,
            untested: exported.untested,
            doubles: None,
            written: FilesWritten::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match &self.count {
            Count::Packets(packets) => *packets == 0,
            Count::Flows(counts) => counts.flows == 0,
        }
    }

    /// Says how much was written.
    pub(super) fn say(&self, verb: &str) {
        match &self.count {
            Count::Packets(packets) => {
                let files = self
                    .written
                    .files
                    .map(|files| text::count_of(files, "file"));
                let files = files.map_or_else(String::new, |files| format!(" to {files}"));
                info!("{} {verb}{files}", text::count_of(*packets, "packet"));
            }
            Count::Flows(counts) => counts.say(verb),
        }
    }

    /// Says what is missing, which is an error.
    pub(super) fn ended(&self) -> Result<()> {
        say_untested(self.untested);
        report(&self.damage, self.left_out)?;
        if let Some(failed) = self.written.failed_commands.filter(|&failed| failed > 0) {
            bail!(
                "the command of -z failed for {} (see above)",
                text::count_of(failed, "file")
            );
        }
        match &self.count {
            Count::Flows(counts) if counts.too_long > 0 => bail!(
                "{} left out: too long for the stream",
                text::count_of(counts.too_long, "flow")
            ),
            Count::Flows(FlowCounts {
                unfit,
                why_unfit: Some(why),
                ..
            }) => bail!("{} left out: {why}", text::count_of(*unfit, "flow")),
            _ => Ok(()),
        }
    }

    pub(super) fn answer(&self, ended: &Result<()>, lacking: Lacking) -> Answer {
        let (packets, flows) = match &self.count {
            Count::Packets(packets) => (Some(*packets), None),
            Count::Flows(counts) => (None, Some(counts)),
        };
        let completeness = Completeness::of(ended).without_untested(self.untested);
        Answer {
            packets,
            flows: flows.map(|counts| counts.flows),
            records: flows.map(|counts| counts.records),
            crowded_out: flows.map(|counts| counts.crowded_out),
            too_long: flows.map(|counts| counts.too_long),
            unfit: flows.map(|counts| counts.unfit),
            duplicates: self.doubles,
            emptied: self.written.emptied,
            files: self.written.files,
            failed_commands: self.written.failed_commands,
            left_out: self.left_out,
            lost_packets: lacking.packets,
            damage: damage_texts(&self.damage),
            completeness: completeness.unless(lacking.problem),
        }
    }
}

impl FlowCounts {
    /// Says the number of flows, and of records if each has several.
    pub(super) fn say(&self, verb: &str) {
        let flows = text::count_of(self.flows, "flow");
        match self.records == self.flows {
            true => info!("{flows} {verb}"),
            false => {
                let records = text::count_of(self.records, "record");
                info!("{flows} in {records} {verb}");
            }
        }
        if self.crowded_out > 0 {
            warn!(
                "{} ended before a timeout, because too many flows were active: their end_reason \
                 is 5, and their later packets are in separate records",
                text::count_of(self.crowded_out, "flow")
            );
        }
    }
}
