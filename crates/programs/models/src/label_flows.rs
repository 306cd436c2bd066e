//! `strata labels`: labels flows of a log that a user names, in a file that training reads.

use std::path::PathBuf;

use anyhow::{Result, bail};
use strata_archive::parts::is_community_id;
use strata_filter::Filter;
use strata_labels::{
    Changes, Choice, ChoiceError, ConnLog, ConnLogError, Flows, class_name, labelled, matching,
    whole,
};
use strata_query::{ByLink, Find};
use strata_store::Log;
use strata_terminal::key::KeyArgs;
use strata_terminal::output::{self, refuse};
use strata_terminal::packets::{damaged, open_log};
use strata_terminal::selection::{find_between, first_packet_ns, say_no_match};
use strata_terminal::text::{self, count_of};
use strata_wire::{Printable, grouped};
use tracing::info;

/// A longer label is a mistake.
const LABEL_MAX: usize = 128;

/// Arguments of `strata labels`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Label flows of a log: write them to a file for `strata train --labels`.
    Add(AddArgs),
}

/// Arguments of `strata labels add`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata labels add log/ --label scan -o labels.json host 10.0.0.66 and tcp
  strata labels add log/ --label benign -o labels.json --community-id 1:LQU9qZlK+B5F3KDmev6m5PMibrg=
  strata train log/ --labels labels.json --otherwise benign -o new.json

A flow gets the label if one of its packets meets all given conditions: the filter, --community-id,
--from and --to. The label holds from the flow's first packet in the log to its last; after a pause
of 5 minutes, packets with the same addresses and ports belong to another flow.")]
struct AddArgs {
    /// Read the log in this directory.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    /// Give the flows this label: the name of a class, such as scan, or attack or benign.
    #[arg(long, value_name = "LABEL")]
    label: String,

    /// Add the flows to this file, in the format of Zeek's conn.log as JSON lines, with labels. If
    /// a flow already has a label, the new label replaces it.
    #[arg(short = 'o', long, value_name = "FILE")]
    output: PathBuf,

    /// Label the flow whose Community ID is ID, as IDS alerts and other tools print it; if several
    /// flows have this ID, label all of them. May be given several times.
    #[arg(long = "community-id", value_name = "ID")]
    community_ids: Vec<String>,

    /// Set the seed of Community IDs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    community_id_seed: u16,

    /// Label flows that have packets from this time on: 13:05, 2026-01-31T13:05 (both local time),
    /// 2026-01-31T13:05:00Z, or seconds since 1970. A time without a date is on the day of the log's
    /// first packet.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,

    /// Label flows that have packets before this time, in the format of --from.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,

    #[command(flatten)]
    key: KeyArgs,

    /// Label flows that have packets that match this tcpdump filter, which tests only the bytes
    /// that were kept. Put options before it.
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    filter: Vec<String>,
}

/// Runs `strata labels`.
pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Add(args) => add(args),
    }
}

fn add(args: &AddArgs) -> Result<()> {
    let label = label(&args.label)?;
    if args.output.as_os_str() == "-" {
        return Err(refuse(
            "-o -: labels cannot be added to standard output: name a file",
        ));
    }
    let filter = text::filter(&args.filter)?;
    let selects = filter.is_some()
        || !args.community_ids.is_empty()
        || args.from.is_some()
        || args.to.is_some();
    if !selects {
        return Err(refuse(
            "no flows selected: give a filter, --community-id, --from or --to",
        ));
    }
    if let Some(id) = args.community_ids.iter().find(|id| !is_community_id(id)) {
        return Err(refuse(not_a_community_id(id)));
    }
    let log = open_log(&args.key, &args.log, "labels no flows of")?;
    output::check(
        &args.output,
        &args.key.sources([(args.log.as_path(), &log)]),
    )?;
    let refused = |error| match error {
        ConnLogError::NoFile(_) => refuse(error.to_string()),
        error => error.into(),
    };
    let class_in = |file: &ConnLog| {
        let class = file.class_of(label);
        class.map_err(|error| refuse(format!("--label: {error}")))
    };
    // Before the log is read, which may take long; others may add labels meanwhile.
    class_in(&ConnLog::read(&args.output).map_err(refused)?)?;
    let choice = Choice {
        find: find(args, &log, filter.as_ref())?,
        community_ids: &args.community_ids,
        community_id_seed: args.community_id_seed,
    };
    let by_link = filter.clone();
    let by_link = by_link.map(|filter| ByLink::new(filter, say_no_match));
    let matching = matching(&log, &choice, by_link).map_err(said)?;
    if matching.spans.is_empty() {
        let but = remark(&matching);
        bail!(
            "no flow of the log matches{but}; {} is unchanged",
            args.output.display()
        );
    }
    let whole = whole(&log, &matching).map_err(said)?;
    let flows = labelled(&matching, &whole);
    let mut file = ConnLog::read_locked(&args.output).map_err(refused)?;
    let class = class_in(&file)?;
    let mut changes = Changes::default();
    for (key, span) in &flows {
        file.put(*key, span, label, &mut changes);
    }
    file.write()?;
    let Changes { new, same, changed } = changes;
    info!(
        "{}: {} labelled {} ({} new, {} had the label, {} had another){}",
        file.name(),
        count_of(flows.len() as u64, "flow"),
        class,
        grouped(new),
        grouped(same),
        grouped(changed),
        remark(&matching),
    );
    Ok(())
}

/// What is wrong with a value of --community-id.
pub(crate) fn not_a_community_id(id: &str) -> String {
    format!(
        "--community-id '{}' is not a Community ID of version 1: they are 1: and 28 characters, as \
         in 1:LQU9qZlK+B5F3KDmev6m5PMibrg=",
        Printable(id)
    )
}

/// A label that can be one.
fn label(text: &str) -> Result<&str> {
    let label = text.trim();
    // Readers of the file would take some words as no label.
    let is_none = matches!(class_name(label), Ok(None));
    if is_none || label.len() > LABEL_MAX || label.chars().any(char::is_control) {
        return Err(refuse(format!(
            "--label '{}' is not the name of a class: write a word such as scan or benign",
            Printable(text)
        )));
    }
    Ok(label)
}

/// Which packets are meant.
fn find<'a>(args: &AddArgs, log: &Log, filter: Option<&'a Filter>) -> Result<Find<'a>> {
    find_between([&args.from, &args.to], first_packet_ns(log)?, filter)
}

/// Says where a log is damaged, if that is why its flows cannot be found.
fn said(error: ChoiceError) -> anyhow::Error {
    if let ChoiceError::Damaged(places) = &error {
        damaged(places);
    }
    error.into()
}

/// Further remarks on the flows for the user.
fn remark(flows: &Flows) -> String {
    match flows.unnamed {
        0 => String::new(),
        unnamed => format!(
            "; {} without IP addresses or a time cannot be labelled",
            count_of(unnamed, "packet")
        ),
    }
}
