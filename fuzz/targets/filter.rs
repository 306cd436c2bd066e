//! Any text as a filter, any bytes as a packet that it judges.
//!
//! Input: the expression up to a zero byte, then the packet.
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::{Corpus, fuzz_target};
use strata_filter::{Filter, FlowFacts};
use strata_fuzz::{Bounded, LINKS};
use strata_wire::dissect::{dissect, may_hide_addresses};
use strata_wire::{FlowKey, LinkType, TunnelKey, ip_addr};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    let packet = bytes.get(end + 1..).unwrap_or(&[]);
    let Ok(text) = std::str::from_utf8(&bytes[..end]) else {
        return Corpus::Reject;
    };
    let filter = match Filter::parse(text) {
        Ok(filter) => filter,
        Err(error) => {
            assert!(
                text.get(error.span()).is_some(),
                "the place lies in the text"
            );
            assert!(!error.to_string().is_empty());
            return Corpus::Keep;
        }
    };
    let shown = filter.to_string();
    match Filter::parse(&shown) {
        Ok(again) => assert_eq!(again, filter, "shown as '{shown}'"),
        Err(error) => panic!("what is shown does not parse: {error}"),
    }
    let bounds = (filter.host_bounds(), filter.flow_bound());
    for link in LINKS {
        let program = match filter.compile(link) {
            Ok(program) => program,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        let wire_len = u32::try_from(packet.len()).expect("inputs are short");
        let matches = program.matches(packet, wire_len);
        assert_eq!(matches, program.matches(packet, wire_len));
        // No length on the wire, nor any cut, panics.
        let _ = program.matches(packet, u32::MAX);
        let _ = program.matches(&packet[..packet.len() / 2], 0);
        if matches {
            is_found(link, packet, &bounds, &shown);
        }
    }
    Corpus::Keep
});

type Bounds = (Vec<Vec<IpAddr>>, Option<Vec<FlowFacts>>);

/// A search skips blocks by the addresses and flows that the worker noted for them: those
/// that `dissect` found. It must find every packet that matches.
fn is_found(link: LinkType, packet: &[u8], (hosts, flows): &Bounds, shown: &str) {
    for tunnel_key in [TunnelKey::Inner, TunnelKey::Outer] {
        let headers = dissect(link, packet, tunnel_key);
        if may_hide_addresses(&headers) || headers.key.is_none() {
            continue;
        }
        let keys: Vec<FlowKey> = headers.key.into_iter().chain(headers.outer).collect();
        let ends = keys
            .iter()
            .flat_map(|key| [key.low, key.high].map(|end| ip_addr(key.family, end.address)));
        let noted: Vec<IpAddr> = ends.flatten().collect();
        for set in hosts {
            assert!(
                set.iter().any(|address| noted.contains(address)),
                "'{shown}' matches on {link}, but a search for {set:?} skips the block: {tunnel_key:?} noted {noted:?}"
            );
        }
        if let Some(flows) = flows {
            assert!(
                flows
                    .iter()
                    .filter_map(FlowFacts::key)
                    .any(|key| keys.contains(&key)),
                "'{shown}' matches on {link}, but a search for {flows:?} skips the block: {tunnel_key:?} noted {keys:?}"
            );
        }
    }
}
