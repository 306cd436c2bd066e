//! The compact form of a query: registers, and instructions that only go forward.

use super::fields::{Field, Kind};
use crate::tuple::{Column, Columns};

/// Registers of a program.
pub(super) const REGISTERS: usize = 256;
/// Instructions of a program at most.
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
    /// Loads the state of the packet's group; goes on at `to` if there is no room for it.
    Group {
        index: u8,
        to: u16,
    },
}

const _: () = assert!(size_of::<Op>() == 4);

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
#[error("the query needs {missing:?}, which these vectors do not carry")]
pub struct Unanswerable {
    /// What is missing.
    pub missing: Vec<Column>,
}

impl Program {
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
