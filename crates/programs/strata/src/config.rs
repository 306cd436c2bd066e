//! `strata config`: make a configuration file, show what is in force, and print the reference of its keys.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Subcommand;
use serde::Serialize;
use serde_json::Value;
use strata_control::config::{self, Key};
use strata_terminal::listing::{ColumnForm, Reader, listing};
use strata_terminal::output::{print_json, standard};
use strata_wire::Printable;

use super::help;

/// Keys of the file that an option of `strata record` overrides, and that option.
const OVERRIDDEN: [(&str, &str); 4] = [
    ("control.socket", "socket"),
    ("default", "default"),
    ("detail", "detail"),
    ("mode", "mode"),
];

/// Arguments of `strata config`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a configuration file to start from: every key as a comment, with its default.
    #[command(after_help = "\
Example:
  strata config init strata.toml")]
    Init {
        /// Write to this new file; without it, to standard output.
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Show every key with its value, and whether it is from the file, the environment or the
    /// default.
    #[command(after_help = "\
Options of `strata record` that are set in the environment are shown, too. `strata record --check`
checks more: interfaces, the model, other files, addresses.

Example:
  strata config show --config /etc/strata/strata.toml --changed")]
    Show(ShowArgs),
    /// Print the reference of the configuration file, in Markdown.
    Reference,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Read this configuration file (TOML).
    #[arg(long, value_name = "FILE", env = "STRATA_CONFIG")]
    config: Option<PathBuf>,

    /// Show only keys that the file or the environment sets.
    #[arg(long)]
    changed: bool,

    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let page = match &args.command {
        Command::Init { file: Some(file) } => return init(file),
        Command::Init { file: None } => config::example(),
        Command::Show(args) => return show(args),
        Command::Reference => config::reference(),
    };
    Ok(standard().write_all(page.as_bytes())?)
}

fn init(file: &Path) -> Result<()> {
    let made = OpenOptions::new().write(true).create_new(true).open(file);
    let written = made.and_then(|mut made| made.write_all(config::example().as_bytes()));
    written.with_context(|| format!("{}: cannot make it", Printable(&file.display().to_string())))
}

/// What is in force.
#[derive(Serialize)]
struct Answer<'a> {
    /// The configuration file.
    file: Option<&'a Path>,
    keys: Vec<Setting>,
    /// Options of `strata record` that have no key, as far as the environment sets them.
    options: Vec<Setting>,
}

#[derive(Serialize)]
struct Setting {
    name: String,
    value: Value,
    /// `default`, `file` or the name of an environment variable.
    from: String,
    /// What holds without a value.
    #[serde(skip)]
    default_words: Option<String>,
}

impl Setting {
    fn of_key(key: Key) -> Self {
        let from = if key.is_set { "file" } else { "default" };
        Self {
            name: key.name,
            value: key.value,
            from: from.into(),
            default_words: key.default_words,
        }
    }

    fn row(self) -> [String; 3] {
        let has_none = match &self.value {
            Value::Array(items) => items.is_empty(),
            value => value.is_null(),
        };
        let value = match self.default_words.filter(|_| has_none) {
            Some(words) => words,
            None => words(&self.value),
        };
        [self.name, value, self.from].map(|cell| Printable(&cell).to_string())
    }
}

/// A value as a person writes it.
fn words(value: &Value) -> String {
    match value {
        Value::Null => String::from("-"),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => String::from("-"),
        Value::Array(items) => items.iter().map(words).collect::<Vec<_>>().join(", "),
        value => value.to_string(),
    }
}

fn show(args: &ShowArgs) -> Result<()> {
    let keys = config::keys(args.config.as_deref())?;
    let mut keys: Vec<Setting> = keys.into_iter().map(Setting::of_key).collect();
    let mut options = Vec::new();
    for (option, variable, value) in of_environment() {
        let overridden = OVERRIDDEN.iter().find(|(_, name)| *name == option);
        let key = overridden.and_then(|(key, _)| keys.iter_mut().find(|one| one.name == *key));
        match key {
            Some(key) => (key.value, key.from) = (value.into(), variable),
            None => options.push(Setting {
                name: format!("--{option}"),
                value: value.into(),
                from: variable,
                default_words: None,
            }),
        }
    }
    if args.changed {
        keys.retain(|key| key.from != "default");
    }
    let file = args.config.as_deref();
    if args.json {
        return print_json(&Answer {
            file,
            keys,
            options,
        });
    }
    let name = match file {
        Some(file) => Printable(&file.display().to_string()).to_string(),
        None => String::from("none; --config or STRATA_CONFIG names one"),
    };
    let titles = ["key", "value", "from"].map(str::to_owned);
    let rows = keys.into_iter().chain(options).map(Setting::row);
    let columns = [
        ColumnForm::words(12),
        ColumnForm::words(8).apart(),
        ColumnForm::words(8).apart(),
    ];
    let table = listing(
        Reader::of_stdout(),
        columns,
        [titles].into_iter().chain(rows),
    );
    Ok(write!(standard(), "file: {name}\n\n{table}")?)
}

/// Options of `strata record` that the environment sets: name, variable and value.
fn of_environment() -> Vec<(String, String, String)> {
    let all = help::command();
    let record = all.find_subcommand("record").expect("it is a command");
    let options = record.get_arguments().filter_map(|option| {
        let (long, variable) = (option.get_long()?, option.get_env()?);
        let value = env::var_os(variable)?;
        let variable = variable.to_string_lossy().into_owned();
        Some((
            long.to_owned(),
            variable,
            value.to_string_lossy().into_owned(),
        ))
    });
    options.filter(|(long, ..)| long != "config").collect()
}
