//! `strata labels`: labels flows of a log that a user names, in a file that training reads.
//!
//! The file is Zeek's conn.log as JSON lines, with the member `label`. It is read, changed and replaced as
//! a whole: a flow that is labelled again has the new label only.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use strata_archive::parts::{community_id_seeded, is_community_id};
use strata_capture::PacketRef;
use strata_filter::Filter;
use strata_pipeline::FlowFinder;
use strata_query::{ByLink, Find};
use strata_store::Log;
use strata_wire::{AddressFamily, Endpoint, FlowKey, LinkType, Printable, TunnelKey, grouped};
use tracing::info;

use crate::export::{first_packet_ns, say_no_match};
use crate::key::KeyArgs;
use crate::labels::class_name;
use crate::labels::flows::{SLACK_NS, labelled_key, texts_of, zeek_flow};
use crate::output::{self, refuse};
use crate::packets::{damaged, narrowed, open_log};
use crate::text::{self, count_of, parse_time};

/// More flows are not labelled at once: each takes some 200 bytes of memory.
const FLOWS_MAX: usize = 1 << 20;
/// Of so many flows all packets are looked for by their addresses; of more, the whole log is read.
const NARROWED_MAX: usize = 32;
/// After a pause as long as this, the same addresses and ports are another flow.
const PAUSE_NS: u64 = 300 * 1_000_000_000;
/// Times in the file are rounded by less than this.
const ROUNDED_NS: i128 = 2_000;
/// A longer label is a mistake.
const LABEL_MAX: usize = 128;
/// A larger file is not one of labels given by hand.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Arguments of `strata labels`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Label flows of a log in a file for strata train --labels.
    Add(AddArgs),
}

/// Arguments of `strata labels add`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata labels add log/ --label scan -o labels.json host 10.0.0.66 and tcp
  strata labels add log/ --label benign -o labels.json --community-id 1:LQU9qZlK+B5F3KDmev6m5PMibrg=
  strata train log/ --labels labels.json --otherwise benign -o new.json

A flow gets the label if one of its packets matches, and from its first packet in the log to its last;
after a pause of 5 minutes the same addresses and ports are another flow.")]
struct AddArgs {
    /// Read the log in this directory.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    /// Give the flows this label: the name of a class, such as scan; or attack, or benign.
    #[arg(long, value_name = "LABEL")]
    label: String,

    /// Add the flows to this file: Zeek's conn.log as JSON lines, with labels. A flow in it that is
    /// labelled again has the new label.
    #[arg(short = 'o', long, value_name = "FILE")]
    output: PathBuf,

    /// Label the flow with this Community ID, as alerts and other tools name it; of several, all.
    #[arg(long = "community-id", value_name = "ID")]
    community_ids: Vec<String>,

    /// Set the seed of Community IDs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    community_id_seed: u16,

    /// Label flows with packets from this time on: 13:05, 2026-01-31T13:05 (both local time),
    /// 2026-01-31T13:05:00Z, or seconds since 1970. A time without a date is on the day of the log's
    /// first packet.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,

    /// Label flows with packets before this time, written in the same way.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,

    #[command(flatten)]
    key: KeyArgs,

    /// Label flows with packets that match this tcpdump filter, which sees only the bytes that were
    /// kept. Put options before it.
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    filter: Vec<String>,
}

/// Runs `strata labels`.
pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Add(args) => add(args),
    }
}

