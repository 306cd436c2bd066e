//! Tests by names of networks: `tag dmz`, `src asn 64500`, `country DE`.
//!
//! tcpdump does not have them. Their words are names as others there, and a name with a value directly after it is a
//! syntax error, so no filter of tcpdump is read in another way here.

use super::{Item, Parser};
use crate::ast::{Direction, Naming, Test};
use crate::error::ParseError;
use crate::lexer::Token;
use crate::names::{Keyword, Proto};
use crate::qualifier::{Qualifier, Side};

impl Parser<'_> {
    /// What names are of here, if this is such a word and a value follows.
    pub(super) fn naming(&self) -> Option<Naming> {
        let naming = Naming::of_word(self.text.get(self.here())?)?;
        match &self.tokens.get(self.at.saturating_add(1))?.token {
            Token::End | Token::Sign(_) => None,
            Token::Keyword(Keyword::And | Keyword::Or | Keyword::Not) => None,
            _ => Some(naming),
        }
    }

    /// The test at such a word, after `side`; `start` is the first token of both.
    pub(super) fn by_name(
        &mut self,
        proto: Option<Proto>,
        side: Option<Side>,
        start: usize,
    ) -> Result<Item, ParseError> {
        let naming = self.naming();
        let naming = naming.ok_or_else(|| self.unexpected("'tag', 'asn' or 'country'"))?;
        self.at = self.at.saturating_add(1);
        let word = naming.word();
        let direction = match (proto, side) {
            (None, None | Some(Side::Either)) => Direction::Either,
            (None, Some(Side::Both)) => Direction::Both,
            (None, Some(Side::Source)) => Direction::Source,
            (None, Some(Side::Destination)) => Direction::Destination,
            (Some(_), _) => {
                let message = format!(
                    "no protocol may precede '{word}': write two tests, as in 'tcp and {word} ...'"
                );
                return Err(self.error(self.span(start), message));
            }
            (None, Some(Side::Address(_) | Side::Receiver | Side::Transmitter)) => {
                let message =
                    format!("'{word}' tests IP addresses: only 'src' and 'dst' may precede it");
                return Err(self.error(self.span(start), message));
            }
        };
        let value = self.at;
        let name = self.name_of_networks(naming);
        self.at = self.at.saturating_add(1);
        let name = self.checked(value, name)?;
        let networks = self.checked(start, self.names.networks(naming, &name))?;
        let test = Test::Named {
            naming,
            direction,
            name,
            networks,
        };
        Ok(Item::Term(test.into(), Qualifier::UNDEFINED))
    }

    /// The name at this token, as [`crate::NetworkNames`] has it: whatever else the word may mean.
    fn name_of_networks(&self, naming: Naming) -> Result<String, String> {
        let written = self.text.get(self.here()).unwrap_or("");
        let written = written.strip_prefix('\\').unwrap_or(written);
        match naming {
            Naming::Tag => Ok(written.to_owned()),
            Naming::System => {
                let without = ["AS", "as"]
                    .iter()
                    .find_map(|word| written.strip_prefix(word));
                let digits = without.unwrap_or(written);
                let number = digits.parse::<u32>().ok();
                number.map(|number| number.to_string()).ok_or_else(|| {
                    format!(
                        "an autonomous system has a number, as in 'asn 64500', up to 4294967295; not '{written}'"
                    )
                })
            }
            Naming::Country => match written.as_bytes() {
                [a, b] if a.is_ascii_alphabetic() && b.is_ascii_alphabetic() => {
                    Ok(written.to_ascii_uppercase())
                }
                _ => Err(format!(
                    "a country is a code of two letters, as in 'country DE', not '{written}'"
                )),
            },
        }
    }
}
