//! Retention classes of flows: those of models, and one for policies.

/// The retention class of flows that a policy protects. They are not deleted to free space, and by
/// age only if this class has a limit.
pub const PROTECTED: &str = "protected";

/// A flow's retention class, in the order in which parts of an hour are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FlowRetention {
    /// A class of the model, by its index.
    Class(u8),
    /// A policy protects it.
    Protected,
    /// It has no class.
    Unknown,
}

impl FlowRetention {
    /// Its name as a directory name.
    pub(crate) fn name(self, classes: &[String]) -> String {
        match self {
            Self::Class(class) => {
                retention_name(classes.get(usize::from(class)).map(String::as_str))
            }
            Self::Protected => PROTECTED.to_owned(),
            Self::Unknown => retention_name(None),
        }
    }
}

/// The name of a class as a directory name.
pub(crate) fn retention_name(class: Option<&str>) -> String {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    let name: String = class.unwrap_or("unknown").chars().map(safe).collect();
    if name.is_empty() {
        "unknown".into()
    } else {
        name
    }
}
