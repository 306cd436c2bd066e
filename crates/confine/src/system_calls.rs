//! What a worker can ask the kernel for (seccomp).
//!
//! A call that is not in the list fails, and standard error says which it was; the thread
//! goes on.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::sync::OnceLock;

use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use syscalls::Sysno;

/// Why system calls cannot be confined.
#[derive(Debug, thiserror::Error)]
pub enum SystemCallError {
    /// The list cannot be made ready for this machine.
    #[error("seccomp: {0}")]
    Filter(#[from] BackendError),
    /// The kernel does not take it.
    #[error("seccomp: {0}")]
    Apply(#[from] seccompiler::Error),
    /// The handler cannot be set.
    #[error("cannot handle SIGSYS: {0}")]
    Handler(io::Error),
}

/// What a worker uses: packets of its rings, its counters, memory, the clock, blocks handed
/// over; and to capture an interface again that was gone.
const WORKER: &[i64] = &[
    libc::SYS_bind,
    libc::SYS_bpf,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getdents64,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_gettid,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_sigaltstack,
    libc::SYS_socket,
    libc::SYS_statx,
    libc::SYS_tgkill,
    libc::SYS_write,
    libc::SYS_writev,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];

/// From now on this thread asks the kernel only for what a worker needs.
///
/// # Errors
///
/// If the kernel cannot.
pub fn confine_system_calls() -> Result<(), SystemCallError> {
    static HANDLER: OnceLock<Result<(), i32>> = OnceLock::new();
    let set = HANDLER.get_or_init(|| {
        // SAFETY: the handler formats into its own stack and calls write(2) alone.
        let registered =
            unsafe { signal_hook_registry::register_sigaction(libc::SIGSYS, say_what_was_blocked) };
        registered
            .map(drop)
            .map_err(|error| error.raw_os_error().unwrap_or(0))
    });
    set.map_err(|code| SystemCallError::Handler(io::Error::from_raw_os_error(code)))?;
    let rules: BTreeMap<i64, Vec<_>> = WORKER.iter().map(|&call| (call, Vec::new())).collect();
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Trap,
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    Ok(apply_filter(&program)?)
}

/// `si_syscall` in `siginfo_t` of a SIGSYS (asm-generic/siginfo.h): behind three words, which
/// fill up to 16 bytes, and an address.
const SI_SYSCALL_AT: usize = 24;

fn say_what_was_blocked(info: &libc::siginfo_t) {
    // SAFETY: siginfo_t has 128 bytes, of which these four are an initialised integer.
    let number: i32 = unsafe {
        std::ptr::from_ref(info)
            .cast::<u8>()
            .add(SI_SYSCALL_AT)
            .cast::<i32>()
            .read_unaligned()
    };
    let known = usize::try_from(number).ok().and_then(Sysno::new);
    let name = known.map_or("of unknown name", |call| call.name());
    let mut line = [0_u8; 128];
    let mut len = 0;
    for part in [
        "strata: blocked: a worker wanted the system call ",
        name,
        "\n",
    ] {
        let part = part.as_bytes();
        let end = (len + part.len()).min(line.len());
        line[len..end].copy_from_slice(&part[..end - len]);
        len = end;
    }
    // SAFETY: write(2) of a buffer of that length, safe in a signal handler.
    let _ = unsafe { libc::write(2, line.as_ptr().cast(), len) };
}
