//! The program, beside programs that print outlines.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use clap::{Arg, Command as Line};
use strata_outline::Outline;

/// One test at a time: a process that another test starts meanwhile has a program open that is being written, and
/// the kernel runs none of those.
static ALONE: Mutex<()> = Mutex::new(());

/// A program that prints the outline of a command line.
fn program(folder: &Path, name: &str, outline: &Outline) {
    let answer = folder.join(format!("{name}.json"));
    fs::write(&answer, serde_json::to_vec(outline).unwrap()).unwrap();
    script(
        folder,
        name,
        &format!("[ \"$*\" = outline ] && cat '{}'", answer.display()),
    );
}

fn script(folder: &Path, name: &str, body: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs it as a program of this folder.
fn run(folder: &Path, into: &Path) -> Output {
    let copy = folder.join("strata-manual");
    fs::copy(env!("CARGO_BIN_EXE_strata-manual"), &copy).unwrap();
    Command::new(&copy).arg(into).output().unwrap()
}

fn main_program(folder: &Path) {
    let line = Line::new("strata")
        .version("1.2.3")
        .about("Logs traffic: all of it")
        .subcommand(
            Line::new("record").about("Records").arg(
                Arg::new("read")
                    .long("read")
                    .value_name("FILE")
                    .help("Read this.\n\n.starts with a dot, and 'quotes' \\ backslashes"),
            ),
        )
        .subcommand(Line::new("gpv"));
    let mut outline = Outline::of(&line);
    outline.commands[1].program = Some("strata-vectors".into());
    program(folder, "strata", &outline);
}

#[test]
fn it_writes_a_page_for_each_command_and_completions() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (dir.path(), dir.path().join("share"));
    main_program(folder);
    let line = Line::new("strata-vectors")
        .bin_name("strata gpv")
        .about("Groups packets")
        .subcommand(Line::new("run").about("Runs"));
    program(folder, "strata-vectors", &Outline::of(&line));
    let done = run(folder, &into);
    assert!(done.status.success(), "{done:?}");
    let pages = fs::read_dir(into.join("man/man1")).unwrap();
    let mut pages: Vec<String> = pages
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .collect();
    pages.sort();
    let expected = [
        "strata-gpv-run.1",
        "strata-gpv.1",
        "strata-record.1",
        "strata.1",
    ];
    assert_eq!(pages, expected);
    let page = fs::read_to_string(into.join("man/man1/strata-gpv.1")).unwrap();
    assert!(page.contains("Groups packets"), "{page}");
    let bash = fs::read_to_string(into.join("bash-completion/completions/strata")).unwrap();
    assert!(bash.contains("--read"), "{bash}");
    for file in [
        "zsh/site-functions/_strata",
        "fish/vendor_completions.d/strata.fish",
    ] {
        let text = fs::read_to_string(into.join(file)).unwrap();
        assert!(text.contains("Groups packets"), "{file}: {text}");
    }
}

#[test]
fn what_it_cannot_read_is_named() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let (folder, into) = (dir.path(), dir.path().join("share"));
    main_program(folder);
    let says = |what: &str| {
        let done = run(folder, &into);
        let heard = String::from_utf8(done.stderr).unwrap();
        assert!(!done.status.success(), "{heard}");
        assert!(heard.contains("strata-vectors: "), "{heard}");
        assert!(heard.contains(what), "{heard}");
    };
    says("cannot be run: build all programs with `make build`");
    script(folder, "strata-vectors", "echo no such word >&2; exit 2");
    says("does not print its outline: no such word");
    script(folder, "strata-vectors", "echo '{\"name\": 1}'");
    says("prints an outline that this program does not read");
    program(
        folder,
        "strata-vectors",
        &Outline::of(&Line::new("strata-vectors")),
    );
    says("has no command gpv");
}