fn add(args: &AddArgs) -> Result<()> {
    let label = label(&args.label)?;
    if args.output.as_os_str() == "-" {
        return Err(refuse("labels are added to a file: -o FILE"));
    }
    let filter = text::filter(&args.filter)?;
    let selects = filter.is_some()
        || !args.community_ids.is_empty()
        || args.from.is_some()
        || args.to.is_some();
    if !selects {
        return Err(refuse(
            "which flows? Give a filter, --community-id, --from or --to",
        ));
    }
    if let Some(id) = args.community_ids.iter().find(|id| !is_community_id(id)) {
        let id = Printable(id);
        return Err(refuse(format!(
            "--community-id '{id}' is not a Community ID of version 1: they are 1: and 28 \
             characters, as in 1:LQU9qZlK+B5F3KDmev6m5PMibrg="
        )));
    }
    let log = open_log(&args.key, &args.log, "labels no flows of")?;
    output::check(&args.output, &args.key.sources(&args.log, &log))?;
    let mut file = LabelFile::read(&args.output)?;
    let matching = matching(args, &log, filter.as_ref())?;
    if matching.spans.is_empty() {
        let but = matching.remark();
        bail!(
            "no flow of the log matches{but}; {} is unchanged",
            file.name
        );
    }
    let whole = whole(&log, &matching)?;
    let flows = whole.spans.iter().flat_map(|(key, spans)| {
        let matching = &matching.spans[key];
        let meets = |span: &&Span| matching.iter().any(|matched| matched.meets(span));
        spans.iter().filter(meets).map(move |span| (*key, *span))
    });
    let mut flows: Vec<(FlowKey, Span)> = flows.collect();
    flows.sort_by_key(|(key, span)| (span.from_ns, span.to_ns, key.low, key.high));
    let mut changes = Changes::default();
    for (key, span) in &flows {
        file.put(*key, span, label, &mut changes);
    }
    file.write()?;
    let Changes { new, same, changed } = changes;
    info!(
        "{}: {} labelled {} ({} new, {} had the label, {} had another){}",
        file.name,
        count_of(flows.len() as u64, "flow"),
        class_name(label),
        grouped(new),
        grouped(same),
        grouped(changed),
        matching.remark(),
    );
    Ok(())
}

/// A label that can be one.
fn label(text: &str) -> Result<&str> {
    let label = text.trim();
    // Zeek writes these where there is no label.
    let is_none = matches!(label, "" | "-" | "(empty)");
    if is_none || label.len() > LABEL_MAX || label.chars().any(char::is_control) {
        return Err(refuse(format!(
            "--label '{}' is not the name of a class: write a word such as scan or benign",
            Printable(text)
        )));
    }
    Ok(label)
}

/// A time in which a flow has packets.
#[derive(Clone, Copy, Debug)]
struct Span {
    from_ns: u64,
    to_ns: u64,
    /// Whether its first packet goes from the low to the high endpoint.
    low_to_high: bool,
}

impl Span {
    fn meets(&self, other: &Self) -> bool {
        self.from_ns <= other.to_ns && other.from_ns <= self.to_ns
    }
}

/// Flows, and when they had packets.
#[derive(Debug, Default)]
struct Flows {
    spans: HashMap<FlowKey, Vec<Span>>,
    /// Packets that no label can name: without IP addresses, or a time.
    unnamed: u64,
}

impl Flows {
    /// Adds a packet of a flow that is known, or may be added.
    fn put(spans: &mut Vec<Span>, ts_ns: u64, low_to_high: bool) {
        let near = |span: &&mut Span| {
            let since = ts_ns.saturating_sub(span.to_ns);
            since.max(span.from_ns.saturating_sub(ts_ns)) <= PAUSE_NS
        };
        // The latest is the last, but for packets that come late.
        match spans.iter_mut().rev().find(near) {
            Some(span) => {
                if ts_ns < span.from_ns {
                    (span.from_ns, span.low_to_high) = (ts_ns, low_to_high);
                }
                span.to_ns = span.to_ns.max(ts_ns);
            }
            None => spans.push(Span {
                from_ns: ts_ns,
                to_ns: ts_ns,
                low_to_high,
            }),
        }
    }

    /// Joins what late packets have brought together.
    fn join(&mut self) {
        for spans in self.spans.values_mut() {
            spans.sort_by_key(|span| span.from_ns);
            spans.dedup_by(|next, last| {
                let is_one = next.from_ns.saturating_sub(last.to_ns) <= PAUSE_NS;
                if is_one {
                    last.to_ns = last.to_ns.max(next.to_ns);
                }
                is_one
            });
        }
    }

    /// What else the user is told.
    fn remark(&self) -> String {
        match self.unnamed {
            0 => String::new(),
            unnamed => format!(
                "; {} without IP addresses or a time cannot be labelled",
                count_of(unnamed, "packet")
            ),
        }
    }
}

