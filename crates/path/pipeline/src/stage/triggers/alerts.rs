//! Alerts from an intrusion detection system: flows to be kept whole.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use strata_wire::{AddressFamily, Endpoint, FlowKey, exact, start_of};

use crate::reasons::DeciderId;

/// Flows remembered as alerted; if there are more, the oldest is forgotten.
const FLOWS_MAX: usize = 1 << 16;

/// At most this many bytes of a signature's text are kept.
const SIGNATURE_MAX: usize = 256;

/// An alert: on which flow, by which signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// The flow.
    pub flow: FlowKey,
    /// Number of the signature, if given.
    pub signature_id: Option<NonZeroU64>,
    /// Its text, at most 256 bytes of it; empty if not given.
    pub signature: String,
}

/// Alerts for the workers.
#[derive(Debug, Default)]
pub struct Alerts {
    /// How many there have been.
    count: AtomicU64,
    /// The most recent of them.
    latest: Mutex<Latest>,
    /// Flows that they were about, each counted once while it is remembered.
    flows: AtomicU64,
    /// Flows of these of which packets were recorded.
    matched: AtomicU64,
}

#[derive(Debug, Default)]
struct Latest {
    alerts: VecDeque<Alert>,
    flows: HashSet<FlowKey>,
}

impl Alerts {
    /// Tells all workers about a flow.
    pub fn raise(&self, alert: Alert) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let Latest { alerts, flows } = &mut *latest;
        if alerts.len() == FLOWS_MAX
            && let Some(oldest) = alerts.pop_front()
        {
            flows.remove(&oldest.flow);
        }
        if flows.insert(alert.flow) {
            self.flows.fetch_add(1, Ordering::Relaxed);
        }
        alerts.push_back(alert);
        // While the lock is held, so that count and flows belong together.
        self.count.fetch_add(1, Ordering::Release);
    }

    /// How many there have been.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// How many flows they were about, and of how many of these packets were recorded. A flow that is alerted on
    /// again after 65,536 other alerts counts again.
    #[must_use]
    pub fn flows(&self) -> (u64, u64) {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        (count(&self.flows), count(&self.matched))
    }

    /// Alerts raised since the count was `seen`, as far as they are remembered.
    fn since(&self, seen: &mut u64) -> Vec<Alert> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.count();
        // There may have been more since than are remembered.
        let known = (latest.alerts.len() as u64).saturating_sub(count - *seen);
        *seen = count;
        let new = latest.alerts.range(exact::<usize>(known)..);
        new.cloned().collect()
    }
}

/// What one worker knows about alerts.
#[derive(Debug)]
pub(crate) struct Alerted {
    alerts: Arc<Alerts>,
    seen: u64,
    /// By flow, which alert was its first, and whether a packet of it was seen.
    flows: HashMap<u64, (DeciderId, bool)>,
    /// Those in `flows`, the oldest first.
    order: VecDeque<u64>,
}

