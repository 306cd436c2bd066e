//! Statements: the streams that they make.

use super::super::fields::{Kind, UNKNOWN};
use super::super::parse::{Expr, Name, Operator};
use super::super::program::{AnswerOf, Op, Slot};
use super::compiler::{Checked, Compiler, Stream};

/// Maximum number of statements of a query.
const STREAMS_MAX: usize = 64;

impl<'a> Compiler<'_, 'a> {
    pub(super) fn statement(&mut self, name: Name<'a>, operator: &Operator<'a>) -> Checked<()> {
        let (label, at) = name;
        if self.streams.iter().any(|stream| stream.name == label) {
            return self.wrong(at, format!("a stream {label} exists already"));
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
            let message = format!("{} columns, but {} values", names.len(), exprs.len());
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
                return self.wrong(*column_at, format!("column {column} is named twice"));
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
                        "both {} and {} have different columns named {column}: rename one with map",
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
            return self.wrong(fold_at, format!("no fold {fold_name}: define it with def"));
        };
        let mut columns = Vec::new();
        for &column in key {
            let slot = self.column(&input, column)?;
            if columns.iter().any(|(known, _)| *known == column.0) {
                return self.wrong(column.1, format!("column {} is named twice", column.0));
            }
            columns.push((column.0, slot));
        }
        for &column in &fold.columns {
            // Some published folds name a column that they do not read: reading it is refused.
            let is_unknown = UNKNOWN.iter().any(|(name, _)| *name == column.0);
            if !is_unknown {
                self.column(&input, column)?;
            }
        }
        let (scope, is_silent) = self.fold(fold, &input, &columns, at)?;
        let mut stream = Stream {
            name,
            present: scope.emitted,
            shown: columns.clone(),
            columns,
            has_fields: false,
            is_silent: is_silent.then_some(fold_name),
            answer: AnswerOf::Group(strata_wire::exact(
                self.program.groups.len().wrapping_sub(1),
            )),
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
}
