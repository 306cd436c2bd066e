//! Recording from an interface as a user does, in a network of the test's own.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::{Namespace, data_dir, may_use_kernel};

use crate::common::disk::never_full;
use crate::common::signal::signal;

pub(super) const NEAR: &str = "st-live-c";
pub(super) const FAR: &str = "st-live-d";

/// Number of packets in [`capture`].
pub(super) const PACKETS: u64 = 94;

/// Ethernet packets of a capture.
pub(super) fn capture() -> PathBuf {
    data_dir().join("labelled/cic2017-sqli/trace.pcap")
}

const MIRROR: &str = "st-live-m";
const MONITOR: &str = "st-live-n";

/// A recording, with its output.
pub(super) struct Recording {
    child: Child,
    socket: PathBuf,
}

impl Recording {
    /// `strata record` that captures.
    pub(super) fn start(namespace: &Namespace, log: &Path, arguments: &[&str]) -> Self {
        Self::start_on(FAR, namespace, log, arguments)
    }

    pub(super) fn start_on(
        interface: &str,
        namespace: &Namespace,
        log: &Path,
        arguments: &[&str],
    ) -> Self {
        let mut program = Command::new("ip");
        program.args(["netns", "exec", namespace.name()]);
        program.arg(env!("CARGO_BIN_EXE_strata"));
        Self::of(program, interface, log, arguments)
    }

    /// A recording by this program.
    pub(super) fn of(
        mut command: Command,
        interface: &str,
        log: &Path,
        arguments: &[&str],
    ) -> Self {
        let name = log.file_name().unwrap().to_str().unwrap();
        let socket = log.with_file_name(format!("{name}.sock"));
        // A filter may end the arguments.
        let ring: &[&str] = match arguments.contains(&"-B") {
            true => &[],
            false => &["-B", "32MiB"],
        };
        let config = never_full(log.parent().unwrap());
        let room: &[&str] = match arguments.contains(&"--config") {
            true => &[],
            false => &["--config", config.to_str().unwrap()],
        };
        command
            .args(["record", "-i", interface, "-o"])
            .arg(log)
            .arg("--socket")
            .arg(&socket)
            .args(ring)
            .args(room)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let recording = Self { child, socket };
        // The socket is served before the log starts; interfaces have numbers once workers run.
        until("recording", || {
            let interfaces = recording.status()["interfaces"].clone();
            interfaces.as_array().is_some_and(|all| !all.is_empty())
        });
        recording
    }

    /// Its status; null if it does not answer.
    pub(super) fn status(&self) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
        let command = command.args(["status", "--json", "--socket"]);
        let output = command.arg(&self.socket).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Packets with a result, and its reason if it has one.
    pub(super) fn packets(&self, result: &str, reason: &str) -> u64 {
        let status = self.status();
        let lists = [&status["packets"], &status["of_logged"]];
        let all = lists.iter().filter_map(|list| list.as_array()).flatten();
        let mut wanted = all.filter(|p| p["result"] == result && p["reason"] == reason);
        wanted.next().map_or(0, |p| p["packets"].as_u64().unwrap())
    }

    /// Packets that a worker has seen, wherever they ended.
    fn seen(&self) -> Option<u64> {
        let status = self.status();
        let ends = status["packets"].as_array()?;
        Some(ends.iter().filter_map(|end| end["packets"].as_u64()).sum())
    }

    /// Sends the packets of [`capture`]; returns when all are seen, or none will be.
    pub(super) fn send(&self, namespace: &Namespace) {
        let before = self.seen();
        send(namespace);
        until("everything is seen", || match (before, self.seen()) {
            (Some(before), Some(seen)) => seen >= before + PACKETS,
            _ => true,
        });
    }

