//! Recordings: of an interface with the API on TCP, on a full disk, of standard input.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_setfl};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::{Value, json};
use strata_testkit::{Certificates, Disk, Namespace, connect_from};

use crate::harness::{
    ANSWER_MAX, Attack, Bounds, END_MAX, PATIENCE, Round, Site, Victim, manifest_below, network,
    seen, siege, strata, until, verified,
};
use crate::strangers::{Crowd, HOSTILE_TEXT, send};

const BOUNDS: Bounds = Bounds {
    memory_growth: 96 << 20,
    threads_growth: 8,
    descriptors: 1000,
    said: 64 << 10,
};
/// For a log in which little happens but what is requested.
const MANIFEST_MAX: u64 = 8 << 20;
/// Clients may send endless requests; each change is logged, with its reason of up to 1 KiB.
const BOUNDS_OF_REQUESTS: Bounds = Bounds {
    said: 16 << 20,
    ..BOUNDS
};
/// The table of flows takes its first 128 MiB as flows come; while interfaces are captured, it has
/// them from the start.
const BOUNDS_OF_INPUT: Bounds = Bounds {
    memory_growth: BOUNDS.memory_growth + (128 << 20),
    ..BOUNDS
};
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Packets that arrive all the time, each counted.
pub(crate) struct Traffic {
    sent: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Traffic {
    /// Sends UDP packets with `payload` bytes, `burst` of them every 10 ms, from `out0` of the
    /// thread's namespace.
    pub(crate) fn start(payload: usize, burst: u64) -> Self {
        let (sent, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (count, ends) = (Arc::clone(&sent), Arc::clone(&stop));
        let mut sender = pcap::Capture::from_device("out0").unwrap().open().unwrap();
        let thread = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                for _ in 0..burst {
                    let number = count.load(Ordering::Relaxed);
                    // What the interface's queue does not accept counts as not sent.
                    if sender.sendpacket(frame(number, payload)).is_ok() {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
                thread::sleep(Duration::from_millis(10));
            }
        });
        let thread = Some(thread);
        Self { sent, stop, thread }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Stops; returns how many packets were sent.
    pub(crate) fn stop(&mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        self.sent()
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Ethernet, IPv4 and UDP, spread over a thousand flows.
fn frame(number: u64, payload: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let udp_len = u16::try_from(8 + payload).unwrap();
    bytes.extend([0x45, 0]);
    bytes.extend((20 + udp_len).to_be_bytes());
    bytes.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    bytes.extend(u16::try_from(4000 + number % 1000).unwrap().to_be_bytes());
    bytes.extend(4001u16.to_be_bytes());
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(number.to_be_bytes().iter().cycle().take(payload));
    bytes
}

/// An authorized client of a recording's API over TCP.
struct Api {
    address: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Api {
    fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let tcp = connect_from(Ipv4Addr::LOCALHOST, self.address, ANSWER_MAX)?;
        Ok(match &self.tls {
            None => Box::new(tcp),
            Some(config) => {
                let name = ServerName::from(self.address.ip());
                let connection = ClientConnection::new(Arc::clone(config), name);
                Box::new(StreamOwned::new(connection.map_err(io::Error::other)?, tcp))
            }
        })
    }

    /// Sends a request whose head declares a body of this length.
    fn request(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
        len: &str,
    ) -> io::Result<(u16, String)> {
        let mut stream = self.connect()?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\
             connection: close\r\ncontent-type: application/json\r\ncontent-length: {len}\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        // An answer may come before the whole body is sent.
        let sent = stream.write_all(body);
        let mut answer = Vec::new();
        let end = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer).into_owned();
        let code = text.get(9..12).and_then(|code| code.parse().ok());
        match code {
            Some(code) => Ok((code, text)),
            None => Err(sent.and(end.map(drop)).err().unwrap_or_else(|| {
                io::Error::new(io::ErrorKind::UnexpectedEof, "no answer, but an end")
            })),
        }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> io::Result<(u16, String)> {
        self.request(method, path, body.as_bytes(), &body.len().to_string())
    }
}

/// A recording of an interface, with traffic.
struct Live {
    api: Api,
    log: PathBuf,
    socket: PathBuf,
    victim: Mutex<Victim>,
    traffic: Mutex<Traffic>,
    /// The small disk of the log.
    disk: Option<Disk>,
    /// Another file on that disk, deleted to free space.
    reserve: Option<File>,
    dir: tempfile::TempDir,
    namespace: Namespace,
}

/// What a recording's directory must contain.
struct Setup<'a> {
    tls: bool,
    disk: Option<&'a str>,
    /// Bytes of the disk in use.
    reserve: usize,
    arguments: &'a [&'a str],
    bounds: Bounds,
    /// Bytes of payload, packets in 10 ms.
    traffic: (usize, u64),
}

impl Live {
    fn begin(setup: &Setup<'_>) -> Self {
        let namespace = network();
        namespace.pair("in0", "out0");
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let disk = setup.disk.map(|size| Disk::new(dir.path(), size));
        let log = disk.as_ref().map_or(dir.path(), Disk::path).join("log");
        let reserve = disk.as_ref().and_then(|disk| {
            let mut file = File::create(disk.path().join("reserve")).unwrap();
            file.write_all(&vec![0; setup.reserve]).unwrap();
            (setup.reserve > 0).then_some(file)
        });
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9477));
        let (config, tls) = control(dir.path(), address, setup.tls);
        let api = Api { address, tls };
        let socket = dir.path().join("run/control");
        let mut command = strata();
        command.args(["record", "-i", "in0", "-B", "8MiB", "--config"]);
        command
            .arg(config)
            .arg("-o")
            .arg(&log)
            .arg("--socket")
            .arg(&socket);
        command.args(setup.arguments);
        let (victim, traffic) = namespace.enter(|| {
            let victim = Victim::start(dir.path(), "record", setup.bounds, &command);
            let victim = Mutex::new(victim);
            // It answers before its workers run; from then on interfaces have numbers.
            until("the recording captures", PATIENCE, || {
                victim.lock().unwrap().lives();
                api.ask("GET", "/api/v1/status", "")
                    .is_ok_and(|(code, text)| code == 200 && text.contains("\"in0\""))
            });
            (victim, Traffic::start(setup.traffic.0, setup.traffic.1))
        });
        victim.lock().unwrap().is_ready();
        Self {
            api,
            log,
            socket,
            victim,
            traffic: Mutex::new(traffic),
            disk,
            reserve,
            dir,
            namespace,
        }
    }

