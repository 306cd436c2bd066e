//! `strata-manual`: man pages and completions of all commands, for `make install`. It asks the programs that stand
//! beside it for their outlines ([`strata_outline`]), joins these into the command line that users see, and writes.
//! It is not installed.
//!
//! ```text
//! tree     the outlines of strata and of the programs that it runs, as one
//! page     a man page for each command
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a tool of the build")]

mod page;
mod tree;

use std::env::current_exe;
use std::fs::{self, create_dir_all};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use clap_complete::{Shell, generate};
use strata_outline::Outline;

/// Write man pages, and completions for bash, zsh and fish, of the programs that stand beside this one.
#[derive(Debug, Parser)]
#[command(name = "strata-manual", max_term_width = 100)]
struct Args {
    /// Write into this directory, laid out as /usr/share; created if missing.
    dir: PathBuf,
}

/// Shells, the folder of their completions below /usr/share, and the file in it.
const SHELLS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "bash-completion/completions", "strata"),
    (Shell::Zsh, "zsh/site-functions", "_strata"),
    (Shell::Fish, "fish/vendor_completions.d", "strata.fish"),
];

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("strata-manual: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let this = current_exe().context("cannot find this program and the programs next to it")?;
    let folder = this
        .parent()
        .context("the directory of this program is unknown")?;
    let tree = tree::read(folder)?;
    let pages = folder_in(&args.dir, "man/man1")?;
    page::write_all(&tree, &pages)?;
    for (shell, place, name) in SHELLS {
        let file = folder_in(&args.dir, place)?.join(name);
        write(&file, &completions(&tree, shell))?;
    }
    Ok(())
}

/// The script that completes the command line in a shell.
fn completions(tree: &Outline, shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, &mut tree.command(), tree.name.clone(), &mut script);
    script
}

/// A folder below another one, made if it is missing.
fn folder_in(dir: &Path, place: &str) -> Result<PathBuf> {
    let folder = dir.join(place);
    create_dir_all(&folder)
        .with_context(|| format!("{}: cannot make this directory", folder.display()))?;
    Ok(folder)
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(file, bytes).with_context(|| format!("{}: cannot be written", file.display()))
}
