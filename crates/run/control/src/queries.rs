//! Queries that are installed in a recording: they see all that it records, while clients come and
//!go.
//!
//! A thread of their own takes grouped packet vectors from workers as any subscriber does, through a
//! bounded queue, so workers never wait for a query; what does not fit is lost and counted. It runs
//! while a query is installed. Nothing is saved: with the recording its queries end.

pub mod vectors;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use strata_gpv::agent::{Sequencer, SequencerOptions};
use strata_gpv::format::datagram::Datagram;
use strata_gpv::marple::{Flows, Limits, Program, Query, Value, ValueKind, compile, shipped};
use strata_gpv::{Column, Columns, Full, Vector};
use strata_wire::grouped;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use utoipa::ToSchema;

use crate::queries::vectors::{Attached, NotAttached, Subscriber, Subscribers, WhenFull};
pub use crate::query_report::{
    GroupKey, QueryReport, QueryReportKind, ReportedColumns, ReportedQuery,
};
use crate::request::QueryRequest;
use crate::saved::now;

/// Maximum number of queries.
pub const QUERIES_MAX: usize = 16;
/// Instructions that all of them together may take for a packet.
pub const INSTRUCTIONS_MAX: usize = 4096;
/// Groups, rows and bytes of a query at most: 256 MiB for all, and answers of a size that can be
/// sent at once.
pub const LIMITS: Limits = Limits {
    groups_max: 100_000,
    rows_max: 100_000,
    bytes_max: 16 << 20,
};
/// Answers that are sent at once: each may take 100 MB until its client has it.
const SENT_AT_ONCE: usize = 2;
/// Maximum number of characters of a name.
const NAME_MAX: usize = 64;

/// What a recording does not know about its packets.
pub const LACKED: [Column; 2] = [Column::QueueDepth, Column::HighQueue];

/// Why a request about queries is refused.
#[derive(Debug, thiserror::Error)]
pub enum QueryRefused {
    /// The name is unusable.
    #[error(
        "'{0}' is not a name for a query: use at most {NAME_MAX} letters, digits, '.', '_' and \
         '-', and do not begin with '-' or '.'"
    )]
    Name(String),
    /// There is one of that name.
    #[error("a query with the name '{0}' is installed already: remove it first")]
    Taken(String),
    /// There are enough.
    #[error("{QUERIES_MAX} queries are installed, the maximum: remove one first")]
    TooMany,
    /// It is too expensive.
    #[error(
        "the query takes {needed} instructions per packet, but only {left} of the {INSTRUCTIONS_MAX} \
         for all installed queries are left: remove a query first"
    )]
    Instructions {
        /// What it takes.
        needed: usize,
        /// What is left.
        left: usize,
    },
    /// A limit is larger than allowed.
    #[error("{field}: {given} is more than {most}, the maximum for an installed query")]
    Limit {
        /// The field of the request.
        field: &'static str,
        /// The number that was requested.
        given: u64,
        /// What is allowed.
        most: u64,
    },
    /// The text is wrong, or needs what there is not.
    #[error("{0}")]
    Query(String),
    /// There is no collector.
    #[error(
        "this recording reports to no telemetry collector: start it with --report-to, or install the \
         query without --report-as"
    )]
    NoCollector,
    /// There is no query of that name.
    #[error("no query with the name '{0}' is installed")]
    NoSuch(String),
    /// No client can attach any more.
    #[error(transparent)]
    Ends(#[from] NotAttached),
    /// The thread that runs queries cannot be started.
    #[error("cannot start a thread for queries: {0}")]
    Thread(io::Error),
}

/// An installed query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueryStatus {
    /// Its name.
    pub name: String,
    /// Its text.
    pub query: String,
    /// Since when, in RFC 3339.
    pub since: String,
    /// Packets that it has seen.
    pub packets: u64,
    /// What of it is reported to the telemetry collector of the recording, if anything is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub report: Option<QueryReport>,
    /// Rows of its answer so far.
    pub rows: u64,
    /// Maximum number of instructions that a packet takes.
    pub instructions: u64,
    /// Groups that it may have.
    pub groups_max: u64,
    /// Packets of groups for which there was no room.
    pub packets_refused: u64,
    /// Rows for which there was no room, if rows are packets.
    pub rows_cut: u64,
    /// Vectors that came faster than queries took them: their packets are in no answer.
    pub vectors_lost: u64,
    /// Why the answer is incomplete, if it is.
    pub incomplete: Option<String>,
}

