//! Colour for what went wrong: as `--color` says; by default at terminals only, and not if the environment variable
//! NO_COLOR is set (no-color.org).

use std::env;
use std::io::IsTerminal;
use std::sync::OnceLock;

use clap::builder::EnumValueParser;
use clap::{Arg, ArgMatches, ValueEnum};

/// When output is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColourChoice {
    /// On terminals that can show colours, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always, also in pipes and files.
    Always,
    /// Never.
    Never,
}

/// What the user has chosen.
static CHOSEN: OnceLock<ColourChoice> = OnceLock::new();

/// The name of the option.
const OPTION: &str = "color";

/// The option `--color`, which every command of every program accepts. The program's own help names it, and not that of
/// each command.
#[must_use]
pub fn option() -> Arg {
    Arg::new(OPTION)
        .long(OPTION)
        .value_name("WHEN")
        .help("Colour errors, warnings and losses: auto, always or never")
        .value_parser(EnumValueParser::<ColourChoice>::new())
        .hide(true)
        .global(true)
}

/// From now on colours are as the command line says. The first call decides.
pub(crate) fn choose(matches: &ArgMatches) {
    if let Some(&choice) = matches.get_one::<ColourChoice>(OPTION) {
        CHOSEN.get_or_init(|| choice);
    }
}

/// A colour, as a terminal is told (ECMA-48, 8.3.117).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Bold red: packets are lost, or a command has failed.
    Red,
    /// Bold yellow: a warning.
    Yellow,
}

/// The usual colour again.
const USUAL: &str = "\x1b[0m";

impl Colour {
    fn begin(self) -> &'static str {
        match self {
            Self::Red => "\x1b[1;31m",
            Self::Yellow => "\x1b[1;33m",
        }
    }

    /// Text in this colour, which ends with the text.
    #[must_use]
    pub fn of(self, text: &str) -> String {
        format!("{}{text}{USUAL}", self.begin())
    }
}

/// Whether an output gets colours.
#[must_use]
pub fn is_wanted(output: &impl IsTerminal) -> bool {
    match CHOSEN.get() {
        Some(ColourChoice::Always) => return true,
        Some(ColourChoice::Never) => return false,
        Some(ColourChoice::Auto) | None => {}
    }
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let has_colours = env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    output.is_terminal() && has_colours && !is_set("NO_COLOR")
}

/// A page of facts, those that are alarming in red. The first line of a fact begins with its name; further lines of
/// it begin with a space.
#[must_use]
pub fn alarms(page: &str, is_alarming: impl Fn(&str) -> bool) -> String {
    let mut coloured = String::with_capacity(page.len());
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let mut fact = vec![line];
        while let Some(more) = lines.next_if(|line| line.starts_with(' ')) {
            fact.push(more);
        }
        let is_alarming = is_alarming(&fact.join(" "));
        for line in fact {
            match is_alarming {
                true => coloured.push_str(&Colour::Red.of(line)),
                false => coloured.push_str(line),
            }
            coloured.push('\n');
        }
    }
    coloured
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_of_an_alarming_fact_are_red() {
        let page = "packets  logged: 3\nlost     device: 6\n         packets\nmodel    fits\n";
        let red = "packets  logged: 3\n\x1b[1;31mlost     device: 6\x1b[0m\n\
            \x1b[1;31m         packets\x1b[0m\nmodel    fits\n";
        assert_eq!(alarms(page, |fact| fact.starts_with("lost ")), red);
        assert_eq!(alarms(page, |_| false), page);
    }
}
