//! Retention classes of flows: those of models, and one for policies.

/// The retention class of flows that a policy protects. They are not deleted to free space, and by
/// age only if this class has a limit.
pub const PROTECTED: &str = "protected";

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
