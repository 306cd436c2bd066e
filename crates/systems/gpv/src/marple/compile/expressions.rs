//! Expressions: their kinds, and the instructions that compute them.

use std::collections::{HashMap, HashSet};

use super::super::fields::Kind;
use super::super::parse::{Binary, Expr, Node};
use super::super::program::{Op, Slot};
use super::compiler::{Checked, Compiler, Stream};

/// What names mean, and which have a value, inside a fold.
pub(super) struct Scope<'a> {
    pub(super) kinds: HashMap<&'a str, Kind>,
    pub(super) variables: HashMap<&'a str, Slot>,
    pub(super) assigned: HashSet<&'a str>,
}

impl<'a> Compiler<'_, 'a> {
    pub(super) fn expr(
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
            Node::Int(_) | Node::Real(_) => self.wrong(at, "an invalid number"),
            Node::Bool(value) => self.constant(Kind::Bool, &[u64::from(*value)], at),
            Node::Address(words) => self.constant(Kind::Address, words, at),
            Node::Name(name) => match scope.and_then(|scope| scope.variables.get(name)) {
                Some(&slot) => match scope.is_some_and(|scope| scope.assigned.contains(name)) {
                    true => Ok(slot),
                    false => self.wrong(at, format!("{name} may have no value at this point")),
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

    pub(super) fn of_kind(
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
        use Binary::{Add, And, Before, Div, Eq, Ge, Gt, Le, Lt, Mul, Ne, Or, Sub};
        // Two addresses are compared whole, and have no order.
        let may_convert = match operator {
            Add | Sub | Mul | Div => true,
            Lt | Gt | Le | Ge => a.kind != b.kind,
            _ => false,
        };
        let (a, b) = match may_convert {
            true => (self.number(a, at)?, self.number(b, at)?),
            false => (a, b),
        };
        let is_number = |slot: Slot| matches!(slot.kind, Kind::Int | Kind::Real);
        let fits = match operator {
            And | Or => a.kind == Kind::Bool && b.kind == Kind::Bool,
            Eq | Ne => a.kind == b.kind || is_number(a) && is_number(b),
            Before => a.kind == Kind::Int && b.kind == Kind::Int,
            _ => is_number(a) && is_number(b),
        };
        if !fits {
            let (a, b) = (a.kind.name(), b.kind.name());
            return self.wrong(at, format!("this does not apply to {a} and {b}"));
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
            (Before, _) => Op::Before { to, a: x, b: y },
            (And, _) => Op::And { to, a: x, b: y },
            (Or, _) => Op::Or { to, a: x, b: y },
        };
        self.op(op, at)?;
        if a.kind == Kind::Address {
            let low = self.temporary(Kind::Bool, at)?.at;
            self.op(
                Op::Eq {
                    to: low,
                    a: a_at.wrapping_add(1),
                    b: b_at.wrapping_add(1),
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

    pub(super) fn real(&mut self, slot: Slot, at: usize) -> Checked<Slot> {
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

    /// The number of an address; other values as they are.
    pub(super) fn number(&mut self, slot: Slot, at: usize) -> Checked<Slot> {
        if slot.kind != Kind::Address {
            return Ok(slot);
        }
        let to = self.temporary(Kind::Int, at)?;
        self.op(
            Op::ToNumber {
                to: to.at,
                a: slot.at,
            },
            at,
        )?;
        Ok(to)
    }

    pub(super) fn copy(&mut self, from: Slot, to: Slot, at: usize) -> Checked<()> {
        // Only this reads the result of an expression: it can be computed where it goes.
        if from.kind.words() == 1
            && self.in_use.contains(&from.at)
            && let Some(result) = self.program.ops.last_mut().and_then(Op::result_mut)
            && *result == from.at
        {
            *result = to.at;
            return Ok(());
        }
        for (to, a) in to.registers().zip(from.registers()) {
            self.op(Op::Copy { to, a }, at)?;
        }
        Ok(())
    }
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
                    Binary::Div if is_fraction(left, right) => {
                        Some(Literal::Real(*a as f64 / *b as f64))
                    }
                    // Like those of other integers.
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

/// Whether both are written as integers, with or without a minus, and their quotient is a real number without a loss
/// of digits.
fn is_fraction(left: &Expr<'_>, right: &Expr<'_>) -> bool {
    let written = |expr: &Expr<'_>| match &expr.node {
        Node::Int(value) => Some(*value),
        Node::Binary(Binary::Sub, zero, value) => match (&zero.node, &value.node) {
            (Node::Int(0), Node::Int(value)) => Some(*value),
            _ => None,
        },
        _ => None,
    };
    let is_exact = |value: i64| value.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS;
    match (written(left), written(right)) {
        (Some(a), Some(b)) => b != 0 && is_exact(a) && is_exact(b),
        _ => false,
    }
}
