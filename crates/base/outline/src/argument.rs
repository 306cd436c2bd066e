//! Options and positional arguments.

use std::iter;

use clap::builder::{PossibleValue, PossibleValuesParser, ValueRange};
use clap::{Arg, ArgAction, Command, ValueHint};
use serde::{Deserialize, Serialize};

use crate::Alias;

/// An option, or an argument without a name.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Argument {
    /// Its name within the command, which no user sees.
    pub id: String,
    /// The letter after one dash.
    pub short: Option<char>,
    /// The word after two dashes.
    pub long: Option<String>,
    /// Other words after two dashes.
    pub aliases: Vec<Alias>,
    /// Other letters after one dash, a character each.
    pub short_aliases: Vec<Alias>,
    /// Of an argument without a name, its place: 1 is the first.
    pub place: Option<usize>,
    /// Its place in the help, among those below the same heading; several may have the same, and are there by name.
    pub order: usize,
    /// The heading in the help below which it is; without one, that of all options.
    pub heading: Option<String>,
    /// What it does, in a line.
    pub help: Option<String>,
    /// What it does, in full, if that is more than a line.
    pub long_help: Option<String>,
    /// What giving it does.
    pub action: Action,
    /// Names of its values, as in `<FILE>`.
    pub value_names: Vec<String>,
    /// The least number of values each time that it is given.
    pub values_min: usize,
    /// The largest number of values each time, [`usize::MAX`] for any number.
    pub values_max: usize,
    /// What separates values, if several may be in one word.
    pub separator: Option<char>,
    /// Whether its value has to be joined by `=`.
    pub needs_equals: bool,
    /// The values without which it stays, if it is not given.
    pub defaults: Vec<String>,
    /// The environment variable that gives it.
    pub environment: Option<String>,
    /// All values, if they are a list.
    pub values: Vec<Value>,
    /// What a value is, for completions.
    pub hint: Hint,
    /// Whether it has to be given.
    pub is_required: bool,
    /// Whether it takes words that begin with a dash.
    pub takes_dashes: bool,
    /// Whether it takes all words that are left.
    pub takes_rest: bool,
    /// Whether it comes after `--` only.
    pub is_last: bool,
    /// The [`Argument::id`] of each argument that cannot be given with it.
    pub conflicts: Vec<String>,
    /// What help does not show.
    pub hidden: Hidden,
}

/// What giving an argument does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Sets a value.
    Set,
    /// Adds a value to those of the other times.
    Append,
    /// Turns something on.
    SetTrue,
    /// Turns something off.
    SetFalse,
    /// Counts the times.
    Count,
    /// Prints the help, as it was asked for.
    Help,
    /// Prints the short help.
    HelpShort,
    /// Prints all of the help.
    HelpLong,
    /// Prints the version.
    Version,
}

/// One of the values of an argument.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// As it is typed.
    pub name: String,
    /// What it means.
    pub help: Option<String>,
    /// Whether help leaves it out.
    pub is_hidden: bool,
}

/// What the value of an argument is, for completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hint {
    /// Not known.
    Unknown,
    /// Something else than what follows.
    Other,
    /// A file or a directory.
    Path,
    /// A file.
    File,
    /// A directory.
    Directory,
    /// The name of a host.
    Host,
    /// The name of a user.
    User,
    /// A URL.
    Url,
    /// A program.
    Program,
}

/// What help does not show of an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "clap has them one by one")]
pub struct Hidden {
    /// Everything.
    pub everywhere: bool,
    /// Everything, in `-h`.
    pub in_short: bool,
    /// Everything, in `--help`.
    pub in_long: bool,
    /// Its defaults.
    pub defaults: bool,
    /// The list of its values.
    pub values: bool,
    /// Its environment variable.
    pub environment: bool,
    /// The value of that variable.
    pub environment_value: bool,
}

