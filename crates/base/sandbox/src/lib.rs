//! Drops the privileges that a recording no longer needs once everything is open.
//!
//! - [`User`], [`give_up_capabilities`]: user and capabilities of the process;
//! - [`Owner`], [`make_log_dir`], [`SocketFile`]: who owns the files it makes, and who may read
//!   them;
//! - [`restrict_files`]: which files it can access (Landlock);
//! - [`restrict_process`], [`restrict_thread`]: which system calls it and its threads can make
//!   (seccomp); a process without a sandbox says so with [`leave_unrestricted`];
//! - [`restrict_starter`], [`restrict_files_of_starter`]: the same for one that starts other programs;
//! - [`read_secret`]: a token from a file that only its owner can read ([`check_private`]);
//! - [`Helper`]: a process that keeps the right to open packet sockets, for interfaces that appear
//!   later, and hands them over.
//!
//! Everything except [`restrict_thread`] must be done before threads are started: they inherit it.
//! Used by `terminal`, `control`, `relay`, `role` and the crates of `run` that have roles; uses `sys` only.
#![forbid(unsafe_code)]

mod files;
mod helper;
mod owner;
mod privileges;
mod secret;
mod socket;
mod system_calls;

pub use files::{Files, FilesError, restrict_files, restrict_files_of_starter};
pub use helper::{Helper, serve};
pub use owner::{Owner, OwnerError, make_dir, make_log_dir, make_secret_dir};
pub use privileges::{Group, PrivilegeError, User, give_up_capabilities, keep_for_programs};
pub use secret::{SecretError, check_private, read_secret};
pub use socket::{SOCKET_NAME, SocketError, SocketFile, runtime_dir};
pub use system_calls::{
    Role, SystemCallError, leave_unrestricted, process_system_calls, restrict_process,
    restrict_process_for_now, restrict_starter, restrict_thread,
};
