//! Why a datagram or a report is refused, and how many were.

use strata_wire::Summed;

use crate::tally;

/// Why a datagram or a report was refused. It is counted, and not stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    /// A datagram without any byte.
    #[error("the datagram is empty")]
    Empty,
    /// No version of the protocol has this opcode.
    #[error("not a DTA opcode (those are 0x01 to 0x04 and 0x21 to 0x24)")]
    Opcode,
    /// The length of the UDP payload fits neither header form, or not the count.
    #[error("the length of the UDP payload does not fit the opcode")]
    Length,
    /// A packed datagram with a count of 0.
    #[error("the datagram claims to hold 0 reports")]
    Count,
    /// A key that is empty, or longer than 40 bytes, or given for Append, which has no keys.
    #[error("the length of keys is not 1 to 40 bytes, or not 0 for Append")]
    KeyLen,
    /// Data that are empty, longer than 64 bytes, or longer than the store's.
    #[error(
        "the data is empty, longer than 64 bytes or than the store's --data-bytes or \
         --entry-bytes, or not the 8 bytes of Key-Increment or the 4 of a postcard"
    )]
    DataLen,
    /// An increment above [`INCREMENT_MAX`](crate::key_increment::INCREMENT_MAX).
    #[error("the increment is above 2^56, more than a link can carry between two reports")]
    Increment,
    /// A redundancy of 0: the report would be stored nowhere.
    #[error("the redundancy is 0")]
    Redundancy,
    /// A list that the collector does not have.
    #[error("there is no such list")]
    List,
    /// A hop beyond those that are kept of a path, or beyond the end of its own path.
    #[error("the hop is beyond those that are kept, or beyond the end of its path")]
    Hop,
    /// A value of a hop that readers could not decode: the dictionary of such values is full.
    #[error("the dictionary of large values that hops report is full")]
    Value,
    /// The sender is not one of the allowed reporters.
    #[error("the sender is not an allowed reporter")]
    Reporter,
    /// The primitive is not served.
    #[error("the store has no memory for this kind of report")]
    NotServed,
    /// Numbered reports that came before, or so late that they are no longer awaited.
    #[error("the reports are duplicates, or too late")]
    Duplicate,
    /// Processing the datagram caused a panic of this program.
    #[error("processing it failed because of a bug in this program")]
    Fault,
}

impl Refusal {
    /// All, in the order of their codes.
    pub const ALL: [Self; 15] = [
        Self::Empty,
        Self::Opcode,
        Self::Length,
        Self::Count,
        Self::KeyLen,
        Self::DataLen,
        Self::Increment,
        Self::Redundancy,
        Self::List,
        Self::Hop,
        Self::Value,
        Self::Reporter,
        Self::NotServed,
        Self::Duplicate,
        Self::Fault,
    ];
}

/// The numbers of refusals, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refusals([u64; Refusal::ALL.len()]);

impl Refusals {
    /// Counts some more.
    pub fn add(&mut self, reason: Refusal, count: u64) {
        tally::add(&mut self.0[reason as usize], count);
    }

    /// The number for one reason.
    #[must_use]
    pub fn get(&self, reason: Refusal) -> u64 {
        self.0[reason as usize]
    }

    /// The total number.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Summed for Refusals {
    fn merge(&mut self, more: &Self) {
        self.0.merge(&more.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_place() {
        let mut refusals = Refusals::default();
        for (index, reason) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
            refusals.add(reason, 1);
        }
        assert_eq!(refusals.total(), 15);
        assert!(Refusal::ALL.iter().all(|&reason| refusals.get(reason) == 1));
    }
}
