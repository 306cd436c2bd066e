//! A query at work.

mod flows;
mod groups;

use std::net::{IpAddr, Ipv6Addr};

use strata_wire::AddressFamily;

pub use self::flows::Flows;
use self::flows::{Batch, FixedWords};
use self::groups::Groups;
use super::fields::{Field, Kind, address_number};
use super::program::{AnswerOf, Op, Program, REGISTERS, Slot, Turn, Unanswerable};
use crate::tuple::Tuple;
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
        let answers = (program.group_bytes().count() as u64).wrapping_add(rows);
        let share = self.bytes_max.div_euclid(answers.max(1));
        let at_most = |most: u32, bytes: u64| {
            let fitting = share.div_euclid(bytes.max(1));
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

/// Values of a program.
type Registers = [u64; REGISTERS];

/// Vectors whose groups are fetched before the first of them is looked at.
const BATCH: usize = 32;

/// A query at work: vectors in, an answer out.
///
/// Memory: what [`Limits`] allow: a group the words of its key and state and 15 to 26 bytes, a row
/// its words.
#[derive(Debug)]
pub struct Query {
    program: Program,
    registers: Box<Registers>,
    groups: Vec<Groups>,
    /// Which of [`FixedWords`] goes to which register.
    fixed: Vec<(u8, u8)>,
    /// The first `groupby`'s key in [`FixedWords`], if it is all there.
    lead: Option<Vec<u8>>,
    rows: Vec<u64>,
    rows_len: u32,
    limits: Limits,
    counters: QueryCounters,
    /// Whose numbers of flows the groups know.
    generation: u64,
    /// For vectors that only this query sees.
    alone: Option<Box<Batch>>,
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
        let groups = program.groups.iter();
        let groups = groups.map(|spec| Groups::new(spec.clone(), max));
        let fixed: Vec<(u8, u8)> = program.fixed.iter().flat_map(words_of).collect();
        let word_in = |register: &u8| {
            let mut loads = fixed.iter();
            loads.find(|(_, to)| to == register).map(|(word, _)| *word)
        };
        let lead = program.groups.first().and_then(|lead| {
            let words = lead.key.iter().map(word_in);
            words.collect::<Option<Vec<u8>>>()
        });
        Ok(Self {
            groups: groups.collect(),
            fixed,
            lead,
            program,
            registers,
            rows: Vec::new(),
            rows_len: 0,
            limits,
            counters: QueryCounters::default(),
            generation: 0,
            alone: None,
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
        self.take_all(switch, std::slice::from_ref(group));
    }

    /// Takes vectors or records one after the other; faster than each by itself, since their
    /// groups are fetched ahead. Several queries take them together by [`Flows::ask`].
    pub fn take_all<T: Tuple, G: Grouped<T>>(&mut self, switch: u32, groups: &[G]) {
        let alone = self.alone.take();
        let mut batch = alone.unwrap_or_else(|| Box::new(Batch::unnumbered()));
        for groups in groups.chunks(BATCH) {
            batch.read(switch, groups);
            self.take_batch(&batch, groups);
        }
        self.alone = Some(batch);
    }

    /// Takes the vectors of a batch.
    fn take_batch<T: Tuple, G: Grouped<T>>(&mut self, batch: &Batch, groups: &[G]) {
        if self.generation != batch.generation {
            self.groups.iter_mut().for_each(Groups::forget_flows);
            self.generation = batch.generation;
        }
        let mut hashes = [None; BATCH];
        if groups.len() > 1 {
            self.fetch(batch, &mut hashes[..groups.len()]);
        }
        for (at, group) in groups.iter().enumerate() {
            self.take_one(group, &batch.words[at], batch.flows[at], hashes[at]);
        }
    }

    /// Fetches the groups of vectors; where the first `groupby` does not know the flow's, it hashes
    /// the key.
    fn fetch(&self, batch: &Batch, hashes: &mut [Option<u64>]) {
        let Some((first, others)) = self.groups.split_first() else {
            return;
        };
        for ((hash, words), &flow) in hashes.iter_mut().zip(&batch.words).zip(&batch.flows) {
            for groups in others {
                groups.fetch(flow);
            }
            if first.fetch(flow) {
                continue;
            }
            if let Some(lead) = &self.lead {
                let key = lead.iter().map(|&word| words[usize::from(word)]);
                let found = first.hash_of(key);
                first.fetch_index(found);
                *hash = Some(found);
            }
        }
        for hash in hashes.iter().flatten() {
            first.fetch_record(*hash);
        }
    }

    #[inline(always)]
    fn take_one<T: Tuple, G: Grouped<T>>(
        &mut self,
        group: &G,
        words: &FixedWords,
        flow: u32,
        hash: Option<u64>,
    ) {
        if group.key().family() == AddressFamily::Mac {
            self.counters.not_ip = self.counters.not_ip.wrapping_add(1);
            return;
        }
        self.counters.vectors = self.counters.vectors.wrapping_add(1);
        self.counters.packets = self.counters.packets.wrapping_add(group.count() as u64);
        for groups in &mut self.groups {
            groups.put_back(&self.registers);
            groups.expect(flow, None);
        }
        if let Some(lead) = self.groups.first_mut() {
            lead.expect(flow, hash);
        }
        for &(word, register) in &self.fixed {
            self.registers[usize::from(register)] = words[usize::from(word)];
        }
        let Self {
            program,
            registers,
            groups,
            ..
        } = self;
        let from = first_each(program, registers);
        let is_row = |registers: &Registers| match program.answer {
            AnswerOf::Packets(present) => registers[usize::from(present)] != 0,
            AnswerOf::Group(_) => false,
        };
        if from == program.ops.len() && !is_row(registers) {
            return;
        }
        let mut refused: u64 = 0;
        let (rows, limits) = ((&mut self.rows, &mut self.rows_len), self.limits);
        let cut = &mut self.counters.cut;
        group.for_each_run(|start_ns, tuples| {
            for tuple in tuples {
                for &(field, register) in &program.each {
                    let value = match field {
                        Field::Of(column) => u64::from(tuple.get(column)),
                        // A vector from elsewhere may begin at any time.
                        _ => start_ns.saturating_add(tuple.delta_ns()),
                    };
                    registers[usize::from(register)] = value;
                }
                refused = refused.wrapping_add(run(&program.ops, from, registers, groups));
                if is_row(registers) {
                    if *rows.1 == limits.rows_max {
                        *cut = cut.wrapping_add(1);
                        continue;
                    }
                    *rows.1 = rows.1.wrapping_add(1);
                    for slot in &program.slots {
                        let words = slot.registers().map(|at| registers[usize::from(at)]);
                        rows.0.extend(words);
                    }
                }
            }
        });
        self.counters.refused = self.counters.refused.wrapping_add(refused);
    }

    /// How many rows its answer has so far.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self.program.answer {
            AnswerOf::Packets(_) => self.rows_len as usize,
            AnswerOf::Group(index) => self.groups[usize::from(index)].len(),
        }
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
                .map(|row| values(&program.slots, self.rows[row.wrapping_mul(words)..].iter()))
                .collect(),
            AnswerOf::Group(index) => {
                let groups = &self.groups[usize::from(index)];
                let rows = groups.records();
                rows.map(|row| values(&program.slots, row)).collect()
            }
        };
        Answer {
            names: program.names.clone(),
            rows,
        }
    }
}

