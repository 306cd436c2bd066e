//! Checks the licences and sources of all packages against `deny.toml`, as `cargo deny check licenses sources` would,
//! from what `cargo metadata` says of those that the programs and their tests are built of.
//!
//! Source: the SPDX specification, annex D (licence expressions).
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde::Deserialize;
use strata_testkit::workspace_root;

/// Where packages are from, as cargo says it.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// What Strata's own packages are licensed under.
const OWN: &str = "Apache-2.0 OR MIT";

#[derive(Deserialize)]
struct Deny {
    licenses: Licences,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licences {
    allow: BTreeSet<String>,
    exceptions: Vec<Exception>,
}

#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    of: String,
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Deserialize)]
struct Banned {
    #[serde(rename = "crate")]
    of: String,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

impl Package {
    fn title(&self) -> String {
        format!("{} {}", self.name, self.version)
    }
}

fn deny() -> Deny {
    let text = std::fs::read_to_string(workspace_root().join("deny.toml")).unwrap();
    toml::from_str(&text).unwrap()
}

fn said(program: &str, words: &[&str]) -> String {
    let mut command = Command::new(program);
    let output = command.current_dir(workspace_root()).args(words).output();
    let output = output.unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn metadata() -> Metadata {
    let about = said("rustc", &["-vV"]);
    let host = about
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .unwrap();
    // Packages of other systems may not be on this machine.
    let filter = format!("--filter-platform={host}");
    let words = [
        "metadata",
        "--locked",
        "--offline",
        "--format-version=1",
        &filter,
    ];
    serde_json::from_str(&said(env!("CARGO"), &words)).unwrap()
}

/// Whether what is allowed satisfies a licence expression. `/` is OR, as in old manifests.
fn satisfies(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> Result<bool, String> {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let is_satisfied = any(&words, &mut at, is_allowed)?;
    match words.get(at) {
        None => Ok(is_satisfied),
        Some(word) => Err(format!("{expression}: unexpected '{word}'")),
    }
}

/// Licences with OR between them, which binds least.
fn any(words: &[&str], at: &mut usize, is_allowed: &dyn Fn(&str) -> bool) -> Result<bool, String> {
    let mut is_satisfied = all(words, at, is_allowed)?;
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        is_satisfied |= all(words, at, is_allowed)?;
    }
    Ok(is_satisfied)
}

/// Licences with AND between them.
fn all(words: &[&str], at: &mut usize, is_allowed: &dyn Fn(&str) -> bool) -> Result<bool, String> {
    let mut is_satisfied = one(words, at, is_allowed)?;
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        is_satisfied &= one(words, at, is_allowed)?;
    }
    Ok(is_satisfied)
}

/// A licence, perhaps with an exception, or an expression in parentheses.
fn one(words: &[&str], at: &mut usize, is_allowed: &dyn Fn(&str) -> bool) -> Result<bool, String> {
    let word = *words.get(*at).ok_or("the expression ends early")?;
    *at += 1;
    match word {
        "(" => {
            let is_satisfied = any(words, at, is_allowed)?;
            match words.get(*at) {
                Some(&")") => *at += 1,
                _ => return Err(String::from("a parenthesis is not closed")),
            }
            Ok(is_satisfied)
        }
        ")" | "AND" | "OR" | "WITH" => Err(format!("unexpected '{word}'")),
        licence if words.get(*at) == Some(&"WITH") => {
            let exception = words.get(*at + 1).ok_or("the expression ends early")?;
            *at += 2;
            Ok(is_allowed(&format!("{licence} WITH {exception}")))
        }
        licence => Ok(is_allowed(licence)),
    }
}

/// The packages whose licences these do not satisfy, with the reason.
fn refused(metadata: &Metadata, licences: &Licences) -> Vec<String> {
    let of: BTreeMap<&str, &BTreeSet<String>> = licences
        .exceptions
        .iter()
        .map(|exception| (exception.of.as_str(), &exception.allow))
        .collect();
    let refused = metadata.packages.iter().filter_map(|package| {
        let title = package.title();
        let Some(expression) = &package.license else {
            return Some(format!("{title}: states no licence"));
        };
        let is_allowed = |licence: &str| {
            let exception = of.get(package.name.as_str());
            licences.allow.contains(licence)
                || exception.is_some_and(|allow| allow.contains(licence))
        };
        match satisfies(expression, &is_allowed) {
            Ok(true) => None,
            Ok(false) => Some(format!("{title}: {expression}")),
            Err(error) => Some(format!("{title}: {error}")),
        }
    });
    refused.collect()
}

#[test]
fn licences_of_all_packages_are_allowed_and_needed() {
    let (mut deny, metadata) = (deny(), metadata());
    assert!(metadata.packages.len() > 100);
    let found = refused(&metadata, &deny.licenses);
    assert!(
        found.is_empty(),
        "licences that deny.toml does not allow: look at their terms first\n{}",
        found.join("\n")
    );
    let own = metadata.packages.iter();
    let own = own.filter(|package| metadata.workspace_members.contains(&package.id));
    for package in own {
        assert_eq!(package.license.as_deref(), Some(OWN), "{}", package.name);
    }
    // An entry that no package needs would allow one that comes later without a look.
    for licence in deny.licenses.allow.clone() {
        deny.licenses.allow.remove(&licence);
        let found = refused(&metadata, &deny.licenses);
        assert!(!found.is_empty(), "deny.toml: no package needs {licence}");
        deny.licenses.allow.insert(licence);
    }
    for at in 0..deny.licenses.exceptions.len() {
        let exception = deny.licenses.exceptions.remove(at);
        let found = refused(&metadata, &deny.licenses);
        assert!(
            !found.is_empty(),
            "deny.toml: {} needs no exception",
            exception.of
        );
        deny.licenses.exceptions.insert(at, exception);
    }
}

#[test]
fn packages_are_of_crates_io_and_none_is_banned() {
    let (deny, metadata) = (deny(), metadata());
    let banned: BTreeSet<&str> = deny.bans.deny.iter().map(|one| one.of.as_str()).collect();
    for package in &metadata.packages {
        let is_own = metadata.workspace_members.contains(&package.id);
        let source = package.source.as_deref();
        let title = package.title();
        assert!(
            source == Some(CRATES_IO) || (is_own && source.is_none()),
            "{title}: {source:?}"
        );
        assert!(!banned.contains(package.name.as_str()), "{title}");
    }
}

#[test]
fn expressions_are_read_as_spdx_has_them() {
    for (expression, allowed, is_satisfied) in [
        ("MIT", "MIT", Some(true)),
        ("MIT", "ISC", Some(false)),
        ("MIT/Apache-2.0", "MIT", Some(true)),
        ("MIT AND ISC", "MIT", Some(false)),
        // AND binds more than OR.
        ("MIT OR ISC AND Zlib", "MIT", Some(true)),
        ("(MIT OR ISC) AND Zlib", "MIT", Some(false)),
        ("(MIT OR ISC) AND Zlib", "ISC Zlib", Some(true)),
        // A licence with an exception is another one.
        ("Apache-2.0 WITH LLVM-exception", "Apache-2.0", Some(false)),
        ("Apache-2.0 WITH LLVM-exception OR MIT", "MIT", Some(true)),
        ("GPL-2.0-only", "GPL-2.0", Some(false)),
        ("", "MIT", None),
        ("(MIT", "MIT", None),
        ("MIT ISC", "MIT", None),
        ("MIT OR", "MIT", None),
        ("Apache-2.0 WITH", "Apache-2.0", None),
    ] {
        let is_allowed = |licence: &str| allowed.split(' ').any(|one| one == licence);
        let found = satisfies(expression, &is_allowed);
        assert_eq!(found.ok(), is_satisfied, "{expression}, allowed: {allowed}");
    }
}
