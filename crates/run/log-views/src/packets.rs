//! The packets of a flow.

pub(crate) mod dissect;

use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use strata_archive::ArchiveError;
use strata_filter::Filter;
use strata_networks::Names;
use strata_query::{ByLink, ExportOptions, Find, Kept, LoggedPacket, packets};
use strata_store::Log;
use strata_wire::dissect::dissect;
use strata_wire::{
    AddressFamily, Endpoint, FlowKey, FragmentTable, Headers, LinkType, TunnelKey, clamped,
};
use utoipa::ToSchema;

use crate::answers::parts::Covered;
use crate::answers::refused::Refused;
use crate::answers::times;
use crate::logs::{self, Logs};
use crate::packets::dissect::{behind_ip, summary};
use crate::search::flow_id;
use crate::search::found::words;
use crate::search::{Asked, Sought};
use crate::work::Stop;

/// Maximum number of packets of a page.
const PAGE_MAX: usize = 1000;
/// How long before a later fragment its first one may be.
const FRAGMENTS_NS: u64 = FragmentTable::LIFETIME_NS;

/// A packet, owned: what is read of a log is gone with the next packet.
#[derive(Clone, Debug)]
pub struct Packet {
    pub(crate) recording: u32,
    pub(crate) interface: u16,
    pub(crate) link: LinkType,
    pub(crate) ts_ns: u64,
    pub(crate) wire_len: u32,
    pub(crate) captured_len: u32,
    /// Its captured bytes, as far as they were kept.
    pub data: Vec<u8>,
    pub(crate) class: Option<String>,
    pub(crate) score: Option<f64>,
    pub(crate) granularity: String,
    pub(crate) reason: String,
    pub(crate) mode: String,
    pub(crate) headers: Headers,
    pub(crate) tie: Tie,
}

/// Which of the packets of a flow with the same time and recording one is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tie {
    /// How many came before.
    pub(crate) before: usize,
    /// Whether it, or one of those before it, is a later fragment: only packets before this time tell its flow.
    pub(crate) has_fragments: bool,
}

impl fmt::Display for Tie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.before, fragments_text(self.has_fragments))
    }
}

/// What stands after a number if fragments have to be looked for.
const FRAGMENTS: &str = "f";

const fn fragments_text(has_fragments: bool) -> &'static str {
    match has_fragments {
        true => FRAGMENTS,
        false => "",
    }
}

/// A number, and whether fragments have to be looked for.
fn counted(text: &str) -> Option<(usize, bool)> {
    let number = text.strip_suffix(FRAGMENTS);
    Some((number.unwrap_or(text).parse().ok()?, number.is_some()))
}

impl Tie {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (before, has_fragments) = counted(text)?;
        Some(Self {
            before,
            has_fragments,
        })
    }
}

/// Numbers packets of a flow among those of the same time and recording.
#[derive(Debug, Default)]
pub(crate) struct Ties(Option<(u32, u64, Tie)>);

impl Ties {
    /// The next packet's.
    pub(crate) fn next(&mut self, logged: &LoggedPacket<'_>, headers: &Headers) -> Tie {
        let at = (logged.recording, logged.ts_ns);
        let same = self
            .0
            .filter(|(recording, ts_ns, _)| (*recording, *ts_ns) == at);
        let before = same.map(|(.., tie)| tie);
        let tie = Tie {
            before: before.map_or(0, |tie| tie.before.saturating_add(1)),
            has_fragments: is_later_fragment(headers)
                || before.is_some_and(|tie| tie.has_fragments),
        };
        self.0 = Some((at.0, at.1, tie));
        tie
    }
}

/// Whether a packet has no ports, since they are in the first fragment.
fn is_later_fragment(headers: &Headers) -> bool {
    headers.fragment.is_some_and(|fragment| !fragment.first)
}

/// A packet, as the API tells it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Packet, example = json!({
    "id": "6_10.0.0.1_51234_10.0.0.2_443@1.1769864400123456789.0", "at": "2026-01-31T13:00:00.123456789Z",
    "direction": "there", "src": "10.0.0.1:51234", "dst": "10.0.0.2:443", "summary": "TCP SYN, 0 bytes",
    "wire_bytes": 74, "captured_bytes": 74, "kept_bytes": 74, "class": "botnet", "score": 0.93,
    "granularity": "full", "reason": "flow-trees:12,3,7", "words": "most trees for flows say botnet",
}))]
pub(crate) struct PacketRow {
    /// Opaque, safe in a URL's path.
    id: String,
    at: String,
    direction: Direction,
    /// With port, as in `10.0.0.1:443`; a later fragment has none.
    src: String,
    dst: String,
    /// As in `TCP SYN, 0 bytes`.
    summary: String,
    wire_bytes: u32,
    captured_bytes: u32,
    kept_bytes: usize,
    #[schema(required)]
    class: Option<String>,
    #[schema(required)]
    score: Option<f64>,
    granularity: String,
    reason: String,
    /// The reason in a few words.
    words: String,
}

