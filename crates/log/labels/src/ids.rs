//! Labels from an IDS: Suricata's EVE events, Zeek's notice.log and conn.log.
//!
//! An alert labels its flow, found by 5-tuple, or by Community ID where it has no addresses. What
//! the IDS is silent about is benign, except near an alert: other packets of the same flow, and of
//! its hosts for a while before and after, have no label.
//!
//! Sources: "Eve JSON Format" of the Suricata user guide; the scripts `Notice::Info` and
//! `Conn::Info` of Zeek's documentation; "Community ID flow hashing" of Corelight.

mod events;

use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, Read};
use std::net::IpAddr;

use serde_json::Value;
use strata_archive::parts::community_id_seeded;
use strata_wire::{AddressFamily, FlowKey, Headers};

use crate::error::{LabelError, LineError, Problem};
use crate::flows::SLACK_NS;
use crate::label::{Classes, Label};

/// A longer line is not an event.
const LINE_MAX: u64 = 1 << 20;
/// More alerts are not read: each takes some 200 bytes of memory.
const ALERTS_MAX: usize = 1 << 21;
/// More different labels are more than a model tells apart.
const LABELS_MAX: usize = 10_000;
/// How many invalid lines are named.
const NAMED_MAX: u64 = 3;
/// How long before and after an alert its flow is taken to be, if nothing says when it was.
const FLOW_NS: i128 = 300 * 1_000_000_000;
/// The seed of Community IDs unless an IDS is set to another.
const SEED_USUAL: u16 = 0;
/// Alerts that are tried to find the seed of Community IDs.
const SEED_ALERTS_MAX: usize = 4;
/// The severity of alerts that have none, as Zeek's notices: that of Suricata's most severe.
const SEVERITY_NONE: u64 = 1;

/// What becomes of alerts.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What the class of a flow is.
    pub class: AlertClass,
    /// Less severe alerts (larger numbers) label no flow.
    pub severity_max: Option<u64>,
    /// How long before and after an alert other packets of its hosts have no label.
    pub quarantine_ns: i128,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            class: AlertClass::default(),
            severity_max: None,
            quarantine_ns: FLOW_NS,
        }
    }
}

/// What the class of a flow with an alert is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlertClass {
    /// `anomalous`, whatever the alert says.
    #[default]
    Any,
    /// Suricata's category, Zeek's kind of notice.
    Category,
    /// `severity-1`, the most severe, and so on.
    Severity,
}

/// Which of the formats a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Format {
    Eve,
    NoticeJson,
    NoticeTsv,
    /// Connections last: only those with an alert are remembered.
    ConnJson,
    ConnTsv,
}

impl Format {
    /// The format of a file that starts like this; `None` if it is not an IDS's.
    pub(crate) fn of(head: &str) -> Option<Self> {
        let first = head.lines().next()?;
        if first.starts_with('{') {
            // The line may be cut.
            let has = |name: &str| first.contains(&format!("\"{name}\""));
            return match () {
                () if has("event_type") => Some(Self::Eve),
                () if has("note") => Some(Self::NoticeJson),
                () if has("label") || has("detailed-label") => None,
                () if has("id.orig_h") && has("uid") => Some(Self::ConnJson),
                () => None,
            };
        }
        let fields = head.lines().find_map(|line| line.strip_prefix("#fields"))?;
        let has = |name: &str| fields.split_whitespace().any(|field| field == name);
        match () {
            () if has("note") => Some(Self::NoticeTsv),
            () if has("label") || has("detailed-label") => None,
            () if has("id.orig_h") && has("uid") => Some(Self::ConnTsv),
            () => None,
        }
    }
}

/// The flow of an alert in the words of its IDS: Suricata's flow_id, Zeek's uid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Link {
    Flow(u64),
    Uid(String),
}

#[derive(Debug)]
struct Alert {
    key: Option<FlowKey>,
    community_id: Option<String>,
    hosts: [Option<IpAddr>; 2],
    link: Option<Link>,
    ts_ns: i128,
    /// When its flow began.
    start_ns: Option<i128>,
    severity: u64,
    /// Index of a label.
    label: usize,
}

