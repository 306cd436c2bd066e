//! A relay, with a real switch among strangers.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use serde_json::{Value, json};
use strata_relay::protocol::{HEADER_LEN, VERSION};
use strata_testkit::{Disk, Namespace, connect_from, data_dir};

use crate::harness::{
    ANSWER_MAX, Attack, Bounds, END_MAX, PATIENCE, Round, Site, Victim, manifest_below, network,
    run, siege, strata, until, verified,
};
use crate::strangers::{Crowd, HOSTILE_TEXT, send};

pub(crate) const BOUNDS: Bounds = Bounds {
    memory_growth: 256 << 20,
    threads_growth: 8,
    descriptors: 300,
    said: 64 << 10,
};
/// On this machine strangers may open as many sessions as switches, and get as much memory:
/// `--switches` times `--worker-blocks` times `--block-size`.
const BOUNDS_OF_SESSIONS: Bounds = Bounds {
    memory_growth: 64 * 4 * (8 << 20) + (256 << 20),
    threads_growth: 64 + 4,
    ..BOUNDS
};
const MANIFEST_MAX: u64 = 1 << 20;
pub(crate) const ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4791);

struct Relay {
    victim: Mutex<Victim>,
    log: PathBuf,
    disk: Option<Disk>,
    dir: tempfile::TempDir,
    namespace: Namespace,
}

/// A listening `strata relay` in a namespace.
pub(crate) fn start(namespace: &Namespace, dir: &Path, log: &Path, bounds: Bounds) -> Victim {
    let mut command = strata();
    command.args(["relay", "-o"]).arg(log);
    namespace.enter(|| {
        let mut relay = Victim::start(dir, "relay", bounds, &command);
        until("the relay listens", PATIENCE, || {
            relay.lives();
            relay.said().contains("ends it")
        });
        relay.is_ready();
        relay
    })
}

/// A switch that sends a capture of real packets.
fn switch(capture: &Path) -> Command {
    let mut command = strata();
    command.args(["switch", "--relay", "127.0.0.1", "--mode", "log-all", "-r"]);
    command.arg(capture);
    command
}

impl Relay {
    fn begin(disk: Option<&str>, bounds: Bounds) -> Self {
        let namespace = network();
        let dir = tempfile::tempdir().unwrap();
        let disk = disk.map(|size| Disk::new(dir.path(), size));
        let log = disk.as_ref().map_or(dir.path(), Disk::path).join("log");
        let victim = Mutex::new(start(&namespace, dir.path(), &log, bounds));
        Self {
            victim,
            log,
            disk,
            dir,
            namespace,
        }
    }

    fn lives(&self) {
        self.victim
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .lives();
    }

    /// A switch gets its packets recorded, among strangers; nothing is lost. It may have to retry
    /// if strangers held every place for a moment.
    fn serves(&self) {
        let capture = data_dir().join("labelled/cic2017-sqli/trace.pcap");
        until("a switch is served among strangers", ANSWER_MAX, || {
            self.lives();
            let (done, text) = run(&mut switch(&capture), PATIENCE);
            let is_refused = text.contains("it serves 64 connections");
            assert!(
                is_refused || done && text.contains(" 0 lost;"),
                "a switch among strangers: {text}"
            );
            done
        });
    }

    fn end(self) {
        self.namespace.enter(|| self.serves());
        self.victim.into_inner().unwrap().ended_well();
        verified(&self.log);
        manifest_below(&self.log, MANIFEST_MAX);
        drop((self.disk, self.dir));
    }

    /// The relay's last message names the disk.
    fn said(&self) -> String {
        self.victim.lock().unwrap().said()
    }
}

struct OnLargeDisk(Relay);
/// The same, where strangers get as far as a session.
struct WithSessions(Relay);
struct OnSmallDisk(Relay);

impl Site for OnLargeDisk {
    fn start() -> Self {
        Self(Relay::begin(None, BOUNDS))
    }

    fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    fn finish(self) {
        self.0.end();
    }
}

impl Site for WithSessions {
    fn start() -> Self {
        Self(Relay::begin(None, BOUNDS_OF_SESSIONS))
    }

    fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    fn finish(self) {
        self.0.end();
    }
}

impl Site for OnSmallDisk {
    fn start() -> Self {
        Self(Relay::begin(Some("12M"), BOUNDS))
    }

    fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    fn finish(self) {
        let relay = self.0;
        // It cannot end well, but has to end, and say why.
        let victim = relay.victim.into_inner().unwrap();
        victim.ended(true, END_MAX);
        verified(&relay.log);
        drop((relay.disk, relay.dir));
    }
}

/// A message as specified in `docs/formats/relay.md`.
pub(crate) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let words = [kind, VERSION, 0, 0];
    let crc = crc32c::crc32c_append(crc32c::crc32c(&words), body);
    let mut bytes = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend(words);
    bytes.extend(crc.to_le_bytes());
    bytes.extend(body);
    assert_eq!(bytes.len(), HEADER_LEN + body.len());
    bytes
}

const HELLO: u8 = 1;
const BEGIN: u8 = 14;
const MODEL: u8 = 15;

/// Everything that a switch sends before it is welcomed, with changes; `model_json` is the model.
fn entry(changes: &Value) -> Vec<u8> {
    let mut hello = json!({
        "session": "00112233445566778899aabbccddeeff", "worker": 0, "nonce": [1, 2, 3, 4],
        "secret": false
    });
    let mut begin = json!({
        "program": "strata 0.1.0", "inputs": ["eth0"], "filter": "", "mode": "default",
        "model": "built-in", "classes": ["benign", "anomalous"], "hash_seed": [1, 2], "key": 3,
        "first_block": 0, "first_seq": 0, "unconfirmed_seq": 0, "resends": false,
        "path": {"transport": "rdma", "reliable": true, "qpn": 17, "psn": 0, "port": 40000,
            "mtu": 1024}
    });
    let mut model = json!("{}");
    for (name, value) in changes.as_object().unwrap() {
        let place = match name.as_str() {
            "model_json" => &mut model,
            _ if hello.get(name).is_some() => &mut hello[name],
            _ => &mut begin[name],
        };
        *place = value.clone();
    }
    let mut bytes = message(HELLO, hello.to_string().as_bytes());
    bytes.extend(message(MODEL, model.as_str().unwrap().as_bytes()));
    bytes.extend(message(BEGIN, begin.to_string().as_bytes()));
    bytes
}

fn idle(relay: &Relay, round: &mut Round) {
    let mut crowd = Crowd::gather(ADDRESS, 1500, b"");
    while round.goes_on() {
        crowd.drip(b"");
        relay.serves();
    }
}

fn large_unfinished_hellos(relay: &Relay, round: &mut Round) {
    let mut start = ((16u32 << 20) - 1).to_le_bytes().to_vec();
    start.extend([HELLO, VERSION, 0, 0, 0, 0, 0, 0]);
    while round.goes_on() {
        let mut crowd = Crowd::gather(ADDRESS, 60, &start);
        // Not the last byte.
        for _ in 0..4 {
            crowd.pour(&[b' '; 65_536], 4 << 20);
            crowd.drip(b" ");
        }
        relay.serves();
    }
}

fn slow_hellos(relay: &Relay, round: &mut Round) {
    let hello = entry(&json!({}));
    let mut crowd = Crowd::gather(ADDRESS, 500, &hello[..20]);
    let mut rest = hello[20..hello.len() - 1].iter();
    while round.goes_on() {
        if let Some(&byte) = rest.next() {
            crowd.drip(&[byte]);
        }
        relay.serves();
    }
}