/// Direction of a packet of a flow; `there`: from `src` of the flow.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Direction {
    There,
    Back,
}

impl Packet {
    pub(crate) fn of(logged: &LoggedPacket<'_>, headers: Headers, tie: Tie) -> Self {
        Self {
            recording: logged.recording,
            interface: logged.interface,
            link: logged.link,
            ts_ns: logged.ts_ns,
            wire_len: logged.wire_len,
            captured_len: logged.captured_len,
            data: logged.data.to_vec(),
            class: logged.class.map(str::to_owned),
            score: logged.judged.score(),
            granularity: logged.judged.granularity().to_owned(),
            reason: logged.judged.reason().into_owned(),
            mode: logged.judged.mode().to_owned(),
            headers,
            tie,
        }
    }

    /// How many of its bytes are headers.
    pub fn header_bytes(&self) -> usize {
        let kept = clamped::<u32>(self.data.len());
        let headers = self.headers.kept_header_len(kept) as usize;
        headers.min(self.data.len())
    }

    /// How many of its bytes on the wire are behind its IP packet.
    pub(crate) fn behind_ip(&self) -> u32 {
        behind_ip(self.link, &self.data, self.wire_len)
    }

    /// As the API tells it, of this flow, whose first packet's sender is `from`.
    pub(crate) fn row(&self, flow: &FlowKey, from: Endpoint) -> PacketRow {
        let (source, destination) = self.headers.endpoints();
        let [src, dst] = [source, destination].map(|end| end_text(flow, end));
        let class = self.class.as_deref().unwrap_or("");
        let direction = match sender(flow, &self.headers) == from {
            true => Direction::There,
            false => Direction::Back,
        };
        PacketRow {
            id: format!(
                "{}@{}.{}.{}",
                flow_id::id(flow),
                self.recording,
                self.ts_ns,
                self.tie
            ),
            at: times::text(self.ts_ns),
            direction,
            src,
            dst,
            summary: summary(&self.headers, self.wire_len, self.behind_ip()),
            wire_bytes: self.wire_len,
            captured_bytes: self.captured_len,
            kept_bytes: self.data.len(),
            class: self.class.clone(),
            score: self.score,
            granularity: self.granularity.clone(),
            words: words(&self.reason, class),
            reason: self.reason.clone(),
        }
    }
}

fn end_text(flow: &FlowKey, end: Endpoint) -> String {
    let address = flow_id::address(flow.family, end.address);
    match flow.family {
        _ if *flow == FlowKey::NONE => String::new(),
        AddressFamily::Mac => address,
        _ if end.port == 0 => address,
        AddressFamily::Ipv6 => format!("[{address}]:{}", end.port),
        AddressFamily::Ipv4 => format!("{address}:{}", end.port),
    }
}

/// The end of a flow that sent one of its packets: a flow has no EtherType, and a later fragment no ports.
pub(crate) fn sender(flow: &FlowKey, headers: &Headers) -> Endpoint {
    let (source, _) = headers.endpoints();
    if flow.family != AddressFamily::Mac && !is_later_fragment(headers) {
        return source;
    }
    match [flow.low, flow.high].map(|end| end.address == source.address) {
        [true, false] => flow.low,
        [false, true] => flow.high,
        // Both ends have this address.
        _ if headers.low_to_high => flow.low,
        _ => flow.high,
    }
}

/// Hands out the packets of a flow within a time, in order, until `take` breaks: those that a search counts with it.
/// Later fragments come with it whose first one is within the time.
pub(crate) fn of_flow(
    log: &Log,
    flow: &FlowKey,
    (from_ns, to_ns): (Option<u64>, Option<u64>),
    stop: &Stop,
    mut take: impl FnMut(&LoggedPacket<'_>, Headers) -> ControlFlow<()>,
) -> Result<u64, Refused> {
    let find = Find {
        from_ns,
        to_ns,
        filter: None,
    };
    let options = ExportOptions {
        select: find.select(),
        flow: Some(*flow),
        ..ExportOptions::default()
    };
    let mut has_broken = false;
    let mut one = |logged: &LoggedPacket<'_>| {
        let headers = dissect(logged.link, logged.data, TunnelKey::Inner);
        let goes_on = take(logged, headers);
        if goes_on.is_break() || stop.go_on().is_break() {
            has_broken = true;
            return Err(io::Error::other("enough was read"));
        }
        Ok(())
    };
    match packets(log, &find, options, &mut one) {
        Ok(exported) => Ok(exported.damage.len() as u64),
        Err(ArchiveError::Write(_)) if has_broken => Ok(0),
        Err(error) => Err(error.into()),
    }
}

