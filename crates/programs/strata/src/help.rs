//! How the program describes itself: commands in groups, and of `record` the options that people use.

pub(crate) mod topics;

use clap::{Arg, Command, CommandFactory as _};
use strata_pipeline::DataPath;

use super::{Cli, beside};

/// The page of `strata --help`: no more than 40 lines of 80 columns.
pub(crate) const PAGE: &str = "\
{about-with-newline}
Usage: strata COMMAND [OPTIONS]       strata COMMAND --help says more

Record
  record       Record packets of interfaces or files, classifying each
  interfaces   List interfaces (-D): how each can be captured, or why not
  status       Show running recordings: rates, losses and their causes, events
  mode, detail, policy, rotate
               Change what a running recording keeps; start new files
Read a log
  info         Show a log's contents, its losses, and why packets were kept
  read, grep   Print packets as tcpdump does; search their payload
  top          Show the largest flows, hosts, ports, protocols, reasons
  export       Write packets as pcapng or pcap, or flow records
  serve        Show logs and recordings in a browser
  query, ask   Query a log with SQL; run streaming queries on packets
Keep a log
  compact      Turn its files into Parquet and pcapng, for other tools
  verify       Check every byte against its checksum
  prune, move  Delete by age or size; move to an object store or another disk
  key          Make keys for encrypted logs, and replace those of a log
Models
  learn        Learn the ordinary traffic of a site; needs no labels
  train, eval  Train a model on labels; judge it on a labelled capture
  model, compare, features, labels
               Promote a model; compare presets; write features; label flows
Several machines
  switch, relay       Record to another machine's disks over RDMA
  agent, controller   Capture on many hosts, steered from one place
  collector, publish, lake  Receive exported packets; logs as Iceberg tables
Other systems
  telemetry    Collect and query telemetry reports of switches (DTA, INT)
  stream       Append records to streams on disk; read them from any position
  gpv          Group packets of flows into vectors: send, receive, classify
Tools
  generate, replay    Generate traffic from a seed; replay a capture
  config, bug-report  Make a configuration file; write a report about a fault
Topics (strata help TOPIC): filters, granularities, budgets, times, keys
Every command has --help, and accepts --color auto, always or never.
";

/// Options of `record` in `record -h`, by their long names; `record --help` has all.
const OF_RECORD: [&str; 16] = [
    "read",
    "interface",
    "output",
    "count",
    "snapshot-length",
    "mode",
    "detail",
    "model",
    "config",
    "cores",
    "look-back",
    "eve",
    "rotate-size",
    "rotate-seconds",
    "filecount",
    "disk-limit",
];

/// The command line.
pub(crate) fn command() -> Command {
    let all = Cli::command().long_version(&*Box::leak(version().into_boxed_str()));
    // Never parsed here: so that a mistyped one is recognised.
    let all = beside::commands().fold(all, |all, name| all.subcommand(Command::new(name)));
    all.mut_subcommand("record", |record| {
        record.mut_args(|option| {
            let is_rare = is_rare(&option);
            option.hide_short_help(is_rare)
        })
    })
}

/// What `strata --version` says: what was built, and how packets are classified on this machine.
fn version() -> String {
    let commit = option_env!("STRATA_COMMIT").filter(|commit| !commit.is_empty());
    let path = match DataPath::chosen() {
        Ok(path) => path.name().to_owned(),
        Err(error) => error.to_string(),
    };
    let features = match cfg!(feature = "verbs") {
        true => "verbs (RDMA NICs)",
        false => "none; with verbs, a relay uses RDMA NICs",
    };
    format!(
        "{}\ncommit:     {}\nprofile:    {}, for {}\nfeatures:   {features}\ndata path:  {path} on this machine",
        env!("CARGO_PKG_VERSION"),
        commit.unwrap_or("unknown: built without make"),
        env!("STRATA_PROFILE"),
        env!("STRATA_TARGET"),
    )
}

/// Whether an option of `record` is left to `--help`.
fn is_rare(option: &Arg) -> bool {
    let long = option.get_long();
    long.is_some_and(|name| name != "help" && !OF_RECORD.contains(&name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_is_in_one_group_and_the_page_fits_a_screen() {
        let page = command().render_long_help().to_string();
        let lines: Vec<&str> = page.lines().collect();
        assert!(lines.len() <= 40, "{} lines:\n{page}", lines.len());
        let longest = lines.iter().map(|line| line.len()).max().unwrap();
        assert!(longest <= 80, "{longest} columns:\n{page}");
        let named = PAGE
            .lines()
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let named = named.flat_map(|line| line.trim().split("  ").next().unwrap().split(", "));
        let named: Vec<&str> = named.collect();
        let once: BTreeSet<&str> = named.iter().copied().collect();
        assert_eq!(once.len(), named.len(), "a command is in two groups");
        let all = command();
        let visible = all.get_subcommands().filter(|one| !one.is_hide_set());
        assert_eq!(once, visible.map(Command::get_name).collect());
        let topics = page
            .lines()
            .find_map(|line| line.split_once("Topics (strata help TOPIC): "));
        let topics: Vec<&str> = topics.unwrap().1.split(", ").collect();
        assert_eq!(topics, topics::names().collect::<Vec<_>>());
    }

    #[test]
    fn the_version_says_which_path_this_machine_takes() {
        let version = version();
        let path = DataPath::chosen().unwrap().name();
        assert!(
            version.contains(&format!("data path:  {path} on this machine")),
            "{version}"
        );
        for what in ["commit:", "profile:", "features:"] {
            assert!(version.contains(what), "{version}");
        }
        assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{version}");
    }

    #[test]
    fn the_short_help_of_record_has_the_options_that_it_names() {
        let mut all = command();
        let record = all.find_subcommand_mut("record").unwrap();
        for name in OF_RECORD {
            let is_there = record
                .get_arguments()
                .any(|one| one.get_long() == Some(name));
            assert!(is_there, "--{name}");
        }
        let page = record.render_help().to_string();
        assert!(page.lines().count() <= 60, "{page}");
        for option in [
            "-r,",
            "-i,",
            "-c,",
            "-s,",
            "-C,",
            "-G,",
            "-W,",
            "--eve",
            "--disk-limit",
        ] {
            assert!(page.contains(option), "{option} in {page}");
        }
        assert!(!page.contains("--hash-seed"), "{page}");
        assert!(page.contains("--help"), "{page}");
    }
}
