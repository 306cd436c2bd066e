//! Real shortages, and how Strata answers them.
#![allow(clippy::print_stderr, reason = "says why it did not run")]

use std::cell::Cell;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_bpf::{Alu, Assembler, Condition, Program, ProgramKind, Reg};
use strata_testkit::{Disk, Namespace, may_use_kernel};

use crate::common::disk::{NEVER_FULL, never_full};
use crate::common::recording::wait_for;
use crate::common::signal::signal;

const STRATA: &str = env!("CARGO_BIN_EXE_strata");

/// A control group of one controller with a process in it, removed with the value.
struct Group {
    dir: PathBuf,
    is_v2: bool,
}

impl Group {
    /// `None` where there is no such controller; in CI there must be.
    fn new(controller: &str, process: &Child) -> Option<Self> {
        let name = format!("strata-test-{}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let v1 = root.join(controller);
        let is_v2 = !v1.is_dir();
        let dir = if is_v2 {
            root.join(name)
        } else {
            v1.join(name)
        };
        let id = process.id().to_string();
        let made = fs::create_dir(&dir).and_then(|()| fs::write(dir.join("cgroup.procs"), id));
        let group = Self { dir, is_v2 };
        let there = !is_v2 || {
            let v2_name = if controller == "blkio" {
                "io"
            } else {
                controller
            };
            let list = fs::read_to_string(group.dir.join("cgroup.controllers"));
            list.is_ok_and(|list| list.split_whitespace().any(|name| name == v2_name))
        };
        let can = made.is_ok() && there;
        assert!(
            can || std::env::var_os("CI").is_none(),
            "no control group for {controller}: {made:?}"
        );
        if !can {
            eprintln!("not run: no control group for {controller}: {made:?}");
        }
        can.then_some(group)
    }

    fn set(&self, v1: (&str, &str), v2: (&str, &str)) {
        let (file, value) = if self.is_v2 { v2 } else { v1 };
        fs::write(self.dir.join(file), value).unwrap();
    }

    /// Limits writes to the disk under `path` to this many bytes per second; 0 is unlimited.
    fn write_rate(&self, path: &Path, rate: u64) {
        let device = fs::metadata(path).unwrap().dev();
        let [major, minor] = [rustix::fs::major(device), rustix::fs::minor(device)];
        let entry = format!("/sys/dev/block/{major}:{minor}");
        // A partition is throttled by its disk.
        let whole = Path::new(&entry).join("partition").exists();
        let file = Path::new(&entry).join(if whole { "../dev" } else { "dev" });
        let disk = fs::read_to_string(file).unwrap();
        let disk = disk.trim();
        let limit = if rate == 0 {
            "max".into()
        } else {
            rate.to_string()
        };
        self.set(
            ("blkio.throttle.write_bps_device", &format!("{disk} {rate}")),
            ("io.max", &format!("{disk} wbps={limit}")),
        );
    }

    /// Limits the CPU to this many thousandths; 0 is unlimited.
    fn cpu(&self, thousandths: u32) {
        let quota = thousandths * 100;
        let (v1, v2) = match quota {
            0 => ("-1".to_owned(), "max 100000".to_owned()),
            _ => (quota.to_string(), format!("{quota} 100000")),
        };
        self.set(("cpu.cfs_quota_us", &v1), ("cpu.max", &v2));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let start = Instant::now();
        // Fails while its process is there.
        while fs::remove_dir(&self.dir).is_err() && start.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A process that does not outlive the test.
struct Process(Option<Child>);

impl Process {
    fn child(&self) -> &Child {
        self.0.as_ref().unwrap()
    }

    fn ended(mut self) -> Output {
        signal(self.child(), "INT");
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    /// Its output, if it ended successfully: then its counters balance.
    fn ended_well(self) -> String {
        let output = self.ended();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn inside(namespace: &Namespace) -> Command {
    let mut command = Command::new("ip");
    // Its child is the program itself.
    command.args(["netns", "exec", namespace.name(), STRATA]);
    command
}

fn spawn(command: &mut Command) -> Process {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Process(Some(child.spawn().unwrap()))
}

/// Sends UDP packets of 1,400 bytes in a thousand flows, at this rate, until it is killed.
fn sender(namespace: &Namespace, interface: &str, per_second: u32) -> Process {
    sender_of(namespace, interface, per_second, u32::MAX)
}

/// The same for this many packets, in hundreds.
fn sender_of(namespace: &Namespace, interface: &str, per_second: u32, most: u32) -> Process {
    let program = format!(
        "import socket, time\n\
         s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n\
         s.bind(('{interface}', 0))\n\
         ip = bytes.fromhex('4500056e0000400040110000c0000201c0000202')\n\
         ethernet = bytes.fromhex('0200000000020200000000010800')\n\
         udp = lambda n: (4000 + n).to_bytes(2, 'big') + bytes.fromhex('0fa1055a0000')\n\
         frames = [ethernet + ip + udp(n) + bytes(1362) for n in range(1000)]\n\
         n = 0\n\
         while n < {most}:\n    \
             for _ in range({per_second} // 50):\n        \
                 s.send(frames[n % 1000])\n        \
                 n += 1\n    \
             time.sleep(0.02)\n"
    );
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name(), "python3", "-c", &program]);
    Process(Some(command.stderr(Stdio::null()).spawn().unwrap()))
}

/// Steps of degradation that these resources ask for.
fn degradation(status: &Value, names: &[&str]) -> u64 {
    let all = status["resources"].as_array().unwrap().iter();
    let wanted = all.filter(|resource| names.iter().any(|name| resource["name"] == **name));
    wanted
        .map(|r| r["degradation_steps"].as_u64().unwrap())
        .sum()
}

/// Packets that an interface has received.
fn received(namespace: &Namespace, interface: &str) -> u64 {
    let output = Command::new("ip")
        .args([
            "-n",
            namespace.name(),
            "-j",
            "-s",
            "link",
            "show",
            interface,
        ])
        .output()
        .unwrap();
    let links: Value = serde_json::from_slice(&output.stdout).unwrap();
    links[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
}

/// Waits until every packet that the interface received is in the recording's counters or was
/// dropped by the kernel, which counts them.
fn wait_for_all(socket: &Path, namespace: &Namespace, interface: &str) {
    wait_for(socket, "every packet accounted for", |status| {
        let results = status["packets"].as_array().unwrap().iter();
        let seen: u64 = results.map(|r| r["packets"].as_u64().unwrap()).sum();
        let dropped = status["interfaces"][0]["dropped"].as_u64().unwrap_or(0);
        let open = results_in_flight(status);
        seen + dropped == received(namespace, interface) && open == 0
    });
}

fn results_in_flight(status: &Value) -> u64 {
    let mut results = status["packets"].as_array().unwrap().iter();
    let open = results.find(|r| r["result"] == "in_flight").unwrap();
    open["packets"].as_u64().unwrap()
}

/// The disk takes a tenth of what arrives: the mode becomes one that keeps less, all losses are
/// counted where they occurred, and the mode comes back with the disk.
#[test]
fn a_slow_disk_is_answered_and_everything_comes_back() {
    if !may_use_kernel("a slow disk") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let namespace = Namespace::new("rules-slow");
    namespace.pair("in0", "out0");
    let (config, socket) = (dir.path().join("strata.toml"), dir.path().join("control"));
    fs::write(
        &config,
        format!("mode = ['log-all']\n{NEVER_FULL}hold_seconds = 1\n"),
    )
    .unwrap();
    let log = dir.path().join("log");
    let mut command = inside(&namespace);
    command.args(["record", "-i", "in0", "-B", "4096", "--config"]);
    command.arg(&config).arg("-o").arg(&log);
    let recording = spawn(command.arg("--socket").arg(&socket));
    wait_for(&socket, "a recording", |_| true);
    let Some(group) = Group::new("blkio", recording.child()) else {
        return;
    };
    group.write_rate(dir.path(), 2_000_000);
    let sending = sender(&namespace, "out0", 15_000);
    wait_for(&socket, "a mode that keeps less", |status| {
        degradation(status, &["blocks", "disk_rate", "ring_fill", "ring"]) > 0
            && status["mode"] != "log-all"
    });
    drop(sending);
    group.write_rate(dir.path(), 0);
    wait_for_all(&socket, &namespace, "in0");
    wait_for(&socket, "the mode before", |s| s["mode"] == "log-all");
    let text = recording.ended_well();
    assert!(text.contains("+ dropped 0 + in_flight 0"), "{text}");
    drop(group);
}

/// The CPU is taken away: the ring fills, the mode keeps less, and comes back with the CPU.
#[test]
fn a_throttled_cpu_is_answered_and_everything_comes_back() {
    if !may_use_kernel("a throttled CPU") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let namespace = Namespace::new("rules-cpu");
    namespace.pair("in0", "out0");
    let (config, socket) = (dir.path().join("strata.toml"), dir.path().join("control"));
    fs::write(
        &config,
        format!("mode = ['log-all']\n{NEVER_FULL}hold_seconds = 1\n"),
    )
    .unwrap();
    let mut command = inside(&namespace);
    command.args(["record", "-i", "in0", "-B", "2048", "--config"]);
    command.arg(&config).arg("-o").arg(dir.path().join("log"));
    let recording = spawn(command.arg("--socket").arg(&socket));
    wait_for(&socket, "a recording", |_| true);
    let Some(group) = Group::new("cpu", recording.child()) else {
        return;
    };
    group.cpu(30);
    let sending = sender(&namespace, "out0", 20_000);
    wait_for(&socket, "a mode that keeps less", |status| {
        degradation(status, &["ring", "ring_fill"]) > 0 && status["mode"] != "log-all"
    });
    drop(sending);
    group.cpu(0);
    wait_for_all(&socket, &namespace, "in0");
    wait_for(&socket, "the mode before", |s| s["mode"] == "log-all");
    let text = recording.ended_well();
    assert!(text.contains("+ dropped 0 + in_flight 0"), "{text}");
    drop(group);
}

/// A program that drops one frame in 16 of an interface, by the kernel's random numbers, for as
/// long as the result lives.
fn lossy(namespace: &Namespace, interface: &str) -> impl Drop {
    const RANDOM: i32 = 7;
    const PASS: i32 = 2;
    const DROP: i32 = 1;
    /// `XDP_FLAGS_SKB_MODE` (linux/if_link.h): works with any interface MTU.
    const GENERIC: u32 = 1 << 1;
    struct Attached {
        _program: Program,
        _link: std::os::fd::OwnedFd,
    }
    impl Drop for Attached {
        fn drop(&mut self) {}
    }
    let mut asm = Assembler::new();
    let lose = asm.label();
    asm.call(RANDOM);
    asm.alu64(Alu::And, Reg::R0, 15);
    asm.jump_if(Condition::Equal, Reg::R0, 0, lose);
    asm.set(Reg::R0, PASS);
    asm.exit();
    asm.bind(lose);
    asm.set(Reg::R0, DROP);
    asm.exit();
    let output = Command::new("ip")
        .args(["-n", namespace.name(), "-j", "link", "show", interface])
        .output()
        .unwrap();
    let links: Value = serde_json::from_slice(&output.stdout).unwrap();
    let index = u32::try_from(links[0]["ifindex"].as_u64().unwrap()).unwrap();
    namespace.enter(|| {
        let program = Program::load(ProgramKind::Xdp, "strata_lossy", &asm.finish().unwrap());
        let program = program.unwrap();
        let link = program.attach_xdp(index, GENERIC).unwrap();
        Attached {
            _program: program,
            _link: link,
        }
    })
}

/// The path to the relay loses packets: they are sent again, the mode becomes one that sends less,
/// nothing is missing in the relay's log, and the mode comes back with the path.
#[test]
fn a_lossy_wire_is_answered_and_nothing_is_lost() {
    if !may_use_kernel("a lossy wire") {
        return;
    }
    let (text, info) = over_a_lossy_wire("rules", &[]);
    assert!(text.contains("sent again, 0 lost"), "{text}");
    assert!(!info.contains("packets were lost"), "{info}");
}

/// As a switch that keeps no copies (TitanLog §V-A, §VI-B), and as one without acknowledgements: what is lost
/// stays lost, and the mode is the answer all the same.
#[test]
fn a_lossy_wire_is_answered_by_those_who_send_nothing_again() {
    if !may_use_kernel("a lossy wire") {
        return;
    }
    let (text, info) = over_a_lossy_wire("rules-skip", &["--on-loss", "skip"]);
    assert!(
        text.contains("0 sent again, ") && !text.contains(" 0 lost"),
        "{text}"
    );
    assert!(info.contains("packets were lost"), "{info}");
    let (text, info) = over_a_lossy_wire("rules-uc", &["--service", "uc", "--flush", "0.2"]);
    assert!(text.contains("did not arrive"), "{text}");
    assert!(info.contains("packets were lost"), "{info}");
}

/// What a switch and its log reported after a wire has lost one packet in 16 for a while, which was
/// answered.
fn over_a_lossy_wire(name: &str, how: &[&str]) -> (String, String) {
    let dir = tempfile::tempdir().unwrap();
    let [switch, relay] = ["sw", "rl"].map(|end| Namespace::new(&format!("{name}-{end}")));
    switch.pair("in0", "out0");
    switch.ip(&format!(
        "link add eth0 type veth peer name eth0 netns {}",
        relay.name()
    ));
    for (namespace, address) in [(&switch, "192.0.2.1/24"), (&relay, "192.0.2.2/24")] {
        namespace.ip(&format!("addr add {address} dev eth0"));
        namespace.ip("link set eth0 up");
    }
    let log = dir.path().join("log");
    let mut command = inside(&relay);
    let mut receiving = spawn(
        command
            .args(["relay", "--listen", "192.0.2.2", "--insecure", "-o"])
            .arg(&log)
            .arg("--config")
            .arg(never_full(dir.path())),
    );
    let errors = receiving.0.as_mut().unwrap().stderr.take().unwrap();
    let mut lines = BufReader::new(errors).lines();
    assert!(lines.any(|line| line.unwrap().contains("ends it")));
    thread::spawn(move || lines.for_each(drop));
    let (config, socket) = (dir.path().join("strata.toml"), dir.path().join("control"));
    fs::write(
        &config,
        format!("mode = ['log-all']\n{NEVER_FULL}hold_seconds = 1\n"),
    )
    .unwrap();
    let mut command = inside(&switch);
    command.args(["switch", "--relay", "192.0.2.2", "--insecure"]);
    command.args(how).args(["-i", "in0", "--config"]);
    let switching = spawn(command.arg(&config).arg("--socket").arg(&socket));
    wait_for(&socket, "a recording", |_| true);
    let sending = sender(&switch, "out0", 5_000);
    let lossy_wire = lossy(&relay, "eth0");
    wait_for(&socket, "a mode that sends less", |status| {
        degradation(status, &["rdma"]) > 0 && status["mode"] != "log-all"
    });
    drop(lossy_wire);
    wait_for(&socket, "the mode before", |s| s["mode"] == "log-all");
    drop(sending);
    wait_for_all(&socket, &switch, "in0");
    let text = switching.ended_well();
    assert!(text.contains("+ dropped 0 + in_flight 0"), "{text}");
    assert!(receiving.ended().status.success());
    let info = Command::new(STRATA).arg("info").arg(&log).output().unwrap();
    let info = String::from_utf8_lossy(&info.stdout).into_owned();
    assert!(info.contains("closed"), "{info}");
    // The step says why, as a share.
    let shares = text.match_indices(" % of the messages to the relay are lost");
    for (at, _) in shares {
        let is_other = |letter: char| !letter.is_ascii_digit() && letter != '.';
        let number = text[..at].rsplit(is_other).next().unwrap();
        let share: f64 = number.parse().unwrap();
        assert!((0.0..=100.0).contains(&share), "{text}");
    }
    (text, info)
}

/// The disk fills while everything is kept: at its threshold the mode becomes one that keeps a
/// tenth of ordinary traffic, this loses nothing, and the counters are right to the end.
#[test]
fn a_disk_that_fills_is_answered_before_it_is_full() {
    if !may_use_kernel("a disk that fills") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(dir.path(), "64m");
    let namespace = Namespace::new("rules-disk");
    namespace.pair("in0", "out0");
    let (config, socket) = (dir.path().join("strata.toml"), dir.path().join("control"));
    // Whatever the class, cutting payload and packet count shrinks it.
    fs::write(
        &config,
        "mode = ['log-all']\n[elastic]\ndisk_space_percent = 40\n",
    )
    .unwrap();
    let mut command = inside(&namespace);
    command
        .args(["record", "-i", "in0", "--config"])
        .arg(&config);
    command.arg("-o").arg(disk.path().join("log"));
    let recording = spawn(command.arg("--socket").arg(&socket));
    wait_for(&socket, "a recording", |_| true);
    let sending = sender(&namespace, "out0", 10_000);
    let answered = wait_for(&socket, "the least mode", |s| s["mode"] == "log-minimum");
    drop(sending);
    let used = answered["resources"][0]["used"].as_f64().unwrap();
    let text = recording.ended_well();
    assert!((0.4..0.9).contains(&used), "answered at {used}: {text}");
    assert!(text.contains("disk_space is short: 4"), "{text}");
    assert!(text.contains("+ dropped 0 + in_flight 0"), "{text}");
}

/// The disk would fill, but the oldest files are deleted first; those of a protecting policy stay,
/// and the rest of the log is intact.
#[test]
fn room_is_made_and_what_is_protected_stays() {
    if !may_use_kernel("a disk that fills") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(dir.path(), "64m");
    let namespace = Namespace::new("rules-room");
    namespace.pair("in0", "out0");
    let (config, socket) = (dir.path().join("strata.toml"), dir.path().join("control"));
    // Modes stay as they are: only deleting keeps the disk from filling.
    fs::write(
        &config,
        "mode = ['log-all']\n[elastic]\ndisk_space_percent = 100\nremove_percent = 50\n",
    )
    .unwrap();
    let log = disk.path().join("log");
    let mut command = inside(&namespace);
    command.args(["record", "-i", "in0", "-C", "4MiB", "--config"]);
    command.arg(&config).arg("-o").arg(&log);
    let recording = spawn(command.arg("--socket").arg(&socket));
    wait_for(&socket, "a recording", |_| true);
    let policy = |arguments: &[&str]| {
        let mut command = Command::new(STRATA);
        command.arg("policy").args(arguments).arg("--socket");
        assert!(command.arg(&socket).status().unwrap().success());
    };
    let logged = |status: &Value| {
        let mut results = status["packets"].as_array().unwrap().iter();
        let logged = results.find(|r| r["result"] == "logged").unwrap();
        logged["packets"].as_u64().unwrap()
    };
    policy(&["add", "udp", "--action", "full", "--protect"]);
    let few = sender_of(&namespace, "out0", 5_000, 3_000);
    wait_for(&socket, "protected packets", |s| logged(s) == 3_000);
    drop(few);
    policy(&["remove", "1"]);
    let sending = sender(&namespace, "out0", 4_000);
    // Twice the disk's size has arrived, and it is not full.
    let full = 2 * 64_000_000 / 1_400;
    let status = wait_for(&socket, "twice the disk", |s| logged(s) > full);
    let used = status["resources"][0]["used"].as_f64().unwrap();
    assert!(used < 0.9, "{used}");
    drop(sending);
    let text = recording.ended_well();
    assert!(text.contains("deleted 1 block file"), "{text}");
    assert!(text.contains("+ dropped 0 + in_flight 0"), "{text}");
    let verify = Command::new(STRATA).arg("verify").arg(&log).output();
    assert!(verify.unwrap().status.success());
    // Of the first file, and of those after it, what was recorded under the policy is in parts now.
    let info = Command::new(STRATA)
        .args(["info", "--json"])
        .arg(&log)
        .output();
    let info: Value = serde_json::from_slice(&info.unwrap().stdout).unwrap();
    let compacted = info[0]["compacted_packets"].as_u64().unwrap();
    // Until a worker takes over that the policy is gone, it protects some more.
    assert!((3_000..3_300).contains(&compacted), "{compacted}: {text}");
    assert_eq!(info[0]["unaccounted_packets"], 0, "{text}");
    let first = log.join("blocks/r0001-w00-000000.strata");
    assert!(!first.exists(), "{text}");
}

/// A log with a limit stays below it while many times as much is recorded, although a policy protects
/// some packets of every block file; and these stay.
#[test]
fn a_disk_limit_holds_all_the_time() {
    if !may_use_kernel("a log with a limit") {
        return;
    }
    const LIMIT: u64 = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let namespace = Namespace::new("rows-limit");
    namespace.pair("in0", "out0");
    let (log, socket) = (dir.path().join("log"), dir.path().join("control"));
    let config = dir.path().join("strata.toml");
    // One packet of a thousand. On a busy machine, a mode that keeps less would not fill the disk.
    fs::write(
        &config,
        "[[policy]]\nmatch = 'udp port 4100'\naction = 'full'\nprotect = true\n\
         [elastic]\nenabled = false\n",
    )
    .unwrap();
    let record = |limit: &str| {
        let mut command = inside(&namespace);
        command.args(["record", "-i", "in0", "--mode", "log-all", "-C", "2MiB"]);
        command.args(["--disk-limit", limit, "-o"]).arg(&log);
        command
            .arg("--socket")
            .arg(&socket)
            .arg("--config")
            .arg(&config);
        command
    };
    let refused = record("4MiB").output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && text.contains("-C 1 (in MB)"),
        "{text}"
    );
    let recording = spawn(&mut record("16MiB"));
    wait_for(&socket, "a recording", |_| true);
    // The log holds three seconds of it, in which files are deleted also on a busy machine.
    let sending = sender(&namespace, "out0", 4_000);
    let logged = |status: &Value| {
        let mut results = status["packets"].as_array().unwrap().iter();
        let logged = results.find(|r| r["result"] == "logged").unwrap();
        logged["packets"].as_u64().unwrap()
    };
    let largest = Cell::new(0);
    wait_for(&socket, "four times the limit", |status| {
        largest.set(largest.get().max(bytes_below(&log)));
        logged(status) > 4 * LIMIT / 1_400
    });
    drop(sending);
    let text = recording.ended_well();
    let largest = largest.get().max(bytes_below(&log));
    assert!(
        largest > LIMIT * 3 / 4 && largest <= LIMIT,
        "{largest}: {text}"
    );
    assert!(text.contains("packets that policies protect"), "{text}");
    assert!(text.contains("+ dropped 0 + in_flight 0"), "{text}");
    let verify = Command::new(STRATA).arg("verify").arg(&log).output();
    assert!(verify.unwrap().status.success());
    let info = Command::new(STRATA)
        .args(["info", "--json"])
        .arg(&log)
        .output();
    let info: Value = serde_json::from_slice(&info.unwrap().stdout).unwrap();
    let info = &info[0];
    assert_eq!(info["unaccounted_packets"], 0, "{info}");
    let sum = |rows: &Value| {
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row["packets"].as_u64().unwrap())
            .sum::<u64>()
    };
    let (there, deleted) = (sum(&info["counts"]), sum(&info["deleted"]));
    assert!(deleted > there, "{info}");
    let out = dir.path().join("protected.pcap");
    let mut export = Command::new(STRATA);
    export.arg("export").arg(&log).arg("-w").arg(&out);
    let exported = export.arg("udp port 4100").output().unwrap();
    assert!(exported.status.success());
    // The hundred and first of each thousand that came.
    let (udp, protected) = (there + deleted, packets_in(&out));
    let expected = udp / 1_000..=udp / 1_000 + 1;
    assert!(
        expected.contains(&protected),
        "{protected} of {udp}: {text}"
    );
}

/// Packets in a pcap file.
fn packets_in(file: &Path) -> u64 {
    let bytes = fs::read(file).unwrap();
    let (mut at, mut packets) = (24, 0);
    while let Some(record) = bytes.get(at..at + 16) {
        let len = u32::from_le_bytes(record[8..12].try_into().unwrap());
        at += 16 + usize::try_from(len).unwrap();
        packets += 1;
    }
    packets
}

/// A listening relay in a namespace, with these arguments.
fn relay(namespace: &Namespace, log: &Path, arguments: &[&str]) -> Process {
    let mut up = Command::new("ip");
    up.args(["-n", namespace.name(), "link", "set", "lo", "up"]);
    assert!(up.status().unwrap().success());
    let mut command = inside(namespace);
    command.args(["relay", "--block-size", "1MiB"]);
    command.args(arguments).arg("-o").arg(log);
    let relay = spawn(&mut command);
    let end = Instant::now() + Duration::from_secs(30);
    while !log.join("manifest.json").exists() {
        assert!(Instant::now() < end, "a relay that does not begin");
        thread::sleep(Duration::from_millis(10));
    }
    relay
}

fn logged(status: &Value) -> u64 {
    let mut results = status["packets"].as_array().unwrap().iter();
    let logged = results.find(|r| r["result"] == "logged").unwrap();
    logged["packets"].as_u64().unwrap()
}

/// The log of a relay with a limit stays below it while many times as much arrives, and the rest of
/// it is intact.
#[test]
fn a_disk_limit_of_a_relay_holds_all_the_time() {
    if !may_use_kernel("a relay's log with a limit") {
        return;
    }
    const LIMIT: u64 = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let namespace = Namespace::new("rly-limit");
    namespace.pair("in0", "out0");
    let (log, socket) = (dir.path().join("log"), dir.path().join("control"));
    let mut refused = inside(&namespace);
    refused.args(["relay", "-C", "2MiB", "--disk-limit", "4MiB", "-o"]);
    let refused = refused.arg(&log).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && text.contains("-C 1 (in MB)") && !log.exists(),
        "{text}"
    );
    let config = never_full(dir.path());
    let config = config.to_str().unwrap();
    let limits = ["-C", "2MiB", "--disk-limit", "16MiB"];
    let relay = relay(
        &namespace,
        &log,
        &[&limits[..], &["--config", config]].concat(),
    );
    let mut command = inside(&namespace);
    command.args(["switch", "--relay", "127.0.0.1", "-i", "in0"]);
    command.args(["--mode", "log-all", "--socket"]);
    let switch = spawn(command.arg(&socket));
    wait_for(&socket, "a recording", |_| true);
    let sending = sender(&namespace, "out0", 8_000);
    let largest = Cell::new(0);
    wait_for(&socket, "four times the limit", |status| {
        largest.set(largest.get().max(bytes_below(&log)));
        logged(status) > 4 * LIMIT / 1_400
    });
    drop(sending);
    let text = switch.ended_well();
    assert!(text.contains("+ dropped 0 + in_flight 0"), "{text}");
    let text = relay.ended_well();
    let largest = largest.get().max(bytes_below(&log));
    assert!(largest > LIMIT / 2 && largest <= LIMIT, "{largest}: {text}");
    assert!(text.contains(" and 0 compacted parts"), "{text}");
    let verify = Command::new(STRATA).arg("verify").arg(&log).output();
    assert!(verify.unwrap().status.success());
}

/// A relay's disk fills: its switch keeps less, and everything again once the disk has space.
#[test]
fn a_relays_disk_that_fills_is_answered_by_its_switch() {
    if !may_use_kernel("a relay's disk that fills") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(dir.path(), "64m");
    let namespace = Namespace::new("rly-disk");
    namespace.pair("in0", "out0");
    let (log, socket) = (disk.path().join("log"), dir.path().join("control"));
    let (at_relay, at_switch) = (
        dir.path().join("relay.toml"),
        dir.path().join("switch.toml"),
    );
    // Only how full the disk is counts: how busy it is depends on the machine.
    let relay_config = "[elastic]\nhold_seconds = 1\ndisk_space_percent = 40\n\
                        disk_rate_percent = 1000\nblocks_percent = 1000\n";
    fs::write(&at_relay, relay_config).unwrap();
    let switch_config = "mode = ['log-all']\n[elastic]\nhold_seconds = 1\n\
                         blocks_percent = 1000\nring_percent = 1000\nrdma_again_percent = 1000\n";
    fs::write(&at_switch, switch_config).unwrap();
    let config = at_relay.to_str().unwrap();
    let relay = relay(&namespace, &log, &["-C", "4MiB", "--config", config]);
    let mut command = inside(&namespace);
    command.args(["switch", "--relay", "127.0.0.1", "-i", "in0", "--socket"]);
    let switch = spawn(command.arg(&socket).arg("--config").arg(&at_switch));
    wait_for(&socket, "a recording", |s| s["mode"] == "log-all");
    let sending = sender(&namespace, "out0", 8_000);
    wait_for(&socket, "the least mode", |s| s["mode"] == "log-minimum");
    drop(sending);
    let mut grow = Command::new("mount");
    grow.args(["-o", "remount,size=512m"]).arg(disk.path());
    assert!(grow.status().unwrap().success());
    wait_for(&socket, "the mode before", |s| s["mode"] == "log-all");
    let text = switch.ended_well();
    assert!(text.contains("+ dropped 0 + in_flight 0"), "{text}");
    assert!(
        text.contains(
            "mode log-sampled, detail 10% instead of mode log-all: requested by the relay: \
             disk_space is short"
        ),
        "{text}"
    );
    assert!(
        text.contains("mode log-all again: less was kept since "),
        "{text}"
    );
    assert!(
        text.contains(": the relay no longer requests less"),
        "{text}"
    );
    let summary = text.lines().find(|line| line.starts_with("lowered: "));
    let summary = summary.expect(&text);
    assert!(
        summary.contains("not now; the latest time mode log-")
            && summary.contains("to prevent it:"),
        "{summary}"
    );
    let text = relay.ended_well();
    let asked = "switches have to use mode log-sampled: disk_space is short";
    assert!(text.contains(asked), "{text}");
    assert!(
        text.contains("switches return to their own modes"),
        "{text}"
    );
    let verify = Command::new(STRATA).arg("verify").arg(&log).output();
    assert!(verify.unwrap().status.success());
}

/// A budget of detail decides before the disk is full: the packets dropped after it are named in its line.
#[test]
fn packets_that_are_dropped_after_they_got_detail_are_named() {
    const PACKETS: u64 = 80_000;
    if !may_use_kernel("a full disk") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(dir.path(), "12m");
    let trace = dir.path().join("trace.pcap");
    let mut generate = Command::new(STRATA);
    generate.args(["generate", "--profile", "imix", "-c", "80000", "-o"]);
    assert!(generate.arg(&trace).status().unwrap().success());
    let config = never_full(dir.path());
    let log = disk.path().join("log");
    let output = Command::new(STRATA)
        .args(["record", "--detail", "50%", "--when-full", "drop"])
        .args(["--block-size", "64KiB", "--config"])
        .arg(&config)
        .arg("-r")
        .arg(&trace)
        .arg("-o")
        .arg(&log)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let out = dir.path().join("out.pcap");
    let mut export = Command::new(STRATA);
    export.args(["export", "-F", "pcap", "-w"]).arg(&out);
    assert!(export.arg(&log).status().unwrap().success());
    // More was given than is there.
    let dropped = PACKETS - packets_in(&out);
    assert!(dropped > PACKETS / 10, "{dropped}");
    let info = |arguments: &[&str]| {
        let output = Command::new(STRATA)
            .arg("info")
            .args(arguments)
            .arg(&log)
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&info(&["--json"])).unwrap();
    let detail = &json[0]["detail"];
    assert_eq!(detail["dropped_packets"], dropped, "{detail}");
    assert!(detail["given_bytes"].as_u64() > json[0]["in_log"]["kept_bytes"].as_u64());
    let told = format!(
        "; dropped afterwards, with the payload given to them: {} packets, ",
        strata_wire::grouped(dropped)
    );
    for said in [info(&[]), String::from_utf8(output.stdout).unwrap()] {
        let line = said.lines().find(|line| line.starts_with("detail: "));
        let line = line.unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains(" of payload given"), "{line}");
        assert!(line.contains(&told), "{line}");
    }
}

fn bytes_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).unwrap().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    bytes.sum()
}