fn flow_of(id: &str) -> Result<FlowKey, Refused> {
    let missing = || {
        Refused::not_found(format!(
            "'{id}' is not a flow: follow a link from the search"
        ))
    };
    flow_id::parse(id).ok_or_else(missing)
}

/// A place among a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    ns: u64,
    /// After this number of packets of that time.
    count: usize,
    /// Whether first fragments came shortly before: what follows may belong to their packets.
    has_fragments: bool,
}

impl Cursor {
    fn parse(text: &str) -> Option<Self> {
        let (ns, count) = text.split_once('.')?;
        let (count, has_fragments) = counted(count)?;
        Some(Self {
            ns: ns.parse().ok()?,
            count,
            has_fragments,
        })
    }

    /// When to begin to read, of packets that may be from this time on.
    fn read_from(&self, from_ns: Option<u64>) -> u64 {
        match self.has_fragments {
            true => earlier(self.ns, from_ns),
            false => self.ns,
        }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fragments = fragments_text(self.has_fragments);
        write!(f, "{}.{}{fragments}", self.ns, self.count)
    }
}

/// When the first fragments of packets begin that may have others at this time, of packets from a time on.
pub(crate) fn earlier(ns: u64, from_ns: Option<u64>) -> u64 {
    let first = ns.saturating_sub(FRAGMENTS_NS);
    from_ns.map_or(first, |from| first.max(from))
}

/// A page of a flow's packets.
#[derive(Debug, Serialize, ToSchema)]
pub struct PacketPage {
    packets: Vec<PacketRow>,
    /// For `cursor`; null at the end.
    #[schema(required)]
    next: Option<String>,
    /// The command line for these packets, and for packets of other flows that its filter cannot tell from them. Null
    /// if its filter does not match all packets of this page, since some have tags, are in a tunnel or are later
    /// fragments, or if it would match much more: for what is not TCP, UDP, SCTP or ICMP.
    #[schema(required)]
    command: Option<String>,
    covered: Covered,
}

/// The filter of a command line that selects a flow's packets, as long as it matches them.
struct ByFilter {
    text: String,
    by_link: ByLink,
    matches_all: bool,
}

impl ByFilter {
    /// `None` where a filter selects much more than the flow.
    fn of(flow: &FlowKey) -> Option<Self> {
        if !flow_id::is_told_by_filter(flow) {
            return None;
        }
        let text = flow_id::filter(flow)?;
        let filter = Filter::parse(&text).ok()?;
        Some(Self {
            text,
            by_link: ByLink::new(filter, |_, _| {}),
            matches_all: true,
        })
    }

    fn test(&mut self, logged: &LoggedPacket<'_>) {
        let wire_len = logged.wire_len.max(logged.captured_len);
        self.matches_all &= self.by_link.matches(logged.link, logged.data, wire_len);
    }
}

/// A page being filled.
struct Filling<'a> {
    flow: &'a FlowKey,
    first: Endpoint,
    /// After which packet it begins.
    after: Option<Cursor>,
    limit: usize,
    rows: Vec<PacketRow>,
    next: Option<Cursor>,
    by_filter: Option<ByFilter>,
    ties: Ties,
    /// The time of the last packet, and the number of packets with it before that one.
    of_time: Option<(u64, usize)>,
    skip: usize,
    last_first_fragment_ns: Option<u64>,
}

impl Filling<'_> {
    fn take(&mut self, logged: &LoggedPacket<'_>, headers: Headers) -> ControlFlow<()> {
        if headers.fragment.is_some_and(|fragment| fragment.first) {
            self.last_first_fragment_ns = Some(logged.ts_ns);
        }
        // It was read for the fragments that follow.
        if self.after.is_some_and(|after| logged.ts_ns < after.ns) {
            return ControlFlow::Continue(());
        }
        let tie = self.ties.next(logged, &headers);
        let of_time = match self.of_time {
            Some((ts_ns, count)) if ts_ns == logged.ts_ns => count.saturating_add(1),
            _ => 0,
        };
        self.of_time = Some((logged.ts_ns, of_time));
        if self.skip > 0 && self.after.is_some_and(|after| after.ns == logged.ts_ns) {
            self.skip = self.skip.saturating_sub(1);
            return ControlFlow::Continue(());
        }
        if self.rows.len() == self.limit {
            let last = self.last_first_fragment_ns;
            self.next = Some(Cursor {
                ns: logged.ts_ns,
                count: of_time,
                has_fragments: last.is_some_and(|ns| ns.abs_diff(logged.ts_ns) < FRAGMENTS_NS),
            });
            return ControlFlow::Break(());
        }
        if let Some(by_filter) = &mut self.by_filter {
            by_filter.test(logged);
        }
        let packet = Packet::of(logged, headers, tie);
        self.rows.push(packet.row(self.flow, self.first));
        ControlFlow::Continue(())
    }
}

