//! The Python package `strata`, which trains and draws.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Error, Result, bail};
use strata_terminal::program::{self, Ended};
use strata_terminal::signals::{self, Interrupted};
use tracing::info;

/// The interpreter: `$STRATA_PYTHON`; the one of the virtual environment that a wheel of Strata was installed into; the
/// one that `make python` installs, next to the program that `make` built; or `python3`.
fn interpreter() -> PathBuf {
    if let Some(named) = std::env::var_os("STRATA_PYTHON") {
        return named.into();
    }
    let program = std::env::current_exe().ok();
    if let Some(python) = program.as_deref().and_then(of_environment) {
        return python;
    }
    let built = program
        .iter()
        .flat_map(|program| program.ancestors())
        .skip(1)
        .map(|folder| folder.join("python/.venv/bin/python"))
        .find(|python| python.exists());
    built.unwrap_or_else(|| "python3".into())
}

/// The interpreter of the virtual environment that has this program among its own (PEP 405).
fn of_environment(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    let is_one = folder.parent()?.join("pyvenv.cfg").is_file();
    is_one.then(|| folder.join("python"))
}

/// Fails if the package is not there, so that it is known before the work.
pub fn check() -> Result<()> {
    let python = interpreter();
    let mut command = Command::new(&python);
    command.args(["-c", "import strata.main"]);
    let ran = signals::run_child(command.stderr(Stdio::null()))?;
    if ran.interrupted {
        return Err(interrupted());
    }
    if !ran.status.success() {
        bail!(
            "{} cannot import the package `strata`: run `make python`, or install the package (pip install \
             ./python) and set STRATA_PYTHON to the interpreter that has it",
            python.display()
        );
    }
    Ok(())
}

/// The error of an interrupted command, which is reported here.
#[must_use]
pub fn interrupted() -> Error {
    info!("interrupted");
    Interrupted.into()
}

/// Runs `python -m strata ARGUMENTS...` with our standard output and error. Fails with [`Ended`] if
/// that does. INT and TERM end it.
pub fn run(arguments: Vec<OsString>) -> Result<()> {
    check()?;
    let python = interpreter();
    let mut command = Command::new(&python);
    command.args(["-m", "strata"]).args(arguments);
    // Warnings of its libraries, even while loading, mean nothing to users.
    command.env("PYTHONWARNINGS", "ignore");
    if let Ok(program) = program::strata() {
        command.env("STRATA_PROGRAM", program);
    }
    let ran = signals::run_child(&mut command)?;
    match ran.status.code() {
        Some(0) => Ok(()),
        Some(code) => {
            let code = u8::try_from(code)
                .context("the exit status of the package `strata` is not from 0 to 255")?;
            Err(Ended(code).into())
        }
        None if ran.interrupted => Err(interrupted()),
        None => bail!(
            "the Python package `strata` was ended by a signal; if memory ran out, `dmesg` says so"
        ),
    }
}
