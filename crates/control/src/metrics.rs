//! Prometheus metrics of a recording.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::controller::Controller;
use crate::status::{CpuStatus, InterfaceStatus, PacketStatus, PolicyStatus, Status};

/// The metrics, in the text format of OpenMetrics, which Prometheus reads.
#[must_use]
pub fn text(controller: &Controller) -> String {
    let mut registry = Registry::with_prefix("strata");
    registry.register_collector(Box::new(Moment {
        status: controller.status(),
        policies: controller.policies(),
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
            "Of logged packets: wanted whole but cut by the kernel; promoted to whole later",
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
            let all = self.policies.iter();
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
            "Sum of the times from a request to the first packet treated so",
            vec![(Vec::new(), status.changes.seconds_sum)],
        )?;
        let one = |value: f64| vec![(Vec::new(), value)];
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
    for (labels, metric) in samples {
        metric.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
