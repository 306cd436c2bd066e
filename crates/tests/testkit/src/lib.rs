//! What the tests of all crates share. Never linked into the program.
#![deny(unsafe_code)]

mod allocations;
pub mod capture;
mod certificates;
mod disk;
mod golden;
pub mod guest;
mod net;
mod peer;
pub mod sim;
pub mod switch;

pub use allocations::{CountingAllocator, allocations};
pub use certificates::{Certificates, write_key};
pub use disk::{Disk, LoopDevice, may_use_loop_devices};
pub use golden::check_golden;
pub use net::Namespace;
pub use peer::connect_from;

use std::path::{Path, PathBuf};

/// The folder of real captures: `$STRATA_DATA`, or `shared/data` next to the project.
///
/// # Panics
///
/// If there is no capture: tests that need real captures fail, they are not skipped.
#[must_use]
pub fn data_dir() -> PathBuf {
    let dir = std::env::var_os("STRATA_DATA")
        .map_or_else(|| workspace_root().join("../shared/data"), PathBuf::from);
    assert!(
        dir.join("formats").is_dir() && dir.join("labelled").is_dir(),
        "no captures at {}: set STRATA_DATA to a folder with formats/ and labelled/",
        dir.display()
    );
    dir
}

/// The root of the workspace.
///
/// # Panics
///
/// If this crate was moved out of `crates/`.
#[must_use]
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(3)
        .expect("crates/tests/testkit is three levels below the root")
        .to_path_buf()
}

/// Every capture below `formats/`, sorted by path.
///
/// # Panics
///
/// If the folder cannot be read.
#[must_use]
pub fn format_captures() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![data_dir().join("formats")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("formats/ is readable") {
            let path = entry.expect("formats/ is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    assert!(
        files.len() > 1000,
        "formats/ holds only {} files",
        files.len()
    );
    files
}

/// The captures below `labelled/` that are not compressed, sorted by path.
///
/// # Panics
///
/// If the folder cannot be read.
#[must_use]
pub fn labelled_captures() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data_dir().join("labelled")).expect("labelled/ is readable");
    let files = entries.map(|entry| entry.expect("labelled/ is readable").path());
    let files = files.map(|folder| folder.join("trace.pcap"));
    let mut files: Vec<PathBuf> = files.filter(|file| file.exists()).collect();
    files.sort();
    files
}

/// Whether tests may change the kernel's network: as root only. Otherwise prints what is not run.
///
/// # Panics
///
/// If the variable `CI` is set and the process is not root: there, every test runs.
#[must_use]
pub fn may_use_kernel(what: &str) -> bool {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|entry| {
        use std::os::unix::fs::MetadataExt;
        entry.uid() == 0
    });
    runs_if(is_root, &format!("{what} needs root"))
}

/// Says why a test does not run if it cannot, which is a failure where all have to (`CI`).
fn runs_if(can: bool, needs: &str) -> bool {
    assert!(can || std::env::var_os("CI").is_none(), "{needs}");
    if !can {
        #[allow(clippy::print_stderr)]
        {
            eprintln!("not run: {needs}");
        }
    }
    can
}
