//! The programs of `p4/` in DPDK's software switch.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::capture::{Frame, read, write};
use crate::{runs_if, workspace_root};

/// What a program did with frames.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Frames that left, by port.
    pub ports: [Vec<Frame>; 3],
    /// Counters and registers, by the name that the runner gives them: `frames`, `register NAME INDEX`.
    pub counters: BTreeMap<String, u64>,
}

impl Ran {
    /// The value of a register.
    ///
    /// # Panics
    ///
    /// If there is no such register.
    #[must_use]
    pub fn register(&self, name: &str, index: usize) -> u64 {
        self.counters[&format!("register {name} {index}")]
    }
}

/// A file of `p4/`.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    workspace_root().join("p4").join(name)
}

/// Runs a program that has to succeed, and returns its output.
fn ok(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let (out, errors) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    assert!(status.success(), "{command:?}: {status}\n{out}{errors}");
    out.into_owned()
}

/// The runner of `p4/swx.c`, built once, in `folder`; `None` where DPDK or the compiler is missing, which is said.
///
/// # Panics
///
/// If it cannot be built although both are there, or if `CI` is set and one is missing.
pub fn runner(folder: &Path) -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let flags = Command::new("pkg-config")
            .args(["--cflags", "--libs", "libdpdk"])
            .output();
        let flags = flags.ok().filter(|output| output.status.success());
        let compiler = Command::new("cc").arg("--version").output();
        let both = flags.zip(compiler.ok());
        let needs = "the programs of p4/ need DPDK and a C compiler; on Debian: \
                     apt-get install libdpdk-dev gcc pkg-config";
        if !runs_if(both.is_some(), needs) {
            return None;
        }
        let (flags, _) = both?;
        let flags = String::from_utf8(flags.stdout).unwrap();
        // Under a name of its own first: other tests may run at the same time, with the program in use.
        let (built, made) = (
            folder.join("swx"),
            folder.join(format!("swx-{}", std::process::id())),
        );
        ok(Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror"])
            .arg(program("swx.c"))
            .arg("-o")
            .arg(&made)
            .args(flags.split_whitespace()));
        fs::rename(&made, &built).unwrap();
        Some(built)
    };
    BUILT.get_or_init(build).as_deref()
}

/// Runs `p4/NAME.spec` over frames, with entries from `folder`, where files are left; with `copies`, each frame comes
/// that many times (`swx run -c`).
///
/// # Panics
///
/// If the runner fails.
#[must_use]
pub fn run(runner: &Path, name: &str, copies: Option<u8>, folder: &Path, frames: &[Frame]) -> Ran {
    fs::create_dir_all(folder).unwrap();
    let capture = folder.join("in.pcap");
    write(&capture, frames);
    let mut command = Command::new(runner);
    command.arg("run");
    if let Some(copies) = copies {
        command.args(["-c", &copies.to_string()]);
    }
    command.arg(program(&format!("{name}.spec")));
    command.args([folder, &capture, folder]);
    let mut counters = BTreeMap::new();
    for line in ok(&mut command).lines() {
        let (name, value) = line.rsplit_once(' ').unwrap();
        counters.insert(name.to_owned(), value.parse().unwrap());
    }
    let ports = std::array::from_fn(|port| read(&folder.join(format!("port{port}.pcap"))));
    Ran { ports, counters }
}

/// Checks a program's `.spec` with DPDK's own reader, and both of its forms with `check.py`.
///
/// # Panics
///
/// If a check finds a problem.
pub fn check(runner: &Path, name: &str) {
    let spec = program(&format!("{name}.spec"));
    ok(Command::new(runner).arg("check").arg(&spec));
    ok(Command::new("python3")
        .arg("-B")
        .arg(program("check.py"))
        .arg(&spec)
        .arg(program(&format!("{name}.p4"))));
}

/// Writes entries of a program's tables to a folder, with its script in `p4/tables/`.
///
/// # Panics
///
/// If it fails.
pub fn tables(name: &str, arguments: &[&str], folder: &Path) {
    ok(Command::new("python3")
        .arg("-B")
        .arg(program(&format!("tables/{name}.py")))
        .args(arguments)
        .arg("-o")
        .arg(folder));
}
