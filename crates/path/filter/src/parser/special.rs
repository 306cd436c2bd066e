//! Tests that are words of their own: lengths, encapsulations, LLC, 802.11.

use super::Parser;
use crate::ast::{Arith, Llc, Relation, Test};
use crate::error::ParseError;
use crate::lexer::Token;
use crate::names::{self, Keyword, Proto};
use crate::protocol;

impl Parser<'_> {
    /// What may follow a protocol other than a value: `broadcast`, `multicast`, `type`, `dir`.
    pub(super) fn qualified(
        &mut self,
        proto: Option<Proto>,
        start: usize,
    ) -> Result<Option<Test>, ParseError> {
        let Some(keyword) = self.keyword() else {
            return Ok(None);
        };
        let test = match keyword {
            Keyword::Broadcast => {
                self.at = self.at.saturating_add(1);
                self.checked(start, protocol::broadcast(proto))?
            }
            Keyword::Multicast => {
                self.at = self.at.saturating_add(1);
                self.checked(start, protocol::multicast(proto))?
            }
            Keyword::Type => {
                self.at = self.at.saturating_add(1);
                let bits = self.frame_type()?;
                if self.take_keyword(Keyword::Subtype) {
                    Test::WlanSubtype(self.frame_subtype(Some(bits))?)
                } else {
                    Test::WlanType(bits)
                }
            }
            Keyword::Subtype => {
                self.at = self.at.saturating_add(1);
                Test::WlanSubtype(self.frame_subtype(None)?)
            }
            Keyword::Dir => {
                self.at = self.at.saturating_add(1);
                Test::WlanDirection(self.named("nods, tods, fromds or dstods", |name| {
                    names::lookup(names::WLAN_DIRECTIONS, name)
                })?)
            }
            _ => return Ok(None),
        };
        Ok(Some(test))
    }

    pub(super) fn frame_type(&mut self) -> Result<u8, ParseError> {
        let start = self.at;
        let table = |name: &str| names::lookup(names::WLAN_TYPES, name).map(u32::from);
        let bits = self.named("mgt, ctl or data", table)?;
        u8::try_from(bits)
            .ok()
            .filter(|bits| bits & !0x0c == 0)
            .ok_or_else(|| {
                self.error(
                self.span(start),
                "as a number, an 802.11 type is its bits within the frame control field: 0, 4, 8 \
                 or 12",
            )
            })
    }

    pub(super) fn frame_subtype(&mut self, of: Option<u8>) -> Result<u8, ParseError> {
        let start = self.at;
        if let (Token::Number(number), Some(of)) = (self.peek(), of) {
            let bits = u8::try_from(*number).ok().filter(|bits| bits & !0xf0 == 0);
            self.at = self.at.saturating_add(1);
            return bits.map(|bits| bits | of).ok_or_else(|| {
                self.error(
                    self.span(start),
                    "as a number, an 802.11 subtype is its bits within the frame control field: a \
                     multiple of 16, at most 240",
                )
            });
        }
        let expected = "the name of an 802.11 subtype, such as beacon, rts or qos-data";
        let Token::Name(name) = self.peek().clone() else {
            return Err(self.unexpected(expected));
        };
        self.at = self.at.saturating_add(1);
        names::lookup(names::WLAN_SUBTYPES, &name)
            .filter(|bits| of.is_none_or(|of| bits & 0x0c == of))
            .ok_or_else(|| self.error(self.span(start), format!("'{name}' is not {expected}")))
    }

    /// A number, or a name of a table.
    pub(super) fn named(
        &mut self,
        expected: &str,
        table: impl Fn(&str) -> Option<u32>,
    ) -> Result<u32, ParseError> {
        let token = self.peek().clone();
        let start = self.at;
        self.at = self.at.saturating_add(1);
        match token {
            Token::Number(number) => Ok(number),
            Token::Name(name) => table(&name).ok_or_else(|| {
                self.error(
                    self.span(start),
                    format!("'{name}' is not known; expected {expected}"),
                )
            }),
            _ => {
                self.at = self.at.saturating_sub(1);
                Err(self.unexpected(expected))
            }
        }
    }

    /// Tests without a protocol before them.
    pub(super) fn special(
        &mut self,
        keyword: Keyword,
        start: usize,
    ) -> Result<Option<Test>, ParseError> {
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

    pub(super) fn number(&mut self, expected: &str) -> Result<u32, ParseError> {
        match self.peek() {
            Token::Number(number) => {
                let number = *number;
                self.at = self.at.saturating_add(1);
                Ok(number)
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    /// An optional number, perhaps in parentheses.
    pub(super) fn identifier(
        &mut self,
        start: usize,
        what: &str,
        max: u32,
    ) -> Result<Option<u32>, ParseError> {
        let mut open = 0;
        while matches!(
            self.tokens
                .get(self.at.saturating_add(open))
                .map(|spanned| &spanned.token),
            Some(Token::Sign("("))
        ) {
            open = open.saturating_add(1);
        }
        let inner = self
            .tokens
            .get(self.at.saturating_add(open))
            .map(|spanned| &spanned.token);
        let Some(&Token::Number(number)) = inner else {
            return Ok(None);
        };
        self.at = self.at.saturating_add(open).saturating_add(1);
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

    pub(super) fn llc(&mut self) -> Result<Llc, ParseError> {
        // `rnr` alone is a keyword of packet filter logs.
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
                    "'{word}' is not a type of LLC frame; expected i, s, u, rr, rnr, rej, ui, ua, \
                     disc, dm, sabme, test, xid or frmr"
                ),
            )
        })?;
        self.at = self.at.saturating_add(1);
        Ok(kind)
    }
}
