//! Which system calls a thread can make (seccomp).
//!
//! [`restrict_process`] limits the calling thread, and all that it starts, to the calls of a
//! recording; [`restrict_thread`] limits a thread to those of its [`Role`]. Filters add up, so a
//! thread that does not declare its role still has no more than the process. A call that is not in
//! the list fails with EPERM and is named on standard error; the thread continues.
//!
//! A process that starts other programs cannot be held to a list of what it needs:
//! [`restrict_starter`] forbids what changes the machine instead.
//!
//! A process says once whether it is restricted ([`restrict_process`], [`restrict_starter`]) or not
//! ([`leave_unrestricted`]). A thread that asks for its role before that panics: it would run with
//! everything, and nothing would say so.

use std::collections::BTreeMap;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};
use syscalls::Sysno;

/// Why system calls cannot be restricted.
#[derive(Debug, thiserror::Error)]
pub enum SystemCallError {
    /// The filter cannot be built for this machine.
    #[error("cannot filter system calls (seccomp): {0}")]
    Filter(#[from] BackendError),
    /// The kernel refused it.
    #[error("cannot filter system calls (seccomp): {0}")]
    Apply(#[from] seccompiler::Error),
    /// The handler cannot be installed.
    #[error("cannot handle SIGSYS: {0}")]
    Handler(io::Error),
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads packets from interfaces and classifies them.
    Worker,
    /// Writes blocks to disk.
    Writer,
    /// Serves and sends requests: API, alerts, the control connection of a relay.
    Server,
    /// Reads and deletes files of the log, or reads a source of alerts.
    Files,
    /// Opens packet sockets and hands them over.
    Helper,
    /// Makes memory present.
    Memory,
}

impl Role {
    fn lists(self) -> &'static [&'static [i64]] {
        match self {
            Self::Worker => &[BASIC, LOOK, CAPTURE],
            Self::Writer => &[BASIC, LOOK, CHANGE, URING],
            // Host names are resolved by threads of their own; policies are saved.
            Self::Server => &[BASIC, LOOK, CHANGE, NETWORK, THREADS],
            Self::Files => &[BASIC, LOOK, CHANGE, URING, NETWORK, THREADS],
            Self::Helper => &[BASIC, HELPER],
            Self::Memory => &[BASIC],
        }
    }
}

/// The whole process: what any of its threads needs.
const PROCESS: &[&[i64]] = &[BASIC, LOOK, CHANGE, URING, NETWORK, THREADS, CAPTURE, RELAY];

/// Memory, the clock, waiting, signals, open files: what every thread needs. `seccomp` can only
/// restrict further.
const BASIC: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_seccomp,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_write,
    libc::SYS_writev,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
];

/// Files: to look up and read.
const LOOK: &[i64] = &[
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_flock,
    libc::SYS_fstatfs,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_readlinkat,
    libc::SYS_statfs,
    libc::SYS_statx,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];

/// Files: to change them, but never their owner or mode.
const CHANGE: &[i64] = &[
    libc::SYS_copy_file_range,
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_mkdirat,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_sync_file_range,
    libc::SYS_unlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// Several blocks in flight to the disk.
const URING: &[i64] = &[
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
];

/// Connections.
const NETWORK: &[i64] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_ioctl,
    libc::SYS_listen,
    libc::SYS_pselect6,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_uname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
];

/// Starting threads, and waiting for the process that opens sockets. `clone` only without new
/// namespaces; see [`without_namespaces`].
const THREADS: &[i64] = &[
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_dup,
    libc::SYS_getrusage,
    libc::SYS_pipe2,
    libc::SYS_prlimit64,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setaffinity,
    libc::SYS_sysinfo,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Packets from rings, maps of programs; capturing again on an interface that has come back;
/// sending copies.
const CAPTURE: &[i64] = &[
    libc::SYS_bind,
    libc::SYS_bpf,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_ioctl,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_socket,
];

/// Memory that a relay shares with a switch on the same machine.
const RELAY: &[i64] = &[libc::SYS_memfd_create];

/// Dropping capabilities that were needed for a while.
const PRIVILEGES: &[i64] = &[libc::SYS_capget, libc::SYS_capset];

const HELPER: &[i64] = &[libc::SYS_sendmsg, libc::SYS_socket];

/// What a process must not do that starts other programs, and neither must these: change what the
/// machine is, look into other processes, or get at rights by a namespace of its own.
const NEVER: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_init_module,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_personality,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Whether the process, and with it its threads, is restricted: one of the values below.
static STATE: AtomicU8 = AtomicU8::new(UNDECIDED);
/// Not decided yet.
const UNDECIDED: u8 = 0;
/// It is not, on purpose.
const UNRESTRICTED: u8 = 1;
/// It is.
const RESTRICTED: u8 = 2;

/// Names of the system calls that a restricted process makes, for a sandbox around it.
#[must_use]
pub fn process_system_calls() -> Vec<&'static str> {
    let calls = PROCESS.iter().copied().flatten();
    let known = calls.filter_map(|&call| Sysno::new(usize::try_from(call).ok()?));
    known.map(|call| call.name()).collect()
}

/// Restricts this thread, and the threads it starts, to the system calls of a recording, and makes
/// [`restrict_thread`] take effect. Must be called before threads are started.
///
/// # Errors
///
/// If the kernel refuses.
pub fn restrict_process() -> Result<(), SystemCallError> {
    apply(PROCESS)?;
    STATE.store(RESTRICTED, Ordering::Relaxed);
    Ok(())
}

