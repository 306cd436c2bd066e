//! `strata model`: another model put in force, and two of them compared.

mod compare;
mod promote;

use anyhow::Result;

/// Arguments of `strata model`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Put another model in force: the shadow of a running recording, or a file in place of another.
    Promote(promote::Args),
    /// Show where two models differ: on a capture or log, or in a running recording with a shadow.
    Compare(Box<compare::Args>),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Promote(args) => promote::run(args),
        Command::Compare(args) => compare::run(args),
    }
}
