//! A program that a command runs: signals that would end the command end that program.

use std::process::{Command, ExitStatus};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::SIGINT;

use super::{before_ending, stop_on_signal};

/// How a child ended.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// Its status.
    pub status: ExitStatus,
    /// Whether INT or TERM came while it ran.
    pub interrupted: bool,
}

struct Child {
    /// That of no other process until the child is removed from [`CHILD`].
    number: Pid,
    interrupted: bool,
}

/// The child that runs.
static CHILD: Mutex<Option<Child>> = Mutex::new(None);
/// [`Child::interrupted`] was set.
static INTERRUPTED: Condvar = Condvar::new();

fn child() -> MutexGuard<'static, Option<Child>> {
    CHILD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a program to its end. INT and TERM are passed on to it, and do not end this process; one that comes at least a
/// second after the first kills the child, and ends this process. One child at a time.
///
/// # Errors
///
/// If it cannot be started, or the operating system refuses a thread.
pub fn run_child(command: &mut Command) -> Result<Ran> {
    // The thread that passes signals on.
    before_ending(|| ())?;
    let stop = stop_on_signal()?;
    let program = command.get_program().display().to_string();
    let (mut running, was_set) = {
        // A signal that comes now waits for its number.
        let mut slot = child();
        let was_set = stop.load(Ordering::SeqCst);
        let spawned = command.spawn();
        let spawned = spawned.with_context(|| format!("{program}: cannot run"))?;
        *slot = Some(Child {
            number: Pid::from_child(&spawned),
            interrupted: false,
        });
        (spawned, was_set)
    };
    wait(Pid::from_child(&running));
    let mut slot = child();
    // The terminal may have ended the child before the thread has seen the signal.
    while !was_set
        && stop.load(Ordering::SeqCst)
        && slot.as_ref().is_some_and(|child| !child.interrupted)
    {
        slot = INTERRUPTED
            .wait(slot)
            .unwrap_or_else(PoisonError::into_inner);
    }
    let interrupted = slot.take().is_some_and(|child| child.interrupted);
    drop(slot);
    let status = running.wait();
    Ok(Ran {
        status: status.with_context(|| format!("{program}: cannot wait for it"))?,
        interrupted,
    })
}

/// Waits for the end of a child, which keeps its number.
fn wait(number: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    // Another error: it is gone.
    while matches!(waitid(WaitId::Pid(number), options), Err(Errno::INTR)) {}
}

/// Passes a signal on to the child; whether one runs.
pub(super) fn pass_on(signal: i32) -> bool {
    let mut slot = child();
    let Some(child) = slot.as_mut() else {
        return false;
    };
    let signal = match signal {
        SIGINT => Signal::INT,
        _ => Signal::TERM,
    };
    // It may have ended.
    let _ = kill_process(child.number, signal);
    child.interrupted = true;
    INTERRUPTED.notify_all();
    true
}

/// Kills the child, if one runs.
pub(super) fn kill() {
    if let Some(child) = child().as_ref() {
        // It may have ended.
        let _ = kill_process(child.number, Signal::KILL);
        wait(child.number);
    }
}
