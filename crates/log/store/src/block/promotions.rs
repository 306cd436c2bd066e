//! Where the whole bytes of a recording's promoted packets are (`docs/formats/block-file.md`), and
//! putting them in their packets' places.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use strata_blocks::{ClassCount, Promotion, RawRecord, Records, Whole, complete};
use strata_wire::{KeepKind, exact};

use crate::block::Block;
use crate::block::index::Index;
use crate::block::scan::{Step, open_file, step};
use crate::block::select::Select;
use crate::disk::Disk;
use crate::error::{StoreError, io_error};
use crate::manifest::Recording;

/// Location of the whole bytes of a packet.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Index into the files.
    file: usize,
    at: u64,
    len: u32,
    kept_len: u32,
    wire_len: u32,
    class: u8,
    keep: KeepKind,
    verdict: Option<u16>,
}

/// The promotions of a recording. Memory: some 60 bytes each, plus the definitions of what
/// triggered them.
#[derive(Debug, Default)]
pub(crate) struct Promotions {
    files: Vec<String>,
    /// The records that define verdicts of promotions, by worker and number.
    verdicts: BTreeMap<(u16, u16), Vec<u8>>,
    /// By worker and sequence number.
    places: BTreeMap<(u16, u64), Place>,
}

impl Promotions {
    /// Adds those in a block of a file.
    pub(crate) fn add(&mut self, file: &str, block: &Block) {
        if self.files.last().is_none_or(|last| last != file) {
            self.files.push(file.to_owned());
        }
        let number = self.files.len().saturating_sub(1);
        for (at, promotion) in Promotion::all(block.body()) {
            let place = Place {
                file: number,
                at: block.records_at().saturating_add(at as u64),
                len: exact(promotion.data.len()),
                kept_len: promotion.kept_len,
                wire_len: promotion.wire_len,
                class: promotion.class,
                keep: promotion.keep,
                verdict: promotion.verdict,
            };
            self.places
                .insert((block.header.worker, promotion.seq), place);
        }
        self.add_verdicts(block);
    }

    /// Adds the definitions of the verdicts of a block's promotions.
    fn add_verdicts(&mut self, block: &Block) {
        let worker = block.header.worker;
        let wanted: BTreeSet<u16> = Promotion::all(block.body())
            .filter_map(|(_, promotion)| promotion.verdict)
            .filter(|id| !self.verdicts.contains_key(&(worker, *id)))
            .collect();
        if wanted.is_empty() {
            return;
        }
        let mut records = Records::new(block.body(), block.header.first_seq);
        while let Some(Ok(record)) = records.next_raw() {
            if let RawRecord::Other {
                verdict: Some((id, _)),
                bytes,
                ..
            } = record
                && wanted.contains(&id)
            {
                self.verdicts.insert((worker, id), bytes.to_vec());
            }
        }
    }

    /// Completes the promoted packets of a block, and removes promotions. In a block without
    /// records, the counts are corrected.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub(crate) fn apply(&self, disk: &dyn Disk, block: &mut Block) -> Result<(), StoreError> {
        let worker = block.header.worker;
        let first = block.header.first_seq;
        // A crafted block's sequence numbers may run backwards.
        let of_block = self
            .places
            .range((worker, first)..(worker, block.header.next_seq.max(first)));
        let mut whole: BTreeMap<u64, Whole<'_>> = BTreeMap::new();
        let mut opened = None;
        for (&(_, seq), place) in of_block {
            count(&mut block.summary.counts, place);
            let more = u64::from(place.len.saturating_sub(place.kept_len));
            block.header.logged_bytes = block.header.logged_bytes.saturating_add(more);
            if block.body().is_empty() {
                continue;
            }
            let name = &self.files[place.file];
            let fail = |action| io_error(disk.display(name), action);
            let file = match &opened {
                Some((index, file)) if *index == place.file => file,
                _ => {
                    let file = disk.open(name, false).map_err(fail("open"))?;
                    &opened.insert((place.file, file)).1
                }
            };
            let mut data = vec![0; place.len as usize];
            let read = file.read_at(&mut data, place.at).map_err(fail("read"))?;
            if read == data.len() {
                let verdict = place.verdict.and_then(|id| {
                    let definition = self.verdicts.get(&(worker, id))?;
                    Some((id, definition.as_slice()))
                });
                whole.insert(seq, Whole { data, verdict });
            }
        }
        if !whole.is_empty() || block.header.promotes() {
            let body = complete(block.body(), first, &whole);
            block.header.body_len = exact(body.len());
            block.replace_body(body);
        }
        block.header.forget_promotions();
        Ok(())
    }
}

