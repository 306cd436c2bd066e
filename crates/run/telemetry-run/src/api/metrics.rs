//! The counters of a telemetry collector in the text format of Prometheus, from its `status.json`.

use std::collections::BTreeMap;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::status::{CollectorStatus, LinkStatus, ProcessStatus, RunStatus, TelemetryStatus};
use strata_control::metrics::{self, Format, as_prometheus};

/// The page of metrics of a collector or a translator. Counters that another version does not report are left out.
#[must_use]
pub fn page(status: &TelemetryStatus, format: Format) -> String {
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
struct Status(TelemetryStatus);

/// One sample: its label, if it has one, and its value.
type Sample<V> = (Option<(&'static str, String)>, V);

/// A metric: its name, its help text, its samples.
struct Metric<V>(&'static str, &'static str, Vec<Sample<V>>);

/// A number, if it is known.
fn one<V>(value: Option<V>) -> Vec<Sample<V>> {
    value.into_iter().map(|value| (None, value)).collect()
}

/// Numbers that are known, each with its label.
fn labelled<V>(
    label: &'static str,
    values: impl IntoIterator<Item = (&'static str, Option<V>)>,
) -> Vec<Sample<V>> {
    let sample = |(name, value): (&str, Option<V>)| Some((Some((label, name.to_owned())), value?));
    values.into_iter().filter_map(sample).collect()
}

/// Numbers by reason.
fn reasons(counts: &BTreeMap<String, u64>) -> Vec<Sample<u64>> {
    let sample = |(reason, &count): (&String, &u64)| (Some(("reason", reason.clone())), count);
    counts.iter().map(sample).collect()
}

/// A number of each collector elsewhere.
fn of_collectors<V>(run: &RunStatus, value: fn(&LinkStatus) -> Option<V>) -> Vec<Sample<V>> {
    let sample = |one: &LinkStatus| {
        let address = one.address.clone()?;
        Some((Some(("collector", address)), value(one)?))
    };
    let collectors = run.collectors.iter().flatten();
    collectors.filter_map(sample).collect()
}

fn events(process: &ProcessStatus) -> Metric<u64> {
    let results = [
        ("pushed", process.events.pushed),
        ("lost", process.events.lost),
    ];
    Metric(
        "events",
        "Immediate reports, by whether they reached the queue of a subscriber",
        labelled("result", results),
    )
}

/// What a translator has counted, of reports.
#[allow(clippy::too_many_lines, reason = "a list")]
fn of_reports(run: &RunStatus) -> Vec<Metric<u64>> {
    let totals = &run.totals;
    let frames = run.af_xdp.as_ref();
    let int = run.int.as_ref();
    let made = run.of_int();
    vec![
        Metric(
            "reports",
            "Reports of reporters, by outcome; see refused_reports and int_reports",
            labelled(
                "result",
                [
                    ("accepted", totals.accepted),
                    ("dropped-by-rate", totals.dropped_by_rate),
                    ("dropped-without-room", totals.dropped_without_room),
                    (
                        "dropped-without-collector",
                        totals.dropped_without_collector,
                    ),
                    ("missing", totals.missing),
                ],
            ),
        ),
        Metric(
            "refused_reports",
            "Reports that were refused",
            reasons(&totals.refused),
        ),
        Metric(
            "datagrams",
            "Datagrams of accepted reporters",
            one(totals.datagrams),
        ),
        Metric(
            "refused_datagrams",
            "Datagrams that were refused whole",
            reasons(&totals.datagrams_refused),
        ),
        Metric(
            "int_datagrams",
            "INT datagrams: received, of these refused, and missing by their sequence numbers",
            labelled(
                "result",
                [
                    ("received", int.and_then(|int| int.datagrams)),
                    ("refused", int.and_then(|int| int.refused)),
                    ("missing", int.and_then(|int| int.missing)),
                ],
            ),
        ),
        Metric(
            "int_reports",
            "Reports made from INT datagrams, by outcome",
            labelled(
                "result",
                [
                    ("accepted", made.and_then(|made| made.accepted)),
                    ("refused", made.map(|made| made.refused.values().sum())),
                    (
                        "dropped-by-rate",
                        made.and_then(|made| made.dropped_by_rate),
                    ),
                    (
                        "dropped-without-room",
                        made.and_then(|made| made.dropped_without_room),
                    ),
                    (
                        "dropped-without-collector",
                        made.and_then(|made| made.dropped_without_collector),
                    ),
                ],
            ),
        ),
        Metric(
            "not_allowed_datagrams",
            "Datagrams of senders that are not on the allow-list",
            one(run.not_allowed),
        ),
        Metric(
            "socket_dropped_datagrams",
            "Datagrams dropped because the socket's buffer was full",
            one(run.socket_drops),
        ),
        Metric(
            "af_xdp_datagrams",
            "Datagrams that bypass the host's network stack, by outcome",
            labelled(
                "result",
                [
                    ("taken", frames.and_then(|frames| frames.datagrams)),
                    ("invalid", frames.and_then(|frames| frames.invalid)),
                    ("dropped", frames.and_then(|frames| frames.dropped)),
                ],
            ),
        ),
        Metric(
            "nacks",
            "Negative acknowledgements sent",
            one(run.nacks_sent),
        ),
        Metric(
            "sequence_jumps",
            "Jumps in the sequence numbers of a reporter or an INT node, too large to be lost datagrams",
            labelled(
                "protocol",
                [
                    ("dta", totals.jumps),
                    ("int", int.and_then(|int| int.jumps)),
                ],
            ),
        ),
        Metric(
            "failed_datagrams",
            "Datagrams dropped because of a bug in this program",
            one(run.failed),
        ),
        events(&run.process),
    ]
}

/// What a translator has counted, of operations.
fn of_operations(run: &RunStatus) -> Vec<Metric<u64>> {
    let int = run.int.as_ref();
    let postcarding = run.postcarding.as_ref();
    vec![
        Metric(
            "summed_packets",
            "Packets whose latencies were summed for watches",
            one(int.and_then(|int| int.summed)),
        ),
        Metric(
            "sums",
            "Sums by watch: above its threshold, or undecided because a hop's \
             latency is not known",
            labelled(
                "result",
                [
                    ("above", int.and_then(|int| int.above)),
                    ("undecided", int.and_then(|int| int.undecided)),
                ],
            ),
        ),
        Metric(
            "operations",
            "Writes and additions, by part of the memory",
            labelled(
                "store",
                [
                    ("key-write", run.key_write.writes),
                    ("postcarding", postcarding.and_then(|paths| paths.writes)),
                    ("append", run.append.as_ref().and_then(|lists| lists.writes)),
                    ("key-increment", run.key_increment.additions),
                ],
            ),
        ),
    ]
}

/// What a translator counts of its collectors.
fn at_collectors(run: &RunStatus) -> Vec<Metric<u64>> {
    vec![
        Metric(
            "confirmed_reports",
            "Reports that a collector on another machine has acknowledged",
            of_collectors(run, |link| link.confirmed),
        ),
        Metric(
            "lost_reports",
            "Accepted reports lost with a connection to a collector",
            of_collectors(run, |link| link.lost),
        ),
        Metric(
            "collector_connections",
            "Connections to a collector on another machine",
            of_collectors(run, |link| link.connections),
        ),
        Metric(
            "rdma_packets",
            "RDMA packets to a collector on another machine",
            of_collectors(run, |link| link.packets),
        ),
        Metric(
            "rdma_packets_resent",
            "RDMA packets that were sent again",
            of_collectors(run, |link| link.packets_resent),
        ),
    ]
}

/// What a collector whose translator is elsewhere has counted.
fn requests(collector: &CollectorStatus) -> Vec<Metric<u64>> {
    let requests = &collector.requests;
    vec![
        Metric(
            "rdma_requests",
            "RDMA requests of a translator, by outcome",
            labelled(
                "result",
                [
                    ("executed", requests.executed),
                    ("repeated", requests.duplicates),
                    ("out-of-order", requests.out_of_order),
                    ("refused", requests.refused),
                    ("bad", requests.bad_packets),
                ],
            ),
        ),
        Metric(
            "rdma_written_bytes",
            "Bytes written by a translator",
            one(requests.bytes),
        ),
        Metric(
            "translator_connections",
            "Connections of translators",
            one(collector.connections),
        ),
        Metric(
            "refused_connections",
            "Connections of others, and of translators that were refused",
            one(collector.connections_refused),
        ),
    ]
}

/// Shares of the sampled values: that can be read, and that the formula expects.
#[allow(clippy::cast_precision_loss, reason = "a share need not be exact")]
fn shares(run: &RunStatus) -> Vec<Sample<f64>> {
    let values = &run.key_write;
    let real = |count: Option<u64>| count.map(|count| count as f64);
    let Some(sampled) = real(values.sampled).filter(|&sampled| sampled > 0.0) else {
        return Vec::new();
    };
    let share = |count: Option<f64>| count.map(|count| count / sampled);
    let shares = [
        ("measured", share(real(values.answered))),
        ("formula", share(values.answers_expected)),
    ];
    labelled("by", shares)
}

fn gauges_of_run(run: &RunStatus) -> Vec<Metric<f64>> {
    let postcarding = run.postcarding.as_ref();
    vec![
        Metric(
            "load",
            "Operations for each slot, chunk or counter since the start, or since the \
             youngest generation began",
            labelled(
                "store",
                [
                    ("key-write", run.key_write.load),
                    ("postcarding", postcarding.and_then(|paths| paths.load)),
                    ("key-increment", run.key_increment.load),
                ],
            ),
        ),
        Metric(
            "answered_ratio",
            "Share of the values written since the start, or since the youngest generation began, \
             that can be queried: of a sample, and by the formula",
            shares(run),
        ),
        Metric(
            "collector_connected",
            "Whether a collector on another machine is connected",
            of_collectors(run, |link| link.connected.map(|is| f64::from(u8::from(is)))),
        ),
    ]
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a time need not be exact to the ns"
)]
fn updated(process: &ProcessStatus) -> Metric<f64> {
    Metric(
        "updated_seconds",
        "Time of these counts, since 1970",
        one(process.updated_ns.map(|ns| ns as f64 / 1e9)),
    )
}

fn family<V, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    Metric(name, help, samples): Metric<V>,
    metric: fn(V) -> M,
) -> std::fmt::Result {
    let samples = samples.into_iter();
    let samples = samples.map(|(label, value)| (label.into_iter().collect(), value));
    metrics::family(encoder, (name, help), samples.collect(), metric)
}

impl Collector for Status {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let (counters, mut gauges) = match &self.0 {
            TelemetryStatus::Run(run) => {
                let mut counters = of_reports(run);
                counters.extend(of_operations(run));
                counters.extend(at_collectors(run));
                (counters, gauges_of_run(run))
            }
            TelemetryStatus::Collector(collector) => {
                let mut counters = vec![events(&collector.process)];
                counters.extend(requests(collector));
                (counters, Vec::new())
            }
        };
        gauges.push(updated(self.0.process()));
        for metric in counters {
            family(&mut encoder, metric, ConstCounter::new)?;
        }
        for metric in gauges {
            family(&mut encoder, metric, ConstGauge::new)?;
        }
        Ok(())
    }
}
