//! Labels by flow: CICFlowMeter's CSV and Zeek's conn.log, matched by 5-tuple and
//! time.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::ParseFloatError;

use csv::StringRecord;
use serde_json::Value;
use strata_wire::{AddressFamily, Endpoint, FlowKey, Headers};

use crate::cells::{Columns, duration_ns, protocol, rows, time_ns};
use crate::error::{ContentError, LineError, ValueError};
use crate::label::{Classes, Label};

/// How much longer than stated a flow may last, in ns: clock skew and rounding.
pub(crate) const SLACK_NS: i128 = 1_000_000_000;

/// Flows by their direction-independent key.
#[derive(Debug, Default)]
pub(crate) struct FlowLabels {
    flows: HashMap<FlowKey, Vec<Flow>>,
}

#[derive(Debug)]
struct Flow {
    from_ns: i128,
    to_ns: i128,
    label: Label,
    used: bool,
}

/// Places of the columns of CICFlowMeter.
struct CicColumns<'c> {
    all: &'c Columns,
    /// Address and port.
    source: (usize, usize),
    destination: (usize, usize),
    protocol: usize,
    start: usize,
    duration: usize,
    label: usize,
}

impl<'c> CicColumns<'c> {
    /// With old or new names.
    fn of(all: &'c Columns) -> Result<Self, ContentError> {
        Ok(Self {
            all,
            source: (
                all.need(&["source ip", "src ip"])?,
                all.need(&["source port", "src port"])?,
            ),
            destination: (
                all.need(&["destination ip", "dst ip"])?,
                all.need(&["destination port", "dst port"])?,
            ),
            protocol: all.need(&["protocol"])?,
            start: all.need(&["timestamp"])?,
            duration: all.need(&["flow duration"])?,
            label: all.need(&["label"])?,
        })
    }

    /// A row: the key of a flow, its start and its end.
    fn flow(&self, row: &StringRecord, offset_s: i64) -> Result<(FlowKey, i128, i128), LineError> {
        let cell = |column: usize| row.get(column).unwrap_or("");
        let wrong = |column: usize, source: Option<ValueError>| {
            let name = &self.all.names()[column];
            LineError::cell(cell(column), format!("column '{name}'"), source)
        };
        let end = |(address, port): (usize, usize)| -> Result<(IpAddr, u16), LineError> {
            let ip = cell(address).parse::<IpAddr>();
            let ip = ip.map_err(|error| wrong(address, Some(error.into())))?;
            let number = cell(port).parse::<u16>();
            let number = number.map_err(|error| wrong(port, Some(error.into())))?;
            Ok((ip, number))
        };
        let start = time_ns(cell(self.start), offset_s);
        let (from_ns, step) = start.ok_or_else(|| wrong(self.start, None))?;
        let micros = cell(self.duration).parse::<f64>();
        let micros = micros.map_err(|error| wrong(self.duration, Some(error.into())))?;
        let to_ns = from_ns + duration_ns(micros / 1e6) + step;
        let ends = (end(self.source)?, end(self.destination)?);
        let number = protocol(cell(self.protocol));
        let number = number.map_err(|error| wrong(self.protocol, Some(error)))?;
        Ok((key(ends.0, ends.1, number), from_ns, to_ns))
    }
}

impl FlowLabels {
    /// CICFlowMeter's CSV, with old or new column names.
    pub(crate) fn cic(
        text: &str,
        columns: &Columns,
        offset_s: i64,
        classes: &mut Classes,
    ) -> Result<Self, ContentError> {
        let columns = CicColumns::of(columns)?;
        let mut labels = Self::default();
        for row in rows(text) {
            let (line, row) = row?;
            if row.iter().all(str::is_empty) {
                continue;
            }
            let flow = columns.flow(&row, offset_s);
            let (key, from_ns, to_ns) = flow.map_err(|error| error.at(line))?;
            let label = classes.label(row.get(columns.label).unwrap_or(""));
            let label = label.map_err(|error| LineError::from(error).at(line))?;
            labels.add(key, from_ns, to_ns, label);
        }
        Ok(labels)
    }

