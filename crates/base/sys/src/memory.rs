//! Memory that the kernel, another process or a NIC uses too.

pub(crate) mod aligned;
pub(crate) mod growing;
pub(crate) mod mapping;
pub mod shared;
pub(crate) mod view;
pub mod words;
