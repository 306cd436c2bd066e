//! A command line, its outline, and the command line made from that say the same.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use std::ffi::OsString;

use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, ArgGroup, Command, ValueHint};
use strata_outline::{Action, Hint, Outline, asked};

/// One of everything that the programs have.
fn line() -> Command {
    let write = Command::new("write")
        .visible_alias("save")
        .alias("put")
        .short_flag('W')
        .about("Write packets")
        .long_about("Write packets to a file, and say how many.")
        .after_help("Examples:\n  tool write -o out")
        .arg(
            Arg::new("output")
                .short('o')
                .long("output")
                .visible_alias("into")
                .alias("out")
                .value_name("FILE")
                .value_hint(ValueHint::FilePath)
                .help("Write to this file")
                .long_help("Write to this file.\n\nIt is created if missing."),
        )
        .arg(
            Arg::new("discard")
                .long("discard")
                .action(ArgAction::SetTrue)
                .help("Write nothing"),
        )
        .group(
            ArgGroup::new("where")
                .args(["output", "discard"])
                .required(true),
        )
        .arg(
            Arg::new("disk")
                .long("disk")
                .value_name("DISK")
                .default_value("auto")
                .env("TOOL_DISK")
                .help_heading("Disk")
                .value_parser([
                    PossibleValue::new("auto").help("Whichever is faster"),
                    PossibleValue::new("direct").help("Past the page cache"),
                    PossibleValue::new("odd").hide(true),
                ])
                .help("Choose how blocks are written"),
        )
        .arg(
            Arg::new("exclusive")
                .long("exclusive")
                .value_name("WHEN")
                .num_args(0..=1)
                .require_equals(true)
                .help("Take them away"),
        )
        .arg(
            Arg::new("verbose")
                .short('v')
                .action(ArgAction::Count)
                .help("Say more"),
        )
        .arg(
            Arg::new("secret")
                .long("secret")
                .hide(true)
                .conflicts_with("verbose"),
        )
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required(true)
                .help("Read this"),
        )
        .arg(
            Arg::new("filter")
                .value_name("FILTER")
                .num_args(0..)
                .trailing_var_arg(true)
                .help("Only these"),
        );
    Command::new("tool")
        .version("1.2.3")
        .about("A tool")
        .subcommand_required(true)
        .subcommand(write)
        .subcommand(Command::new("internal").hide(true))
        .subcommand(
            Command::new("list")
                .about("Lists")
                .subcommand(Command::new("all").about("All of them")),
        )
}

/// What `--help` and `-h` of a command show.
fn helps(command: &Command, words: &[&str]) -> [String; 2] {
    let mut command = command.clone().term_width(100);
    command.build();
    let mut at = &mut command;
    for word in words {
        at = at.find_subcommand_mut(word).unwrap();
    }
    [
        at.render_long_help().to_string(),
        at.render_help().to_string(),
    ]
}

#[test]
fn help_is_the_same() {
    let line = line().disable_help_subcommand(true);
    let json = serde_json::to_string(&Outline::of(&line)).unwrap();
    let outline: Outline = serde_json::from_str(&json).unwrap();
    assert_eq!(outline, Outline::of(&line));
    let back = outline.command();
    back.clone().debug_assert();
    for words in [&[][..], &["write"], &["list"], &["list", "all"]] {
        assert_eq!(helps(&line, words), helps(&back, words), "{words:?}");
    }
    // And the outline of that is the same again.
    let again = Outline::of(&back);
    assert_eq!(again.commands, outline.commands);
}

#[test]
fn an_outline_says_what_an_option_is() {
    let outline = Outline::of(&line());
    assert_eq!(outline.full_name, "tool");
    assert!(outline.needs_command);
    let names: Vec<&str> = outline.commands.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["write", "internal", "list"], "without help");
    let write = outline.find(&["write"]).unwrap();
    assert!(
        write.usage.contains("<--output <FILE>|--discard>"),
        "{}",
        write.usage
    );
    assert_eq!(
        outline.find(&["list", "all"]).unwrap().full_name,
        "tool list all"
    );
    assert!(outline.find(&["list", "none"]).is_none());
    let argument = |id: &str| write.arguments.iter().find(|one| one.id == id).unwrap();
    let output = argument("output");
    assert_eq!((output.short, output.hint), (Some('o'), Hint::File));
    assert_eq!(output.value_names, ["FILE"]);
    assert_eq!(output.aliases.len(), 2);
    let disk = argument("disk");
    assert_eq!(disk.defaults, ["auto"]);
    assert_eq!(disk.environment.as_deref(), Some("TOOL_DISK"));
    assert_eq!(disk.heading.as_deref(), Some("Disk"));
    assert_eq!(disk.values.len(), 3);
    assert!(disk.values[2].is_hidden);
    let secret = argument("secret");
    assert!(secret.hidden.everywhere);
    assert_eq!(secret.conflicts, ["verbose"]);
    assert_eq!(argument("verbose").action, Action::Count);
    let filter = argument("filter");
    assert_eq!((filter.place, filter.values_min), (Some(2), 0));
    assert!(filter.takes_rest);
    let group = write.groups.iter().find(|one| one.id == "where").unwrap();
    assert!(group.is_required && !group.is_multiple);
}

#[test]
fn only_the_word_alone_asks() {
    let line = |words: &[&str]| asked(words.iter().map(OsString::from));
    assert!(line(&["strata", "outline"]));
    assert!(!line(&["strata", "outline", "x"]));
    assert!(!line(&["strata"]));
    assert!(!line(&["strata", "read", "outline"]));
}
