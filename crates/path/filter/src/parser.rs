//! From tokens to the tree.
//!
//! Recursive descent over the grammar of pcap-filter(7). The kind of what parentheses enclose (a
//! condition, a value such as `(80 or 81)`, or an arithmetic expression) is known only at their
//! end, so all three are parsed by the same functions and told apart by [`Item`].

mod arith;
mod named;
mod special;

use std::ops::Range;

use crate::ast::{Arith, Expr, NetworkNames, Test};
use crate::error::ParseError;
use crate::lexer::{self, Spanned, Token};
use crate::names::{Keyword, Proto};
use crate::qualifier::{Kind, Qualifier, Side};
use crate::{protocol, qualifier};

/// Deeper nesting of parentheses, `not` and operators is refused.
pub(crate) const DEPTH_MAX: usize = 200;
/// More operators in a comparison are refused. Each may count three times as depth.
pub(crate) const OPERATORS_MAX: usize = 60;
/// More changes between `and` and `or` without parentheses are refused.
pub(crate) const ALTERNATIONS_MAX: usize = 500;

/// What was parsed so far.
enum Item {
    /// A condition, and the qualifier that a bare value after it inherits.
    Term(Expr, Qualifier),
    /// A condition made of bare values only.
    Values(Expr, Qualifier),
    /// A bare number: a value, or the start of arithmetic.
    Number(u32),
    /// Arithmetic that needs a relation.
    Arith(Arith),
}

pub(crate) fn parse(text: &str, names: &dyn NetworkNames) -> Result<Expr, ParseError> {
    let tokens = lexer::tokens(text)?;
    let mut parser = Parser {
        text,
        names,
        tokens,
        at: 0,
        depth: 0,
        arith_depth: 0,
        alternations: 0,
        operators: 0,
    };
    if parser.peek() == &Token::End {
        return Ok(Expr::Any);
    }
    let start = parser.at;
    let expr = match parser.chain(Qualifier::UNDEFINED)? {
        Item::Term(expr, _) | Item::Values(expr, _) => expr,
        Item::Number(_) | Item::Arith(_) => return Err(parser.no_relation(start)),
    };
    if parser.peek() != &Token::End {
        return Err(parser.unexpected("'and', 'or' or the end of the filter"));
    }
    Ok(expr)
}

