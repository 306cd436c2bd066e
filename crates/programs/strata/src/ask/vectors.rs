//! Asking of grouped packet vectors, as `strata gpv run` and switches make them.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::Result;
use strata_gpv::agent::ReassemblyOptions;
use strata_gpv::{Column, Columns};
use strata_gpv_run::{GivenRecord, RecordOutput, VectorError};
use strata_role::Tell;
use strata_terminal::logging;
use strata_terminal::output::refuse;
use strata_terminal::selection::vectors::{self, Missing, SENDERS_MAX};
use strata_terminal::signals::stop_on_signal;

use super::Args;
use super::answer::Answers;
use super::asking::Asking;
use super::questions::Lack;

/// Packets wait at most this long for others of their flow.
const INTERVAL_NS: u64 = 1_000_000_000;

const NO_FILTER: &str = "vectors carry packet features, which a tcpdump filter cannot test: write the condition \
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
    let source = vectors::source("--vectors", from, &args.allow, args.follow, args.frames)?;
    let is_live = source.is_live();
    answers.reads(source.files(&args.files));
    let reassembly = ReassemblyOptions {
        interval_ns: INTERVAL_NS,
        ..ReassemblyOptions::default()
    };
    let reader = source.open(reassembly, SENDERS_MAX)?;
    let mut reach = answers.reach();
    source.reach(&mut reach);
    args.sandbox.confine(&reach)?;
    let stop = stop_on_signal()?;
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
    let Missing {
        incomplete,
        remarks,
    } = Missing::of(&read);
    asking.incomplete.extend(incomplete);
    asking.remarks.extend(remarks);
    Ok(ended?)
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
