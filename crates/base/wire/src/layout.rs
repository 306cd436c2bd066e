//! Layouts that are checked when they are compiled.

/// Asserts at compile time a structure's length and the offsets of its fields, for structures that
/// are stored or sent as bytes: `layout!(Header, 8, magic at 0, length at 4)`.
#[macro_export]
macro_rules! layout {
    ($name:ident, $bytes:expr, $($field:ident at $offset:expr),+ $(,)?) => {
        const _: () = {
            assert!(
                ::core::mem::size_of::<$name>() == $bytes
                    && ::core::mem::align_of::<$name>() == 1
            );
            $(assert!(::core::mem::offset_of!($name, $field) == $offset);)+
        };
    };
}
