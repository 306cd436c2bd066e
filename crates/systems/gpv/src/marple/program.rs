//! The compact form of a query: registers, and instructions that only go forward.

use super::fields::{FIELDS, Field, Kind, name_of};
use crate::tuple::{Column, Columns};

/// Registers of a program.
pub(super) const REGISTERS: usize = 256;
/// Maximum number of instructions of a program.
pub(super) const OPS_MAX: usize = 4096;

/// An instruction on registers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Op {
    Copy {
        to: u8,
        a: u8,
    },
    AddInt {
        to: u8,
        a: u8,
        b: u8,
    },
    SubInt {
        to: u8,
        a: u8,
        b: u8,
    },
    MulInt {
        to: u8,
        a: u8,
        b: u8,
    },
    DivInt {
        to: u8,
        a: u8,
        b: u8,
    },
    AddReal {
        to: u8,
        a: u8,
        b: u8,
    },
    SubReal {
        to: u8,
        a: u8,
        b: u8,
    },
    MulReal {
        to: u8,
        a: u8,
        b: u8,
    },
    DivReal {
        to: u8,
        a: u8,
        b: u8,
    },
    ToReal {
        to: u8,
        a: u8,
    },
    /// The number of an address, the words of which are in `a` and the register after it.
    ToNumber {
        to: u8,
        a: u8,
    },
    Eq {
        to: u8,
        a: u8,
        b: u8,
    },
    LtInt {
        to: u8,
        a: u8,
        b: u8,
    },
    /// Of numbers of 32 bits that wrap.
    Before {
        to: u8,
        a: u8,
        b: u8,
    },
    EqReal {
        to: u8,
        a: u8,
        b: u8,
    },
    LtReal {
        to: u8,
        a: u8,
        b: u8,
    },
    And {
        to: u8,
        a: u8,
        b: u8,
    },
    Or {
        to: u8,
        a: u8,
        b: u8,
    },
    Not {
        to: u8,
        a: u8,
    },
    /// Goes on at `to`, which is further on.
    Jump {
        to: u16,
    },
    /// The same, if the register is 0.
    Unless {
        a: u8,
        to: u16,
    },
    /// A comparison and what it decides: go on at `to` unless, or if, `a == b` or `a < b`.
    UnlessEq {
        a: u8,
        b: u8,
        to: u16,
    },
    IfEq {
        a: u8,
        b: u8,
        to: u16,
    },
    UnlessLt {
        a: u8,
        b: u8,
        to: u16,
    },
    IfLt {
        a: u8,
        b: u8,
        to: u16,
    },
    /// Loads the state of the packet's group; goes on at `to` if there is no room for it.
    Group {
        index: u8,
        to: u16,
    },
}

const _: () = assert!(size_of::<Op>() == 6);

impl Op {
    /// The register that it sets; those of a group's state are not among them.
    pub(super) fn result(&self) -> Option<u8> {
        let mut copy = *self;
        copy.result_mut().copied()
    }

    pub(super) fn result_mut(&mut self) -> Option<&mut u8> {
        match self {
            Self::Copy { to, .. }
            | Self::AddInt { to, .. }
            | Self::SubInt { to, .. }
            | Self::MulInt { to, .. }
            | Self::DivInt { to, .. }
            | Self::AddReal { to, .. }
            | Self::SubReal { to, .. }
            | Self::MulReal { to, .. }
            | Self::DivReal { to, .. }
            | Self::ToReal { to, .. }
            | Self::ToNumber { to, .. }
            | Self::Eq { to, .. }
            | Self::LtInt { to, .. }
            | Self::Before { to, .. }
            | Self::EqReal { to, .. }
            | Self::LtReal { to, .. }
            | Self::And { to, .. }
            | Self::Or { to, .. }
            | Self::Not { to, .. } => Some(to),
            _ => None,
        }
    }

    /// The registers that it reads; those of a group's key are not among them.
    pub(super) fn reads(&self) -> impl Iterator<Item = u8> + use<> {
        let [a, b] = match *self {
            Self::Jump { .. } | Self::Group { .. } => [None, None],
            Self::Copy { a, .. }
            | Self::ToReal { a, .. }
            | Self::Not { a, .. }
            | Self::Unless { a, .. } => [Some(a), None],
            Self::ToNumber { a, .. } => [Some(a), a.checked_add(1)],
            Self::AddInt { a, b, .. }
            | Self::SubInt { a, b, .. }
            | Self::MulInt { a, b, .. }
            | Self::DivInt { a, b, .. }
            | Self::AddReal { a, b, .. }
            | Self::SubReal { a, b, .. }
            | Self::MulReal { a, b, .. }
            | Self::DivReal { a, b, .. }
            | Self::Eq { a, b, .. }
            | Self::LtInt { a, b, .. }
            | Self::Before { a, b, .. }
            | Self::EqReal { a, b, .. }
            | Self::LtReal { a, b, .. }
            | Self::And { a, b, .. }
            | Self::Or { a, b, .. }
            | Self::UnlessEq { a, b, .. }
            | Self::IfEq { a, b, .. }
            | Self::UnlessLt { a, b, .. }
            | Self::IfLt { a, b, .. } => [Some(a), Some(b)],
        };
        a.into_iter().chain(b)
    }

    /// Where it may go on, other than at the next.
    pub(super) fn target(&self) -> Option<u16> {
        let mut copy = *self;
        copy.target_mut().copied()
    }

    pub(super) fn target_mut(&mut self) -> Option<&mut u16> {
        match self {
            Self::Jump { to }
            | Self::Unless { to, .. }
            | Self::UnlessEq { to, .. }
            | Self::IfEq { to, .. }
            | Self::UnlessLt { to, .. }
            | Self::IfLt { to, .. }
            | Self::Group { to, .. } => Some(to),
            _ => None,
        }
    }
}