impl Argument {
    /// An argument of a command that was built.
    pub(crate) fn of(arg: &Arg, command: &Command) -> Self {
        let text = |text: Option<&clap::builder::StyledStr>| text.map(ToString::to_string);
        let range = arg.get_num_args();
        let takes_values = arg.get_action().takes_values();
        let usual = if takes_values { 1..=1 } else { 0..=0 };
        let range = range.unwrap_or_else(|| ValueRange::new(usual));
        let names = arg.get_value_names().into_iter().flatten();
        let defaults = arg.get_default_values().iter();
        // A flag's are the two that text may give it in a variable.
        let values = match takes_values {
            true => arg.get_possible_values(),
            false => Vec::new(),
        };
        let id = |arg: &&Arg| arg.get_id().to_string();
        Self {
            id: arg.get_id().to_string(),
            short: arg.get_short(),
            long: arg.get_long().map(str::to_owned),
            aliases: crate::aliases(
                arg.get_visible_aliases()
                    .into_iter()
                    .flatten()
                    .map(str::to_owned),
                arg.get_all_aliases()
                    .into_iter()
                    .flatten()
                    .map(str::to_owned),
            ),
            short_aliases: crate::aliases(
                letters(arg.get_visible_short_aliases()),
                letters(arg.get_all_short_aliases()),
            ),
            place: arg.get_index(),
            order: arg.get_display_order(),
            heading: arg.get_help_heading().map(str::to_owned),
            help: text(arg.get_help()),
            long_help: text(arg.get_long_help()),
            action: Action::of(arg.get_action()),
            value_names: names.map(ToString::to_string).collect(),
            values_min: range.min_values(),
            values_max: range.max_values(),
            separator: arg.get_value_delimiter(),
            needs_equals: arg.is_require_equals_set(),
            defaults: match takes_values {
                true => defaults
                    .map(|value| value.to_string_lossy().into_owned())
                    .collect(),
                false => Vec::new(),
            },
            environment: arg
                .get_env()
                .map(|name| name.to_string_lossy().into_owned()),
            values: values.iter().map(Value::of).collect(),
            hint: Hint::of(arg.get_value_hint()),
            is_required: arg.is_required_set(),
            takes_dashes: arg.is_allow_hyphen_values_set(),
            takes_rest: arg.is_trailing_var_arg_set(),
            is_last: arg.is_last_set(),
            conflicts: command.get_arg_conflicts_with(arg).iter().map(id).collect(),
            hidden: Hidden {
                everywhere: arg.is_hide_set(),
                in_short: arg.is_hide_short_help_set(),
                in_long: arg.is_hide_long_help_set(),
                defaults: arg.is_hide_default_value_set(),
                values: arg.is_hide_possible_values_set(),
                environment: arg.is_hide_env_set(),
                environment_value: arg.is_hide_env_values_set(),
            },
        }
    }

    /// As clap has it, beside the arguments that are known.
    pub(crate) fn arg(&self, is_known: impl Fn(&str) -> bool) -> Arg {
        let hidden = self.hidden;
        let conflicts = self.conflicts.iter().filter(|id| is_known(id));
        let mut arg = Arg::new(self.id.clone())
            .action(self.action.action())
            .display_order(self.order)
            .required(self.is_required)
            .require_equals(self.needs_equals)
            .allow_hyphen_values(self.takes_dashes)
            .trailing_var_arg(self.takes_rest)
            .last(self.is_last)
            .hide(hidden.everywhere)
            .hide_short_help(hidden.in_short)
            .hide_long_help(hidden.in_long)
            .hide_default_value(hidden.defaults)
            .hide_possible_values(hidden.values)
            .hide_env(hidden.environment)
            .hide_env_values(hidden.environment_value)
            .conflicts_with_all(conflicts.cloned());
        if let Some(short) = self.short {
            arg = arg.short(short);
        }
        if let Some(long) = &self.long {
            arg = arg.long(long.clone());
        }
        for alias in &self.aliases {
            arg = match alias.is_visible {
                true => arg.visible_alias(alias.name.clone()),
                false => arg.alias(alias.name.clone()),
            };
        }
        for alias in &self.short_aliases {
            for letter in alias.name.chars() {
                arg = match alias.is_visible {
                    true => arg.visible_short_alias(letter),
                    false => arg.short_alias(letter),
                };
            }
        }
        if let Some(place) = self.place {
            arg = arg.index(place);
        }
        if let Some(heading) = &self.heading {
            arg = arg.help_heading(heading.clone());
        }
        if let Some(help) = &self.help {
            arg = arg.help(help.clone());
        }
        if let Some(help) = &self.long_help {
            arg = arg.long_help(help.clone());
        }
        if let Some(name) = &self.environment {
            arg = arg.env(name.clone());
        }
        if !self.action.action().takes_values() {
            return arg;
        }
        if !self.values.is_empty() {
            let values = self.values.iter().map(Value::possible);
            arg = arg.value_parser(PossibleValuesParser::new(values));
        }
        if !self.value_names.is_empty() {
            arg = arg.value_names(self.value_names.iter().cloned());
        }
        if let Some(separator) = self.separator {
            arg = arg.value_delimiter(separator);
        }
        arg.num_args(self.values_min..=self.values_max)
            .default_values(self.defaults.iter().cloned())
            .value_hint(self.hint.hint())
    }
}

