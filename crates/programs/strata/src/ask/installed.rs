//! Queries that run in a recording itself: installed, listed, asked for their answers, removed.

use std::io::Write;

use anyhow::{Context, Result, anyhow};
use strata_control::QueryRequest;
use strata_control::client::{Client, ClientError};
use strata_control::queries::{QueryAnswer, QueryStatus};
use strata_gpv::marple::Answer;
use strata_store::Sources;
use strata_terminal::listing::{ColumnForm, Reader, listing};
use strata_terminal::output::{refuse, standard};
use strata_terminal::text::count_of;
use strata_wire::{Printable, grouped};
use tracing::{info, warn};

use super::Args;
use super::answer::Answers;
use super::attached::LACKS;
use super::questions::{self, Questions, Shape};

fn client(args: &Args) -> Result<Client, ClientError> {
    Client::new(args.socket.as_deref())
}

/// Puts the query into the recording, under this name.
pub(super) fn install(args: &Args, name: &str, questions: Questions) -> Result<()> {
    let mut compiled = questions.compiled()?;
    let (Some(one), true) = (compiled.pop(), compiled.is_empty()) else {
        return Err(refuse(
            "--install takes one query: install several one after the other",
        ));
    };
    questions::check(
        [(one.name.as_str(), one.text.as_str(), &one.program)],
        &LACKS,
    )?;
    let bounds = &args.bounds;
    let request = QueryRequest {
        name: name.to_owned(),
        query: one.text,
        params: one.params.into_iter().collect(),
        groups_max: bounds.groups_max,
        rows_max: bounds.rows_max,
        memory_max: bounds.memory_max,
        report: args.report_as.clone(),
        why: String::new(),
    };
    let installed = client(args)?.install_query(&request)?;
    info!(
        "{} is installed, and runs on all packets from now on until the recording ends: `strata \
         ask --installed {}` shows its answer",
        installed.name, installed.name
    );
    Ok(())
}

pub(super) fn remove(args: &Args, name: &str) -> Result<()> {
    Ok(client(args)?.remove_query(name)?)
}

/// Lists them.
pub(super) fn list(args: &Args) -> Result<()> {
    let all = client(args)?.queries()?;
    let mut out = standard();
    if args.json {
        let all = serde_json::to_value(&all)?;
        return Ok(writeln!(out, "{all:#}")?);
    }
    if all.is_empty() {
        info!("no query is installed: `strata ask --install NAME QUERY` installs one");
        return Ok(());
    }
    let head = ["query", "since", "packets", "rows", "answer"].map(str::to_owned);
    let row = |query: &QueryStatus| {
        let answer = query.incomplete.as_deref().unwrap_or("complete");
        [
            Printable(&query.name).to_string(),
            Printable(&query.since).to_string(),
            grouped(query.packets),
            grouped(query.rows),
            Printable(answer).to_string(),
        ]
    };
    let columns = [
        ColumnForm::words(0),
        ColumnForm::words(0).apart(),
        ColumnForm::numbers(0).apart(),
        ColumnForm::numbers(0).apart(),
        ColumnForm::words(0).apart(),
    ];
    let rows = std::iter::once(head).chain(all.iter().map(row));
    Ok(write!(
        out,
        "{}",
        listing(Reader::of_stdout(), columns, rows)
    )?)
}

/// Gives the answer so far of the query of this name.
pub(super) fn answer(args: &Args, name: &str) -> Result<()> {
    let answer = client(args)?.query_answer(name)?;
    give(args, answer)
}

/// The same for a word that is no query by itself.
pub(super) fn answer_of_word(args: &Args, word: &str) -> Result<()> {
    let client = client(args)?;
    let is_there = client.queries()?.iter().any(|query| query.name == word);
    match is_there {
        true => give(args, client.query_answer(word)?),
        false => Err(questions::unknown(word)),
    }
}

fn give(args: &Args, answer: QueryAnswer) -> Result<()> {
    if args.count.is_some() || args.skip_incomplete {
        return Err(refuse(
            "an installed query already runs in the recording: -c and --skip-incomplete do not \
             apply",
        ));
    }
    let QueryAnswer {
        status,
        is_of_packets,
        columns,
        rows,
    } = answer;
    let shape = Shape {
        name: status.name.clone(),
        columns: columns.iter().map(|column| column.name.clone()).collect(),
        kinds: columns.iter().map(|column| column.kind.into()).collect(),
        is_of_packets,
    };
    let rows = rows.iter().map(|row| {
        let is_whole = row.len() == columns.len();
        let cells = row.iter().zip(&columns);
        let values: Option<Vec<_>> = cells
            .map(|(cell, column)| cell.value(column.kind))
            .collect();
        values.filter(|_| is_whole)
    });
    let rows: Option<Vec<_>> = rows.collect();
    let rows = rows.context(
        "the values of the answer do not have the types of its columns: does the recording run \
         another version of Strata?",
    )?;
    let names = shape.columns.clone();
    let mut answers = Answers::new(args, vec![shape])?;
    answers.reads(Sources::default());
    answers.open()?;
    let remarks: Vec<String> = status.incomplete.iter().cloned().collect();
    answers.write_all(vec![(status.query, remarks, Answer { names, rows })])?;
    info!(
        "{} processed since {}",
        count_of(status.packets, "packet"),
        Printable(&status.since)
    );
    match status.incomplete {
        None => Ok(()),
        Some(why) => {
            warn!("{}: {}", Printable(&status.name), Printable(&why));
            Err(anyhow!("the answer is incomplete (see the warnings above)"))
        }
    }
}
