//! `strata query`: runs `strata-sql`, a separate program since its SQL engine is larger than
//! everything else. Its arguments are declared here too, so that `--help` and usage errors work
//! where it is not installed.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};
use clap::ValueEnum;

/// Arguments of `strata query`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Its tables are `packets`, one row per logged packet, and `flows`.

Examples:
  strata query log/ \"SELECT dst, count(*), sum(wire_bytes) FROM packets
      WHERE class = 'anomalous' GROUP BY dst ORDER BY 2 DESC LIMIT 20\"
  strata query log/ \"SELECT * FROM flows WHERE tls_server_name LIKE '%.example'\" --format csv
  strata query log/ \"SELECT * FROM packets LIMIT 1000\" -w some.parquet
  strata query log/ \"DESCRIBE packets\"

Needs the program strata-sql, which `make sql` builds.")]
pub(crate) struct Args {
    /// Query the log in this directory.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    /// Run this one statement, in DataFusion's dialect, which is close to PostgreSQL's.
    #[arg(value_name = "SQL", allow_hyphen_values = true)]
    sql: String,

    /// Set the format of the result. By default the file's name decides: csv, json, parquet and
    /// arrow for these; table for all others.
    #[arg(long, value_enum)]
    format: Option<Format>,

    /// Decrypt the log with the secret key in this file.
    #[arg(long, value_name = "FILE", env = "STRATA_KEY")]
    key: Option<PathBuf>,

    /// Write to this file, replacing it; - is standard output. Files of the log are never
    /// overwritten.
    #[arg(short = 'w', long = "write", value_name = "FILE", default_value = "-")]
    write: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// With a header line.
    Csv,
    /// One object per line.
    Json,
    /// A Parquet file.
    Parquet,
    /// An Arrow IPC stream.
    Arrow,
}

const PROGRAM: &str = "strata-sql";

impl Args {
    /// The same command line for `strata-sql`.
    fn line(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = Vec::new();
        let mut option = |name: &str, value: OsString| {
            // In one word, since a value may begin with a dash.
            let mut word = OsString::from(name);
            word.push("=");
            word.push(value);
            line.push(word);
        };
        if let Some(value) = self.format.and_then(|format| format.to_possible_value()) {
            option("--format", value.get_name().into());
        }
        if let Some(key) = &self.key {
            option("--key", key.into());
        }
        option("--write", self.write.clone().into());
        line.extend([
            "--".into(),
            self.log.clone().into(),
            self.sql.clone().into(),
        ]);
        line
    }
}

/// Replaces this process with `strata-sql`: the one next to this program, else the one in PATH.
pub(crate) fn run(args: &Args) -> Result<()> {
    let beside = std::env::current_exe().ok();
    let beside = beside.map(|path| path.with_file_name(PROGRAM));
    let programs = beside.into_iter().chain([PROGRAM.into()]);
    let line = args.line();
    for program in programs {
        let error = Command::new(&program).args(&line).exec();
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error.into());
        }
    }
    bail!("{PROGRAM} is neither beside strata nor in the path: build it with `make sql`")
}