/// As [`restrict_process`], for a process that still has to drop capabilities: then it calls that too.
///
/// # Errors
///
/// If the kernel refuses.
pub fn restrict_process_for_now() -> Result<(), SystemCallError> {
    apply(&[PROCESS, &[PRIVILEGES]].concat())?;
    STATE.store(RESTRICTED, Ordering::Relaxed);
    Ok(())
}

/// Forbids this thread, the threads it starts and the programs that they start what changes the
/// machine, and makes [`restrict_thread`] take effect. Must be called before threads are started.
///
/// # Errors
///
/// If the kernel refuses.
pub fn restrict_starter() -> Result<(), SystemCallError> {
    let arch = std::env::consts::ARCH.try_into()?;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for &call in NEVER {
        rules.insert(call, Vec::new());
    }
    rules.insert(libc::SYS_clone, with_namespaces()?);
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch)?;
    let program: BpfProgram = filter.try_into()?;
    apply_filter(&program)?;
    // Its flags are in memory, which a filter cannot read: without it, libc falls back to `clone`.
    refuse(&[libc::SYS_clone3], libc::ENOSYS)?;
    STATE.store(RESTRICTED, Ordering::Relaxed);
    Ok(())
}

/// Says that this process is not restricted on purpose, so that [`restrict_thread`] does nothing. What
/// is restricted stays so.
pub fn leave_unrestricted() {
    let order = Ordering::Relaxed;
    // Whether it was decided before does not matter.
    let _ = STATE.compare_exchange(UNDECIDED, UNRESTRICTED, order, order);
}

/// Restricts this thread, and the threads it starts, to the system calls of its role. Does nothing
/// in a process that was left unrestricted on purpose ([`leave_unrestricted`]).
///
/// # Errors
///
/// If the kernel refuses.
///
/// # Panics
///
/// If the process has not declared whether it is restricted: the thread would run with everything.
pub fn restrict_thread(role: Role) -> Result<(), SystemCallError> {
    let state = STATE.load(Ordering::Relaxed);
    assert!(
        state != UNDECIDED,
        "a thread wants the system calls of a {role:?} only, and its process has neither been \
         restricted nor left unrestricted on purpose: it does not go on"
    );
    match state {
        RESTRICTED => apply(role.lists()),
        _ => Ok(()),
    }
}

pub(crate) fn apply_role(role: Role) -> Result<(), SystemCallError> {
    apply(role.lists())
}

/// Lets system calls fail with this error, without a word.
fn refuse(calls: &[i64], error: i32) -> Result<(), SystemCallError> {
    let arch = std::env::consts::ARCH.try_into()?;
    let fails = SeccompAction::Errno(error.unsigned_abs());
    let only = calls.iter().map(|&call| (call, Vec::new())).collect();
    let filter = SeccompFilter::new(only, SeccompAction::Allow, fails, arch)?;
    let program: BpfProgram = filter.try_into()?;
    Ok(apply_filter(&program)?)
}

fn apply(lists: &[&[i64]]) -> Result<(), SystemCallError> {
    static HANDLER: OnceLock<Result<(), i32>> = OnceLock::new();
    let set = HANDLER.get_or_init(|| {
        let set = strata_sys::blocked::install_handler();
        set.map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL))
    });
    set.map_err(|code| SystemCallError::Handler(io::Error::from_raw_os_error(code)))?;
    let arch = std::env::consts::ARCH.try_into()?;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for &call in lists.iter().copied().flatten() {
        rules.insert(call, Vec::new());
    }
    if let Some(clone) = rules.get_mut(&libc::SYS_clone) {
        clone.push(without_namespaces()?);
        // Its flags are in memory, which a filter cannot read: without it, libc falls back to
        // `clone`.
        refuse(&[libc::SYS_clone3], libc::ENOSYS)?;
    }
    // A process may signal itself, as an alarm does.
    rules.insert(libc::SYS_kill, vec![to_itself()?]);
    // When memory is first given back, libc's allocator reads how the system overcommits memory; a database
    // may give owner and mode to files that it makes. They go on without. Of two filters the stricter
    // answer counts, so this one has to allow it.
    let silently = [libc::SYS_openat, libc::SYS_fchown, libc::SYS_fchmod];
    let silently: Vec<i64> = silently
        .into_iter()
        .filter(|&call| rules.insert(call, Vec::new()).is_none())
        .collect();
    refuse(&silently, libc::EPERM)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, arch)?;
    let program: BpfProgram = filter.try_into()?;
    Ok(apply_filter(&program)?)
}

/// The namespaces that `clone` may make.
const NAMESPACES: i32 = libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;

/// A `clone` that makes any of them.
fn with_namespaces() -> Result<Vec<SeccompRule>, BackendError> {
    let flags = (0..i32::BITS).map(|bit| 1_u64 << bit);
    let flags = flags.filter(|flag| u64::from(NAMESPACES.unsigned_abs()) & flag != 0);
    let rule = |flag| {
        let has = SeccompCmpOp::MaskedEq(flag);
        let flags = SeccompCondition::new(0, SeccompCmpArgLen::Qword, has, flag)?;
        SeccompRule::new(vec![flags])
    };
    flags.map(rule).collect()
}

/// A signal to this process.
fn to_itself() -> Result<SeccompRule, BackendError> {
    let this = u64::from(std::process::id());
    let pid = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, this)?;
    SeccompRule::new(vec![pid])
}

/// A `clone` that makes a thread, not a user or network namespace with all capabilities.
fn without_namespaces() -> Result<SeccompRule, BackendError> {
    let none = SeccompCmpOp::MaskedEq(u64::from(NAMESPACES.unsigned_abs()));
    let flags = SeccompCondition::new(0, SeccompCmpArgLen::Qword, none, 0)?;
    SeccompRule::new(vec![flags])
}
