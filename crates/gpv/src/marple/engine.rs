//! A query at work.

use std::net::{IpAddr, Ipv6Addr};

use strata_wire::{AddressFamily, mix64};

use super::fields::{Field, Kind, address_words};
use super::program::{AnswerOf, GroupSpec, Op, Program, REGISTERS, Slot, Unanswerable};
use crate::key::Key;
use crate::tuple::{Column, Tuple};
use crate::vector::Grouped;

/// How much a query may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Groups of each `groupby`.
    pub groups_max: u32,
    /// Rows of an answer that is of packets.
    pub rows_max: u32,
    /// Bytes of all groups and rows together: with large groups or rows, fewer are allowed than
    /// the other two say.
    pub bytes_max: u64,
}

impl Default for Limits {
    /// A hundred thousand groups, a million rows, 256 MiB.
    fn default() -> Self {
        Self {
            groups_max: 100_000,
            rows_max: 1_000_000,
            bytes_max: 256 << 20,
        }
    }
}

impl Limits {
    /// The limits of a program: `bytes_max` is shared equally by its groupbys, and by its rows if
    /// the answer is of packets.
    #[must_use]
    pub fn of(self, program: &Program) -> Self {
        let rows = u64::from(program.is_of_packets());
        let share = self.bytes_max / (program.group_bytes().count() as u64 + rows).max(1);
        let at_most = |most: u32, bytes: u64| {
            let fitting = share / bytes.max(1);
            u32::try_from(fitting).map_or(most, |fitting| fitting.min(most))
        };
        let largest = program.group_bytes().max().unwrap_or(8);
        Self {
            groups_max: at_most(self.groups_max, largest),
            rows_max: at_most(self.rows_max, program.row_bytes()),
            ..self
        }
    }
}

/// What a query did, and what it did not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueryCounters {
    /// Vectors, or records, looked at.
    pub vectors: u64,
    /// Packets looked at.
    pub packets: u64,
    /// Vectors that are not IP, which `T` does not have.
    pub not_ip: u64,
    /// Packets of groups for which there was no room.
    pub refused: u64,
    /// Rows that the answer has no room for.
    pub cut: u64,
}

/// A value of an answer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    /// An integer.
    Int(i64),
    /// A real number.
    Real(f64),
    /// A condition.
    Bool(bool),
    /// An address.
    Address(IpAddr),
}

/// What a query found so far.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Answer {
    /// Names of the columns.
    pub names: Vec<String>,
    /// Rows, as they were found first.
    pub rows: Vec<Vec<Value>>,
}

/// The state of a `groupby`, by an index with open addressing.
#[derive(Debug)]
struct Groups {
    spec: GroupSpec,
    index: Vec<u32>,
    /// The keys, then the states, one after the other.
    keys: Vec<u64>,
    states: Vec<u64>,
    len: u32,
    max: u32,
    /// Whose state is in the registers.
    held: Option<u32>,
}

const NONE: u32 = u32::MAX;

/// A query at work: vectors in, an answer out.
///
/// Memory: what [`Limits`] allow: a group the words of its key and state and 8 to 16 bytes, a row
/// its words.
#[derive(Debug)]
pub struct Query {
    program: Program,
    registers: Box<[u64; REGISTERS]>,
    groups: Vec<Groups>,
    rows: Vec<u64>,
    rows_len: u32,
    limits: Limits,
    counters: QueryCounters,
}

impl Query {
    /// A query that has seen nothing, for vectors of tuples `T`.
    ///
    /// # Errors
    ///
    /// If they do not carry what it needs.
    pub fn new<T: Tuple>(program: Program, limits: Limits) -> Result<Self, Unanswerable> {
        program.check(T::COLUMNS)?;
        let mut registers = Box::new([0; REGISTERS]);
        for &(register, value) in &program.constants {
            registers[usize::from(register)] = value;
        }
        let limits = limits.of(&program);
        let max = limits.groups_max.min(1 << 30);
        let groups = program.groups.iter().map(|spec| Groups {
            spec: spec.clone(),
            index: vec![NONE; 16],
            keys: Vec::new(),
            states: Vec::new(),
            len: 0,
            max,
            held: None,
        });
        Ok(Self {
            groups: groups.collect(),
            program,
            registers,
            rows: Vec::new(),
            rows_len: 0,
            limits,
            counters: QueryCounters::default(),
        })
    }

    /// The program that it runs.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// How much it may hold, given the size of its groups and rows.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What it did.
    #[must_use]
    pub fn counters(&self) -> &QueryCounters {
        &self.counters
    }

