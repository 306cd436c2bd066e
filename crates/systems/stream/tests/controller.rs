//! A real NVMe controller, QEMU's, driven by `strata_stream::nvme`: from a process in a guest, and by
//! RDMA from outside it. The disk is a file here, so what is on it is seen without the controller.
//! `STRATA_NVME=COMMANDS` runs more of them (20,000).
//!
//! A binary of its own: it starts itself again in the guest's namespace.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stderr, reason = "says what was done")]

#[path = "controller/remote.rs"]
mod remote;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use strata_stream::nvme::Label;
use strata_testkit::guest::{self, GuestTest, Shell};

const TEST: GuestTest = GuestTest {
    name: "nvme",
    target_tmp: env!("CARGO_TARGET_TMPDIR"),
    test: "an_nvme_controller_is_driven_from_a_process_and_by_rdma",
    program: ("strata-stream", "nvme-guest"),
};
const DISK_BYTES: u64 = 64 << 20;
/// What is on the disk before: the end of a boot sector.
const FOREIGN: (u64, &[u8]) = (510, &[0x55, 0xaa]);

fn image() -> PathBuf {
    TEST.dir().join("disk.img")
}

fn qmp() -> PathBuf {
    // Paths of sockets are short.
    std::env::temp_dir().join(format!("strata-{}.qmp", TEST.name))
}

#[test]
fn an_nvme_controller_is_driven_from_a_process_and_by_rdma() {
    fs::create_dir_all(TEST.dir()).unwrap();
    let qemu = [
        "-drive".to_owned(),
        format!("file={},if=none,id=d0,format=raw", image().display()),
        "-device".to_owned(),
        "nvme,serial=strata,drive=d0".to_owned(),
        "-qmp".to_owned(),
        format!("unix:{},server=on,wait=off", qmp().display()),
    ];
    if !guest::is_inner() {
        let disk = File::create(image()).unwrap();
        disk.set_len(DISK_BYTES).unwrap();
        disk.write_all_at(FOREIGN.1, FOREIGN.0).unwrap();
    }
    TEST.run(&qemu, inside);
}

fn inside() {
    what_somebody_else_wrote_is_kept();
    let label = writes_and_reads_of_a_process();
    commands_that_are_late_end_in_a_reset();
    remote::writes_and_reads_by_rdma(&image());
    let mut start = [0; Label::LEN];
    File::open(image())
        .unwrap()
        .read_exact_at(&mut start, 0)
        .unwrap();
    assert_eq!(Label::parse(&start).unwrap().id, label, "it is still ours");
}

/// Starts the guest's program.
fn start(arguments: &str) -> Shell {
    let mut shell = Shell::open();
    shell.say(&format!(
        "exec /extra/nvme-guest $(dirname $(grep -l 0x010802 /sys/bus/pci/devices/*/class)) {arguments} 2>&1"
    ));
    shell
}

fn numbers(line: &str) -> Vec<u64> {
    line.split(' ')
        .filter_map(|word| word.parse().ok())
        .collect()
}

fn what_somebody_else_wrote_is_kept() {
    let mut shell = start("run 100 1");
    let refused = shell.hear("FAIL");
    shell.ended();
    assert!(refused.contains("Strata did not write"), "{refused}");
    let mut there = [0; 2];
    let disk = File::open(image()).unwrap();
    disk.read_exact_at(&mut there, FOREIGN.0).unwrap();
    assert_eq!(there, FOREIGN.1);
    eprintln!("ok: a disk with a boot sector is refused");
}

fn writes_and_reads_of_a_process() -> u64 {
    let commands: u64 = std::env::var("STRATA_NVME").map_or(20_000, |count| count.parse().unwrap());
    let mut shell = start(&format!("run {commands} 17 format"));
    // Emulated, and beside other tests.
    shell.wait_up_to(Duration::from_secs(120 + commands / 100));
    let label = u64::from_str_radix(&shell.hear("LABEL"), 16).unwrap();
    let mut start = [0; Label::LEN];
    let disk = File::open(image()).unwrap();
    disk.read_exact_at(&mut start, 0).unwrap();
    let written = Label::parse(&start).unwrap();
    assert_eq!((written.id, written.blocks), (label, DISK_BYTES / 512));
    let done = shell.hear("DONE");
    shell.ended();
    let &[writes, reads, errors, resets, unknown, full, places, ..] = numbers(&done).as_slice()
    else {
        panic!("{done}");
    };
    // Commands that a reset has taken are neither.
    assert!(writes + reads + errors + unknown >= commands, "{done}");
    assert!(writes > commands / 4 && reads > commands / 4, "{done}");
    assert!(
        errors >= commands / 100 && resets >= commands / 1500 && full >= 6,
        "{done}"
    );
    assert!(places > 200, "{done}");
    eprintln!(
        "ok: from a process: {writes} writes, {reads} reads, {errors} errors as requested, {resets} resets with {unknown} commands given, a full queue {full} times, {places} places read at the end; {done}"
    );
    label
}

/// Asks QEMU for something.
fn ask_qemu(command: &str) {
    let mut socket = UnixStream::connect(qmp()).unwrap();
    let mut lines = BufReader::new(socket.try_clone().unwrap()).lines();
    let mut answer = || lines.next().unwrap().unwrap();
    answer();
    for line in [r#"{"execute":"qmp_capabilities"}"#, command] {
        writeln!(socket, "{line}").unwrap();
        let said = std::iter::repeat_with(&mut answer).find(|line| !line.contains("\"event\""));
        let said = said.unwrap();
        assert!(said.contains("\"return\""), "{said}");
    }
}

fn throttle(commands_a_second: u32) {
    ask_qemu(&format!(
        r#"{{"execute":"block_set_io_throttle","arguments":{{"device":"d0","bps":0,"bps_rd":0,"bps_wr":0,"iops":{commands_a_second},"iops_rd":0,"iops_wr":0}}}}"#
    ));
}

fn commands_that_are_late_end_in_a_reset() {
    let mut shell = start("slow");
    shell.hear("THROTTLE");
    throttle(2);
    shell.say("");
    shell.hear("UNTHROTTLE");
    throttle(0);
    shell.say("");
    let done = shell.hear("DONE");
    shell.ended();
    let &[ended, aborts, unknown] = numbers(&done).as_slice() else {
        panic!("{done}");
    };
    assert!(aborts > 0 && unknown > 0 && ended + unknown == 6, "{done}");
    eprintln!("ok: late: {ended} of 6 ended, {aborts} aborts, a reset with {unknown} in flight");
}
