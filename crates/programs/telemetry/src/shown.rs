//! Entries of lists as people read them.

use std::fmt::Display;

use strata_dta::key::NodeId;
use strata_telemetry_run::api::status::TelemetryEntry;

/// An entry in one line.
pub(super) fn line(entry: &TelemetryEntry) -> String {
    fn word(value: Option<impl Display>) -> String {
        value.map_or_else(|| "?".to_owned(), |value| value.to_string())
    }
    match entry {
        TelemetryEntry::Bytes { bytes } => bytes.clone(),
        TelemetryEntry::Flow {
            at_least,
            flow,
            value,
            what,
        } => {
            let unit = match *what {
                "anomalous" => "class",
                "slow" => "latency",
                _ => "bytes",
            };
            let least = match at_least {
                Some(true) => "at least ",
                _ => "",
            };
            format!("{what} {flow} {unit} {least}{value}")
        }
        TelemetryEntry::Node {
            node,
            port,
            queue,
            time,
            value,
            what,
            flow,
        } => {
            let flow = flow.as_ref();
            format!(
                "{what} node {} port {} queue {} value {} time {}{}",
                NodeId(*node),
                word(*port),
                word(*queue),
                word(*value),
                word(*time),
                flow.map_or_else(String::new, |flow| format!(" flow {flow}")),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use strata_dta::event::flow::{FlowEvent, FlowEventKind};
    use strata_telemetry_run::EntryKind;
    use strata_telemetry_run::shown::entry;

    use super::*;

    #[test]
    fn entries_are_shown_by_what_they_are_and_short_ones_as_bytes() {
        let event = [
            0, 0, 0, 7, 0, 0, 0, 4, 1, 2, 0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff,
        ];
        let shown = line(&entry(EntryKind::NodeEvent, &event));
        assert_eq!(shown, "congested node 7 port 4 queue 1 value 256 time ?");
        assert_eq!(
            line(&entry(EntryKind::NodeEvent, &event[..4])),
            "0x00000007"
        );
        for (kind, text) in [
            (
                FlowEventKind::Gap,
                "gap 10.0.0.1:1024 > 10.0.0.2:80 tcp bytes 1448",
            ),
            (
                FlowEventKind::Slow,
                "slow 10.0.0.1:1024 > 10.0.0.2:80 tcp latency 1448",
            ),
            (
                FlowEventKind::SlowAtLeast,
                "slow 10.0.0.1:1024 > 10.0.0.2:80 tcp latency at least 1448",
            ),
        ] {
            let mut bytes = Vec::new();
            let flow = FlowEvent {
                kind,
                value: 1448,
                flow: "10.0.0.1:1024 > 10.0.0.2:80 tcp".parse().unwrap(),
            };
            flow.emit(&mut bytes);
            assert_eq!(line(&entry(EntryKind::FlowEvent, &bytes)), text);
        }
        // From a host that has no address yet.
        let mut bytes = Vec::new();
        let text = "0.0.0.0:68 > 255.255.255.255:67 udp";
        let flow = FlowEvent {
            kind: FlowEventKind::Anomalous,
            value: 1,
            flow: text.parse().unwrap(),
        };
        flow.emit(&mut bytes);
        bytes.resize(56, 0);
        let shown = line(&entry(EntryKind::FlowEvent, &bytes));
        assert_eq!(shown, format!("anomalous {text} class 1"));
    }
}
