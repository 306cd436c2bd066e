//! `strata train`: from labelled snapshots to a model. The Python package does it.

use std::ffi::OsString;

use anyhow::Result;

/// Arguments of `strata train`, which the Python package reads.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// See `strata train --help`.
    #[arg(
        value_name = "ARGUMENTS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<OsString>,
}

/// Runs a command of the Python package with the user's own arguments.
pub(crate) fn run(command: &str, args: &Args) -> Result<()> {
    let mut arguments = vec![OsString::from(command)];
    arguments.extend(args.arguments.iter().cloned());
    crate::python::run(arguments)
}
