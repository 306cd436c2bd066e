//! `strata lake`: what is in the Iceberg tables of many logs, what leaves them, and searches in them. The Python package
//! knows catalogs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use strata_archive::parts::{community_id_of, is_community_id};
use strata_archive::retention_class;
use strata_filter::FlowFacts;
use strata_terminal::output::refuse;
use strata_terminal::text::{self, duration_ns, parse_time};

use crate::label_flows::not_a_community_id;
use crate::publish::{TablesArgs, sensor_name};
use crate::train::Line;

const NS_PER_S: u64 = 1_000_000_000;
const NS_PER_US: u64 = 1_000;

/// Commands of `strata lake`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the files and the lag of each sensor in the tables.
    Status(StatusArgs),
    /// Remove files that exceed the tables' retention, and old snapshots.
    Expire(ExpireArgs),
    /// Remove a host's packets and flows from the tables, and print a proof.
    Erase(EraseArgs),
    /// Find a flow in the tables, and the logs that have its packets.
    Find(FindArgs),
    /// Query the tables with SQL.
    Query(QueryArgs),
}

/// Which rows of the tables.
#[derive(Debug, clap::Args)]
struct Chosen {
    /// Select packets from this time on: 13:05, 2026-01-31T13:05 (both local time),
    /// 2026-01-31T13:05:00Z, or seconds since 1970. A time without a date is today.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,

    /// Select packets before this time, in the format of --from.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,

    /// Select packets of this sensor.
    #[arg(long, value_name = "NAME", value_parser = sensor_name)]
    sensor: Option<String>,
}

impl Chosen {
    /// Adds these arguments to a line of the Python package.
    fn add_to(&self, line: &mut Line) -> Result<()> {
        let now_ns = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
        let time_ns = |option, time| parse_time(time, now_ns).context(option);
        // The tables have microseconds: the range is no shorter than the one that was given.
        if let Some(from) = &self.from {
            line.number("--from", &(time_ns("--from", from)? / NS_PER_US));
        }
        if let Some(to) = &self.to {
            line.number("--to", &time_ns("--to", to)?.div_ceil(NS_PER_US));
        }
        if let Some(sensor) = &self.sensor {
            line.option("--sensor", sensor);
        }
        Ok(())
    }
}

/// Arguments of `strata lake find`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
For each row of the table flows that belongs to the flow: sensor, hour, class, counts and times, the
files of the sensor's log that have its packets and payload, and a command that exports them from
the log. The index of the tables says which files have the flow; files that are not in the index yet
are searched, too. The last line has the number of bytes that were read.

Examples:
  strata lake find --community-id 1:LQU9qZlK+B5F3KDmev6m5PMibrg= --catalog http://catalog:8181 \\
      --namespace site
  strata lake find --catalog http://catalog:8181 --namespace site --from 2026-01-01T00:00Z \\
      'tcp and host 192.0.2.7 and port 51034 and host 198.51.100.1 and port 443'

Needs the Python package, which `make python` installs.

Exit status: 0 if the flow was found; 1 if not, or after errors; 2 if the command line is invalid.")]
pub(crate) struct FindArgs {
    /// Find the flow with this Community ID, which IDS alerts and other tools print. May be given several
    /// times.
    #[arg(long = "community-id", value_name = "ID")]
    community_ids: Vec<String>,

    #[command(flatten)]
    chosen: Chosen,

    #[command(flatten)]
    tables: TablesArgs,

    /// Find the flow that this tcpdump filter names: protocol, both addresses and both ports. Put
    /// options before it.
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    filter: Vec<String>,
}

impl FindArgs {
    /// The Community IDs to look for.
    fn ids(&self) -> Result<BTreeSet<String>> {
        if let Some(id) = self.community_ids.iter().find(|id| !is_community_id(id)) {
            return Err(refuse(not_a_community_id(id)));
        }
        let mut ids: BTreeSet<_> = self.community_ids.iter().cloned().collect();
        if let Some(filter) = text::filter(&self.filter)? {
            let flows = filter.flow_bound().filter(|flows| !flows.is_empty());
            let keys: Option<Vec<_>> = flows.iter().flatten().map(FlowFacts::key).collect();
            match (flows, keys) {
                (Some(_), Some(keys)) => ids.extend(keys.iter().map(community_id_of)),
                _ => {
                    return Err(refuse(
                        "the filter must name the protocol, both addresses and both ports of a flow, as in 'tcp and \
                         host 192.0.2.7 and port 51034 and host 198.51.100.1 and port 443'; for other questions, use \
                         `strata lake query`",
                    ));
                }
            }
        }
        match ids.is_empty() {
            true => Err(refuse("no flow given: write --community-id or a filter")),
            false => Ok(ids),
        }
    }
}