    /// Zeek's conn.log as tab-separated values, with a column `label`.
    pub(crate) fn zeek_tsv(text: &str, classes: &mut Classes) -> Result<Self, ContentError> {
        let mut names: Vec<&str> = Vec::new();
        let mut labels = Self::default();
        for (line, text) in (1..).zip(text.lines()) {
            if let Some(fields) = text.strip_prefix("#fields") {
                // Labelled logs separate their extra columns with spaces.
                names = fields.split_whitespace().collect();
            }
            if text.starts_with('#') || text.trim().is_empty() {
                continue;
            }
            let cells: Vec<&str> = text
                .split('\t')
                .flat_map(|cell| cell.split("   "))
                .map(str::trim)
                .collect();
            let cell = |name: &str| {
                let column = names.iter().position(|known| *known == name);
                column
                    .and_then(|column| cells.get(column).copied())
                    .unwrap_or("-")
            };
            let added = labels.add_zeek(cell, classes);
            added.map_err(|error| error.at(line))?;
        }
        Ok(labels)
    }

    /// Zeek's conn.log as a JSON object per line, with a member `label`.
    pub(crate) fn zeek_json(text: &str, classes: &mut Classes) -> Result<Self, ContentError> {
        let mut labels = Self::default();
        for (line, text) in (1..).zip(text.lines()) {
            if text.trim().is_empty() {
                continue;
            }
            let added = labels.add_json(text, classes);
            added.map_err(|error| error.at(line))?;
        }
        Ok(labels)
    }

    fn add_json(&mut self, text: &str, classes: &mut Classes) -> Result<(), LineError> {
        let object: Value = serde_json::from_str(text)?;
        let texts = texts_of(&object);
        self.add_zeek(
            |name: &str| texts.get(name).map_or("-", String::as_str),
            classes,
        )
    }

    fn add_zeek<'c>(
        &mut self,
        cell: impl Fn(&str) -> &'c str,
        classes: &mut Classes,
    ) -> Result<(), LineError> {
        let (key, from_ns, to_ns) = zeek_flow(&cell)?;
        let label = match (cell("label"), cell("detailed-label")) {
            (label, "-" | "(empty)" | "" | "null") => classes.label(label)?,
            (_, detailed) => classes.label(detailed)?,
        };
        self.add(key, from_ns, to_ns, label);
        Ok(())
    }

    /// Adds a flow; one without a label was counted when the label was read, and is not kept.
    fn add(&mut self, key: FlowKey, from_ns: i128, to_ns: i128, label: Option<Label>) {
        let Some(label) = label else { return };
        let flow = Flow {
            from_ns,
            to_ns,
            label,
            used: false,
        };
        self.flows.entry(key).or_default().push(flow);
    }

    /// The label of the flow that a packet belongs to: of those with its 5-tuple,
    /// the one whose time is nearest, if it is within the slack.
    pub(crate) fn of(&mut self, ts_ns: u64, headers: &Headers) -> Option<&Label> {
        let key = labelled_key(headers)?;
        let now = i128::from(ts_ns);
        let distance = |flow: &Flow| (flow.from_ns - now).max(now - flow.to_ns).max(0);
        let flows = self.flows.get_mut(&key)?.iter_mut();
        let nearest = flows.min_by_key(|flow| distance(flow))?;
        if distance(nearest) > SLACK_NS {
            return None;
        }
        nearest.used = true;
        Some(&nearest.label)
    }

    /// The number of flows, and of those that match no packet.
    pub(crate) fn unmatched(&self) -> (u64, u64) {
        let all = self.flows.values().flatten();
        all.fold((0, 0), |(all, unmatched), flow| {
            (all + 1, unmatched + u64::from(!flow.used))
        })
    }
}

