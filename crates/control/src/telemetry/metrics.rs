//! The counters of a telemetry collector in the text format of Prometheus, from its `status.json`.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde_json::Value;

use crate::metrics::{Format, as_prometheus};

/// The page of what a collector or a translator has counted. What another version does not say is
/// left out.
#[must_use]
pub fn page(status: &Value, format: Format) -> String {
    let mut registry = Registry::with_prefix("strata_telemetry");
    registry.register_collector(Box::new(Status(status.clone())));
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut page, &registry);
    match format {
        Format::OpenMetrics => page,
        Format::Prometheus => as_prometheus(&page),
    }
}

#[derive(Debug)]
struct Status(Value);

/// One sample: its label, if it has one, and its value.
type Sample<V> = (Option<(&'static str, String)>, V);

impl Status {
    /// The number at a place such as `/totals/reports`; a collector of another version may not say.
    fn number(&self, place: &str) -> Option<u64> {
        self.0.pointer(place)?.as_u64()
    }

    fn real(&self, place: &str) -> Option<f64> {
        self.0.pointer(place)?.as_f64()
    }

    /// Numbers of several places, each with its label.
    fn labelled(&self, label: &'static str, places: &[(&str, &str)]) -> Vec<Sample<u64>> {
        let sample = |(name, place): &(&str, &str)| {
            Some((Some((label, (*name).to_owned())), self.number(place)?))
        };
        places.iter().filter_map(sample).collect()
    }

    /// Numbers by reason.
    fn reasons(&self, place: &str) -> Vec<Sample<u64>> {
        let reasons = self.0.pointer(place).and_then(Value::as_object);
        let sample = |(reason, count): (&String, &Value)| {
            Some((Some(("reason", reason.clone())), count.as_u64()?))
        };
        reasons.into_iter().flatten().filter_map(sample).collect()
    }

    fn one(&self, place: &str) -> Vec<Sample<u64>> {
        let value = self.number(place);
        value.into_iter().map(|value| (None, value)).collect()
    }

    /// A number of each collector elsewhere.
    fn of_collectors(&self, field: &str) -> Vec<Sample<u64>> {
        let collectors = self.0.pointer("/collectors").and_then(Value::as_array);
        let sample = |one: &Value| {
            let address = one["address"].as_str()?.to_owned();
            let value = &one[field];
            let value = value.as_u64().or_else(|| value.as_bool().map(u64::from))?;
            Some((Some(("collector", address)), value))
        };
        collectors
            .into_iter()
            .flatten()
            .filter_map(sample)
            .collect()
    }

    /// What a translator counts of its collectors.
    fn at_collectors(&self) -> Vec<Metric<u64>> {
        vec![
            (
                (
                    "confirmed_reports",
                    "Reports that a collector elsewhere has acknowledged",
                ),
                self.of_collectors("confirmed"),
            ),
            (
                (
                    "lost_reports",
                    "Accepted reports whose connection to a collector was lost",
                ),
                self.of_collectors("lost"),
            ),
            (
                (
                    "collector_connections",
                    "Connections to a collector elsewhere",
                ),
                self.of_collectors("connections"),
            ),
            (
                ("rdma_packets", "RDMA packets to a collector elsewhere"),
                self.of_collectors("packets"),
            ),
            (
                ("rdma_packets_resent", "RDMA packets that were sent again"),
                self.of_collectors("packets_resent"),
            ),
        ]
    }

    /// What a collector whose translator is elsewhere has counted.
    fn requests(&self) -> Vec<Metric<u64>> {
        let results = [
            ("executed", "/requests/executed"),
            ("repeated", "/requests/duplicates"),
            ("out-of-order", "/requests/out_of_order"),
            ("refused", "/requests/refused"),
            ("bad", "/requests/bad_packets"),
        ];
        vec![
            (
                (
                    "rdma_requests",
                    "RDMA requests of a translator, by what became of them",
                ),
                self.labelled("result", &results),
            ),
            (
                ("rdma_written_bytes", "Bytes written by a translator"),
                self.one("/requests/bytes"),
            ),
            (
                ("translator_connections", "Connections of translators"),
                self.one("/connections"),
            ),
            (
                (
                    "refused_connections",
                    "Connections of others, and of translators that were refused",
                ),
                self.one("/connections_refused"),
            ),
        ]
    }

    fn loads(&self) -> Vec<Sample<f64>> {
        let stores = ["key_write", "postcarding", "key_increment"];
        let sample = |store: &str| {
            let load = self.real(&format!("/{store}/load"))?;
            Some((Some(("store", store.replace('_', "-"))), load))
        };
        stores.into_iter().filter_map(sample).collect()
    }

    /// Shares of the sampled values: that can be asked for, and that the formula expects.
    fn shares(&self) -> Vec<Sample<f64>> {
        let sampled = self.real("/key_write/sampled");
        let Some(sampled) = sampled.filter(|&sampled| sampled > 0.0) else {
            return Vec::new();
        };
        let places = [("measured", "answered"), ("formula", "answers_expected")];
        let sample = |(by, field): (&str, &str)| {
            let count = self.real(&format!("/key_write/{field}"))?;
            Some((Some(("by", by.to_owned())), count / sampled))
        };
        places.into_iter().filter_map(sample).collect()
    }

    fn connected(&self) -> Vec<Sample<f64>> {
        let is = |(label, value)| (label, if value == 1 { 1.0 } else { 0.0 });
        self.of_collectors("connected")
            .into_iter()
            .map(is)
            .collect()
    }

    fn times(&self) -> Vec<Sample<f64>> {
        let updated = self.real("/updated_ns").map(|ns| (None, ns / 1e9));
        updated.into_iter().collect()
    }
}

fn family<V, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    samples: Vec<Sample<V>>,
    metric: fn(V) -> M,
) -> std::fmt::Result {
    let mut samples = samples
        .into_iter()
        .map(|(label, value)| (label, metric(value)))
        .peekable();
    let Some((_, first)) = samples.peek() else {
        return Ok(());
    };
    let mut family = encoder.encode_descriptor(name, help, None, first.metric_type())?;
    for (label, metric) in samples {
        let labels: Vec<_> = label.into_iter().collect();
        metric.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// What became of reports, and where it is in the status.
const REPORTS: [(&str, &str); 5] = [
    ("accepted", "/totals/accepted"),
    ("dropped-by-rate", "/totals/dropped_by_rate"),
    ("dropped-without-room", "/totals/dropped_without_room"),
    (
        "dropped-without-collector",
        "/totals/dropped_without_collector",
    ),
    ("missing", "/totals/missing"),
];
/// Parts of the memory, and where the operations on them are in the status.
const OPERATIONS: [(&str, &str); 4] = [
    ("key-write", "/key_write/writes"),
    ("postcarding", "/postcarding/writes"),
    ("append", "/append/writes"),
    ("key-increment", "/key_increment/additions"),
];

/// A metric: its name, its help text, its samples.
type Metric<V> = ((&'static str, &'static str), Vec<Sample<V>>);

impl Status {
    fn counters(&self) -> Vec<Metric<u64>> {
        vec![
            (
                (
                    "reports",
                    "Reports by what became of them; see refused_reports",
                ),
                self.labelled("result", &REPORTS),
            ),
            (
                ("refused_reports", "Reports that were refused"),
                self.reasons("/totals/refused"),
            ),
            (
                ("datagrams", "Datagrams of reporters that are listened to"),
                self.one("/totals/datagrams"),
            ),
            (
                ("refused_datagrams", "Datagrams that were refused whole"),
                self.reasons("/totals/datagrams_refused"),
            ),
            (
                (
                    "not_allowed_datagrams",
                    "Datagrams of senders that are not on the allow-list",
                ),
                self.one("/not_allowed"),
            ),
            (
                (
                    "socket_dropped_datagrams",
                    "Datagrams that found the socket's buffer full",
                ),
                self.one("/socket_drops"),
            ),
            self.past_the_host(),
            (
                ("nacks", "Negative acknowledgements sent"),
                self.one("/nacks_sent"),
            ),
            (
                (
                    "sequence_jumps",
                    "How often the numbers of a reporter or of a node of INT went on elsewhere, further \
                     than datagrams are lost",
                ),
                self.labelled(
                    "protocol",
                    &[("dta", "/totals/jumps"), ("int", "/int/jumps")],
                ),
            ),
            (
                (
                    "failed_datagrams",
                    "Datagrams that were not taken because of a fault of this program",
                ),
                self.one("/failed"),
            ),
            (
                (
                    "events",
                    "Immediate reports, by whether they reached the queue of a subscriber",
                ),
                self.labelled(
                    "result",
                    &[("pushed", "/events/pushed"), ("lost", "/events/lost")],
                ),
            ),
            (
                (
                    "summed_packets",
                    "Packets whose latencies were summed for queries known ahead",
                ),
                self.one("/int/summed"),
            ),
            (
                (
                    "sums",
                    "Sums by query known ahead: above its threshold, or undecided since a hop's \
                     latency is not known",
                ),
                self.labelled(
                    "result",
                    &[("above", "/int/above"), ("undecided", "/int/undecided")],
                ),
            ),
            (
                (
                    "operations",
                    "Writes and additions, by the part of the memory",
                ),
                self.labelled("store", &OPERATIONS),
            ),
        ]
    }

    /// Datagrams by AF_XDP.
    fn past_the_host(&self) -> Metric<u64> {
        let results = [
            ("taken", "/af_xdp/datagrams"),
            ("invalid", "/af_xdp/invalid"),
            ("dropped", "/af_xdp/dropped"),
        ];
        let help = "Datagrams past the host's network stack, by what became of them";
        let samples = self.labelled("result", &results);
        (("af_xdp_datagrams", help), samples)
    }

    fn gauges(&self) -> Vec<Metric<f64>> {
        vec![
            (
                (
                    "load",
                    "Operations for each slot, chunk or counter since the start, or since the \
                     youngest generation began",
                ),
                self.loads(),
            ),
            (
                (
                    "answered_ratio",
                    "Share of the values written since the start, or since the youngest generation \
                     began, that can be asked for: of a sample, and by the formula",
                ),
                self.shares(),
            ),
            (
                (
                    "collector_connected",
                    "Whether a collector elsewhere is connected",
                ),
                self.connected(),
            ),
            (
                (
                    "updated_seconds",
                    "When the collector counted this, since 1970",
                ),
                self.times(),
            ),
        ]
    }
}

impl Collector for Status {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let all = [self.counters(), self.at_collectors(), self.requests()];
        for (named, samples) in all.into_iter().flatten() {
            family(&mut encoder, named, samples, ConstCounter::new)?;
        }
        for (named, samples) in self.gauges() {
            family(&mut encoder, named, samples, ConstGauge::new)?;
        }
        Ok(())
    }
}
