//! A running collector is seen: what arrived, from whom, what was refused; and a log of what it receives has what
//! senders kept, and a limit.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use strata_testkit::{may_use_kernel, workspace_root};

use super::ends::Sender;
use super::{PACKETS, capture, configured};
use crate::common::collecting::Collector;
use crate::common::program::{failed, ok, record, refused, strata};
use crate::common::recording::wait_for;

/// A collector with this control socket, which writes `to` (`-w` or `-o`) a path.
fn started(socket: &Path, to: (&str, &Path), more: &[&str]) -> Collector {
    let mut arguments = vec!["--listen", "127.0.0.1:0", "--socket"];
    arguments.extend([socket.to_str().unwrap(), to.0, to.1.to_str().unwrap()]);
    arguments.extend(more);
    Collector::start(strata(), &arguments)
}

/// The page of metrics, as Prometheus asks for it.
pub(crate) fn metrics(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// Numbers that tshark shows of each packet.
fn fields(file: &Path, names: &[&str]) -> Vec<Vec<u64>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-T", "fields"]);
    for name in names {
        command.args(["-e", name]);
    }
    let text = ok(&mut command);
    let numbers = |line: &str| line.split('\t').map(|n| n.parse().unwrap()).collect();
    text.lines().map(numbers).collect()
}

/// Fails if the page on JSON lacks one of these fields.
fn are_documented(fields: &Value) {
    let page = fs::read_to_string(workspace_root().join("docs/json.md")).unwrap();
    let (_, section) = page.split_once("\n## strata status\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    for name in fields.as_object().unwrap().keys() {
        assert!(section.contains(&format!("`{name}`")), "{name}");
    }
}

/// Exports the capture, and has this kept of it.
fn export(dir: &Path, port: u16, action: &str) {
    let config = configured(dir, &format!("udp://127.0.0.1:{port}"), action);
    ok(record(capture(), dir.join("sent"))
        .arg("--config")
        .arg(&config));
}

#[test]
fn a_collector_shows_what_it_has_received() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, out) = (dir.path().join("sock"), dir.path().join("out.pcapng"));
    let collector = started(&socket, ("-w", &out), &[]);
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let first = wait_for(&socket, "a collector", |_| true);
    let listen = format!("127.0.0.1:{}", collector.port);
    assert_eq!(first["collector"]["listen"], listen.as_str());
    assert_eq!(first["collector"]["output"], out.to_str().unwrap());
    assert_eq!(first["collector"]["packets"], 0);
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    // As one that is encrypted begins.
    stranger
        .send_to(&[*b"SE\x01", [0; 3]].concat(), &listen)
        .unwrap();
    export(dir.path(), collector.port, "payload 10 -> here");
    let status = wait_for(&socket, "all packets", |status| {
        let status = &status["collector"];
        status["packets"] == PACKETS
            && status["not_written"] == 0
            && status["refused"]["unreadable"] == 1
    });
    let status = &status["collector"];
    let from = &status["senders"][0];
    for fields in [status, &status["refused"], from] {
        are_documented(fields);
    }
    assert_eq!(from["name"], "web-1");
    assert_eq!(from["sender"], "127.0.0.1");
    assert_eq!(from["identity"], 4711);
    assert_eq!(
        (&from["packets"], &from["lost"]),
        (&PACKETS.into(), &0.into())
    );
    // As tshark reads the file, which is not closed yet.
    let lens = fields(&out, &["frame.len", "frame.cap_len"]);
    assert_eq!(lens.len() as u64, PACKETS);
    let bytes: u64 = lens.iter().map(|len| len[1]).sum();
    let cut = lens.iter().filter(|len| len[1] < len[0]).count() as u64;
    assert!(cut > 10 && cut < PACKETS, "{cut}");
    assert_eq!((&from["bytes"], &from["cut"]), (&bytes.into(), &cut.into()));
    assert_eq!(status["bytes"], bytes);
    let page = ok(strata().args(["status", "--socket"]).arg(&socket));
    for part in [
        format!("collector, writes {}, for ", out.display()),
        format!("collects on UDP {listen}\n"),
        String::from("refused  1 datagram unreadable\n"),
        format!("web-1 (127.0.0.1, identity 4711): {PACKETS} packets, "),
        format!("; {cut} cut; 0 lost; 0 before; 0 dropped by its kernel; heard "),
        String::from(" a datagram from 127.0.0.1 is not accepted: "),
    ] {
        assert!(page.contains(&part), "{part}: {page}");
    }
    let page = metrics(&socket);
    let of = "{sender=\"127.0.0.1\",identity=\"4711\",interface=\"web-1\"}";
    for line in [
        format!("strata_collector_sender_packets_total{of} {PACKETS}"),
        format!("strata_collector_sender_bytes_total{of} {bytes}"),
        format!("strata_collector_sender_cut_packets_total{of} {cut}"),
        String::from("strata_collector_refused_datagrams_total{reason=\"unreadable\"} 1"),
    ] {
        assert!(page.contains(&format!("\n{line}\n")), "{line}: {page}");
    }
    let text = failed(
        strata()
            .args(["mode", "set", "log-all", "--socket"])
            .arg(&socket),
    );
    assert!(text.contains("this collector writes a stream"), "{text}");
    collector.stopped();
}

