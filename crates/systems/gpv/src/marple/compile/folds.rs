//! Folds: what a `groupby` does with each packet of a group.

use std::collections::{HashMap, HashSet};

use super::super::fields::Kind;
use super::super::parse::{Fold, Statement};
use super::super::program::{GroupSpec, Op, Slot};
use super::compiler::{Checked, Compiler, Stream};
use super::expressions::Scope;

/// Where a fold's variables are.
pub(super) struct Compiled<'a> {
    /// Whether it said `emit()`.
    pub(super) emitted: u8,
    pub(super) state: Vec<(&'a str, Slot)>,
    /// The state as it was then.
    pub(super) emits: Vec<(&'a str, Slot)>,
}

impl<'a> Compiler<'_, 'a> {
    /// Compiles a fold. Kinds of its variables are found by doing it until none changes: they
    /// begin as integers and become reals when a real number is assigned.
    pub(super) fn fold(
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
                return self.wrong(name_at, format!("{name} is named twice"));
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
        let mut count: usize = 0;
        for statement in body {
            match statement {
                Statement::Assign((name, at), expr) => {
                    let value = self.expr(expr, input, Some(scope))?;
                    let mut value = self.number(value, expr.at)?;
                    if !matches!(value.kind, Kind::Int | Kind::Real) {
                        let found = value.kind.name();
                        return self.wrong(expr.at, format!("expected a number, this is {found}"));
                    }
                    let kind = scope.kinds.entry(name).or_insert(value.kind);
                    if value.kind == Kind::Real {
                        // If it was not, the fold is compiled again.
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
                    count = count.wrapping_add(1);
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
                    count = count.wrapping_add(in_yes.max(in_no));
                    if count > 1 {
                        return self.wrong(at, "a second emit() for the same packet");
                    }
                }
            }
        }
        Ok(count)
    }
}