/// How often an instruction is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Its result is the same for all packets of a vector.
    Once,
    /// The same, but others change its result meanwhile.
    Again,
    /// It depends on the packet.
    EachPacket,
}

/// Where a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    /// The first of its registers.
    pub(super) at: u8,
    pub(super) kind: Kind,
    /// Whether it is the same for all packets of a vector.
    pub(super) is_fixed: bool,
}

impl Slot {
    pub(super) fn registers(self) -> impl Iterator<Item = u8> {
        (self.at..=u8::MAX).take(self.kind.words())
    }
}

/// A `groupby`.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct GroupSpec {
    /// Registers of the key, and of the state.
    pub(super) key: Vec<u8>,
    pub(super) state: Vec<u8>,
    /// Whether a vector is of one group.
    pub(super) is_fixed: bool,
}

/// A checked query.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    pub(super) ops: Vec<Op>,
    /// Of each instruction, how often it is needed.
    pub(super) turns: Vec<Turn>,
    /// Registers that do not begin at 0.
    pub(super) constants: Vec<(u8, u64)>,
    /// What is loaded for each vector, and for each packet.
    pub(super) fixed: Vec<(Field, u8)>,
    pub(super) each: Vec<(Field, u8)>,
    pub(super) groups: Vec<GroupSpec>,
    /// Columns of the answer.
    pub(super) names: Vec<String>,
    pub(super) slots: Vec<Slot>,
    /// The group that is the answer, or the register that says whether a packet is a row of it.
    pub(super) answer: AnswerOf,
    pub(super) columns: Columns,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AnswerOf {
    Group(u8),
    Packets(u8),
}

/// A query that needs what vectors do not carry.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the query needs {}, which these vectors do not carry", self.fields().join(", "))]
pub struct Unanswerable {
    /// What is missing.
    pub missing: Vec<Column>,
}

impl Unanswerable {
    /// What is missing, as queries name it.
    #[must_use]
    pub fn fields(&self) -> Vec<&'static str> {
        self.missing.iter().map(|&column| name_of(column)).collect()
    }
}

/// What the values of an answer's column are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueKind {
    /// Integers.
    Int,
    /// Times of arrival, ns since 1970.
    Time,
    /// Real numbers.
    Real,
    /// Conditions.
    Bool,
    /// Addresses.
    Address,
}

impl Program {
    /// The columns of `T` that it reads, as queries name them.
    #[must_use]
    pub fn fields(&self) -> Vec<&'static str> {
        let read = self.fixed.iter().chain(&self.each);
        let mut names: Vec<&str> = read
            .filter_map(|(field, _)| FIELDS.iter().find(|(_, known)| known == field))
            .map(|(name, _)| *name)
            .collect();
        names.sort_unstable();
        names
    }

    /// Whether a row of the answer is a packet; else it is a group.
    #[must_use]
    pub fn is_of_packets(&self) -> bool {
        matches!(self.answer, AnswerOf::Packets(_))
    }

    /// How many of the answer's first columns are the key of its groups; 0 if it is of packets.
    #[must_use]
    pub fn key_columns(&self) -> usize {
        match self.answer {
            AnswerOf::Packets(_) => 0,
            AnswerOf::Group(index) => {
                let key = self.groups[usize::from(index)].key.len();
                let mut words: usize = 0;
                let fits = |slot: &&Slot| {
                    words = words.wrapping_add(slot.kind.words());
                    words <= key
                };
                self.slots.iter().take_while(fits).count()
            }
        }
    }

    /// What the values of the answer's columns are.
    #[must_use]
    pub fn kinds(&self) -> Vec<ValueKind> {
        let arrival = self
            .each
            .iter()
            .find(|(field, _)| *field == Field::Arrival)
            .map(|(_, register)| *register);
        let kind = |slot: &Slot| match slot.kind {
            Kind::Int if Some(slot.at) == arrival => ValueKind::Time,
            Kind::Int => ValueKind::Int,
            Kind::Real => ValueKind::Real,
            Kind::Bool => ValueKind::Bool,
            Kind::Address => ValueKind::Address,
        };
        self.slots.iter().map(kind).collect()
    }

    /// Bytes of a group of each `groupby` in turn: its key, its state, its place in the index.
    pub(super) fn group_bytes(&self) -> impl Iterator<Item = u64> {
        let words = |group: &GroupSpec| {
            group
                .key
                .len()
                .wrapping_add(group.state.len())
                .wrapping_add(3) as u64
        };
        self.groups
            .iter()
            .map(move |group| words(group).wrapping_mul(8))
    }

    /// Bytes of a row, if the answer is of packets.
    pub(super) fn row_bytes(&self) -> u64 {
        let words: usize = self.slots.iter().map(|slot| slot.kind.words()).sum();
        (words as u64).wrapping_mul(8)
    }

    /// What vectors must carry for it.
    #[must_use]
    pub fn columns(&self) -> Columns {
        self.columns
    }

    /// Names of the answer's columns.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How many instructions a packet takes at most.
    #[must_use]
    pub fn instructions(&self) -> usize {
        self.ops.len()
    }

    /// Checks that vectors with these columns carry what it needs.
    ///
    /// # Errors
    ///
    /// With what is missing.
    pub fn check(&self, carried: Columns) -> Result<(), Unanswerable> {
        let missing: Vec<Column> = self
            .columns
            .iter()
            .filter(|&column| !carried.has(column))
            .collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Unanswerable { missing }),
        }
    }
}
