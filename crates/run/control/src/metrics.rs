//! Prometheus metrics of a recording.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use strata_wire::Printable;

use crate::controller::Controller;
use crate::status::{
    ClassStatus, CompactionStatus, CpuStatus, DriftStatus, ExportStatus, FlowTableStatus,
    InterfaceStatus, LostStatus, PacketStatus, PolicyStatus, ReceiveStatus, ResourceStatus, Status,
};

/// Most samples of one metric, which keeps the page small in any case: further classes, interfaces
/// and policies are left to the API.
const SAMPLES_MAX: usize = 1000;
/// Most policies with samples of their own: those with the lowest numbers.
const POLICIES_MAX: usize = 100;
/// Most characters of a label's value.
const LABEL_MAX: usize = 128;

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
    registry.register_collector(Box::new(Moment {
        status: controller.status(),
        policies,
    }));
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut page, &registry);
    page
}

#[derive(Debug)]
struct Moment {
    status: Status,
    policies: Vec<PolicyStatus>,
}

/// One sample: labels and value.
type Sample<V> = (Vec<(&'static str, String)>, V);

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
const METRICS: [Metric; 44] = [
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
        "Of logged packets: wanted whole but cut by the kernel; promoted to whole later; \
         first bytes instead of headers that could not be read",
        Counter(|moment| kinds("kind", &moment.status.of_logged)),
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
        "Times that a flow table could not grow because the system had no memory",
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
        "Sum of the times from a request or a reading until a worker switched",
        Sum(|moment| one(moment.status.changes.seconds_sum)),
    ),
    metric(
        "policies",
        "Policies in force",
        Gauge(|moment| one(real(moment.status.policies))),
    ),
    metric(
        "plan_change_delay_p99_seconds",
        "99th percentile of the latest times from a request or a reading until a worker switched",
        Gauge(|moment| maybe(moment.status.changes.p99_ms.map(|ms| ms / 1e3))),
    ),
    metric(
        "flow_table_bytes",
        "Memory of the flow tables",
        Gauge(|moment| flow_table(moment, |table| amount(table.bytes))),
    ),
    metric("mode", "1 for the mode in force", Gauge(mode)),
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
        "Packets that a shadow model judged too, and those that it would have kept in more or \
         less detail, by class",
        Counter(|moment| shadow(moment, |packets| packets.packets)),
    ),
    metric(
        "shadow_bytes",
        "Bytes of the packets that a shadow model judged too, and bytes that it would have kept \
         more or less, by class",
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
        "Steps of degradation that a resource asks for",
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
        "Share of a CPU's time in software interrupts, of CPUs that receive packets",
        Gauge(|moment| receive(moment, |cpu| cpu.softirq)),
    ),
    metric(
        "receive_cpu_idle_ratio",
        "Share of the time that a CPU that receives packets is idle",
        Gauge(|moment| receive(moment, |cpu| cpu.idle)),
    ),
    metric(
        "receive_cpu_packets_per_second",
        "Packets that a CPU receives, from all interfaces of the machine",
        Gauge(|moment| receive(moment, |cpu| cpu.packets_per_second)),
    ),
    metric(
        "captured_flows_ratio",
        "Share of flows that are captured, to keep the CPU budget",
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
        match self.samples {
            Counter(samples) => self.family(encoder, samples(moment), ConstCounter::new),
            Sum(samples) => self.family(encoder, samples(moment), ConstCounter::new),
            Gauge(samples) => self.family(encoder, samples(moment), ConstGauge::new),
        }
    }

    fn family<V, M: EncodeMetric>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
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
        let mut family = encoder.encode_descriptor(self.name, self.help, none, kind)?;
        for (mut labels, metric) in samples.take(SAMPLES_MAX) {
            for (_, value) in &mut labels {
                *value = label(value);
            }
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn one<V>(value: V) -> Vec<Sample<V>> {
    vec![(Vec::new(), value)]
}

fn maybe(value: Option<f64>) -> Vec<Sample<f64>> {
    value.into_iter().flat_map(one).collect()
}

#[allow(clippy::cast_precision_loss)]
fn real(count: usize) -> f64 {
    count as f64
}

#[allow(clippy::cast_precision_loss)]
fn amount(bytes: u64) -> f64 {
    bytes as f64
}

fn flow_table<V>(moment: &Moment, value: fn(&FlowTableStatus) -> V) -> Vec<Sample<V>> {
    let table = moment.status.flow_table.as_ref();
    table.map(value).into_iter().flat_map(one).collect()
}

fn results(moment: &Moment, value: fn(&PacketStatus) -> u64) -> Vec<Sample<u64>> {
    let all = moment.status.packets.iter();
    // In flight is not a counter: it can decrease.
    let counters = all.filter(|ended| ended.result != "in_flight");
    let sample = |ended: &PacketStatus| {
        let labels = vec![
            ("result", ended.result.clone()),
            ("reason", ended.reason.clone()),
        ];
        (labels, value(ended))
    };
    counters.map(sample).collect()
}

fn classes(moment: &Moment, value: fn(&ClassStatus) -> u64) -> Vec<Sample<u64>> {
    let sample = |class: &ClassStatus| {
        let labels = vec![
            ("class", class.class.clone()),
            ("granularity", class.granularity.clone()),
        ];
        (labels, value(class))
    };
    moment.status.classes.iter().map(sample).collect()
}

fn interfaces(moment: &Moment, value: fn(&InterfaceStatus) -> u64) -> Vec<Sample<u64>> {
    let all = moment.status.interfaces.iter();
    all.map(|interface| {
        (
            vec![("interface", interface.name.clone())],
            value(interface),
        )
    })
    .collect()
}

fn kinds(label: &'static str, all: &[PacketStatus]) -> Vec<Sample<u64>> {
    all.iter()
        .map(|kind| (vec![(label, kind.result.clone())], kind.packets))
        .collect()
}

fn reports(moment: &Moment) -> Vec<Sample<u64>> {
    let Some(reports) = &moment.status.reports else {
        return Vec::new();
    };
    let results = [
        ("sent", reports.reports),
        ("not-sent", reports.not_sent),
        ("over-limit", reports.over_limit),
    ];
    results
        .map(|(result, count)| (vec![("result", result.to_owned())], count))
        .into()
}

fn exports(
    moment: &Moment,
    counts: impl Fn(&ExportStatus) -> Vec<(&'static str, u64)>,
) -> Vec<Sample<u64>> {
    let of = |to: &ExportStatus| {
        let sample = |(result, count): (&str, u64)| {
            let labels = vec![
                ("destination", to.name.clone()),
                ("result", result.to_owned()),
            ];
            (labels, count)
        };
        counts(to).into_iter().map(sample).collect::<Vec<_>>()
    };
    moment.status.exports.iter().flat_map(of).collect()
}

fn lost(moment: &Moment) -> Vec<Sample<u64>> {
    let sample = |lost: &LostStatus| {
        let labels = vec![
            ("place", lost.place.clone()),
            ("counter", lost.counter.clone()),
        ];
        (labels, lost.packets)
    };
    moment.status.lost.iter().map(sample).collect()
}

fn hits(moment: &Moment, value: fn(&PolicyStatus) -> u64) -> Vec<Sample<u64>> {
    let sample = |policy: &PolicyStatus| {
        let labels = vec![
            ("policy", policy.id.to_string()),
            ("match", policy.matches.clone()),
        ];
        (labels, value(policy))
    };
    moment
        .policies
        .iter()
        .take(POLICIES_MAX)
        .map(sample)
        .collect()
}

fn mode(moment: &Moment) -> Vec<Sample<f64>> {
    let labels = vec![
        ("mode", moment.status.mode.clone()),
        ("asked", moment.status.asked_mode.clone()),
    ];
    vec![(labels, 1.0)]
}

fn detail(moment: &Moment, value: fn(&PacketStatus) -> u64) -> Vec<Sample<u64>> {
    let payload = moment
        .status
        .detail
        .iter()
        .flat_map(|detail| &detail.payload);
    payload
        .map(|payload| (vec![("result", payload.result.clone())], value(payload)))
        .collect()
}

fn shadow(moment: &Moment, value: fn(&PacketStatus) -> u64) -> Vec<Sample<u64>> {
    let classes = moment.status.shadow.iter();
    let classes = classes.flat_map(|shadow| &shadow.classes);
    let samples = classes.flat_map(|of| {
        of.packets.iter().map(|packets| {
            let labels = vec![
                ("class", of.class.clone()),
                ("result", packets.result.clone()),
            ];
            (labels, value(packets))
        })
    });
    samples.collect()
}

fn drift(moment: &Moment, value: fn(&DriftStatus) -> Option<f64>) -> Vec<Sample<f64>> {
    maybe(moment.status.drift.as_ref().and_then(value))
}

fn compaction(moment: &Moment, value: fn(&CompactionStatus) -> Option<f64>) -> Vec<Sample<f64>> {
    maybe(moment.status.compaction.as_ref().and_then(value))
}

fn resources(moment: &Moment, value: fn(&ResourceStatus) -> Option<f64>) -> Vec<Sample<f64>> {
    let sample = |resource: &ResourceStatus| {
        let labels = vec![("resource", resource.name.clone())];
        Some((labels, value(resource)?))
    };
    moment.status.resources.iter().filter_map(sample).collect()
}

fn receive(moment: &Moment, value: fn(&ReceiveStatus) -> f64) -> Vec<Sample<f64>> {
    let sample = |cpu: &ReceiveStatus| (vec![("cpu", cpu.cpu.to_string())], value(cpu));
    moment.status.receive.iter().map(sample).collect()
}

fn cpu(moment: &Moment, value: fn(&CpuStatus) -> f64) -> Vec<Sample<f64>> {
    maybe(moment.status.cpu.as_ref().map(value))
}

/// The value of a label, which may come from outside. The encoder writes it as it is, and neither
/// format allows unescaped quotes, backslashes or line ends in it.
fn label(value: &str) -> String {
    let end = value.char_indices().nth(LABEL_MAX);
    let value = end.map_or(value, |(end, _)| &value[..end]);
    let value = Printable(value).to_string();
    value.replace('\\', r"\\").replace('"', "\\\"")
}
