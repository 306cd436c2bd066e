//! Prometheus metrics of a recording.

mod collector;
mod samples;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::controller::Controller;

use collector::Collected;
pub use collector::collector_text;
pub use samples::Sample;
use samples::{
    Moment, amount, classes, compaction, cpu, detail, drift, eve_flows, eve_lines, exports,
    flow_table, flows, hits, interfaces, kinds, label, lost, maybe, mode, one, real, receive,
    reports, resources, results, shadow,
};

/// Maximum number of samples of one metric, which keeps the page small in any case: further classes, interfaces and
/// policies are left to the API.
const SAMPLES_MAX: usize = 1000;

/// The form of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The text format of Prometheus, version 0.0.4.
    Prometheus,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The format that a request's header `Accept` asks for: Prometheus unless OpenMetrics is named
    /// with no lower preference (RFC 9110, section 12.5.1).
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        let (mut text, mut open) = (0.0_f64, 0.0_f64);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or("");
            let quality = parts.find_map(|part| part.strip_prefix("q="));
            let quality = quality.map_or(Some(1.0), |q| q.parse().ok()).unwrap_or(0.0);
            match kind {
                "application/openmetrics-text" => open = open.max(quality),
                "text/plain" => text = text.max(quality),
                _ => {}
            }
        }
        if open > 0.0 && open >= text {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// The media type.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The metrics.
#[must_use]
pub fn text(controller: &Controller, format: Format) -> String {
    let page = open_metrics(controller);
    match format {
        Format::OpenMetrics => page,
        Format::Prometheus => as_prometheus(&page),
    }
}

/// An OpenMetrics page in the format of Prometheus, where a counter has the name of its samples and
/// there is no end marker.
#[must_use]
pub fn as_prometheus(page: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in page.lines() {
        let counter = line.strip_suffix(" counter");
        let counter = counter.and_then(|line| line.strip_prefix("# TYPE "));
        if let Some(name) = counter {
            // The HELP line comes before the TYPE line.
            let help = format!("# HELP {name} ");
            if let Some(last) = lines.last_mut()
                && let Some(text) = last.strip_prefix(&help)
            {
                *last = format!("# HELP {name}_total {text}");
            }
            lines.push(format!("# TYPE {name}_total counter"));
        } else if line != "# EOF" {
            lines.push(line.to_owned());
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

fn open_metrics(controller: &Controller) -> String {
    let mut policies = controller.policies();
    policies.sort_by_key(|policy| policy.id);
    let mut registry = Registry::with_prefix("strata");
    let status = controller.status();
    let collector = status.collector.clone();
    registry.register_collector(Box::new(Moment { status, policies }));
    if let Some(status) = collector {
        registry.register_collector(Box::new(Collected(status)));
    }
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut page, &registry);
    page
}

/// A metric; its name ends with its unit, if it has one.
struct Metric {
    name: &'static str,
    help: &'static str,
    samples: Samples,
}

/// The type of a metric, and its samples at a given moment.
enum Samples {
    /// Only increases.
    Counter(fn(&Moment) -> Vec<Sample<u64>>),
    /// Only increases, and is not an integer.
    Sum(fn(&Moment) -> Vec<Sample<f64>>),
    Gauge(fn(&Moment) -> Vec<Sample<f64>>),
}

use Samples::{Counter, Gauge, Sum};

const fn metric(name: &'static str, help: &'static str, samples: Samples) -> Metric {
    Metric {
        name,
        help,
        samples,
    }
}

/// All metrics, in page order.
const METRICS: [Metric; 50] = [
    metric(
        "packets",
        "Packets by outcome",
        Counter(|moment| results(moment, |ended| ended.packets)),
    ),
    metric(
        "bytes",
        "Bytes by outcome: on the wire, or kept for logged",
        Counter(|moment| results(moment, |ended| ended.bytes)),
    ),
    metric(
        "class_packets",
        "Packets by class and granularity",
        Counter(|moment| classes(moment, |class| class.packets)),
    ),
    metric(
        "class_captured_bytes",
        "Bytes on the wire by class and granularity",
        Counter(|moment| classes(moment, |class| class.captured_bytes)),
    ),
    metric(
        "class_kept_bytes",
        "Bytes kept by class and granularity",
        Counter(|moment| classes(moment, |class| class.kept_bytes)),
    ),
    metric(
        "interface_received_packets",
        "Packets that the kernel delivered",
        Counter(|moment| interfaces(moment, |interface| interface.received)),
    ),
    metric(
        "interface_dropped_packets",
        "Packets that the kernel dropped",
        Counter(|moment| interfaces(moment, |interface| interface.dropped)),
    ),
    metric(
        "of_logged_packets",
        "Logged packets: wanted whole but cut by the kernel; promoted to whole later; first bytes \
         kept instead of headers that could not be parsed",
        Counter(|moment| kinds("kind", &moment.status.of_logged)),
    ),
    metric(
        "uncompared_packets",
        "Packets that may have been captured before, but could not be compared (--dedup)",
        Counter(|moment| one(moment.status.uncompared_packets)),
    ),
    metric(
        "mirrored_packets",
        "Copies of packets that policies send on, by outcome",
        Counter(|moment| kinds("result", &moment.status.mirrored)),
    ),
    metric(
        "telemetry_reports",
        "Reports to a telemetry collector, by outcome",
        Counter(reports),
    ),
    metric(
        "flow_records",
        "Flow records for a flow collector, one for each direction",
        Counter(|moment| {
            flows(moment, |flows| {
                vec![("made", flows.records), ("unfit", flows.unfit)]
            })
        }),
    ),
    metric(
        "flow_datagrams",
        "Datagrams with flow records, and those known not to be delivered",
        Counter(|moment| {
            flows(moment, |flows| {
                vec![
                    ("made", flows.datagrams),
                    ("undelivered", flows.undelivered),
                ]
            })
        }),
    ),
    metric(
        "flow_packets_lost",
        "Packets in no flow record, because they arrived faster than they could be assigned to flows",
        Counter(|moment| flows(moment, |flows| vec![("lost", flows.lost)])),
    ),
    metric(
        "exported_packets",
        "Packets that policies export, by destination and outcome",
        Counter(|moment| {
            exports(moment, |to| {
                vec![
                    ("taken", to.packets),
                    ("lost", to.lost),
                    ("unfit", to.unfit),
                    ("cut", to.cut),
                ]
            })
        }),
    ),
    metric(
        "export_datagrams",
        "Datagrams of exported packets, by destination and outcome",
        Counter(|moment| {
            exports(moment, |to| {
                vec![
                    ("sent", to.datagrams),
                    ("not-sent", to.not_sent),
                    ("announcements", to.announcements),
                ]
            })
        }),
    ),
    metric(
        "flow_table_packets",
        "Packets counted in the flow tables",
        Counter(|moment| flow_table(moment, |table| table.packets)),
    ),
    metric(
        "flow_table_packets_without_entry",
        "Packets whose flow found no entry in a flow table: classified by their own headers alone",
        Counter(|moment| flow_table(moment, |table| table.packets_without_entry)),
    ),
    metric(
        "flow_table_growths_refused",
        "Failed attempts to enlarge a flow table, because the system had no memory",
        Counter(|moment| flow_table(moment, |table| table.growths_refused)),
    ),
    metric(
        "lost_before_packets",
        "Packets lost before Strata: kernel, softnet, device",
        Counter(lost),
    ),
    metric(
        "policy_packets",
        "Packets that a policy was applied to",
        Counter(|moment| hits(moment, |policy| policy.packets)),
    ),
    metric(
        "policy_bytes",
        "Bytes that a policy was applied to",
        Counter(|moment| hits(moment, |policy| policy.bytes)),
    ),
    metric(
        "plan_changes",
        "Changes of modes and policies that workers picked up",
        Counter(|moment| one(moment.status.changes.count)),
    ),
    metric(
        "plan_change_delay_seconds",
        "Sum of the delays from a request or a reading to the switch of a worker",
        Sum(|moment| one(moment.status.changes.seconds_sum)),
    ),
    metric(
        "policies",
        "Policies in force",
        Gauge(|moment| one(real(moment.status.policies))),
    ),
    metric(
        "plan_change_delay_p99_seconds",
        "99th percentile of the latest delays from a request or a reading to the switch of a worker",
        Gauge(|moment| maybe(moment.status.changes.p99_ms.map(|ms| ms / 1e3))),
    ),
    metric(
        "flow_table_bytes",
        "Memory of the flow tables",
        Gauge(|moment| flow_table(moment, |table| amount(table.bytes))),
    ),
    metric("mode", "1 for the mode in force", Gauge(mode)),
    metric(
        "eve_lines",
        "Lines read from --eve, by content",
        Counter(eve_lines),
    ),
    metric(
        "eve_flows",
        "Flows with an alert from --eve: all, and those with packets seen here",
        Counter(eve_flows),
    ),
    metric(
        "uncompacted_files",
        "Complete block files of the log that are not compacted",
        Gauge(|moment| compaction(moment, |lag| Some(amount(lag.files)))),
    ),
    metric(
        "uncompacted_bytes",
        "Bytes of the complete block files that are not compacted",
        Gauge(|moment| compaction(moment, |lag| Some(amount(lag.bytes)))),
    ),
    metric(
        "uncompacted_age_seconds",
        "Time since the oldest block file that is not compacted was complete",
        Gauge(|moment| compaction(moment, |lag| lag.oldest_seconds)),
    ),
    metric(
        "detail_packets",
        "Packets under the budget of detail, by the outcome for their payload",
        Counter(|moment| detail(moment, |payload| payload.packets)),
    ),
    metric(
        "detail_payload_bytes",
        "Payload beyond headers under the budget of detail, by outcome",
        Counter(|moment| detail(moment, |payload| payload.bytes)),
    ),
    metric(
        "shadow_packets",
        "Packets that a shadow model classified too, and those that it would have kept in more or \
         less detail, by class",
        Counter(|moment| shadow(moment, |packets| packets.packets)),
    ),
    metric(
        "shadow_bytes",
        "Bytes of the packets that a shadow model classified too, and bytes that it would have \
         kept more or less, by class",
        Counter(|moment| shadow(moment, |packets| packets.bytes)),
    ),
    metric(
        "model_drift_index",
        "Population stability index of the anomaly score of the last minutes, against training",
        Gauge(|moment| drift(moment, |drift| Some(drift.score_index))),
    ),
    metric(
        "model_fits",
        "1 if the model fits the traffic of the last minutes, 0 if it no longer does",
        Gauge(|moment| {
            drift(moment, |drift| {
                drift.fits.map(|fits| f64::from(u8::from(fits)))
            })
        }),
    ),
    metric(
        "resource_used_ratio",
        "Share of a resource in use",
        Gauge(|moment| resources(moment, |resource| resource.used)),
    ),
    metric(
        "resource_degradation_steps",
        "Steps of degradation that a resource requires",
        Gauge(|moment| resources(moment, |resource| Some(real(resource.degradation_steps)))),
    ),
    metric(
        "cpu_budget_cores",
        "Cores that the process may use, its programs in the kernel included",
        Gauge(|moment| cpu(moment, |cpu| cpu.budget)),
    ),
    metric(
        "cpu_used_cores",
        "Cores that the process uses",
        Gauge(|moment| cpu(moment, |cpu| cpu.used)),
    ),
    metric(
        "receive_cpu_softirq_ratio",
        "Share of time in software interrupts, per CPU that receives packets",
        Gauge(|moment| receive(moment, |cpu| cpu.softirq)),
    ),
    metric(
        "receive_cpu_idle_ratio",
        "Share of idle time, per CPU that receives packets",
        Gauge(|moment| receive(moment, |cpu| cpu.idle)),
    ),
    metric(
        "receive_cpu_packets_per_second",
        "Packets that a CPU receives, from all interfaces of the machine",
        Gauge(|moment| receive(moment, |cpu| cpu.packets_per_second)),
    ),
    metric(
        "captured_flows_ratio",
        "Share of flows that are captured, to stay within the CPU budget",
        Gauge(|moment| cpu(moment, |cpu| cpu.flow_share)),
    ),
    metric(
        "payload_shed",
        "1 while payload is given up so that fewer packets are lost",
        Gauge(|moment| {
            maybe(
                moment
                    .status
                    .shed
                    .as_ref()
                    .map(|shed| f64::from(u8::from(shed.now))),
            )
        }),
    ),
    metric(
        "payload_shed_seconds",
        "Time for which payload was given up",
        Gauge(|moment| maybe(moment.status.shed.as_ref().map(|shed| shed.seconds))),
    ),
    metric(
        "uptime_seconds",
        "Time since the recording began",
        Gauge(|moment| one(moment.status.uptime_seconds)),
    ),
];

impl Collector for Moment {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        METRICS
            .iter()
            .try_for_each(|metric| metric.encode(self, &mut encoder))
    }
}

impl Metric {
    fn encode(&self, moment: &Moment, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let what = (self.name, self.help);
        match self.samples {
            Counter(samples) => family(encoder, what, samples(moment), ConstCounter::new),
            Sum(samples) => family(encoder, what, samples(moment), ConstCounter::new),
            Gauge(samples) => family(encoder, what, samples(moment), ConstGauge::new),
        }
    }
}

/// Of this number of samples of a metric, the number of those that [`family`] leaves out.
#[must_use]
pub fn left_out(samples: usize) -> usize {
    samples.saturating_sub(SAMPLES_MAX)
}

/// Writes a metric with this name and help text, unless it has no sample; of too many, the first ones. Values of labels
/// may come from outside.
///
/// # Errors
///
/// Those of the page.
pub fn family<V, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    samples: Vec<Sample<V>>,
    metric: fn(V) -> M,
) -> std::fmt::Result {
    let samples = samples
        .into_iter()
        .map(|(labels, value)| (labels, metric(value)));
    let mut samples = samples.peekable();
    let Some((_, first)) = samples.peek() else {
        return Ok(());
    };
    let none: Option<&Unit> = None;
    let kind = first.metric_type();
    let mut family = encoder.encode_descriptor(name, help, none, kind)?;
    for (mut labels, metric) in samples.take(SAMPLES_MAX) {
        for (_, value) in &mut labels {
            *value = label(value);
        }
        metric.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