/// A text for each letter.
fn letters(all: Option<Vec<char>>) -> impl Iterator<Item = String> {
    all.into_iter().flatten().map(String::from)
}

impl Value {
    fn of(value: &PossibleValue) -> Self {
        Self {
            name: value.get_name().to_owned(),
            help: value.get_help().map(ToString::to_string),
            is_hidden: value.is_hide_set(),
        }
    }

    fn possible(&self) -> PossibleValue {
        let value = PossibleValue::new(self.name.clone()).hide(self.is_hidden);
        match &self.help {
            Some(help) => value.help(help.clone()),
            None => value,
        }
    }
}

impl Action {
    /// Each, as clap calls it.
    fn all() -> impl Iterator<Item = (Self, ArgAction)> {
        let known = [
            (Self::Append, ArgAction::Append),
            (Self::SetTrue, ArgAction::SetTrue),
            (Self::SetFalse, ArgAction::SetFalse),
            (Self::Count, ArgAction::Count),
            (Self::Help, ArgAction::Help),
            (Self::HelpShort, ArgAction::HelpShort),
            (Self::HelpLong, ArgAction::HelpLong),
            (Self::Version, ArgAction::Version),
        ];
        iter::once((Self::Set, ArgAction::Set)).chain(known)
    }

    /// One that clap adds later is described as a value that is set.
    fn of(action: &ArgAction) -> Self {
        let name = |action: &ArgAction| format!("{action:?}");
        let same = Self::all().find(|(_, theirs)| name(theirs) == name(action));
        same.map_or(Self::Set, |(ours, _)| ours)
    }

    fn action(self) -> ArgAction {
        let same = Self::all().find(|(ours, _)| *ours == self);
        same.map_or(ArgAction::Set, |(_, theirs)| theirs)
    }
}

impl Hint {
    fn of(hint: ValueHint) -> Self {
        match hint {
            ValueHint::Other => Self::Other,
            ValueHint::AnyPath => Self::Path,
            ValueHint::FilePath => Self::File,
            ValueHint::DirPath => Self::Directory,
            ValueHint::Hostname => Self::Host,
            ValueHint::Username => Self::User,
            ValueHint::Url => Self::Url,
            ValueHint::ExecutablePath | ValueHint::CommandName => Self::Program,
            _ => Self::Unknown,
        }
    }

    fn hint(self) -> ValueHint {
        match self {
            Self::Unknown => ValueHint::Unknown,
            Self::Other => ValueHint::Other,
            Self::Path => ValueHint::AnyPath,
            Self::File => ValueHint::FilePath,
            Self::Directory => ValueHint::DirPath,
            Self::Host => ValueHint::Hostname,
            Self::User => ValueHint::Username,
            Self::Url => ValueHint::Url,
            Self::Program => ValueHint::ExecutablePath,
        }
    }
}
