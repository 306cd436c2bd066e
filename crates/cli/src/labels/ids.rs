//! Labels from an IDS: Suricata's EVE events, Zeek's notice.log and conn.log.
//!
//! An alarm labels its flow, found by 5-tuple, or by Community ID where it has no addresses. What
//! the IDS is silent about is benign, except near an alarm: other packets of the same flow, and of
//! its hosts for a while before and after, have no label.
//!
//! Sources: "Eve JSON Format" of the Suricata user guide; the scripts `Notice::Info` and
//! `Conn::Info` of Zeek's documentation; "Community ID flow hashing" of Corelight.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, Read};
use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use strata_archive::parts::community_id_seeded;
use strata_pipeline::eve_alert;
use strata_wire::{AddressFamily, FlowKey, Headers};

use super::flows::{SLACK_NS, key};
use super::rules::protocol;
use super::{Label, duration_ns, time_ns};

/// A longer line is not an event.
const LINE_MAX: u64 = 1 << 20;
/// More alarms are not read: each takes some 200 bytes of memory.
const ALARMS_MAX: usize = 1 << 21;
/// More different labels are more than a model tells apart.
const LABELS_MAX: usize = 10_000;
/// How many invalid lines are named.
const NAMED_MAX: usize = 3;
/// How long before and after an alarm its flow is taken to be, if nothing says when it was.
const FLOW_NS: i128 = 300 * 1_000_000_000;
/// The seed of Community IDs unless an IDS is set to another.
const SEED_USUAL: u16 = 0;
/// Alarms that are tried to find the seed of Community IDs.
const SEED_ALARMS_MAX: usize = 4;
/// The severity of alarms that have none, as Zeek's notices: that of Suricata's gravest.
const SEVERITY_NONE: u64 = 1;

/// What becomes of alarms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// What the class of a flow is.
    pub(crate) class: AlarmClass,
    /// Less severe alarms (larger numbers) label no flow.
    pub(crate) severity_max: Option<u64>,
    /// How long before and after an alarm other packets of its hosts have no label.
    pub(crate) quarantine_ns: i128,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            class: AlarmClass::default(),
            severity_max: None,
            quarantine_ns: FLOW_NS,
        }
    }
}

/// What the class of a flow with an alarm is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AlarmClass {
    /// `anomalous`, whatever the alarm says.
    #[default]
    Any,
    /// Suricata's category, Zeek's kind of notice.
    Category,
    /// `severity-1`, the gravest, and so on.
    Severity,
}

/// Which of the formats a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Format {
    Eve,
    NoticeJson,
    NoticeTsv,
    /// Connections last: only those with an alarm are remembered.
    ConnJson,
    ConnTsv,
}

