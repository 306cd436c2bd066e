//! What a role says while it starts and runs.

use std::fmt;
use std::sync::Arc;

use strata_wire::Printable;

/// Takes notices, from any thread of a role.
pub type Tell = Arc<dyn Fn(&Notice) + Send + Sync>;

/// How much a notice matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// It runs as it should.
    Info,
    /// Something happened by itself; a whole sentence about it.
    Happened,
    /// Something went wrong.
    Warning,
    /// The role ends because of it.
    Error,
}

/// A message to the user of a role. Displayed as a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// Its subject, as a keyword for programs.
    pub kind: &'static str,
    /// How much it matters.
    pub level: Level,
    /// The sentence. What may come from outside is made printable.
    pub text: String,
    /// Parts of it by name, for programs.
    pub fields: Vec<(&'static str, String)>,
}

impl Notice {
    /// A notice that is no problem.
    #[must_use]
    pub fn info(kind: &'static str, text: impl fmt::Display) -> Self {
        Self::new(Level::Info, kind, text)
    }

    /// A notice of this level.
    #[must_use]
    pub fn new(level: Level, kind: &'static str, text: impl fmt::Display) -> Self {
        let text = text.to_string();
        Self {
            kind,
            level,
            text: Printable(&text).to_string(),
            fields: Vec::new(),
        }
    }

    /// Something went wrong.
    #[must_use]
    pub fn warning(text: impl fmt::Display) -> Self {
        Self::new(Level::Warning, "warning", text)
    }

    /// Others can connect to the role from now on: what it is and where, and `address` as a field.
    #[must_use]
    pub fn serving(address: impl fmt::Display, text: impl fmt::Display) -> Self {
        let text = format!("{text}; Ctrl-C ends it");
        Self::info("serving", text).with("address", address)
    }

    /// The role ends: it writes what is in memory, unless its log, store or stream cannot be written.
    #[must_use]
    pub fn ending(failed: bool) -> Self {
        match failed {
            true => Self::new(Level::Error, "ending", "ending: the log cannot be written"),
            false => Self::info("ending", "ending; writing the data in memory"),
        }
    }

    /// The same, with a part of it by name.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.fields.push((name, value.to_string()));
        self
    }

    /// The part of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        let found = fields.find(|(field, _)| *field == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
