//! `strata query`: runs `strata-sql`, a separate program since its SQL engine is larger than
//! everything else. Its arguments are known here, so that `--help` and usage errors work
//! where it is not installed.

use anyhow::Result;
use strata_terminal::program;
use strata_terminal::selection::statement::{EXAMPLES, EXIT_STATUS, Line};

/// Arguments of `strata query`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
The log's tables are `packets`, one row per logged packet, and `flows`.

{EXAMPLES}

{EXIT_STATUS}"))]
pub(crate) struct Args {
    #[command(flatten)]
    line: Line,
}

const PROGRAM: &str = "strata-sql";

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
