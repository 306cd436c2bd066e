//! From a query's text to its program: names, kinds and bounds are checked on the way.
//!
//! Bottom-up: `compiler` has registers, instructions and streams, `expressions` and `folds` compute,
//! `statements` make streams; `optimize` makes the program shorter.

mod compiler;
mod expressions;
mod folds;
mod optimize;
mod statements;

use super::error::QueryError;
use super::parse::parse;
use super::program::Program;
use compiler::Compiler;

/// Checks a query and makes its program. `parameters` are the values of `$names`.
///
/// # Errors
///
/// With what is wrong, where, and what to do.
pub fn compile(text: &str, parameters: &[(&str, &str)]) -> Result<Program, QueryError> {
    let tree = parse(text, parameters)?;
    let mut compiler = Compiler::new(text, &tree);
    for (name, operator) in &tree.streams {
        compiler.statement(*name, operator)?;
    }
    compiler.finish()
}