/// What is read, before it is put in order.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    options: Options,
    offset_s: i64,
    alerts: Vec<Alert>,
    labels: Vec<Label>,
    pub(crate) classes: Classes,
    known: HashMap<String, usize>,
    links: HashSet<Link>,
    /// Start and end of flows with alerts.
    spans: HashMap<Link, (i128, i128)>,
    lines: u64,
    problems: Vec<Problem>,
    files: Vec<String>,
}

/// Times with an alert, apart from each other and in order.
#[derive(Debug, Default)]
struct Spans(Vec<Span>);

#[derive(Clone, Copy, Debug)]
struct Span {
    from_ns: i128,
    to_ns: i128,
    severity: u64,
    label: usize,
    used: bool,
}

/// The alerts of an IDS.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    labels: Vec<Label>,
    flows: HashMap<FlowKey, Spans>,
    by_id: HashMap<String, Spans>,
    /// What looking up a flow by its Community ID gave.
    ids: HashMap<FlowKey, Option<String>>,
    seed: u16,
    hosts: HashMap<IpAddr, Spans>,
    /// Packets without a label since an alert is near.
    quarantined: u64,
    problems: Vec<Problem>,
}

/// What an IDS says about a packet.
#[derive(Debug)]
pub(crate) enum Said<'l> {
    Alert(&'l Label),
    /// Nothing, but there is an alert near it.
    Near,
    Nothing,
}

impl Reader {
    pub(crate) fn new(options: Options, offset_s: i64) -> Self {
        Self {
            options,
            offset_s,
            ..Self::default()
        }
    }

    /// Reads a file, which `name` names in messages. Invalid lines are skipped, counted and named;
    /// a line that is too long is read past, not into memory.
    ///
    /// # Errors
    ///
    /// If it cannot be read, has more alerts than fit, or not one valid line.
    pub(crate) fn read(
        &mut self,
        mut from: impl BufRead,
        format: Format,
        name: &str,
    ) -> Result<(), LabelError> {
        let file = || name.to_owned();
        let cannot = |source: io::Error| LabelError::Read {
            file: file(),
            source,
        };
        let (mut line, mut number) = (Vec::new(), 0_u64);
        let mut fields: Vec<String> = Vec::new();
        let (mut valid, mut invalid) = (0_u64, 0_u64);
        loop {
            line.clear();
            let read = from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
            if read.map_err(cannot)? == 0 {
                break;
            }
            number += 1;
            let is_whole = line.ends_with(b"\n") || (line.len() as u64) < LINE_MAX;
            let text = line.trim_ascii();
            if text.is_empty() {
                continue;
            }
            let done = match is_whole {
                false => {
                    from.skip_until(b'\n').map_err(cannot)?;
                    Err(LineError::Long)
                }
                true if text.starts_with(b"#") => {
                    let text = String::from_utf8_lossy(text);
                    if let Some(named) = text.strip_prefix("#fields") {
                        fields = named.split_whitespace().map(str::to_owned).collect();
                    }
                    continue;
                }
                true => self.line(text, format, &fields),
            };
            match done {
                Ok(()) => valid += 1,
                Err(source) => {
                    invalid += 1;
                    if invalid <= NAMED_MAX {
                        self.problems.push(Problem::Line {
                            file: file(),
                            line: number,
                            source,
                        });
                    }
                }
            }
            if self.alerts.len() > ALERTS_MAX {
                return Err(LabelError::Alerts {
                    file: file(),
                    line: number,
                    most: ALERTS_MAX,
                });
            }
        }
        if invalid > NAMED_MAX {
            self.problems.push(Problem::More {
                file: file(),
                lines: invalid - NAMED_MAX,
            });
        }
        if valid == 0 && invalid > 0 {
            return Err(LabelError::Invalid(std::mem::take(&mut self.problems)));
        }
        self.lines += valid;
        self.files.push(file());
        Ok(())
    }

