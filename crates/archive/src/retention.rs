//! Classes for which flows are kept: those of models, and one of policies.

/// The retention class of flows that a policy protects. They are not deleted to make room,
/// and by age only if this class is given one.
pub const PROTECTED: &str = "protected";

/// The name of a class as a directory's.
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
