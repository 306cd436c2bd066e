//! Surveys captures before they are recorded: how much payload a budget of detail has to last for.

use std::sync::atomic::{AtomicBool, Ordering};

use strata_capture::{Input, Next};
use strata_policy::{Survey, Surveyor};
use strata_wire::wide::WIDE;
use strata_wire::{Meta, exact};

use crate::stage::batch::EVERY_PLACE;
use crate::stage::budget::payload_of;
use crate::stage::parse::ParseStage;
use crate::worker::WorkerOptions;

/// Reads an input to its end, or until `most` packets have passed the filter, or `stop` is set, and says
/// what payload there is. What cannot be read any further ends it too: a recording of it will say why.
#[must_use]
pub fn survey(
    input: &mut Input,
    options: &WorkerOptions,
    most: Option<u64>,
    stop: &AtomicBool,
) -> Survey {
    let filter = options.filter.clone();
    let mut parse = ParseStage::new(filter, options.hash_seed, options.tunnel_key);
    let mut surveyor = Surveyor::default();
    let mut taken = 0;
    let is_enough = |taken| most.is_some_and(|most| taken >= most);
    while !is_enough(taken) && !stop.load(Ordering::Relaxed) {
        match input.advance() {
            Ok(Next::Packets) => {}
            Ok(Next::Meta(Meta::Interface { id, interface })) => {
                parse.interface(id, interface, None);
                continue;
            }
            Ok(Next::Meta(_)) => continue,
            Ok(Next::End) | Err(_) => break,
        }
        let batch = input.batch();
        for start in (0..batch.len()).step_by(WIDE) {
            let many = (batch.len() - start).min(WIDE);
            let mut places = EVERY_PLACE;
            let chosen = parse.choose(&batch, start, &mut places[..many]);
            for &place in &places[..chosen] {
                if is_enough(taken) {
                    break;
                }
                taken += 1;
                let packet = batch.get(start + usize::from(place));
                let (header_end, fingerprint) = parse.flow_of(&packet);
                let captured_len = exact::<u32>(packet.data.len());
                let payload = payload_of(header_end, captured_len, packet.wire_len);
                surveyor.packet(packet.ts_ns, fingerprint, payload);
            }
        }
    }
    surveyor.end()
}