/// The members of a JSON object as text.
pub(crate) fn texts_of(object: &Value) -> HashMap<&str, String> {
    let members = object.as_object().into_iter().flatten();
    let text = |value: &Value| {
        let text = value.as_str();
        text.map_or_else(|| value.to_string(), str::to_owned)
    };
    members
        .map(|(name, value)| (name.as_str(), text(value)))
        .collect()
}

/// The key of a connection in Zeek's conn.log, its start and its end.
pub(crate) fn zeek_flow<'c>(
    cell: &impl Fn(&str) -> &'c str,
) -> Result<(FlowKey, i128, i128), LineError> {
    let wrong = |name: &str, source: Option<ValueError>| {
        LineError::cell(cell(name), format!("field '{name}'"), source)
    };
    let end = |address: &str, port: &str| -> Result<(IpAddr, u16), LineError> {
        let ip = cell(address).parse::<IpAddr>();
        let ip = ip.map_err(|error| wrong(address, Some(error.into())))?;
        let number = cell(port).parse::<u16>();
        let number = number.map_err(|error| wrong(port, Some(error.into())))?;
        Ok((ip, number))
    };
    let ends = (
        end("id.orig_h", "id.orig_p")?,
        end("id.resp_h", "id.resp_p")?,
    );
    let (from_ns, step) = time_ns(cell("ts"), 0).ok_or_else(|| wrong("ts", None))?;
    // A flow of one packet has no duration.
    let seconds: f64 = match cell("duration") {
        "" | "-" => 0.0,
        text => {
            let seconds = text.parse();
            seconds.map_err(|error: ParseFloatError| wrong("duration", Some(error.into())))?
        }
    };
    let to_ns = from_ns + duration_ns(seconds) + step;
    let proto = protocol(cell("proto")).map_err(|error| wrong("proto", Some(error)))?;
    Ok((key(ends.0, ends.1, proto), from_ns, to_ns))
}

/// The key by which the flow of a packet is found among labels.
pub(crate) fn labelled_key(headers: &Headers) -> Option<FlowKey> {
    let mut key = headers.key?;
    if matches!(key.protocol, 1 | 58) {
        // ICMP types are not ports to the data path.
        (key.low.port, key.high.port) = (0, 0);
    }
    Some(key)
}

/// The key of a flow as the data path has it, where ICMP has no ports.
pub(crate) fn key(source: (IpAddr, u16), destination: (IpAddr, u16), protocol: u8) -> FlowKey {
    let family = match source.0 {
        IpAddr::V4(_) => AddressFamily::Ipv4,
        IpAddr::V6(_) => AddressFamily::Ipv6,
    };
    let has_ports = !matches!(protocol, 1 | 58);
    let end = |(address, port): (IpAddr, u16)| Endpoint {
        address: match address {
            IpAddr::V4(v4) => v4.to_bits().into(),
            IpAddr::V6(v6) => v6.to_bits(),
        },
        port: if has_ports { port } else { 0 },
    };
    FlowKey::new(family, protocol, end(source), end(destination)).0
}

