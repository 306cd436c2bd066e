//! `strata publish`: the logs of many sensors as one pair of Iceberg tables. The Python package knows catalogs.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use strata_store::Log;

use crate::train::Line;

/// Arguments of `strata publish`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The tables of a namespace are packets and flows. Their data files are those of the log, where
they are: nothing is copied or rewritten. Afterwards, both tables have exactly the compacted files
of this log as those of this sensor, whatever was published before: files that compaction added are
in the table, files that were deleted are not. Run it after each compaction, as a timer does. The
columns sensor, hour and retention are the tables' partitions.

Examples:
  strata publish log/ --catalog http://catalog:8181 --namespace site
  strata publish log/ --catalog sqlite:////srv/lake.db --warehouse file:///srv/lake \\
      --namespace site

Engines on other machines need files that they can reach: `strata move` the log to an object store
first. Their keys, and those of a catalog, are read as pyiceberg reads them: from ~/.pyiceberg.yaml,
or from variables such as PYICEBERG_CATALOG__STRATA__S3__ENDPOINT.

Needs the Python package, which `make python` installs.

Exit status: 0 if the tables have the log's compacted files; 1 if not; 2 if the command line is
invalid.")]
pub(crate) struct Args {
    /// Publish this log.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    /// Use this Iceberg catalog: http(s)://HOST for REST, sqlite:///FILE or another database, or the
    /// name of a catalog in the configuration of pyiceberg.
    #[arg(long, value_name = "URI")]
    catalog: String,

    /// Keep the tables' metadata here, such as file:///srv/lake or s3://BUCKET/PREFIX. A catalog in a
    /// database needs it; a REST catalog has its own.
    #[arg(long, value_name = "URI")]
    warehouse: Option<String>,

    /// Publish into the tables of this namespace; they are created if they do not exist.
    #[arg(long, value_name = "NAME")]
    namespace: String,

    /// Name the sensor whose log this is; each log needs its own name. [default: the host's name]
    #[arg(long, value_name = "NAME")]
    sensor: Option<String>,

    /// Take the place of another log that was published as this sensor: its files leave the tables.
    #[arg(long)]
    replace: bool,

    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    // Says what is wrong with it before the package is loaded.
    Log::open(&args.log)?;
    let sensor = match &args.sensor {
        Some(name) => name.clone(),
        None => {
            let name = rustix::system::uname();
            let name = name.nodename().to_str();
            name.context("the host has no name: name the sensor (--sensor)")?
                .to_owned()
        }
    };
    let mut line = Line::new("publish");
    line.option("--catalog", &args.catalog);
    if let Some(warehouse) = &args.warehouse {
        line.option("--warehouse", warehouse);
    }
    line.option("--namespace", &args.namespace);
    line.option("--sensor", &sensor);
    line.flag("--replace", args.replace);
    line.flag("--json", args.json);
    strata_training::python::run(line.names([args.log.clone()]))
}