/// Flows with packets that match, and when these were.
fn matching(args: &AddArgs, log: &Log, filter: Option<&Filter>) -> Result<Flows> {
    let reference = first_packet_ns(log)?;
    let time = |text: &Option<String>| {
        let text = text.as_deref();
        text.map(|text| parse_time(text, reference)).transpose()
    };
    let find = Find {
        from_ns: time(&args.from)?,
        to_ns: time(&args.to)?,
        filter,
    };
    if let (Some(from), Some(to)) = (find.from_ns, find.to_ns) {
        ensure!(
            from < to,
            "--from is not before --to: give dates with the times"
        );
    }
    let mut flows = Flows::default();
    // Whether a flow has one of the IDs.
    let mut known: HashMap<FlowKey, bool> = HashMap::new();
    let has_id = |key: FlowKey, known: &mut HashMap<FlowKey, bool>| {
        if args.community_ids.is_empty() {
            return true;
        }
        if known.len() >= FLOWS_MAX {
            known.clear();
        }
        *known.entry(key).or_insert_with(|| {
            let id = community_id_seeded(&key, args.community_id_seed);
            args.community_ids.contains(&id)
        })
    };
    let by_link = filter.cloned();
    let by_link = by_link.map(|filter| ByLink::new(filter, say_no_match));
    each_packet(log, &find, by_link, |found, ts_ns, low_to_high| {
        let Some(key) = found else {
            flows.unnamed += u64::from(args.community_ids.is_empty());
            return Ok(());
        };
        if !has_id(key, &mut known) {
            return Ok(());
        }
        let is_full = flows.spans.len() >= FLOWS_MAX;
        match flows.spans.entry(key) {
            MapEntry::Occupied(mut spans) => Flows::put(spans.get_mut(), ts_ns, low_to_high),
            MapEntry::Vacant(_) if is_full => bail!(
                "more than {} flows match: give a filter or times that name fewer",
                grouped(FLOWS_MAX as u64)
            ),
            MapEntry::Vacant(vacant) => {
                Flows::put(vacant.insert(Vec::new()), ts_ns, low_to_high);
            }
        }
        Ok(())
    })?;
    flows.join();
    Ok(flows)
}

/// The same flows with all of their packets.
fn whole(log: &Log, matching: &Flows) -> Result<Flows> {
    let spans = matching.spans.keys().map(|key| (*key, Vec::new()));
    let mut flows = Flows {
        spans: spans.collect(),
        unnamed: 0,
    };
    let narrowing = narrowing(matching.spans.keys());
    let find = Find {
        filter: narrowing.as_ref(),
        ..Find::default()
    };
    each_packet(log, &find, None, |found, ts_ns, low_to_high| {
        if let Some(spans) = found.and_then(|key| flows.spans.get_mut(&key)) {
            Flows::put(spans, ts_ns, low_to_high);
        }
        Ok(())
    })?;
    flows.join();
    Ok(flows)
}

/// A filter that says where packets of a few flows may be: later fragments too, and what is in
/// tunnels, so without ports.
fn narrowing<'a>(flows: impl ExactSizeIterator<Item = &'a FlowKey>) -> Option<Filter> {
    if flows.len() > NARROWED_MAX {
        return None;
    }
    let hosts = flows.map(|key| {
        let [low, high] = [key.low, key.high].map(|end| address(key.family, end));
        format!("(host {low} and host {high})")
    });
    let hosts: Vec<String> = hosts.collect();
    Filter::parse(&hosts.join(" or ")).ok()
}

/// Calls `each` for packets of a log: its flow, if a label can name it, its time, and whether it goes
/// from the low to the high endpoint.
fn each_packet(
    log: &Log,
    find: &Find<'_>,
    by_link: Option<ByLink>,
    mut each: impl FnMut(Option<FlowKey>, u64, bool) -> Result<()>,
) -> Result<()> {
    // As training finds them.
    let mut finder = FlowFinder::new([0, 0], TunnelKey::Inner);
    let mut one = |link: LinkType, packet: &PacketRef<'_>| {
        let (headers, facts) = finder.find(link, packet);
        let key = labelled_key(&headers)
            .filter(|key| packet.has_timestamp && key.family != AddressFamily::Mac);
        let low_to_high = facts.is_none_or(|facts| facts.low_to_high);
        each(key, packet.ts_ns, low_to_high)
    };
    let read = narrowed(log, find, by_link, |logged, packet| {
        one(logged.link, packet)?;
        Ok(ControlFlow::Continue(()))
    })?;
    match damaged(&read?) {
        Some(places) => bail!("{places}: no flow is labelled by half"),
        None => Ok(()),
    }
}

