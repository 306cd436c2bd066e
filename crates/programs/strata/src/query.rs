//! `strata query`: runs `strata-sql`, a separate program since its SQL engine is larger than
//! everything else. Its arguments are declared here, so that `--help` and usage errors work
//! where it is not installed.

mod args;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, bail};
use clap::ValueEnum;

use args::{EXAMPLES, Line};

/// Arguments of `strata query`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
Its tables are `packets`, one row per logged packet, and `flows`.

{EXAMPLES}

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
        if let Some(value) = self.format.and_then(|format| format.to_possible_value()) {
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

/// Replaces this process with `strata-sql`: the one next to this program, else the one in PATH.
pub(crate) fn run(args: &Args) -> Result<()> {
    let beside = std::env::current_exe().ok();
    let beside = beside.map(|path| path.with_file_name(PROGRAM));
    let programs = beside.into_iter().chain([PROGRAM.into()]);
    let line = args.line.words();
    for program in programs {
        let error = Command::new(&program).args(&line).exec();
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error.into());
        }
    }
    bail!("{PROGRAM} is neither beside strata nor in the path: build it with `make sql`")
}
