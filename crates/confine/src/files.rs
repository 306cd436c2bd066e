//! Which files the process can reach (Landlock, Linux 5.13 and later).

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, path_beneath_rules,
};

/// What every process reads: name resolution, time zones, interfaces' counters.
const READ_ALWAYS: [&str; 10] = [
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/proc",
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/sys",
    "/usr/lib",
    "/usr/share/zoneinfo",
];

/// Why files cannot be confined.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The kernel says no.
    #[error("Landlock: {0}")]
    Ruleset(#[from] RulesetError),
    /// The kernel has no Landlock, or it is turned off.
    #[error("this kernel has no Landlock")]
    NotThere,
}

/// From now on this thread, and those it starts, reach only files below `write`, to read,
/// write, make and delete them, and those below `read` and what every process reads, to read
/// them. Nothing can be executed. Paths that do not exist are passed over.
///
/// # Errors
///
/// If the kernel cannot: then nothing has changed.
pub fn confine_files(read: &[PathBuf], write: &[PathBuf]) -> Result<(), FilesError> {
    let all = AccessFs::from_all(ABI::V3);
    let reading: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let status = Ruleset::default()
        .handle_access(all)?
        .create()?
        .add_rules(path_beneath_rules(READ_ALWAYS, reading))?
        .add_rules(path_beneath_rules(read, reading))?
        .add_rules(path_beneath_rules(
            write,
            all & !BitFlags::from(AccessFs::Execute),
        ))?
        .restrict_self()?;
    if status.ruleset == RulesetStatus::NotEnforced {
        return Err(FilesError::NotThere);
    }
    Ok(())
}
