//! The tcpdump filter language.
#![forbid(unsafe_code)]

mod arith;
mod ast;
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

use strata_wire::LinkType;

pub use ast::{
    AddressScope, Arith, Direction, Expr, Header, IpVersion, Llc, MacAddress, MacDirection, Network,
    Operator, Relation, Test, Transport, Width,
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
        Ok(Self { expr: parser::parse(expression)? })
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
}
