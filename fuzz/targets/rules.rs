//! Any texts as policies, any bytes as packets that they are applied to.
//!
//! Input: policies as `FILTER=>ACTION`, one a line, up to a zero byte; then packets of 44
//! bytes.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::{Corpus, fuzz_target};
use strata_filter::Filter;
use strata_fuzz::Bounded;
use strata_rules::{
    Action, AnswerId, PacketFields, Policies, Policy, Rule, RuleClassifier, linear_scan, regions,
};
use strata_wire::AddressFamily;

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

const POLICIES_MAX: usize = 6;
const PACKET_BYTES: usize = 44;

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let end = bytes.iter().position(|&byte| byte == 0);
    let end = end.unwrap_or(bytes.len());
    let Ok(text) = std::str::from_utf8(&bytes[..end]) else {
        return Corpus::Reject;
    };
    let (mut policies, mut rules) = (Vec::new(), Vec::new());
    for (number, line) in (0_u16..).zip(text.lines().take(POLICIES_MAX)) {
        let Some((filter, action)) = line.split_once("=>") else {
            continue;
        };
        let action: Action = match action.parse() {
            Ok(action) => action,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        assert_eq!(action.to_string().parse(), Ok(action));
        let Ok(filter) = Filter::parse(filter) else {
            continue;
        };
        let found = match regions(&filter) {
            Ok(found) => found,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        let mut policy = Policy::new(filter, action);
        policy.priority = number / 2;
        let place = u32::try_from(policies.len()).expect("there are few");
        rules.extend(found.into_iter().map(|region| Rule {
            region,
            priority: policy.priority,
            policy: place,
        }));
        policies.push(policy);
    }
    if policies.is_empty() {
        return Corpus::Keep;
    }
    let ready = Policies::new(&policies, Action::CLASSIFY).expect("each was understood");
    let mut classifier = RuleClassifier::new(Arc::clone(ready.rules()), 4, 1);
    let (mut expected, mut got) = (Vec::new(), Vec::new());
    let packets = bytes
        .get(end + 1..)
        .unwrap_or(&[])
        .as_chunks::<PACKET_BYTES>()
        .0;
    // Twice: the second time from the cache, where it holds them.
    for bytes in packets.iter().chain(packets) {
        let packet = packet(bytes);
        let mut answer = [AnswerId::NONE];
        classifier.classify(&[packet], &mut answer);
        classifier.answers().policies(answer[0], &mut got);
        linear_scan(&rules, &packet, &mut expected);
        assert_eq!(got, expected, "{packet:?} in {text}");
    }
    Corpus::Keep
});

/// Fields as a packet can have them.
fn packet(bytes: &[u8; PACKET_BYTES]) -> PacketFields {
    let half = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let address = |at: usize| {
        let long = bytes[at..]
            .first_chunk()
            .map_or(0, |b| u128::from_be_bytes(*b));
        if bytes[0] & 1 == 0 { long >> 96 } else { long }
    };
    let protocol = bytes[1];
    let has_ports = matches!(protocol, 6 | 17 | 132);
    let port = |at: usize| if has_ports { half(at) } else { 0 };
    PacketFields {
        source: address(12),
        destination: address(28),
        source_port: port(2),
        destination_port: port(4),
        vlan: half(6) & 0x0fff,
        interface: bytes[8],
        protocol,
        family: if bytes[0] & 1 == 0 {
            AddressFamily::Ipv4
        } else {
            AddressFamily::Ipv6
        },
    }
}