    pub(super) fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// What it printed, once it has ended successfully.
    pub(super) fn ended(mut self) -> (String, String) {
        let status = self.child.wait().unwrap();
        let mut text = (String::new(), String::new());
        let (out, err) = (self.child.stdout.take(), self.child.stderr.take());
        out.unwrap().read_to_string(&mut text.0).unwrap();
        err.unwrap().read_to_string(&mut text.1).unwrap();
        assert!(status.success(), "{text:?}");
        text
    }
}

impl Drop for Recording {
    /// None outlives its test; if a test fails, the program's output is shown.
    #[allow(clippy::print_stderr, reason = "says why a test failed")]
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let mut said = String::new();
            if let Some(mut stderr) = self.child.stderr.take() {
                let _ = stderr.read_to_string(&mut said);
            }
            eprintln!("the recording said: {said}");
        }
    }
}

pub(super) fn namespace(test: &str) -> Option<Namespace> {
    may_use_kernel("recording from an interface").then(|| {
        let namespace = Namespace::new(&format!("st-live-{test}"));
        namespace.pair(NEAR, FAR);
        namespace
    })
}

fn send(namespace: &Namespace) {
    namespace.enter(|| {
        let mut sender = pcap::Capture::from_device(NEAR).unwrap().open().unwrap();
        let mut file = pcap::Capture::from_file(capture()).unwrap();
        while let Ok(packet) = file.next_packet() {
            sender.sendpacket(packet.data).unwrap();
        }
    });
}

pub(super) fn info(log: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    let output = command.args(["info", "--json"]).arg(log).output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Lengths and bytes of the packets in a file, by tcpdump.
fn dump(file: &Path) -> String {
    let output = Command::new("tcpdump")
        .args(["-ttXXnr"])
        .arg(file)
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    // Without the times, which are those of the replay.
    text.lines()
        .filter(|line| line.starts_with('\t'))
        .collect::<Vec<_>>()
        .join("\n")
}

pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "not {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Captured and original length of each packet that matches a filter.
fn lengths(log: &Path, filter: &str) -> Vec<(u32, u32)> {
    let file = log.parent().unwrap().join("lengths.pcap");
    let mut export = Command::new(env!("CARGO_BIN_EXE_strata"));
    export
        .args(["export", "-F", "pcap", "-w"])
        .arg(&file)
        .arg(log);
    assert!(export.status().unwrap().success());
    let mut capture = pcap::Capture::from_file(&file).unwrap();
    capture.filter(filter, true).unwrap();
    let mut all = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        all.push((packet.header.caplen, packet.header.len));
    }
    all
}

/// Mirrored packets leave another interface whole, however much of them is kept; if that interface
/// is captured too, the policy is refused.
#[test]
fn mirrored_packets_arrive_whole_at_a_monitor() {
    let Some(namespace) = namespace("mirror") else {
        return;
    };
    namespace.pair(MIRROR, MONITOR);
    let dir = tempfile::tempdir().unwrap();
    let (log, seen) = (dir.path().join("log"), dir.path().join("seen"));
    let policies = dir.path().join("policies.toml");
    let text = "default = 'header'\n\
        [[policy]]\nmatch = 'tcp port 80'\naction = 'mirror'\n\
        [[policy]]\nmatch = 'tcp port 80'\naction = 'drop'\n";
    std::fs::write(&policies, text).unwrap();
    let policies = policies.to_str().unwrap();
    let monitor = Recording::start_on(MONITOR, &namespace, &seen, &["--mode", "log-all"]);
    let arguments = ["--policy", policies, "--mirror-to", MIRROR];
    let recording = Recording::start(&namespace, &log, &arguments);
    recording.send(&namespace);
    let mut web = pcap::Capture::from_file(capture()).unwrap();
    web.filter("tcp port 80", true).unwrap();
    let mut expected = Vec::new();
    while let Ok(packet) = web.next_packet() {
        expected.push((packet.header.len, packet.header.len));
    }
    assert!(expected.len() > 10);
    until("everything is mirrored", || {
        monitor.seen() == u64::try_from(expected.len()).ok()
    });
    recording.signal("INT");
    let (out, _) = recording.ended();
    monitor.signal("INT");
    monitor.ended();
    assert_eq!(lengths(&seen, "tcp port 80"), expected);
    assert_eq!(lengths(&seen, "tcp and not port 80"), []);
    // Another policy says that none of them is kept.
    assert_eq!(lengths(&log, "tcp port 80"), []);
    let told = format!("mirrored: {} packets", expected.len());
    assert!(out.contains(&told) && !out.contains("mirror_lost"), "{out}");
    for (arguments, problem) in [
        (&["--mirror-to", FAR][..], "would be captured again"),
        (&["--policy", policies], "--mirror-to INTERFACE"),
        (
            &["--mirror-to", "st-live-none"],
            "no interface 'st-live-none'",
        ),
    ] {
        let output = Command::new("ip")
            .args(["netns", "exec", namespace.name()])
            .args([env!("CARGO_BIN_EXE_strata"), "record", "-i", FAR, "-o"])
            .arg(dir.path().join("none"))
            .args(arguments)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains(problem), "{told}");
    }
}