impl Format {
    /// The format of a file that starts like this; `None` if it is not an IDS's.
    pub(super) fn of(head: &str) -> Option<Self> {
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

/// The flow of an alarm in the words of its IDS: Suricata's flow_id, Zeek's uid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Link {
    Flow(u64),
    Uid(String),
}

#[derive(Debug)]
struct Alarm {
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
pub(super) struct Reader {
    options: Options,
    offset_s: i64,
    alarms: Vec<Alarm>,
    labels: Vec<Label>,
    known: HashMap<String, usize>,
    links: HashSet<Link>,
    /// Start and end of flows with alarms.
    spans: HashMap<Link, (i128, i128)>,
    lines: u64,
    invalid: u64,
    problems: Vec<String>,
}

/// Times with an alarm, apart from each other and in order.
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

/// The alarms of an IDS.
#[derive(Debug, Default)]
pub(super) struct Ids {
    labels: Vec<Label>,
    flows: HashMap<FlowKey, Spans>,
    by_id: HashMap<String, Spans>,
    /// What looking up a flow by its Community ID gave.
    ids: HashMap<FlowKey, Option<String>>,
    seed: u16,
    hosts: HashMap<IpAddr, Spans>,
    /// Packets without a label since an alarm is near.
    quarantined: u64,
    /// Alarms that name no flow, and those that are not severe enough.
    without_flow: u64,
    mild: u64,
    problems: Vec<String>,
}

/// What an IDS says about a packet.
#[derive(Debug)]
pub(super) enum Said<'l> {
    Alarm(&'l Label),
    /// Nothing, but there is an alarm near it.
    Near,
    Nothing,
}

#[derive(Deserialize)]
struct EveEvent {
    event_type: Option<String>,
    timestamp: Option<String>,
    flow_id: Option<u64>,
    community_id: Option<String>,
    src_ip: Option<IpAddr>,
    dest_ip: Option<IpAddr>,
    alert: Option<EveAlert>,
    flow: Option<EveFlow>,
}

#[derive(Deserialize)]
struct EveAlert {
    category: Option<String>,
    severity: Option<u64>,
}

#[derive(Deserialize)]
struct EveFlow {
    start: Option<String>,
    end: Option<String>,
}

impl Reader {
    pub(super) fn new(options: Options, offset_s: i64) -> Self {
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
    /// If it cannot be read, has more alarms than fit, or not one valid line.
    pub(super) fn read(
        &mut self,
        mut from: impl BufRead,
        format: Format,
        name: &str,
    ) -> Result<()> {
        let (mut line, mut number) = (Vec::new(), 0_u64);
        let mut fields: Vec<String> = Vec::new();
        let (mut valid, mut invalid) = (0_u64, 0_u64);
        loop {
            line.clear();
            let read = from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
            if read.with_context(|| format!("{name}: cannot read"))? == 0 {
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
                    from.skip_until(b'\n')
                        .with_context(|| format!("{name}: cannot read"))?;
                    Err(anyhow::anyhow!("longer than 1 MiB"))
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
                Err(problem) => {
                    invalid += 1;
                    if invalid <= NAMED_MAX as u64 {
                        self.problems
                            .push(format!("{name}: line {number}: {problem:#}"));
                    }
                }
            }
            if self.alarms.len() > ALARMS_MAX {
                bail!(
                    "{name}: line {number}: more than {ALARMS_MAX} alarms: give part of the file"
                );
            }
        }
        if invalid > NAMED_MAX as u64 {
            let more = invalid - NAMED_MAX as u64;
            self.problems
                .push(format!("{name}: {more} more lines are invalid"));
        }
        if valid == 0 && invalid > 0 {
            bail!("{}: no line is valid", self.problems.join("; "));
        }
        self.lines += valid;
        self.invalid += invalid;
        Ok(())
    }

    fn line(&mut self, text: &[u8], format: Format, fields: &[String]) -> Result<()> {
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
                    bail!("{} fields, not {}", cells.len(), fields.len());
                }
                let cell = |name: &str| {
                    let at = fields.iter().position(|field| field == name)?;
                    cells.get(at).copied()
                };
                self.zeek(format, cell)
            }
        }
    }

    fn eve(&mut self, text: &[u8]) -> Result<()> {
        let event: EveEvent = serde_json::from_slice(text)?;
        let link = event.flow_id.map(Link::Flow);
        let time = |text: &Option<String>| {
            let text = text.as_deref()?;
            time_ns(text, self.offset_s).map(|(ns, _)| ns)
        };
        let start_ns = event.flow.as_ref().and_then(|flow| time(&flow.start));
        match event.event_type.as_deref() {
            Some("alert") => {}
            // It is written when a flow ends, after its alerts.
            Some("flow") => {
                let end_ns = event.flow.as_ref().and_then(|flow| time(&flow.end));
                if let (Some(link), Some(from), Some(to)) = (link, start_ns, end_ns)
                    && self.links.contains(&link)
                {
                    self.spans.insert(link, (from, to.max(from)));
                }
                return Ok(());
            }
            Some(_) => return Ok(()),
            None => bail!("no event_type: not an event of Suricata"),
        }
        let ts_ns = time(&event.timestamp);
        let ts_ns = ts_ns.context("an alert without a valid timestamp")?;
        let said = event.alert.context("an alert without an object 'alert'")?;
        let category = said.category.filter(|text| !text.trim().is_empty());
        let severity = said.severity.unwrap_or(SEVERITY_NONE);
        let label = self.label(category.as_deref().unwrap_or("alert"), severity)?;
        let flow = eve_alert(text)?.map(|alert| alert.flow);
        self.add(Alarm {
            key: flow,
            community_id: event.community_id,
            hosts: [event.src_ip, event.dest_ip],
            link,
            ts_ns,
            start_ns,
            severity,
            label,
        });
        Ok(())
    }

