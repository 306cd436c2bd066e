//! What statements, folds and expressions are compiled into: registers, instructions, streams and
//! their columns.

use std::collections::HashMap;

use super::super::error::QueryError;
use super::super::fields::{FIELDS, Kind, SHOWN, UNKNOWN};
use super::super::parse::{Name, Tree};
use super::super::program::{AnswerOf, OPS_MAX, Op, Program, REGISTERS, Slot};
use super::optimize::optimize;
use crate::tuple::Columns;

pub(super) type Checked<T> = Result<T, QueryError>;

/// A stream of packets.
#[derive(Clone, Debug)]
pub(super) struct Stream<'a> {
    pub(super) name: &'a str,
    /// Register that says whether a packet is of it.
    pub(super) present: u8,
    /// Columns in addition to those of `T`, or all of them.
    pub(super) columns: Vec<(&'a str, Slot)>,
    /// Whether it has the columns of `T`.
    pub(super) has_fields: bool,
    /// The fold, if it never says `emit()`: no packets are of the stream then.
    pub(super) is_silent: Option<&'a str>,
    pub(super) answer: AnswerOf,
    /// State of a group that is the answer, to be shown after the key.
    pub(super) shown: Vec<(&'a str, Slot)>,
}

pub(super) struct Compiler<'t, 'a> {
    pub(super) text: &'t str,
    pub(super) tree: &'t Tree<'a>,
    pub(super) streams: Vec<Stream<'a>>,
    pub(super) fields: HashMap<&'static str, Slot>,
    pub(super) next_register: usize,
    pub(super) free: Vec<u8>,
    pub(super) in_use: Vec<u8>,
    pub(super) program: Program,
}

impl<'t, 'a> Compiler<'t, 'a> {
    pub(super) fn new(text: &'t str, tree: &'t Tree<'a>) -> Self {
        let program = Program {
            ops: Vec::new(),
            turns: Vec::new(),
            constants: vec![(0, 1)],
            fixed: Vec::new(),
            each: Vec::new(),
            groups: Vec::new(),
            names: Vec::new(),
            slots: Vec::new(),
            answer: AnswerOf::Packets(0),
            columns: Columns::default(),
        };
        let all = Stream {
            name: "T",
            present: 0,
            columns: Vec::new(),
            has_fields: true,
            is_silent: None,
            answer: AnswerOf::Packets(0),
            shown: Vec::new(),
        };
        Self {
            text,
            tree,
            streams: vec![all],
            fields: HashMap::new(),
            next_register: 1,
            free: Vec::new(),
            in_use: Vec::new(),
            program,
        }
    }

    pub(super) fn wrong<T>(&self, at: usize, message: impl Into<String>) -> Checked<T> {
        Err(QueryError::new(self.text, at, message))
    }

    // Registers and instructions.

    pub(super) fn register(&mut self, kind: Kind, at: usize) -> Checked<Slot> {
        let first = self.next_register;
        self.next_register = self.next_register.wrapping_add(kind.words());
        match u8::try_from(self.next_register.wrapping_sub(1)) {
            Ok(_) => Ok(Slot {
                at: strata_wire::exact(first),
                kind,
                is_fixed: false,
            }),
            Err(_) => self.wrong(
                at,
                format!("too large: more than {REGISTERS} values at once"),
            ),
        }
    }

    /// A register until the end of the statement.
    pub(super) fn temporary(&mut self, kind: Kind, at: usize) -> Checked<Slot> {
        let register = match self.free.pop() {
            Some(register) => register,
            None => self.register(Kind::Int, at)?.at,
        };
        self.in_use.push(register);
        Ok(Slot {
            at: register,
            kind,
            is_fixed: false,
        })
    }

    pub(super) fn constant(&mut self, kind: Kind, words: &[u64], at: usize) -> Checked<Slot> {
        let known = |first: usize| {
            words.iter().zip(first..).all(|(&word, register)| {
                let held = |c: &&(u8, u64)| usize::from(c.0) == register;
                self.program
                    .constants
                    .iter()
                    .find(held)
                    .is_some_and(|c| c.1 == word)
            })
        };
        let found = self
            .program
            .constants
            .iter()
            .find(|c| known(usize::from(c.0)));
        if let Some(&(first, _)) = found {
            return Ok(Slot {
                at: first,
                kind,
                is_fixed: true,
            });
        }
        let slot = self.register(kind, at)?;
        self.program
            .constants
            .extend(slot.registers().zip(words.iter().copied()));
        Ok(Slot {
            is_fixed: true,
            ..slot
        })
    }

    pub(super) fn op(&mut self, op: Op, at: usize) -> Checked<usize> {
        if self.program.ops.len() == OPS_MAX {
            return self.wrong(at, format!("too large: more than {OPS_MAX} instructions"));
        }
        self.program.ops.push(op);
        Ok(self.program.ops.len().wrapping_sub(1))
    }

    /// Makes the jump at `op` go to what comes next.
    pub(super) fn land(&mut self, op: usize) {
        let here = strata_wire::exact(self.program.ops.len());
        let to = self.program.ops[op].target_mut();
        *to.expect("only jumps land") = here;
    }

    // Names.

    pub(super) fn stream(&self, (name, at): Name<'a>) -> Checked<Stream<'a>> {
        let Some(stream) = self.streams.iter().rev().find(|stream| stream.name == name) else {
            let known: Vec<&str> = self.streams.iter().map(|stream| stream.name).collect();
            return self.wrong(
                at,
                format!("no stream {name}: there are {}", known.join(", ")),
            );
        };
        if let Some(fold) = stream.is_silent {
            let message = format!("{name} has no packets: its fold {fold} never calls emit()");
            return self.wrong(at, message);
        }
        Ok(stream.clone())
    }

    /// A column of a stream.
    pub(super) fn column(&mut self, stream: &Stream<'a>, (name, at): Name<'_>) -> Checked<Slot> {
        if let Some((_, slot)) = stream.columns.iter().find(|(known, _)| *known == name) {
            return Ok(*slot);
        }
        if stream.has_fields {
            if let Some(&slot) = self.fields.get(name) {
                return Ok(slot);
            }
            if let Some(&(known, field)) = FIELDS.iter().find(|(known, _)| *known == name) {
                let slot = self.register(field.kind(), at)?;
                let slot = Slot {
                    is_fixed: field.is_fixed(),
                    ..slot
                };
                self.fields.insert(known, slot);
                self.program.columns.0 |= field.columns().0;
                match field.is_fixed() {
                    true => self.program.fixed.push((field, slot.at)),
                    false => self.program.each.push((field, slot.at)),
                }
                return Ok(slot);
            }
        }
        if let Some((_, why)) = UNKNOWN.iter().find(|(unknown, _)| *unknown == name) {
            return self.wrong(at, format!("no column {name}: {why}"));
        }
        let mut known: Vec<&str> = stream.columns.iter().map(|(name, _)| *name).collect();
        if stream.has_fields {
            known.extend(FIELDS.iter().map(|(name, _)| *name));
        }
        let of = stream.name;
        self.wrong(
            at,
            format!("no column {name} in {of}: there are {}", known.join(", ")),
        )
    }

    pub(super) fn finish(mut self) -> Checked<Program> {
        let Some(last) = self.streams.last().cloned() else {
            return self.wrong(0, "a query has a statement");
        };
        let mut shown = last.shown.clone();
        if let AnswerOf::Packets(_) = last.answer {
            if last.has_fields {
                for (name, _) in &FIELDS[..SHOWN] {
                    // A column of the query hides it.
                    if !last.columns.iter().any(|(known, _)| known == name) {
                        shown.push((name, self.column(&last, (name, 0))?));
                    }
                }
            }
            shown.extend(&last.columns);
        }
        self.program.names = shown.iter().map(|(name, _)| (*name).to_owned()).collect();
        self.program.slots = shown.iter().map(|(_, slot)| *slot).collect();
        self.program.answer = last.answer;
        optimize(&mut self.program);
        Ok(self.program)
    }
}
