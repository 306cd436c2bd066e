//! Gives up what a recording does not need once everything is open.
//!
//! - [`User`], [`give_up_capabilities`]: user and capabilities of the process;
//! - [`confine_files`]: which files it can reach (Landlock);
//! - [`confine_system_calls`]: what a thread can ask the kernel for (seccomp);
//! - [`Helper`]: a process that keeps the right to open packet sockets, for interfaces that
//!   come later, and hands them over.
//!
//! All but the system calls is to be done before threads are started: they inherit it. Used
//! by `cli`; uses nothing of Strata.
#![deny(unsafe_code)]

mod files;
mod helper;
mod privileges;
mod system_calls;

pub use files::{FilesError, confine_files};
pub use helper::{Helper, serve};
pub use privileges::{PrivilegeError, User, give_up_capabilities};
pub use system_calls::{SystemCallError, confine_system_calls};
