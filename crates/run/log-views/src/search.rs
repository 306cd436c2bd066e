//! Searching a log.

pub mod flow_id;
pub mod found;
pub mod results;
pub mod series;

mod sought;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use strata_query::{ByLink, Find, Matches, Outline, Search, outline, search};
use strata_store::Log;
use utoipa::ToSchema;

use crate::answers::parts::Covered;
use crate::answers::refused::Refused;
use crate::logs::{self, ClassCount, Logs};
use crate::search::found::{FlowRow, Found, ReasonCount, ReasonWords, Tops, Totals};
use crate::search::results::Searches;
use crate::search::series::{Histogram, Series};
use crate::work::Stop;
use crate::work::body::Sink;

pub(crate) use sought::filter_with;
pub use sought::{Asked, Sought, filter, options, quoted};

/// Rows in the first news of a search.
const FIRST_ROWS: usize = 100;
/// How often news of a search are sent.
const NEWS: Duration = Duration::from_millis(200);
/// Threads that read for a search.
const THREADS: usize = 2;

/// Told what was found so far and how far the search is; breaks to end it.
pub(crate) type Tell<'a> = dyn FnMut(&Found, f64) -> ControlFlow<()> + 'a;

/// The histogram of what is sought, without packets.
fn histogram(log: &Log, sought: &Sought, points: usize) -> Histogram {
    let Some((first, last)) = logs::span_ns(log) else {
        return Histogram::empty();
    };
    let from = sought.from_ns.map_or(first, |from| from.max(first));
    let to = sought
        .to_ns
        .map_or(last, |to| last.min(to.saturating_sub(1)));
    Histogram::new((from, to.max(from)), points)
}

/// The sums of a log by time and class, if its summaries tell that of what is sought: without
/// reasons and flows.
fn outlined(
    log: &Log,
    sought: &Sought,
    points: usize,
    stop: &Stop,
) -> Result<Option<Found>, Refused> {
    if sought.filter.is_some() || sought.flow.is_some() || !sought.kept.is_all() {
        return Ok(None);
    }
    let histogram = histogram(log, sought, points);
    let how = Outline {
        from_ns: sought.from_ns,
        to_ns: sought.to_ns,
        points_ns: histogram.step_ns(),
        goes_on: &|| stop.go_on().is_continue(),
    };
    let mut found = Found::new((sought.kept.clone(), None), histogram, false);
    let is_all = outline(log, &how, &mut found)?;
    found.note_log(log, sought.from_ns)?;
    Ok(is_all.then_some(found))
}

/// Searches a log; `tell` hears of it.
pub(crate) fn run(
    log: &Log,
    sought: &Sought,
    (points, lists_flows): (usize, bool),
    stop: &Stop,
    tell: &mut Tell<'_>,
) -> Result<Found, Refused> {
    let histogram = histogram(log, sought, points);
    let wanted = || (sought.kept.clone(), sought.flow);
    let piece = || Found::new(wanted(), histogram.fresh(), lists_flows);
    let mut found = piece();
    found.note_log(log, sought.from_ns)?;
    let untested = AtomicU64::new(0);
    let matches = || -> Box<Matches<'_>> {
        let by_link = sought.filter.clone();
        let mut by_link = by_link.map(|filter| ByLink::new(filter, |_, _| {}));
        let untested = &untested;
        Box::new(move |link, packet, len| {
            let Some(by_link) = &mut by_link else {
                return true;
            };
            let before = by_link.untested();
            let is_match = by_link.matches(link, packet, len);
            if by_link.untested() > before {
                untested.fetch_add(1, Ordering::Relaxed);
            }
            is_match
        })
    };
    let goes_on = || stop.go_on().is_continue();
    let narrowed = sought.narrowed();
    let how = Search {
        find: Find {
            filter: narrowed.as_ref(),
            ..sought.find()
        },
        matches: &matches,
        goes_on: &goes_on,
        // Counts do not tell the first packet of a reason, which is shown where no flows are.
        points_ns: (lists_flows && sought.flow.is_none() && sought.kept.is_all())
            .then(|| histogram.step_ns()),
        threads: THREADS,
    };
    search(log, &how, &piece, &mut |piece, share| {
        if let Some(piece) = piece {
            found.add(piece);
        }
        tell(&found, share)?;
        stop.go_on()
    })?;
    found.note_untested(untested.into_inner());
    Ok(found)
}

/// Packets and bytes over time.
///
/// # Errors
///
/// If there is no such log, or it cannot be read.
pub fn series(
    logs: &Logs,
    log: &str,
    sought: &Sought,
    points: usize,
    stop: &Stop,
) -> Result<Series, Refused> {
    let since = Instant::now();
    let log = logs::open(logs, log)?;
    let found = match outlined(&log, sought, points, stop)? {
        Some(found) => found,
        None => run(&log, sought, (points, false), stop, &mut |_, _| {
            ControlFlow::Continue(())
        })?,
    };
    let covered = found.covered(stop, since);
    Ok(found.histogram(&covered))
}