/// Suricata alerts on a flow whose packets were kept as headers: they become whole.
#[test]
fn an_alert_makes_earlier_packets_of_its_flow_whole() {
    let Some(namespace) = namespace("eve") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let eve = dir.path().join("eve.sock");
    let arguments = [
        "--default",
        "header",
        "--look-back",
        "16MiB",
        "--eve",
        eve.to_str().unwrap(),
    ];
    let recording = Recording::start(&namespace, &log, &arguments);
    recording.send(&namespace);
    // The flow of the first packet with ports and a payload.
    let mut capture = pcap::Capture::from_file(capture()).unwrap();
    capture.filter("tcp and greater 200", true).unwrap();
    let data = capture.next_packet().unwrap().data.to_vec();
    let address = |at: usize| {
        format!(
            "{}.{}.{}.{}",
            data[at],
            data[at + 1],
            data[at + 2],
            data[at + 3]
        )
    };
    let port = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
    let (source, destination) = (address(26), address(30));
    let (source_port, destination_port) = (port(34), port(36));
    let alert = format!(
        "{{\"event_type\":\"stats\"}}\n{{\"event_type\":\"alert\",\"src_ip\":\"{source}\",\"src_port\":{source_port},\
         \"dest_ip\":\"{destination}\",\"dest_port\":{destination_port},\"proto\":\"TCP\"}}\n"
    );
    // Another one of the same flow, one of a flow that is not here, and a line that is no event.
    let alert = alert
        .repeat(2)
        .replacen("{\"event_type\":\"stats\"}", "no event", 1)
        + r#"{"event_type":"alert","src_ip":"192.0.2.1","src_port":1,"dest_ip":"192.0.2.2","dest_port":2,"proto":"UDP"}"#
        + "\n";
    let mut suricata = UnixStream::connect(&eve).unwrap();
    suricata.write_all(alert.as_bytes()).unwrap();
    until("the flow is promoted", || {
        recording.packets("promoted", "") > 0
    });
    until("all lines are read", || {
        recording.status()["eve"]["lines"] == 5
    });
    let eve = &recording.status()["eve"];
    let counts = ["alerts", "invalid", "flows", "matched"].map(|of| eve[of].as_u64().unwrap());
    assert_eq!(counts, [3, 1, 2, 1], "{eve}");
    recording.signal("INT");
    let (out, _) = recording.ended();
    assert!(
        out.contains("logged 94 + dropped 0") && out.contains("promoted: "),
        "{out}"
    );
    let flow = format!(
        "host {source} and host {destination} and port {source_port} and port {destination_port}"
    );
    let of_flow = lengths(&log, &flow);
    assert!(of_flow.len() > 3);
    assert!(of_flow.iter().all(|(kept, len)| kept == len), "{of_flow:?}");
    let others = lengths(&log, &format!("not ({flow})"));
    assert_eq!(of_flow.len() + others.len(), 94);
    assert!(others.iter().any(|(kept, len)| kept < len), "{others:?}");
}