    fn lives(&self) {
        self.victim
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .lives();
    }

    fn sent(&self) -> u64 {
        self.traffic.lock().unwrap().sent()
    }

    /// An authorized client is answered in time, a change is made (and written to the manifest),
    /// and packets keep arriving.
    fn serves(&self) {
        self.lives();
        let started = Instant::now();
        for (mode, code) in [("log-all", 200), ("default", 200), ("no such mode", 400)] {
            let body = json!({"mode": mode, "why": "a test"}).to_string();
            let answer = self.api.ask("PUT", "/api/v1/mode", &body);
            let took = started.elapsed();
            let found = answer.as_ref().map(|(code, _)| *code);
            let found = found.unwrap_or_else(|error| {
                self.lives();
                panic!("who may ask has no answer after {took:?}: {error}")
            });
            assert_eq!(found, code, "{answer:?}");
            assert!(took < ANSWER_MAX, "an answer took {took:?}");
        }
        let status = self.status();
        let before = accounted(&status);
        until("packets are recorded", PATIENCE, || {
            self.lives();
            accounted(&self.status()) > before
        });
    }

    fn status(&self) -> Value {
        let answer = self.api.ask("GET", "/api/v1/status", "");
        let (code, text) = answer.expect("the recording answers");
        let at = text.find("\r\n\r\n").expect("a head ends");
        assert_eq!(code, 200, "{text}");
        let body = &text[at + 4..];
        // Long bodies are chunked.
        let from = body.find('{').expect("a JSON object");
        let to = body.rfind('}').expect("one that ends");
        serde_json::from_str(&body[from..=to]).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Sends a request as an authorized but malicious client; it is answered, whatever the answer.
    fn provoke(&self, method: &str, path: &str, body: &str) -> u16 {
        let answer = self.api.ask(method, path, body);
        self.lives();
        let shown: String = body.chars().take(80).collect();
        let (code, text) = answer
            .unwrap_or_else(|error| panic!("{method} {path} {shown:?} has no answer: {error}"));
        assert!(code != 500, "{method} {path} {shown:?}: {text}");
        code
    }
}

/// Packets that the status accounts for, including those in flight and lost by the kernel.
fn accounted(status: &Value) -> u64 {
    let results = status["packets"].as_array().unwrap().iter();
    let ended: u64 = results.map(|r| r["packets"].as_u64().unwrap()).sum();
    let dropped = status["interfaces"][0]["dropped"].as_u64();
    // No worker has reported before the first packet.
    ended + dropped.unwrap_or_default()
}

/// The configuration file for the API, and what its client needs.
fn control(dir: &Path, address: SocketAddr, tls: bool) -> (PathBuf, Option<Arc<ClientConfig>>) {
    let config = dir.join("strata.toml");
    let secret = |file: &Path| {
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    };
    if !tls {
        let token = dir.join("token");
        fs::write(&token, TOKEN).unwrap();
        secret(&token);
        let text = format!(
            "[control]\nlisten = '{address}'\ntoken_file = '{}'\n",
            token.display()
        );
        fs::write(&config, text).unwrap();
        return (config, None);
    }
    let certificates = Certificates::make(dir, &address.ip().to_string());
    let [certificate, key, authority] = certificates.of("relay");
    secret(&key);
    let text = format!(
        "[control]\nlisten = '{address}'\ntls_cert = '{}'\ntls_key = '{}'\ntls_ca = '{}'\n",
        certificate.display(),
        key.display(),
        authority.display()
    );
    fs::write(&config, text).unwrap();
    let [certificate, key, authority] = certificates.of("switch");
    (
        config,
        Some(strata_auth::tls::client(&certificate, &key, &authority).unwrap()),
    )
}

impl Live {
    /// What must hold afterwards: packets conserved, bounds kept, a clean end, an intact log.
    fn end(self) {
        self.lives();
        let sent = self.traffic.lock().unwrap().stop();
        // The strangers are gone; authorized clients are answered by now, also over the socket.
        let mut status = strata();
        status.arg("status").arg("--socket").arg(&self.socket);
        let (done, text) = crate::harness::run(&mut status, PATIENCE);
        assert!(done, "strata status: {text}");
        let shows_control = text.chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(shows_control, None, "strata status: {text:?}");
        let mut kernel = 0;
        self.namespace.enter(|| {
            let mut last = Value::Null;
            until(
                &format!("each of {sent} packets is accounted for"),
                PATIENCE,
                || {
                    last = self.status();
                    kernel = last["interfaces"][0]["dropped"]
                        .as_u64()
                        .unwrap_or_default();
                    accounted(&last) >= sent
                },
            );
        });
        let Self {
            victim, log, dir, ..
        } = self;
        victim.into_inner().unwrap().ended_well();
        let accounting = seen(&log);
        assert_eq!(
            accounting + kernel,
            sent,
            "packets in the accounting and lost by the kernel ({kernel})"
        );
        verified(&log);
        manifest_below(&log, MANIFEST_MAX);
        drop(dir);
    }
}

/// A recording of an interface, with the API on TCP and a token.
struct WithToken(Live);
/// The same, with a malicious authorized client.
struct OneWhoMay(Live);
/// The same with mutual TLS.
struct WithTls(Live);
/// A recording on a small disk that continues when it is full.
struct FullDisk(Live);
/// The same, where inodes run out.
struct NoInodes(Live);

macro_rules! sites {
    ($($site:ident: $setup:expr;)*) => { $(
        impl Site for $site {
            fn start() -> Self {
                Self(Live::begin(&$setup))
            }

            fn namespace(&self) -> &Namespace {
                &self.0.namespace
            }

            fn finish(self) {
                self.0.end();
            }
        }
    )* };
}

sites! {
    WithToken: Setup { tls: false, disk: None, reserve: 0, arguments: &[], bounds: BOUNDS, traffic: (300, 2) };
    OneWhoMay: Setup { tls: false, disk: None, reserve: 0, arguments: &[], bounds: BOUNDS_OF_REQUESTS, traffic: (300, 2) };
    WithTls: Setup { tls: true, disk: None, reserve: 0, arguments: &[], bounds: BOUNDS, traffic: (300, 2) };
    FullDisk: Setup {
        tls: false,
        disk: Some("32M"),
        reserve: 16 << 20,
        arguments: &["--when-full", "drop", "--mode", "log-all"], bounds: BOUNDS, traffic: (1400, 60),
    };
    NoInodes: Setup {
        tls: false,
        disk: Some("64M,nr_inodes=14"),
        reserve: 0,
        arguments: &["--when-full", "drop", "--mode", "log-all", "-C", "1"], bounds: BOUNDS, traffic: (1400, 60),
    };
}

fn crowd(live: &Live, round: &mut Round, first: &[u8], drip: &[u8]) {
    let mut crowd = Crowd::gather(live.api.address, 2000, first);
    while round.goes_on() {
        crowd.drip(drip);
        live.serves();
    }
}

/// Silent connections from many sources as fast as they can be made. An authorized client tries
/// again when it is pushed out.
fn flood(live: &Live, round: &mut Round) {
    let (to, stop) = (live.api.address, AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(Crowd::gather(to, 200, b""));
            }
        });
        let _stops = OnDrop(&stop);
        while round.goes_on() {
            live.lives();
            until("who may ask is answered", ANSWER_MAX, || {
                live.api
                    .ask("GET", "/api/v1/status", "")
                    .is_ok_and(|(code, _)| code == 200)
            });
        }
    });
    live.serves();
}

