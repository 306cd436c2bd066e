//! Grouped packet vectors as a command names their source, and what an answer from them lacks.

use std::path::{Path, PathBuf};

use anyhow::Result;
use strata_gpv_run::{ListenSpec, VectorSource, VectorsRead};
use strata_store::Sources;

use crate::arguments::address::{address, networks};
use crate::output::refuse;
use crate::text::count_of;

/// Senders whose vectors are accepted at the same time.
pub const SENDERS_MAX: usize = 16;
/// The port of an address without one: that of IPFIX.
const PORT: u16 = 4739;

/// The source that `from` names: `udp://ADDRESS[:PORT]`, a ring, a file, or `-`. `option` is how errors name it.
///
/// # Errors
///
/// If other machines can reach the address and no sender is named, or senders are named for a file.
pub fn source(option: &str, from: &str, allow: &[String]) -> Result<VectorSource> {
    let Some(at) = from.strip_prefix("udp://") else {
        return match allow.is_empty() {
            true => Ok(VectorSource::of_file(Path::new(from))),
            false => Err(refuse(format!(
                "--allow applies only to {option} udp://ADDRESS"
            ))),
        };
    };
    let listen = address(option, at, PORT)?;
    if !listen.ip().is_loopback() && allow.is_empty() {
        return Err(refuse(format!(
            "{option} {from}: other machines can reach this address, and anyone can forge vectors: name the accepted \
             senders, such as --allow 192.0.2.0/24 (0.0.0.0/0 is everyone)"
        )));
    }
    Ok(VectorSource::Listen(ListenSpec {
        name: at.to_owned(),
        address: listen,
        allowed: networks("--allow", allow)?,
        flush_idle: None,
    }))
}

/// The files that are read, which must not be overwritten: those of the source, and others.
#[must_use]
pub fn files(source: &VectorSource, others: &[PathBuf]) -> Sources {
    let sources = Sources::default().files(others);
    match source {
        VectorSource::Listen(_) => sources,
        VectorSource::Ring(path) | VectorSource::File(path) => sources.file(path),
    }
}

/// What is said of caches in a file or a ring that end without their number of vectors.
#[must_use]
pub fn cut(caches: u64) -> String {
    format!(
        "the vectors of {} end without their number: the command that wrote them was killed, or the file was cut, and \
         the last vectors are missing",
        count_of(caches, "cache")
    )
}

/// What was not read of a source.
#[derive(Debug, Default)]
pub struct Missing {
    /// What is in no answer.
    pub incomplete: Vec<String>,
    /// What was left out rightly.
    pub remarks: Vec<String>,
}

impl Missing {
    /// Of what was read.
    #[must_use]
    pub fn of(read: &VectorsRead) -> Self {
        let received = &read.received;
        let lost = [
            (received.lost, "vector", "never arrived"),
            (received.damaged, "datagram", "could not be read"),
            (
                received.refused,
                "datagram",
                "came from more senders than are accepted",
            ),
            (
                read.overwritten,
                "datagram",
                "were overwritten in the ring before they were read",
            ),
        ];
        let ignored = [
            (
                received.before,
                "vector",
                "were sent before this command listened",
            ),
            (
                received.stale,
                "datagram",
                "arrived twice or too late, and were ignored",
            ),
            (
                read.foreign,
                "datagram",
                "came from senders outside --allow, and were ignored",
            ),
        ];
        let cut = (received.unended > 0).then(|| cut(received.unended));
        let jumped = (received.jumps > 0).then(|| {
            let jumps = count_of(received.jumps, "jump");
            format!("{jumps} of a sender's numbers: it is unknown how many vectors are missing")
        });
        let lost = lost.into_iter().filter(|lost| lost.0 > 0);
        let ignored = ignored.into_iter().filter(|ignored| ignored.0 > 0);
        Self {
            incomplete: lost
                .map(|(count, what, why)| {
                    let lost = count_of(count, what);
                    format!("{lost} {why}: their packets are missing")
                })
                .chain(cut)
                .chain(jumped)
                .collect(),
            remarks: ignored
                .map(|(count, what, why)| format!("{} {why}", count_of(count, what)))
                .collect(),
        }
    }
}