    fn zeek<'c>(&mut self, format: Format, cell: impl Fn(&str) -> Option<&'c str>) -> Result<()> {
        let cell = |name: &str| cell(name).filter(|text| !matches!(*text, "-" | "(empty)" | ""));
        let ts = cell("ts").context("no 'ts'")?;
        let (ts_ns, _) = time_ns(ts, self.offset_s).with_context(|| format!("'{ts}' in 'ts'"))?;
        let link = cell("uid").map(|uid| Link::Uid(uid.to_owned()));
        if matches!(format, Format::ConnJson | Format::ConnTsv) {
            let seconds: f64 = match cell("duration") {
                Some(text) => text
                    .parse()
                    .with_context(|| format!("'{text}' in 'duration'"))?,
                // A flow of one packet has none.
                None => 0.0,
            };
            let link = link.context("no 'uid'")?;
            if self.links.contains(&link) {
                self.spans
                    .insert(link, (ts_ns, ts_ns + duration_ns(seconds)));
            }
            return Ok(());
        }
        let note = cell("note").context("no 'note'")?;
        let address = |name: &str| -> Result<Option<IpAddr>> {
            let parse = |text: &str| {
                text.parse()
                    .with_context(|| format!("'{text}' in '{name}'"))
            };
            cell(name).map(parse).transpose()
        };
        let port = |name: &str| -> Result<Option<u16>> {
            let parse = |text: &str| {
                text.parse()
                    .with_context(|| format!("'{text}' in '{name}'"))
            };
            cell(name).map(parse).transpose()
        };
        let ends = [address("id.orig_h")?, address("id.resp_h")?];
        let ports = [port("id.orig_p")?, port("id.resp_p")?];
        let number = cell("proto").and_then(|name| protocol(name).ok());
        let flow = match (ends, ports, number) {
            ([Some(from), Some(to)], [Some(source), Some(destination)], Some(number))
                if from.is_ipv4() == to.is_ipv4() =>
            {
                Some(key((from, source), (to, destination), number))
            }
            _ => None,
        };
        let hosts = match ends {
            [None, None] => [address("src")?, address("dst")?],
            ends => ends,
        };
        let label = self.label(note, SEVERITY_NONE)?;
        self.add(Alarm {
            key: flow,
            community_id: cell("community_id").map(str::to_owned),
            hosts,
            link,
            ts_ns,
            start_ns: None,
            severity: SEVERITY_NONE,
            label,
        });
        Ok(())
    }

    fn add(&mut self, alarm: Alarm) {
        self.links.extend(alarm.link.clone());
        self.alarms.push(alarm);
    }

    /// The label of alarms of a category: the source is the category in any case.
    fn label(&mut self, category: &str, severity: u64) -> Result<usize> {
        let category: String = category.trim().chars().take(128).collect();
        let class = match self.options.class {
            AlarmClass::Any => String::from("anomalous"),
            AlarmClass::Severity => format!("severity-{severity}"),
            // A category called "benign" is an alarm still.
            AlarmClass::Category => match Label::new(&category).class {
                class if class == "benign" => String::from("anomalous"),
                class => class,
            },
        };
        let name = format!("{class}\n{category}");
        if let Some(&known) = self.known.get(&name) {
            return Ok(known);
        }
        if self.labels.len() >= LABELS_MAX {
            bail!("more than {LABELS_MAX} different categories");
        }
        self.labels.push(Label {
            class,
            source: category,
        });
        self.known.insert(name, self.labels.len() - 1);
        Ok(self.labels.len() - 1)
    }

    /// The alarms, in order.
    ///
    /// # Errors
    ///
    /// If there are none.
    pub(super) fn finish(self) -> Result<Ids> {
        let seed = self.seed();
        let mut ids = Ids {
            seed,
            problems: self.problems,
            labels: self.labels,
            ..Ids::default()
        };
        if self.alarms.is_empty() {
            bail!(
                "no alarm in {} lines: give the IDS's alerts (eve.json) or notices (notice.log) of \
                 the time of the packets",
                self.lines
            );
        }
        for alarm in self.alarms {
            let known = alarm.link.as_ref().and_then(|link| self.spans.get(link));
            let (from_ns, to_ns) = match known {
                Some(&(from, to)) => (from.min(alarm.ts_ns), to.max(alarm.ts_ns)),
                None => (
                    alarm
                        .start_ns
                        .unwrap_or(alarm.ts_ns - FLOW_NS)
                        .min(alarm.ts_ns),
                    alarm.ts_ns + FLOW_NS,
                ),
            };
            let span = Span {
                from_ns,
                to_ns,
                severity: alarm.severity,
                label: alarm.label,
                used: false,
            };
            for host in alarm.hosts.into_iter().flatten() {
                let near = self.options.quarantine_ns;
                let span = Span {
                    from_ns: from_ns - near,
                    to_ns: to_ns + near,
                    ..span
                };
                ids.hosts.entry(host).or_default().0.push(span);
            }
            let is_mild = |most| alarm.severity > most;
            if self.options.severity_max.is_some_and(is_mild) {
                ids.mild += 1;
            } else if let Some(key) = alarm.key {
                ids.flows.entry(key).or_default().0.push(span);
            } else if let Some(id) = alarm.community_id {
                ids.by_id.entry(id).or_default().0.push(span);
            } else {
                ids.without_flow += 1;
            }
        }
        let tables = ids.flows.values_mut().chain(ids.by_id.values_mut());
        for spans in tables.chain(ids.hosts.values_mut()) {
            spans.merge();
        }
        if self.options.quarantine_ns == 0 {
            ids.hosts.clear();
        }
        Ok(ids)
    }

    /// The seed of Community IDs, which alarms with addresses and an ID show; the usual one if none does.
    fn seed(&self) -> u16 {
        let both = self.alarms.iter().filter_map(|alarm| {
            let key = alarm.key.filter(has_ports)?;
            Some((key, alarm.community_id.as_deref()?))
        });
        let both: Vec<_> = both.take(SEED_ALARMS_MAX).collect();
        let fits = |(key, id): &(FlowKey, &str), seed| community_id_seeded(key, seed) == *id;
        let mut found = both
            .iter()
            .filter_map(|alarm| (0..=u16::MAX).find(|&seed| fits(alarm, seed)));
        found.next().unwrap_or(SEED_USUAL)
    }
}

