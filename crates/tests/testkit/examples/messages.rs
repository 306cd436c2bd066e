//! All messages of the programs in one table, for an editor who reads them from end to end: `make messages`.
//!
//! A message is the first text in an error's attribute, in a macro that logs or fails, or in a call that refuses a
//! command line, adds where it happened, or gives a notice. Tests are left out.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use strata_testkit::workspace_root;

/// Macros and calls, and the kind of message in them.
const WRITERS: [(&str, &str); 13] = [
    ("error", "error"),
    ("bail", "error"),
    ("anyhow", "error"),
    ("ensure", "error"),
    ("refuse", "refused"),
    ("refused", "refused"),
    ("context", "where"),
    ("with_context", "where"),
    ("at", "where"),
    ("warn", "warning"),
    ("warning", "warning"),
    ("alert", "alert"),
    ("info", "info"),
];

/// A message: its kind, its text, and the file that has it.
type Message = (&'static str, String, String);

fn main() -> io::Result<()> {
    let root = workspace_root();
    let mut all = BTreeSet::new();
    for path in sources(&root.join("crates"))? {
        let named = path
            .strip_prefix(&root)
            .expect("it is below the root")
            .display()
            .to_string();
        let tokens = fs::read_to_string(&path)?
            .parse()
            .expect("a source file is Rust");
        collect(tokens, &named, &mut all);
    }
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{} messages\n\n| kind | message | in |\n|---|---|---|",
        all.len()
    )?;
    for (kind, text, file) in all {
        writeln!(
            out,
            "| {kind} | {} | {file} |",
            text.replace('|', "\\|").replace('\n', " ")
        )?;
    }
    Ok(())
}

/// Files of all crates but those for tests.
fn sources(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .expect("an entry has a name")
            .to_string_lossy()
            .into_owned();
        if path.is_dir() && !["tests", "examples"].contains(&name.as_str()) {
            found.extend(sources(&path)?);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
    Ok(found)
}

fn collect(tokens: TokenStream, file: &str, all: &mut BTreeSet<Message>) {
    let mut before: [String; 2] = Default::default();
    let mut is_test = false;
    for token in tokens {
        let TokenTree::Group(group) = token else {
            before = [std::mem::take(&mut before[1]), token.to_string()];
            continue;
        };
        let text = group.stream().to_string();
        if group.delimiter() == Delimiter::Bracket && text.starts_with("cfg (test)") {
            is_test = true;
        } else if group.delimiter() == Delimiter::Brace && is_test {
            is_test = false;
        } else {
            let name = if before[1] == "!" {
                &before[0]
            } else {
                &before[1]
            };
            let writer = WRITERS.iter().find(|(writer, _)| writer == name);
            if let Some((_, kind)) = writer
                && group.delimiter() == Delimiter::Parenthesis
                && let Some(text) = first_text(group.stream())
            {
                all.insert((kind, text, file.to_owned()));
            }
            collect(group.stream(), file, all);
        }
        before = Default::default();
    }
}

/// The first text that has several words, wherever it is nested.
fn first_text(tokens: TokenStream) -> Option<String> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Group(group) => first_text(group.stream()),
        TokenTree::Literal(literal) => {
            let text = syn::parse_str::<syn::LitStr>(&literal.to_string())
                .ok()?
                .value();
            text.trim().contains(' ').then_some(text)
        }
        _ => None,
    })
}
