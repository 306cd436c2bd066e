//! A thread that asks for its role in a process that has not declared whether it is restricted.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use std::thread;

use strata_sandbox::{Role, leave_unrestricted, restrict_thread};

/// In a process of its own: the declaration of a process cannot be taken back.
#[test]
fn it_does_not_go_on_until_its_process_has_decided() {
    let ask = || thread::spawn(|| restrict_thread(Role::Worker)).join();
    let panic = ask().expect_err("nothing was declared");
    let said = panic.downcast_ref::<String>().unwrap();
    assert!(said.contains("neither been restricted nor left"), "{said}");
    leave_unrestricted();
    ask().unwrap().unwrap();
}
