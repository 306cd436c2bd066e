//! Packets of block files: their records.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::RandomState;
use strata_archive::ArchiveError;
use strata_blocks::{PacketRecord, Record};
use strata_store::{BlockFile, Damage, Recording, Select, StoreError};
use strata_wire::{Context, FlowHasher, FlowKey, FragmentTable, KeepKind, LinkType, Meta, clamped};

use crate::exporter::{Judgement as _, flow_of};
use crate::left_out::{LeftOut, Place};
use crate::merge::Known;

use super::{FoundPacket, FoundRun, Label, Matches, Searching, TakeFound, is_within};

/// What was decided on packets with the same verdict.
struct Told {
    class: String,
    score: Option<f32>,
    reason: String,
    /// Numbers of its labels, by how much was kept.
    labels: Vec<(KeepKind, usize)>,
}

/// Packets that are put off while what is known of their flows comes from memory.
const PENDING: usize = 32;

/// A packet that is put off.
struct Pending {
    flow: FlowKey,
    low_to_high: bool,
    label: usize,
    packet: FoundPacket,
}

/// Blocks being searched.
struct OfBlocks<'a, 'm> {
    searching: &'a Searching<'a>,
    matches: &'a mut Matches<'m>,
    known: Known,
    links: HashMap<u16, LinkType, RandomState>,
    /// The first recording with the same model.
    recording: u32,
    /// By verdict.
    told: HashMap<u16, Told, RandomState>,
    pending: Vec<Pending>,
    hasher: FlowHasher,
    /// Later fragments belong to the flow of their first one, if both are in these blocks and match.
    fragments: FragmentTable,
    left_out: LeftOut,
}

/// Passes what is wanted of some blocks of a file.
pub(super) fn of_blocks(
    searching: &Searching<'_>,
    (recording, file): (&Recording, &BlockFile),
    numbers: Range<usize>,
    matches: &mut Matches<'_>,
    take: &mut dyn TakeFound,
) -> Result<(), ArchiveError> {
    let mut blocks = OfBlocks {
        searching,
        matches,
        known: Known::default(),
        links: HashMap::default(),
        recording: searching.model_of(recording.id),
        told: HashMap::default(),
        pending: Vec::with_capacity(PENDING),
        hasher: FlowHasher::new(recording.hash_seed),
        fragments: FragmentTable::default(),
        left_out: LeftOut::default(),
    };
    let select = Select {
        numbers: Some(numbers),
        ..searching.find.select()
    };
    for block in searching.log.blocks_in(recording, file, &select) {
        if !searching.goes_on() {
            break;
        }
        let block = match block {
            Ok(block) => block,
            Err(StoreError::Damage(damage)) => {
                take.damage(damage.to_string());
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for record in block.records() {
            match record {
                Ok(Record::Packet(packet)) => blocks.packet(&packet, Place::of(&block), take),
                Ok(Record::Verdict(id, verdict)) => {
                    if blocks.known.define(id, verdict) {
                        blocks.told.remove(&id);
                    }
                }
                Ok(Record::Meta(Meta::Interface { id, interface })) => {
                    blocks.links.insert(id, interface.link);
                }
                Ok(Record::Context(json)) => blocks.context(json, take),
                Ok(Record::Meta(_) | Record::FlowShare(_)) => {}
                Err(bad) => {
                    let place = Damage {
                        file: block.file.clone(),
                        offset: block.records_at() + bad.at as u64,
                        problem: bad.problem.to_owned(),
                        missing: None,
                    };
                    take.damage(place.to_string());
                }
            }
        }
        blocks.pass(take);
    }
    for place in blocks.left_out.into_damage() {
        take.damage(place.to_string());
    }
    Ok(())
}

impl OfBlocks<'_, '_> {
    fn context(&mut self, json: &[u8], take: &mut dyn TakeFound) {
        match Context::from_json(json) {
            Ok(context) if context == *self.known.context() => {}
            Ok(context) => {
                self.known.set_context(context);
                self.told.clear();
            }
            Err(problem) => take.damage(problem),
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "a score is from 0 to 1")]
    fn packet(&mut self, packet: &PacketRecord<'_>, place: Place<'_>, take: &mut dyn TakeFound) {
        let find = &self.searching.find;
        if !is_within(find, packet.ts_ns) {
            return;
        }
        let Some(&link) = self.links.get(&packet.interface) else {
            self.left_out.of_interface(packet, place);
            return;
        };
        if find.filter.is_some() && !(self.matches)(link, packet.data, packet.wire_len) {
            return;
        }
        let (flow, low_to_high) = flow_of(link, packet.data, |headers, fragment| {
            self.fragments
                .resolve(headers, fragment, &self.hasher, packet.ts_ns);
        });
        take.soon(&flow);
        let known = &self.known;
        let told = self.told.entry(packet.verdict).or_insert_with(|| {
            let judged = known.of(packet);
            Told {
                class: judged.class().unwrap_or("unknown").to_owned(),
                score: judged.score().map(|score| score as f32),
                reason: judged.reason().into_owned(),
                labels: Vec::new(),
            }
        });
        let label = told.labels.iter().find(|(keep, _)| *keep == packet.keep);
        let label = match label {
            Some((_, label)) => *label,
            None => {
                let label = take.label(&Label {
                    recording: self.recording,
                    class: &told.class,
                    granularity: packet.keep.name(),
                    reason: &told.reason,
                });
                told.labels.push((packet.keep, label));
                label
            }
        };
        self.pending.push(Pending {
            flow,
            low_to_high,
            label,
            packet: FoundPacket {
                ts_ns: packet.ts_ns,
                wire_bytes: packet.wire_len,
                kept_bytes: clamped(packet.data.len()),
                score: told.score,
            },
        });
        if self.pending.len() == PENDING {
            self.pass(take);
        }
    }

    /// Passes the packets that were put off.
    fn pass(&mut self, take: &mut dyn TakeFound) {
        for pending in self.pending.drain(..) {
            take.packets(&FoundRun {
                flow: pending.flow,
                low_to_high: pending.low_to_high,
                label: pending.label,
                packets: std::slice::from_ref(&pending.packet),
            });
        }
    }
}
