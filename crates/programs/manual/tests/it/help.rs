//! Man pages and completions are made from outlines: these have all that help shows.

use std::process::Command;

use strata_outline::Outline;

use crate::{PROGRAMS, built, ok};

/// The commands without others below them that help shows, each as the words after the program.
fn leaves<'a>(outline: &'a Outline, above: &[&'a str], into: &mut Vec<Vec<&'a str>>) {
    for command in outline.commands.iter().filter(|one| one.program.is_none()) {
        let words = [above, &[&command.name]].concat();
        match command.commands.is_empty() {
            true => into.push(words),
            false => leaves(command, &words, into),
        }
    }
}

#[test]
fn the_outline_of_each_command_has_all_of_its_help() {
    let mut compared = 0;
    for name in PROGRAMS {
        let program = built().join(name);
        let json = ok(Command::new(&program).arg("outline"));
        let outline: Outline = serde_json::from_str(&json).unwrap();
        let mut all = Vec::new();
        leaves(&outline, &[], &mut all);
        for words in all {
            let mut command = Command::new(&program);
            // Else help shows the values of variables of this process.
            let shown = ok(command.env_clear().args(&words).arg("--help"));
            let line = [&[name], &words[..], &["--help"]].concat();
            let back = outline.command().term_width(100);
            let help = back.try_get_matches_from(line).unwrap_err().to_string();
            assert_eq!(help, shown, "{name} {words:?}");
            compared += 1;
        }
    }
    assert!(compared > 50, "{compared} commands");
}
