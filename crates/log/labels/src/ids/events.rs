//! Events of Suricata and lines of Zeek's logs: what each says of an alert, or of its flow.

use std::net::{AddrParseError, IpAddr};
use std::num::{ParseFloatError, ParseIntError};

use serde::Deserialize;
use strata_archive::parts::is_community_id;
use strata_pipeline::eve_alert;
use strata_wire::FlowKey;

use crate::cells::{duration_ns, protocol, time_ns};
use crate::error::{LineError, ValueError};
use crate::flows::key;

use super::{Alert, Format, Link, Reader, SEVERITY_NONE};

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

/// The Community ID of an alert. It is not needed where its flow is known otherwise.
fn community_id(id: Option<String>, flow: Option<FlowKey>) -> Result<Option<String>, LineError> {
    match id {
        Some(id) if flow.is_none() && !is_community_id(&id) => Err(LineError::CommunityId(id)),
        id => Ok(id),
    }
}

impl Reader {
    /// An event of Suricata.
    pub(super) fn eve(&mut self, text: &[u8]) -> Result<(), LineError> {
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
            None => return Err(LineError::NoEvent),
        }
        let ts_ns = time(&event.timestamp);
        let ts_ns = ts_ns.ok_or(LineError::NoTimestamp)?;
        let said = event.alert.ok_or(LineError::NoAlert)?;
        let category = said.category.filter(|text| !text.trim().is_empty());
        let severity = said.severity.unwrap_or(SEVERITY_NONE);
        let label = self.label(category.as_deref().unwrap_or("alert"), severity)?;
        let flow = eve_alert(text)?.map(|alert| alert.flow);
        self.add(Alert {
            key: flow,
            community_id: community_id(event.community_id, flow)?,
            hosts: [event.src_ip, event.dest_ip],
            link,
            ts_ns,
            start_ns,
            severity,
            label,
        });
        Ok(())
    }

    /// A line of Zeek's notice.log or conn.log, by its fields.
    pub(super) fn zeek<'c>(
        &mut self,
        format: Format,
        cell: impl Fn(&str) -> Option<&'c str>,
    ) -> Result<(), LineError> {
        let wrong = |text: &str, name: &str, source: Option<ValueError>| {
            LineError::cell(text, format!("'{name}'"), source)
        };
        let cell = |name: &str| cell(name).filter(|text| !matches!(*text, "-" | "(empty)" | ""));
        let ts = cell("ts").ok_or(LineError::Missing("ts"))?;
        let (ts_ns, _) = time_ns(ts, self.offset_s).ok_or_else(|| wrong(ts, "ts", None))?;
        let link = cell("uid").map(|uid| Link::Uid(uid.to_owned()));
        if matches!(format, Format::ConnJson | Format::ConnTsv) {
            let seconds: f64 = match cell("duration") {
                Some(text) => text.parse().map_err(|error: ParseFloatError| {
                    wrong(text, "duration", Some(error.into()))
                })?,
                // A flow of one packet has none.
                None => 0.0,
            };
            let link = link.ok_or(LineError::Missing("uid"))?;
            if self.links.contains(&link) {
                self.spans
                    .insert(link, (ts_ns, ts_ns + duration_ns(seconds)));
            }
            return Ok(());
        }
        let note = cell("note").ok_or(LineError::Missing("note"))?;
        let address = |name: &str| -> Result<Option<IpAddr>, LineError> {
            let parse = |text: &str| {
                let address = text.parse();
                address.map_err(|error: AddrParseError| wrong(text, name, Some(error.into())))
            };
            cell(name).map(parse).transpose()
        };
        let port = |name: &str| -> Result<Option<u16>, LineError> {
            let parse = |text: &str| {
                let port = text.parse();
                port.map_err(|error: ParseIntError| wrong(text, name, Some(error.into())))
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
        self.add(Alert {
            key: flow,
            community_id: community_id(cell("community_id").map(str::to_owned), flow)?,
            hosts,
            link,
            ts_ns,
            start_ns: None,
            severity: SEVERITY_NONE,
            label,
        });
        Ok(())
    }
}