/// Moves a packet from one granularity to the other.
fn count(counts: &mut Vec<ClassCount>, place: &Place) {
    let of =
        |keep: KeepKind| move |count: &ClassCount| count.class == place.class && count.keep == keep;
    let wire_bytes = u64::from(place.wire_len.max(place.len));
    let Some(before) = counts.iter_mut().find(|count| of(place.keep)(count)) else {
        return;
    };
    before.packets = before.packets.saturating_sub(1);
    before.wire_bytes = before.wire_bytes.saturating_sub(wire_bytes);
    before.logged_bytes = before.logged_bytes.saturating_sub(place.kept_len.into());
    counts.retain(|count| count.packets > 0);
    let index = counts
        .iter()
        .position(of(KeepKind::Full))
        .unwrap_or_else(|| {
            let index = counts.len();
            counts.push(ClassCount {
                class: place.class,
                keep: KeepKind::Full,
                ..ClassCount::default()
            });
            index
        });
    let after = &mut counts[index];
    after.packets = after.packets.saturating_add(1);
    after.wire_bytes = after.wire_bytes.saturating_add(wire_bytes);
    after.logged_bytes = after.logged_bytes.saturating_add(place.len.into());
}

/// The promotions of a log's recordings, by recording, read once they are needed.
#[derive(Debug, Default)]
pub(crate) struct Promoted(Mutex<BTreeMap<u32, Arc<Promotions>>>);

impl Promoted {
    /// The promotions of a recording, which may be in any of its files. Damaged blocks are skipped:
    /// the reader of the blocks gets the error.
    pub(crate) fn of(
        &self,
        disk: &dyn Disk,
        recording: &Recording,
    ) -> Result<Arc<Promotions>, StoreError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(&recording.id) {
            return Ok(Arc::clone(found));
        }
        let mut found = Promotions::default();
        let select = Select::default();
        let definitions = BTreeMap::new();
        for entry in recording.files.iter().filter(|_| recording.look_back) {
            let mut current = match open_file(disk, entry) {
                Ok(opened) => opened,
                Err(StoreError::Damage(_)) => continue,
                Err(error) => return Err(error),
            };
            if let Some(index) = Index::read(disk, recording, entry) {
                for number in index.promotions() {
                    // Damaged ones are skipped.
                    if let Ok(block) = current.indexed(&index.entries[number]) {
                        found.add(&entry.name, &block);
                    }
                }
                continue;
            }
            current.promotions_only = true;
            loop {
                match step(&mut current, recording, &select, &definitions) {
                    Ok(Step::Block(block)) => found.add(&entry.name, &block),
                    Ok(Step::Skipped) | Err(StoreError::Damage(_)) => {}
                    Ok(Step::EndOfFile) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        let found = Arc::new(found);
        known.insert(recording.id, Arc::clone(&found));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_blocks::{BlockHeader, Summary};

    use crate::RealDisk;

    #[test]
    fn a_block_whose_numbers_run_backwards_has_no_promotions() {
        let mut promotions = Promotions::default();
        let place = Place {
            file: 0,
            at: 0,
            len: 60,
            kept_len: 40,
            wire_len: 60,
            class: 0,
            keep: KeepKind::Header,
            verdict: None,
        };
        promotions.places.insert((0, 5), place);
        let header = BlockHeader {
            first_seq: 9,
            next_seq: 3,
            ..BlockHeader::default()
        };
        let mut block = Block {
            header,
            summary: Summary::default(),
            file: String::new(),
            offset: 0,
            ends: (0, 0),
            incomplete: 0,
            undefined: 0,
            damaged_segments: Vec::new(),
            body: Vec::new().into(),
        };
        let nowhere = RealDisk::at("/nowhere".as_ref());
        promotions
            .apply(&nowhere, &mut block)
            .expect("no file is read");
        assert_eq!(block.header, header);
    }
}