    fn line(&mut self, text: &[u8], format: Format, fields: &[String]) -> Result<(), LineError> {
        match format {
            Format::Eve => self.eve(text),
            Format::NoticeJson | Format::ConnJson => {
                let object: HashMap<String, Value> = serde_json::from_slice(text)?;
                let cells: HashMap<&str, String> = object
                    .iter()
                    .map(|(name, value)| {
                        let text = value.as_str();
                        (
                            name.as_str(),
                            text.map_or_else(|| value.to_string(), str::to_owned),
                        )
                    })
                    .collect();
                let cell = |name: &str| cells.get(name).map(String::as_str);
                self.zeek(format, cell)
            }
            Format::NoticeTsv | Format::ConnTsv => {
                let text = String::from_utf8_lossy(text);
                let cells: Vec<&str> = text.split('\t').collect();
                if cells.len() != fields.len() {
                    return Err(LineError::Fields {
                        found: cells.len(),
                        named: fields.len(),
                    });
                }
                let cell = |name: &str| {
                    let at = fields.iter().position(|field| field == name)?;
                    cells.get(at).copied()
                };
                self.zeek(format, cell)
            }
        }
    }

    fn add(&mut self, alert: Alert) {
        self.links.extend(alert.link.clone());
        self.alerts.push(alert);
    }

    /// The label of alerts of a category: the source is the category in any case.
    fn label(&mut self, category: &str, severity: u64) -> Result<usize, LineError> {
        let category: String = category.trim().chars().take(128).collect();
        let class = match self.options.class {
            AlertClass::Any => String::from("anomalous"),
            AlertClass::Severity => format!("severity-{severity}"),
            // A category called "benign" is an alert still, and so is one without a name.
            AlertClass::Category => match self.classes.label(&category)? {
                Some(label) if label.class != "benign" => label.class,
                _ => String::from("anomalous"),
            },
        };
        let name = format!("{class}\n{category}");
        if let Some(&known) = self.known.get(&name) {
            return Ok(known);
        }
        if self.labels.len() >= LABELS_MAX {
            return Err(LineError::Categories(LABELS_MAX));
        }
        self.labels.push(Label {
            class,
            source: category,
        });
        self.known.insert(name, self.labels.len() - 1);
        Ok(self.labels.len() - 1)
    }

    /// The alerts, in order.
    ///
    /// # Errors
    ///
    /// If there are no alerts.
    pub(crate) fn finish(self) -> Result<Ids, LabelError> {
        let seed = self.seed();
        let mut ids = Ids {
            seed,
            problems: self.problems,
            labels: self.labels,
            ..Ids::default()
        };
        if self.alerts.is_empty() {
            return Err(LabelError::NoAlarm {
                files: self.files,
                lines: self.lines,
            });
        }
        // Alerts that name no flow, and those that are not severe enough.
        let (mut without_flow, mut mild) = (0, 0);
        for alert in self.alerts {
            let known = alert.link.as_ref().and_then(|link| self.spans.get(link));
            let (from_ns, to_ns) = match known {
                Some(&(from, to)) => (from.min(alert.ts_ns), to.max(alert.ts_ns)),
                None => (
                    alert
                        .start_ns
                        .unwrap_or(alert.ts_ns - FLOW_NS)
                        .min(alert.ts_ns),
                    alert.ts_ns + FLOW_NS,
                ),
            };
            let span = Span {
                from_ns,
                to_ns,
                severity: alert.severity,
                label: alert.label,
                used: false,
            };
            for host in alert.hosts.into_iter().flatten() {
                let near = self.options.quarantine_ns;
                let span = Span {
                    from_ns: from_ns - near,
                    to_ns: to_ns + near,
                    ..span
                };
                ids.hosts.entry(host).or_default().0.push(span);
            }
            let is_mild = |most| alert.severity > most;
            if self.options.severity_max.is_some_and(is_mild) {
                mild += 1;
            } else if let Some(key) = alert.key {
                ids.flows.entry(key).or_default().0.push(span);
            } else if let Some(id) = alert.community_id {
                ids.by_id.entry(id).or_default().0.push(span);
            } else {
                without_flow += 1;
            }
        }
        let tables = ids.flows.values_mut().chain(ids.by_id.values_mut());
        for spans in tables.chain(ids.hosts.values_mut()) {
            spans.merge();
        }
        if self.options.quarantine_ns == 0 {
            ids.hosts.clear();
        }
        if without_flow > 0 {
            ids.problems.push(Problem::WithoutFlow(without_flow));
        }
        if mild > 0 {
            ids.problems.push(Problem::Mild(mild));
        }
        Ok(ids)
    }