    /// Takes a vector or a record, of a switch with this number.
    pub fn take<T: Tuple, G: Grouped<T>>(&mut self, switch: u32, group: &G) {
        let key = group.key();
        if key.family() == AddressFamily::Mac {
            self.counters.not_ip += 1;
            return;
        }
        self.counters.vectors += 1;
        self.counters.packets += group.count() as u64;
        for index in 0..self.program.fixed.len() {
            let (field, register) = self.program.fixed[index];
            self.load_fixed(field, register, key, switch);
        }
        for groups in &mut self.groups {
            groups.put_back(&self.registers);
        }
        group.for_each_run(|start_ns, tuples| {
            for tuple in tuples {
                for &(field, register) in &self.program.each {
                    let value = match field {
                        Field::Of(column) => u64::from(tuple.get(column)),
                        // A vector from elsewhere may begin at any time.
                        _ => start_ns.saturating_add(tuple.delta_ns()),
                    };
                    self.registers[usize::from(register)] = value;
                }
                self.counters.refused +=
                    run(&self.program.ops, &mut self.registers, &mut self.groups);
                if let AnswerOf::Packets(present) = self.program.answer
                    && self.registers[usize::from(present)] != 0
                {
                    self.row();
                }
            }
        });
    }

    /// What it has found so far.
    #[must_use]
    pub fn answer(&mut self) -> Answer {
        for groups in &mut self.groups {
            groups.put_back(&self.registers);
        }
        let program = &self.program;
        let words: usize = program.slots.iter().map(|slot| slot.kind.words()).sum();
        let rows = match program.answer {
            AnswerOf::Packets(_) => (0..self.rows_len as usize)
                .map(|row| values(&program.slots, self.rows[row * words..].iter()))
                .collect(),
            AnswerOf::Group(index) => {
                let groups = &self.groups[usize::from(index)];
                let (keys, states) = (groups.spec.key.len(), groups.spec.state.len());
                (0..groups.len as usize)
                    .map(|row| {
                        let key = groups.keys[row * keys..(row + 1) * keys].iter();
                        let state = &groups.states[row * states..(row + 1) * states];
                        values(&program.slots, key.chain(state))
                    })
                    .collect()
            }
        };
        Answer {
            names: program.names.clone(),
            rows,
        }
    }

    fn load_fixed(&mut self, field: Field, register: u8, key: &Key, switch: u32) {
        let at = usize::from(register);
        let word = match field {
            Field::Source | Field::Destination => {
                let end = match field {
                    Field::Source => key.source(),
                    _ => key.destination(),
                };
                let words = address_words(end.address, key.family() as u8);
                self.registers[at..at + 2].copy_from_slice(&words);
                return;
            }
            Field::SourcePort => u64::from(key.source().port),
            Field::DestinationPort => u64::from(key.destination().port),
            Field::Protocol => u64::from(key.protocol()),
            Field::Ingress => u64::from(key.ingress()),
            Field::Switch => u64::from(switch),
            Field::Arrival | Field::Of(Column::Time | _) => 0,
        };
        self.registers[at] = word;
    }

    fn row(&mut self) {
        if self.rows_len == self.limits.rows_max {
            self.counters.cut += 1;
            return;
        }
        self.rows_len += 1;
        for slot in &self.program.slots {
            self.rows
                .extend(slot.registers().map(|at| self.registers[usize::from(at)]));
        }
    }
}

fn values<'a>(slots: &[Slot], mut words: impl Iterator<Item = &'a u64>) -> Vec<Value> {
    let mut word = || *words.next().expect("a row has all its words");
    let value = |slot: &Slot| match slot.kind {
        Kind::Int => Value::Int(word().cast_signed()),
        Kind::Real => Value::Real(f64::from_bits(word())),
        Kind::Bool => Value::Bool(word() != 0),
        Kind::Address => {
            let address = u128::from(word()) << 64 | u128::from(word());
            Value::Address(Ipv6Addr::from_bits(address).to_canonical())
        }
    };
    slots.iter().map(value).collect()
}

impl Groups {
    /// Stores the state that is in the registers.
    #[inline(always)]
    fn put_back(&mut self, registers: &[u64; REGISTERS]) {
        if let Some(held) = self.held.take() {
            let first = held as usize * self.spec.state.len();
            let states = &mut self.states[first..first + self.spec.state.len()];
            for (word, &register) in states.iter_mut().zip(&self.spec.state) {
                *word = registers[usize::from(register)];
            }
        }
    }

    /// Loads the state of the group whose key is in the registers; false if there is no room.
    #[inline(always)]
    fn load(&mut self, registers: &mut [u64; REGISTERS]) -> bool {
        if let Some(held) = self.held {
            if self.spec.is_fixed || self.is_key(held, registers) {
                return true;
            }
            self.put_back(registers);
        }
        let Some(group) = self.find(registers) else {
            return false;
        };
        let first = group as usize * self.spec.state.len();
        for (&register, word) in self.spec.state.iter().zip(&self.states[first..]) {
            registers[usize::from(register)] = *word;
        }
        self.held = Some(group);
        true
    }

    #[inline(always)]
    fn is_key(&self, group: u32, registers: &[u64; REGISTERS]) -> bool {
        let first = group as usize * self.spec.key.len();
        let key = self.spec.key.iter().zip(&self.keys[first..]);
        key.fold(true, |same, (&at, word)| {
            same & (registers[usize::from(at)] == *word)
        })
    }

