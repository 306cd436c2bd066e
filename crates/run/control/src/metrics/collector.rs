//! Metrics of a collector of exported packets.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::samples::{Sample, amount, one, real};
use super::{Format, as_prometheus, family, left_out};
use crate::status::{CollectorStatus, SenderStatus};

/// The page of a collector that writes a stream.
#[must_use]
pub fn collector_text(status: CollectorStatus, format: Format) -> String {
    let mut registry = Registry::with_prefix("strata");
    registry.register_collector(Box::new(Collected(status)));
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut page, &registry);
    match format {
        Format::OpenMetrics => page,
        Format::Prometheus => as_prometheus(&page),
    }
}

/// What a collector shows on a page, its own or that of the recording of what it receives.
#[derive(Debug)]
pub(super) struct Collected(pub(super) CollectorStatus);

type Family<V> = (&'static str, &'static str, Vec<Sample<V>>);

impl Collected {
    /// Of each sender's interface.
    fn senders<V>(&self, value: fn(&SenderStatus) -> V) -> Vec<Sample<V>> {
        let sample = |from: &SenderStatus| {
            let labels = vec![
                ("sender", from.sender.clone()),
                ("identity", from.identity.to_string()),
                ("interface", from.name.clone()),
            ];
            (labels, value(from))
        };
        self.0.senders.iter().map(sample).collect()
    }

    fn counters(&self) -> Vec<Family<u64>> {
        let status = &self.0;
        let refused = status.refused.by_name();
        let refused = refused.map(|(why, count)| (vec![("reason", why.to_owned())], count));
        vec![
            (
                "collector_packets",
                "Packets that arrived and passed the filter",
                one(status.packets),
            ),
            (
                "collector_bytes",
                "Bytes of the packets that arrived and passed the filter",
                one(status.bytes),
            ),
            (
                "collector_announcements",
                "Datagrams that name interfaces of senders",
                one(status.announcements),
            ),
            (
                "collector_refused_datagrams",
                "Datagrams that were not accepted, by reason",
                refused.into(),
            ),
            (
                "collector_socket_dropped_messages",
                "Messages that found the buffer of the socket full: each a datagram, or several that were sent as one",
                one(status.socket_drops),
            ),
            (
                "collector_sender_packets",
                "Packets that arrived from an interface of a sender",
                self.senders(|from| from.packets),
            ),
            (
                "collector_sender_bytes",
                "Bytes of the packets that arrived from an interface of a sender",
                self.senders(|from| from.bytes),
            ),
            (
                "collector_sender_cut_packets",
                "Packets that arrived without all their bytes: headers, or a part of the payload",
                self.senders(|from| from.cut),
            ),
            (
                "collector_sender_datagrams",
                "Datagrams that arrived from an interface of a sender",
                self.senders(|from| from.datagrams),
            ),
            (
                "collector_sender_kernel_dropped_packets",
                "Packets that the kernel of the sender dropped, as the sender announced",
                self.senders(|from| from.dropped),
            ),
        ]
    }

    /// What may decrease: a packet that overtook others was not lost.
    fn gauges(&self) -> Vec<Family<f64>> {
        let status = &self.0;
        vec![
            (
                "collector_unwritten_packets",
                "Packets that could not be written, or are still in memory",
                one(amount(status.not_written)),
            ),
            (
                "collector_sender_lost_packets",
                "Packets of an interface of a sender that are missing, by their numbers",
                self.senders(|from| amount(from.lost)),
            ),
            (
                "collector_sender_lost_datagrams",
                "Datagrams of an interface of a sender that are missing, by their numbers",
                self.senders(|from| amount(from.lost_datagrams)),
            ),
            (
                "collector_sender_earlier_packets",
                "Packets with numbers before those of the first datagram that arrived",
                self.senders(|from| amount(from.before)),
            ),
            (
                "collector_sender_silent_seconds",
                "Time since the last datagram of an interface of a sender",
                self.senders(|from| from.silent_seconds),
            ),
            (
                "collector_senders",
                "Interfaces of senders that are known",
                one(real(status.senders.len())),
            ),
            (
                "collector_senders_left_out",
                "Interfaces of senders without metrics of their own, since there are too many: the status has all",
                one(real(left_out(status.senders.len()))),
            ),
            (
                "collector_uptime_seconds",
                "Time since the collector listens",
                one(status.uptime_seconds),
            ),
        ]
    }
}

impl Collector for Collected {
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