    /// The seed of Community IDs, which alerts with addresses and an ID show; the usual one if none does.
    fn seed(&self) -> u16 {
        let both = self.alerts.iter().filter_map(|alert| {
            let key = alert.key.filter(has_ports)?;
            Some((key, alert.community_id.as_deref()?))
        });
        let both: Vec<_> = both.take(SEED_ALERTS_MAX).collect();
        let fits = |(key, id): &(FlowKey, &str), seed| community_id_seeded(key, seed) == *id;
        let mut found = both
            .iter()
            .filter_map(|alert| (0..=u16::MAX).find(|&seed| fits(alert, seed)));
        found.next().unwrap_or(SEED_USUAL)
    }
}

/// Whether a Community ID follows from the key alone.
fn has_ports(key: &FlowKey) -> bool {
    key.family != AddressFamily::Mac && matches!(key.protocol, 6 | 17 | 132)
}

impl Spans {
    /// Puts spans in order; of those that overlap one remains, with the label of the most severe.
    fn merge(&mut self) {
        self.0.sort_by_key(|span| (span.from_ns, span.severity));
        let mut merged: Vec<Span> = Vec::with_capacity(self.0.len());
        for span in self.0.drain(..) {
            match merged.last_mut() {
                Some(last) if span.from_ns <= last.to_ns => {
                    last.to_ns = last.to_ns.max(span.to_ns);
                    if span.severity < last.severity {
                        (last.severity, last.label) = (span.severity, span.label);
                    }
                }
                _ => merged.push(span),
            }
        }
        merged.shrink_to_fit();
        self.0 = merged;
    }

    /// The span that a time is within, with some slack.
    fn at(&mut self, ts_ns: i128, slack_ns: i128) -> Option<&mut Span> {
        let after = self.0.partition_point(|span| span.from_ns <= ts_ns);
        // Those before end earlier.
        let near = after.saturating_sub(1)..(after + 1).min(self.0.len());
        let distance = |span: &Span| (span.from_ns - ts_ns).max(ts_ns - span.to_ns).max(0);
        let nearest = self.0[near].iter_mut().min_by_key(|span| distance(span))?;
        (distance(nearest) <= slack_ns).then_some(nearest)
    }
}

impl Ids {
    /// The labels of a packet.
    pub(crate) fn of(&mut self, ts_ns: u64, headers: &Headers) -> Said<'_> {
        let Some(mut key) = headers.key else {
            return Said::Nothing;
        };
        if matches!(key.protocol, 1 | 58) {
            // ICMP types are not ports to the data path.
            (key.low.port, key.high.port) = (0, 0);
        }
        let now = i128::from(ts_ns);
        let mut is_near = false;
        let mut found = None;
        if let Some(spans) = self.flows.get_mut(&key) {
            is_near = true;
            found = spans.at(now, SLACK_NS);
        } else if !self.by_id.is_empty() && has_ports(&key) {
            let seed = self.seed;
            let by_id = &self.by_id;
            let id = self.ids.entry(key).or_insert_with(|| {
                let id = community_id_seeded(&key, seed);
                by_id.contains_key(&id).then_some(id)
            });
            if let Some(id) = id
                && let Some(spans) = self.by_id.get_mut(id)
            {
                is_near = true;
                found = spans.at(now, SLACK_NS);
            }
        }
        if let Some(span) = found {
            span.used = true;
            return Said::Alert(&self.labels[span.label]);
        }
        if !is_near && !self.hosts.is_empty() {
            let ends = [key.low, key.high].map(|end| strata_wire::ip_addr(key.family, end.address));
            is_near = ends.into_iter().flatten().any(|host| {
                let spans = self.hosts.get_mut(&host);
                spans.is_some_and(|spans| spans.at(now, 0).is_some())
            });
        }
        if is_near {
            self.quarantined += 1;
            return Said::Near;
        }
        Said::Nothing
    }

    /// The number of flows with an alert, and of those that match no packet.
    pub(crate) fn unmatched(&self) -> (u64, u64) {
        let all = self.flows.values().chain(self.by_id.values());
        all.flat_map(|spans| &spans.0)
            .fold((0, 0), |(all, unmatched), span| {
                (all + 1, unmatched + u64::from(!span.used))
            })
    }

    /// Packets without a label since an alert is near.
    pub(crate) fn quarantined(&self) -> u64 {
        self.quarantined
    }

    /// Invalid lines, and alerts that label nothing.
    pub(crate) fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

#[cfg(test)]
mod tests;
