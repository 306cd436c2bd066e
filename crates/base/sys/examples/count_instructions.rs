//! Counts the instructions of a program's threads that are called `counted`, by single-stepping
//! them: for code with AVX-512, which valgrind does not know. Some 2 us per instruction.
//!
//!     cargo run --release -p strata-sys --example count_instructions --
//!         [--addresses=FILE] PROGRAM [ARGUMENT...]
//!
//! Prints JSON after what the program prints. A string instruction (`rep movsb`) counts as one,
//! however often it repeats. With `--addresses`, FILE gets a line for each address, in the
//! program's file, with how often it was executed, for `addr2line`.
#![allow(unsafe_code, reason = "ptrace")]
#![allow(clippy::print_stdout, reason = "a program for developers")]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    stepper::main()
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    println!("only Linux on x86-64 can be single-stepped");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stepper {
    use std::collections::{HashMap, HashSet};
    use std::fmt::Write as _;
    use std::mem::offset_of;
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::{env, fs, io, ptr};

    use libc::{c_long, c_uint, pid_t, user_regs_struct};
    use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

    /// Threads with this name are counted, from when they take it.
    const NAME: &[u8; 8] = b"counted\0";

    const REGISTER_RIP: usize = offset_of!(user_regs_struct, rip);
    const REGISTER_CALL: usize = offset_of!(user_regs_struct, orig_rax);
    const REGISTERS_CALLED_WITH: [usize; 2] = [
        offset_of!(user_regs_struct, rdi),
        offset_of!(user_regs_struct, rsi),
    ];

    /// `address` and `data` are numbers in all requests made here.
    fn trace(request: c_uint, thread: pid_t, address: usize, data: usize) -> io::Result<c_long> {
        // PTRACE_PEEK* return what they read, which may be -1: errno tells.
        // SAFETY: errno is this thread's own; no request made here writes into this process.
        unsafe {
            *libc::__errno_location() = 0;
            let got = libc::ptrace(request, thread, address, data);
            match *libc::__errno_location() {
                0 => Ok(got),
                number => Err(io::Error::from_raw_os_error(number)),
            }
        }
    }

    fn register(thread: pid_t, offset: usize) -> io::Result<u64> {
        Ok(trace(libc::PTRACE_PEEKUSER, thread, offset, 0)?.cast_unsigned())
    }

    /// Waits until a thread of the program stops or ends; returns it and its status.
    fn wait() -> io::Result<(pid_t, i32)> {
        let mut status = 0;
        // SAFETY: the status is written into a variable that outlives the call.
        let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
        if thread < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((thread, status))
    }

    /// Keeps this process and its children on one core: a step is a switch from one to the other.
    fn stay_on_one_core() -> io::Result<()> {
        let mut cores = CpuSet::new();
        cores.set(sched_getcpu());
        Ok(sched_setaffinity(None, &cores)?)
    }

    /// Whether a thread that stopped at a system call takes the name.
    fn takes_name(thread: pid_t) -> io::Result<bool> {
        let [option, name] = REGISTERS_CALLED_WITH;
        if register(thread, REGISTER_CALL)?.cast_signed() != libc::SYS_prctl
            || register(thread, option)? != libc::PR_SET_NAME.unsigned_abs().into()
        {
            return Ok(false);
        }
        let at = usize::try_from(register(thread, name)?).map_err(io::Error::other)?;
        let word = trace(libc::PTRACE_PEEKDATA, thread, at, 0)?;
        Ok(word.to_ne_bytes() == *NAME)
    }

    /// Where a program's file is mapped.
    fn base_of(process: pid_t) -> io::Result<u64> {
        let maps = fs::read_to_string(format!("/proc/{process}/maps"))?;
        let (start, _) = maps.split_once('-').ok_or(io::ErrorKind::InvalidData)?;
        u64::from_str_radix(start, 16).map_err(io::Error::other)
    }

    #[derive(Default)]
    struct Counts {
        instructions: u64,
        /// By thread, the address of its previous instruction.
        previous: HashMap<pid_t, u64>,
        by_address: Option<HashMap<u64, u64>>,
    }

    impl Counts {
        fn step(&mut self, thread: pid_t) -> io::Result<()> {
            let address = register(thread, REGISTER_RIP)?;
            // A repetition of a string instruction traps again.
            if self.previous.insert(thread, address) != Some(address) {
                self.instructions += 1;
                if let Some(by_address) = &mut self.by_address {
                    *by_address.entry(address).or_insert(0) += 1;
                }
            }
            Ok(())
        }
    }

    pub(super) fn main() -> Result<(), Box<dyn std::error::Error>> {
        let mut arguments = env::args_os().skip(1).peekable();
        let option = |argument: &mut std::ffi::OsString| {
            let text = argument.to_str()?;
            Some(text.strip_prefix("--addresses=")?.to_owned())
        };
        let file = arguments.peek_mut().and_then(option);
        if file.is_some() {
            arguments.next();
        }
        let program = arguments.next().ok_or("which program?")?;
        stay_on_one_core()?;
        let mut command = Command::new(program);
        command.args(arguments);
        let ask = || {
            let null = ptr::null_mut::<libc::c_void>();
            // SAFETY: the request has no arguments.
            match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null, null) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: `ask` makes one system call, and allocates nothing.
        let child = unsafe { command.pre_exec(ask) }.spawn()?;
        let process = pid_t::try_from(child.id())?;
        let mut counts = Counts {
            by_address: file.is_some().then(HashMap::new),
            ..Counts::default()
        };
        let base = follow(process, &mut counts)?;
        println!("{{\"instructions\": {}}}", counts.instructions);
        if let (Some(file), Some(by_address)) = (file, counts.by_address) {
            let mut text = String::new();
            for (address, count) in by_address {
                writeln!(text, "{:#x} {count}", address.wrapping_sub(base))?;
            }
            fs::write(file, text)?;
        }
        Ok(())
    }

    /// Counts until the program ends; returns where its file was mapped.
    fn follow(process: pid_t, counts: &mut Counts) -> io::Result<u64> {
        let options =
            libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        let call_stop = libc::SIGTRAP | 0x80;
        let mut known = HashSet::new();
        let mut counted = HashSet::new();
        let mut base = None;
        loop {
            let (thread, status) = wait()?;
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                if thread != process {
                    continue;
                }
                return base.ok_or_else(|| io::Error::other("the program did not start"));
            }
            let signal = libc::WSTOPSIG(status);
            let is_new = known.insert(thread);
            if base.is_none() {
                // Stopped by its start.
                let options = usize::try_from(options).map_err(io::Error::other)?;
                trace(libc::PTRACE_SETOPTIONS, thread, 0, options)?;
                base = Some(base_of(process)?);
            }
            let mut passed_on = 0;
            if signal == call_stop {
                if !counted.contains(&thread) && takes_name(thread)? {
                    counted.insert(thread);
                }
            } else if signal == libc::SIGTRAP {
                if status >> 16 == 0 && counted.contains(&thread) {
                    counts.step(thread)?;
                }
            } else if !(is_new && signal == libc::SIGSTOP) {
                passed_on = usize::try_from(signal).map_err(io::Error::other)?;
            }
            let request = if counted.contains(&thread) {
                libc::PTRACE_SINGLESTEP
            } else {
                libc::PTRACE_SYSCALL
            };
            trace(request, thread, 0, passed_on)?;
        }
    }
}
