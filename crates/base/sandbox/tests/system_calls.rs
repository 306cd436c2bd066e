//! Which system calls threads of a restricted process are refused, and what still works.
//!
//! A binary of its own: a restriction of its process or of a child's cannot be taken back.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::thread;

use strata_sandbox::{
    Files, Role, restrict_files_of_starter, restrict_process, restrict_starter, restrict_thread,
};

/// A system call with harmless arguments; returns its error.
fn refused(call: i64) -> Option<i32> {
    // SAFETY: null pointers and zeros, for calls that fail with these where they are permitted.
    let done = unsafe { libc::syscall(call, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) };
    (done < 0).then(|| io::Error::last_os_error().raw_os_error().unwrap())
}

/// Calls that no thread of a recording makes.
const NOBODY: [i64; 8] = [
    libc::SYS_execve,
    libc::SYS_ptrace,
    libc::SYS_mount,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_fchownat,
    libc::SYS_fchmodat,
    libc::SYS_perf_event_open,
];

#[test]
fn each_role_is_refused_what_it_does_not_need() {
    // In a thread of its own, since restrictions cannot be undone.
    thread::spawn(|| {
        restrict_process().unwrap();
        for call in NOBODY {
            assert_eq!(refused(call), Some(libc::EPERM), "process: {call}");
        }
        let roles = [
            (
                Role::Worker,
                vec![libc::SYS_unlinkat, libc::SYS_accept4, libc::SYS_clone],
            ),
            (
                Role::Writer,
                vec![libc::SYS_socket, libc::SYS_bpf, libc::SYS_clone],
            ),
            (Role::Server, vec![libc::SYS_bpf, libc::SYS_io_uring_setup]),
            (Role::Files, vec![libc::SYS_bpf]),
            (Role::Memory, vec![libc::SYS_openat, libc::SYS_clone]),
            (
                Role::Helper,
                vec![libc::SYS_openat, libc::SYS_bpf, libc::SYS_connect],
            ),
        ];
        for (role, more) in roles {
            thread::spawn(move || {
                restrict_thread(role).unwrap();
                for call in NOBODY.into_iter().chain(more) {
                    assert_eq!(refused(call), Some(libc::EPERM), "{role:?}: {call}");
                }
            })
            .join()
            .unwrap();
        }
        // Namespaces of its own would bring all capabilities in them. If permitted, the child would
        // be a copy of this test: it exits at once.
        // SAFETY: fork's flags with a user namespace; the child only exits.
        let child = unsafe {
            libc::syscall(
                libc::SYS_clone,
                libc::CLONE_NEWUSER | libc::SIGCHLD,
                0_usize,
                0_usize,
                0_usize,
                0_usize,
            )
        };
        if child == 0 {
            // SAFETY: ends only the child.
            unsafe { libc::_exit(0) };
        }
        assert_eq!(child, -1);
        // What is needed works: files, sockets, threads.
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "a").unwrap();
        fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        UnixListener::bind(dir.path().join("socket")).unwrap();
        thread::spawn(|| ()).join().unwrap();
    })
    .join()
    .unwrap();
}

/// A process that starts others keeps what they need, and neither it nor they can change the machine.
#[test]
fn a_starter_starts_programs_that_cannot_change_the_machine() {
    thread::spawn(|| {
        let (ours, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = Files {
            write: vec![ours.path().to_owned()],
            ..Files::default()
        };
        let may_restrict = rustix::process::geteuid().is_root();
        rustix::thread::set_no_new_privs(true).unwrap();
        restrict_files_of_starter(&files).unwrap();
        restrict_starter().unwrap();
        for call in [
            libc::SYS_ptrace,
            libc::SYS_mount,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_finit_module,
            libc::SYS_kexec_load,
            libc::SYS_open_by_handle_at,
        ] {
            assert_eq!(refused(call), Some(libc::EPERM), "{call}");
        }
        let run = |script: &str| {
            let output = Command::new("sh").args(["-c", script]).output().unwrap();
            output.status.success()
        };
        assert!(run("cat /etc/hostname /proc/self/status > /dev/null; true"));
        assert!(run(&format!("echo a > {}/a", ours.path().display())));
        assert!(!run(&format!("echo a > {}/a", other.path().display())));
        assert!(!run("unshare --user --map-root-user true"));
        assert!(!may_restrict || !run("unshare --mount true"));
        fs::write(ours.path().join("b"), "b").unwrap();
        fs::write(other.path().join("b"), "b").unwrap_err();
    })
    .join()
    .unwrap();
}