/// A page of the packets of a flow.
///
/// # Errors
///
/// If the flow or a parameter is invalid, or the log cannot be read.
pub fn page(
    (logs, names): (&Logs, &Arc<Names>),
    (log_id, flow): (&str, &str),
    asked: &Asked,
    (after, limit): (Option<&str>, Option<usize>),
    stop: &Stop,
) -> Result<PacketPage, Refused> {
    let since = Instant::now();
    let key = flow_of(flow)?;
    let mut sought = Sought {
        filter: None,
        text: String::new(),
        flow: None,
        kept: Kept::default(),
        ..asked.sought(names)?
    };
    let after = after.map(|text| {
        let wrong = || Refused::invalid("cursor", "not a cursor of the previous page");
        Cursor::parse(text).ok_or_else(wrong)
    });
    let after = after.transpose()?;
    let log = logs::open(logs, log_id)?;
    let from = after.map(|after| after.read_from(sought.from_ns));
    let from = from.or(sought.from_ns);
    let mut filling = Filling {
        flow: &key,
        first: initiator(&log, &key, (sought.from_ns, sought.to_ns), stop)?,
        after,
        limit: limit.unwrap_or(200).clamp(1, PAGE_MAX),
        rows: Vec::new(),
        next: None,
        by_filter: ByFilter::of(&key),
        ties: Ties::default(),
        of_time: None,
        skip: after.map_or(0, |after| after.count),
        last_first_fragment_ns: None,
    };
    let damaged = of_flow(&log, &key, (from, sought.to_ns), stop, |logged, headers| {
        filling.take(logged, headers)
    })?;
    let Filling {
        rows,
        next,
        by_filter,
        ..
    } = filling;
    let mut why: Vec<String> = stop.why().into_iter().collect();
    if damaged > 0 {
        why.push(format!("{damaged} damaged places"));
    }
    why.extend(logs::lost_words(&log)?);
    let covered = Covered {
        complete: why.is_empty(),
        why: (!why.is_empty()).then(|| why.join("; ")),
        remark: logs::deleted_words(&log, sought.from_ns),
        packets: rows.len() as u64,
        from: rows.first().map(|row| row.at.clone()),
        to: rows.last().map(|row| row.at.clone()),
        damaged,
        encrypted_packets: 0,
        seconds: since.elapsed().as_secs_f64(),
    };
    let dir = logs.dir(log_id)?;
    let by_filter = by_filter.filter(|by_filter| by_filter.matches_all);
    let command = by_filter.map(|by_filter| {
        sought.text = by_filter.text;
        sought.command(dir, "flow.pcapng")
    });
    Ok(PacketPage {
        packets: rows,
        next: next.map(|next| next.to_string()),
        command,
        covered,
    })
}

/// The end of a flow that sent its first packet within a time; the low one without packets.
pub(crate) fn initiator(
    log: &Log,
    flow: &FlowKey,
    span: (Option<u64>, Option<u64>),
    stop: &Stop,
) -> Result<Endpoint, Refused> {
    let mut first = flow.low;
    of_flow(log, flow, span, stop, |_, headers| {
        first = sender(flow, &headers);
        ControlFlow::Break(())
    })?;
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_read_as_written() {
        for (text, ns, count, has_fragments) in [("17.3", 17, 3, false), ("0.0f", 0, 0, true)] {
            let cursor = Cursor {
                ns,
                count,
                has_fragments,
            };
            assert_eq!(Cursor::parse(text), Some(cursor));
            assert_eq!(cursor.to_string(), text);
        }
        for wrong in ["", "17", "x.3", "17.x", "-1.3", "17.f", "17.3ff"] {
            assert_eq!(Cursor::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn fragments_are_looked_for_before_a_place() {
        let mut cursor = Cursor::parse("70000000000.1").unwrap();
        assert_eq!(cursor.read_from(None), cursor.ns);
        cursor.has_fragments = true;
        assert_eq!(cursor.read_from(None), 10_000_000_000);
        assert_eq!(cursor.read_from(Some(65_000_000_000)), 65_000_000_000);
    }
}