/// Sets a flag even when a check fails.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn idle(live: &Live, round: &mut Round) {
    crowd(live, round, b"", b"");
}

fn unfinished_heads(live: &Live, round: &mut Round) {
    crowd(
        live,
        round,
        b"GET /api/v1/status HTTP/1.1\r\nhost: x\r\nx-a: ",
        b"a",
    );
}

fn endless_heads(live: &Live, round: &mut Round) {
    while round.goes_on() {
        let start = b"GET /metrics HTTP/1.1\r\nhost: x\r\n";
        let mut crowd = Crowd::gather(live.api.address, 30, start);
        let header = format!("x-{}: {}\r\n", round.random(), "a".repeat(60_000));
        crowd.pour(header.as_bytes(), 8 << 20);
        live.serves();
    }
}

fn large_bodies(live: &Live, round: &mut Round) {
    while round.goes_on() {
        for len in [
            "18446744073709551615",
            "99999999999999999999999",
            "1073741824",
            "-1",
        ] {
            let head =
                format!("PUT /api/v1/mode HTTP/1.1\r\nhost: x\r\ncontent-length: {len}\r\n\r\n");
            let mut crowd = Crowd::gather(live.api.address, 10, head.as_bytes());
            crowd.pour(&[b'a'; 65_536], 8 << 20);
            live.serves();
        }
        let head = b"PUT /api/v1/mode HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
        let mut crowd = Crowd::gather(live.api.address, 10, head);
        crowd.pour(b"ffffffffffff\r\naaaa", 8 << 20);
        live.serves();
    }
}

