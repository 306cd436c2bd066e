//! What strangers, a full disk and careless users do to a telemetry collector: it says what is wrong,
//! and goes on for everybody else.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::program::{failed, strata};
use crate::common::signal::signal;
use crate::common::telemetry::{
    PATIENCE, Process, listens, number, packed, status, telemetry, wait_status,
};

fn collect(store: &Path) -> Process {
    let mut command = strata();
    command.args(["telemetry", "collect", "--listen", "127.0.0.1:0", "-o"]);
    Process::start(command.arg(store))
}

fn translate(counters: &Path, collector: &str) -> Command {
    let mut command = strata();
    command.args(["telemetry", "run", "--listen", "127.0.0.1:0"]);
    command.args(["--store-memory", "2MiB", "--collector", collector, "-o"]);
    command.arg(counters);
    command
}

/// Connections that a thread keeps busy until it is stopped.
struct Busy {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    /// Each sends the same bytes again and again, and connects again when it is thrown out.
    fn start(address: &str, bytes: &'static [u8], connections: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = |_| {
            let (stop, address) = (Arc::clone(&stop), address.to_owned());
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let Ok(mut stream) = TcpStream::connect(&address) else {
                        continue;
                    };
                    while !stop.load(Ordering::Relaxed) && stream.write_all(bytes).is_ok() {}
                }
            })
        };
        Self {
            threads: (0..connections).map(thread).collect(),
            stop,
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// Messages that say nothing, from any client of the port, are in no translator's way.
#[test]
fn a_flood_of_messages_keeps_no_translator_out() {
    let dir = TempDir::new().unwrap();
    let [store, counters] = ["store", "counters"].map(|name| dir.path().join(name));
    let collector = collect(&store);
    let address = listens(&store);
    let flood = Busy::start(&address, b"\"alive\"\n\"alive\"\n\"alive\"\n\"alive\"\n", 3);
    wait_status(&store, |status| number(&status["connections_refused"]) > 10);
    let translator = Process::start(&mut translate(&counters, &address));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let value = packed(0x21, 0, 0, [4, 4, 2], &[vec![10, 0, 0, 1, 0, 0, 0, 7]]);
    socket.send_to(&value, listens(&counters)).unwrap();
    wait_status(&counters, |status| {
        number(&status["totals"]["confirmed"]) == 1
    });
    drop(flood);
    translator.end();
    collector.end();
}

/// A peer that is not a collector: the translator says so, and Ctrl-C ends it in any case.
#[test]
fn a_translator_ends_whatever_its_collector_says() {
    let dir = TempDir::new().unwrap();
    for (answer, said) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            "unexpected message",
        ),
        (
            b"{\"challenge\":{\"version\":1,\"nonce\":[1,2],\"secret\":false}}\n",
            "no challenge",
        ),
        (
            b"{\"refused\":\"\x1b]0;owned\x07 no\"}\n",
            "unexpected message",
        ),
        (b"{\"refused\":\"\\u001b]0;owned\\u0007 no\"}\n", "refuses"),
        (b"\"end\"\n", "no challenge"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answer).unwrap();
            // Until the other end has had enough.
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let error = failed(&mut translate(&dir.path().join("counters"), &address));
        assert!(
            error.contains(said) && !error.contains('\u{1b}'),
            "{error:?}"
        );
        server.join().unwrap();
    }
}

