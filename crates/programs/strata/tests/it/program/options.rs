//! Options of all commands together: a name means one thing in all programs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::commands;
use crate::common::program::{ok, strata};

/// Options whose values differ by command although they mean the same.
const SEVERAL: &[(&str, &[&str])] = &[
    ("listen", &["ADDR:PORT", "ADDR[:PORT]"]),
    ("output", &["DIR", "FILE", "STORE"]),
    (
        "send-to",
        &["HOST:PORT", "HOST:PORT[,RULE...]", "HOST[:PORT]"],
    ),
];

/// Each option in a help text with the name of its value, empty for a flag.
fn options(help: &str) -> Vec<(&str, &str)> {
    let named = help.lines().filter_map(|line| {
        let line = line.strip_prefix("  ")?;
        let long = line.strip_prefix("    --");
        let long = long.or_else(|| {
            line.split_once(", --")
                .filter(|(short, _)| short.len() == 2)
                .map(|(_, long)| long)
        });
        let long = long?;
        let end = long.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        let (name, rest) = long.split_at(end.unwrap_or(long.len()));
        let rest = rest.trim_start_matches(['[', '=']);
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        match rest.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
            Some((value, _)) => Some((name, value)),
            None if rest.is_empty() || rest.starts_with(' ') => Some((name, "")),
            // An example, whose value is a word.
            None => None,
        }
    });
    named.collect()
}

/// 2^64 and more is no number of packets, records or bytes: it is not taken for the largest one.
#[test]
fn amounts_beyond_64_bits_are_refused() {
    let some = [
        "generate -o - -c",
        "generate -o - -p",
        "replay -r missing.pcap -i lo -L",
        "replay -r missing.pcap -i lo -p",
        "record -r missing.pcap -o missing -C",
        "record -r missing.pcap -o missing --disk-limit",
        "record -r missing.pcap -o missing --block-size",
        "record -i lo -o missing -B",
        "relay -o missing --insecure --listen 127.0.0.1 --disk-limit",
        "stream tail missing x -n",
        "stream create missing x --retain",
        "gpv run -r missing.pcap -w missing -c",
        "telemetry generate --send-to 127.0.0.1 -c",
    ];
    for command in some {
        for number in [
            "18446744073709551616",
            "99999999999999999999",
            "99999999999999999999k",
        ] {
            let output = strata().args(command.split(' ')).arg(number).output();
            let output = output.unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{command} {number}: {said}");
            let option = command.rsplit(' ').next().unwrap().trim_start_matches('-');
            let is_named = said.contains("out of range") || said.contains(option);
            assert!(is_named, "{command} {number}: {said}");
        }
    }
}

#[test]
fn the_name_of_an_option_means_one_thing() {
    let mut all: BTreeMap<String, BTreeMap<String, Vec<&str>>> = BTreeMap::new();
    for command in commands::all() {
        let help = ok(strata().args(command.split(' ')).arg("--help"));
        for (name, value) in options(&help) {
            let values = all.entry(name.to_owned()).or_default();
            values.entry(value.to_owned()).or_default().push(command);
        }
    }
    assert!(all.len() > 200, "{} options found", all.len());
    let mut wrong = Vec::new();
    for (name, values) in &all {
        let permitted = SEVERAL.iter().find(|(option, _)| option == name);
        let permitted: BTreeSet<&str> = permitted
            .iter()
            .flat_map(|(_, all)| all.iter().copied())
            .collect();
        let there: BTreeSet<&str> = values.keys().map(String::as_str).collect();
        if there.len() > 1 && there != permitted {
            wrong.push(format!("--{name}: {values:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn options_are_found_in_help() {
    let help = "  -r, --read <FILE>\n      --to-stream <DIR/NAME>  Append\n      --json\n      --exclusive[=<WHICH>]\n      \
        --to here\n          --wrapped text";
    let expected = [
        ("read", "FILE"),
        ("to-stream", "DIR/NAME"),
        ("json", ""),
        ("exclusive", "WHICH"),
    ];
    assert_eq!(options(help), expected);
}

/// Lines of the texts after the options, of a command and of those below it.
fn after(outline: &Value, lines: &mut Vec<(String, String)>) {
    let name = outline["full_name"].as_str().unwrap();
    for text in ["after", "long_after"] {
        let text = outline[text].as_str().into_iter().flat_map(str::lines);
        lines.extend(text.map(|line| (name.to_owned(), line.to_owned())));
    }
    for command in outline["commands"].as_array().unwrap() {
        after(command, lines);
    }
}

/// clap writes 100 columns at most, and these texts are wrapped by hand: a longer line would leave its last word
/// alone on the next.
#[test]
fn what_follows_the_options_fits_into_the_columns_of_help() {
    let strata_path = Path::new(env!("CARGO_BIN_EXE_strata"));
    let mut lines = Vec::new();
    for name in [
        "strata",
        "strata-fleet",
        "strata-models",
        "strata-stream",
        "strata-telemetry",
        "strata-vectors",
    ] {
        let printed = ok(Command::new(strata_path.with_file_name(name)).arg("outline"));
        after(&serde_json::from_str(&printed).unwrap(), &mut lines);
    }
    assert!(lines.len() > 400, "{}", lines.len());
    lines.retain(|(_, line)| line.chars().count() > 100);
    assert!(lines.is_empty(), "{lines:#?}");
}
