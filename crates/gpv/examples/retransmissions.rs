//! An application: bytes that TCP flows sent again, by flow.
//!
//!     cargo run --release -p strata-gpv --example retransmissions CAPTURE
#![allow(clippy::print_stdout, reason = "this is what it is for")]

use std::collections::HashMap;

use strata_capture::{Input, InputOptions, Next};
use strata_gpv::application::Application;
use strata_gpv::{Cache, Column, Full, Grouped, Key, Packet, Parameters, Seen, Tuple, Vector};
use strata_wire::{LinkType, TunnelKey, dissect::dissect};

/// Of each flow the sequence number that comes next, and bytes that came before it.
#[derive(Default)]
struct Retransmissions(HashMap<Key, (u32, u64)>);

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
                if *next != 0 && next.wrapping_sub(seq) < 1 << 31 {
                    *again += u64::from(len.min(next.wrapping_sub(seq)));
                }
                if seq.wrapping_add(len).wrapping_sub(*next) < 1 << 31 || *next == 0 {
                    *next = seq.wrapping_add(len);
                }
            }
        });
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("name a capture")?;
    let mut input = Input::open(&[path.into()], &InputOptions::default())?;
    let mut cache = Cache::<Full>::new(Parameters::PAPER, 1)?;
    let mut found = Retransmissions::default();
    let mut out = |vector: &Vector<'_, Full>| found.take(0, vector);
    loop {
        match input.advance()? {
            Next::End => break,
            Next::Meta(_) => {}
            Next::Packets => cache.push(&features(&input), &mut out),
        }
    }
    cache.flush(&mut out);
    for (key, (_, again)) in found.0.iter().filter(|(_, (_, again))| *again > 0) {
        println!("{key:?}: {again} bytes again");
    }
    Ok(())
}

fn features(input: &Input) -> Vec<Packet> {
    let read = input.batch().iter().filter_map(|packet| {
        let headers = dissect(LinkType::ETHERNET, packet.data, TunnelKey::Inner);
        let seen = Seen {
            ts_ns: packet.ts_ns,
            wire_len: packet.wire_len,
            ingress: 0,
        };
        Packet::read(&headers, packet.data, seen)
    });
    read.collect()
}
