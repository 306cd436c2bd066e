//! What can be wrong with a filter.

use std::fmt;
use std::ops::Range;

use strata_wire::LinkType;

/// Why an expression is not a valid filter.
///
/// Displays the expression with the error marked:
///
/// ```text
/// a port is a number from 0 to 65535, not 70000
///   tcp port 70000
///            ^~~~~
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ParseError {
    expression: String,
    span: Range<usize>,
    message: String,
}

impl ParseError {
    pub(crate) fn new(expression: &str, span: Range<usize>, message: impl Into<String>) -> Self {
        Self {
            expression: expression.to_owned(),
            span,
            message: message.into(),
        }
    }

    /// The position in the expression, in bytes. Empty at the end if something is missing.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// What is wrong and what to write instead, without the expression.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The expression as it was given.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }
}

/// Displayed around the mark: a very long expression is cut, in characters.
const CONTEXT_MAX: usize = 60;

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = self.expression.get(..self.span.start).unwrap_or("");
        let marked = self.expression.get(self.span.clone()).unwrap_or("");
        let after = self.expression.get(self.span.end..).unwrap_or("");
        let skipped = before.chars().count().saturating_sub(CONTEXT_MAX);
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let shown: String = before.chars().skip(skipped).map(plain).collect();
        let lead = if skipped > 0 { "..." } else { "" };
        let tail = if after.chars().count() > CONTEXT_MAX {
            "..."
        } else {
            ""
        };
        let marked: String = marked.chars().take(CONTEXT_MAX).map(plain).collect();
        let after: String = after.chars().take(CONTEXT_MAX).map(plain).collect();
        writeln!(f, "{}", self.message)?;
        writeln!(f, "  {lead}{shown}{marked}{after}{tail}")?;
        let indent = lead.len().saturating_add(shown.chars().count());
        let waves = marked.chars().count().saturating_sub(1);
        write!(f, "  {:indent$}^{:~<waves$}", "", "")
    }
}

/// Why a filter cannot run on packets of a link type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The test means nothing on this link.
    #[error("'{test}' cannot be tested on {link}: {reason}")]
    Unsupported {
        /// The part of the expression.
        test: String,
        /// The link type, or the encapsulation the expression has entered.
        link: String,
        /// Why, and what can be done.
        reason: &'static str,
    },
    /// Only `len` and loads from `link[...]` are supported on this link type.
    #[error(
        "'{test}' cannot be tested on packets of {link}: Strata does not know where their \
         network header is; only 'len', 'less', 'greater' and 'link[...]' work here"
    )]
    UnknownLink {
        /// The part of the expression.
        test: String,
        /// The link type.
        link: LinkType,
    },
    /// It exceeds the limits of the evaluation.
    #[error("the filter is too large: {what}; split it into several filters")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
    },
}