/// An authorized client sends bodies as large.
fn large_bodies_of_one_who_may(live: &Live, round: &mut Round) {
    let body = vec![b'a'; 64 << 20];
    while round.goes_on() {
        for len in ["67108864", "1099511627776", "18446744073709551616"] {
            let answer = live.api.request("PUT", "/api/v1/mode", &body, len);
            if let Ok((code, text)) = answer {
                assert!((400..500).contains(&code), "{text}");
            }
            live.serves();
        }
    }
}

fn slow_readers(live: &Live, round: &mut Round) {
    let token =
        format!("GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n");
    while round.goes_on() {
        let stranger = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";
        // Fewer for the authorized client: each of its answers is really computed.
        for (request, size) in [(stranger, 60), (token.as_str(), 4)] {
            let mut crowd = Crowd::gather(live.api.address, size, b"");
            crowd.pour(request.repeat(100).as_bytes(), 1 << 20);
            live.serves();
        }
    }
}

fn hostile_numbers(live: &Live, round: &mut Round) {
    let numbers = [
        "1e19",
        "1e300",
        "1.8446744073709552e19",
        "9223372036854775807",
        "18446744073709551616",
        "-1",
        "-0.0",
        "0",
        "1e-300",
        "null",
        "1e999",
        "NaN",
        "\"1\"",
        "[]",
        "31536000000",
    ];
    while round.goes_on() {
        for number in numbers {
            live.provoke(
                "PUT",
                "/api/v1/mode",
                &format!("{{\"mode\":\"log-all\",\"seconds\":{number}}}"),
            );
            let policy =
                |field: &str| format!("{{\"match\":\"udp port 9\",\"action\":\"full\",{field}}}");
            live.provoke(
                "POST",
                "/api/v1/policies",
                &policy(&format!("\"priority\":{number}")),
            );
            live.provoke("DELETE", &format!("/api/v1/policies/{number}"), "");
        }
        for action in [
            "partial 18446744073709551615",
            "partial -1",
            "full 1/0",
            "full 1/18446744073709551616",
            "full 1/4294967295 flows",
            "partial 65536 1/2",
        ] {
            let body = json!({"match": "udp port 9", "action": action}).to_string();
            live.provoke("POST", "/api/v1/policies", &body);
        }
        for number in [
            "18446744073709551616",
            "4294967296",
            "-1",
            "vlan 99999",
            "port 65536",
        ] {
            let body = json!({"match": format!("port {number}"), "action": "full"}).to_string();
            live.provoke("POST", "/api/v1/policies", &body);
        }
        // A short timed mode ends, even after endless ones. On a busy machine the recording itself
        // may keep less, so what counts is the mode that was asked for.
        live.provoke(
            "PUT",
            "/api/v1/mode",
            "{\"mode\":\"log-minimum\",\"seconds\":0.05}",
        );
        until("a mode for 50 ms ends", ANSWER_MAX, || {
            live.status()["asked_mode"] != "log-minimum"
        });
        live.serves();
    }
}

