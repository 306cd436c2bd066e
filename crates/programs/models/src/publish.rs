//! `strata publish`: the logs of many sensors as one pair of Iceberg tables. The Python package knows catalogs.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use strata_store::Log;
use strata_terminal::output::refuse;
use strata_terminal::text::duration_ns;
use strata_wire::Printable;

use crate::train::Line;

/// The tables of a namespace.
#[derive(Debug, clap::Args)]
pub(crate) struct TablesArgs {
    /// Use this Iceberg catalog: http(s)://HOST for REST; sqlite:///FILE or another database, where
    /// the catalog is named strata; or the name of a catalog in the configuration of pyiceberg.
    #[arg(long, value_name = "URI")]
    catalog: String,

    /// Store the tables' metadata at this URL, such as file:///srv/lake or s3://BUCKET/PREFIX.
    /// Required for a catalog in a database; a REST catalog stores it itself.
    #[arg(long, value_name = "URI")]
    warehouse: Option<String>,

    /// Use the tables of this namespace; `publish` creates them if they do not exist.
    #[arg(long, value_name = "NAME")]
    namespace: String,

    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl TablesArgs {
    /// Adds these arguments to a line of the Python package.
    pub(crate) fn add_to(&self, line: &mut Line) {
        line.option("--catalog", &self.catalog);
        if let Some(warehouse) = &self.warehouse {
            line.option("--warehouse", warehouse);
        }
        line.option("--namespace", &self.namespace);
        line.flag("--json", self.json);
    }
}

/// Arguments of `strata publish`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The tables of a namespace are packets and flows. Their data files are the compacted files of the
log, where they are: nothing is copied or rewritten. Afterwards, both tables list exactly the
current compacted files of this sensor: the tables have the files that compaction added, and no
longer have files that were deleted. Run this command after each compaction, or let it run with
--every. The tables are partitioned by the columns sensor, hour and retention. A third table,
flow_index, is an index of flows for `strata lake find`.

Examples:
  strata publish log/ --catalog http://catalog:8181 --namespace site
  strata publish log/ --catalog sqlite:////srv/lake.db --warehouse file:///srv/lake \\
      --namespace site
  strata publish log/ --catalog http://catalog:8181 --namespace site --every 10s

Engines on other machines need files that they can reach: `strata move` the log to an object store
first. The credentials of the object store and of the catalog are read from ~/.pyiceberg.yaml, or
from variables such as PYICEBERG_CATALOG__STRATA__S3__ENDPOINT.

Needs the Python package, which `make python` installs.

Exit status: 0 if the tables have the log's compacted files, or --every was stopped; 1 if not; 2 if
the command line is invalid.")]
pub(crate) struct Args {
    /// Publish this log.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    #[command(flatten)]
    tables: TablesArgs,

    /// Set the sensor's name. Each log needs a name of its own, which stays the same: letters (a to
    /// z), digits, dots, dashes and underscores. [default: the host's name]
    #[arg(long, value_name = "NAME", value_parser = sensor_name)]
    sensor: Option<String>,

    /// Replace another log that was published as this sensor: the tables no longer have its files.
    /// If this log was published as another sensor, that sensor is renamed.
    #[arg(long)]
    replace: bool,

    /// Look for new compacted files at this interval, as in 10s, and publish them, until the command is
    /// stopped. The command waits for a log that does not exist yet, and tries again after errors.
    #[arg(long, value_name = "TIME", value_parser = duration_ns, conflicts_with = "replace")]
    every: Option<u64>,
}

/// Characters of a sensor's name; `python/strata/lake.py` has the same limit.
const NAME_LEN_MAX: usize = 128;

pub(crate) fn sensor_name(name: &str) -> Result<String, String> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_first_valid = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    match is_first_valid
        && name.len() <= NAME_LEN_MAX
        && name.chars().all(is_valid)
        && !name.contains("..")
    {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "write 1 to {NAME_LEN_MAX} letters (a to z), digits, dots, dashes and underscores, beginning with a letter \
             or digit, without '..'"
        )),
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.every.is_none() {
        // Says what is wrong with it before the package is loaded.
        Log::open(&args.log)?;
    }
    let sensor = match &args.sensor {
        Some(name) => name.clone(),
        None => {
            let name = rustix::system::uname();
            let name = name.nodename().to_string_lossy();
            let valid = sensor_name(&name).map_err(|problem| anyhow!("{problem}"));
            valid.with_context(|| {
                let name = Printable(&name);
                format!(
                    "the host's name '{name}' is not a valid name for a sensor: name the sensor \
                     (--sensor)"
                )
            })?
        }
    };
    let mut line = Line::new("publish");
    args.tables.add_to(&mut line);
    line.option("--sensor", &sensor);
    line.flag("--replace", args.replace);
    if let Some(pause_ns) = args.every {
        let pause = Duration::from_nanos(pause_ns);
        if pause.is_zero() {
            return Err(refuse("--every must be above 0, as in 10s"));
        }
        line.number("--watch", &pause.as_secs());
    }
    strata_training::python::run(line.names([args.log.clone()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sensors_are_safe_in_tables_and_messages() {
        let longest = "x".repeat(NAME_LEN_MAX);
        for name in ["edge1", "edge-1.site_2.example", "7", longest.as_str()] {
            assert_eq!(sensor_name(name), Ok(name.to_owned()));
        }
        let longer = "x".repeat(NAME_LEN_MAX + 1);
        for name in [
            "",
            ".",
            "..",
            "a..b",
            "-a",
            "a/b",
            "../a",
            "a b",
            "a\nb",
            "a\u{1b}[2J",
            "a'b",
            "\u{e9}",
            longer.as_str(),
        ] {
            let problem = sensor_name(name).unwrap_err();
            assert!(problem.contains("letters (a to z)"), "{name:?}");
        }
    }
}