struct Parser<'a> {
    text: &'a str,
    names: &'a dyn NetworkNames,
    tokens: Vec<Spanned>,
    at: usize,
    depth: usize,
    /// Nesting within arithmetic.
    arith_depth: usize,
    /// Each change from `and` to `or` or back without parentheses makes the tree deeper.
    alternations: usize,
    /// Arithmetic operators since the last comparison.
    operators: usize,
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        self.tokens
            .get(self.at)
            .map_or(&Token::End, |spanned| &spanned.token)
    }

    fn keyword(&self) -> Option<Keyword> {
        match self.peek() {
            Token::Keyword(keyword) => Some(*keyword),
            _ => None,
        }
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(found) if *found == sign)
    }

    fn take_sign(&mut self, sign: &str) -> bool {
        let found = self.is_sign(sign);
        self.at = self.at.saturating_add(usize::from(found));
        found
    }

    fn take_keyword(&mut self, keyword: Keyword) -> bool {
        let found = self.keyword() == Some(keyword);
        self.at = self.at.saturating_add(usize::from(found));
        found
    }

    /// The text from the token `start` to the last one taken.
    fn span(&self, start: usize) -> Range<usize> {
        let first = self
            .tokens
            .get(start)
            .map_or(self.text.len(), |token| token.span.start);
        let last = self.tokens.get(self.at.saturating_sub(1).max(start));
        first..last.map_or(self.text.len(), |token| token.span.end)
    }

    fn here(&self) -> Range<usize> {
        self.tokens
            .get(self.at)
            .map_or(0..0, |token| token.span.clone())
    }

    fn error(&self, span: Range<usize>, message: impl Into<String>) -> ParseError {
        ParseError::new(self.text, span, message)
    }

    /// For rules that do not know the text.
    fn checked<T>(&self, start: usize, result: Result<T, String>) -> Result<T, ParseError> {
        result.map_err(|message| self.error(self.span(start), message))
    }

    fn unexpected(&self, expected: &str) -> ParseError {
        let span = self.here();
        let message = match self.peek() {
            Token::End => format!("the filter ends too early: expected {expected}"),
            Token::Keyword(Keyword::Refused(reason)) => {
                format!("'{}' is not supported: {reason}", &self.text[span.clone()])
            }
            _ => format!("expected {expected}, found '{}'", &self.text[span.clone()]),
        };
        self.error(span, message)
    }

    fn no_relation(&self, start: usize) -> ParseError {
        self.error(
            self.span(start),
            "a number alone is not a test: compare it, as in 'tcp[0] = 1', or say what it is, as in \
             'port 80'",
        )
    }

    fn deeper(&mut self) -> Result<(), ParseError> {
        self.depth = self.depth.saturating_add(1);
        if self.depth > DEPTH_MAX {
            let message = format!("the filter is nested more than {DEPTH_MAX} levels deep");
            return Err(self.error(self.here(), message));
        }
        Ok(())
    }

    /// Units joined by `and` and `or`, which have equal precedence and group to the left.
    fn chain(&mut self, inherited: Qualifier) -> Result<Item, ParseError> {
        self.deeper()?;
        let mut start = self.at;
        let mut left = self.unit(inherited)?;
        loop {
            let both = match self.peek() {
                Token::Keyword(Keyword::And) | Token::Sign("&&") => true,
                Token::Keyword(Keyword::Or) | Token::Sign("||") => false,
                _ => break,
            };
            let (expr, passed_on, values) = self.condition(left, inherited, start)?;
            self.at = self.at.saturating_add(1);
            if matches!((both, &expr), (true, Expr::Or(_)) | (false, Expr::And(_))) {
                self.alternations = self.alternations.saturating_add(1);
            }
            if self.alternations > ALTERNATIONS_MAX {
                let message = format!(
                    "'and' and 'or' alternate more than {ALTERNATIONS_MAX} times; group them with \
                     parentheses"
                );
                return Err(self.error(self.span(start), message));
            }
            start = self.at;
            let right = self.unit(passed_on)?;
            let term = matches!(right, Item::Term(..));
            let (right, passed_on, _) = self.condition(right, passed_on, start)?;
            if values && term {
                return Err(self.error(
                    self.span(start),
                    "inside parentheses that start with a bare value only bare values can \
                     follow; repeat the keyword, as in '(port 80 or port 81)'",
                ));
            }
            // Long lists stay one flat node: `Expr::and` would copy them again and again.
            let joined = match (both, expr) {
                (true, Expr::And(mut parts)) => {
                    append(&mut parts, right, both);
                    Expr::And(parts)
                }
                (false, Expr::Or(mut parts)) => {
                    append(&mut parts, right, both);
                    Expr::Or(parts)
                }
                (true, expr) => Expr::and([expr, right]),
                (false, expr) => Expr::or([expr, right]),
            };
            left = if values {
                Item::Values(joined, passed_on)
            } else {
                Item::Term(joined, passed_on)
            };
        }
        self.depth = self.depth.saturating_sub(1);
        Ok(left)
    }

    /// As a condition, with the qualifier that the rest inherits; and whether it has bare values
    /// only.
    fn condition(
        &self,
        item: Item,
        inherited: Qualifier,
        start: usize,
    ) -> Result<(Expr, Qualifier, bool), ParseError> {
        match item {
            Item::Term(expr, passed_on) => Ok((expr, passed_on, false)),
            Item::Values(expr, passed_on) => Ok((expr, passed_on, true)),
            Item::Number(number) => {
                let result = qualifier::resolve(&inherited, &Token::Number(number), None);
                Ok((self.checked(start, result)?, inherited, true))
            }
            Item::Arith(_) => Err(self.no_relation(start)),
        }
    }

    /// An operand, and if it is arithmetic, all of it with its relation.
    fn unit(&mut self, inherited: Qualifier) -> Result<Item, ParseError> {
        let start = self.at;
        let first = match self.operand(inherited)? {
            Item::Number(number) => Arith::Number(number),
            Item::Arith(arith) => arith,
            other => return Ok(other),
        };
        let left = self.arith_tail(first, 0)?;
        let Some(relation) = self.relation() else {
            return Ok(match left {
                Arith::Number(number) => Item::Number(number),
                arith => Item::Arith(arith),
            });
        };
        self.at = self.at.saturating_add(1);
        let right = self.arith(0)?;
        if self.relation().is_some() {
            return Err(self.error(
                self.span(start),
                "a test has one relation; join two tests with 'and', as in '5 < len and len < 9'",
            ));
        }
        Ok(Item::Term(
            Test::Compare {
                left,
                relation,
                right,
            }
            .into(),
            Qualifier::UNDEFINED,
        ))
    }

    fn operand(&mut self, inherited: Qualifier) -> Result<Item, ParseError> {
        let start = self.at;
        match self.peek().clone() {
            Token::Sign("(") => {
                self.at = self.at.saturating_add(1);
                let inner = self.chain(inherited)?;
                if !self.take_sign(")") {
                    return Err(self.unexpected("')'"));
                }
                Ok(match inner {
                    Item::Term(expr, _) => Item::Term(expr, Qualifier::UNDEFINED),
                    other => other,
                })
            }
            Token::Sign("!") | Token::Keyword(Keyword::Not) => {
                self.at = self.at.saturating_add(1);
                self.deeper()?;
                let inner_start = self.at;
                let inner = self.unit(inherited)?;
                self.depth = self.depth.saturating_sub(1);
                let (expr, passed_on, values) = self.condition(inner, inherited, inner_start)?;
                let expr = Expr::negate(expr);
                Ok(if values {
                    Item::Values(expr, passed_on)
                } else {
                    Item::Term(expr, passed_on)
                })
            }
            Token::Sign("-") => Ok(Item::Arith(self.unary()?)),
            Token::Number(number) => {
                self.at = self.at.saturating_add(1);
                Ok(Item::Number(number))
            }
            Token::Name(_) if self.naming().is_some() => self.by_name(None, None, start),
            Token::V4(..) | Token::V6(_) | Token::Mac(_) | Token::Name(_) => {
                Ok(Item::Values(self.value(&inherited)?, inherited))
            }
            Token::Keyword(keyword) => self.keyword_operand(keyword, start),
            Token::Sign(_) | Token::End => {
                Err(self.unexpected("a test, such as 'host 192.0.2.1' or 'tcp port 80'"))
            }
        }
    }

    fn keyword_operand(&mut self, keyword: Keyword, start: usize) -> Result<Item, ParseError> {
        let proto = match keyword {
            Keyword::Proto(proto) => {
                self.at = self.at.saturating_add(1);
                Some(proto)
            }
            _ => None,
        };
        if let Some(proto) = proto
            && self.is_sign("[")
        {
            return Ok(Item::Arith(self.load(proto, start)?));
        }
        if let Some(item) = self.head(proto)? {
            return Ok(item);
        }
        if let Some(test) = self.qualified(proto, start)? {
            return Ok(Item::Term(test.into(), Qualifier::UNDEFINED));
        }
        let expr = match proto {
            Some(proto) => self.checked(start, protocol::abbreviation(proto))?,
            None => {
                self.at = self.at.saturating_add(1);
                match self.special(keyword, start)? {
                    Some(test) => test.into(),
                    None if keyword == Keyword::Length => return Ok(Item::Arith(Arith::Length)),
                    None => {
                        self.at = self.at.saturating_sub(1);
                        return Err(self.unexpected("a test"));
                    }
                }
            }
        };
        Ok(Item::Term(expr, Qualifier::UNDEFINED))
    }

    /// A direction, a type or both, then a value or values in parentheses.
    fn head(&mut self, proto: Option<Proto>) -> Result<Option<Item>, ParseError> {
        let start = self.at;
        let side = self.side();
        let kind = match self.keyword() {
            Some(Keyword::Host) => Kind::Host,
            Some(Keyword::Net) => Kind::Net,
            Some(Keyword::Port) => Kind::Port,
            Some(Keyword::PortRange) => Kind::PortRange,
            Some(Keyword::ProtoWord) if side.is_none() => Kind::Proto,
            Some(Keyword::ProtoChain) if side.is_none() => Kind::ProtoChain,
            Some(Keyword::Gateway) if side.is_none() => {
                return Err(self.error(
                    self.here(),
                    "'gateway' needs a host name resolved to both its addresses, and \
                     names are not resolved; write 'ether host <MAC> and not host <IP>'",
                ));
            }
            _ if side.is_some() && self.naming().is_some() => {
                return self.by_name(proto, side, start).map(Some);
            }
            _ if side.is_some() => Kind::Default,
            _ => return Ok(None),
        };
        self.at = self.at.saturating_add(usize::from(kind != Kind::Default));
        let qualifier = Qualifier { proto, side, kind };
        let value_start = self.at;
        match self.operand_of_head(&qualifier)? {
            Item::Values(expr, _) => Ok(Some(Item::Term(expr, qualifier))),
            Item::Number(number) => {
                let result = qualifier::resolve(&qualifier, &Token::Number(number), None);
                let expr = self.checked(value_start, result)?;
                Ok(Some(Item::Term(expr, qualifier)))
            }
            Item::Term(..) | Item::Arith(_) => {
                let span = self.span(value_start);
                let words = &self.text[self.span(start).start..span.start];
                let message = format!("expected a value after '{}'", words.trim_end());
                Err(self.error(span, message))
            }
        }
    }

    fn operand_of_head(&mut self, qualifier: &Qualifier) -> Result<Item, ParseError> {
        match self.peek() {
            Token::Keyword(Keyword::Not) | Token::Sign("!" | "(") => self.operand(*qualifier),
            Token::Number(number) => {
                let number = *number;
                self.at = self.at.saturating_add(1);
                Ok(Item::Number(number))
            }
            Token::V4(..) | Token::V6(_) | Token::Mac(_) | Token::Name(_) => {
                Ok(Item::Values(self.value(qualifier)?, *qualifier))
            }
            Token::Keyword(Keyword::Proto(_)) if qualifier.kind == Kind::Default => {
                let word = &self.text[self.here()];
                let message = format!("'{word}' goes before the direction: '{word} src ...'");
                Err(self.error(self.here(), message))
            }
            Token::Keyword(Keyword::Proto(_)) => {
                let word = &self.text[self.here()];
                let message = format!(
                    "'{word}' is a keyword; as a protocol name it needs a backslash: \
                     \\{word}"
                );
                Err(self.error(self.here(), message))
            }
            _ => Err(self.unexpected(qualifier.kind.value_words())),
        }
    }

    /// `src`, `dst`, both with `or` or `and`, or an 802.11 address field.
    fn side(&mut self) -> Option<Side> {
        let first = match self.keyword()? {
            Keyword::Source => Side::Source,
            Keyword::Destination => Side::Destination,
            Keyword::Address(number) => Side::Address(number),
            Keyword::Receiver => Side::Receiver,
            Keyword::Transmitter => Side::Transmitter,
            _ => return None,
        };
        self.at = self.at.saturating_add(1);
        let other = match first {
            Side::Source => Keyword::Destination,
            Side::Destination => Keyword::Source,
            _ => return Some(first),
        };
        let next = self
            .tokens
            .get(self.at.saturating_add(1))
            .map(|spanned| &spanned.token);
        if next != Some(&Token::Keyword(other)) {
            return Some(first);
        }
        let joined = match self.peek() {
            Token::Keyword(Keyword::Or) | Token::Sign("||") => Side::Either,
            Token::Keyword(Keyword::And) | Token::Sign("&&") => Side::Both,
            _ => return Some(first),
        };
        self.at = self.at.saturating_add(2);
        Some(joined)
    }

    /// One value that is not a number, with `/length` or `mask`.
    fn value(&mut self, qualifier: &Qualifier) -> Result<Expr, ParseError> {
        let start = self.at;
        let token = self.peek().clone();
        self.at = self.at.saturating_add(1);
        let mask = if matches!(token, Token::V4(..) | Token::V6(_)) && self.take_sign("/") {
            match self.peek() {
                Token::Number(bits) => {
                    let bits = *bits;
                    self.at = self.at.saturating_add(1);
                    Some(qualifier::Mask::Bits(bits))
                }
                _ => return Err(self.unexpected("the length of the network mask, as in '/24'")),
            }
        } else if matches!(token, Token::V4(..)) && self.take_keyword(Keyword::Mask) {
            match self.peek() {
                Token::V4(mask, _) => {
                    let mask = *mask;
                    self.at = self.at.saturating_add(1);
                    Some(qualifier::Mask::Address(mask))
                }
                _ => return Err(self.unexpected("a network mask, as in 'mask 255.255.0.0'")),
            }
        } else {
            None
        };
        let result = qualifier::resolve(qualifier, &token, mask);
        self.checked(start, result)
    }
}

fn append(parts: &mut Vec<Expr>, right: Expr, both: bool) {
    match (both, right) {
        (true, Expr::And(inner)) | (false, Expr::Or(inner)) => parts.extend(inner),
        (_, other) => parts.push(other),
    }
}