/// Packets that a policy keeps as headers are cut in the kernel from the flow's second one on, and
/// none of them turns out to be wanted whole.
#[test]
fn what_a_policy_keeps_as_headers_is_cut_before_the_copy() {
    let Some(namespace) = namespace("policy") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let arguments = ["--early-cut", "--default", "header"];
    let recording = Recording::start(&namespace, &log, &arguments);
    recording.send(&namespace);
    recording.send(&namespace);
    recording.signal("INT");
    let (out, _) = recording.ended();
    assert!(!out.contains("wanted_but_cut"), "{out}");
    // Packets at the snapshot length were cut by the kernel: of the second round at least all of
    // the flow's long packets.
    let cut = info(&log)[0]["accounting"]["cut"].clone();
    let by_kernel = cut.as_array().unwrap().iter().find(|c| c[0] == "snaplen");
    let mut long = pcap::Capture::from_file(capture()).unwrap();
    long.filter("(tcp or udp) and greater 512", true).unwrap();
    let mut expected = 0;
    while let Ok(packet) = long.next_packet() {
        expected += u64::from(packet.header.len) - 512;
    }
    let found = by_kernel.unwrap()[1].as_u64().unwrap();
    assert!(
        expected > 0 && found >= expected,
        "{cut}, at least {expected}"
    );
}

/// A process that is stopped and continued (Ctrl-Z, a migrating virtual machine) finds the packets
/// in the ring.
#[test]
fn a_recording_that_was_suspended_goes_on() {
    let Some(namespace) = namespace("suspend") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let recording = Recording::start(&namespace, &log, &[]);
    recording.signal("STOP");
    send(&namespace);
    recording.signal("CONT");
    until("everything is logged", || {
        recording.packets("logged", "") == PACKETS
    });
    recording.signal("INT");
    let (out, _) = recording.ended();
    assert!(out.contains("logged 94 + dropped 0 + in_flight 0"), "{out}");
}

/// What the kernel spends on receiving is known in the sandbox too, for each CPU that receives, and
/// is a share of the time that /proc/stat counts.
#[test]
fn the_kernels_share_of_time_is_in_the_status() {
    let Some(namespace) = namespace("receive") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let recording = Recording::start(&namespace, &dir.path().join("log"), &[]);
    until("a CPU has received", || {
        send(&namespace);
        let status = recording.status();
        let cpus = status["receive"].as_array().unwrap();
        for cpu in cpus {
            let share = |name: &str| cpu[name].as_f64().unwrap();
            assert!(share("packets_per_second") >= 0.0, "{cpu}");
            assert!(
                (0.0..=1.0).contains(&(share("softirq") + share("idle"))),
                "{cpu}"
            );
            let name = format!("cpu{} ", cpu["cpu"]);
            let stat = std::fs::read_to_string("/proc/stat").unwrap();
            assert!(stat.lines().any(|line| line.starts_with(&name)), "{cpu}");
        }
        !cpus.is_empty()
    });
    recording.signal("INT");
    recording.ended();
}

