//! `strata gpv target`: the file of addresses that a running `strata gpv run` sends vectors to.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use strata_gpv_run::Target;
use strata_store::Sources;
use strata_terminal::output::{Content, Output, refuse, standard};

use super::target::{line_of, listed, target, without_comment};

/// Commands of `strata gpv target`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum TargetCommand {
    /// Add an address, with rules that choose flows; the running command sends vectors there.
    Add(ChangeArgs),
    /// Remove an address; the running command sends no more vectors there.
    Remove(ChangeArgs),
    /// List the addresses with their rules.
    List(ListArgs),
}

/// Arguments of `strata gpv target add` and `remove`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata gpv target add targets.txt collector:4739
  strata gpv run -i eth0 --targets targets.txt &
  strata gpv target add targets.txt 192.0.2.10:4739,proto=udp,dst=10.0.0.0/8
  strata gpv target remove targets.txt 192.0.2.10:4739,proto=udp,dst=10.0.0.0/8

The file has a line for each target: ADDRESS:PORT[,RULE...]. A text editor can change it, too.")]
pub(super) struct ChangeArgs {
    /// Change this file, which `strata gpv run --targets` reads; `add` creates it.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The address, and its rules, as for `strata gpv run --send-to`.
    #[arg(value_name = "HOST:PORT[,RULE...]", value_parser = target)]
    target: Target,
}

/// Arguments of `strata gpv target list`.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// List the targets in this file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn run(command: &TargetCommand) -> Result<()> {
    match command {
        TargetCommand::Add(args) => add(args),
        TargetCommand::Remove(args) => remove(args),
        TargetCommand::List(args) => {
            let text = read(&args.file)?;
            let mut out = standard();
            for target in valid(&args.file, &text)? {
                writeln!(out, "{}", target.name)?;
            }
            Ok(())
        }
    }
}

fn add(args: &ChangeArgs) -> Result<()> {
    let mut text = match fs::read_to_string(&args.file) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        other => other.with_context(|| format!("{}: cannot read", args.file.display()))?,
    };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text += &line_of(&args.target);
    text.push('\n');
    write(&args.file, &text)
}

fn remove(args: &ChangeArgs) -> Result<()> {
    let text = read(&args.file)?;
    let line = line_of(&args.target);
    let wanted = without_comment(&line);
    let mut kept = String::new();
    for line in text.lines() {
        if without_comment(line) != wanted {
            kept += line;
            kept.push('\n');
        }
    }
    if kept.lines().count() == text.lines().count() {
        return Err(refuse(format!(
            "{}: has no target {wanted}: `strata gpv target list` shows those that it has",
            args.file.display()
        )));
    }
    write(&args.file, &kept)
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("{}: cannot read", file.display()))
}

fn valid(file: &Path, text: &str) -> Result<Vec<Target>> {
    listed(text).map_err(|problem| refuse(format!("{}: {problem}", file.display())))
}

/// Replaces the file as a whole, so that the running command never reads a part of it.
fn write(file: &Path, text: &str) -> Result<()> {
    valid(file, text)?;
    let mut output = Output::create(file, Content::Text, &Sources::default())?;
    output.write_all(text.as_bytes())?;
    output.finish()
}