    fn find(&mut self, registers: &[u64; REGISTERS]) -> Option<u32> {
        let key = self.spec.key.iter().map(|&at| registers[usize::from(at)]);
        let mut at = self.home(key);
        while self.index[at] != NONE {
            if self.is_key(self.index[at], registers) {
                return Some(self.index[at]);
            }
            at = (at + 1) & (self.index.len() - 1);
        }
        if self.len == self.max {
            return None;
        }
        let group = self.len;
        self.index[at] = group;
        self.len += 1;
        self.keys
            .extend(self.spec.key.iter().map(|&at| registers[usize::from(at)]));
        self.states
            .resize(self.states.len() + self.spec.state.len(), 0);
        if self.len as usize * 2 > self.index.len() {
            self.grow();
        }
        Some(group)
    }

    /// The place in the index at which a key is looked for first.
    #[inline(always)]
    fn home(&self, key: impl Iterator<Item = u64>) -> usize {
        let hash = key.fold(0x9e37_79b9_7f4a_7c15, |hash: u64, word| {
            (hash.rotate_left(5) ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        });
        #[allow(clippy::cast_possible_truncation, reason = "the low bits are meant")]
        let low = mix64(hash) as usize;
        low & (self.index.len() - 1)
    }

    #[cold]
    fn grow(&mut self) {
        self.index = vec![NONE; self.index.len() * 2];
        let words = self.spec.key.len();
        for group in 0..self.len {
            let first = group as usize * words;
            let mut at = self.home(self.keys[first..first + words].iter().copied());
            while self.index[at] != NONE {
                at = (at + 1) & (self.index.len() - 1);
            }
            self.index[at] = group;
        }
    }
}

/// Runs a program for a packet; how many groups had no room. Every jump goes forward, so it ends.
#[inline]
#[allow(clippy::cast_precision_loss, reason = "that is what a real number is")]
fn run(ops: &[Op], registers: &mut [u64; REGISTERS], groups: &mut [Groups]) -> u64 {
    let (mut next, mut refused) = (0, 0);
    macro_rules! r {
        ($at:expr) => {
            registers[usize::from($at)]
        };
    }
    macro_rules! real {
        ($at:expr) => {
            f64::from_bits(r!($at))
        };
    }
    while let Some(&op) = ops.get(next) {
        next += 1;
        match op {
            Op::Copy { to, a } => r!(to) = r!(a),
            Op::AddInt { to, a, b } => r!(to) = r!(a).wrapping_add(r!(b)),
            Op::SubInt { to, a, b } => r!(to) = r!(a).wrapping_sub(r!(b)),
            Op::MulInt { to, a, b } => r!(to) = r!(a).wrapping_mul(r!(b)),
            Op::DivInt { to, a, b } => r!(to) = divided(r!(a).cast_signed(), r!(b).cast_signed()),
            Op::AddReal { to, a, b } => r!(to) = (real!(a) + real!(b)).to_bits(),
            Op::SubReal { to, a, b } => r!(to) = (real!(a) - real!(b)).to_bits(),
            Op::MulReal { to, a, b } => r!(to) = (real!(a) * real!(b)).to_bits(),
            Op::DivReal { to, a, b } => r!(to) = (real!(a) / real!(b)).to_bits(),
            Op::ToReal { to, a } => r!(to) = (r!(a).cast_signed() as f64).to_bits(),
            Op::Eq { to, a, b } => r!(to) = u64::from(r!(a) == r!(b)),
            Op::LtInt { to, a, b } => {
                r!(to) = u64::from(r!(a).cast_signed() < r!(b).cast_signed());
            }
            #[allow(clippy::float_cmp, reason = "the query says so")]
            Op::EqReal { to, a, b } => r!(to) = u64::from(real!(a) == real!(b)),
            Op::LtReal { to, a, b } => r!(to) = u64::from(real!(a) < real!(b)),
            Op::And { to, a, b } => r!(to) = r!(a) & r!(b),
            Op::Or { to, a, b } => r!(to) = r!(a) | r!(b),
            Op::Not { to, a } => r!(to) = r!(a) ^ 1,
            Op::Jump { to } => next = usize::from(to),
            Op::Unless { a, to } => {
                if r!(a) == 0 {
                    next = usize::from(to);
                }
            }
            Op::Group { index, to } => {
                if !groups[usize::from(index)].load(registers) {
                    refused += 1;
                    next = usize::from(to);
                }
            }
        }
    }
    refused
}

/// Rounded down; 0 by 0.
fn divided(a: i64, b: i64) -> u64 {
    if b == 0 {
        return 0;
    }
    let (quotient, rest) = (a.wrapping_div(b), a.wrapping_rem(b));
    let is_below = rest != 0 && (rest < 0) != (b < 0);
    quotient.wrapping_sub(i64::from(is_below)).cast_unsigned()
}
