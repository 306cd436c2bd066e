//! Counters as a part of the status.

/// A part of the status of counters that have the names of its fields, and of what else it says.
macro_rules! counted {
    ($from:expr => $part:ident { $($field:ident,)* } $($own:ident: $value:expr,)*) => {
        $part { $($field: Some($from.$field),)* $($own: $value,)* }
    };
}
pub(crate) use counted;
