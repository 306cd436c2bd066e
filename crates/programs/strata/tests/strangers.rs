//! What strangers who reach the API's port can do to a recording: nothing.
//!
//! A binary of its own: it raises the limit of descriptors of its process, which programs inherit.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

#[path = "it/common/recording.rs"]
mod recording;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use recording::wait_for;
use rustix::process::{Resource, getrlimit, setrlimit};
use strata_testkit::data_dir;

/// Silent connections.
const STRANGERS: usize = 1000;

/// A recording of standard input that may open 1,024 descriptors and starts a new file after each
/// megabyte.
struct Recording {
    child: Child,
    dir: tempfile::TempDir,
    address: SocketAddr,
}

impl Recording {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let token = dir.path().join("token");
        let config = dir.path().join("strata.toml");
        fs::write(&token, "0123456789abcdef\n").unwrap();
        let mut private = fs::metadata(&token).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut private, 0o600);
        fs::set_permissions(&token, private).unwrap();
        let text = format!(
            "[control]\nlisten = '{address}'\ntoken_file = '{}'\n",
            token.display()
        );
        fs::write(&config, text).unwrap();
        let child = Command::new("sh")
            .args(["-c", "ulimit -n 1024 && exec \"$0\" \"$@\""])
            .arg(env!("CARGO_BIN_EXE_strata"))
            .args(["record", "-r", "-", "--mode", "log-all", "-C", "1", "-o"])
            .arg(dir.path().join("log"))
            .arg("--config")
            .arg(&config)
            .arg("--socket")
            .arg(dir.path().join("control.sock"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let recording = Self {
            child,
            dir,
            address,
        };
        wait_for(&recording.socket(), "it listens", |_| true);
        recording
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    fn descriptors(&self) -> usize {
        let fds = format!("/proc/{}/fd", self.child.id());
        fs::read_dir(fds).unwrap().count()
    }

    /// The answer to a client with the token, and how long it took.
    fn metrics(&self) -> (String, Duration) {
        let start = Instant::now();
        let mut stream = TcpStream::connect(self.address).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer 0123456789abcdef\r\n\
                       connection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (answer, start.elapsed())
    }
}

/// Lets the test itself hold its ends of the connections.
fn raise_own_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

#[test]
fn idle_connections_end_no_recording() {
    raise_own_limit();
    let mut recording = Recording::start();
    let trace = fs::read(data_dir().join("labelled/mix-test/trace.pcap")).unwrap();
    let strangers: Vec<TcpStream> = (0..STRANGERS)
        .map(|_| TcpStream::connect(recording.address).unwrap())
        .collect();
    let (answer, took) = recording.metrics();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(took < Duration::from_secs(1), "answered after {took:?}");
    let open = recording.descriptors();
    assert!(open < 250, "{open} descriptors are open");

    // Each megabyte is a new file and so a new manifest.
    let mut stdin = recording.child.stdin.take().unwrap();
    stdin.write_all(&trace).unwrap();
    stdin.flush().unwrap();
    wait_for(
        &recording.socket(),
        "the local operator is answered",
        |status| status["packets_per_second"].is_number(),
    );
    assert!(recording.metrics().0.starts_with("HTTP/1.1 200"));
    drop(stdin);
    let output = recording.child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let problems = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{problems}");
    assert!(text.contains("dropped 0 + in_flight 0"), "{text}");
    let files = fs::read_dir(recording.dir.path().join("log/blocks")).unwrap();
    let blocks = files.filter(|file| {
        let name = file.as_ref().unwrap().file_name();
        name.to_string_lossy().ends_with(".strata")
    });
    assert!(blocks.count() > 5, "the trace fills several files");
    drop(strangers);
}

/// A client that sends a head byte by byte is cut off, however long it keeps trying.
#[test]
fn slow_heads_are_cut_off() {
    let recording = Recording::start();
    let mut slow = TcpStream::connect(recording.address).unwrap();
    slow.set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    slow.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let start = Instant::now();
    loop {
        // A write after the cut fails, or the read sees the end; before, the read times out.
        let written = slow.write_all(b"x: y\r\n");
        match slow.read(&mut [0; 4096]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && written.is_ok() => {}
            Ok(1..) => {}
            Ok(0) | Err(_) => break,
        }
        assert!(start.elapsed() < Duration::from_secs(30), "never cut off");
    }
    recording.end();
}

/// A long body is refused, and one that never arrives times out.
#[test]
fn bodies_are_bounded() {
    let recording = Recording::start();
    let ask = |length: usize, body: &[u8]| {
        let mut stream = TcpStream::connect(recording.address).unwrap();
        let head = format!(
            "PUT /api/v1/mode HTTP/1.1\r\nhost: x\r\nauthorization: Bearer 0123456789abcdef\r\n\
             content-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        // Data sent but not read may reset the connection after the answer.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let long = ask(1 << 30, b"{");
    assert!(long.starts_with("HTTP/1.1 413"), "{long}");
    let start = Instant::now();
    let absent = ask(100, b"{");
    assert!(absent.starts_with("HTTP/1.1 408"), "{absent}");
    assert!(start.elapsed() < Duration::from_secs(30));
    recording.end();
}

impl Recording {
    /// Ends it before it has read anything.
    fn end(mut self) {
        drop(self.child.stdin.take());
        self.child.wait_with_output().unwrap();
    }
}