/// Which of [`FixedWords`] a field is, and where it goes.
fn words_of(&(field, register): &(Field, u8)) -> impl Iterator<Item = (u8, u8)> + use<> {
    let (first, count): (u8, u8) = match field {
        Field::Source => (0, 2),
        Field::Destination => (2, 2),
        Field::SourcePort => (4, 1),
        Field::DestinationPort => (5, 1),
        Field::Protocol => (6, 1),
        Field::Ingress => (7, 1),
        Field::Switch => (8, 1),
        Field::Arrival | Field::Of(_) => (0, 0),
    };
    (0..count).map(move |word| (first.wrapping_add(word), register.wrapping_add(word)))
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

/// Computes what is the same for all packets of a vector; where each packet begins. Every jump goes
/// forward, so it ends.
#[inline(always)]
fn first_each(program: &Program, registers: &mut Registers) -> usize {
    let (mut next, mut again) = (0_usize, None);
    while let Some(turn) = program.turns.get(next) {
        match turn {
            Turn::EachPacket => return again.unwrap_or(next),
            Turn::Again => again = again.or(Some(next)),
            Turn::Once => {}
        }
        next = step(program.ops[next], next.wrapping_add(1), registers);
    }
    // To the end: no packet changes anything.
    next
}

/// Runs a program for a packet; how many groups had no room. Every jump goes forward, so it ends.
#[inline(always)]
fn run(ops: &[Op], from: usize, registers: &mut Registers, groups: &mut [Groups]) -> u64 {
    let (mut next, mut refused) = (from, 0_u64);
    while let Some(&op) = ops.get(next) {
        next = next.wrapping_add(1);
        if let Op::Group { index, to } = op {
            if !groups[usize::from(index)].load(registers) {
                refused = refused.wrapping_add(1);
                next = usize::from(to);
            }
        } else {
            next = step(op, next, registers);
        }
    }
    refused
}

/// Does one instruction; where it goes on, which is usually `next`.
#[inline(always)]
#[allow(clippy::cast_precision_loss, reason = "that is what a real number is")]
fn step(op: Op, next: usize, registers: &mut Registers) -> usize {
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
        Op::ToNumber { to, a } => r!(to) = address_number(r!(a), r!(a.wrapping_add(1))),
        Op::Eq { to, a, b } => r!(to) = u64::from(r!(a) == r!(b)),
        Op::LtInt { to, a, b } => {
            r!(to) = u64::from(r!(a).cast_signed() < r!(b).cast_signed());
        }
        // The sign of their difference in 32 bits.
        Op::Before { to, a, b } => r!(to) = r!(a).wrapping_sub(r!(b)) >> 31 & 1,
        #[allow(clippy::float_cmp, reason = "the query says so")]
        Op::EqReal { to, a, b } => r!(to) = u64::from(real!(a) == real!(b)),
        Op::LtReal { to, a, b } => r!(to) = u64::from(real!(a) < real!(b)),
        Op::And { to, a, b } => r!(to) = r!(a) & r!(b),
        Op::Or { to, a, b } => r!(to) = r!(a) | r!(b),
        Op::Not { to, a } => r!(to) = r!(a) ^ 1,
        Op::Jump { to } => return usize::from(to),
        Op::Unless { a, to } if r!(a) == 0 => return usize::from(to),
        Op::UnlessEq { a, b, to } if r!(a) != r!(b) => return usize::from(to),
        Op::IfEq { a, b, to } if r!(a) == r!(b) => return usize::from(to),
        Op::UnlessLt { a, b, to } if r!(a).cast_signed() >= r!(b).cast_signed() => {
            return usize::from(to);
        }
        Op::IfLt { a, b, to } if r!(a).cast_signed() < r!(b).cast_signed() => {
            return usize::from(to);
        }
        Op::Unless { .. }
        | Op::UnlessEq { .. }
        | Op::IfEq { .. }
        | Op::UnlessLt { .. }
        | Op::IfLt { .. } => {}
        Op::Group { .. } => unreachable!("only `run` loads groups"),
    }
    next
}

/// Rounded down; 0 by 0.
fn divided(a: i64, b: i64) -> u64 {
    let quotient = match a.checked_div(b) {
        Some(quotient) => quotient,
        // The least by -1 is one more than the largest, and wraps to itself.
        None if b == -1 => a,
        None => return 0,
    };
    let rest = a.wrapping_sub(quotient.wrapping_mul(b));
    let is_below = rest != 0 && (rest < 0) != (b < 0);
    quotient.wrapping_sub(i64::from(is_below)).cast_unsigned()
}