fn hostile_texts(live: &Live, round: &mut Round) {
    let long = HOSTILE_TEXT.repeat(20_000);
    let nested = "(".repeat(200_000);
    let negated = "not ".repeat(200_000) + "udp";
    let joined = "udp or ".repeat(50_000) + "udp";
    while round.goes_on() {
        for text in [
            HOSTILE_TEXT,
            &long,
            &nested,
            &negated,
            &joined,
            "\\",
            "{{}}%n%s",
        ] {
            for body in [
                json!({"mode": "log-all", "why": text}),
                json!({"mode": text, "why": ""}),
                json!({"match": text, "action": "full"}),
                json!({"match": "udp", "action": text}),
                json!({"match": "udp", "action": "full", "why": text}),
                json!({"match": "udp", "action": "full", "interface": text}),
                json!({text: 1}),
            ] {
                let is_mode = body.get("mode").is_some();
                let (method, path) = if is_mode {
                    ("PUT", "mode")
                } else {
                    ("POST", "policies")
                };
                live.provoke(method, &format!("/api/v1/{path}"), &body.to_string());
            }
        }
        let deep = "[".repeat(500_000);
        live.provoke("PUT", "/api/v1/mode", &deep);
        send(
            live.api.address,
            1,
            format!("GET /{HOSTILE_TEXT} HTTP/1.1\r\n\r\n").as_bytes(),
        );
        live.serves();
    }
}

/// As many policies and events as an authorized client can add.
fn requests_without_end(live: &Live, round: &mut Round) {
    let why = "x".repeat(1000);
    let mut number = 0u32;
    while round.goes_on() {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(1) {
            number += 1;
            let [_, _, c, d] = number.to_be_bytes();
            let body =
                json!({"match": format!("host 10.1.{c}.{d}"), "action": "header", "why": why});
            live.provoke("POST", "/api/v1/policies", &body.to_string());
            live.provoke("DELETE", "/api/v1/policies/1", "");
            let body = json!({"mode": if number.is_multiple_of(2) { "log-all" } else { "default" }, "why": why});
            live.provoke("PUT", "/api/v1/mode", &body.to_string());
        }
        live.serves();
    }
}

fn random_bytes(live: &Live, round: &mut Round) {
    while round.goes_on() {
        for number in 0..80u8 {
            let mut bytes = round.bytes(2000);
            if number % 2 == 0 {
                bytes.splice(..0, *b"POST /api/v1/policies HTTP/1.1\r\n");
            }
            send(live.api.address, number, &bytes);
        }
        live.serves();
    }
}

