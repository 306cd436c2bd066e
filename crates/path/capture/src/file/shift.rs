//! Times that 64 bits of nanoseconds since 1970 cannot hold.
//!
//! Packets with such times get an interface of their own: the description of theirs, with
//! `if_tsoffset`. Their times are those of the file less that offset. So order and distances stay, and
//! an export as pcapng has the file's times again:
//!
//! ```text
//!              1970                          2106     2255              2540    2554
//!  the file's   |                             |        |                 |       |      | 586524
//!  here         | before 1970: to 2033 |               | after 2554     |
//! ```
//!
//! The offset is that of the first such packet, which gets the middle of its range.

use std::ops::Range;

use strata_wire::Interface;
use strata_wire::pcapng::options::{code, comments, find, push_comment, push_fixed};

use super::InterfaceIds;
use super::time::NS_PER_S;

/// Seconds since 1970 that stand for times before it, and for times after the year 2554. Those do not
/// fit pcap, which is therefore never written with times that are not the file's.
const BEFORE_S: Range<u64> = 0..2_000_000_000;
const AFTER_S: Range<u64> = 9_000_000_000..18_000_000_000;
const _: () = assert!(AFTER_S.start > u32::MAX as u64 && AFTER_S.end < u64::MAX / NS_PER_S);

/// Of a section: each needs an interface, and one clock that runs wrong needs one.
const SHIFTS_MAX: usize = 64;

/// Says in files that an interface is one of ours, so that reading and exporting it again changes
/// nothing.
const COMMENT: &str =
    "strata: times of the file that are before 1970 or after 2554, less if_tsoffset";

/// How the times of an interface are shifted.
#[derive(Debug, Clone, Copy)]
struct Shift {
    /// The interface's number in its section.
    number: u32,
    /// The id of the interface with the shifted times.
    id: u16,
    offset_s: i64,
}

impl Shift {
    /// The time here of a time of the file, if it is in range.
    fn apply(&self, ns: i128) -> Option<u64> {
        let range_s = if self.offset_s < 0 { BEFORE_S } else { AFTER_S };
        let offset_ns = i128::from(self.offset_s).checked_mul(i128::from(NS_PER_S))?;
        let here = u64::try_from(ns.checked_sub(offset_ns)?).ok();
        here.filter(|ns| range_s.contains(&(ns / NS_PER_S)))
    }
}

/// The shifts of a section.
#[derive(Debug, Default)]
pub(super) struct Shifts {
    all: Vec<Shift>,
    /// There is no room for another one: times that have none become the nearest possible one.
    are_full: bool,
}

/// What becomes of a time that is out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shifted {
    /// The interface and the time.
    To(u16, u64),
    /// It has to be the nearest possible time.
    Not,
}

impl Shifts {
    /// The place of a time that is out of range; `None` if [`Shifts::add`] has to make one first.
    pub(super) fn find(&self, number: u32, ns: i128) -> Option<Shifted> {
        let mut of_interface = self.all.iter().filter(|shift| shift.number == number);
        let found = of_interface.find_map(|shift| Some(Shifted::To(shift.id, shift.apply(ns)?)));
        found.or(self.are_full.then_some(Shifted::Not))
    }

    /// Makes a place for a time of an interface; `None` if there is no room.
    pub(super) fn add(
        &mut self,
        (number, interface): (u32, &Interface),
        ns: i128,
        ids: &mut InterfaceIds,
    ) -> Option<(u16, Interface)> {
        let added = self.try_add((number, interface), ns, ids);
        self.are_full |= added.is_none();
        added
    }

    fn try_add(
        &mut self,
        (number, interface): (u32, &Interface),
        ns: i128,
        ids: &mut InterfaceIds,
    ) -> Option<(u16, Interface)> {
        if self.all.len() >= SHIFTS_MAX {
            return None;
        }
        let range_s = if ns < 0 { BEFORE_S } else { AFTER_S };
        let middle_s = i128::from(range_s.start.midpoint(range_s.end));
        let seconds = ns.div_euclid(i128::from(NS_PER_S));
        let offset_s = i64::try_from(seconds.checked_sub(middle_s)?).ok()?;
        let mut interface = interface.clone();
        push_fixed(
            &mut interface.options,
            code::IF_TSOFFSET,
            offset_s.to_le_bytes(),
        );
        push_comment(&mut interface.options, COMMENT).ok()?;
        let id = ids.try_take(interface.options.len())?;
        self.all.push(Shift {
            number,
            id,
            offset_s,
        });
        Some((id, interface))
    }
}

/// Whether these options of a file's interface are of one that was made here.
pub(super) fn is_shifted(options: &[u8]) -> bool {
    find(options, code::IF_TSRESOL) == Some(&[9])
        && find(options, code::IF_TSOFFSET).is_some_and(|offset| offset.len() == 8)
        && comments(options).any(|comment| comment == COMMENT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use strata_wire::LinkType;

    use super::*;

    proptest! {
        /// Whatever the times are, offset and time here give them back, and those that are close to
        /// each other keep their order.
        #[test]
        fn times_come_back(
            far in prop_oneof![
                -9_000_000_000_i128..-1,
                18_446_744_074..20_000_000_000_i128,
                18_446_744_074..9_000_000_000_000_000_000_i128,
            ],
            steps in prop::collection::vec((0..1_000_000_000_000_000_000_u64, any::<bool>()), 0..20),
        ) {
            let interface = Interface::new(LinkType::ETHERNET, 0);
            let (mut shifts, mut ids) = (Shifts::default(), InterfaceIds::default());
            let mut offsets = Vec::new();
            let mut ns = far * i128::from(NS_PER_S);
            for (step, back) in steps {
                ns += i128::from(step) * if back { -1 } else { 1 };
                if u64::try_from(ns).is_ok() {
                    continue;
                }
                if shifts.find(0, ns).is_none() {
                    let (id, added) = shifts.add((0, &interface), ns, &mut ids).unwrap();
                    prop_assert_eq!(usize::from(id), offsets.len());
                    let offset = find(&added.options, code::IF_TSOFFSET).unwrap();
                    offsets.push(i64::from_le_bytes(offset.try_into().unwrap()));
                }
                let Some(Shifted::To(id, here)) = shifts.find(0, ns) else {
                    return Err(TestCaseError::fail("it has a place"));
                };
                let offset = offsets[usize::from(id)];
                prop_assert_eq!(i128::from(here) + i128::from(offset) * i128::from(NS_PER_S), ns);
            }
        }
    }

    #[test]
    fn what_has_no_room_is_said() {
        let interface = Interface::new(LinkType::ETHERNET, 0);
        let (mut shifts, mut ids) = (Shifts::default(), InterfaceIds::default());
        let far = |number: u32| (1 << 64) + i128::from(number) * (1 << 64);
        for number in 0..64 {
            assert_eq!(shifts.find(number, far(number)), None);
            assert!(
                shifts
                    .add((number, &interface), far(number), &mut ids)
                    .is_some()
            );
        }
        assert!(shifts.add((64, &interface), far(64), &mut ids).is_none());
        assert_eq!(shifts.find(64, far(64)), Some(Shifted::Not));
        assert!(matches!(shifts.find(7, far(7)), Some(Shifted::To(7, _))));
        // No offset of 64 bits leads there.
        let mut shifts = Shifts::default();
        assert!(shifts.add((0, &interface), i128::MAX, &mut ids).is_none());
    }
}
