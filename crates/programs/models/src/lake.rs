//! `strata lake`: what is in the Iceberg tables of many logs, and what leaves them. The Python package knows catalogs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use strata_archive::retention_class;
use strata_terminal::text::duration_ns;

use crate::publish::TablesArgs;
use crate::train::Line;

const NS_PER_S: u64 = 1_000_000_000;

/// Commands of `strata lake`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the files and the lag of each sensor in the tables.
    Status(StatusArgs),
    /// Remove files that exceed the tables' retention, and old snapshots.
    Expire(ExpireArgs),
    /// Remove a host's packets and flows from the tables, and print a proof.
    Erase(EraseArgs),
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
    }
    tables.add_to(&mut line);
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
    use super::*;

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