#[test]
fn record_with_a_token() {
    let attacks: &[Attack<WithToken>] = &[
        ("idle connections", |s, r| idle(&s.0, r)),
        ("a flood of connections", |s, r| flood(&s.0, r)),
        ("unfinished heads", |s, r| unfinished_heads(&s.0, r)),
        ("endless heads", |s, r| endless_heads(&s.0, r)),
        ("large bodies", |s, r| large_bodies(&s.0, r)),
        ("large bodies of one who may ask", |s, r| {
            large_bodies_of_one_who_may(&s.0, r);
        }),
        ("slow readers", |s, r| slow_readers(&s.0, r)),
        ("hostile numbers", |s, r| hostile_numbers(&s.0, r)),
        ("hostile texts", |s, r| hostile_texts(&s.0, r)),
        ("random bytes", |s, r| random_bytes(&s.0, r)),
    ];
    siege("record, API with a token", attacks);
    let attacks: &[Attack<OneWhoMay>] =
        &[("requests without end", |s, r| requests_without_end(&s.0, r))];
    siege("record, one who may ask", attacks);
}

/// The start of a TLS record that announces a handshake of 16 KiB.
const TLS_RECORD: &[u8] = &[22, 3, 1, 0x40, 0];
/// A ClientHello that announces 16 MiB, in its first record.
const TLS_HELLO: &[u8] = &[22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff, 3, 3];

fn endless_hellos(live: &Live, round: &mut Round) {
    while round.goes_on() {
        let mut crowd = Crowd::gather(live.api.address, 60, b"");
        let mut record = TLS_HELLO.to_vec();
        record.resize(5 + 0x4000, 0);
        crowd.pour(&record, 4 << 20);
        live.serves();
    }
}

#[test]
fn record_with_mutual_tls() {
    let attacks: &[Attack<WithTls>] = &[
        ("idle connections", |s, r| idle(&s.0, r)),
        ("a flood of connections", |s, r| flood(&s.0, r)),
        ("unfinished hellos", |s, r| crowd(&s.0, r, TLS_RECORD, &[1])),
        ("hellos without an end", |s, r| endless_hellos(&s.0, r)),
        ("random bytes", |s, r| random_bytes(&s.0, r)),
    ];
    siege("record, API with mutual TLS", attacks);
}

