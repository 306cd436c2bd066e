//! The tcpdump filter language.
#![forbid(unsafe_code)]

mod arith;
mod ast;
mod bound;
mod compile;
mod display;
mod error;
mod internet;
mod layers;
mod lexer;
mod link;
mod names;
mod parser;
mod program;
mod protocol;
mod qualifier;
mod thread;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use strata_wire::LinkType;

pub use ast::{
    AddressScope, Arith, Direction, Expr, Header, IpVersion, Llc, MacAddress, MacDirection,
    Network, Operator, Relation, Test, Transport, Width,
};
pub use error::{CompileError, ParseError};
pub use program::Program;

/// A filter expression that has been understood.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    expr: Expr,
}

impl Filter {
    /// Reads an expression. The empty one matches every packet.
    ///
    /// # Errors
    ///
    /// What is not understood, with the place and what to write instead.
    pub fn parse(expression: &str) -> Result<Self, ParseError> {
        Ok(Self {
            expr: parser::parse(expression)?,
        })
    }

    /// The tree.
    #[must_use]
    pub fn ast(&self) -> &Expr {
        &self.expr
    }

    /// Makes a program for packets of one link type.
    ///
    /// # Errors
    ///
    /// What cannot be tested on this link type, as libpcap refuses it too.
    pub fn compile(&self, link: LinkType) -> Result<Program, CompileError> {
        compile::compile(&self.expr, link)
    }

    /// Addresses of which every matching packet has at least one, sorted; `None` if nothing can
    /// be said. For skipping parts of a log by an index of addresses.
    ///
    /// The packet has it as source or destination of an IPv4 or IPv6 header, or as the sender's
    /// or target's address of an ARP or RARP packet for Ethernet (at bytes 14 and 24 of it). It
    /// may be a header inside VLAN tags, MPLS labels, `PPPoE` or Geneve, if the filter says so:
    /// an index has to hold these as well.
    #[must_use]
    pub fn host_bound(&self) -> Option<Vec<IpAddr>> {
        bound::host_bound(&self.expr)
    }
}

impl FromStr for Filter {
    type Err = ParseError;

    fn from_str(expression: &str) -> Result<Self, ParseError> {
        Self::parse(expression)
    }
}

/// An equivalent expression, which parses to the same tree.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.expr)
    }
}

/// A filter from a tree that was made by hand.
impl From<Expr> for Filter {
    fn from(expr: Expr) -> Self {
        Self { expr }
    }
}