/// Packets of a log of this granularity, as tshark reads them.
fn of_granularity(dir: &Path, granularity: &str) -> Vec<Vec<u64>> {
    let out: PathBuf = dir.join(format!("{granularity}.pcapng"));
    let mut command = strata();
    command.args(["export", "--granularity", granularity, "-w"]);
    command.arg(&out).arg(dir.join("log"));
    match command.output().unwrap().status.success() {
        true => fields(
            &out,
            &["frame.len", "frame.cap_len", "tcp.srcport", "tcp.hdr_len"],
        ),
        false => Vec::new(),
    }
}

/// What a sender kept of a packet is what the log calls it, also if headers are all that the packet has.
#[test]
fn a_log_has_the_granularity_that_senders_kept() {
    const PORT: u64 = 80;
    const KEPT: u64 = 10;
    let dir = tempfile::tempdir().unwrap();
    let (socket, log) = (dir.path().join("sock"), dir.path().join("log"));
    let collector = started(&socket, ("-o", &log), &["--mode", "log-all"]);
    let to = format!("udp://127.0.0.1:{}", collector.port);
    let config = dir.path().join("strata.toml");
    let text = format!(
        "default = 'drop'\n[[policy]]\nmatch = 'dst port {PORT}'\naction = 'header -> here'\n\
         [[policy]]\nmatch = 'src port {PORT}'\naction = 'payload {KEPT} -> here'\n\
         [export]\nidentity = 4711\n[export.destinations]\nhere = '{to}'\n"
    );
    fs::write(&config, text).unwrap();
    ok(record(capture(), dir.path().join("sent"))
        .arg("--config")
        .arg(&config));
    let status = wait_for(&socket, "all packets", |status| {
        status["collector"]["packets"] == PACKETS
    });
    // It is a recording too.
    assert_eq!(status["mode"], "log-all");
    ok(strata()
        .args(["mode", "set", "default", "--socket"])
        .arg(&socket));
    collector.stopped();
    let names = ["frame.len", "ip.hdr_len", "tcp.hdr_len", "tcp.srcport"];
    let original = fields(&capture(), &names);
    let count = |is_it: &dyn Fn(&[u64]) -> bool| original.iter().filter(|p| is_it(p)).count();
    let is_cut = |p: &[u64]| p[0] > 14 + p[1] + p[2] + KEPT;
    let header = of_granularity(dir.path(), "header");
    assert_eq!(header.len(), count(&|p| p[3] != PORT));
    let headers_end = |p: &Vec<u64>| 14 + 20 + p[3];
    assert!(header.iter().all(|p| p[1] == headers_end(p)), "{header:?}");
    let partial = of_granularity(dir.path(), "partial");
    assert_eq!(partial.len(), count(&|p| p[3] == PORT && is_cut(p)));
    assert!(!partial.is_empty());
    assert!(partial.iter().all(|p| p[1] == headers_end(p) + KEPT));
    let full = of_granularity(dir.path(), "full");
    assert_eq!(full.len(), count(&|p| p[3] == PORT && !is_cut(p)));
    assert!(full.iter().all(|p| p[0] == p[1]), "{full:?}");
    ok(strata().arg("verify").arg(&log));
}

/// Bytes of all files below a directory, some of which may be gone by now.
fn bytes_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

