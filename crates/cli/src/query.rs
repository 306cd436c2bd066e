//! `strata query`: runs `strata-sql`, a program of its own since its SQL engine is
//! larger than all the rest.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, bail};

/// Arguments of `strata query`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// What strata-sql takes: a log, a statement, --format; see --help.
    #[arg(
        value_name = "LOG SQL",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    rest: Vec<OsString>,
}

const PROGRAM: &str = "strata-sql";

/// Becomes `strata-sql`: the one beside this program, else the one in the path.
pub(crate) fn run(args: &Args) -> Result<()> {
    let beside = std::env::current_exe().ok();
    let beside = beside.map(|path| path.with_file_name(PROGRAM));
    let programs = beside.into_iter().chain([PROGRAM.into()]);
    for program in programs {
        let error = Command::new(&program).args(&args.rest).exec();
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error.into());
        }
    }
    bail!("{PROGRAM} is neither beside strata nor in the path: build it with `make sql`")
}
