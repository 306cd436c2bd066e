//! `strata top` of a running recording: a query, whose answer so far a terminal shows every second.

use std::ffi::OsString;

use anyhow::Result;
use clap::Parser;
use strata_reading::top::LiveTop;

use super::{Args, run};

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// Asks the recording, until it ends or a signal comes.
pub(crate) fn largest(live: &LiveTop<'_>) -> Result<()> {
    let mut words: Vec<OsString> = vec!["ask".into()];
    match live.socket {
        Some(socket) => words.extend(["--socket".into(), socket.as_os_str().to_owned()]),
        None => words.push("--running".into()),
    }
    words.extend(["--query".into(), OsString::from(&live.query)]);
    words.push(format!("--sort=-{}", live.sort).into());
    words.extend(["--top".into(), live.number.to_string().into()]);
    if live.is_json {
        words.push("--json".into());
    }
    run(&Line::try_parse_from(words)?.args)
}