/// What the values of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CellKind {
    /// Integers.
    Int,
    /// Ns since 1970.
    Time,
    /// Real numbers as strings, so that every digit is there, and `NaN`, `inf` and `-inf`.
    Real,
    /// Conditions.
    Bool,
    /// Addresses, as strings.
    Address,
}

/// A column of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueryColumn {
    /// Its name.
    pub name: String,
    /// What its values are.
    pub kind: CellKind,
}

/// A value of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Cell {
    /// A condition.
    Bool(bool),
    /// An integer, or a time.
    Int(i64),
    /// A real number, or an address.
    Text(String),
}

/// The answer of an installed query so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueryAnswer {
    /// The query.
    pub status: QueryStatus,
    /// Whether a row is a packet; else it is a group.
    pub is_of_packets: bool,
    /// Its columns.
    pub columns: Vec<QueryColumn>,
    /// Its rows, in the order in which they were found.
    pub rows: Vec<Vec<Cell>>,
}

impl From<ValueKind> for CellKind {
    fn from(kind: ValueKind) -> Self {
        match kind {
            ValueKind::Int => Self::Int,
            ValueKind::Time => Self::Time,
            ValueKind::Real => Self::Real,
            ValueKind::Bool => Self::Bool,
            ValueKind::Address => Self::Address,
        }
    }
}

impl From<CellKind> for ValueKind {
    fn from(kind: CellKind) -> Self {
        match kind {
            CellKind::Int => Self::Int,
            CellKind::Time => Self::Time,
            CellKind::Real => Self::Real,
            CellKind::Bool => Self::Bool,
            CellKind::Address => Self::Address,
        }
    }
}

impl From<Value> for Cell {
    fn from(value: Value) -> Self {
        match value {
            Value::Int(int) => Self::Int(int),
            Value::Real(real) => Self::Text(format!("{real:?}")),
            Value::Bool(bool) => Self::Bool(bool),
            Value::Address(address) => Self::Text(address.to_string()),
        }
    }
}

impl Cell {
    /// The value, of a column of this kind; `None` if it is of another.
    #[must_use]
    pub fn value(&self, kind: CellKind) -> Option<Value> {
        Some(match (kind, self) {
            (CellKind::Int | CellKind::Time, Self::Int(int)) => Value::Int(*int),
            (CellKind::Real, Self::Text(text)) => Value::Real(text.parse().ok()?),
            (CellKind::Bool, Self::Bool(bool)) => Value::Bool(*bool),
            (CellKind::Address, Self::Text(text)) => Value::Address(text.parse().ok()?),
            _ => return None,
        })
    }
}

/// One of them, at work.
#[derive(Debug)]
struct Installed {
    name: String,
    text: String,
    since: Timestamp,
    query: Query,
    report: Option<(QueryReport, ReportedColumns)>,
    /// Vectors that were lost before it came.
    lost_before: u64,
}

impl Installed {
    fn status(&self, lost: u64) -> QueryStatus {
        let (counters, limits) = (self.query.counters(), self.query.limits());
        let vectors_lost = lost.saturating_sub(self.lost_before);
        let mut why = Vec::new();
        if counters.refused > 0 {
            let (groups, packets) = (limits.groups_max.into(), counters.refused);
            why.push(format!(
                "it has {} groups, the most that its limits allow, and {} packets of other groups \
                 are not in the answer",
                grouped(groups),
                grouped(packets)
            ));
        }
        if counters.cut > 0 {
            why.push(format!(
                "it has {} rows, the most that its limits allow, and {} more were left out",
                grouped(limits.rows_max.into()),
                grouped(counters.cut)
            ));
        }
        if vectors_lost > 0 {
            why.push(format!(
                "{} vectors arrived faster than the query processed them, and their packets are \
                 not in the answer",
                grouped(vectors_lost)
            ));
        }
        QueryStatus {
            name: self.name.clone(),
            query: self.text.clone(),
            since: self.since.to_string(),
            packets: counters.packets,
            report: self.report.as_ref().map(|(report, _)| report.clone()),
            rows: self.query.rows() as u64,
            instructions: self.query.program().instructions() as u64,
            groups_max: limits.groups_max.into(),
            packets_refused: counters.refused,
            rows_cut: counters.cut,
            vectors_lost,
            incomplete: (!why.is_empty()).then(|| why.join("; ")),
        }
    }
}

/// The queries of a recording.
#[derive(Debug)]
pub struct Queries {
    subscribers: Arc<Subscribers>,
    sent: Arc<Semaphore>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    list: Vec<Installed>,
    /// What they are fed from; there is one while there are queries.
    feed: Option<Arc<Subscriber>>,
    /// Vectors of this feed that were lost.
    lost: u64,
}

