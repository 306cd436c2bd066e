//! From a query's text to its program: names, kinds and bounds are checked on the way.

use std::collections::{HashMap, HashSet};

use super::error::QueryError;
use super::fields::{FIELDS, Kind, SHOWN, UNKNOWN};
use super::parse::{Binary, Expr, Fold, Name, Node, Operator, Statement, Tree, parse};
use super::program::{AnswerOf, GroupSpec, OPS_MAX, Op, Program, REGISTERS, Slot};
use crate::tuple::Columns;

/// Statements of a query at most.
const STREAMS_MAX: usize = 64;

/// Checks a query and makes its program. `parameters` are the values of `$names`.
///
/// # Errors
///
/// With what is wrong, where, and what to do.
pub fn compile(text: &str, parameters: &[(&str, &str)]) -> Result<Program, QueryError> {
    let tree = parse(text, parameters)?;
    let mut compiler = Compiler::new(text, &tree);
    for (name, operator) in &tree.streams {
        compiler.statement(*name, operator)?;
    }
    compiler.finish()
}

type Checked<T> = Result<T, QueryError>;

/// A stream of packets.
#[derive(Clone, Debug)]
struct Stream<'a> {
    name: &'a str,
    /// Register that says whether a packet is of it.
    present: u8,
    /// Columns in addition to those of `T`, or all of them.
    columns: Vec<(&'a str, Slot)>,
    /// Whether it has the columns of `T`.
    has_fields: bool,
    /// The fold, if it never says `emit()`: no packets are of the stream then.
    is_silent: Option<&'a str>,
    answer: AnswerOf,
    /// State of a group that is the answer, to be shown after the key.
    shown: Vec<(&'a str, Slot)>,
}

struct Compiler<'t, 'a> {
    text: &'t str,
    tree: &'t Tree<'a>,
    streams: Vec<Stream<'a>>,
    fields: HashMap<&'static str, Slot>,
    next_register: usize,
    free: Vec<u8>,
    in_use: Vec<u8>,
    program: Program,
}

/// What names mean, and which have a value, inside a fold.
struct Scope<'a> {
    kinds: HashMap<&'a str, Kind>,
    variables: HashMap<&'a str, Slot>,
    assigned: HashSet<&'a str>,
}