#[test]
fn interfaces_are_listed_with_how_they_can_be_captured_and_why_not() {
    let Some(namespace) = namespace("list") else {
        return;
    };
    namespace.ip("link add st-live-down type veth peer name st-live-other");
    let list = |names: &[&str]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace.name()]);
        command
            .args([env!("CARGO_BIN_EXE_strata"), "interfaces"])
            .args(names);
        command.output().unwrap()
    };
    let all = String::from_utf8(list(&[]).stdout).unwrap();
    let of = |name: &str| {
        let start = all
            .find(&format!("{name}: "))
            .unwrap_or_else(|| panic!("{name}: {all}"));
        let rest = &all[start..];
        let lines: Vec<&str> = rest.lines().take(4).collect();
        lines.join("\n")
    };
    assert!(
        of(NEAR).contains("AF_PACKET: yes") && of(NEAR).contains("driver veth"),
        "{all}"
    );
    assert!(of("st-live-down").contains("down"), "{all}");
    assert!(
        of("st-live-down").contains("ip link set st-live-down up"),
        "{all}"
    );
    assert!(of("any").contains("AF_PACKET: yes"), "{all}");
    assert!(of("lo").contains("loopback"), "{all}");
    let one = String::from_utf8(list(&[FAR]).stdout).unwrap();
    assert!(
        one.starts_with(&format!("{FAR}: ")) && !one.contains(NEAR),
        "{one}"
    );
    let none = list(&["st-live-none"]);
    assert_eq!(none.status.code(), Some(1));
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(
        said.contains("there is no interface 'st-live-none'"),
        "{said}"
    );
}

#[test]
fn what_is_sent_is_logged_and_signals_are_followed() {
    let Some(namespace) = namespace("record") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let arguments = ["--mode", "log-all", "--cores", "0,1"];
    let recording = Recording::start(&namespace, &log, &arguments);
    recording.send(&namespace);
    recording.signal("USR1");
    // They are written to a file before long, though the block is not full.
    until("everything is in files", || {
        recording.packets("logged", "") == PACKETS
    });
    recording.signal("HUP");
    let mut rotate = Command::new(env!("CARGO_BIN_EXE_strata"));
    rotate.arg("rotate").arg("--socket").arg(&recording.socket);
    assert!(rotate.status().unwrap().success());
    recording.send(&namespace);
    recording.signal("INT");
    let (out, err) = recording.ended();
    assert!(err.contains("packets: seen 94 ="), "{err}");
    assert!(
        err.contains("94 packets received by filter, 0 dropped by kernel"),
        "{err}"
    );
    assert!(out.contains("packets: seen 188 = filtered 0"), "{out}");
    assert!(
        out.contains("logged 188 + dropped 0 + in_flight 0"),
        "{out}"
    );
    let info = info(&log);
    assert_eq!(info[0]["accounting"]["logged"][0], 188, "{info}");
    let files = log
        .join("blocks")
        .read_dir()
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(".strata"));
    assert!(files.count() >= 2, "rotate begins new files");

    let exported = dir.path().join("out.pcap");
    let mut export = Command::new(env!("CARGO_BIN_EXE_strata"));
    export
        .args(["export", "-F", "pcap", "-w"])
        .arg(&exported)
        .arg(&log);
    assert!(export.status().unwrap().success());
    // Merged by time, both workers' packets are in the order they were sent in.
    let once = dump(&capture());
    assert_eq!(dump(&exported), format!("{once}\n{once}"));
}

#[test]
fn a_filter_and_a_number_of_packets_end_it() {
    let Some(namespace) = namespace("count") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let recording = Recording::start(&namespace, &log, &["-c", "7", "tcp", "src", "port", "80"]);
    send(&namespace);
    let (out, _) = recording.ended();
    assert!(out.contains("logged 7 + dropped 0"), "{out}");
}

/// Both by the option and by the configuration file, which the option overrides.
#[test]
fn the_table_of_flows_is_as_large_as_allowed_and_reported() {
    let Some(namespace) = namespace("memory") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("strata.toml");
    std::fs::write(&config, "memory = '4MiB'\n").unwrap();
    let config = config.to_str().unwrap();
    for (name, option, bytes) in [("one", None, 4 << 20), ("two", Some("3MB"), 2 << 20)] {
        let log = dir.path().join(name);
        let mut arguments = vec!["--config", config];
        arguments.extend(option.map(|size| ["--memory", size]).into_iter().flatten());
        let recording = Recording::start(&namespace, &log, &arguments);
        recording.send(&namespace);
        let status = recording.status();
        let table = &status["flow_table"];
        assert_eq!(table["bytes"], bytes, "{status}");
        assert!(table["packets"].as_u64().unwrap() >= PACKETS, "{table}");
        assert_eq!(table["packets_without_entry"], 0);
        recording.signal("INT");
        let (out, _) = recording.ended();
        let closed = info(&log)[0]["flow_table"].clone();
        assert_eq!(closed["bytes"], bytes, "{closed}");
        assert_eq!(closed["without_entry"], 0);
        assert!(out.contains(" of memory, "), "{out}");
    }
}

