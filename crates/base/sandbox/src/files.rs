//! Which files the process can access (Landlock, Linux 5.13 and later).

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, path_beneath_rules,
};

/// What a process still reads while it records: name resolution, port names, the time zone. The
/// directories hold public files only: libraries of name resolution, time zones, and the two where
/// `/etc/resolv.conf` is kept on machines where a program replaces it.
const READ_ALWAYS: [&str; 17] = [
    "/dev/null",
    "/dev/urandom",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/lib",
    "/lib64",
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/usr/lib",
    "/usr/share/zoneinfo",
];

/// Directories that hold much that is not ours: in these, only the file itself is allowed.
const SHARED: [&str; 11] = [
    "/", "/dev", "/etc", "/home", "/proc", "/root", "/run", "/sys", "/tmp", "/usr", "/var",
];

/// Why file access cannot be restricted.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The kernel refused.
    #[error("cannot restrict access to files (Landlock): {0}")]
    Ruleset(#[from] RulesetError),
    /// The kernel has no Landlock, or it is disabled.
    #[error(
        "Landlock is not available: this kernel lacks it, or it is disabled (boot parameter lsm=)"
    )]
    NotThere,
}

/// What a process may still access. Paths that do not exist are skipped.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Files, and directories with everything below them, to read.
    pub read: Vec<PathBuf>,
    /// Directories in which to read, write, create and delete.
    pub write: Vec<PathBuf>,
    /// Directories in which files and empty directories may be deleted, and nothing else.
    pub delete: Vec<PathBuf>,
}

impl Files {
    /// Adds a file that is read again later. Editors replace the file, so its whole directory is
    /// allowed; if that directory is shared with others, only the file as it is now.
    pub fn read_again(&mut self, file: &Path) {
        let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or_else(|| Path::new("."));
        let resolved = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let shared = SHARED.iter().any(|shared| resolved == Path::new(shared));
        self.read
            .push(if shared { file.to_owned() } else { resolved });
    }
}

/// Restricts this thread, and the threads it starts, to `files` and to what every process reads to
/// resolve names. Nothing can be executed, and no device can be controlled.
///
/// # Errors
///
/// If the kernel refuses: then nothing has changed.
pub fn restrict_files(files: &Files) -> Result<(), FilesError> {
    restrict(&READ_ALWAYS.map(PathBuf::from), files)
}

/// Restricts this thread, and the threads and programs it starts, to reading and executing files, and to
/// writing those of `files`.
///
/// # Errors
///
/// If the kernel refuses: then nothing has changed.
pub fn restrict_files_of_starter(files: &Files) -> Result<(), FilesError> {
    let all = AccessFs::from_all(ABI::V5);
    let read = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::Execute;
    let write = all & !AccessFs::IoctlDev;
    let ruleset = Ruleset::default().handle_access(all)?.create()?;
    enforced(
        &ruleset
            .add_rules(path_beneath_rules(["/"], read))?
            .add_rules(path_beneath_rules(["/dev/null"], write))?
            .add_rules(path_beneath_rules(&files.write, write))?
            .restrict_self()?,
    )
}

/// Like [`restrict_files`], with no files at all.
pub(crate) fn restrict_to_no_files() -> Result<(), FilesError> {
    restrict(&[], &Files::default())
}

fn restrict(always: &[PathBuf], files: &Files) -> Result<(), FilesError> {
    let all = AccessFs::from_all(ABI::V5);
    let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = all & !(AccessFs::Execute | AccessFs::IoctlDev);
    let delete: BitFlags<AccessFs> = AccessFs::RemoveFile | AccessFs::RemoveDir;
    let restricted = Ruleset::default()
        .handle_access(all)?
        .create()?
        .add_rules(path_beneath_rules(always, read))?
        .add_rules(path_beneath_rules(&files.read, read))?
        .add_rules(path_beneath_rules(&files.write, write))?
        .add_rules(path_beneath_rules(&files.delete, delete))?
        .restrict_self()?;
    enforced(&restricted)
}

fn enforced(status: &RestrictionStatus) -> Result<(), FilesError> {
    if status.ruleset == RulesetStatus::NotEnforced {
        return Err(FilesError::NotThere);
    }
    Ok(())
}