/// Traffic fills the disk, then something else takes its last byte; meanwhile changes are made (and
/// written to the manifest). It carries on, and records again once there is space.
fn fill(live: &Live, round: &mut Round, most: u64) {
    let from = live.sent();
    while round.goes_on() || live.sent() < from + most {
        live.serves();
    }
    let ballast = live.disk.as_ref().unwrap().path().join("ballast");
    if let Ok(mut file) = File::create(&ballast) {
        for size in [65_536, 4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }
    for _ in 0..3 {
        live.serves();
    }
    let logged = |status: &Value| {
        let mut results = status["packets"].as_array().unwrap().iter();
        let found = results.find(|r| r["result"] == "logged").unwrap();
        found["packets"].as_u64().unwrap()
    };
    let before = logged(&live.status());
    for file in [&ballast, &live.log.parent().unwrap().join("reserve")] {
        let _ = fs::remove_file(file);
    }
    if live.reserve.is_some() {
        until("it records again once there is room", PATIENCE, || {
            live.lives();
            logged(&live.status()) > before
        });
    }
}

#[test]
fn record_on_a_full_disk() {
    let attacks: &[Attack<FullDisk>] = &[("traffic", |s, r| fill(&s.0, r, 30_000))];
    siege("record, a full disk", attacks);
    let attacks: &[Attack<NoInodes>] = &[("traffic", |s, r| fill(&s.0, r, 30_000))];
    siege("record, no inodes", attacks);
}

/// A recording of a pipe that a stranger writes to.
struct Pipe {
    input: Mutex<Option<ChildStdin>>,
    victim: Victim,
    log: PathBuf,
    _dir: tempfile::TempDir,
    namespace: Namespace,
}

impl Site for Pipe {
    fn start() -> Self {
        let namespace = network();
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut command = strata();
        command.args(["record", "-r", "-", "-o"]).arg(&log);
        let mut victim =
            namespace.enter(|| Victim::start(dir.path(), "record", BOUNDS_OF_INPUT, &command));
        let input = Mutex::new(Some(victim.take_stdin()));
        victim.has_begun();
        victim.is_ready();
        Self {
            input,
            victim,
            log,
            _dir: dir,
            namespace,
        }
    }

    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn finish(self) {
        // While the pipe is open: it may wait forever for more.
        let (status, printed) = self.victim.ended(true, END_MAX);
        drop(self.input);
        let wrote = self.log.join("manifest.json").exists();
        assert!(
            wrote || !status.success(),
            "no log, and no error: {printed}"
        );
        if wrote {
            verified(&self.log);
            manifest_below(&self.log, MANIFEST_MAX);
            seen(&self.log);
        }
    }
}

impl Pipe {
    /// Writes everything, unless the recording has seen enough and ended.
    fn write(&self, mut bytes: &[u8]) {
        let mut input = self.input.lock().unwrap();
        let pipe = input.as_mut().unwrap();
        fcntl_setfl(&*pipe, OFlags::NONBLOCK).unwrap();
        let mut last = Instant::now();
        while !bytes.is_empty() {
            match pipe.write(bytes) {
                Ok(len) => {
                    bytes = &bytes[len..];
                    last = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    assert!(last.elapsed() < PATIENCE, "it no longer reads its input");
                    thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return,
            }
        }
    }
}

/// A block of a pcapng file.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padding = body.len().next_multiple_of(4) - body.len();
    let len = u32::try_from(12 + body.len() + padding)
        .unwrap()
        .to_le_bytes();
    let body = body.iter().copied().chain(std::iter::repeat_n(0, padding));
    let head = kind.to_le_bytes().into_iter().chain(len);
    head.chain(body).chain(len).collect()
}

fn section() -> Vec<u8> {
    block(
        0x0a0d_0d0a,
        &[
            0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255,
        ],
    )
}

fn interface(name: &str) -> Vec<u8> {
    let mut body = vec![1, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    body.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
    body.extend(name.as_bytes());
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend([0; 4]);
    block(1, &body)
}

fn hostile_interfaces(pipe: &Pipe, round: &mut Round) {
    pipe.write(&section());
    let long = HOSTILE_TEXT.repeat(100);
    while round.goes_on() {
        let mut bytes = interface(HOSTILE_TEXT);
        bytes.extend(interface(&long));
        for number in 0..2000 {
            bytes.extend(interface(&format!("eth{number}")));
        }
        pipe.write(&bytes);
    }
}

fn hostile_lengths(pipe: &Pipe, _: &mut Round) {
    let mut bytes = section();
    bytes.extend(interface("eth0"));
    // An enhanced packet block of nearly 4 GiB, only the start of which follows.
    bytes.extend([6, 0, 0, 0, 0xfc, 0xff, 0xff, 0xff]);
    bytes.resize(bytes.len() + (48 << 20), 0);
    pipe.write(&bytes);
}

fn slow_sender(pipe: &Pipe, round: &mut Round) {
    let mut bytes = section();
    bytes.extend(interface("eth0"));
    let mut bytes = bytes.into_iter();
    while round.goes_on() {
        if let Some(byte) = bytes.next() {
            pipe.write(&[byte]);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn random_packets(pipe: &Pipe, round: &mut Round) {
    pipe.write(&section());
    pipe.write(&interface("eth0"));
    while round.goes_on() {
        for _ in 0..500 {
            let len = usize::try_from(round.random() % 400).unwrap();
            let mut body = vec![0; 12];
            body.extend(u32::try_from(len).unwrap().to_le_bytes());
            body.extend(
                u32::try_from(round.random() % 70_000)
                    .unwrap()
                    .to_le_bytes(),
            );
            // A third resemble IPv4 in Ethernet.
            let mut bytes = round.bytes(len);
            if round.random().is_multiple_of(3) && len > 60 {
                bytes[..34].copy_from_slice(&frame(round.random(), 300)[..34]);
            }
            body.extend(bytes);
            pipe.write(&block(6, &body));
        }
    }
}

#[test]
fn record_of_standard_input() {
    let attacks: &[Attack<Pipe>] = &[
        ("hostile interfaces", hostile_interfaces),
        ("hostile lengths", hostile_lengths),
        ("a slow sender", slow_sender),
        ("random packets", random_packets),
    ];
    siege("record of standard input", attacks);
}
