//! What a controller knows of its fleet, as metrics for Prometheus.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use strata_agent::{AgentStatus, Closing, CollectorState, DestinationSum, ExportCount};
use strata_control::metrics::{Format, Sample, as_prometheus, family, left_out};

/// What a page shows.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) agents: Vec<AgentStatus>,
    pub(super) destinations: Vec<DestinationSum>,
    /// Version of the policies that hold.
    pub(super) version: u64,
}

/// The page.
pub(super) fn page(fleet: Fleet, format: Format) -> String {
    let mut registry = Registry::with_prefix("strata_fleet");
    registry.register_collector(Box::new(fleet));
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut page, &registry);
    match format {
        Format::OpenMetrics => page,
        Format::Prometheus => as_prometheus(&page),
    }
}

fn flag(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

#[allow(clippy::cast_precision_loss, reason = "a metric is a float")]
fn real(count: u64) -> f64 {
    count as f64
}

impl Fleet {
    /// Of agents that are not revoked.
    fn agents<V>(&self, value: impl Fn(&AgentStatus) -> Option<V>) -> Vec<Sample<V>> {
        let sample = |agent: &AgentStatus| {
            let value = value(agent).filter(|_| agent.state != "revoked")?;
            Some((vec![("agent", agent.name.clone())], value))
        };
        self.agents.iter().filter_map(sample).collect()
    }

    fn left_out(&self) -> u64 {
        let agents = self.agents.iter();
        left_out(agents.filter(|agent| agent.state != "revoked").count()) as u64
    }

    fn exports(&self, counts: fn(&ExportCount) -> Vec<(&'static str, u64)>) -> Vec<Sample<u64>> {
        let mut samples = Vec::new();
        for agent in &self.agents {
            for to in &agent.exports {
                for (result, count) in counts(to) {
                    let of = [("agent", &agent.name), ("destination", &to.name)];
                    let mut labels: Vec<_> = of.map(|(name, value)| (name, value.clone())).into();
                    labels.push(("result", result.to_owned()));
                    samples.push((labels, count));
                }
            }
        }
        samples
    }

    fn destinations<V>(
        &self,
        values: impl Fn(&DestinationSum) -> Vec<(Option<&'static str>, V)>,
    ) -> Vec<Sample<V>> {
        let mut samples = Vec::new();
        for to in &self.destinations {
            for (result, value) in values(to) {
                let mut labels = vec![("destination", to.name.clone())];
                labels.extend(result.map(|result| ("result", result.to_owned())));
                samples.push((labels, value));
            }
        }
        samples
    }

    /// Of destinations whose collector has reported.
    fn collectors<V>(&self, value: fn(&CollectorState) -> Option<V>) -> Vec<Sample<V>> {
        self.destinations(|to| {
            let collector = to.collector.as_ref().filter(|one| one.heard.is_some());
            let value = collector.and_then(value);
            value.map(|value| (None, value)).into_iter().collect()
        })
    }

    fn gauges(&self) -> Vec<(&'static str, &'static str, Vec<Sample<f64>>)> {
        vec![
            (
                "agent_up",
                "Whether the agent reports (1), or not (0); no value for revoked agents",
                self.agents(|agent| Some(flag(agent.state == "up"))),
            ),
            (
                "agent_policies_behind",
                "Whether the agent does not run the current version of the policies",
                self.agents(|agent| Some(flag(agent.runs != self.version))),
            ),
            (
                "agent_problem",
                "Whether the agent, or one of its destinations, has a problem; `strata controller agents` shows it",
                self.agents(|agent| {
                    let of_exports = agent.exports.iter().any(|to| !to.problem.is_empty());
                    Some(flag(!agent.problem.is_empty() || of_exports))
                }),
            ),
            (
                "agent_copied",
                "Whether two agents report with its certificate",
                self.agents(|agent| Some(flag(!agent.copies.is_empty()))),
            ),
            (
                "agent_clock_offset_seconds",
                "Its clock minus the controller's, at its last report",
                self.agents(|agent| {
                    let ms = i32::try_from(agent.skew_ms.clamp(-1_000_000_000, 1_000_000_000));
                    agent.heard?;
                    Some(f64::from(ms.expect("it is clamped")) / 1000.0)
                }),
            ),
            (
                "agent_interfaces",
                "Interfaces that the agent captures",
                self.agents(|agent| Some(f64::from(agent.captures))),
            ),
            (
                "agent_silent_seconds",
                "Time since the last report of the agent",
                self.agents(|agent| agent.heard.map(real)),
            ),
            (
                "agent_policies_version",
                "Version of the policies that the agent runs",
                self.agents(|agent| Some(real(agent.runs))),
            ),
            (
                "agents_left_out",
                "Agents without metrics of their own, since there are too many: `strata controller agents` lists all",
                vec![(Vec::new(), real(self.left_out()))],
            ),
            (
                "policies_version",
                "The current version of the policies",
                vec![(Vec::new(), real(self.version))],
            ),
            (
                "collector_up",
                "Whether the collector of the destination reports",
                self.destinations(|to| {
                    let states = to.collector.iter();
                    states.map(|one| (None, flag(one.state == "up"))).collect()
                }),
            ),
            (
                "collector_silent_seconds",
                "Time since the last report of the collector",
                self.collectors(|one| one.heard.map(real)),
            ),
            (
                "collector_unwritten_packets",
                "Packets that the collector could not write, or still had in memory, at its last report",
                self.collectors(|one| Some(real(one.not_written))),
            ),
            (
                "destination_sums_close",
                "Whether each exported packet was received, or is counted as lost (1), or not (0); none if that is unknown",
                self.destinations(|to| match to.closing() {
                    Closing::Closed => vec![(None, flag(true))],
                    Closing::Open(_) => vec![(None, flag(false))],
                    Closing::Unknown => Vec::new(),
                }),
            ),
            (
                "destination_packets",
                "Packets of the sessions that are remembered, by whether the collector has received them",
                self.destinations(|to| {
                    let sum = &to.sum;
                    vec![
                        (Some("received"), real(sum.received)),
                        (Some("lost"), real(sum.lost)),
                        (Some("before"), real(sum.before)),
                        (Some("missing"), real(sum.missing)),
                    ]
                }),
            ),
        ]
    }

    fn counters(&self) -> Vec<(&'static str, &'static str, Vec<Sample<u64>>)> {
        vec![
            (
                "agent_dropped_packets",
                "Packets that the kernel of the agent dropped because its rings were full",
                self.agents(|agent| Some(agent.dropped)),
            ),
            (
                "agent_exported_packets",
                "Packets for a destination, by outcome",
                self.exports(|to| {
                    vec![
                        ("exported", to.packets),
                        ("lost", to.lost),
                        ("unfit", to.unfit),
                        ("cut", to.cut),
                    ]
                }),
            ),
            (
                "agent_export_datagrams",
                "Datagrams that were not sent",
                self.exports(|to| vec![("not-sent", to.not_sent)]),
            ),
            (
                "collector_refused_datagrams",
                "Datagrams that the collector did not accept",
                self.collectors(|one| Some(one.not_accepted)),
            ),
            (
                "collector_socket_dropped_messages",
                "Messages that found the buffer of the collector's socket full",
                self.collectors(|one| Some(one.socket_drops)),
            ),
        ]
    }
}

impl Collector for Fleet {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        for (name, help, samples) in self.counters() {
            family(&mut encoder, (name, help), samples, ConstCounter::new)?;
        }
        for (name, help, samples) in self.gauges() {
            family(&mut encoder, (name, help), samples, ConstGauge::new)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn fleet() -> Fleet {
        let agent = AgentStatus {
            name: "a \"quoted\" name".into(),
            state: "up".into(),
            heard: Some(1),
            skew_ms: -1500,
            copies: Vec::new(),
            runs: 2,
            captures: 1,
            problem: String::new(),
            program: String::new(),
            labels: Default::default(),
            interfaces: Vec::new(),
            identities: Default::default(),
            exports: vec![ExportCount {
                name: "here".into(),
                packets: 7,
                ..ExportCount::default()
            }],
            dropped: 3,
            cpu: None,
            certificate_until: 0,
        };
        let mut destination = DestinationSum {
            name: "here".into(),
            collector: Some(CollectorState {
                heard: Some(2),
                socket_drops: 9,
                not_written: 4,
                ..CollectorState::default()
            }),
            interfaces: vec![Default::default()],
            ..DestinationSum::default()
        };
        destination.sum.lost = 5;
        destination.sum.missing = 1;
        Fleet {
            agents: vec![
                agent.clone(),
                AgentStatus {
                    name: "gone".into(),
                    state: "revoked".into(),
                    ..agent
                },
            ],
            destinations: vec![destination],
            version: 3,
        }
    }

    #[test]
    fn a_page_says_who_is_up_and_behind() {
        let page = page(fleet(), Format::Prometheus);
        for line in [
            r#"strata_fleet_agent_up{agent="a \"quoted\" name"} 1.0"#,
            r#"strata_fleet_agent_policies_behind{agent="a \"quoted\" name"} 1.0"#,
            r#"strata_fleet_agent_clock_offset_seconds{agent="a \"quoted\" name"} -1.5"#,
            r#"strata_fleet_agent_dropped_packets_total{agent="a \"quoted\" name"} 3"#,
            r#"strata_fleet_destination_packets{destination="here",result="lost"} 5.0"#,
            r#"strata_fleet_collector_up{destination="here"} 0.0"#,
            r#"strata_fleet_collector_silent_seconds{destination="here"} 2.0"#,
            r#"strata_fleet_collector_unwritten_packets{destination="here"} 4.0"#,
            r#"strata_fleet_collector_socket_dropped_messages_total{destination="here"} 9"#,
            r#"strata_fleet_destination_sums_close{destination="here"} 0.0"#,
            r#"strata_fleet_agent_silent_seconds{agent="a \"quoted\" name"} 1.0"#,
            r#"strata_fleet_agent_policies_version{agent="a \"quoted\" name"} 2.0"#,
            "strata_fleet_agents_left_out{} 0.0",
            "strata_fleet_policies_version{} 3.0",
        ] {
            assert!(page.contains(&format!("\n{line}\n")), "{line}: {page}");
        }
        assert!(!page.contains(r#"agent_up{agent="gone""#), "{page}");
    }

    /// The alert rules and the dashboard that are installed know its metrics.
    #[test]
    fn alert_rules_and_dashboard_are_of_metrics_that_there_are() {
        let page = page(fleet(), Format::Prometheus);
        for (file, most) in [("prometheus-alerts.yml", 9), ("grafana-fleet.json", 12)] {
            let path = strata_testkit::workspace_root().join("deploy").join(file);
            let text = std::fs::read_to_string(path).unwrap();
            let is_of_name = |c: char| c == '_' || c.is_ascii_alphanumeric();
            let names = text.split(|c| !is_of_name(c));
            let used: BTreeSet<&str> = names
                .filter(|word| word.starts_with("strata_fleet_"))
                .collect();
            assert!(used.len() > most, "{file}: {used:?}");
            for name in used {
                assert!(page.contains(&format!("# TYPE {name} ")), "{file}: {name}");
            }
        }
    }

    #[test]
    fn a_page_says_how_many_agents_it_leaves_out() {
        let mut many = fleet();
        let agent = many.agents[0].clone();
        many.agents = (0..1007)
            .map(|n| AgentStatus {
                name: format!("web-{n}"),
                ..agent.clone()
            })
            .collect();
        let page = page(many, Format::Prometheus);
        assert_eq!(page.matches("\nstrata_fleet_agent_up{").count(), 1000);
        assert!(
            page.contains("\nstrata_fleet_agents_left_out{} 7.0\n"),
            "{page}"
        );
    }
}