#[test]
fn an_interface_that_is_not_there_leaves_no_log() {
    if !may_use_kernel("recording from an interface") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    let output = command
        .args(["record", "-i", "st-live-x", "-o"])
        .arg(&log)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("there is no interface 'st-live-x' here: choose one of lo"),
        "{text}"
    );
    assert!(!log.exists());
}

/// A small disk mounted at a path, removed with the value.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// `None`, with a message, where nothing can be mounted.
    #[allow(clippy::print_stderr, reason = "says why a test did not run")]
    fn mount(path: &'a Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=384k", "st-live"]);
        if mount.arg(path).status().unwrap().success() {
            return Some(Self(path));
        }
        eprintln!("not run: no tmpfs can be mounted here");
        None
    }

    fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        let status = Command::new("mount")
            .args(["-o", &options])
            .arg(self.0)
            .status();
        assert!(status.unwrap().success());
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_disk_that_is_full_ends_it_and_keeps_what_is_written() {
    let Some(namespace) = namespace("full") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(dir.path()) else {
        return;
    };
    let log = dir.path().join("log");
    let arguments = ["--mode", "log-all", "--block-size", "64KiB"];
    let mut recording = Recording::start(&namespace, &log, &arguments);
    let mut ended = None;
    until("full", || {
        recording.send(&namespace);
        ended = recording.child.try_wait().unwrap();
        ended.is_some()
    });
    let mut text = String::new();
    let stderr = recording.child.stderr.take();
    stderr.unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(ended.unwrap().code(), Some(1), "{text}");
    assert!(
        text.contains("the disk is full: the recording ends"),
        "{text}"
    );
    assert!(!text.contains("until there is free space"), "{text}");
    let recording = &info(&log)[0];
    assert_eq!(recording["state"], "closed");
    let warnings = recording["warnings"].to_string();
    assert!(
        warnings.contains("ended early, since the log could not be written: "),
        "{warnings}"
    );
    let dropped = recording["accounting"]["dropped"].as_array().unwrap();
    let of = |reason| dropped.iter().find(|entry| entry[0] == reason).unwrap()[1][0].as_u64();
    assert!(
        of("disk_full") > Some(0) && of("write_error") == Some(0),
        "{recording}"
    );
    let mut shown = Command::new(env!("CARGO_BIN_EXE_strata"));
    let shown = shown.arg("info").arg(&log).output().unwrap();
    let said = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        said.contains("anomalous") || said.contains("benign"),
        "{said}"
    );
}

/// With drop, it continues when the disk is full, counts what is lost, and writes again once there
/// is space.
#[test]
fn a_disk_that_is_full_for_a_while_costs_what_is_counted() {
    let Some(namespace) = namespace("room") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("disk");
    std::fs::create_dir(&place).unwrap();
    let Some(disk) = SmallDisk::mount(&place) else {
        return;
    };
    let log = dir.path().join("disk/log");
    let config = dir.path().join("strata.toml");
    std::fs::write(&config, "[elastic]\nenabled = false\n").unwrap();
    let mut arguments = vec!["--mode", "log-all", "--block-size", "64KiB"];
    arguments.extend(["--when-full", "drop", "--config", config.to_str().unwrap()]);
    let recording = Recording::start(&namespace, &log, &arguments);
    until("full", || {
        recording.send(&namespace);
        recording.packets("dropped", "disk_full") > 0
    });
    disk.resize("16m");
    let before = recording.packets("logged", "");
    until("written again", || {
        recording.send(&namespace);
        recording.packets("logged", "") > before
    });
    recording.signal("INT");
    let (out, err) = recording.ended();
    assert!(out.contains("dropped{disk_full}: "), "{out} {err}");
    let accounting = info(&log)[0]["accounting"].clone();
    let logged = accounting["logged"][0].as_u64().unwrap();
    assert_eq!(lengths(&log, "").len() as u64, logged, "{accounting}");
}

