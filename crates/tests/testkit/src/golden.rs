//! Texts that are checked in, and what the program makes of the same input today.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Compares with a checked-in text; with `STRATA_BLESS` set, writes it.
///
/// # Panics
///
/// If they differ; the lines that do are printed.
#[allow(clippy::print_stderr)]
pub fn check_golden(path: &Path, actual: &str) {
    if std::env::var_os("STRATA_BLESS").is_some() {
        let folder = path.parent().expect("a file is in a folder");
        fs::create_dir_all(folder).expect("the folder of a golden file can be made");
        fs::write(path, actual).expect("a golden file can be written");
        return;
    }
    let expected = fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("{}: {error}; STRATA_BLESS=1 writes it", path.display()));
    if expected == actual {
        return;
    }
    let (old, new): (BTreeSet<_>, BTreeSet<_>) =
        (expected.lines().collect(), actual.lines().collect());
    for line in old.difference(&new) {
        eprintln!("- {line}");
    }
    for line in new.difference(&old) {
        eprintln!("+ {line}");
    }
    panic!(
        "{} changed; if it should, run the tests with STRATA_BLESS=1",
        path.display()
    );
}
