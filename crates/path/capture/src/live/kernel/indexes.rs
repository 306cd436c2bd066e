//! A number for each of some interfaces, by their indexes, which programs look up: in shared memory, so that
//! interfaces come and go while programs run.
//!
//! ```text
//!  63       32 31      0
//!  | index    | number |      one word; 0: none
//! ```
//!
//! An index may be in any of [`PROBES`] words in a row, of which a hash says the first.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "places in a table that has as many words after the last one"
)]

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use strata_bpf::{Alu, Assembler, Condition, Label, Reg, Shared, Width};
use strata_wire::exact;

/// Where a row may start: 512 KiB.
const PLACES: usize = 1 << 16;
const PROBES: usize = 4;
/// 2^32 divided by the golden ratio: spreads indexes in a row, as they are given, over all places.
const FACTOR: u32 = 0x9e37_79b1;

/// The table.
#[derive(Debug)]
pub(in crate::live) struct Indexes {
    shared: Shared,
}

/// Where the row of an index starts.
fn place(index: u32) -> usize {
    (index.wrapping_mul(FACTOR) >> 16) as usize
}

const _: () = assert!(PLACES == 1 << 16, "as many as 32 - 16 bits say");

impl Indexes {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            shared: Shared::new(PLACES + PROBES)?,
        })
    }

    /// Enters a number; false if all places of the index are others'.
    pub(in crate::live) fn put(&self, index: u32, number: u32) -> bool {
        let (at, word) = (place(index), u64::from(index) << 32 | u64::from(number));
        let row = &self.shared.words()[at..at + PROBES];
        let is_own = |word: u64| word >> 32 == u64::from(index);
        if let Some(own) = row.iter().find(|word| is_own(word.load(Relaxed))) {
            own.store(word, Relaxed);
            return true;
        }
        row.iter().any(|free| {
            // Another worker may enter the same.
            let entered = free.compare_exchange(0, word, Relaxed, Relaxed);
            entered.map_or_else(is_own, |_| true)
        })
    }

    /// Removes an index.
    pub(in crate::live) fn remove(&self, index: u32) {
        let at = place(index);
        for word in &self.shared.words()[at..at + PROBES] {
            let now = word.load(Relaxed);
            if now >> 32 == u64::from(index) {
                // Else another worker has removed it.
                let _ = word.compare_exchange(now, 0, Relaxed, Relaxed);
            }
        }
    }

    /// The number of an index, as a program would find it.
    #[inline]
    pub(in crate::live) fn get(&self, index: u32) -> Option<u32> {
        if index == 0 {
            return None;
        }
        let at = place(index);
        let row = self.shared.words()[at..at + PROBES].iter();
        let mut words = row.map(|word| word.load(Relaxed));
        let own = words.find(|word| word >> 32 == u64::from(index))?;
        Some(exact::<u32>(own & u64::from(u32::MAX)))
    }

    /// `number` = that of the interface in this field of the packet in `R6`, or continues at `none`. Uses
    /// `R0` to `R3`.
    pub(super) fn write(&self, asm: &mut Assembler, field: i16, number: Reg, none: Label) {
        let found = asm.label();
        asm.load(Width::Word, Reg::R3, Reg::R6, field);
        // What this host sends came in nowhere.
        asm.jump_if(Condition::Equal, Reg::R3, 0, none);
        asm.set(Reg::R1, Reg::R3);
        asm.alu32(Alu::Mul, Reg::R1, FACTOR.cast_signed());
        asm.alu32(Alu::ShiftRight, Reg::R1, 16);
        asm.alu64(Alu::ShiftLeft, Reg::R1, 3);
        asm.shared_address(Reg::R2, self.shared.number(), 0);
        asm.alu64(Alu::Add, Reg::R2, Reg::R1);
        for probe in (0..).take(PROBES) {
            asm.load(Width::Double, Reg::R0, Reg::R2, probe * 8);
            asm.set(number, Reg::R0);
            asm.alu64(Alu::ShiftRight, Reg::R0, 32);
            asm.jump_if(Condition::Equal, Reg::R0, Reg::R3, found);
        }
        asm.jump(none);
        asm.bind(found);
        asm.alu64(Alu::ShiftLeft, number, 32);
        asm.alu64(Alu::ShiftRight, number, 32);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use strata_testkit::may_use_kernel;

    use super::*;

    #[test]
    fn the_table_says_what_a_map_does_while_indexes_come_and_go() {
        if !may_use_kernel("memory shared with programs") {
            return;
        }
        let (table, mut twin) = (Indexes::new().unwrap(), BTreeMap::new());
        // As in a namespace in which interfaces come and go: 500 of ever higher indexes.
        for index in 1..100_000_u32 {
            assert!(table.put(index, index % 500), "{index}");
            twin.insert(index, index % 500);
            if let Some(old) = index.checked_sub(500) {
                table.remove(old);
                twin.remove(&old);
            }
        }
        for index in 0..100_100 {
            assert_eq!(table.get(index), twin.get(&index).copied(), "{index}");
        }
        assert!(table.put(99_999, 7));
        assert_eq!(table.get(99_999), Some(7));
    }

    #[test]
    fn an_index_whose_places_are_taken_is_refused() {
        if !may_use_kernel("memory shared with programs") {
            return;
        }
        let table = Indexes::new().unwrap();
        let same: Vec<u32> = (1..u32::MAX)
            .filter(|index| place(*index) == 77)
            .take(5)
            .collect();
        for index in &same[..4] {
            assert!(table.put(*index, 1));
        }
        assert!(!table.put(same[4], 1));
        table.remove(same[1]);
        assert!(table.put(same[4], 2));
        assert_eq!((table.get(same[4]), table.get(same[3])), (Some(2), Some(1)));
    }
}
