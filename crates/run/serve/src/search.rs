//! Searching a log: the request, and the search.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use strata_filter::Filter;
use strata_query::{ByLink, Find, Kept, Matches, Outline, Search, outline, search};
use strata_store::Log;

use crate::body::Sink;
use crate::found::{Covered, Found, Totals};
use crate::logs::{self, Logs};
use crate::refused::Refused;
use crate::results::Searches;
use crate::series::Histogram;
use crate::times;
use crate::work::Stop;

/// Most bytes of a filter.
pub(crate) const FILTER_BYTES_MAX: usize = 4 << 10;
/// Rows in the first news of a search.
const FIRST_ROWS: usize = 100;
/// How often news of a search are sent.
const NEWS: Duration = Duration::from_millis(200);
/// Threads that read for a search.
const THREADS: usize = 2;

/// What a request asks for: the parameters of search, series and export.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Asked {
    filter: Option<String>,
    from: Option<String>,
    to: Option<String>,
    pub(crate) class: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) granularity: Option<String>,
    pub(crate) points: Option<usize>,
    pub(crate) format: Option<String>,
    pub(crate) flow: Option<String>,
}

/// What is sought, checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sought {
    pub(crate) text: String,
    pub(crate) filter: Option<Filter>,
    pub(crate) from_ns: Option<u64>,
    pub(crate) to_ns: Option<u64>,
    pub(crate) kept: Kept,
}

/// A filter of a request; `None` for everything.
pub(crate) fn filter(field: &'static str, text: &str) -> Result<Option<Filter>, Refused> {
    if text.len() > FILTER_BYTES_MAX {
        let error = format!("a filter has at most {FILTER_BYTES_MAX} bytes");
        return Err(Refused::invalid(field, error));
    }
    if text.trim().is_empty() {
        return Ok(None);
    }
    let parsed = Filter::parse(text);
    parsed
        .map(Some)
        .map_err(|error| Refused::filter(field, &error))
}

fn not_empty(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

impl Asked {
    /// Everything in a time.
    pub(crate) fn between(from: Option<String>, to: Option<String>) -> Self {
        Self {
            from,
            to,
            ..Self::default()
        }
    }

    pub(crate) fn sought(&self) -> Result<Sought, Refused> {
        let text = self.filter.as_deref().unwrap_or("").to_owned();
        let time = |field, text: &Option<String>| {
            not_empty(text)
                .map(|text| times::parse(field, text))
                .transpose()
        };
        let sought = Sought {
            filter: filter("filter", &text)?,
            text: text.trim().to_owned(),
            from_ns: time("from", &self.from)?,
            to_ns: time("to", &self.to)?,
            kept: Kept {
                class: not_empty(&self.class).map(str::to_owned),
                granularity: not_empty(&self.granularity).map(str::to_owned),
                reason: not_empty(&self.reason).map(str::to_owned),
            },
        };
        if let (Some(from), Some(to)) = (sought.from_ns, sought.to_ns)
            && from >= to
        {
            return Err(Refused::invalid(
                "to",
                "the end of the time is before its start",
            ));
        }
        Ok(sought)
    }
}

impl Sought {
    pub(crate) fn find(&self) -> Find<'_> {
        Find {
            from_ns: self.from_ns,
            to_ns: self.to_ns,
            filter: self.filter.as_ref(),
        }
    }

    /// The command line that writes the same to a file, after whose name there may be options.
    pub(crate) fn command(&self, dir: &Path, file: &str) -> String {
        let mut words = vec![String::from("strata"), String::from("export")];
        words.push(quoted(&dir.display().to_string()));
        words.extend([String::from("-w"), file.to_owned()]);
        let mut option = |name: &str, value: &Option<String>| {
            if let Some(value) = value {
                // In one word, since a value may begin with a dash.
                words.push(format!("{name}={}", quoted(value)));
            }
        };
        option("--from", &self.from_ns.map(times::text));
        option("--to", &self.to_ns.map(times::text));
        option("--class", &self.kept.class);
        option("--granularity", &self.kept.granularity);
        option("--reason", &self.kept.reason);
        if !self.text.is_empty() {
            words.push(quoted(&self.text));
        }
        words.join(" ")
    }
}

