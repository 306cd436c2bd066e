//! Arithmetic, with the precedence that libpcap's grammar gives it.

use super::{DEPTH_MAX, OPERATORS_MAX, Parser};
use crate::ast::{Arith, Operator, Relation, Width};
use crate::error::ParseError;
use crate::lexer::Token;
use crate::names::{Keyword, Proto};
use crate::protocol;

impl Parser<'_> {
    pub(super) fn relation(&self) -> Option<Relation> {
        let Token::Sign(sign) = self.peek() else {
            return None;
        };
        Some(match *sign {
            "=" | "==" => Relation::Equal,
            "!=" => Relation::NotEqual,
            "<" => Relation::Less,
            "<=" => Relation::LessEqual,
            ">" => Relation::Greater,
            ">=" => Relation::GreaterEqual,
            _ => return None,
        })
    }

    pub(super) fn operator(&self) -> Option<(Operator, u8)> {
        let Token::Sign(sign) = self.peek() else {
            return None;
        };
        Some(match *sign {
            "|" => (Operator::Or, 1),
            "&" => (Operator::And, 2),
            "<<" => (Operator::ShiftLeft, 3),
            ">>" => (Operator::ShiftRight, 3),
            "+" => (Operator::Add, 4),
            "-" => (Operator::Subtract, 4),
            "*" => (Operator::Multiply, 5),
            "/" => (Operator::Divide, 5),
            // In libpcap's grammar these two have no precedence: they take everything on their
            // left, however tightly it is bound, and everything on their right.
            "%" => (Operator::Modulo, u8::MAX),
            "^" => (Operator::Xor, u8::MAX),
            _ => return None,
        })
    }

    pub(super) fn arith(&mut self, precedence: u8) -> Result<Arith, ParseError> {
        let first = self.unary()?;
        self.arith_tail(first, precedence)
    }

    pub(super) fn arith_tail(&mut self, first: Arith, precedence: u8) -> Result<Arith, ParseError> {
        self.deeper_in_arith()?;
        let mut left = first;
        while let Some((operator, binding)) = self.operator() {
            if binding < precedence {
                break;
            }
            self.one_more_operator()?;
            self.at = self.at.saturating_add(1);
            let start = self.at;
            let right = self.arith(if binding == u8::MAX {
                0
            } else {
                binding.saturating_add(1)
            })?;
            let problem = match (operator, &right) {
                (Operator::Divide | Operator::Modulo, Arith::Number(0)) => "division by zero",
                (Operator::ShiftLeft | Operator::ShiftRight, Arith::Number(32..)) => {
                    "a shift by more than 31 bits leaves nothing"
                }
                _ => "",
            };
            if !problem.is_empty() {
                return Err(self.error(self.span(start), problem));
            }
            left = Arith::Binary {
                operator,
                left: Box::new(left),
                right: Box::new(right),
            };
        }
        self.arith_depth = self.arith_depth.saturating_sub(1);
        Ok(left)
    }

    fn one_more_operator(&mut self) -> Result<(), ParseError> {
        self.operators = self.operators.saturating_add(1);
        if self.operators > OPERATORS_MAX {
            let message = format!("more than {OPERATORS_MAX} operators in one comparison");
            return Err(self.error(self.here(), message));
        }
        Ok(())
    }

    /// Arithmetic has a depth of its own: displayed with parentheses at every operator, what was
    /// parsed without them must parse again.
    fn deeper_in_arith(&mut self) -> Result<(), ParseError> {
        self.arith_depth = self.arith_depth.saturating_add(1);
        if self.arith_depth > DEPTH_MAX {
            let message = format!("a comparison is nested more than {DEPTH_MAX} levels deep");
            return Err(self.error(self.here(), message));
        }
        Ok(())
    }

    pub(super) fn unary(&mut self) -> Result<Arith, ParseError> {
        let start = self.at;
        match self.peek().clone() {
            Token::Sign("-") => {
                self.one_more_operator()?;
                self.at = self.at.saturating_add(1);
                self.deeper_in_arith()?;
                // Binds tighter than all except `%` and `^`.
                let inner = self.arith(6)?;
                self.arith_depth = self.arith_depth.saturating_sub(1);
                Ok(Arith::Negate(Box::new(inner)))
            }
            Token::Sign("(") => {
                self.at = self.at.saturating_add(1);
                self.deeper_in_arith()?;
                let inner = self.arith(0)?;
                self.arith_depth = self.arith_depth.saturating_sub(1);
                if !self.take_sign(")") {
                    return Err(self.unexpected("an operator or ')'"));
                }
                Ok(inner)
            }
            Token::Number(number) => {
                self.at = self.at.saturating_add(1);
                Ok(Arith::Number(number))
            }
            Token::Keyword(Keyword::Length) => {
                self.at = self.at.saturating_add(1);
                Ok(Arith::Length)
            }
            Token::Keyword(Keyword::Proto(proto)) => {
                self.at = self.at.saturating_add(1);
                if !self.is_sign("[") {
                    return Err(self.unexpected("'[' and an offset, as in 'ip[0]'"));
                }
                self.load(proto, start)
            }
            _ => Err(self.unexpected("a number, 'len' or a load such as 'ip[0]'")),
        }
    }

    /// `[offset:bytes]` after a protocol.
    pub(super) fn load(&mut self, proto: Proto, start: usize) -> Result<Arith, ParseError> {
        let header = self.checked(start, protocol::header(proto))?;
        self.at = self.at.saturating_add(1);
        self.deeper_in_arith()?;
        let offset = Box::new(self.arith(0)?);
        self.arith_depth = self.arith_depth.saturating_sub(1);
        let bytes = if self.take_sign(":") {
            match self.number("the size of the load: 1, 2 or 4")? {
                1 => Width::Byte,
                2 => Width::Half,
                4 => Width::Word,
                other => {
                    let span = self.span(self.at.saturating_sub(1));
                    let message = format!("a load takes 1, 2 or 4 bytes, not {other}");
                    return Err(self.error(span, message));
                }
            }
        } else {
            Width::Byte
        };
        if !self.take_sign("]") {
            return Err(self.unexpected("an operator, ':' or ']'"));
        }
        Ok(Arith::Load {
            header,
            offset,
            bytes,
        })
    }
}