impl Queries {
    /// None yet, of a recording that sends vectors to these.
    #[must_use]
    pub fn new(subscribers: &Arc<Subscribers>) -> Arc<Self> {
        Arc::new(Self {
            subscribers: Arc::clone(subscribers),
            sent: Arc::new(Semaphore::new(SENT_AT_ONCE)),
            inner: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs a query; it sees packets from now on.
    ///
    /// # Errors
    ///
    /// If it is refused: then nothing changes.
    pub fn install(self: &Arc<Self>, request: &QueryRequest) -> Result<QueryStatus, QueryRefused> {
        let QueryRequest { name, .. } = request;
        if !is_name(name) {
            return Err(QueryRefused::Name(
                name.chars().take(2 * NAME_MAX).collect(),
            ));
        }
        let limits = limits(request)?;
        let (text, program) = compiled(request)?;
        let (needed, columns) = (program.instructions(), program.columns());
        let report = request.report.clone().map(|report| {
            let is_of_packets = program.is_of_packets();
            let columns = report.columns(program.names(), &program.kinds(), is_of_packets);
            let columns = columns.map_err(|why| QueryRefused::Query(format!("--report-as: {why}")));
            columns.map(|columns| (report, columns))
        });
        let report = report.transpose()?;
        let query = Query::new::<Full>(program, limits);
        let query = query.map_err(|error| QueryRefused::Query(error.to_string()))?;
        let mut inner = self.lock();
        if inner.list.iter().any(|installed| installed.name == *name) {
            return Err(QueryRefused::Taken(name.clone()));
        }
        if inner.list.len() >= QUERIES_MAX {
            return Err(QueryRefused::TooMany);
        }
        let each = inner
            .list
            .iter()
            .map(|at| at.query.program().instructions());
        let left = INSTRUCTIONS_MAX.saturating_sub(each.sum());
        if needed > left {
            return Err(QueryRefused::Instructions { needed, left });
        }
        match &inner.feed {
            Some(feed) => self.subscribers.widen(feed, columns.0)?,
            None => {
                let attached = self.subscribers.attach_inside(columns.0, WhenFull::Lose)?;
                let feed = attached.subscriber();
                let queries = Arc::clone(self);
                let work = move || queries.run(attached);
                let thread = thread::Builder::new().name("strata-queries".into());
                thread.spawn(work).map_err(QueryRefused::Thread)?;
                (inner.feed, inner.lost) = (Some(feed), 0);
            }
        }
        let installed = Installed {
            name: name.clone(),
            text,
            since: now(),
            query,
            report,
            lost_before: inner.lost,
        };
        let status = installed.status(inner.lost);
        inner.list.push(installed);
        Ok(status)
    }

    /// Removes the query of this name, and what it found.
    ///
    /// # Errors
    /// If there is no such query.
    pub fn remove(&self, name: &str) -> Result<(), QueryRefused> {
        let mut inner = self.lock();
        let at = inner.find(name)?;
        inner.list.remove(at);
        if inner.list.is_empty()
            && let Some(feed) = inner.feed.take()
        {
            feed.close();
        }
        Ok(())
    }

    /// Must be held while an answer is sent; `None` if enough are.
    pub(crate) fn sending(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.sent).try_acquire_owned().ok()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().list.len()
    }

    /// All of them, in the order in which they came.
    #[must_use]
    pub fn list(&self) -> Vec<QueryStatus> {
        let inner = self.lock();
        let list = inner.list.iter();
        list.map(|installed| installed.status(inner.lost)).collect()
    }

    /// What one of them has found so far.
    ///
    /// # Errors
    ///
    /// If there is no query of this name.
    pub fn answer(&self, name: &str) -> Result<QueryAnswer, QueryRefused> {
        let mut inner = self.lock();
        let at = inner.find(name)?;
        let status = inner.list[at].status(inner.lost);
        let query = &mut inner.list[at].query;
        let answer = query.answer();
        let kinds = query.program().kinds();
        let is_of_packets = query.program().is_of_packets();
        drop(inner);
        let columns = answer.names.into_iter().zip(kinds);
        let rows = answer.rows.into_iter();
        Ok(QueryAnswer {
            status,
            is_of_packets,
            columns: columns
                .map(|(name, kind)| QueryColumn {
                    name,
                    kind: kind.into(),
                })
                .collect(),
            rows: rows
                .map(|row| row.into_iter().map(Cell::from).collect())
                .collect(),
        })
    }

    /// Those of which something is reported, with their answers so far.
    #[must_use]
    pub fn reported(&self) -> Vec<ReportedQuery> {
        let mut inner = self.lock();
        let reported = inner.list.iter_mut().filter_map(|installed| {
            let (report, columns) = installed.report.clone()?;
            Some(ReportedQuery {
                name: installed.name.clone(),
                since: installed.since.to_string(),
                report,
                columns,
                rows: installed.query.answer().rows,
            })
        });
        reported.collect()
    }

    /// Feeds them until they are gone, or the recording is over.
    fn run(&self, mut attached: Attached) {
        let feed = attached.subscriber();
        // Datagrams of a worker come in order, so nothing has to wait.
        let mut sequencer = Sequencer::new(SequencerOptions {
            waiting_max: 0,
            ..SequencerOptions::default()
        });
        let mut flows = Flows::new();
        while let Some(bytes) = attached.blocking_next() {
            let Ok(datagram) = Datagram::new_checked(&bytes) else {
                continue;
            };
            let columns = datagram.columns;
            let mut inner = self.lock();
            // Others may have been installed since these were removed.
            if !inner.is_fed_by(&feed) {
                continue;
            }
            let list = &mut inner.list;
            let ask = |_, vectors: &[Vector<'_, Full>]| take(&mut flows, list, columns, vectors);
            // What can be read is taken, and the rest counted as lost.
            let _ = sequencer.datagram_at_once(&bytes, ask);
            inner.lost = sequencer.counters().lost;
        }
        let mut inner = self.lock();
        if inner.is_fed_by(&feed) {
            for (cache, sent) in feed.end().caches {
                let _ = sequencer.finish(cache, Some(sent), |_, _| ());
            }
            inner.lost = sequencer.counters().lost;
        }
    }
}

impl Inner {
    fn find(&self, name: &str) -> Result<usize, QueryRefused> {
        let at = self
            .list
            .iter()
            .position(|installed| installed.name == name);
        at.ok_or_else(|| QueryRefused::NoSuch(name.chars().take(2 * NAME_MAX).collect()))
    }

    fn is_fed_by(&self, feed: &Arc<Subscriber>) -> bool {
        self.feed.as_ref().is_some_and(|now| Arc::ptr_eq(now, feed))
    }
}

/// Gives vectors to all whose columns they have: they may be from before one of them came.
fn take(flows: &mut Flows, list: &mut [Installed], columns: Columns, vectors: &[Vector<'_, Full>]) {
    let queries = list.iter_mut().map(|installed| &mut installed.query);
    let mut queries: Vec<&mut Query> = queries
        .filter(|query| query.program().check(columns).is_ok())
        .collect();
    flows.ask(0, vectors, &mut queries);
}

fn is_name(name: &str) -> bool {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=NAME_MAX).contains(&name.len())
        && name.chars().all(is_usual)
        && !name.starts_with(['-', '.'])
}

fn limits(request: &QueryRequest) -> Result<Limits, QueryRefused> {
    let within = |field, given: Option<u64>, most: u64| match given {
        Some(given) if given > most => Err(QueryRefused::Limit { field, given, most }),
        given => Ok(given.unwrap_or(most)),
    };
    let few = |field, given, most: u32| {
        let number = within(field, given, most.into())?;
        Ok::<u32, QueryRefused>(strata_wire::exact(number))
    };
    Ok(Limits {
        groups_max: few("groups_max", request.groups_max, LIMITS.groups_max)?,
        rows_max: few("rows_max", request.rows_max, LIMITS.rows_max)?,
        bytes_max: within("memory_max", request.memory_max, LIMITS.bytes_max)?,
    })
}

/// The text of a query and its program.
fn compiled(request: &QueryRequest) -> Result<(String, Program), QueryRefused> {
    let params: Vec<(&str, &str)> = pairs(&request.params);
    let (text, params) = match shipped(request.query.trim()) {
        Some(shipped) => {
            let params = shipped.with(&params).map_err(QueryRefused::Query)?;
            (shipped.text, params)
        }
        None => {
            let text = request.query.as_str();
            let unused = params
                .iter()
                .find(|(name, _)| !text.contains(&format!("${name}")));
            if let Some((name, _)) = unused {
                let what = format!("the query has no parameter ${name}");
                return Err(QueryRefused::Query(what));
            }
            (text, params)
        }
    };
    let program = compile(text, &params);
    let program = program.map_err(|error| QueryRefused::Query(error.to_string()))?;
    let carried = Columns(Columns::ALL.0 & !Columns::of(&LACKED).0);
    let checked = program.check(carried);
    checked.map_err(|error| QueryRefused::Query(error.to_string()))?;
    Ok((text.to_owned(), program))
}

fn pairs(params: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
    let params = params.iter();
    params
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}

#[cfg(test)]
mod tests;
