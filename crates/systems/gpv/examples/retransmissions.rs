//! An application: bytes that TCP flows sent again, by flow.
//!
//!     cargo run --release -p strata-gpv --example retransmissions CAPTURE
#![allow(clippy::print_stdout, reason = "this is what it is for")]

use std::collections::HashMap;
use std::path::PathBuf;

use strata_capture::{Input, InputOptions, Next};
use strata_gpv::application::Application;
use strata_gpv::{Cache, Column, Full, Grouped, Key, Packet, Parameters, Seen, Tuple, Vector};
use strata_wire::{LinkType, Meta, TunnelKey, dissect::dissect};

/// For each flow: the next expected sequence number, and the bytes that were sent again.
#[derive(Default)]
pub struct Retransmissions(pub HashMap<Key, (Option<u32>, u64)>);

impl<T: Tuple> Application<T> for Retransmissions {
    fn take<G: Grouped<T>>(&mut self, _switch: u32, group: &G) {
        if group.key().protocol() != 6 {
            return;
        }
        // One look-up a vector, however many packets it has.
        let (next, again) = self.0.entry(*group.key()).or_default();
        group.for_each_run(|_, tuples| {
            for tuple in tuples {
                let (seq, len) = (tuple.get(Column::TcpSeq), tuple.get(Column::PayloadLen));
                let behind = next.unwrap_or(seq).wrapping_sub(seq);
                if behind < 1 << 31 {
                    *again += u64::from(len.min(behind));
                }
                if behind >= 1 << 31 || len >= behind {
                    *next = Some(seq.wrapping_add(len));
                }
            }
        });
    }
}

/// Asks the packets of a capture.
///
/// # Errors
///
/// If it cannot be read.
pub fn of(path: PathBuf) -> Result<Retransmissions, Box<dyn std::error::Error>> {
    let mut input = Input::open(&[path], &InputOptions::default())?;
    let mut cache = Cache::<Full>::new(Parameters::PAPER, 1)?;
    let mut found = Retransmissions::default();
    let mut out = |vector: &Vector<'_, Full>| found.take(0, vector);
    let mut links = Vec::new();
    loop {
        match input.advance()? {
            Next::End => break,
            Next::Meta(Meta::Interface { interface, .. }) => links.push(interface.link),
            Next::Meta(_) => {}
            Next::Packets => cache.push(&features(&input, &links), &mut out),
        }
    }
    cache.flush(&mut out);
    Ok(found)
}

fn features(input: &Input, links: &[LinkType]) -> Vec<Packet> {
    let read = input.batch().iter().filter_map(|packet| {
        let link = links[usize::from(packet.interface)];
        let headers = dissect(link, packet.data, TunnelKey::Inner);
        let (ts_ns, wire_len, ingress) = (packet.ts_ns, packet.wire_len, packet.interface);
        let seen = Seen {
            ts_ns,
            wire_len,
            ingress,
        };
        Packet::read(&headers, packet.data, seen)
    });
    read.collect()
}

/// Prints the flows that sent bytes again.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("name a capture")?;
    for (key, (_, again)) in of(path.into())?.0 {
        if again > 0 {
            println!("{key:?}: {again} bytes again");
        }
    }
    Ok(())
}
