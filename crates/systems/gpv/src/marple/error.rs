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
    /// The line, or what is around the place if the line is long.
    pub text: String,
    /// Characters of `text` before the place.
    caret: usize,
}

/// Characters of a line that are shown before the place, and after it.
const SHOWN_BEFORE: usize = 60;
const SHOWN_AFTER: usize = 40;

impl QueryError {
    /// Of the byte `at` of a query's text.
    #[must_use]
    pub fn new(text: &str, at: usize, message: impl Into<String>) -> Self {
        let before = text.get(..at).unwrap_or(text);
        let line_at = before.rfind('\n').map_or(0, |end| end.wrapping_add(1));
        let column = before[line_at..].chars().count();
        let skipped = column.saturating_sub(SHOWN_BEFORE);
        let line = text[line_at..].lines().next().unwrap_or("");
        let mut shown = line.chars().skip(skipped);
        let (before_it, after_it) = (column.wrapping_sub(skipped), SHOWN_AFTER);
        let mut clipped: String = shown
            .by_ref()
            .take(before_it.wrapping_add(after_it))
            .collect();
        let mut caret = before_it;
        if skipped > 0 {
            clipped.insert_str(0, "... ");
            caret = caret.wrapping_add(4);
        }
        if shown.next().is_some() {
            clipped.push_str(" ...");
        }
        Self {
            message: message.into(),
            line: before.matches('\n').count().wrapping_add(1),
            column: column.wrapping_add(1),
            text: clipped,
            caret,
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
            caret,
        } = self;
        writeln!(f, "line {line}, column {column}: {message}")?;
        writeln!(f, "    {}", text.replace(|c: char| c.is_control(), " "))?;
        write!(f, "    {:>width$}", "^", width = caret.wrapping_add(1))
    }
}

impl std::error::Error for QueryError {}