/// What became of the flows that were labelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Changes {
    new: u64,
    same: u64,
    changed: u64,
}

/// A file of labels.
#[derive(Debug)]
struct LabelFile {
    path: PathBuf,
    name: String,
    flows: Vec<Labelled>,
    /// Places in `flows`.
    by_key: HashMap<FlowKey, Vec<usize>>,
}

/// A line of it.
#[derive(Debug)]
struct Labelled {
    from_ns: i128,
    to_ns: i128,
    members: Map<String, Value>,
    /// As it was read, unless it has changed since: numbers lose digits when they are read.
    line: Option<String>,
}

impl LabelFile {
    /// Reads a file, if there is one.
    fn read(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let mut file = Self {
            path: path.to_owned(),
            name,
            flows: Vec::new(),
            by_key: HashMap::new(),
        };
        let cannot = || format!("{}: cannot read", path.display());
        let found = match fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(file),
            found => found.with_context(cannot)?,
        };
        if !found.is_file() || found.len() > FILE_BYTES_MAX {
            return Err(refuse(format!(
                "{}: not a file of labels to add to",
                file.name
            )));
        }
        file.path = fs::canonicalize(path).with_context(cannot)?;
        let content = fs::read_to_string(path).with_context(cannot)?;
        for (number, line) in content.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let added = file.add_line(line);
            added.with_context(|| {
                format!(
                    "{}: line {}: not a file that labels can be added to",
                    path.display(),
                    number + 1
                )
            })?;
        }
        Ok(file)
    }

    fn add_line(&mut self, line: &str) -> Result<()> {
        let object: Value = serde_json::from_str(line)?;
        let texts = texts_of(&object);
        let cell = |name: &str| texts.get(name).map_or("-", String::as_str);
        let (key, from_ns, to_ns) = zeek_flow(&cell)?;
        ensure!(texts.contains_key("label"), "no member 'label'");
        let Value::Object(members) = object else {
            bail!("not an object");
        };
        self.push(
            key,
            Labelled {
                from_ns,
                to_ns,
                members,
                line: Some(line.to_owned()),
            },
        );
        Ok(())
    }

    fn push(&mut self, key: FlowKey, labelled: Labelled) {
        self.by_key.entry(key).or_default().push(self.flows.len());
        self.flows.push(labelled);
    }

    /// Labels a flow, which may be there already.
    fn put(&mut self, key: FlowKey, span: &Span, label: &str, changes: &mut Changes) {
        let (mut from_ns, mut to_ns) = (i128::from(span.from_ns), i128::from(span.to_ns));
        let same =
            |flow: &Labelled| flow.from_ns - SLACK_NS <= to_ns && from_ns <= flow.to_ns + SLACK_NS;
        let places = self.by_key.get(&key).into_iter().flatten();
        let places: Vec<usize> = places
            .copied()
            .filter(|&place| same(&self.flows[place]))
            .collect();
        if places.is_empty() {
            changes.new += 1;
            let members = described(&key, span, label);
            let labelled = Labelled {
                from_ns,
                to_ns,
                members,
                line: None,
            };
            self.push(key, labelled);
            return;
        }
        let has_label = |flow: &Labelled| {
            let known = flow.members.get("label").and_then(Value::as_str);
            known.is_some_and(|known| class_name(known) == class_name(label))
                && !flow.members.contains_key("detailed-label")
        };
        let is_same = places.iter().all(|&place| has_label(&self.flows[place]));
        *(if is_same {
            &mut changes.same
        } else {
            &mut changes.changed
        }) += 1;
        for &place in &places {
            let flow = &self.flows[place];
            (from_ns, to_ns) = (from_ns.min(flow.from_ns), to_ns.max(flow.to_ns));
        }
        // Each says the same of all of the time, so it does not matter which of them is looked up.
        for place in places {
            let flow = &mut self.flows[place];
            if !has_label(flow) {
                flow.line = None;
                flow.members.remove("detailed-label");
                flow.members.insert(String::from("label"), json!(label));
            }
            if flow.from_ns - from_ns > ROUNDED_NS || to_ns - flow.to_ns > ROUNDED_NS {
                (flow.from_ns, flow.to_ns, flow.line) = (from_ns, to_ns, None);
                insert_times(&mut flow.members, from_ns, to_ns);
            }
        }
    }

    /// Replaces the file.
    fn write(&self) -> Result<()> {
        let cannot = || format!("{}: cannot write", self.name);
        let folder = self
            .path
            .parent()
            .filter(|path| !path.as_os_str().is_empty());
        let mut builder = tempfile::Builder::new();
        // What is not there yet gets the permissions of any new file.
        let before = fs::metadata(&self.path).map(|found| found.permissions());
        let permissions = before.unwrap_or_else(|_| fs::Permissions::from_mode(0o666));
        builder.prefix(".labels").permissions(permissions);
        let mut file = builder
            .tempfile_in(folder.unwrap_or(Path::new(".")))
            .with_context(cannot)?;
        let mut text = String::new();
        for flow in &self.flows {
            match &flow.line {
                Some(line) => text += line,
                None => text += &Value::Object(flow.members.clone()).to_string(),
            }
            text.push('\n');
        }
        file.write_all(text.as_bytes()).with_context(cannot)?;
        file.as_file().sync_all().with_context(cannot)?;
        file.persist(&self.path).with_context(cannot)?;
        Ok(())
    }
}