/// A word of a command line as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

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
    if sought.filter.is_some() || !sought.kept.is_all() {
        return Ok(None);
    }
    let histogram = histogram(log, sought, points);
    let how = Outline {
        from_ns: sought.from_ns,
        to_ns: sought.to_ns,
        points_ns: histogram.step_ns(),
        goes_on: &|| stop.go_on().is_continue(),
    };
    let mut found = Found::new(sought.kept.clone(), histogram, false);
    let is_all = outline(log, &how, &mut found)?;
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
    let piece = || Found::new(sought.kept.clone(), histogram.fresh(), lists_flows);
    let mut found = piece();
    let matches = || -> Box<Matches<'_>> {
        let by_link = sought.filter.clone();
        let mut by_link = by_link.map(|filter| ByLink::new(filter, |_, _| {}));
        Box::new(move |link, packet, len| {
            let by_link = by_link.as_mut();
            by_link.is_none_or(|by_link| by_link.matches(link, packet, len))
        })
    };
    let goes_on = || stop.go_on().is_continue();
    let how = Search {
        find: sought.find(),
        matches: &matches,
        goes_on: &goes_on,
        // Counts do not tell the first packet of a reason, which is shown where no flows are.
        points_ns: (lists_flows && sought.kept.is_all()).then(|| histogram.step_ns()),
        threads: THREADS,
    };
    search(log, &how, &piece, &mut |piece, share| {
        if let Some(piece) = piece {
            found.add(piece);
        }
        tell(&found, share)?;
        stop.go_on()
    })?;
    Ok(found)
}

/// Packets and bytes over time (`Series`).
pub(crate) fn series(
    logs: &Logs,
    log: &str,
    sought: &Sought,
    points: usize,
    stop: &Stop,
) -> Result<Value, Refused> {
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
pub(crate) fn matched(
    log: &Log,
    sought: &Sought,
    stop: &Stop,
) -> Result<(Totals, Covered), Refused> {
    let since = Instant::now();
    let found = run(log, sought, (10, true), stop, &mut |_, _| {
        ControlFlow::Continue(())
    })?;
    Ok((found.totals(), found.covered(stop, since)))
}

/// Searches, and sends what is found as lines of `SearchEvent`.
pub(crate) fn stream(
    (logs, searches): (&Logs, &Searches),
    (id, sought, points): (&str, &Sought, usize),
    stop: &Stop,
    sink: &mut Sink,
) {
    if let Err(refused) = streamed((logs, searches), (id, sought, points), stop, sink) {
        let _ = sink.line(&json!({"event": "error", "problem": refused}));
    }
}

fn streamed(
    (logs, searches): (&Logs, &Searches),
    (id, sought, points): (&str, &Sought, usize),
    stop: &Stop,
    sink: &mut Sink,
) -> Result<(), Refused> {
    let since = Instant::now();
    let gone = |_| Refused::busy("the browser has gone");
    let search = searches.number();
    sink.line(&json!({"event": "begin", "search": search}))
        .map_err(gone)?;
    let log = logs::open(logs, id)?;
    // Compacted packets are counted as fast as they are outlined.
    let has_blocks = log.recordings().iter().any(|one| !one.files.is_empty());
    let outlined = match has_blocks {
        true => outlined(&log, sought, points, stop)?,
        false => None,
    };
    if let Some(found) = &outlined {
        let mut outline = json!(found.totals());
        outline["histogram"] = found.histogram(&found.covered(stop, since));
        outline["classes"] = found.classes().into();
        sink.line(&json!({"event": "outline", "outline": outline}))
            .map_err(gone)?;
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
            rows = first.map(|row| found.flow(row)).collect();
        }
        let mut news = json!({
            "event": "progress", "share": share, "flows": found.rows.len(), "rows": rows,
            "packets": found.packets,
        });
        if outlined.is_none() {
            news["histogram"] = found.histogram(&found.covered_so_far(share, since));
        }
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
    let mut result = json!(found.totals());
    result["histogram"] = found.histogram(&covered);
    result["classes"] = found.classes().into();
    result["reasons"] = found.reasons().into();
    result["reason_words"] = found.reason_words().into();
    result["top"] = found.top();
    result["command"] = json!({
        "pcapng": sought.command(dir, "out.pcapng"),
        "csv": sought.command(dir, "flows.csv"),
        "json": sought.command(dir, "flows.json"),
        "flows_parquet": sought.command(dir, "flows.parquet"),
        "packets_parquet": sought.command(dir, "packets.parquet -F packets-parquet"),
    });
    result["covered"] = json!(covered);
    let flows = found.rows.len();
    searches.keep(search.clone(), found);
    sink.line(&json!({"event": "done", "search": search, "flows": flows, "result": result}))
        .map_err(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        for word in [
            "plain",
            "a b",
            "it's",
            "$(reboot)",
            "",
            "`x`",
            "a\nb",
            "--x",
        ] {
            let command = format!("printf %s {}", quoted(word));
            let said = std::process::Command::new("sh")
                .args(["-c", &command])
                .output();
            assert_eq!(said.unwrap().stdout, word.as_bytes(), "{command}");
        }
    }
}
