//! The packets of a flow.

use std::io;
use std::ops::ControlFlow;
use std::time::Instant;

use serde::Serialize;
use strata_archive::ArchiveError;
use strata_filter::Filter;
use strata_query::{ExportOptions, Find, LoggedPacket, packets};
use strata_store::Log;
use strata_wire::dissect::dissect;
use strata_wire::{AddressFamily, Endpoint, FlowKey, Headers, LinkType, TunnelKey, clamped};
use utoipa::ToSchema;

use crate::dissect::{behind_ip, summary};
use crate::flow_id;
use crate::found::words;
use crate::logs::{self, Logs};
use crate::parts::Covered;
use crate::refused::Refused;
use crate::search::{Asked, Sought};
use crate::times;
use crate::work::Stop;

/// Maximum number of packets of a page.
const PAGE_MAX: usize = 1000;

/// A packet, owned: what is read of a log is gone with the next packet.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) recording: u32,
    pub(crate) interface: u16,
    pub(crate) link: LinkType,
    pub(crate) ts_ns: u64,
    pub(crate) wire_len: u32,
    pub(crate) captured_len: u32,
    pub(crate) data: Vec<u8>,
    pub(crate) class: Option<String>,
    pub(crate) score: Option<f64>,
    pub(crate) granularity: String,
    pub(crate) reason: String,
    pub(crate) mode: String,
    pub(crate) headers: Headers,
    /// How many of its flow with the same time and recording came before.
    pub(crate) tie: usize,
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
    /// With port, as in `10.0.0.1:443`.
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
    pub(crate) fn of(logged: &LoggedPacket<'_>, headers: Headers, tie: usize) -> Self {
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
    pub(crate) fn header_bytes(&self) -> usize {
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
        let direction = match without_type(flow, source) == from {
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

/// An end as flows have it: the tables do not hold the EtherType.
pub(crate) fn without_type(flow: &FlowKey, end: Endpoint) -> Endpoint {
    match flow.family {
        AddressFamily::Mac => Endpoint { port: 0, ..end },
        AddressFamily::Ipv4 | AddressFamily::Ipv6 => end,
    }
}

/// Whether a packet with these headers is of this flow.
fn is_of(flow: &FlowKey, headers: &Headers) -> bool {
    let key = headers.flow_key();
    match flow.family {
        AddressFamily::Mac if *flow != FlowKey::NONE => {
            let (low, high) = (without_type(flow, key.low), without_type(flow, key.high));
            key.family == AddressFamily::Mac && (low, high) == (flow.low, flow.high)
        }
        _ => key == *flow,
    }
}

/// A filter that narrows where packets of a flow may be: the innermost addresses, whatever is
/// around them.
fn narrowing(flow: &FlowKey) -> Option<Filter> {
    if flow.family == AddressFamily::Mac {
        return None;
    }
    let [low, high] = [flow.low, flow.high].map(|end| flow_id::address(flow.family, end.address));
    Filter::parse(&format!("host {low} and host {high}")).ok()
}

/// Hands out the packets of a flow within a time, in order, until `take` breaks.
pub(crate) fn of_flow(
    log: &Log,
    flow: &FlowKey,
    (from_ns, to_ns): (Option<u64>, Option<u64>),
    stop: &Stop,
    mut take: impl FnMut(&LoggedPacket<'_>, Headers) -> ControlFlow<()>,
) -> Result<u64, Refused> {
    let filter = narrowing(flow);
    let find = Find {
        from_ns,
        to_ns,
        filter: filter.as_ref(),
    };
    let headers = |link, data: &[u8]| dissect(link, data, TunnelKey::Inner);
    let options = ExportOptions {
        select: find.select(),
        matches: Some(Box::new(|link, data: &[u8], _: u32| {
            is_of(flow, &headers(link, data))
        })),
        ..ExportOptions::default()
    };
    let mut has_broken = false;
    let mut one = |logged: &LoggedPacket<'_>| {
        let goes_on = take(logged, headers(logged.link, logged.data));
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
    let missing =
        || Refused::not_found(format!("'{id}' is not a flow: follow a link of the search"));
    flow_id::parse(id).ok_or_else(missing)
}

/// A place among a flow's packets: `ns.count`, after `count` packets of that time.
fn cursor(text: &str) -> Option<(u64, usize)> {
    let (ns, count) = text.split_once('.')?;
    Some((ns.parse().ok()?, count.parse().ok()?))
}

/// A page of a flow's packets.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PacketPage {
    packets: Vec<PacketRow>,
    /// For `cursor`; null at the end.
    #[schema(required)]
    next: Option<String>,
    /// The equal command line.
    command: String,
    covered: Covered,
}

pub(crate) fn page(
    logs: &Logs,
    (log_id, flow): (&str, &str),
    asked: &Asked,
    (after, limit): (Option<&str>, Option<usize>),
    stop: &Stop,
) -> Result<PacketPage, Refused> {
    let since = Instant::now();
    let key = flow_of(flow)?;
    let mut sought = Sought {
        filter: None,
        ..asked.sought()?
    };
    let begins = after.map(|text| {
        cursor(text).ok_or_else(|| Refused::invalid("cursor", "not a cursor of the previous page"))
    });
    let begins = begins.transpose()?;
    let limit = limit.unwrap_or(200).clamp(1, PAGE_MAX);
    let log = logs::open(logs, log_id)?;
    let from = begins.map(|(ns, _)| ns).or(sought.from_ns);
    // Who sent the first packet is known from all of them.
    let mut first = None;
    of_flow(
        &log,
        &key,
        (sought.from_ns, sought.to_ns),
        stop,
        |_, headers| {
            first = Some(without_type(&key, headers.endpoints().0));
            ControlFlow::Break(())
        },
    )?;
    let first = first.unwrap_or(key.low);
    let (mut rows, mut next): (Vec<PacketRow>, _) = (Vec::new(), None);
    let mut same = (0, 0, 0_usize);
    let mut of_time = (0, 0_usize);
    let mut skip = begins.map_or(0, |(_, count)| count);
    let damaged = of_flow(&log, &key, (from, sought.to_ns), stop, |logged, headers| {
        let at = (logged.recording, logged.ts_ns);
        same = match (same.0, same.1) == at {
            true => (at.0, at.1, same.2.saturating_add(1)),
            false => (at.0, at.1, 0),
        };
        of_time = match of_time.0 == logged.ts_ns {
            true => (of_time.0, of_time.1.saturating_add(1)),
            false => (logged.ts_ns, 0),
        };
        if skip > 0 && begins.is_some_and(|(ns, _)| ns == logged.ts_ns) {
            skip = skip.saturating_sub(1);
            return ControlFlow::Continue(());
        }
        if rows.len() == limit {
            next = Some(format!("{}.{}", logged.ts_ns, of_time.1));
            return ControlFlow::Break(());
        }
        rows.push(Packet::of(logged, headers, same.2).row(&key, first));
        ControlFlow::Continue(())
    })?;
    sought.text = flow_id::filter_text(&key);
    let why = stop.why();
    let covered = Covered {
        complete: why.is_none() && damaged == 0,
        why: why.or_else(|| (damaged > 0).then(|| format!("{damaged} damaged places"))),
        packets: rows.len() as u64,
        from: rows.first().map(|row| row.at.clone()),
        to: rows.last().map(|row| row.at.clone()),
        damaged,
        encrypted_packets: 0,
        seconds: since.elapsed().as_secs_f64(),
    };
    Ok(PacketPage {
        packets: rows,
        next,
        command: sought.command(logs.dir(log_id)?, "flow.pcapng"),
        covered,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_read_as_written() {
        assert_eq!(cursor("17.3"), Some((17, 3)));
        for wrong in ["", "17", "x.3", "17.x", "-1.3"] {
            assert_eq!(cursor(wrong), None, "{wrong}");
        }
    }
}
