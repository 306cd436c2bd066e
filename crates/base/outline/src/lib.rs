//! A command line as plain data, so that another program can describe it: in man pages, completions, a page of options.
//!
//! - [`Outline`]: a command with its options ([`Argument`]), groups ([`Group`]) and subcommands, which serde reads and
//!   writes.
//! - [`Outline::of`]: from a [`clap::Command`]; [`Outline::command`]: back, for all that describes but does not parse.
//! - [`asked`]: the first word with which a program prints its outline.
//!
//! Used by `terminal`, for all programs, and by the program that writes man pages; uses no crate of Strata.
#![forbid(unsafe_code)]

mod argument;

use std::ffi::OsString;

use clap::{ArgGroup, Command};
use serde::{Deserialize, Serialize};

pub use argument::{Action, Argument, Hidden, Hint, Value};

/// The first word of a command line that asks a program for its outline, as JSON on standard output.
pub const WORD: &str = "outline";

/// Whether a command line, with the program's name first, asks for the outline, and for nothing else.
pub fn asked(mut line: impl Iterator<Item = OsString>) -> bool {
    line.nth(1).is_some_and(|word| word == WORD) && line.next().is_none()
}

/// A command of a command line, with those below it: as deep as the command line is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outline {
    /// As it is typed after the command above it; of a program, its name.
    pub name: String,
    /// As it is typed in full: `strata policy add`.
    pub full_name: String,
    /// The version on one line, of a command that prints one.
    pub version: Option<String>,
    /// What it does, in a line.
    pub about: Option<String>,
    /// What it does, in full, if that is more than a line.
    pub long_about: Option<String>,
    /// What `--help` has after `Usage: `, a line for each form.
    pub usage: String,
    /// What `-h` has below the options.
    pub after: Option<String>,
    /// What `--help` has below the options, if that is something else.
    pub long_after: Option<String>,
    /// Other names, which help does not show unless they are visible.
    pub aliases: Vec<Alias>,
    /// An option in place of the name: `D` for `strata -D`.
    pub short_flag: Option<char>,
    /// Whether help lists it among the commands.
    pub is_hidden: bool,
    /// Whether one of `commands` has to follow.
    pub needs_command: bool,
    /// The name of the program beside this one that has this command; its outline says the rest.
    pub program: Option<String>,
    /// Its arguments, headings in the order of the help.
    pub arguments: Vec<Argument>,
    /// Options that belong together.
    pub groups: Vec<Group>,
    /// The commands below it, in the order of the help.
    pub commands: Vec<Outline>,
}

/// Another name of a command or an option.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alias {
    /// Without dashes.
    pub name: String,
    /// Whether help shows it.
    pub is_visible: bool,
}

/// Arguments of a command that belong together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its name within the command.
    pub id: String,
    /// The [`Argument::id`] of each member, or the [`Group::id`] of a group.
    pub members: Vec<String>,
    /// Whether one has to be given.
    pub is_required: bool,
    /// Whether several can be.
    pub is_multiple: bool,
}

impl Outline {
    /// The outline of a command line. The command `help`, which clap adds, is left out.
    #[must_use]
    pub fn of(command: &Command) -> Self {
        let mut built = command.clone();
        built.build();
        let name = built.get_bin_name().unwrap_or(built.get_name()).to_owned();
        Self::of_built(&mut built, &name)
    }

    fn of_built(command: &mut Command, full_name: &str) -> Self {
        command.set_bin_name(full_name);
        let usage = command.render_usage().to_string();
        let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
        let text = |text: Option<&clap::builder::StyledStr>| text.map(ToString::to_string);
        let outline = Self {
            name: command.get_name().to_owned(),
            full_name: full_name.to_owned(),
            version: command.get_version().map(str::to_owned),
            about: text(command.get_about()),
            long_about: text(command.get_long_about()),
            usage: usage.to_owned(),
            after: text(command.get_after_help()),
            long_after: text(command.get_after_long_help()),
            aliases: aliases(
                command.get_visible_aliases().map(str::to_owned),
                command.get_all_aliases().map(str::to_owned),
            ),
            short_flag: command.get_short_flag(),
            is_hidden: command.is_hide_set(),
            needs_command: command.is_subcommand_required_set(),
            program: None,
            arguments: command
                .get_arguments()
                .map(|argument| Argument::of(argument, command))
                .collect(),
            groups: command.get_groups().map(Group::of).collect(),
            commands: Vec::new(),
        };
        let below = command.get_subcommands_mut();
        let below = below.filter(|one| one.get_name() != "help");
        let commands = below.map(|one| {
            let full_name = format!("{full_name} {}", one.get_name());
            Self::of_built(one, &full_name)
        });
        let commands = commands.collect();
        Self {
            commands,
            ..outline
        }
    }

    /// A command line that says of itself what this outline says. It parses values as text, and does not know which
    /// option needs another one.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.name.clone())
            .bin_name(self.full_name.clone())
            .display_name(self.full_name.replace(' ', "-"))
            .override_usage(self.usage.clone())
            .hide(self.is_hidden)
            .subcommand_required(self.needs_command)
            .disable_help_flag(true)
            .disable_help_subcommand(true)
            .disable_version_flag(true);
        for alias in &self.aliases {
            command = match alias.is_visible {
                true => command.visible_alias(alias.name.clone()),
                false => command.alias(alias.name.clone()),
            };
        }
        if let Some(version) = &self.version {
            command = command.version(version.clone());
        }
        if let Some(about) = &self.about {
            command = command.about(about.clone());
        }
        if let Some(about) = &self.long_about {
            command = command.long_about(about.clone());
        }
        if let Some(after) = &self.after {
            command = command.after_help(after.clone());
        }
        if let Some(after) = &self.long_after {
            command = command.after_long_help(after.clone());
        }
        if let Some(flag) = self.short_flag {
            command = command.short_flag(flag);
        }
        // Those that were taken out of the outline are not there to conflict with.
        let is_known = |id: &str| {
            self.arguments.iter().any(|one| one.id == id)
                || self.groups.iter().any(|one| one.id == id)
        };
        let arguments = self.arguments.iter();
        command = command.args(arguments.map(|argument| argument.arg(is_known)));
        for group in &self.groups {
            let members = group.members.iter().filter(|id| is_known(id)).cloned();
            command = command.group(
                ArgGroup::new(group.id.clone())
                    .args(members)
                    .required(group.is_required)
                    .multiple(group.is_multiple),
            );
        }
        command.subcommands(self.commands.iter().map(Self::command))
    }

    /// The command that is typed so below this one, if there is one.
    #[must_use]
    pub fn find(&self, words: &[&str]) -> Option<&Self> {
        let Some((first, rest)) = words.split_first() else {
            return Some(self);
        };
        let below = self.commands.iter().find(|one| one.name == *first)?;
        below.find(rest)
    }
}

impl Group {
    fn of(group: &ArgGroup) -> Self {
        Self {
            id: group.get_id().to_string(),
            members: group.get_args().map(ToString::to_string).collect(),
            is_required: group.is_required_set(),
            // Asks for a group that may change, and does not change it.
            is_multiple: group.clone().is_multiple(),
        }
    }
}

/// All other names, with whether help shows them.
fn aliases(visible: impl Iterator<Item = String>, all: impl Iterator<Item = String>) -> Vec<Alias> {
    let visible: Vec<String> = visible.collect();
    let alias = |name: String| Alias {
        is_visible: visible.contains(&name),
        name,
    };
    all.map(alias).collect()
}
