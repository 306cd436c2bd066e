//! System calls that a seccomp filter blocks: what SIGSYS does then.
#![allow(unsafe_code)]

use std::io;

use syscalls::Sysno;

/// Makes SIGSYS report what was blocked and the call fail.
///
/// # Errors
///
/// What the operating system says.
pub fn install_handler() -> io::Result<()> {
    handle(libc::SIGSYS, on_blocked)
}

/// What a signal does: its number, what is known of it, and the interrupted thread's registers.
pub(crate) type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Handles a signal of the process. The handler makes only async-signal-safe calls.
pub(crate) fn handle(signal: libc::c_int, handler: Handler) -> io::Result<()> {
    // SAFETY: zeros are a valid sigaction, libc makes the signal set empty, and the handlers, all of this
    // crate, make only async-signal-safe calls.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(signal, &raw const action, std::ptr::null_mut())
    };
    if done == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// `si_syscall` in `siginfo_t` of a SIGSYS (asm-generic/siginfo.h): after three words, padded to 16
/// bytes, and an address.
const SI_SYSCALL_AT: usize = 24;
/// Bytes of a thread's name with its terminator (prctl(2), `PR_GET_NAME`).
const NAME_LEN: usize = 16;

extern "C" fn on_blocked(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a siginfo_t of 128 bytes, of which these four are an initialised
    // integer.
    let number: i32 = unsafe {
        info.cast::<u8>()
            .add(SI_SYSCALL_AT)
            .cast::<i32>()
            .read_unaligned()
    };
    // The call was not made, and its result is whatever the register holds: without this it would
    // seem to have returned its own number.
    let failed = -libc::EPERM;
    // SAFETY: with SA_SIGINFO the third argument is a ucontext_t, which only we access now.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        #[cfg(target_arch = "x86_64")]
        {
            (*context).uc_mcontext.gregs[libc::REG_RAX.unsigned_abs() as usize] = failed.into();
        }
        #[cfg(target_arch = "aarch64")]
        {
            (*context).uc_mcontext.regs[0] = i64::from(failed).cast_unsigned();
        }
    }
    let mut name = [0_u8; NAME_LEN];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let name_len = name.iter().position(|&byte| byte == 0).unwrap_or(NAME_LEN);
    let known = usize::try_from(number).ok().and_then(Sysno::new);
    let call = known.map_or("(unknown)", |call| call.name());
    let mut line = [0_u8; 160];
    let mut len = 0;
    for part in [
        b"strata: blocked: thread ",
        &name[..name_len],
        b" tried the system call ",
        call.as_bytes(),
        b"\n",
    ] {
        let end = (len + part.len()).min(line.len());
        line[len..end].copy_from_slice(&part[..end - len]);
        len = end;
    }
    // SAFETY: write(2) of a buffer of that length, safe in a signal handler.
    let _ = unsafe { libc::write(2, line.as_ptr().cast(), len) };
}