/// On a file system of 3 MiB: a store that does not fit leaves nothing behind, one that fits goes on
/// when the rest is full, says once that it cannot write its counters, and ends as it should.
#[test]
fn a_full_disk_is_said_once_and_harms_no_store() {
    let dir = TempDir::new().unwrap();
    let script = r#"
        set -eu
        mount -t tmpfs -o size=3m none .
        cd "$(pwd)"
        run="$STRATA telemetry run --listen 127.0.0.1:0 -o store"
        until_true() { for try in $(seq 600); do "$@" && return; sleep 0.1; done; echo "never: $*"; exit 9; }
        $run --store-memory 8MiB 2>refused.txt && exit 8
        cat refused.txt; rm refused.txt
        test ! -e store/memory
        $run --store-memory 1MiB 2>../errors.txt & child=$!
        until_true grep -q 'ends it' ../errors.txt
        head -c 10M /dev/zero >fill 2>/dev/null || true
        until_true grep -q 'No space left' ../errors.txt
        rm fill
        before=$(grep updated_ns store/status.json)
        later() { test "$(grep updated_ns store/status.json)" != "$before"; }
        until_true later
        head -c 10M /dev/zero >fill 2>/dev/null || true
        kill -INT $child
        wait $child
        cat ../errors.txt
    "#;
    std::fs::create_dir(dir.path().join("disk")).unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "bash", "-c", script])
        .current_dir(dir.path().join("disk"))
        .env("STRATA", env!("CARGO_BIN_EXE_strata"))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    for part in [
        "cannot reserve 8388608 bytes",
        "smaller --store-memory",
        "status.json",
        "shows outdated counts until",
        "0 reports accepted",
    ] {
        assert!(said.contains(part), "{part}: {said}\n{errors}");
    }
}

/// Ctrl-C while a burst waits in the socket: it is taken, not thrown away with the socket.
#[test]
fn what_has_arrived_is_taken_at_the_end() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let mut command = strata();
    command.args(["telemetry", "run", "--listen", "127.0.0.1:0", "-o"]);
    let mut collector = Process::start(command.arg(&store).args(["--store-memory", "2MiB"]));
    let reports = listens(&store);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    signal(&collector.child, "STOP");
    let sent = 20_000_u32;
    for n in 0..sent {
        let entry = [&[0, 0, 0, 1][..], &n.to_be_bytes()].concat();
        let datagram = packed(0x22, 0, n, [0, 4, 0], &[entry]);
        socket.send_to(&datagram, &reports).unwrap();
    }
    // It finds both when it goes on.
    signal(&collector.child, "INT");
    signal(&collector.child, "CONT");
    assert!(collector.child.wait().unwrap().success());
    let ended = status(&store);
    let accepted = number(&ended["totals"]["accepted"]);
    let dropped = number(&ended["socket_drops"]);
    assert_eq!(accepted + dropped, u64::from(sent), "{ended:#}");
    assert!(accepted > 0);
}

/// A disk that takes for ever, as far as can be seen, for what was counted: a pipe without a reader
/// is in its place. Reports are taken, and what was counted is written once it goes on.
#[test]
fn reports_do_not_wait_for_a_disk() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let mut command = strata();
    command.args(["telemetry", "run", "--listen", "127.0.0.1:0", "-o"]);
    let collector = Process::start(command.arg(&store).args(["--store-memory", "2MiB"]));
    let reports = listens(&store);
    let start = Instant::now();
    let pipe = store.join("status.json.new");
    // Unless it is being written at this moment.
    let make = || Command::new("mkfifo").arg(&pipe).output().unwrap();
    while !make().status.success() {
        assert!(start.elapsed() < PATIENCE);
    }
    // The file is written every second.
    let updated = || number(&status(&store)["updated_ns"]);
    let mut last = (updated(), Instant::now());
    while last.1.elapsed() < Duration::from_secs(3) {
        assert!(start.elapsed() < PATIENCE, "it is written without an end");
        thread::sleep(Duration::from_millis(50));
        if updated() != last.0 {
            last = (updated(), Instant::now());
        }
    }
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let value = packed(0x21, 0, 0, [4, 4, 2], &[vec![10, 0, 0, 1, 0, 0, 0, 7]]);
    socket.send_to(&value, &reports).unwrap();
    let mut get = telemetry(&store, &["get", "10.0.0.1"]);
    while !get.output().unwrap().status.success() {
        assert!(start.elapsed() < PATIENCE, "the report waits for the disk");
    }
    // Now somebody reads.
    assert!(std::fs::read_to_string(&pipe).unwrap().contains("totals"));
    collector.end();
    let ended = status(&store);
    assert_eq!(number(&ended["totals"]["accepted"]), 1, "{ended:#}");
}