/// Arguments of `strata lake query`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The tables are packets and flows, with the columns sensor, hour and retention. --from, --to,
--sensor and conditions on these three columns decide which files are read. The last line has the
number of bytes that were read.

Examples:
  strata lake query --catalog http://catalog:8181 --namespace site --from 2026-01-31T00:00Z \\
      'SELECT sensor, class, sum(wire_bytes) FROM packets GROUP BY ALL'

Needs the Python package, which `make python` installs.")]
pub(crate) struct QueryArgs {
    #[command(flatten)]
    chosen: Chosen,

    #[command(flatten)]
    tables: TablesArgs,

    /// Run this statement, in DuckDB's dialect of SQL.
    #[arg(value_name = "SQL", allow_hyphen_values = true)]
    sql: String,
}

/// Arguments of `strata lake status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
For each sensor: files, rows, bytes, hours, and the time since its newest packet arrived, by the
clock of this machine. A time in the future means that the clocks differ. Small files are those
below 1 MiB. Only metadata is read.

Example:
  strata lake status --catalog http://catalog:8181 --namespace site

Needs the Python package, which `make python` installs.")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    tables: TablesArgs,
}

/// Arguments of `strata lake expire`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
This command removes files from the tables only: they stay in the logs of their sensors, until
`strata prune` deletes them. The tables remember --keep and --keep-class: `strata publish` adds no
older files, and later runs of this command need not repeat them. Without them, the tables keep
files as long as the logs do. It also merges small manifests. Run it once a day.

Examples:
  strata lake expire --catalog http://catalog:8181 --namespace site
  strata lake expire --catalog http://catalog:8181 --namespace site --keep 90d \\
      --keep-class anomalous:365d --keep-snapshots 1d

Needs the Python package, which `make python` installs.")]
pub(crate) struct ExpireArgs {
    #[command(flatten)]
    tables: TablesArgs,

    /// Remove packets older than this: 12h, 30d, 8w. A file is removed once its whole hour is older
    /// than TIME. Packets that a policy protects stay unless --keep-class protected:TIME sets a
    /// limit.
    #[arg(long, value_name = "TIME", value_parser = duration_ns)]
    keep: Option<u64>,

    /// Keep the packets of one retention class this long: anomalous:365d. May be given for several
    /// classes.
    #[arg(long, value_name = "CLASS:TIME")]
    keep_class: Vec<String>,

    /// Remove snapshots older than this, except the current one and those of tags and branches, and
    /// delete the metadata that only they had. No older state of the table can be read afterwards.
    #[arg(long, value_name = "TIME", value_parser = duration_ns, default_value = "7d")]
    keep_snapshots: u64,
}

/// Arguments of `strata lake erase`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each file with packets or flows of the host leaves the tables, and a copy without them takes its
place, in the warehouse. Answers of DNS to others that name the host become NULL. Then all snapshots
but the current one are removed, with the metadata that only they had. The proof has each file, the
rows before and after, and the rows of the host that a scan of the tables finds afterwards. Texts in
rows of other hosts stay, such as a PTR query, an HTTP host or a share that names the address: the
proof counts these rows.

The logs of the sensors keep the host's packets: the proof lists these files. Publishing these logs
again does not bring the host back, but publishing files that were not in the tables yet may.

Example:
  strata lake erase --host 192.0.2.7 --catalog http://catalog:8181 --namespace site

Needs the Python package, which `make python` installs.

Exit status: 0 if no row has the host as an end, in its answers of DNS or in another text, and no
older snapshot is left; 1 otherwise, or after errors; 2 if the command line is invalid.")]
pub(crate) struct EraseArgs {
    /// Erase this host: an IPv4 or IPv6 address.
    #[arg(long, value_name = "ADDRESS")]
    host: IpAddr,