/// With drop, on a disk that stays full: it ends successfully, with its counters closed.
#[test]
fn on_a_disk_that_stays_full_the_accounts_are_closed() {
    let Some(namespace) = namespace("stays") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("disk");
    std::fs::create_dir(&place).unwrap();
    let Some(_disk) = SmallDisk::mount(&place) else {
        return;
    };
    let log = place.join("log");
    let mut arguments = vec!["--mode", "log-all", "--block-size", "64KiB", "-C", "64KiB"];
    arguments.extend(["--when-full", "drop"]);
    let recording = Recording::start(&namespace, &log, &arguments);
    until("full", || {
        recording.send(&namespace);
        recording.packets("dropped", "disk_full") > 0
    });
    // Not a byte is left to anyone else.
    let mut filler = std::fs::File::create(place.join("filler")).unwrap();
    while filler.write_all(&[7; 512]).is_ok() {}
    recording.send(&namespace);
    recording.signal("INT");
    let (out, err) = recording.ended();
    let recorded = info(&log)[0].clone();
    assert_eq!(recorded["state"], "closed", "{out} {err}");
    // Totals of what is there say what is not.
    let mut top = Command::new(env!("CARGO_BIN_EXE_strata"));
    let top = top.args(["top", "--json"]).arg(&log).output().unwrap();
    let told = String::from_utf8_lossy(&top.stderr);
    assert!(
        told.contains(": the disk was full; the selection"),
        "{told}"
    );
    for said in [
        "the disk is full: packets are dropped",
        "the disk was full: ",
    ] {
        assert!(err.contains(said), "{err}");
    }
    let accounting = &recorded["accounting"];
    let of = |list: &Value| list.as_array().map_or(0, |pair| pair[0].as_u64().unwrap());
    let dropped = accounting["dropped"].as_array().unwrap();
    let dropped: u64 = dropped.iter().map(|entry| of(&entry[1])).sum();
    let ways = ["filtered", "discarded", "sampled_out", "logged"];
    let ended: u64 = ways.iter().map(|way| of(&accounting[way])).sum();
    assert_eq!(of(&accounting["seen"]), ended + dropped, "{accounting}");
    assert_eq!(
        lengths_into(dir.path(), &log),
        of(&accounting["logged"]),
        "{accounting}"
    );
}

/// How many packets an export has, written where there is space.
fn lengths_into(dir: &Path, log: &Path) -> u64 {
    let file = dir.join("all.pcap");
    let mut export = Command::new(env!("CARGO_BIN_EXE_strata"));
    let export = export.args(["export", "-F", "pcap", "-w"]).arg(&file);
    assert!(export.arg(log).status().unwrap().success());
    let mut capture = pcap::Capture::from_file(&file).unwrap();
    let mut count = 0;
    while capture.next_packet().is_ok() {
        count += 1;
    }
    count
}