#[test]
fn a_disk_limit_holds_for_a_log_of_what_is_collected() {
    if !may_use_kernel("a large socket buffer") {
        return;
    }
    const LIMIT: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (socket, log) = (dir.path().join("sock"), dir.path().join("log"));
    let text = refused(strata().args(["collector", "-w", "x", "--disk-limit", "8MiB"]));
    assert!(text.contains("--disk-limit applies to a log"), "{text}");
    let small = [
        "--mode",
        "log-all",
        "-C",
        "4MiB",
        "--disk-limit",
        "8MiB",
        "-o",
    ];
    let text = refused(
        strata()
            .args(["collector", "--listen", "127.0.0.1:0"])
            .args(small)
            .arg(&log),
    );
    assert!(text.contains("-C 2 (in MB)"), "{text}");
    let limited = ["--mode", "log-all", "-C", "1MiB", "--disk-limit", "8MiB"];
    let limited = [&limited[..], &["--when-full", "drop"]].concat();
    let collector = started(&socket, ("-o", &log), &limited);
    let mut sender = Sender::new(collector.port, 1);
    sender.announce(false);
    let mut sent = 0;
    for _ in 0..6 {
        sender.send(4_000);
        sent += 4_000;
        wait_for(&socket, "what was sent", |status| {
            status["collector"]["packets"] == sent
        });
        assert!(bytes_below(&log) <= LIMIT);
    }
    let page = ok(strata().args(["status", "--socket"]).arg(&socket));
    assert!(page.contains(" to make room on the disk"), "{page}");
    let said = collector.stopped();
    assert!(said.contains(" and 0 compacted parts"), "{said}");
    let text = ok(strata().arg("info").arg(&log));
    let deletions = text
        .lines()
        .filter(|line| line.contains("deleted to make room"));
    assert_eq!(deletions.count(), 1, "{text}");
    assert!(!text.contains("warning: "), "{text}");
    let info = ok(strata().args(["info", "--json"]).arg(&log));
    let info: Value = serde_json::from_str(&info).unwrap();
    let sum = |rows: &Value| -> u64 {
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row["packets"].as_u64().unwrap()).sum()
    };
    let (there, deleted) = (sum(&info[0]["counts"]), sum(&info[0]["deleted"]));
    assert_eq!(there + deleted, sent, "{info}");
    assert!(deleted > there, "{info}");
    // Not more than is needed: a file has 1 MiB.
    let left = bytes_below(&log);
    assert!(left > LIMIT * 3 / 4 && left <= LIMIT, "{left}");
}

/// However fast packets come, nothing is deleted of a log that ends below its limit.
#[test]
fn a_log_that_stays_below_its_disk_limit_keeps_everything() {
    if !may_use_kernel("a large socket buffer") {
        return;
    }
    const LIMIT: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (socket, log) = (dir.path().join("sock"), dir.path().join("log"));
    let limited = ["--mode", "log-all", "-C", "2MiB", "--disk-limit", "8MiB"];
    let collector = started(&socket, ("-o", &log), &limited);
    let mut sender = Sender::new(collector.port, 1);
    sender.announce(false);
    let sent = 6_500;
    sender.send(sent);
    wait_for(&socket, "what was sent", |status| {
        status["collector"]["packets"] == sent
    });
    let said = collector.stopped();
    assert!(!said.contains("to make room"), "{said}");
    let bytes = bytes_below(&log);
    assert!(bytes > LIMIT * 3 / 4 && bytes <= LIMIT, "{bytes}");
    let info = ok(strata().args(["info", "--json"]).arg(&log));
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info[0]["deleted"], serde_json::json!([]), "{info}");
    assert_eq!(info[0]["in_log"]["packets"], sent, "{info}");
}

/// A collector whose pipe has no reader yet answers, and what arrived meanwhile is written once there is one.
#[test]
fn a_collector_whose_pipe_has_no_reader_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, pipe) = (dir.path().join("sock"), dir.path().join("ff"));
    ok(Command::new("mkfifo").arg(&pipe));
    let collector = started(&socket, ("-w", &pipe), &[]);
    let first = wait_for(&socket, "a collector", |_| true);
    assert_eq!(first["collector"]["output"], pipe.to_str().unwrap());
    let later = wait_for(&socket, "a status that goes on", |status| {
        let uptime = &status["collector"]["uptime_seconds"];
        uptime.as_f64().is_some_and(|seconds| seconds > 1.0)
    });
    assert_eq!(later["collector"]["packets"], 0);
    let page = metrics(&socket);
    assert!(
        page.contains("\nstrata_collector_packets_total{} 0\n"),
        "{page}"
    );
    let mut sender = Sender::new(collector.port, 1);
    sender.announce(false);
    sender.send(10);
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    wait_for(&socket, "all packets", |status| {
        status["collector"]["packets"] == 10 && status["collector"]["not_written"] == 0
    });
    collector.interrupt();
    collector.ended_with(0);
    let bytes = reader.join().unwrap();
    let copy = dir.path().join("copy.pcapng");
    fs::write(&copy, bytes).unwrap();
    assert_eq!(fields(&copy, &["frame.len"]).len(), 10);
}