fn large_hellos(relay: &Relay, round: &mut Round) {
    let large = "x".repeat(12 << 20);
    while round.goes_on() {
        for field in ["session", "program", "filter", "mode", "model_json"] {
            send(ADDRESS, 1, &entry(&json!({field: large})));
        }
        send(ADDRESS, 2, &entry(&json!({"inputs": vec!["a"; 1_000_000]})));
        relay.serves();
        manifest_below(&relay.log, MANIFEST_MAX);
    }
}

fn hostile_texts(relay: &Relay, round: &mut Round) {
    while round.goes_on() {
        for field in [
            "session",
            "program",
            "filter",
            "mode",
            "model",
            "model_json",
        ] {
            send(ADDRESS, 3, &entry(&json!({field: HOSTILE_TEXT})));
        }
        for list in ["inputs", "classes"] {
            send(
                ADDRESS,
                4,
                &entry(&json!({list: [HOSTILE_TEXT, HOSTILE_TEXT]})),
            );
        }
        let path = json!({"transport": HOSTILE_TEXT});
        send(ADDRESS, 5, &entry(&json!({"path": path})));
        send(
            ADDRESS,
            6,
            &message(HELLO, format!("{{\"{HOSTILE_TEXT}\":1}}").as_bytes()),
        );
        // What only a relay sends, and how it is shown.
        send(ADDRESS, 7, &message(3, HOSTILE_TEXT.as_bytes()));
        send(ADDRESS, 8, &message(HELLO, "[".repeat(100_000).as_bytes()));
        relay.serves();
    }
}

/// What follows an accepted hello: blocks and sequence numbers at the limits.
fn hostile_numbers(relay: &Relay, round: &mut Round) {
    let extremes = [
        0,
        1,
        1 << 31,
        (1 << 56) - 1,
        1 << 56,
        i64::MAX as u64,
        u64::MAX,
    ];
    while round.goes_on() {
        for extreme in extremes {
            for field in ["first_block", "first_seq", "key", "worker"] {
                send(ADDRESS, 9, &entry(&json!({field: extreme})));
            }
            for field in ["qpn", "psn", "port", "mtu"] {
                let mut path = json!({"transport": "rdma", "reliable": true, "qpn": 17, "psn": 0,
                    "port": 40000, "mtu": 1024});
                path[field] = json!(extreme);
                send(ADDRESS, 10, &entry(&json!({"path": path})));
            }
            let words = |count: usize| extreme.to_le_bytes().repeat(count);
            let mut mixed = words(6);
            mixed[..8].copy_from_slice(&[0; 8]);
            for (kind, body) in [
                (5, words(6)),
                (5, mixed),
                (7, words(3)),
                (6, words(1)),
                (4, words(9)),
            ] {
                let mut bytes = entry(&json!({}));
                bytes.extend(message(kind, &body));
                bytes.extend(message(8, b"{\"accounting\":null,\"warnings\":[]}"));
                send(ADDRESS, 11, &bytes);
            }
        }
        let warnings = json!({"accounting": null, "warnings": vec![HOSTILE_TEXT; 10_000]});
        let mut bytes = entry(&json!({}));
        bytes.extend(message(8, warnings.to_string().as_bytes()));
        send(ADDRESS, 12, &bytes);
        relay.serves();
        manifest_below(&relay.log, MANIFEST_MAX);
    }
}

/// Sessions opened and abandoned, as many as possible: the first is confirmed to be accepted.
fn sessions_without_end(relay: &Relay, round: &mut Round) {
    let long = "x".repeat(60);
    let mut stream = connect_from(Ipv4Addr::new(127, 0, 2, 77), ADDRESS, ANSWER_MAX).unwrap();
    stream.write_all(&entry(&json!({}))).unwrap();
    let mut answer: Vec<u8> = Vec::new();
    until("a stranger on this machine is welcome", ANSWER_MAX, || {
        let mut bytes = [0; 4096];
        let len = stream.read(&mut bytes).unwrap_or(0);
        answer.extend(&bytes[..len]);
        answer.windows(10).any(|window| window == b"block_byte")
    });
    drop(stream);
    while round.goes_on() {
        for number in 0..100 {
            let session = format!("{:032x}", round.random());
            let changes =
                json!({"session": session, "model": long, "mode": long, "worker": number});
            send(ADDRESS, 13, &entry(&changes));
        }
        relay.serves();
        manifest_below(&relay.log, MANIFEST_MAX);
    }
}