/// What a policy would have matched.
///
/// # Errors
///
/// If the log cannot be read.
pub fn matched(log: &Log, sought: &Sought, stop: &Stop) -> Result<(Totals, Covered), Refused> {
    let since = Instant::now();
    let found = run(log, sought, (10, true), stop, &mut |_, _| {
        ControlFlow::Continue(())
    })?;
    Ok((found.totals(), found.covered(stop, since)))
}

/// A line of a search.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"event": "progress", "share": 0.4, "flows": 1200, "rows": []}))]
pub struct SearchEvent {
    event: SearchStage,
    /// `begin`, `done`: number of the search.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    search: Option<String>,
    /// `outline`: none if the summaries are not sufficient.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    outline: Option<SearchOutline>,
    /// `progress`: share of the log that was searched, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    share: Option<f64>,
    /// `progress`, `done`: flows found so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    flows: Option<usize>,
    /// `progress`: packets found so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    packets: Option<u64>,
    /// `progress`, without an outline: what was found so far, over the same points as in the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    histogram: Option<Series>,
    /// `progress`: the first rows found, at most 100 once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    rows: Option<Vec<FlowRow>>,
    /// `done`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    result: Option<SearchResult>,
    /// `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    problem: Option<Refused>,
}

/// Kind of a line of a search.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SearchStage {
    Begin,
    Outline,
    Progress,
    Done,
    Error,
}

impl SearchEvent {
    fn new(event: SearchStage) -> Self {
        Self {
            event,
            search: None,
            outline: None,
            share: None,
            flows: None,
            packets: None,
            histogram: None,
            rows: None,
            result: None,
            problem: None,
        }
    }
}

/// The sums of everything in a time, without a filter, before its packets are read.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SearchOutline {
    #[serde(flatten)]
    totals: Totals,
    histogram: Series,
    classes: Vec<ClassCount>,
}

/// The result of a search.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "flows": 2, "listed": 2, "packets": 43, "wire_bytes": 30000, "kept_bytes": 28000,
    "histogram": {
        "t": [1_769_864_400, 1_769_864_410],
        "step": 10,
        "series": [{
            "class": "botnet", "granularity": "full", "packets": [1, 3.2], "captured_bytes": [600, 2400],
            "kept_bytes": [600, 2400],
        }],
        "lost": null,
        "events": [],
        "covered": {
            "complete": true, "why": null, "remark": null, "packets": 43, "from": null, "to": null, "damaged": 0,
            "encrypted_packets": 0, "seconds": 0.01,
        },
    },
    "classes": [{"class": "botnet", "granularity": "full", "packets": 43, "wire_bytes": 30000, "kept_bytes": 28000}],
    "reasons": [
        {
            "reason": "flow-trees:12,3,7", "words": "most trees for flows say botnet", "class": "botnet",
            "granularity": "full", "packets": 40, "kept_bytes": 27000,
        },
        {
            "reason": "policy:7:\"tcp port 80\"", "words": "policy 7 \"tcp port 80\"", "class": "benign",
            "granularity": "full", "packets": 3, "kept_bytes": 1000,
        },
    ],
    "reason_words": [
        {
            "words": "most trees for flows say botnet", "ways": 1, "reason": "flow-trees:12,3,7", "packets": 40,
            "kept_bytes": 27000,
        },
        {
            "words": "policy 7 \"tcp port 80\"", "ways": 1, "reason": "policy:7:\"tcp port 80\"", "packets": 3,
            "kept_bytes": 1000,
        },
    ],
    "top": {
        "addresses": [{"what": "10.0.0.1", "owner": null, "flows": 2, "packets": 43, "wire_bytes": 30000, "kept_bytes": 28000}],
        "ports": [{"what": "tcp/443", "owner": null, "flows": 2, "packets": 43, "wire_bytes": 30000, "kept_bytes": 28000}],
    },
    "command": {
        "pcapng": "strata export /var/log/strata/edge -w out.pcapng 'host 10.0.0.1'",
        "csv": "strata export /var/log/strata/edge -w flows.csv 'host 10.0.0.1'",
        "json": "strata export /var/log/strata/edge -w flows.json 'host 10.0.0.1'",
        "flows_parquet": "strata export /var/log/strata/edge -w flows.parquet 'host 10.0.0.1'",
        "packets_parquet":
            "strata export /var/log/strata/edge -w packets.parquet -F packets-parquet 'host 10.0.0.1'",
    },
    "covered": {
        "complete": true, "why": null, "remark": null, "packets": 43, "from": "2026-01-31T13:00:00.000000000Z",
        "to": "2026-01-31T13:00:20.000000000Z", "damaged": 0, "encrypted_packets": 0, "seconds": 0.01,
    },
}))]
pub(crate) struct SearchResult {
    #[serde(flatten)]
    totals: Totals,
    histogram: Series,
    classes: Vec<ClassCount>,
    /// At most 50, most packets first.
    reasons: Vec<ReasonCount>,
    /// All reasons, those that read the same as one, most packets first: the forest has several ways to the same
    /// verdict. Beyond 12 the rest is one, `other reasons`. Their packets are those of the result.
    reason_words: Vec<ReasonWords>,
    top: Tops,
    /// Null with `flow`: no filter selects exactly its packets.
    #[schema(required)]
    command: Option<SearchCommands>,
    covered: Covered,
}

