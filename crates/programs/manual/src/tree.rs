//! The outlines of all programs as one command line, that of `strata`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use strata_outline::{Outline, WORD};

/// The program that runs the others.
const MAIN: &str = "strata";
/// What builds them.
const MADE_BY: &str = "build all programs with `make build`";

/// Asks the programs in a folder, and joins what they say, without what help hides.
///
/// # Errors
///
/// If one is missing, does not run or says something else: with its path.
pub(crate) fn read(folder: &Path) -> Result<Outline> {
    let mut tree = ask(folder, MAIN)?;
    let mut others: BTreeMap<String, Outline> = BTreeMap::new();
    for command in &mut tree.commands {
        let Some(program) = command.program.clone() else {
            continue;
        };
        if !others.contains_key(&program) {
            others.insert(program.clone(), ask(folder, &program)?);
        }
        *command = joined(command, &others[&program])
            .with_context(|| format!("{}: {MADE_BY}", folder.join(program).display()))?;
    }
    without_hidden(&mut tree);
    Ok(tree)
}

fn ask(folder: &Path, name: &str) -> Result<Outline> {
    let program = folder.join(name);
    let shown = program.display();
    let asked = Command::new(&program)
        .arg(WORD)
        .stdin(Stdio::null())
        .output();
    let asked = asked.with_context(|| format!("{shown}: cannot be run: {MADE_BY}"))?;
    if !asked.status.success() {
        let said = String::from_utf8_lossy(&asked.stderr).into_owned();
        bail!("{shown}: does not print its outline: {}", said.trim());
    }
    serde_json::from_slice(&asked.stdout).with_context(|| {
        format!("{shown}: prints an outline that this program does not read: {MADE_BY}")
    })
}

/// A command of `strata` as the program describes it that has it: as a whole, or as one of its commands.
fn joined(command: &Outline, program: &Outline) -> Result<Outline> {
    let found = match program.full_name == command.full_name {
        true => Some(program),
        false => program.find(&[&command.name]),
    };
    let found = found.with_context(|| format!("has no command {}", command.name))?;
    ensure!(
        found.full_name == command.full_name,
        "calls this command {}, not {}",
        found.full_name,
        command.full_name
    );
    Ok(Outline {
        name: command.name.clone(),
        ..found.clone()
    })
}

/// Takes out commands, options, values and defaults that no help shows, or that say nothing.
fn without_hidden(outline: &mut Outline) {
    outline.commands.retain(|command| !command.is_hidden);
    outline.arguments.retain(|one| !one.hidden.everywhere);
    for argument in &mut outline.arguments {
        argument.values.retain(|value| !value.is_hidden);
        argument.defaults.retain(|value| !value.is_empty());
        // A page has all of what `--help` says.
        argument.hidden.in_short = false;
    }
    outline.commands.iter_mut().for_each(without_hidden);
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    fn outline(command: &Command) -> Outline {
        Outline::of(command)
    }

    #[test]
    fn a_program_is_a_command_or_has_several() {
        let main = outline(
            &Command::new("strata")
                .subcommand(Command::new("gpv"))
                .subcommand(Command::new("agent"))
                .subcommand(Command::new("move")),
        );
        let whole = outline(
            &Command::new("strata-vectors")
                .bin_name("strata gpv")
                .arg(Arg::new("file")),
        );
        let several = outline(
            &Command::new("strata-fleet")
                .bin_name("strata")
                .subcommand(Command::new("agent").about("Captures")),
        );
        let [gpv, agent, other] = &main.commands[..] else {
            panic!("{main:?}");
        };
        let gpv = joined(gpv, &whole).unwrap();
        assert_eq!((&*gpv.name, &*gpv.full_name), ("gpv", "strata gpv"));
        assert!(gpv.arguments.iter().any(|one| one.id == "file"));
        let agent = joined(agent, &several).unwrap();
        assert_eq!(agent.about.as_deref(), Some("Captures"));
        assert_eq!(agent.full_name, "strata agent");
        let error = joined(other, &several).unwrap_err();
        assert_eq!(error.to_string(), "has no command move");
    }

    #[test]
    fn what_help_hides_is_left_out() {
        let mut all = outline(
            &Command::new("strata")
                .arg(Arg::new("shown").long("shown").conflicts_with("secret"))
                .arg(Arg::new("secret").long("secret").hide(true))
                .subcommand(Command::new("helper").hide(true)),
        );
        without_hidden(&mut all);
        assert!(all.commands.is_empty());
        assert!(all.arguments.iter().all(|one| one.id != "secret"));
        // And what is left is still a command line.
        all.command().build();
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = format!("{:#}", read(dir.path()).unwrap_err());
        assert!(
            error.contains(&*dir.path().join("strata").to_string_lossy()),
            "{error}"
        );
        assert!(error.contains("make build"), "{error}");
    }
}
