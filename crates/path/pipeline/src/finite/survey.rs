//! Surveys captures before they are recorded: how much payload a budget of detail has to last for.

use std::sync::atomic::{AtomicBool, Ordering};

use strata_capture::{Input, Next, Packets};
use strata_policy::{Survey, Surveyor};
use strata_wire::wide::{GROUP, WIDE};
use strata_wire::{Meta, exact};

use crate::path::DataPath;
use crate::stage::FEW;
use crate::stage::batch::{Batch, Chosen, EVERY_PLACE, is_in};
use crate::stage::budget::payload_of;
use crate::stage::dedup::DedupStage;
use crate::stage::parse::ParseStage;
use crate::worker::WorkerOptions;

/// Reads an input to its end, or until `most` packets have passed the filter and are no duplicates, or `stop` is set, and says
/// what payload there is. What cannot be read any further ends it too: a recording of it will say why.
#[must_use]
pub fn survey(
    input: &mut Input,
    (options, path): (&WorkerOptions, DataPath),
    most: Option<u64>,
    stop: &AtomicBool,
) -> Survey {
    let filter = options.filter.clone();
    let mut survey = Surveying {
        dedup: options.dedup.map(DedupStage::new),
        parse: ParseStage::new(filter, options.hash_seed, options.tunnel_key),
        columns: path.simd().map(|simd| Box::new(Batch::new(simd))),
        surveyor: Surveyor::default(),
        taken: 0,
        most,
    };
    while !survey.is_enough() && !stop.load(Ordering::Relaxed) {
        match input.advance() {
            Ok(Next::Packets) => survey.batch(&input.batch()),
            Ok(Next::Meta(Meta::Interface { id, interface })) => {
                survey.parse.interface(id, interface, None);
            }
            Ok(Next::Meta(_)) => {}
            Ok(Next::End) | Err(_) => break,
        }
    }
    survey.surveyor.end()
}

/// A survey at work.
struct Surveying {
    /// As that of the recording, which finds the same duplicates.
    dedup: Option<DedupStage>,
    parse: ParseStage,
    /// Headers of many packets at once, where the path has them.
    columns: Option<Box<Batch>>,
    surveyor: Surveyor,
    taken: u64,
    most: Option<u64>,
}

impl Surveying {
    fn is_enough(&self) -> bool {
        self.most.is_some_and(|most| self.taken >= most)
    }

    fn batch(&mut self, batch: &impl Packets) {
        for start in (0..batch.len()).step_by(WIDE) {
            let many = (batch.len() - start).min(WIDE);
            let mut places = EVERY_PLACE;
            let mut passed = self.parse.choose(batch, start, &mut places[..many]);
            if let Some(dedup) = &mut self.dedup {
                passed = dedup.choose(&self.parse, (batch, start), &mut places[..passed]);
            }
            if passed > 0 {
                let places = &places[..passed];
                self.chosen(Chosen {
                    batch,
                    start,
                    places,
                });
            }
        }
    }

    /// Takes in packets that have passed the filter.
    fn chosen<P: Packets>(&mut self, chosen: Chosen<'_, P>) {
        let mut data: [&[u8]; WIDE] = [&[]; WIDE];
        let columns = self.columns.as_deref_mut().filter(|_| chosen.len() >= FEW);
        let columns = columns.and_then(|columns| {
            let scanned = self.parse.scan(columns, chosen, &mut data)?;
            self.parse.begin(columns, chosen.len(), &scanned);
            for group in 0..chosen.len().div_ceil(GROUP) {
                self.parse.look_at_plain(columns, chosen, &data, group);
            }
            Some(&columns.columns)
        });
        for at in 0..chosen.len() {
            if self.most.is_some_and(|most| self.taken >= most) {
                break;
            }
            self.taken += 1;
            let packet = chosen.get(at);
            let (header_end, fingerprint) = match columns {
                Some(columns) if is_in(&columns.plain, at) => {
                    (columns.header_len[at], columns.fingerprint[at])
                }
                _ => self.parse.flow_of(&packet),
            };
            let captured_len = exact::<u32>(packet.data.len());
            let payload = payload_of(header_end, captured_len, packet.wire_len);
            self.surveyor.packet(packet.ts_ns, fingerprint, payload);
        }
    }
}
