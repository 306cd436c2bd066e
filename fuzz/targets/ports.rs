//! Policies with thousands of ports and ranges of ports, as rules: a search finds what a scan finds.
//!
//! Input: how many and how far apart (u16 each), a step (u16), a width (u8), then bytes: rules of their own, and
//! packets at the edges of any.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use strata_fuzz::{Bounded, Chooser};
use strata_rules::{
    AnswerId, Field, PacketFields, Region, Rule, RuleClassifier, RuleSet, Span, UNTAGGED,
    linear_scan,
};
use strata_wire::AddressFamily;

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

/// Preparing more takes too long under a fuzzer.
const RULES_MAX: u16 = 10_000;
const PACKETS_MAX: usize = 40;

fn rule(policy: u32, field: Field, low: u16, width: u16, priority: u16) -> Rule {
    let span = Span::new(low.into(), low.saturating_add(width).into());
    Rule {
        region: Region::ALL
            .with(Field::Protocol, Span::one(6))
            .with(field, span),
        priority,
        policy,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut choose = Chooser::new(bytes);
    let (count, step) = (choose.u16() % (RULES_MAX + 1), choose.u16());
    let (first, width) = (choose.u16(), u16::from(choose.u8()));
    let mut rules = Vec::new();
    for number in 0..count {
        let low = first.wrapping_add(number.wrapping_mul(step));
        let field = if number % 7 == 6 {
            Field::SourcePort
        } else {
            Field::DestinationPort
        };
        rules.push(rule(number.into(), field, low, width % 8, number % 2));
    }
    let mut probes = vec![0, first, u16::MAX];
    while !choose.is_empty() && probes.len() < PACKETS_MAX {
        let (what, port, width) = (choose.u8(), choose.u16(), choose.u16());
        let number = u32::try_from(rules.len()).expect("there are few");
        let field = if what & 1 == 0 {
            Field::SourcePort
        } else {
            Field::DestinationPort
        };
        rules.push(rule(number, field, port, width, u16::from(what >> 6)));
        probes.extend([
            port,
            port.wrapping_sub(1),
            port.saturating_add(width).wrapping_add(1),
        ]);
    }
    let policies = u32::try_from(rules.len()).expect("there are few");
    let mut classifier = RuleClassifier::new(Arc::new(RuleSet::new(&rules, policies)), 12, 1);
    let (mut expected, mut got) = (Vec::new(), Vec::new());
    let pairs = probes.iter().zip(probes.iter().rev());
    for (&source_port, &destination_port) in pairs {
        let packet = PacketFields {
            source: 1,
            destination: 2,
            source_port,
            destination_port,
            vlan: UNTAGGED,
            interface: 0,
            protocol: 6,
            family: AddressFamily::Ipv4,
        };
        let mut answer = [AnswerId::NONE];
        classifier.classify(&[packet], &mut answer);
        classifier.answers().policies(answer[0], &mut got);
        linear_scan(&rules, &packet, &mut expected);
        assert_eq!(got, expected, "{packet:?}");
    }
});