    #[command(flatten)]
    tables: TablesArgs,
}

pub(crate) fn run(command: &Command) -> Result<()> {
    let (name, tables) = match command {
        Command::Status(args) => ("status", &args.tables),
        Command::Expire(args) => ("expire", &args.tables),
        Command::Erase(args) => ("erase", &args.tables),
        Command::Find(args) => ("find", &args.tables),
        Command::Query(args) => ("query", &args.tables),
    };
    let mut line = Line::new("lake").command(name);
    match command {
        Command::Status(_) => {}
        Command::Expire(args) => {
            for (class, keep_ns) in classes(&args.keep_class)? {
                line.option("--keep-class", format!("{class}:{}", keep_ns / NS_PER_S));
            }
            if let Some(keep_ns) = args.keep {
                line.number("--keep", &(keep_ns / NS_PER_S));
            }
            line.number("--keep-snapshots", &(args.keep_snapshots / NS_PER_S));
        }
        Command::Erase(args) => line.option("--host", args.host.to_string()),
        Command::Find(args) => {
            for id in args.ids()? {
                line.option("--community-id", id);
            }
            args.chosen.add_to(&mut line)?;
        }
        Command::Query(args) => args.chosen.add_to(&mut line)?,
    }
    tables.add_to(&mut line);
    if let Command::Query(args) = command {
        return strata_training::python::run(line.names([PathBuf::from(&args.sql)]));
    }
    strata_training::python::run(line.words())
}

/// How long to keep each retention class, in ns.
fn classes(texts: &[String]) -> Result<BTreeMap<String, u64>> {
    let mut found = BTreeMap::new();
    for text in texts {
        let (class, time) = text
            .rsplit_once(':')
            .with_context(|| format!("'{text}': write CLASS:TIME, as in anomalous:365d"))?;
        let class = retention_class(class);
        if found.insert(class.clone(), duration_ns(time)?).is_some() {
            bail!("--keep-class names {class} twice");
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Of {
        #[command(flatten)]
        find: FindArgs,
    }

    fn ids(words: &[&str]) -> Result<BTreeSet<String>> {
        let tables = ["find", "--catalog", "x", "--namespace", "site"];
        let words = tables.into_iter().chain(words.iter().copied());
        Of::try_parse_from(words)?.find.ids()
    }

    #[test]
    fn a_filter_names_a_flow_whole() {
        // Of the Community ID specification's own examples.
        let id = "1:LQU9qZlK+B5F3KDmev6m5PMibrg=";
        assert_eq!(
            ids(&["--community-id", id]).unwrap(),
            [id.to_owned()].into()
        );
        let either =
            "tcp and host 66.35.250.204 and port 80 and host 128.232.110.120 and port 34855";
        let exact = "tcp and src host 128.232.110.120 and src port 34855 and dst host 66.35.250.204 and dst port 80";
        for filter in [either, exact] {
            assert!(ids(&[filter]).unwrap().contains(id), "{filter}");
        }
        for filter in [
            "tcp port 80",
            "host 66.35.250.204",
            "tcp",
            "ip proto 6 or udp",
        ] {
            let problem = ids(&[filter]).unwrap_err().to_string();
            assert!(
                problem.contains("both addresses and both ports"),
                "{filter}: {problem}"
            );
        }
        for (words, said) in [
            (&["--community-id", "1:x"][..], "not a Community ID"),
            (&[], "no flow given"),
        ] {
            assert!(ids(words).unwrap_err().to_string().contains(said));
        }
    }

    #[test]
    fn classes_have_one_time_each() {
        let texts = ["anomalous:365d", "benign:12h"].map(str::to_owned);
        let found = classes(&texts).unwrap();
        assert_eq!(found["anomalous"], 365 * 86_400 * NS_PER_S);
        assert_eq!(found["benign"], 12 * 3_600 * NS_PER_S);
        let twice = ["benign:1h", "benign:2h"].map(str::to_owned);
        assert!(classes(&twice).unwrap_err().to_string().contains("twice"));
        assert!(classes(&["benign".to_owned()]).is_err());
        assert!(classes(&["benign:soon".to_owned()]).is_err());
    }
}