/// A line for a flow that is labelled for the first time.
fn described(key: &FlowKey, span: &Span, label: &str) -> Map<String, Value> {
    let [from, to] = match span.low_to_high {
        true => [key.low, key.high],
        false => [key.high, key.low],
    };
    let mut members = Map::new();
    let mut put = |name: &str, value: Value| members.insert(name.to_owned(), value);
    put("id.orig_h", json!(address(key.family, from)));
    put("id.orig_p", json!(from.port));
    put("id.resp_h", json!(address(key.family, to)));
    put("id.resp_p", json!(to.port));
    put("proto", protocol(key.protocol));
    put("label", json!(label));
    insert_times(&mut members, span.from_ns.into(), span.to_ns.into());
    members
}

fn insert_times(members: &mut Map<String, Value>, from_ns: i128, to_ns: i128) {
    #[allow(clippy::cast_precision_loss, reason = "to less than a microsecond")]
    let seconds = |ns: i128| json!(ns as f64 / 1e9);
    members.insert(String::from("ts"), seconds(from_ns));
    members.insert(String::from("duration"), seconds(to_ns - from_ns));
}

fn address(family: AddressFamily, end: Endpoint) -> IpAddr {
    match family {
        AddressFamily::Ipv4 => {
            let [.., a, b, c, d] = end.address.to_be_bytes();
            Ipv4Addr::new(a, b, c, d).into()
        }
        AddressFamily::Ipv6 | AddressFamily::Mac => Ipv6Addr::from_bits(end.address).into(),
    }
}

/// By name where Zeek has one.
fn protocol(number: u8) -> Value {
    match number {
        1 => json!("icmp"),
        6 => json!("tcp"),
        17 => json!("udp"),
        58 => json!("icmp6"),
        number => json!(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(n: u8) -> FlowKey {
        let end = |last: u8, port| Endpoint {
            address: u32::from_be_bytes([10, 0, n, last]).into(),
            port,
        };
        FlowKey::new(AddressFamily::Ipv4, 6, end(1, 80), end(2, 50_000)).0
    }

    /// A few flows are looked for by an index of addresses: also where they have no ports.
    #[test]
    fn a_few_flows_are_looked_for_by_their_addresses() {
        let hosts = |texts: &[&str]| -> Vec<IpAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let one = narrowing([flow(1)].iter()).unwrap();
        assert_eq!(
            one.host_bounds(),
            [hosts(&["10.0.1.1"]), hosts(&["10.0.1.2"])]
        );
        assert!(one.flow_bound().is_none());
        let flows: Vec<FlowKey> = (0..=32).map(flow).collect();
        let some = narrowing(flows[..32].iter()).unwrap();
        assert_eq!(some.host_bounds().iter().map(Vec::len).max(), Some(32));
        assert!(narrowing(flows.iter()).is_none());
    }
}