/// The command lines that do the same, to copy.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SearchCommands {
    pcapng: String,
    csv: String,
    json: String,
    flows_parquet: String,
    packets_parquet: String,
}

/// Searches, and sends what is found as lines of `SearchEvent`.
pub fn stream(
    (logs, (searches, user)): (&Logs, (&Searches, &str)),
    (id, sought, points): (&str, &Sought, usize),
    stop: &Stop,
    sink: &mut Sink,
) {
    if let Err(refused) = streamed((logs, (searches, user)), (id, sought, points), stop, sink) {
        let _ = sink.line(&SearchEvent {
            problem: Some(refused),
            ..SearchEvent::new(SearchStage::Error)
        });
    }
}

fn streamed(
    (logs, (searches, user)): (&Logs, (&Searches, &str)),
    (id, sought, points): (&str, &Sought, usize),
    stop: &Stop,
    sink: &mut Sink,
) -> Result<(), Refused> {
    let since = Instant::now();
    let gone = |_| Refused::busy("the browser has disconnected");
    let search = searches.number();
    let begin = SearchEvent {
        search: Some(search.clone()),
        ..SearchEvent::new(SearchStage::Begin)
    };
    sink.line(&begin).map_err(gone)?;
    let log = logs::open(logs, id)?;
    // Compacted packets are counted as fast as they are outlined.
    let has_blocks = log.recordings().iter().any(|one| !one.files.is_empty());
    let outlined = match has_blocks {
        true => outlined(&log, sought, points, stop)?,
        false => None,
    };
    if let Some(found) = &outlined {
        let outline = SearchOutline {
            totals: found.totals(),
            histogram: found.histogram(&found.covered(stop, since)),
            classes: found.classes(),
        };
        let outline = SearchEvent {
            outline: Some(outline),
            ..SearchEvent::new(SearchStage::Outline)
        };
        sink.line(&outline).map_err(gone)?;
    }
    let mut told_at: Option<Instant> = None;
    let mut sent_rows = 0;
    let mut tell = |found: &Found, share: f64| {
        if found.packets == 0 || told_at.is_some_and(|at| at.elapsed() < NEWS) {
            return ControlFlow::Continue(());
        }
        told_at = Some(Instant::now());
        let mut rows = Vec::new();
        let first = found.rows.len().min(FIRST_ROWS);
        if first > sent_rows {
            sent_rows = first;
            let first = found.rows.iter().take(first);
            rows = first.map(|row| found.flow(row, &sought.names)).collect();
        }
        let histogram = match outlined {
            Some(_) => None,
            None => Some(found.histogram(&found.covered_so_far(share, since))),
        };
        let news = SearchEvent {
            share: Some(share),
            flows: Some(found.rows.len()),
            packets: Some(found.packets),
            histogram,
            rows: Some(rows),
            ..SearchEvent::new(SearchStage::Progress)
        };
        match sink.line(&news) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };
    let found = run(&log, sought, (points, true), stop, &mut tell)?;
    if stop.is_left() {
        return Ok(());
    }
    let covered = found.covered(stop, since);
    let dir = logs.dir(id)?;
    let command = sought.flow.is_none().then(|| SearchCommands {
        pcapng: sought.command(dir, "out.pcapng"),
        csv: sought.command(dir, "flows.csv"),
        json: sought.command(dir, "flows.json"),
        flows_parquet: sought.command(dir, "flows.parquet"),
        packets_parquet: sought.command(dir, "packets.parquet -F packets-parquet"),
    });
    let result = SearchResult {
        totals: found.totals(),
        histogram: found.histogram(&covered),
        classes: found.classes(),
        reasons: found.reasons(),
        reason_words: found.reason_words(),
        top: found.top(&sought.names),
        command,
        covered,
    };
    let flows = found.rows.len();
    searches.keep((search.clone(), user), found);
    let done = SearchEvent {
        search: Some(search),
        flows: Some(flows),
        result: Some(result),
        ..SearchEvent::new(SearchStage::Done)
    };
    sink.line(&done).map_err(gone)
}