/// Thousands of useless connections: what is logged about them is bounded.
fn many_refused(relay: &Relay, round: &mut Round) {
    while round.goes_on() {
        for _ in 0..5 {
            Crowd::gather(ADDRESS, 300, b"GET / HTTP/1.1\r\nhost: relay\r\n\r\n");
        }
        relay.serves();
    }
}

fn random_bytes(relay: &Relay, round: &mut Round) {
    while round.goes_on() {
        for number in 0..100u8 {
            let len = usize::try_from(round.random() % 4000).unwrap();
            let mut bytes = round.bytes(len);
            if number % 2 == 0 {
                bytes = message(number % 12, &bytes);
            }
            send(ADDRESS, number, &bytes);
        }
        relay.serves();
    }
}

fn datagrams(relay: &Relay, round: &mut Round) {
    let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 3, 1), 0)).unwrap();
    while round.goes_on() {
        for _ in 0..20_000 {
            let len = usize::try_from(round.random() % 200).unwrap();
            let mut bytes = round.bytes(len);
            if len > 12 {
                // An RC WRITE to a queue pair that probably exists.
                bytes[..12].copy_from_slice(&[0x0a, 0x40, 0xff, 0xff, 0, 0, 0, 2, 0x80, 0, 0, 0]);
            }
            // What the kernel does not accept is lost.
            let _ = socket.send_to(&bytes, ADDRESS);
        }
        relay.serves();
    }
}

#[test]
fn relay() {
    let attacks: &[Attack<OnLargeDisk>] = &[
        ("idle connections", |s, r| idle(&s.0, r)),
        ("large unfinished hellos", |s, r| {
            large_unfinished_hellos(&s.0, r);
        }),
        ("slow hellos", |s, r| slow_hellos(&s.0, r)),
        ("large hellos", |s, r| large_hellos(&s.0, r)),
        ("many refused connections", |s, r| many_refused(&s.0, r)),
        ("random bytes", |s, r| random_bytes(&s.0, r)),
        ("datagrams", |s, r| datagrams(&s.0, r)),
    ];
    siege("relay", attacks);
    let attacks: &[Attack<WithSessions>] = &[
        ("hostile texts", |s, r| hostile_texts(&s.0, r)),
        ("hostile numbers", |s, r| hostile_numbers(&s.0, r)),
        ("sessions without end", |s, r| sessions_without_end(&s.0, r)),
    ];
    siege("relay, sessions of strangers", attacks);
}

/// A switch sends more than the relay's disk can hold: both report it, and neither hangs.
fn fill(relay: &Relay, _: &mut Round) {
    let capture = data_dir().join("labelled/mix-test/trace.pcap");
    let len = fs::metadata(&capture).unwrap().len();
    assert!(len > 16 << 20, "the capture has {len} bytes");
    let (_, text) = run(&mut switch(&capture), PATIENCE);
    let names_the_disk = |text: &str| {
        ["No space", "no space", "full"]
            .iter()
            .any(|w| text.contains(w))
    };
    assert!(
        names_the_disk(&text),
        "the switch says nothing of the relay's disk: {text}"
    );
    assert!(
        text.contains("dropped{relay_lost}: "),
        "the switch counts no loss: {text}"
    );
    let said = relay.said();
    assert!(
        names_the_disk(&said),
        "the relay says nothing of its disk: {said}"
    );
}

#[test]
fn relay_on_a_full_disk() {
    let attacks: &[Attack<OnSmallDisk>] = &[("a switch's packets", |s, r| fill(&s.0, r))];
    siege("relay, a full disk", attacks);
}
