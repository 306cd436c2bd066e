//! The arguments of `strata query` and of `strata-sql`, which it runs: both include this file.

use std::path::PathBuf;

use clap::ValueEnum;

pub(crate) const EXAMPLES: &str = "\
Examples:
  strata query log/ \"SELECT dst, count(*), sum(wire_bytes) FROM packets
      WHERE class = 'anomalous' GROUP BY dst ORDER BY 2 DESC LIMIT 20\"
  strata query log/ \"SELECT * FROM flows WHERE tls_server_name LIKE '%.example'\" --format csv
  strata query log/ \"SELECT * FROM packets LIMIT 1000\" -w some.parquet
  strata query log/ \"DESCRIBE packets\"";

pub(crate) const EXIT_STATUS: &str = "\
Exit status: 0 if the statement was answered from all that the log has; 1 if not: an invalid
statement, no log, a key that is missing, or damage. Damaged blocks of block files, and compacted
files that are missing, are left out of the answer (standard error names them); other damage ends
the query without one. 2 if the command line is invalid.";

// Not a doc comment, which would be the command's description.
#[derive(Debug, clap::Args)]
pub(crate) struct Line {
    /// Query the log in this directory.
    #[arg(value_name = "LOG")]
    pub(crate) log: PathBuf,

    /// Run this read-only statement, in DataFusion's dialect of SQL, which is close to
    /// PostgreSQL's. Unlike there, integers that overflow 64 bits wrap around without an error:
    /// CAST(... AS DOUBLE) before such a sum or product.
    #[arg(value_name = "SQL", allow_hyphen_values = true)]
    pub(crate) sql: String,

    /// Set the format of the result. By default the file's name decides: csv for .csv, json for
    /// .json, parquet for .parquet, arrow for .arrow; table for all others.
    #[arg(long, value_enum)]
    format: Option<Format>,

    /// Print a JSON object per row, as --format json does; NaN and infinite numbers become null.
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Decrypt the log with the secret key in this file.
    #[arg(long, value_name = "FILE", env = "STRATA_KEY")]
    pub(crate) key: Option<PathBuf>,

    /// Use about this much memory for sorting and grouping. Operations that need more use temporary
    /// files, or end the query with an error.
    #[arg(long = "sort-memory", value_name = "SIZE", default_value = "2GiB", value_parser = strata_wire::parse_bytes)]
    pub(crate) memory: u64,

    /// Write to this file, replacing it; - is standard output. A file whose name ends in .gz or
    /// .zst is compressed. Files of the log are never overwritten.
    #[arg(short = 'w', long = "write", value_name = "FILE", default_value = "-")]
    pub(crate) write: PathBuf,
}

impl Line {
    /// The format that was asked for, if any was.
    pub(crate) fn format(&self) -> Option<Format> {
        match self.json {
            true => Some(Format::Json),
            false => self.format,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns.
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
