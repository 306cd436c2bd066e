//! How well the model fits the traffic, as `record` saves it and `info` shows it.

use std::fs;
use std::io::{ErrorKind, Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use strata_classify::{DRIFTED, DriftReport, SAMPLES_MIN};
use strata_store::{check_drift, drift_name};
use strata_terminal::colour::{self, Colour};

/// How many features are named.
const SHOWN: usize = 3;

fn path(log: &Path, recording: u32) -> PathBuf {
    log.join(drift_name(recording))
}

/// The drift of a recording; `None` if unknown.
pub(crate) fn read(log: &Path, recording: u32) -> Result<Option<DriftReport>> {
    let path = path(log, recording);
    match fs::read(&path) {
        Ok(json) => {
            let checked = check_drift(&json).map_err(anyhow::Error::msg);
            checked.with_context(|| path.display().to_string())?;
            let report = serde_json::from_slice(&json);
            report.with_context(|| path.display().to_string()).map(Some)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{}: cannot read", path.display())),
    }
}

/// One line on the fit of the model, in plain English.
pub(crate) fn print(out: &mut impl Write, report: &DriftReport) -> Result<()> {
    let verdict = match report.drifted() {
        None => {
            let seen = report.samples;
            writeln!(
                out,
                "fit of the model: {seen} packets evaluated, {SAMPLES_MIN} needed for a result"
            )?;
            return Ok(());
        }
        Some(false) => String::from("the model fits this traffic"),
        Some(true) => {
            let alarm = "NO LONGER FITS";
            let alarm = match colour::is_wanted(&stdout()) {
                true => Colour::Red.of(alarm),
                false => alarm.to_owned(),
            };
            format!("the model {alarm} this traffic: train it again on captures of it")
        }
    };
    writeln!(
        out,
        "fit of the model: {verdict} (drift index {:.2}, limit {DRIFTED})",
        report.scores
    )?;
    let moved = report.features.iter().filter(|(_, index)| *index > DRIFTED);
    let moved: Vec<String> = moved
        .take(SHOWN)
        .map(|(name, index)| format!("{name} {index:.1}"))
        .collect();
    if !moved.is_empty() {
        writeln!(
            out,
            "  features that differ most from training: {}",
            moved.join(", ")
        )?;
    }
    Ok(())
}
