//! Entries of lists as people read them.

use serde_json::Value;

/// An entry in one line.
pub(super) fn line(entry: &Value) -> String {
    if let Some(bytes) = entry["bytes"].as_str() {
        return bytes.to_owned();
    }
    let word = |value: &Value| match value {
        Value::Null => "?".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let what = word(&entry["what"]);
    let value = word(&entry["value"]);
    if let Some(flow) = entry["flow"].as_str() {
        let unit = match &*what {
            "anomalous" => "class",
            "slow" => "latency",
            _ => "bytes",
        };
        let least = match entry["at_least"].as_bool() {
            Some(true) => "at least ",
            _ => "",
        };
        return format!("{what} {flow} {unit} {least}{value}");
    }
    let [node, port, queue, time] =
        ["node", "port", "queue", "time"].map(|field| word(&entry[field]));
    format!("{what} node {node} port {port} queue {queue} value {value} time {time}")
}

#[cfg(test)]
mod tests {
    use strata_dta::flow_event::{FlowEvent, FlowEventKind};
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
    }
}
