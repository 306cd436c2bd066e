//! From words to the tree.
//!
//! Recursive descent over the grammar of pcap-filter(7). What a pair of
//! parentheses holds (a condition, a value such as `(80 or 81)`, or an
//! arithmetic expression) is known only at its end, so all three are read by
//! the same functions and told apart by [`Item`].

use std::ops::Range;

use crate::ast::{Arith, Expr, Llc, Operator, Relation, Test, Width};
use crate::error::ParseError;
use crate::lexer::{self, Spanned, Token};
use crate::names::{self, Keyword, Proto};
use crate::qualifier::{Kind, Qualifier, Side};
use crate::{protocol, qualifier};

/// Deeper nesting of parentheses, `not` and operators is refused.
pub(crate) const DEPTH_MAX: usize = 200;

/// How much of an expression has been understood.
enum Item {
    /// A condition, and the qualifier that a bare value behind it inherits.
    Term(Expr, Qualifier),
    /// A condition made of bare values only.
    Values(Expr, Qualifier),
    /// A bare number: a value, or the start of arithmetic.
    Number(u32),
    /// Arithmetic that needs a relation.
    Arith(Arith),
}

pub(crate) fn parse(text: &str) -> Result<Expr, ParseError> {
    let tokens = lexer::tokens(text)?;
    let mut parser = Parser {
        text,
        tokens,
        at: 0,
        depth: 0,
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
    tokens: Vec<Spanned>,
    at: usize,
    depth: usize,
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
        self.at += usize::from(found);
        found
    }

    fn take_keyword(&mut self, keyword: Keyword) -> bool {
        let found = self.keyword() == Some(keyword);
        self.at += usize::from(found);
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

    /// For rules that know nothing of the text.
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
            "a number alone is no test: compare it, as in 'tcp[0] = 1', or say what it is, as in \
             'port 80'",
        )
    }

    fn deeper(&mut self) -> Result<(), ParseError> {
        self.depth += 1;
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
            self.at += 1;
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
        self.depth -= 1;
        Ok(left)
    }

    /// As a condition, with what follows inherits; and whether it is made of bare values only.
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

    /// An operand, and if it is arithmetic all of it, with its relation.
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
        self.at += 1;
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
                self.at += 1;
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
                self.at += 1;
                self.deeper()?;
                let inner_start = self.at;
                let inner = self.unit(inherited)?;
                self.depth -= 1;
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
                self.at += 1;
                Ok(Item::Number(number))
            }
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
                self.at += 1;
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
                self.at += 1;
                match self.special(keyword, start)? {
                    Some(test) => test.into(),
                    None if keyword == Keyword::Length => return Ok(Item::Arith(Arith::Length)),
                    None => {
                        self.at -= 1;
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
                    "'gateway' needs the names of a host resolved to both its addresses, and \
                     names are not resolved; write 'ether host <MAC> and not host <IP>'",
                ));
            }
            _ if side.is_some() => Kind::Default,
            _ => return Ok(None),
        };
        self.at += usize::from(kind != Kind::Default);
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
                let message = format!("expected a value behind '{}'", words.trim_end());
                Err(self.error(span, message))
            }
        }
    }

    fn operand_of_head(&mut self, qualifier: &Qualifier) -> Result<Item, ParseError> {
        match self.peek() {
            Token::Keyword(Keyword::Not) | Token::Sign("!" | "(") => self.operand(*qualifier),
            Token::Number(number) => {
                let number = *number;
                self.at += 1;
                Ok(Item::Number(number))
            }
            Token::V4(..) | Token::V6(_) | Token::Mac(_) | Token::Name(_) => {
                Ok(Item::Values(self.value(qualifier)?, *qualifier))
            }
            Token::Keyword(Keyword::Proto(_)) => {
                let word = &self.text[self.here()];
                let message = format!(
                    "'{word}' is a keyword; as the name of a protocol it needs a backslash: \
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
        self.at += 1;
        let other = match first {
            Side::Source => Keyword::Destination,
            Side::Destination => Keyword::Source,
            _ => return Some(first),
        };
        let next = self.tokens.get(self.at + 1).map(|spanned| &spanned.token);
        if next != Some(&Token::Keyword(other)) {
            return Some(first);
        }
        let joined = match self.peek() {
            Token::Keyword(Keyword::Or) | Token::Sign("||") => Side::Either,
            Token::Keyword(Keyword::And) | Token::Sign("&&") => Side::Both,
            _ => return Some(first),
        };
        self.at += 2;
        Some(joined)
    }

    /// One value that is not a number, with `/length` or `mask`.
    fn value(&mut self, qualifier: &Qualifier) -> Result<Expr, ParseError> {
        let start = self.at;
        let token = self.peek().clone();
        self.at += 1;
        let mask = if matches!(token, Token::V4(..) | Token::V6(_)) && self.take_sign("/") {
            match self.peek() {
                Token::Number(bits) => {
                    let bits = *bits;
                    self.at += 1;
                    Some(qualifier::Mask::Bits(bits))
                }
                _ => return Err(self.unexpected("the length of the network mask, as in '/24'")),
            }
        } else if matches!(token, Token::V4(..)) && self.take_keyword(Keyword::Mask) {
            match self.peek() {
                Token::V4(mask, _) => {
                    let mask = *mask;
                    self.at += 1;
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

    /// What may stand behind a protocol that is no value: `broadcast`, `multicast`, `type`, `dir`.
    fn qualified(
        &mut self,
        proto: Option<Proto>,
        start: usize,
    ) -> Result<Option<Test>, ParseError> {
        let Some(keyword) = self.keyword() else {
            return Ok(None);
        };
        let test = match keyword {
            Keyword::Broadcast => {
                self.at += 1;
                self.checked(start, protocol::broadcast(proto))?
            }
            Keyword::Multicast => {
                self.at += 1;
                self.checked(start, protocol::multicast(proto))?
            }
            Keyword::Type => {
                self.at += 1;
                let bits = self.frame_type()?;
                if self.take_keyword(Keyword::Subtype) {
                    Test::WlanSubtype(self.frame_subtype(Some(bits))?)
                } else {
                    Test::WlanType(bits)
                }
            }
            Keyword::Subtype => {
                self.at += 1;
                Test::WlanSubtype(self.frame_subtype(None)?)
            }
            Keyword::Dir => {
                self.at += 1;
                Test::WlanDirection(self.named("nods, tods, fromds or dstods", |name| {
                    names::lookup(names::WLAN_DIRECTIONS, name)
                })?)
            }
            _ => return Ok(None),
        };
        Ok(Some(test))
    }

    fn frame_type(&mut self) -> Result<u8, ParseError> {
        let start = self.at;
        let table = |name: &str| names::lookup(names::WLAN_TYPES, name).map(u32::from);
        let bits = self.named("mgt, ctl or data", table)?;
        u8::try_from(bits)
            .ok()
            .filter(|bits| bits & !0x0c == 0)
            .ok_or_else(|| {
                self.error(
                self.span(start),
                "as a number an 802.11 type is the frame control field's bits in place: 0, 4, 8 \
                 or 12",
            )
            })
    }

    fn frame_subtype(&mut self, of: Option<u8>) -> Result<u8, ParseError> {
        let start = self.at;
        if let (Token::Number(number), Some(of)) = (self.peek(), of) {
            let bits = u8::try_from(*number).ok().filter(|bits| bits & !0xf0 == 0);
            self.at += 1;
            return bits.map(|bits| bits | of).ok_or_else(|| {
                self.error(
                    self.span(start),
                    "as a number an 802.11 subtype is the frame control field's bits in place: a \
                     multiple of 16, at most 240",
                )
            });
        }
        let expected = "the name of an 802.11 subtype, such as beacon, rts or qos-data";
        let Token::Name(name) = self.peek().clone() else {
            return Err(self.unexpected(expected));
        };
        self.at += 1;
        names::lookup(names::WLAN_SUBTYPES, &name)
            .filter(|bits| of.is_none_or(|of| bits & 0x0c == of))
            .ok_or_else(|| self.error(self.span(start), format!("'{name}' is not {expected}")))
    }

    /// A number, or a name of a table.
    fn named(
        &mut self,
        expected: &str,
        table: impl Fn(&str) -> Option<u32>,
    ) -> Result<u32, ParseError> {
        let token = self.peek().clone();
        let start = self.at;
        self.at += 1;
        match token {
            Token::Number(number) => Ok(number),
            Token::Name(name) => table(&name).ok_or_else(|| {
                self.error(
                    self.span(start),
                    format!("'{name}' is not known; expected {expected}"),
                )
            }),
            _ => {
                self.at -= 1;
                Err(self.unexpected(expected))
            }
        }
    }

    /// Tests that no protocol stands before.
    fn special(&mut self, keyword: Keyword, start: usize) -> Result<Option<Test>, ParseError> {
        let length = |relation, bytes| Test::Compare {
            left: Arith::Length,
            relation,
            right: Arith::Number(bytes),
        };
        let test = match keyword {
            Keyword::Less => length(Relation::LessEqual, self.number("a length in bytes")?),
            Keyword::Greater => length(Relation::GreaterEqual, self.number("a length in bytes")?),
            Keyword::Inbound => Test::Inbound,
            Keyword::Outbound => Test::Outbound,
            Keyword::IfIndex => Test::IfIndex(self.number("the index of an interface")?),
            Keyword::PppoeDiscovery => Test::PppoeDiscovery,
            Keyword::Vlan => Test::Vlan(self.identifier(start, "VLAN", 0xfff)?),
            Keyword::Mpls => Test::Mpls(self.identifier(start, "MPLS label", 0xf_ffff)?),
            Keyword::PppoeSession => {
                Test::PppoeSession(self.identifier(start, "PPPoE session", 0xffff)?)
            }
            Keyword::Geneve => {
                Test::Geneve(self.identifier(start, "Geneve network identifier", 0xff_ffff)?)
            }
            Keyword::Llc => Test::Llc(self.llc()?),
            _ => return Ok(None),
        };
        Ok(Some(test))
    }

    fn number(&mut self, expected: &str) -> Result<u32, ParseError> {
        match self.peek() {
            Token::Number(number) => {
                let number = *number;
                self.at += 1;
                Ok(number)
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    /// An optional number, perhaps in parentheses.
    fn identifier(
        &mut self,
        start: usize,
        what: &str,
        max: u32,
    ) -> Result<Option<u32>, ParseError> {
        let mut open = 0;
        while matches!(
            self.tokens
                .get(self.at + open)
                .map(|spanned| &spanned.token),
            Some(Token::Sign("("))
        ) {
            open += 1;
        }
        let inner = self
            .tokens
            .get(self.at + open)
            .map(|spanned| &spanned.token);
        let Some(&Token::Number(number)) = inner else {
            return Ok(None);
        };
        self.at += open + 1;
        for _ in 0..open {
            if !self.take_sign(")") {
                return Err(self.unexpected("')'"));
            }
        }
        if number > max {
            let message = format!("a {what} is at most {max}, not {number}");
            return Err(self.error(self.span(start), message));
        }
        Ok(Some(number))
    }

    fn llc(&mut self) -> Result<Llc, ParseError> {
        // `rnr` alone is a word of packet filter logs.
        let word = match self.peek() {
            Token::Name(name) => name.clone(),
            Token::Keyword(Keyword::Refused(_)) if &self.text[self.here()] == "rnr" => {
                "rnr".to_owned()
            }
            _ => return Ok(Llc::Any),
        };
        let kind = names::lookup(names::LLC, &word).ok_or_else(|| {
            self.error(
                self.here(),
                format!(
                    "'{word}' is no LLC frame; expected i, s, u, rr, rnr, rej, ui, ua, disc, dm, \
                     sabme, test, xid or frmr"
                ),
            )
        })?;
        self.at += 1;
        Ok(kind)
    }

    fn relation(&self) -> Option<Relation> {
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

    fn operator(&self) -> Option<(Operator, u8)> {
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
            // In libpcap's grammar these two have no precedence: they take what is on their
            // left, however tightly it is bound, and all that is on their right.
            "%" => (Operator::Modulo, u8::MAX),
            "^" => (Operator::Xor, u8::MAX),
            _ => return None,
        })
    }

    fn arith(&mut self, precedence: u8) -> Result<Arith, ParseError> {
        let first = self.unary()?;
        self.arith_tail(first, precedence)
    }

    fn arith_tail(&mut self, first: Arith, precedence: u8) -> Result<Arith, ParseError> {
        self.deeper()?;
        let mut left = first;
        let mut count = 0;
        while let Some((operator, binding)) = self.operator() {
            if binding < precedence {
                break;
            }
            count += 1;
            if count > DEPTH_MAX {
                let message = format!("more than {DEPTH_MAX} operators in one expression");
                return Err(self.error(self.here(), message));
            }
            self.at += 1;
            let start = self.at;
            let right = self.arith(if binding == u8::MAX { 0 } else { binding + 1 })?;
            let problem = match (operator, leading_number(&right)) {
                (Operator::Divide | Operator::Modulo, Some(0)) => "division by zero",
                (Operator::ShiftLeft | Operator::ShiftRight, Some(32..)) => {
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
        self.depth -= 1;
        Ok(left)
    }

    fn unary(&mut self) -> Result<Arith, ParseError> {
        let start = self.at;
        match self.peek().clone() {
            Token::Sign("-") => {
                self.at += 1;
                self.deeper()?;
                // Binds tighter than all but `%` and `^`.
                let inner = self.arith(6)?;
                self.depth -= 1;
                Ok(Arith::Negate(Box::new(inner)))
            }
            Token::Sign("(") => {
                self.at += 1;
                self.deeper()?;
                let inner = self.arith(0)?;
                self.depth -= 1;
                if !self.take_sign(")") {
                    return Err(self.unexpected("an operator or ')'"));
                }
                Ok(inner)
            }
            Token::Number(number) => {
                self.at += 1;
                Ok(Arith::Number(number))
            }
            Token::Keyword(Keyword::Length) => {
                self.at += 1;
                Ok(Arith::Length)
            }
            Token::Keyword(Keyword::Proto(proto)) => {
                self.at += 1;
                if !self.is_sign("[") {
                    return Err(self.unexpected("'[' and an offset, as in 'ip[0]'"));
                }
                self.load(proto, start)
            }
            _ => Err(self.unexpected("a number, 'len' or a load such as 'ip[0]'")),
        }
    }

    /// `[offset:bytes]` behind a protocol.
    fn load(&mut self, proto: Proto, start: usize) -> Result<Arith, ParseError> {
        let header = self.checked(start, protocol::header(proto))?;
        self.at += 1;
        self.deeper()?;
        let offset = Box::new(self.arith(0)?);
        self.depth -= 1;
        let bytes = if self.take_sign(":") {
            match self.number("the size of the load: 1, 2 or 4")? {
                1 => Width::Byte,
                2 => Width::Half,
                4 => Width::Word,
                other => {
                    let span = self.span(self.at - 1);
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

/// The number that `arith` starts with: libpcap takes it for the divisor.
fn leading_number(arith: &Arith) -> Option<u32> {
    match arith {
        Arith::Number(number) => Some(*number),
        _ => None,
    }
}

fn append(parts: &mut Vec<Expr>, right: Expr, both: bool) {
    match (both, right) {
        (true, Expr::And(inner)) | (false, Expr::Or(inner)) => parts.extend(inner),
        (_, other) => parts.push(other),
    }
}