/// An address of a flow's key.
pub(crate) fn address(family: AddressFamily, end: Endpoint) -> IpAddr {
    match family {
        AddressFamily::Ipv4 => {
            let [.., a, b, c, d] = end.address.to_be_bytes();
            Ipv4Addr::new(a, b, c, d).into()
        }
        AddressFamily::Ipv6 | AddressFamily::Mac => Ipv6Addr::from_bits(end.address).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(protocol: u8) -> Headers {
        let end = |text: &str, port| (text.parse().unwrap(), port);
        let key = key(end("10.0.0.2", 80), end("10.0.0.1", 4000), protocol);
        Headers {
            key: Some(key),
            ..Headers::default()
        }
    }

    fn class(labels: &mut FlowLabels, ts_s: u64) -> Option<String> {
        let label = labels.of(ts_s * 1_000_000_000, &headers(6));
        label.map(|label| label.class.clone())
    }

    #[test]
    fn flows_of_cicflowmeter_are_found_by_tuple_and_time() {
        let text = "Flow ID, Source IP, Source Port, Destination IP, Destination Port, Protocol, Timestamp, Flow Duration, Label\n\
                    x,10.0.0.1,4000,10.0.0.2,80,6,03/07/2017 09:00:00,2000000,BENIGN\n\
                    y,10.0.0.1,4000,10.0.0.2,80,6,03/07/2017 09:10:00,2000000,DoS Hulk\n";
        let columns = Columns::of(text.lines().next().unwrap());
        let mut labels =
            FlowLabels::cic(text, &columns, -3 * 3600, &mut Classes::default()).unwrap();
        assert_eq!(class(&mut labels, 1_499_083_201).as_deref(), Some("benign"));
        assert_eq!(
            class(&mut labels, 1_499_083_802).as_deref(),
            Some("dos-hulk")
        );
        assert_eq!(class(&mut labels, 1_499_083_400), None);
    }

    #[test]
    fn connections_of_zeek_are_found_in_both_forms() {
        let tsv = "#separator \\x09\n#fields\tts\tuid\tid.orig_h\tid.orig_p\tid.resp_h\tid.resp_p\tproto\tduration\tlabel   detailed-label\n\
                   100.5\tC1\t10.0.0.1\t4000\t10.0.0.2\t80\ttcp\t3.0\tMalicious   PartOfAHorizontalPortScan\n\
                   900.0\tC2\t10.0.0.1\t4000\t10.0.0.2\t80\ttcp\t-\tBenign   -\n";
        let mut labels = FlowLabels::zeek_tsv(tsv, &mut Classes::default()).unwrap();
        assert_eq!(
            class(&mut labels, 102).as_deref(),
            Some("partofahorizontalportscan")
        );
        assert_eq!(class(&mut labels, 900).as_deref(), Some("benign"));
        assert_eq!(class(&mut labels, 500), None);
        let json = r#"{"ts":100.5,"id.orig_h":"10.0.0.1","id.orig_p":4000,"id.resp_h":"10.0.0.2","id.resp_p":80,"proto":"tcp","duration":3.0,"label":"scan"}"#;
        assert_eq!(
            class(
                &mut FlowLabels::zeek_json(json, &mut Classes::default()).unwrap(),
                101
            )
            .as_deref(),
            Some("scan")
        );
    }

    #[test]
    fn a_flow_without_end_and_one_that_ends_before_it_began() {
        let flow = |duration: &str| {
            let text = format!(
                "{{\"ts\":100,\"id.orig_h\":\"10.0.0.1\",\"id.orig_p\":4000,\"id.resp_h\":\"10.0.0.2\",\
                 \"id.resp_p\":80,\"proto\":\"tcp\",\"duration\":\"{duration}\",\"label\":\"scan\"}}"
            );
            FlowLabels::zeek_json(&text, &mut Classes::default()).unwrap()
        };
        assert_eq!(
            class(&mut flow("inf"), 1_000_000_000).as_deref(),
            Some("scan")
        );
        for duration in ["-50", "-inf", "nan"] {
            let mut flow = flow(duration);
            assert_eq!(class(&mut flow, 100).as_deref(), Some("scan"), "{duration}");
            assert_eq!(class(&mut flow, 60), None, "{duration}");
        }
    }

    #[test]
    fn empty_lines_between_connections_say_nothing() {
        let error =
            FlowLabels::zeek_json("\n\n{\"ts\":1}\n\n", &mut Classes::default()).unwrap_err();
        assert!(error.to_string().starts_with("line 3: "));
        assert!(FlowLabels::zeek_json("\n \n", &mut Classes::default()).is_ok());
    }

    #[test]
    fn a_wrong_line_is_named() {
        let error = FlowLabels::zeek_json("{\"ts\":1}", &mut Classes::default()).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("line 1: '-' in field 'id.orig_h'")
        );
    }
}
