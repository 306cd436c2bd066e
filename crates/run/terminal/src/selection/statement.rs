//! A statement of SQL over a log: the arguments of `strata query` and of `strata-sql`, which it runs.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;

use super::names::NameFiles;

/// Statements to begin with.
pub const EXAMPLES: &str = "\
Examples:
  strata query log/ \"SELECT dst, count(*), sum(wire_bytes) FROM packets
      WHERE class = 'anomalous' GROUP BY dst ORDER BY 2 DESC LIMIT 20\"
  strata query log/ \"SELECT * FROM flows WHERE tls_server_name LIKE '%.example'\" --format csv
  strata query log/ \"SELECT * FROM packets LIMIT 1000\" -w some.parquet
  strata query log/ --mmdb GeoLite2-Country.mmdb \\
      \"SELECT address_country(dst) AS country, count(*) FROM packets GROUP BY 1\"
  strata query log/ \"DESCRIBE packets\"";

/// What the exit status says.
pub const EXIT_STATUS: &str = "\
Exit status: 0 if the statement was answered from all data of the log; 1 if not: an invalid
statement, no log, a missing key, or damage. Damaged blocks of block files and missing compacted
files are left out of the answer (standard error names them); other damage ends the query without an
answer. 2 if the command line is invalid.";

#[allow(
    missing_docs,
    reason = "a doc comment would be the command's description"
)]
#[derive(Debug, clap::Args)]
pub struct Line {
    /// Query the log in this directory.
    #[arg(value_name = "LOG")]
    pub log: PathBuf,

    /// Run this read-only statement, in DataFusion's dialect of SQL, which is close to
    /// PostgreSQL's. Unlike in PostgreSQL, integers that overflow 64 bits wrap around without an
    /// error: use CAST(... AS DOUBLE) before such a sum or product.
    #[arg(value_name = "SQL", allow_hyphen_values = true)]
    pub sql: String,

    /// Set the format of the result. By default, the file's name decides: csv for .csv, json for
    /// .json, parquet for .parquet, arrow for .arrow; table for all other names.
    #[arg(long, value_enum)]
    format: Option<Format>,

    /// Print a JSON object per row, as --format json does; NaN and infinite numbers become null.
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Decrypt the log with the secret key in this file.
    #[arg(long, value_name = "FILE", env = "STRATA_KEY")]
    pub key: Option<PathBuf>,

    #[command(flatten)]
    pub names: NameFiles,

    /// Use about this much memory for sorting and grouping. If more is needed, the query uses
    /// temporary files in $TMPDIR, or, with --key, ends with an error.
    #[arg(long = "sort-memory", value_name = "SIZE", default_value = "2GiB", value_parser = strata_wire::parse_bytes)]
    pub memory: u64,

    /// Write to this file, replacing it; - is standard output. A file whose name ends in .gz or
    /// .zst is compressed. Files of the log are never overwritten.
    #[arg(short = 'w', long = "write", value_name = "FILE", default_value = "-")]
    pub write: PathBuf,
}

impl Line {
    /// The format that was asked for, if any was.
    #[must_use]
    pub fn format(&self) -> Option<Format> {
        match self.json {
            true => Some(Format::Json),
            false => self.format,
        }
    }

    /// It as the command line of `strata-sql`.
    #[must_use]
    pub fn words(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = Vec::new();
        let mut option = |name: &str, value: OsString| {
            // In one word, since a value may begin with a dash.
            let mut word = OsString::from(name);
            word.push("=");
            word.push(value);
            line.push(word);
        };
        if let Some(value) = self.format().and_then(|format| format.to_possible_value()) {
            option("--format", value.get_name().into());
        }
        if let Some(key) = &self.key {
            option("--key", key.into());
        }
        for file in &self.names.names {
            option("--names", file.into());
        }
        for file in &self.names.mmdb {
            option("--mmdb", file.into());
        }
        if let Some(file) = &self.names.config {
            option("--config", file.into());
        }
        option("--sort-memory", self.memory.to_string().into());
        option("--write", self.write.clone().into());
        line.extend([
            "--".into(),
            self.log.clone().into(),
            self.sql.clone().into(),
        ]);
        line
    }
}

/// How the rows of an answer are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
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