/// Whether a Community ID follows from the key alone.
fn has_ports(key: &FlowKey) -> bool {
    key.family != AddressFamily::Mac && matches!(key.protocol, 6 | 17 | 132)
}

impl Spans {
    /// Puts spans in order; of those that overlap one remains, with the label of the gravest.
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
    /// What is said about a packet.
    pub(super) fn of(&mut self, ts_ns: u64, headers: &Headers) -> Said<'_> {
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
            return Said::Alarm(&self.labels[span.label]);
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

    /// The number of flows with an alarm, and of those that match no packet.
    pub(super) fn unmatched(&self) -> (u64, u64) {
        let all = self.flows.values().chain(self.by_id.values());
        all.flat_map(|spans| &spans.0)
            .fold((0, 0), |(all, unmatched), span| {
                (all + 1, unmatched + u64::from(!span.used))
            })
    }

    /// Packets without a label since an alarm is near.
    pub(super) fn quarantined(&self) -> u64 {
        self.quarantined
    }

    /// What a user is told: invalid lines, and alarms that label nothing.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut said = self.problems.clone();
        for (count, why) in [
            (
                self.without_flow,
                "name no flow: only hosts near them are left out",
            ),
            (
                self.mild,
                "are less severe than asked: flows near them are left out",
            ),
        ] {
            if count > 0 {
                said.push(format!("{count} alarms {why}"));
            }
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn headers(source: (&str, u16), destination: (&str, u16), number: u8) -> Headers {
        let end = |(address, port): (&str, u16)| (address.parse().unwrap(), port);
        Headers {
            key: Some(key(end(source), end(destination), number)),
            ..Headers::default()
        }
    }

    fn read(files: &[(&str, Format)], options: Options) -> Result<Ids> {
        let mut reader = Reader::new(options, 0);
        for (text, format) in files {
            assert_eq!(Format::of(text), Some(*format), "{text}");
            reader.read(Cursor::new(text), *format, "x.log")?;
        }
        reader.finish()
    }

    fn said(ids: &mut Ids, ts_s: u64, headers: &Headers) -> String {
        match ids.of(ts_s * 1_000_000_000, headers) {
            Said::Alarm(label) => format!("{}/{}", label.class, label.source),
            Said::Near => String::from("near"),
            Said::Nothing => String::from("nothing"),
        }
    }

    const ALERT: &str = r#"{"timestamp":"1970-01-01T01:16:40.000000+0100","flow_id":7,"event_type":"alert","src_ip":"10.0.0.1","src_port":4000,"dest_ip":"10.0.0.2","dest_port":80,"proto":"TCP","alert":{"action":"allowed","gid":1,"signature_id":2018358,"rev":10,"signature":"ET x","category":"Potentially Bad Traffic","severity":2},"flow":{"pkts_toserver":3,"start":"1970-01-01T01:16:20.000000+0100"}}
"#;

    #[test]
    fn an_alert_labels_its_flow_and_what_is_near_it_has_no_label() {
        let mut ids = read(&[(ALERT, Format::Eve)], Options::default()).unwrap();
        let flow = headers(("10.0.0.2", 80), ("10.0.0.1", 4000), 6);
        let label = "anomalous/Potentially Bad Traffic";
        for (ts_s, expected) in [(970, "near"), (980, label), (1_000, label), (2_000, "near")] {
            assert_eq!(said(&mut ids, ts_s, &flow), expected, "{ts_s}");
        }
        let other = headers(("10.0.0.1", 4001), ("10.0.0.3", 80), 6);
        for (ts_s, expected) in [
            (600, "nothing"),
            (980, "near"),
            (1_600, "near"),
            (1_601, "nothing"),
        ] {
            assert_eq!(said(&mut ids, ts_s, &other), expected, "{ts_s}");
        }
        let apart = headers(("10.0.0.4", 4001), ("10.0.0.3", 80), 6);
        assert_eq!(said(&mut ids, 1_000, &apart), "nothing");
        assert_eq!((ids.unmatched(), ids.quarantined()), ((1, 0), 4));

        let all = Options {
            quarantine_ns: 0,
            ..Options::default()
        };
        let mut ids = read(&[(ALERT, Format::Eve)], all).unwrap();
        assert_eq!(said(&mut ids, 980, &other), "nothing");
    }

    #[test]
    fn the_end_of_a_flow_and_its_severity_are_taken_into_account() {
        let end = r#"{"timestamp":"1970-01-01T00:17:00.0+0000","flow_id":7,"event_type":"flow","src_ip":"10.0.0.1","dest_ip":"10.0.0.2","proto":"TCP","flow":{"start":"1970-01-01T00:16:20.0+0000","end":"1970-01-01T00:16:50.0+0000","alerted":true}}"#;
        let text = format!("{ALERT}{end}\n");
        let severity = Options {
            class: AlarmClass::Severity,
            ..Options::default()
        };
        let mut ids = read(&[(&text, Format::Eve)], severity).unwrap();
        let flow = headers(("10.0.0.2", 80), ("10.0.0.1", 4000), 6);
        assert_eq!(
            said(&mut ids, 1_010, &flow),
            "severity-2/Potentially Bad Traffic"
        );
        assert_eq!(said(&mut ids, 1_020, &flow), "near");
        let grave = Options {
            severity_max: Some(1),
            class: AlarmClass::Category,
            ..Options::default()
        };
        let mut ids = read(&[(&text, Format::Eve)], grave).unwrap();
        assert_eq!(said(&mut ids, 1_000, &flow), "near");
        assert_eq!(ids.problems().len(), 1);
        let worse = ALERT
            .replace("\"severity\":2", "\"severity\":1")
            .replace("Potentially Bad Traffic", "A Network Trojan was detected");
        let mut ids = read(&[(&format!("{text}{worse}"), Format::Eve)], grave).unwrap();
        assert_eq!(
            said(&mut ids, 1_000, &flow),
            "a-network-trojan-was-detected/A Network Trojan was detected"
        );
    }

    #[test]
    fn flows_are_found_by_community_id_of_any_seed() {
        // Of the Community ID specification: 128.232.110.120:34855 to 66.35.250.204:80.
        let flow = headers(("128.232.110.120", 34_855), ("66.35.250.204", 80), 6);
        let alone = |id: &str| {
            format!(
                "{{\"timestamp\":\"1970-01-01T00:16:40Z\",\"event_type\":\"alert\",\"community_id\":\"{id}\",\"alert\":{{\"severity\":1}}}}\n"
            )
        };
        let text = alone("1:LQU9qZlK+B5F3KDmev6m5PMibrg=");
        let mut ids = read(&[(&text, Format::Eve)], Options::default()).unwrap();
        assert_eq!(said(&mut ids, 1_000, &flow), "anomalous/alert");
        // Another alarm shows that the seed is 1.
        let seeded = community_id_seeded(
            &headers(("10.0.0.1", 4000), ("10.0.0.2", 80), 6)
                .key
                .unwrap(),
            1,
        );
        let both = ALERT.replace("\"flow_id\":7", &format!("\"community_id\":\"{seeded}\""));
        let text = format!("{both}{}", alone("1:3V71V58M3Ksw/yuFALMcW0LAHvc="));
        let mut ids = read(&[(&text, Format::Eve)], Options::default()).unwrap();
        assert_eq!(said(&mut ids, 1_000, &flow), "anomalous/alert");
        let other = headers(("128.232.110.120", 34_856), ("66.35.250.204", 80), 6);
        assert_eq!(said(&mut ids, 1_000, &other), "nothing");
    }

    #[test]
    fn notices_of_zeek_take_their_times_from_connections() {
        let notices = "#separator \\x09\n#path\tnotice\n#fields\tts\tuid\tid.orig_h\tid.orig_p\tid.resp_h\tid.resp_p\tproto\tnote\tmsg\tsrc\tdst\tp\n\
                       1000.5\tC1\t10.0.0.1\t4000\t10.0.0.2\t22\ttcp\tSSH::Password_Guessing\tx y\t-\t-\t-\n\
                       1000.5\t-\t-\t-\t-\t-\t-\tScan::Port_Scan\tx\t10.0.0.9\t10.0.0.2\t-\n";
        let conns = "#path\tconn\n#fields\tts\tuid\tid.orig_h\tid.orig_p\tid.resp_h\tid.resp_p\tproto\tduration\n\
                     900.0\tC1\t10.0.0.1\t4000\t10.0.0.2\t22\ttcp\t500.0\n900.0\tC2\t10.0.0.3\t1\t10.0.0.4\t2\tudp\t-\n";
        let files = [(notices, Format::NoticeTsv), (conns, Format::ConnTsv)];
        let category = Options {
            class: AlarmClass::Category,
            ..Options::default()
        };
        let mut ids = read(&files, category).unwrap();
        let flow = headers(("10.0.0.1", 4000), ("10.0.0.2", 22), 6);
        let label = "ssh-password-guessing/SSH::Password_Guessing";
        assert_eq!(said(&mut ids, 900, &flow), label);
        assert_eq!(said(&mut ids, 1_400, &flow), label);
        assert_eq!(said(&mut ids, 890, &flow), "near");
        let scanner = headers(("10.0.0.9", 1), ("10.0.0.7", 2), 6);
        assert_eq!(said(&mut ids, 1_000, &scanner), "near");
        assert!(ids.problems()[0].starts_with("1 alarms name no flow"));

        let notice = r#"{"ts":1000.5,"uid":"C1","id.orig_h":"10.0.0.1","id.orig_p":4000,"id.resp_h":"10.0.0.2","id.resp_p":22,"proto":"tcp","note":"SSH::Password_Guessing"}"#;
        let conn = r#"{"ts":"1970-01-01T00:15:00.000000Z","uid":"C1","id.orig_h":"10.0.0.1","id.orig_p":4000,"id.resp_h":"10.0.0.2","id.resp_p":22,"proto":"tcp","duration":500.0}"#;
        let files = [(notice, Format::NoticeJson), (conn, Format::ConnJson)];
        let mut ids = read(&files, category).unwrap();
        assert_eq!(said(&mut ids, 1_400, &flow), label);
        assert_eq!(said(&mut ids, 1_500, &flow), "near");
    }

    #[test]
    fn invalid_lines_are_named_and_counted_and_do_not_fill_the_memory() {
        let deep = "[".repeat(100_000);
        let long = "x".repeat(3 << 20);
        let text = format!(
            "{ALERT}\n{{\"event_type\":\"alert\"}}\n{{\"event_type\":\"alert\",\"tls\":{deep}\n{long}\nnoise\n{{\"event_type\":\"dns\"}}\n"
        );
        let ids = read(&[(&text, Format::Eve)], Options::default()).unwrap();
        let problems = ids.problems();
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert!(problems[0].starts_with("x.log: line 3: an alert without a valid timestamp"));
        assert!(
            problems[1].starts_with("x.log: line 4: EOF"),
            "{problems:?}"
        );
        assert_eq!(problems[2], "x.log: line 5: longer than 1 MiB");
        assert_eq!(problems[3], "x.log: 1 more lines are invalid");

        let none = read(&[("{\"event_type\":1}\n", Format::Eve)], Options::default());
        assert!(format!("{:#}", none.unwrap_err()).contains("no line is valid"));
        let quiet = read(
            &[("{\"event_type\":\"dns\"}\n", Format::Eve)],
            Options::default(),
        );
        assert!(format!("{:#}", quiet.unwrap_err()).contains("no alarm in 1 lines"));
    }

    #[test]
    fn many_alarms_of_one_flow_are_one_span() {
        let text = ALERT.repeat(10_000);
        let ids = read(&[(&text, Format::Eve)], Options::default()).unwrap();
        assert_eq!(ids.unmatched(), (1, 1));
        assert_eq!(ids.hosts[&"10.0.0.1".parse::<IpAddr>().unwrap()].0.len(), 1);
    }
}