/// Somebody deletes the log while packets arrive: that is reported, and it is not created again.
#[test]
fn a_log_that_is_removed_under_load_ends_it_clearly() {
    let Some(namespace) = namespace("gone") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let arguments = [
        "--mode",
        "log-all",
        "--block-size",
        "64KiB",
        "--when-full",
        "drop",
    ];
    let mut recording = Recording::start(&namespace, &log, &arguments);
    recording.send(&namespace);
    let mut ended = None;
    until("ended", || {
        // Like `rm -r`, which may fail because of files still being written.
        let _ = std::fs::remove_dir_all(&log);
        send(&namespace);
        ended = recording.child.try_wait().unwrap();
        ended.is_some()
    });
    let mut text = String::new();
    let stderr = recording.child.stderr.take();
    stderr.unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(ended.unwrap().code(), Some(1), "{text}");
    let said = format!("{}/: the log is no longer there", log.display());
    assert!(text.contains(&said), "{text}");
    assert!(!log.exists(), "it was made again");
}

/// A stranger takes all descriptors that the process may open: new files are started all the same,
/// and the recording does not end when it cannot look whether its interface is still there.
#[test]
fn without_descriptors_to_spare_new_files_are_begun() {
    let Some(namespace) = namespace("files") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let arguments = ["--mode", "log-all", "--block-size", "64KiB", "-C", "64KiB"];
    let recording = Recording::start(&namespace, &log, &arguments);
    let id = recording.child.id().to_string();
    let open = |id: &str| {
        let entries = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap();
        let number = |name: std::ffi::OsString| name.to_str().unwrap().parse::<u64>().unwrap();
        let numbers = entries.flatten().map(|entry| number(entry.file_name()));
        numbers.collect::<Vec<u64>>()
    };
    // Connections that send nothing, as many as it takes.
    let connect = |_| UnixStream::connect(&recording.socket).ok();
    let _idle: Vec<UnixStream> = (0..100).filter_map(connect).collect();
    // From now on, a new descriptor takes the place of a closed one. Some are open for a moment.
    let free = |_| {
        let taken = open(&id);
        (0..).find(|number| !taken.contains(number)).unwrap()
    };
    let limit = (0..300).map(free).min().unwrap();
    let lowered = Command::new("prlimit")
        .args(["--pid", &id, &format!("--nofile={limit}:{limit}")])
        .status();
    assert!(lowered.unwrap().success());
    let files = || {
        let entries = std::fs::read_dir(log.join("blocks")).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".strata")).count()
    };
    let before = files();
    // A worker without packets looks at its interface twice a second.
    let looked = Instant::now() + Duration::from_millis(1_500);
    until("looked", || Instant::now() > looked);
    until("new files", || {
        // A status request may get no answer.
        send(&namespace);
        files() > before + 4
    });
    recording.signal("INT");
    let (out, err) = recording.ended();
    assert!(!out.contains("dropped{"), "{out} {err}");
    let accounting = info(&log)[0]["accounting"].clone();
    let logged = accounting["logged"][0].as_u64().unwrap();
    assert_eq!(lengths(&log, "").len() as u64, logged, "{accounting}");
}

/// A worker that waits for packets is woken for a change: it used to switch with the next packet.
#[test]
fn a_change_reaches_a_worker_without_packets_soon() {
    let Some(namespace) = namespace("soon") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    // No packet matches.
    let recording = Recording::start(&namespace, &log, &["tcp port 1"]);
    let set = |mode: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
        let command = command.args(["mode", "set", mode, "--socket"]);
        let output = command.arg(&recording.socket).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let switched = || recording.status()["changes"]["count"].as_u64().unwrap();
    // A worker not yet running starts with the current settings, which is no change.
    until("the worker runs", || {
        set("log-all");
        set("log-partial");
        switched() > 0
    });
    for mode in ["log-all", "log-partial"].iter().cycle().take(20) {
        let before = switched();
        set(mode);
        until("switched", || switched() > before);
    }
    let changes = recording.status()["changes"].clone();
    // Without the wake-up, half of its 100 ms wait.
    assert!(changes["median_ms"].as_f64().unwrap() < 20.0, "{changes}");
    recording.signal("INT");
    let (out, _) = recording.ended();
    assert!(out.starts_with("0 packets"), "{out}");
}