impl Alerted {
    pub(crate) fn new(alerts: Arc<Alerts>) -> Self {
        Self {
            alerts,
            seen: 0,
            flows: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Alerts that are new.
    #[inline]
    pub(crate) fn events(&mut self) -> Option<Vec<Alert>> {
        (self.alerts.count() != self.seen).then(|| self.alerts.since(&mut self.seen))
    }

    pub(crate) fn add(&mut self, fingerprint: u64, decider: DeciderId) {
        if self.flows.contains_key(&fingerprint) {
            return;
        }
        self.flows.insert(fingerprint, (decider, false));
        self.order.push_back(fingerprint);
        if self.order.len() > FLOWS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.flows.remove(&oldest);
        }
    }

    /// The alert on the flow of a packet.
    #[inline]
    pub(crate) fn by(&mut self, fingerprint: u64) -> Option<DeciderId> {
        if self.flows.is_empty() {
            return None;
        }
        let (decider, is_matched) = self.flows.get_mut(&fingerprint)?;
        if !std::mem::replace(is_matched, true) {
            self.alerts.matched.fetch_add(1, Ordering::Relaxed);
        }
        Some(*decider)
    }
}

/// The fields of a line of Suricata's EVE output that say whose packets it is about.
#[derive(Debug, Deserialize)]
struct Event {
    event_type: Option<String>,
    src_ip: Option<IpAddr>,
    dest_ip: Option<IpAddr>,
    #[serde(default)]
    src_port: u16,
    #[serde(default)]
    dest_port: u16,
    proto: Option<String>,
    alert: Option<serde_json::Value>,
}

/// The alert in a line of Suricata's EVE output (JSON); `None` for other events and for alerts
/// without addresses.
///
/// Source: "Eve JSON Format" of the Suricata user guide.
///
/// # Errors
///
/// If it is not a JSON object of that kind.
pub fn eve_alert(line: &[u8]) -> Result<Option<Alert>, serde_json::Error> {
    let event: Event = serde_json::from_slice(line)?;
    if event.event_type.as_deref() != Some("alert") {
        return Ok(None);
    }
    let (Some(source), Some(destination), Some(proto)) = (event.src_ip, event.dest_ip, event.proto)
    else {
        return Ok(None);
    };
    let Some(protocol) = protocol(&proto) else {
        return Ok(None);
    };
    // Elsewhere the fields are type and code of ICMP, which are not in the flow's key.
    let has_ports = [6, 17, 33, 132, 136].contains(&protocol);
    let (source_port, destination_port) = if has_ports {
        (event.src_port, event.dest_port)
    } else {
        (0, 0)
    };
    let end = |address: IpAddr, port: u16| match address {
        IpAddr::V4(v4) => (
            AddressFamily::Ipv4,
            Endpoint {
                address: v4.to_bits().into(),
                port,
            },
        ),
        IpAddr::V6(v6) => (
            AddressFamily::Ipv6,
            Endpoint {
                address: v6.to_bits(),
                port,
            },
        ),
    };
    let (family, source) = end(source, source_port);
    let (other, destination) = end(destination, destination_port);
    if family != other {
        return Ok(None);
    }
    let said = |field: &str| event.alert.as_ref().and_then(|said| said.get(field));
    let signature_id = said("signature_id").and_then(serde_json::Value::as_u64);
    let signature = said("signature").and_then(serde_json::Value::as_str);
    Ok(Some(Alert {
        flow: FlowKey::new(family, protocol, source, destination).0,
        signature_id: signature_id.and_then(NonZeroU64::new),
        signature: signature
            .map_or_else(String::new, |text| start_of(text, SIGNATURE_MAX).to_owned()),
    }))
}

/// A protocol as Suricata writes it: its name in /etc/protocols, or its number.
fn protocol(name: &str) -> Option<u8> {
    let number = match name.to_ascii_uppercase().as_str() {
        "ICMP" => 1,
        "IGMP" => 2,
        "IP-ENCAP" | "IPIP" => 4,
        "TCP" => 6,
        "UDP" => 17,
        "DCCP" => 33,
        "IPV6" => 41,
        "GRE" => 47,
        "ESP" | "IPSEC-ESP" => 50,
        "AH" | "IPSEC-AH" => 51,
        "IPV6-ICMP" | "ICMPV6" => 58,
        "SCTP" => 132,
        "UDPLITE" => 136,
        other => return other.trim_start_matches('0').parse().ok(),
    };
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_names_its_flow_in_either_direction_and_other_events_none() {
        let line = |kind: &str, source: &str, destination: &str| {
            format!(
                r#"{{"timestamp":"2026-01-02T03:04:05.678901+0000","flow_id":1,"event_type":"{kind}",{source},{destination},"proto":"TCP","alert":{{"signature_id":1,"signature":"ET x"}},"community_id":"1:x="}}"#
            )
        };
        let client = r#""src_ip":"10.0.0.9","src_port":40000"#;
        let server = r#""dest_ip":"10.0.0.1","dest_port":80"#;
        let there = eve_alert(line("alert", client, server).as_bytes());
        let there = there.unwrap().unwrap();
        assert_eq!(
            (there.signature_id, there.signature.as_str()),
            (NonZeroU64::new(1), "ET x")
        );
        assert_eq!(there.flow.to_string(), "10.0.0.1:80 - 10.0.0.9:40000 TCP");
        let back = line(
            "alert",
            r#""src_ip":"10.0.0.1","src_port":80"#,
            r#""dest_ip":"10.0.0.9","dest_port":40000"#,
        );
        assert_eq!(eve_alert(back.as_bytes()).unwrap(), Some(there));
        let flow = line("flow", client, server);
        assert_eq!(eve_alert(flow.as_bytes()).unwrap(), None);
        assert!(eve_alert(b"{\"event_type\":").is_err());
        assert_eq!(eve_alert(br#"{"event_type":"alert"}"#).unwrap(), None);
        let ping = br#"{"event_type":"alert","src_ip":"fe80::1","dest_ip":"fe80::2","proto":"IPv6-ICMP","icmp_type":128,"src_port":7}"#;
        let odd = br#"{"event_type":"alert","src_ip":"::1","dest_ip":"::2","proto":"UDP","alert":{"signature":7,"signature_id":-1}}"#;
        let odd = eve_alert(odd).unwrap().unwrap();
        assert_eq!((odd.signature_id, odd.signature.as_str()), (None, ""));
        let ping = eve_alert(ping).unwrap().unwrap().flow;
        assert_eq!((ping.protocol, ping.low.port, ping.high.port), (58, 0, 0));
    }

    #[test]
    fn each_worker_hears_of_each_alert_once_and_the_oldest_are_forgotten() {
        let alerts = Arc::new(Alerts::default());
        let (mut first, mut second) = (Alerted::new(alerts.clone()), Alerted::new(alerts.clone()));
        let flow = |port: u16| {
            let end = |port| Endpoint { address: 1, port };
            Alert {
                flow: FlowKey::new(AddressFamily::Ipv4, 17, end(port), end(53)).0,
                signature_id: NonZeroU64::new(port.into()),
                signature: String::new(),
            }
        };
        assert!(first.events().is_none());
        alerts.raise(flow(1));
        alerts.raise(flow(2));
        assert_eq!(first.events().unwrap(), [flow(1), flow(2)]);
        alerts.raise(flow(3));
        assert_eq!(first.events().unwrap(), [flow(3)]);
        assert_eq!(second.events().unwrap(), [flow(1), flow(2), flow(3)]);
        assert!(first.events().is_none() && second.events().is_none());
        for fingerprint in 1..=FLOWS_MAX as u64 + 1 {
            first.add(fingerprint, 7);
        }
        first.add(2, 8);
        assert_eq!(first.by(1), None);
        assert_eq!([first.by(2), first.by(FLOWS_MAX as u64 + 1)], [Some(7); 2]);
    }
}
