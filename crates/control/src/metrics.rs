//! Prometheus metrics of a recording.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use strata_wire::Printable;

use crate::controller::Controller;
use crate::status::{ClassStatus, CpuStatus, InterfaceStatus, PacketStatus, PolicyStatus, Status};

/// Samples of one metric at most, so that a page stays small whatever there is: classes,
/// interfaces and policies beyond are left to the API.
const SAMPLES_MAX: usize = 1000;
/// Policies that have samples of their own at most: those with the lowest numbers.
const POLICIES_MAX: usize = 100;
/// Characters of a label's value at most.
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
    /// The form that a request's header `Accept` asks for: that of Prometheus unless OpenMetrics
    /// is named and not less welcome (RFC 9110, section 12.5.1).
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        let (mut text, mut open) = (0.0_f64, 0.0_f64);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
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

/// A page of OpenMetrics in the form of Prometheus, which calls a counter as its samples and knows
/// no end.
fn as_prometheus(page: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in page.lines() {
        let counter = line.strip_suffix(" counter");
        let counter = counter.and_then(|line| line.strip_prefix("# TYPE "));
        if let Some(name) = counter {
            // The line with the help comes before that with the type.
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

impl Collector for Moment {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let status = &self.status;
        let results = |value: fn(&PacketStatus) -> u64| {
            let samples = status.packets.iter().map(move |packets| {
                let labels = vec![
                    ("result", packets.result.clone()),
                    ("reason", packets.reason.clone()),
                ];
                (labels, value(packets))
            });
            // In flight is no counter: it goes down.
            samples
                .filter(|(labels, _)| labels[0].1 != "in_flight")
                .collect::<Vec<_>>()
        };
        counters(
            &mut encoder,
            "packets",
            "Packets by where they ended",
            results(|p| p.packets),
        )?;
        counters(
            &mut encoder,
            "bytes",
            "Bytes by where they ended: on the wire, or kept for logged",
            results(|p| p.bytes),
        )?;
        let classes = |value: fn(&ClassStatus) -> u64| {
            let all = status.classes.iter();
            all.map(|class| {
                let labels = vec![
                    ("class", class.class.clone()),
                    ("granularity", class.granularity.clone()),
                ];
                (labels, value(class))
            })
            .collect::<Vec<_>>()
        };
        counters(
            &mut encoder,
            "class_packets",
            "Packets by class and by how much of each is kept",
            classes(|c| c.packets),
        )?;
        counters(
            &mut encoder,
            "class_captured_bytes",
            "Their bytes on the wire",
            classes(|c| c.captured_bytes),
        )?;
        counters(
            &mut encoder,
            "class_kept_bytes",
            "Their bytes that are kept",
            classes(|c| c.kept_bytes),
        )?;
        let interfaces = |value: fn(&InterfaceStatus) -> u64| {
            let all = status.interfaces.iter();
            all.map(|i| (vec![("interface", i.name.clone())], value(i)))
                .collect::<Vec<_>>()
        };
        let (received, dropped) = (interfaces(|i| i.received), interfaces(|i| i.dropped));
        counters(
            &mut encoder,
            "interface_received_packets",
            "Packets that the kernel delivered",
            received,
        )?;
        counters(
            &mut encoder,
            "interface_dropped_packets",
            "Packets that the kernel dropped",
            dropped,
        )?;
        let of_logged = status.of_logged.iter();
        let of_logged = of_logged.map(|p| (vec![("kind", p.result.clone())], p.packets));
        counters(
            &mut encoder,
            "of_logged_packets",
            "Of logged packets: wanted whole but cut by the kernel; promoted to whole later; \
             first bytes instead of headers that could not be read",
            of_logged.collect::<Vec<_>>(),
        )?;
        let mirrored = status.mirrored.iter();
        let mirrored = mirrored.map(|p| (vec![("result", p.result.clone())], p.packets));
        counters(
            &mut encoder,
            "mirrored_packets",
            "Copies of packets that policies send on, by what became of them",
            mirrored.collect::<Vec<_>>(),
        )?;
        let lost = status.lost.iter().map(|lost| {
            let labels = vec![
                ("place", lost.place.clone()),
                ("counter", lost.counter.clone()),
            ];
            (labels, lost.packets)
        });
        counters(
            &mut encoder,
            "lost_before_packets",
            "Packets lost before Strata: kernel, softnet, device",
            lost.collect::<Vec<_>>(),
        )?;
        let hits = |value: fn(&PolicyStatus) -> u64| {
            let all = self.policies.iter().take(POLICIES_MAX);
            all.map(|p| {
                (
                    vec![("policy", p.id.to_string()), ("match", p.matches.clone())],
                    value(p),
                )
            })
            .collect::<Vec<_>>()
        };
        counters(
            &mut encoder,
            "policy_packets",
            "Packets that a policy was applied to",
            hits(|p| p.packets),
        )?;
        counters(
            &mut encoder,
            "policy_bytes",
            "Bytes that a policy was applied to",
            hits(|p| p.bytes),
        )?;
        counters(
            &mut encoder,
            "plan_changes",
            "Changes of modes and policies that workers picked up",
            vec![(Vec::new(), status.changes.count)],
        )?;
        counters(
            &mut encoder,
            "plan_change_delay_seconds",
            "Sum of the times from a request or a reading to the switch of a worker",
            vec![(Vec::new(), status.changes.seconds_sum)],
        )?;
        let one = |value: f64| vec![(Vec::new(), value)];
        #[allow(clippy::cast_precision_loss)]
        let policies = one(status.policies as f64);
        gauges(&mut encoder, "policies", "Policies in force", policies)?;
        gauges(
            &mut encoder,
            "plan_change_delay_p99_seconds",
            "99th percentile of the latest of them",
            status
                .changes
                .p99_ms
                .map(|ms| (Vec::new(), ms / 1e3))
                .into_iter()
                .collect(),
        )?;
        gauges(
            &mut encoder,
            "mode",
            "1 for the mode at work",
            vec![(
                vec![
                    ("mode", status.mode.clone()),
                    ("asked", status.asked_mode.clone()),
                ],
                1.0,
            )],
        )?;
        let used = status.resources.iter().filter_map(|resource| {
            Some((vec![("resource", resource.name.clone())], resource.used?))
        });
        gauges(
            &mut encoder,
            "resource_used_ratio",
            "Share of a resource in use",
            used.collect(),
        )?;
        #[allow(clippy::cast_precision_loss)]
        let steps = status.resources.iter().map(|resource| {
            (
                vec![("resource", resource.name.clone())],
                resource.relief_steps as f64,
            )
        });
        gauges(
            &mut encoder,
            "resource_relief_steps",
            "Steps of relief that a resource asks for",
            steps.collect(),
        )?;
        let cpu = |value: fn(&CpuStatus) -> f64| {
            let one = status.cpu.iter().map(|cpu| (Vec::new(), value(cpu)));
            one.collect::<Vec<_>>()
        };
        gauges(
            &mut encoder,
            "cpu_budget_cores",
            "Cores that the process may use, its programs in the kernel included",
            cpu(|cpu| cpu.budget),
        )?;
        gauges(
            &mut encoder,
            "cpu_used_cores",
            "Cores that it uses",
            cpu(|cpu| cpu.used),
        )?;
        gauges(
            &mut encoder,
            "captured_flows_ratio",
            "Share of flows that are captured, to keep the CPU budget",
            cpu(|cpu| cpu.flow_share),
        )?;
        gauges(
            &mut encoder,
            "uptime_seconds",
            "Since the recording began",
            one(status.uptime_seconds),
        )
    }
}

fn counters<V>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: Vec<Sample<V>>,
) -> std::fmt::Result
where
    ConstCounter<V>: EncodeMetric,
{
    let all = samples
        .into_iter()
        .map(|(labels, value)| (labels, ConstCounter::new(value)));
    family(encoder, name, help, all)
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: Vec<Sample<f64>>,
) -> std::fmt::Result {
    let all = samples
        .into_iter()
        .map(|(labels, value)| (labels, ConstGauge::new(value)));
    family(encoder, name, help, all)
}

/// The value of a label, which may come from outside. The encoder writes it as it is, and neither
/// format has quotes, backslashes or ends of lines bare in it.
fn label(value: &str) -> String {
    let end = value.char_indices().nth(LABEL_MAX);
    let value = end.map_or(value, |(end, _)| &value[..end]);
    let value = Printable(value).to_string();
    value.replace('\\', r"\\").replace('"', "\\\"")
}

fn family<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Vec<(&'static str, String)>, M)>,
) -> std::fmt::Result {
    let mut samples = samples.peekable();
    let Some((_, first)) = samples.peek() else {
        return Ok(());
    };
    let none: Option<&Unit> = None;
    let mut family = encoder.encode_descriptor(name, help, none, first.metric_type())?;
    for (mut labels, metric) in samples.take(SAMPLES_MAX) {
        for (_, value) in &mut labels {
            *value = label(value);
        }
        metric.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
