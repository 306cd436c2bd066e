//! Labels by flow: CICFlowMeter's CSV and Zeek's conn.log, matched by 5-tuple and
//! time.

use std::collections::HashMap;
use std::net::IpAddr;

use anyhow::{Context, Result};
use serde_json::Value;
use strata_wire::{AddressFamily, Endpoint, FlowKey, Headers};

use super::rules::protocol;
use super::{Columns, Label, duration_ns, rows, time_ns};

/// How much longer than stated a flow may last, in ns: clock skew and rounding.
pub(crate) const SLACK_NS: i128 = 1_000_000_000;

/// Flows by their direction-independent key.
#[derive(Debug, Default)]
pub(super) struct FlowLabels {
    flows: HashMap<FlowKey, Vec<Flow>>,
}

#[derive(Debug)]
struct Flow {
    from_ns: i128,
    to_ns: i128,
    label: Label,
    used: bool,
}

impl FlowLabels {
    /// CICFlowMeter's CSV, with old or new column names.
    pub(super) fn cic(text: &str, columns: &Columns, offset_s: i64) -> Result<Self> {
        let ends = [
            (
                columns.need(&["source ip", "src ip"])?,
                columns.need(&["source port", "src port"])?,
            ),
            (
                columns.need(&["destination ip", "dst ip"])?,
                columns.need(&["destination port", "dst port"])?,
            ),
        ];
        let proto = columns.need(&["protocol"])?;
        let start = columns.need(&["timestamp"])?;
        let duration = columns.need(&["flow duration"])?;
        let label = columns.need(&["label"])?;
        let mut labels = Self::default();
        for row in rows(text) {
            let (line, row) = row?;
            let cell = |column: usize| row.get(column).unwrap_or("");
            let wrong = |column: usize| {
                format!(
                    "line {line}: '{}' in column '{}'",
                    cell(column),
                    columns.0[column]
                )
            };
            if row.iter().all(str::is_empty) {
                continue;
            }
            let end = |(address, port): (usize, usize)| -> Result<_> {
                let ip: IpAddr = cell(address).parse().with_context(|| wrong(address))?;
                Ok((ip, cell(port).parse::<u16>().with_context(|| wrong(port))?))
            };
            let (from_ns, step) = time_ns(cell(start), offset_s).with_context(|| wrong(start))?;
            let micros: f64 = cell(duration).parse().with_context(|| wrong(duration))?;
            let to_ns = from_ns + duration_ns(micros / 1e6) + step;
            let key = key(
                end(ends[0])?,
                end(ends[1])?,
                protocol(cell(proto)).with_context(|| wrong(proto))?,
            );
            labels.add(key, from_ns, to_ns, Label::new(cell(label)));
        }
        Ok(labels)
    }

    /// Zeek's conn.log as tab-separated values, with a column `label`.
    pub(super) fn zeek_tsv(text: &str) -> Result<Self> {
        let mut names: Vec<&str> = Vec::new();
        let mut labels = Self::default();
        for (line, text) in text.lines().enumerate() {
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
            labels
                .add_zeek(cell)
                .with_context(|| format!("line {}", line + 1))?;
        }
        Ok(labels)
    }

    /// Zeek's conn.log as a JSON object per line, with a member `label`.
    pub(super) fn zeek_json(text: &str) -> Result<Self> {
        let mut labels = Self::default();
        for (line, text) in text.lines().enumerate() {
            if text.trim().is_empty() {
                continue;
            }
            let named = || format!("line {}", line + 1);
            let object: Value = serde_json::from_str(text).with_context(named)?;
            let texts = texts_of(&object);
            let cell = |name: &str| texts.get(name).map_or("-", String::as_str);
            labels.add_zeek(cell).with_context(named)?;
        }
        Ok(labels)
    }

    fn add_zeek<'c>(&mut self, cell: impl Fn(&str) -> &'c str) -> Result<()> {
        let (key, from_ns, to_ns) = zeek_flow(&cell)?;
        let label = match (cell("label"), cell("detailed-label")) {
            ("-" | "(empty)", _) => return Ok(()),
            (label, "-" | "(empty)") => Label::new(label),
            (_, detailed) => Label::new(detailed),
        };
        self.add(key, from_ns, to_ns, label);
        Ok(())
    }

    fn add(&mut self, key: FlowKey, from_ns: i128, to_ns: i128, label: Label) {
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
    pub(super) fn of(&mut self, ts_ns: u64, headers: &Headers) -> Option<&Label> {
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
    pub(super) fn unmatched(&self) -> (u64, u64) {
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
pub(crate) fn zeek_flow<'c>(cell: &impl Fn(&str) -> &'c str) -> Result<(FlowKey, i128, i128)> {
    let wrong = |name: &str| format!("'{}' in field '{name}'", cell(name));
    let end = |address: &str, port: &str| -> Result<_> {
        let ip: IpAddr = cell(address).parse().with_context(|| wrong(address))?;
        Ok((ip, cell(port).parse::<u16>().with_context(|| wrong(port))?))
    };
    let ends = (
        end("id.orig_h", "id.orig_p")?,
        end("id.resp_h", "id.resp_p")?,
    );
    let (from_ns, step) = time_ns(cell("ts"), 0).with_context(|| wrong("ts"))?;
    // A flow of one packet has no duration.
    let seconds: f64 = match cell("duration") {
        "" | "-" => 0.0,
        text => text.parse().with_context(|| wrong("duration"))?,
    };
    let to_ns = from_ns + duration_ns(seconds) + step;
    let proto = protocol(cell("proto")).with_context(|| wrong("proto"))?;
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
pub(super) fn key(source: (IpAddr, u16), destination: (IpAddr, u16), protocol: u8) -> FlowKey {
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
        let mut labels = FlowLabels::cic(text, &columns, -3 * 3600).unwrap();
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
        let mut labels = FlowLabels::zeek_tsv(tsv).unwrap();
        assert_eq!(
            class(&mut labels, 102).as_deref(),
            Some("partofahorizontalportscan")
        );
        assert_eq!(class(&mut labels, 900).as_deref(), Some("benign"));
        assert_eq!(class(&mut labels, 500), None);
        let json = r#"{"ts":100.5,"id.orig_h":"10.0.0.1","id.orig_p":4000,"id.resp_h":"10.0.0.2","id.resp_p":80,"proto":"tcp","duration":3.0,"label":"scan"}"#;
        assert_eq!(
            class(&mut FlowLabels::zeek_json(json).unwrap(), 101).as_deref(),
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
            FlowLabels::zeek_json(&text).unwrap()
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
        let error = FlowLabels::zeek_json("\n\n{\"ts\":1}\n\n").unwrap_err();
        assert!(format!("{error:#}").starts_with("line 3: "));
        assert!(FlowLabels::zeek_json("\n \n").is_ok());
    }

    #[test]
    fn a_wrong_line_is_named() {
        let error = FlowLabels::zeek_json("{\"ts\":1}").unwrap_err();
        assert!(format!("{error:#}").starts_with("line 1: '-' in field 'id.orig_h'"));
    }
}
