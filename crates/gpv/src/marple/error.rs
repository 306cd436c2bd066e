//! What is wrong with a query, and where.

use std::fmt;

/// A query that cannot be run: what is wrong, where, and the line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueryError {
    /// What is wrong, and what to do.
    pub message: String,
    /// Line, from 1.
    pub line: usize,
    /// Character of the line, from 1.
    pub column: usize,
    /// The line.
    pub text: String,
}

impl QueryError {
    /// Of the byte `at` of a query's text.
    pub(super) fn new(text: &str, at: usize, message: impl Into<String>) -> Self {
        let before = text.get(..at).unwrap_or(text);
        let line_at = before.rfind('\n').map_or(0, |end| end + 1);
        Self {
            message: message.into(),
            line: before.matches('\n').count() + 1,
            column: before[line_at..].chars().count() + 1,
            text: text[line_at..].lines().next().unwrap_or("").to_owned(),
        }
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            message,
            line,
            column,
            text,
        } = self;
        writeln!(f, "line {line}, column {column}: {message}")?;
        writeln!(f, "    {}", text.replace(|c: char| c.is_control(), " "))?;
        write!(f, "    {:>column$}", "^")
    }
}

impl std::error::Error for QueryError {}
