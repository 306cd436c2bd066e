//! SIGINT and SIGTERM: the first asks the program to stop, and one that comes at least a second later ends it.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, register};

/// Signals less than this after the first one are one request with it: GNU `timeout` signals its child, and then the
/// child's process group.
const AGAIN_NS: u64 = 1_000_000_000;

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    /// The first: to stop.
    Stop,
    /// As the first, which came just before.
    Same,
    /// To end at once.
    End,
}

/// The time of the first signal, in ns; 0 before it.
#[derive(Debug)]
struct Interrupts(AtomicU64);

impl Interrupts {
    /// A signal comes at this time, of a clock that is never set back.
    fn at(&self, now_ns: u64) -> Asked {
        let now_ns = now_ns.max(1);
        let first = self
            .0
            .compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed);
        match first {
            Ok(_) => Asked::Stop,
            Err(first_ns) if now_ns.saturating_sub(first_ns) >= AGAIN_NS => Asked::End,
            Err(_) => Asked::Same,
        }
    }
}

static INTERRUPTS: Interrupts = Interrupts(AtomicU64::new(0));
/// Whether the program is to end at once.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// Whether a thread ends it then.
static BY_THREAD: AtomicBool = AtomicBool::new(false);
static LAST_WORDS: OnceLock<&str> = OnceLock::new();

/// From now on, the first of these signals sets `stop`. One that comes at least a second after the first prints
/// [`set_last_words`] to standard error and ends the program as if it were not handled. To be called once.
///
/// # Errors
///
/// What the operating system says.
pub fn install(stop: &Arc<AtomicBool>) -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        let stop = Arc::clone(stop);
        let act = move || match INTERRUPTS.at(now_ns()) {
            Asked::Stop => stop.store(true, Ordering::SeqCst),
            Asked::Same => {}
            Asked::End => {
                if !IS_OVER.swap(true, Ordering::SeqCst) {
                    say_last_words();
                }
                if !BY_THREAD.load(Ordering::SeqCst) {
                    // It does not return, so there is no one to tell.
                    let _ = emulate_default_handler(signal);
                }
            }
        };
        // SAFETY: the action is async-signal-safe: atomics, clock_gettime, poll, write and signal-hook's default action. It
        // neither allocates nor panics.
        unsafe { register(signal, act) }?;
    }
    Ok(())
}

/// The line that is printed if a second signal ends the program: what is not finished then. Only the first counts.
pub fn set_last_words(line: &'static str) {
    let _ = LAST_WORDS.set(line);
}

/// A thread of the program ends it from now on, once [`is_over`].
pub fn end_by_thread() {
    BY_THREAD.store(true, Ordering::SeqCst);
}

/// Whether a second signal has asked the program to end at once.
#[must_use]
pub fn is_over() -> bool {
    IS_OVER.load(Ordering::SeqCst)
}

fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes a timespec. Linux has this clock, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    // 584 years until it wraps.
    let seconds_ns = now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000);
    seconds_ns.wrapping_add(now.tv_nsec.cast_unsigned())
}

fn say_last_words() {
    let Some(line) = LAST_WORDS.get() else {
        return;
    };
    let mut ready = libc::pollfd {
        fd: libc::STDERR_FILENO,
        events: libc::POLLOUT,
        revents: 0,
    };
    // A reader that has stopped must not keep the program from ending.
    // SAFETY: the kernel reads and writes one pollfd.
    if unsafe { libc::poll(&raw mut ready, 1, 0) } != 1 {
        return;
    }
    let part = |bytes: &[u8]| libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // One call, so that no other line comes between.
    let line = [part(line.as_bytes()), part(b"\n")];
    // SAFETY: the kernel reads two slices that live as long as the program.
    unsafe { libc::writev(libc::STDERR_FILENO, line.as_ptr(), 2) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_signal_a_second_after_the_first_ends_the_program() {
        let interrupts = Interrupts(AtomicU64::new(0));
        let at = |ms: u64| interrupts.at(ms.wrapping_mul(1_000_000));
        assert_eq!(at(5_000), Asked::Stop);
        // As GNU timeout sends them, and someone who is impatient.
        for ms in [5_000, 5_001, 5_500, 5_999] {
            assert_eq!(at(ms), Asked::Same, "{ms}");
        }
        for ms in [6_000, 6_001, 60_000] {
            assert_eq!(at(ms), Asked::End, "{ms}");
        }
    }

    #[test]
    fn a_clock_at_0_and_signals_in_another_order_than_their_times_are_one_request() {
        let interrupts = Interrupts(AtomicU64::new(0));
        assert_eq!(interrupts.at(0), Asked::Stop);
        assert_eq!(interrupts.at(0), Asked::Same);
        let interrupts = Interrupts(AtomicU64::new(0));
        assert_eq!(interrupts.at(2 * AGAIN_NS), Asked::Stop);
        assert_eq!(interrupts.at(2 * AGAIN_NS - 7), Asked::Same);
    }
}
