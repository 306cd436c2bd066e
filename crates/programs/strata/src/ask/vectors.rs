//! Asking of grouped packet vectors, as `strata gpv run` and switches make them.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use strata_gpv::agent::ReassemblyOptions;
use strata_gpv::{Column, Columns};
use strata_gpv_run::{
    Form, GivenRecord, ListenSpec, RecordOutput, VectorError, VectorReader, VectorSource,
    VectorsRead,
};
use strata_role::Tell;
use strata_store::Sources;
use strata_terminal::address::{address, networks};
use strata_terminal::logging;
use strata_terminal::output::refuse;
use strata_terminal::signals::stop_on_signal;
use strata_terminal::text::count_of;

use super::Args;
use super::answer::Answers;
use super::asking::Asking;
use super::questions::Lack;

/// Senders whose vectors are accepted at the same time.
const SENDERS_MAX: usize = 16;
/// Packets wait at most this long for others of their flow.
const INTERVAL_NS: u64 = 1_000_000_000;
/// The port of an address without one: that of IPFIX.
const PORT: u16 = 4739;

const NO_FILTER: &str = "vectors carry features of packets, to which no tcpdump filter applies: write the condition \
     into the query, as in filter(T, dstport == 443)";
const NOT_CARRIED: &str = "the vectors do not carry it";

pub(super) fn ask(
    args: &Args,
    from: &str,
    filter: &[String],
    asking: &mut Asking,
    answers: &mut Answers,
) -> Result<()> {
    if !filter.is_empty() {
        return Err(refuse(NO_FILTER));
    }
    let source = source(args, from)?;
    let stop = stop_on_signal()?;
    let mut is_live = true;
    match &source {
        VectorSource::Listen(_) => {}
        VectorSource::Ring(path) => answers.reads(Sources::default().file(path).files(&args.files)),
        VectorSource::File(path) => {
            is_live = false;
            answers.reads(Sources::default().file(path).files(&args.files));
        }
    }
    let reassembly = ReassemblyOptions {
        interval_ns: INTERVAL_NS,
        ..ReassemblyOptions::default()
    };
    let reader = VectorReader::open(&source, Form::Strata, reassembly, SENDERS_MAX)?;
    args.sandbox.confine(&answers.reach())?;
    answers.open()?;
    let tell: Tell = Arc::new(logging::notice);
    if let Some(notice) = reader.notice()? {
        tell(&notice);
    }
    let mut taking = Taking {
        asking,
        answers: is_live.then_some(answers),
        carried: Columns::ALL,
        failure: None,
    };
    let (read, ended) = reader.read(&mut taking, &stop, &tell);
    if let Some(failure) = taking.failure {
        return Err(failure);
    }
    missing(&read, asking);
    Ok(ended?)
}

fn source(args: &Args, from: &str) -> Result<VectorSource> {
    let Some(at) = from.strip_prefix("udp://") else {
        return match args.allow.is_empty() {
            true => Ok(VectorSource::of_file(Path::new(from))),
            false => Err(refuse("--allow applies only to --vectors udp://ADDRESS")),
        };
    };
    let listen = address("--vectors", at, PORT)?;
    if !listen.ip().is_loopback() && args.allow.is_empty() {
        return Err(refuse(format!(
            "--vectors {from}: other machines can reach this address, and anyone can forge vectors: name the \
             accepted senders, such as --allow 192.0.2.0/24 (0.0.0.0/0 is everyone)"
        )));
    }
    Ok(VectorSource::Listen(ListenSpec {
        name: at.to_owned(),
        address: listen,
        allowed: networks("--allow", &args.allow)?,
        flush_idle: None,
    }))
}

/// Records into queries.
struct Taking<'a> {
    asking: &'a mut Asking,
    /// Of vectors that come as they are made, the answer so far is shown.
    answers: Option<&'a mut Answers>,
    /// The columns that the queries were checked against.
    carried: Columns,
    failure: Option<anyhow::Error>,
}

impl Taking<'_> {
    fn take(&mut self, given: &GivenRecord<'_>) -> Result<()> {
        if self.carried != given.known {
            self.carried = given.known;
            let lacks = Columns(Columns::ALL.0 & !given.known.0).iter();
            let lack = |column: Column| Lack {
                column,
                why: NOT_CARRIED,
            };
            self.asking.check(&lacks.map(lack).collect::<Vec<_>>())?;
        }
        let switch = given.sender.cache.expect("vectors of this form have it");
        self.asking.record(switch, given.record);
        Ok(())
    }

    fn try_to(&mut self, what: impl FnOnce(&mut Self) -> Result<()>) -> ControlFlow<()> {
        if self.failure.is_none()
            && let Err(failure) = what(self)
        {
            self.failure = Some(failure);
        }
        match self.failure {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }
}

impl RecordOutput for Taking<'_> {
    fn put(&mut self, given: &GivenRecord<'_>) {
        if !self.is_complete() {
            let _ = self.try_to(|taking| taking.take(given));
        }
    }

    fn keep_up(&mut self) -> Result<(), VectorError> {
        let _ = self.try_to(|taking| match &mut taking.answers {
            Some(answers) => answers.show(taking.asking),
            None => Ok(()),
        });
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.failure.is_some() || self.asking.is_done()
    }
}

/// What the answer lacks, and why.
fn missing(read: &VectorsRead, asking: &mut Asking) {
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
            "overwritten in the ring before being read",
        ),
    ];
    for (count, what, why) in lost.into_iter().filter(|lost| lost.0 > 0) {
        let lost = count_of(count, what);
        asking
            .incomplete
            .push(format!("{lost} {why}: their packets are in no answer"));
    }
    let ignored = [
        (
            received.before,
            "vector",
            "sent before this command listened",
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
    for (count, what, why) in ignored.into_iter().filter(|ignored| ignored.0 > 0) {
        let ignored = count_of(count, what);
        asking.remarks.push(format!("{ignored} {why}"));
    }
}