impl<'t, 'a> Compiler<'t, 'a> {
    fn new(text: &'t str, tree: &'t Tree<'a>) -> Self {
        let program = Program {
            ops: Vec::new(),
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

    fn wrong<T>(&self, at: usize, message: impl Into<String>) -> Checked<T> {
        Err(QueryError::new(self.text, at, message))
    }

    // Registers and instructions.

    fn register(&mut self, kind: Kind, at: usize) -> Checked<Slot> {
        let first = self.next_register;
        self.next_register += kind.words();
        match u8::try_from(self.next_register - 1) {
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
    fn temporary(&mut self, kind: Kind, at: usize) -> Checked<Slot> {
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

    fn constant(&mut self, kind: Kind, words: &[u64], at: usize) -> Checked<Slot> {
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

    fn op(&mut self, op: Op, at: usize) -> Checked<usize> {
        if self.program.ops.len() == OPS_MAX {
            return self.wrong(at, format!("too large: more than {OPS_MAX} instructions"));
        }
        self.program.ops.push(op);
        Ok(self.program.ops.len() - 1)
    }

    /// Makes the jump at `op` go to what comes next.
    fn land(&mut self, op: usize) {
        let here = strata_wire::exact(self.program.ops.len());
        match &mut self.program.ops[op] {
            Op::Jump { to } | Op::Unless { to, .. } | Op::Group { to, .. } => *to = here,
            other => unreachable!("{other:?} is no jump"),
        }
    }

    // Names.

    fn stream(&self, (name, at): Name<'a>) -> Checked<Stream<'a>> {
        let Some(stream) = self.streams.iter().rev().find(|stream| stream.name == name) else {
            let known: Vec<&str> = self.streams.iter().map(|stream| stream.name).collect();
            return self.wrong(
                at,
                format!("no stream {name}: there are {}", known.join(", ")),
            );
        };
        if let Some(fold) = stream.is_silent {
            let message = format!("{name} has no packets: its fold {fold} never says emit()");
            return self.wrong(at, message);
        }
        Ok(stream.clone())
    }

    /// A column of a stream.
    fn column(&mut self, stream: &Stream<'a>, (name, at): Name<'_>) -> Checked<Slot> {
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

    // Expressions.

    fn expr(
        &mut self,
        expr: &Expr<'a>,
        stream: &Stream<'a>,
        scope: Option<&Scope<'a>>,
    ) -> Checked<Slot> {
        let at = expr.at;
        if let Some(value) = literal(expr) {
            return match value {
                Literal::Int(value) => self.constant(Kind::Int, &[value.cast_unsigned()], at),
                Literal::Real(value) => self.constant(Kind::Real, &[value.to_bits()], at),
            };
        }
        match &expr.node {
            Node::Int(_) | Node::Real(_) => self.wrong(at, "a number that is none"),
            Node::Bool(value) => self.constant(Kind::Bool, &[u64::from(*value)], at),
            Node::Address(words) => self.constant(Kind::Address, words, at),
            Node::Name(name) => match scope.and_then(|scope| scope.variables.get(name)) {
                Some(&slot) => match scope.is_some_and(|scope| scope.assigned.contains(name)) {
                    true => Ok(slot),
                    false => self.wrong(at, format!("{name} may have no value here")),
                },
                None => self.column(stream, (name, at)),
            },
            Node::Not(inner) => {
                let inner = self.of_kind(inner, Kind::Bool, stream, scope)?;
                let to = self.temporary(Kind::Bool, at)?;
                self.op(
                    Op::Not {
                        to: to.at,
                        a: inner.at,
                    },
                    at,
                )?;
                Ok(Slot {
                    is_fixed: inner.is_fixed,
                    ..to
                })
            }
            Node::Binary(operator, left, right) => {
                let a = self.expr(left, stream, scope)?;
                let b = self.expr(right, stream, scope)?;
                let slot = self.binary(*operator, a, b, at)?;
                Ok(Slot {
                    is_fixed: a.is_fixed && b.is_fixed,
                    ..slot
                })
            }
        }
    }

    fn of_kind(
        &mut self,
        expr: &Expr<'a>,
        kind: Kind,
        stream: &Stream<'a>,
        scope: Option<&Scope<'a>>,
    ) -> Checked<Slot> {
        let slot = self.expr(expr, stream, scope)?;
        match slot.kind == kind {
            true => Ok(slot),
            false => {
                let (wanted, found) = (kind.name(), slot.kind.name());
                self.wrong(expr.at, format!("expected {wanted}, this is {found}"))
            }
        }
    }

    fn binary(&mut self, operator: Binary, a: Slot, b: Slot, at: usize) -> Checked<Slot> {
        use Binary::{Add, And, Div, Eq, Ge, Gt, Le, Lt, Mul, Ne, Or, Sub};
        let is_number = |slot: Slot| matches!(slot.kind, Kind::Int | Kind::Real);
        let fits = match operator {
            And | Or => a.kind == Kind::Bool && b.kind == Kind::Bool,
            Eq | Ne => a.kind == b.kind || is_number(a) && is_number(b),
            _ => is_number(a) && is_number(b),
        };
        if !fits {
            let (a, b) = (a.kind.name(), b.kind.name());
            return self.wrong(at, format!("this does not go with {a} and {b}"));
        }
        let is_real = a.kind == Kind::Real || b.kind == Kind::Real;
        let (a, b) = match is_real {
            true => (self.real(a, at)?, self.real(b, at)?),
            false => (a, b),
        };
        let kind = match operator {
            Add | Sub | Mul | Div if is_real => Kind::Real,
            Add | Sub | Mul | Div => Kind::Int,
            _ => Kind::Bool,
        };
        let slot = self.temporary(kind, at)?;
        let (to, a_at, b_at) = (slot.at, a.at, b.at);
        // a > b is b < a; a >= b is not a < b.
        let (x, y) = if matches!(operator, Gt | Le) {
            (b_at, a_at)
        } else {
            (a_at, b_at)
        };
        let op = match (operator, is_real) {
            (Add, false) => Op::AddInt { to, a: x, b: y },
            (Sub, false) => Op::SubInt { to, a: x, b: y },
            (Mul, false) => Op::MulInt { to, a: x, b: y },
            (Div, false) => Op::DivInt { to, a: x, b: y },
            (Add, true) => Op::AddReal { to, a: x, b: y },
            (Sub, true) => Op::SubReal { to, a: x, b: y },
            (Mul, true) => Op::MulReal { to, a: x, b: y },
            (Div, true) => Op::DivReal { to, a: x, b: y },
            (Eq | Ne, true) => Op::EqReal { to, a: x, b: y },
            (Eq | Ne, false) => Op::Eq { to, a: x, b: y },
            (Lt | Gt | Le | Ge, true) => Op::LtReal { to, a: x, b: y },
            (Lt | Gt | Le | Ge, false) => Op::LtInt { to, a: x, b: y },
            (And, _) => Op::And { to, a: x, b: y },
            (Or, _) => Op::Or { to, a: x, b: y },
        };
        self.op(op, at)?;
        if a.kind == Kind::Address {
            let low = self.temporary(Kind::Bool, at)?.at;
            self.op(
                Op::Eq {
                    to: low,
                    a: a_at + 1,
                    b: b_at + 1,
                },
                at,
            )?;
            self.op(Op::And { to, a: to, b: low }, at)?;
        }
        if matches!(operator, Ne | Le | Ge) {
            self.op(Op::Not { to, a: to }, at)?;
        }
        Ok(slot)
    }

    fn real(&mut self, slot: Slot, at: usize) -> Checked<Slot> {
        if slot.kind == Kind::Real {
            return Ok(slot);
        }
        let to = self.temporary(Kind::Real, at)?;
        self.op(
            Op::ToReal {
                to: to.at,
                a: slot.at,
            },
            at,
        )?;
        Ok(to)
    }

    fn copy(&mut self, from: Slot, to: Slot, at: usize) -> Checked<()> {
        for (to, a) in to.registers().zip(from.registers()) {
            self.op(Op::Copy { to, a }, at)?;
        }
        Ok(())
    }

    // Statements.

    fn statement(&mut self, name: Name<'a>, operator: &Operator<'a>) -> Checked<()> {
        let (label, at) = name;
        if self.streams.iter().any(|stream| stream.name == label) {
            return self.wrong(at, format!("there is a stream {label} already"));
        }
        if self.streams.len() > STREAMS_MAX {
            return self.wrong(at, format!("too large: more than {STREAMS_MAX} statements"));
        }
        let stream = match operator {
            Operator::Filter(input, condition) => self.filter(label, *input, condition)?,
            Operator::Map(input, names, exprs) => self.map(name, *input, names, exprs)?,
            Operator::GroupBy(input, key, fold) => self.group_by(name, *input, key, *fold)?,
            Operator::Zip(left, right) => self.zip(name, *left, *right)?,
        };
        self.streams.push(stream);
        self.free.append(&mut self.in_use);
        Ok(())
    }

    fn filter(
        &mut self,
        name: &'a str,
        input: Name<'a>,
        condition: &Expr<'a>,
    ) -> Checked<Stream<'a>> {
        let input = self.stream(input)?;
        let at = condition.at;
        let present = self.register(Kind::Bool, at)?;
        self.op(
            Op::Copy {
                to: present.at,
                a: input.present,
            },
            at,
        )?;
        let skip = self.op(
            Op::Unless {
                a: input.present,
                to: 0,
            },
            at,
        )?;
        let result = self.of_kind(condition, Kind::Bool, &input, None)?;
        self.copy(result, present, at)?;
        self.land(skip);
        let answer = AnswerOf::Packets(present.at);
        Ok(Stream {
            name,
            present: present.at,
            answer,
            shown: Vec::new(),
            ..input
        })
    }

    fn map(
        &mut self,
        (name, at): Name<'a>,
        input: Name<'a>,
        names: &[Name<'a>],
        exprs: &[Expr<'a>],
    ) -> Checked<Stream<'a>> {
        let mut stream = self.stream(input)?;
        if names.len() != exprs.len() || names.is_empty() {
            let message = format!("{} columns and {} values", names.len(), exprs.len());
            return self.wrong(at, message);
        }
        let skip = self.op(
            Op::Unless {
                a: stream.present,
                to: 0,
            },
            at,
        )?;
        let mut added = Vec::new();
        for ((column, column_at), expr) in names.iter().zip(exprs) {
            let value = self.expr(expr, &stream, None)?;
            let slot = self.register(value.kind, *column_at)?;
            self.copy(value, slot, expr.at)?;
            if added.iter().any(|(known, _)| known == column) {
                return self.wrong(*column_at, format!("column {column} is there twice"));
            }
            added.push((
                *column,
                Slot {
                    is_fixed: value.is_fixed,
                    ..slot
                },
            ));
        }
        self.land(skip);
        stream
            .columns
            .retain(|(known, _)| !added.iter().any(|(name, _)| name == known));
        stream.columns.extend(added);
        let answer = AnswerOf::Packets(stream.present);
        Ok(Stream {
            name,
            answer,
            shown: Vec::new(),
            ..stream
        })
    }

    fn zip(
        &mut self,
        (name, at): Name<'a>,
        left: Name<'a>,
        right: Name<'a>,
    ) -> Checked<Stream<'a>> {
        let (a, b) = (self.stream(left)?, self.stream(right)?);
        let present = self.register(Kind::Bool, at)?.at;
        self.op(
            Op::And {
                to: present,
                a: a.present,
                b: b.present,
            },
            at,
        )?;
        let mut columns = a.columns;
        for (column, slot) in b.columns {
            match columns.iter().find(|(known, _)| *known == column) {
                Some((_, known)) if known.at != slot.at => {
                    let message = format!(
                        "both {} and {} have a column {column}, and not the same: rename one by map",
                        left.0, right.0
                    );
                    return self.wrong(right.1, message);
                }
                Some(_) => {}
                None => columns.push((column, slot)),
            }
        }
        Ok(Stream {
            name,
            present,
            columns,
            has_fields: a.has_fields || b.has_fields,
            is_silent: None,
            answer: AnswerOf::Packets(present),
            shown: Vec::new(),
        })
    }

    fn group_by(
        &mut self,
        (name, at): Name<'a>,
        input: Name<'a>,
        key: &[Name<'a>],
        (fold_name, fold_at): Name<'a>,
    ) -> Checked<Stream<'a>> {
        let tree = self.tree;
        let input = self.stream(input)?;
        let Some(fold) = tree.folds.iter().find(|fold| fold.name.0 == fold_name) else {
            return self.wrong(fold_at, format!("no fold {fold_name}: define it by def"));
        };
        let mut columns = Vec::new();
        for &column in key {
            let slot = self.column(&input, column)?;
            if columns.iter().any(|(known, _)| *known == column.0) {
                return self.wrong(column.1, format!("column {} is there twice", column.0));
            }
            columns.push((column.0, slot));
        }
        for &column in &fold.columns {
            self.column(&input, column)?;
        }
        let (scope, is_silent) = self.fold(fold, &input, &columns, at)?;
        let mut stream = Stream {
            name,
            present: scope.emitted,
            shown: columns.clone(),
            columns,
            has_fields: false,
            is_silent: is_silent.then_some(fold_name),
            answer: AnswerOf::Group(strata_wire::exact(self.program.groups.len() - 1)),
        };
        stream.shown.extend(scope.state);
        for (column, slot) in scope.emits {
            if stream.columns.iter().any(|(known, _)| *known == column) {
                return self.wrong(
                    fold_at,
                    format!("{column} is both in the key and in the state"),
                );
            }
            stream.columns.push((column, slot));
        }
        Ok(stream)
    }

    /// Compiles a fold. Kinds of its variables are found by doing it until none changes: they
    /// begin as integers and become reals when a real number is assigned.
    fn fold(
        &mut self,
        fold: &Fold<'a>,
        input: &Stream<'a>,
        key: &[(&'a str, Slot)],
        at: usize,
    ) -> Checked<(Compiled<'a>, bool)> {
        let mut kinds = HashMap::new();
        loop {
            let ops = self.program.ops.len();
            let registers = self.next_register;
            let constants = self.program.constants.len();
            let loads = (self.program.fixed.len(), self.program.each.len());
            let (free, in_use) = (self.free.clone(), self.in_use.clone());
            let fields = self.fields.clone();
            let before = kinds.clone();
            let (compiled, emits, found) = self.fold_once(fold, input, key, at, kinds)?;
            if found == before {
                return Ok((compiled, emits == 0));
            }
            kinds = found;
            self.program.ops.truncate(ops);
            self.program.constants.truncate(constants);
            self.program.fixed.truncate(loads.0);
            self.program.each.truncate(loads.1);
            self.program.groups.pop();
            self.next_register = registers;
            (self.free, self.in_use, self.fields) = (free, in_use, fields);
        }
    }

    fn fold_once(
        &mut self,
        fold: &Fold<'a>,
        input: &Stream<'a>,
        key: &[(&'a str, Slot)],
        at: usize,
        kinds: HashMap<&'a str, Kind>,
    ) -> Checked<(Compiled<'a>, usize, HashMap<&'a str, Kind>)> {
        let mut scope = Scope {
            kinds,
            variables: HashMap::new(),
            assigned: HashSet::new(),
        };
        let (mut state, mut emits) = (Vec::new(), Vec::new());
        for &(name, name_at) in &fold.state {
            let kind = *scope.kinds.entry(name).or_insert(Kind::Int);
            let slot = self.register(kind, name_at)?;
            if scope.variables.insert(name, slot).is_some() {
                return self.wrong(name_at, format!("{name} is there twice"));
            }
            scope.assigned.insert(name);
            state.push((name, slot));
            emits.push((name, self.register(kind, name_at)?));
        }
        let emitted = self.register(Kind::Bool, at)?.at;
        let zero = self.constant(Kind::Bool, &[0], at)?.at;
        let Ok(index) = u8::try_from(self.program.groups.len()) else {
            return self.wrong(at, "too large: more than 255 groupby");
        };
        self.program.groups.push(GroupSpec {
            key: key.iter().flat_map(|(_, slot)| slot.registers()).collect(),
            state: state.iter().map(|(_, slot)| slot.at).collect(),
            is_fixed: key.iter().all(|(_, slot)| slot.is_fixed),
        });
        self.op(
            Op::Copy {
                to: emitted,
                a: zero,
            },
            at,
        )?;
        let absent = self.op(
            Op::Unless {
                a: input.present,
                to: 0,
            },
            at,
        )?;
        let refused = self.op(Op::Group { index, to: 0 }, at)?;
        let compiled = Compiled {
            emitted,
            state,
            emits,
        };
        let count = self.body(&fold.body, input, &mut scope, &compiled)?;
        self.land(absent);
        self.land(refused);
        Ok((compiled, count, scope.kinds))
    }

    /// Compiles statements of a fold, and says how often they say `emit()` at most.
    fn body(
        &mut self,
        body: &[Statement<'a>],
        input: &Stream<'a>,
        scope: &mut Scope<'a>,
        compiled: &Compiled<'a>,
    ) -> Checked<usize> {
        let mut count = 0;
        for statement in body {
            match statement {
                Statement::Assign((name, at), expr) => {
                    let mut value = self.expr(expr, input, Some(scope))?;
                    if !matches!(value.kind, Kind::Int | Kind::Real) {
                        let found = value.kind.name();
                        return self.wrong(expr.at, format!("expected a number, this is {found}"));
                    }
                    let kind = scope.kinds.entry(name).or_insert(value.kind);
                    if value.kind == Kind::Real {
                        // If it was none, the fold is compiled again.
                        *kind = Kind::Real;
                    }
                    let kind = *kind;
                    let slot = match scope.variables.get(name) {
                        Some(&slot) => slot,
                        None => self.register(kind, *at)?,
                    };
                    if slot.kind == Kind::Real {
                        value = self.real(value, *at)?;
                    }
                    self.copy(value, slot, *at)?;
                    scope.variables.insert(name, slot);
                    scope.assigned.insert(name);
                }
                Statement::Emit(at) => {
                    count += 1;
                    if count > 1 {
                        return self.wrong(*at, "a second emit() for the same packet");
                    }
                    for ((_, from), (_, to)) in compiled.state.iter().zip(&compiled.emits) {
                        self.copy(*from, *to, *at)?;
                    }
                    self.op(
                        Op::Copy {
                            to: compiled.emitted,
                            a: 0,
                        },
                        *at,
                    )?;
                }
                Statement::If(condition, yes, no) => {
                    let at = condition.at;
                    let test = self.of_kind(condition, Kind::Bool, input, Some(scope))?;
                    let to_no = self.op(Op::Unless { a: test.at, to: 0 }, at)?;
                    let before = scope.assigned.clone();
                    let in_yes = self.body(yes, input, scope, compiled)?;
                    let after_yes = std::mem::replace(&mut scope.assigned, before);
                    let to_end = self.op(Op::Jump { to: 0 }, at)?;
                    self.land(to_no);
                    let in_no = self.body(no, input, scope, compiled)?;
                    self.land(to_end);
                    scope.assigned.retain(|name| after_yes.contains(name));
                    count += in_yes.max(in_no);
                    if count > 1 {
                        return self.wrong(at, "a second emit() for the same packet");
                    }
                }
            }
        }
        Ok(count)
    }

    fn finish(mut self) -> Checked<Program> {
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
        Ok(self.program)
    }
}

/// Where a fold's variables are.
struct Compiled<'a> {
    /// Whether it said `emit()`.
    emitted: u8,
    state: Vec<(&'a str, Slot)>,
    /// The state as it was then.
    emits: Vec<(&'a str, Slot)>,
}

enum Literal {
    Int(i64),
    Real(f64),
}

/// The value of an expression that is written as numbers.
#[allow(clippy::cast_precision_loss, reason = "that is what a real number is")]
fn literal(expr: &Expr<'_>) -> Option<Literal> {
    let real = |value: &Literal| match value {
        Literal::Int(value) => *value as f64,
        Literal::Real(value) => *value,
    };
    match &expr.node {
        Node::Int(value) => Some(Literal::Int(*value)),
        Node::Real(value) => Some(Literal::Real(*value)),
        Node::Binary(operator, left, right) => {
            let (a, b) = (literal(left)?, literal(right)?);
            if let (Literal::Int(a), Literal::Int(b)) = (&a, &b) {
                return match operator {
                    Binary::Add => Some(Literal::Int(a.wrapping_add(*b))),
                    Binary::Sub => Some(Literal::Int(a.wrapping_sub(*b))),
                    Binary::Mul => Some(Literal::Int(a.wrapping_mul(*b))),
                    Binary::Div => Some(Literal::Real(*a as f64 / *b as f64)),
                    _ => None,
                };
            }
            let (a, b) = (real(&a), real(&b));
            Some(Literal::Real(match operator {
                Binary::Add => a + b,
                Binary::Sub => a - b,
                Binary::Mul => a * b,
                Binary::Div => a / b,
                _ => return None,
            }))
        }
        _ => None,
    }
}
