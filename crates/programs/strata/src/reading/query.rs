//! `strata query`: runs `strata-sql`, a separate program since its SQL engine is larger than
//! everything else. Its arguments are declared here, so that `--help` and usage errors work
//! where it is not installed.

mod args;

use std::ffi::OsString;

use anyhow::Result;
use clap::ValueEnum;
use strata_terminal::program;

use args::{EXAMPLES, EXIT_STATUS, Line};

/// Arguments of `strata query`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
The log's tables are `packets`, one row per logged packet, and `flows`.

{EXAMPLES}

{EXIT_STATUS}

Needs the program strata-sql, which `make sql` builds."))]
pub(crate) struct Args {
    #[command(flatten)]
    line: Line,
}

const PROGRAM: &str = "strata-sql";

impl Line {
    /// It as the command line of `strata-sql`.
    fn words(&self) -> Vec<OsString> {
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

/// Becomes `strata-sql`.
pub(crate) fn run(args: &Args) -> Result<()> {
    program::become_program(PROGRAM, "make sql", &args.line.words())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::Args;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn json_is_short_for_its_format() {
        let words = |options: &[&str]| {
            let line = ["query", "log", "SELECT 1"].iter().chain(options);
            Cli::try_parse_from(line).map(|cli| cli.args.line.words())
        };
        let short = words(&["--json", "-w", "x.csv"]).unwrap();
        assert_eq!(short[0], "--format=json");
        assert_eq!(short, words(&["--format", "json", "-w", "x.csv"]).unwrap());
        assert!(words(&["--json", "--format", "csv"]).is_err());
    }
}
