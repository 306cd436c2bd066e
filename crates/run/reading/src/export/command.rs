//! `-z`: a program that is run with each complete file.

use std::env::{split_paths, var_os};
use std::io::stderr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Stdio};

use anyhow::Result;
use rustix::fs::{Access, access};
use strata_terminal::output::refuse;
use tracing::error;

/// Runs a program with one file after another.
#[derive(Debug)]
pub(super) struct Command {
    program: PathBuf,
    /// The file that it is running with.
    running: Option<(PathBuf, Child)>,
    failed: u64,
}

impl Command {
    /// The program with this path, or with this name in a directory of PATH.
    pub(super) fn new(name: &Path) -> Result<Self> {
        let is_path = name.as_os_str().as_encoded_bytes().contains(&b'/');
        let program = match is_path {
            true => Some(name.to_owned()).filter(|program| is_program(program)),
            false => {
                let path = var_os("PATH");
                let folders = path.iter().flat_map(split_paths);
                let mut all = folders.map(|folder| folder.join(name));
                all.find(|program| is_program(program))
            }
        };
        let Some(program) = program else {
            return Err(refuse(format!(
                "-z {}: no such program in PATH: give its name or path, without arguments",
                name.display()
            )));
        };
        Ok(Self {
            program,
            running: None,
            failed: 0,
        })
    }

    /// Starts the program with this file, once it is done with the one before.
    pub(super) fn start(&mut self, file: &Path) {
        self.wait();
        // Standard output is for the result of the export.
        let output = stderr().as_fd().try_clone_to_owned();
        let started = process::Command::new(&self.program)
            .arg(argument(file))
            .stdin(Stdio::null())
            .stdout(output.map_or_else(|_| Stdio::null(), Stdio::from))
            .spawn();
        match started {
            Ok(child) => self.running = Some((file.to_owned(), child)),
            Err(problem) => self.failed(file, &format!("cannot be started: {problem}")),
        }
    }

    /// Waits for the last one; returns how many failed.
    pub(super) fn finish(mut self) -> u64 {
        self.wait();
        self.failed
    }

    fn wait(&mut self) {
        let Some((file, mut child)) = self.running.take() else {
            return;
        };
        match child.wait() {
            Ok(status) if status.success() => {}
            Ok(status) => self.failed(&file, &format!("failed ({status})")),
            Err(problem) => self.failed(&file, &format!("cannot be waited for: {problem}")),
        }
    }

    fn failed(&mut self, file: &Path, how: &str) {
        self.failed = self.failed.saturating_add(1);
        error!("-z: {} {} {how}", self.program.display(), file.display());
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        self.wait();
    }
}

fn is_program(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

/// The name of a file as an argument that no program takes for an option.
fn argument(file: &Path) -> PathBuf {
    match file.as_os_str().as_encoded_bytes().first() {
        Some(b'-') => Path::new(".").join(file),
        _ => file.to_owned(),
    }
}
