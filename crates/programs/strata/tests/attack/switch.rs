//! A switch with a stranger in place of its relay.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::json;
use strata_testkit::Namespace;

use crate::harness::{
    Attack, Bounds, END_MAX, PATIENCE, Round, Site, Victim, network, siege, strata, until,
};
use crate::record::Traffic;
use crate::relay::{self, ADDRESS, message};
use crate::strangers::HOSTILE_TEXT;

const BOUNDS: Bounds = Bounds {
    memory_growth: 192 << 20,
    threads_growth: 8,
    descriptors: 200,
    said: 64 << 10,
};
const WELCOME: u8 = 2;
const CHALLENGE: u8 = 12;
const REFUSED: u8 = 3;

/// A switch that had a relay; now a stranger listens in its place.
struct Switch {
    victim: Mutex<Victim>,
    traffic: Mutex<Traffic>,
    listener: TcpListener,
    _dir: tempfile::TempDir,
    namespace: Namespace,
}

impl Site for Switch {
    fn start() -> Self {
        let namespace = network();
        namespace.pair("in0", "out0");
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let relay = relay::start(&namespace, dir.path(), &log, relay::BOUNDS);
        let mut command = strata();
        command.args([
            "switch",
            "--relay",
            "127.0.0.1",
            "-i",
            "in0",
            "-B",
            "8MiB",
            "--mode",
            "log-all",
        ]);
        let (victim, traffic, listener) = namespace.enter(|| {
            let mut victim = Victim::start(dir.path(), "switch", BOUNDS, &command);
            until("the relay has a switch", PATIENCE, || {
                victim.lives();
                let manifest = std::fs::read_to_string(log.join("manifest.json"));
                manifest.is_ok_and(|text| text.contains("running"))
            });
            let traffic = Traffic::start(300, 2);
            until("the relay has packets", PATIENCE, || has_blocks(&log));
            victim.is_ready();
            drop(relay);
            let mut listener = None;
            until("the relay's place is free", PATIENCE, || {
                listener = TcpListener::bind(ADDRESS).ok();
                listener.is_some()
            });
            (Mutex::new(victim), Mutex::new(traffic), listener.unwrap())
        });
        Self {
            victim,
            traffic,
            listener,
            _dir: dir,
            namespace,
        }
    }

    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn finish(self) {
        let sent = self.traffic.lock().unwrap().stop();
        self.victim.lock().unwrap().lives();
        drop(self.listener);
        // Its relay is gone, so it may fail; but soon, and with every packet in its counters.
        let (_, printed) = self.victim.into_inner().unwrap().ended(true, END_MAX);
        let accounting = printed
            .lines()
            .find(|line| line.starts_with("packets: seen "));
        let accounting =
            accounting.unwrap_or_else(|| panic!("no accounting of {sent} packets: {printed}"));
        let words = accounting.split_once("seen ").unwrap().1;
        let (seen, ended) = words.split_once(" = ").unwrap();
        let number = |text: &str| text.replace(',', "").parse::<u64>().ok();
        let ended: u64 = ended
            .split(" + ")
            .filter_map(|part| number(part.rsplit_once(' ')?.1))
            .sum();
        assert_eq!(number(seen), Some(ended), "{accounting}");
        // What is in the ring at SIGINT is not captured.
        assert!(
            ended + 100 >= sent && ended <= sent,
            "of {sent} packets: {accounting}"
        );
    }
}

fn has_blocks(log: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(log.join("blocks")) else {
        return false;
    };
    let mut lens = entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()));
    lens.any(|len| len > 4096)
}

/// A relay's welcome to a switch, with this body.
fn welcome(body: &[u8]) -> Vec<u8> {
    let challenge = json!({"nonce": [1, 2, 3, 4], "secret": false}).to_string();
    let mut bytes = message(CHALLENGE, challenge.as_bytes());
    bytes.extend(message(WELCOME, body));
    bytes
}

impl Switch {
    /// Answers each connection of the switch with the next of `answers`, until all are used.
    fn answer(&self, round: &mut Round, answers: &[Vec<u8>]) {
        self.listener.set_nonblocking(true).unwrap();
        while round.goes_on() {
            for answer in answers {
                let mut stream = self.accept();
                let limit = Some(Duration::from_millis(300));
                stream.set_read_timeout(limit).unwrap();
                stream.set_write_timeout(limit).unwrap();
                let _ = stream.read(&mut [0; 65_536]);
                // It may not read all of it.
                let _ = stream.write_all(answer);
                let _ = stream.read(&mut [0; 65_536]);
                self.victim.lock().unwrap().lives();
            }
        }
    }

    fn accept(&self) -> TcpStream {
        let mut stream = None;
        until("the switch connects again", PATIENCE, || {
            self.victim.lock().unwrap().lives();
            stream = self.listener.accept().ok();
            stream.is_some()
        });
        let (stream, _) = stream.unwrap();
        stream.set_nonblocking(false).unwrap();
        stream
    }
}

fn silence(switch: &Switch, round: &mut Round) {
    // The backlog accepts connections, and no program answers them.
    let started = Instant::now();
    while round.goes_on() || started.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(50));
        switch.victim.lock().unwrap().lives();
    }
}

fn hostile_texts(switch: &Switch, round: &mut Round) {
    let forged = json!({ HOSTILE_TEXT: HOSTILE_TEXT }).to_string();
    switch.answer(
        round,
        &[
            message(REFUSED, HOSTILE_TEXT.as_bytes()),
            message(REFUSED, HOSTILE_TEXT.repeat(30_000).as_bytes()),
            welcome(forged.as_bytes()),
            HOSTILE_TEXT.repeat(1000).into_bytes(),
        ],
    );
}

fn without_an_end(switch: &Switch, round: &mut Round) {
    let mut large = ((16u32 << 20) - 1).to_le_bytes().to_vec();
    large.extend([WELCOME, strata_relay::protocol::VERSION, 0, 0, 0, 0, 0, 0]);
    large.resize(16 << 20, b' ');
    let stored = message(6, &7u64.to_le_bytes()).repeat(100_000);
    switch.answer(round, &[large, stored, message(9, b"").repeat(100_000)]);
}

fn hostile_numbers(switch: &Switch, round: &mut Round) {
    let extremes = [0u64, 1, u64::from(u32::MAX), i64::MAX as u64, u64::MAX];
    let mut answers = Vec::new();
    for field in ["block_bytes", "block_stride", "blocks", "recording"] {
        for extreme in extremes {
            let mut welcome = json!({
                "recording": 1, "block_bytes": 1 << 20, "block_stride": 1 << 20, "blocks": 2,
                "path": {"transport": "rdma", "qpn": 2, "rkey": 1, "va": 4096, "mtu": 1024,
                    "port": 4791, "psn": 0}
            });
            welcome[field] = json!(extreme);
            answers.push(self::welcome(welcome.to_string().as_bytes()));
        }
    }
    switch.answer(round, &answers);
}

#[test]
fn switch() {
    let attacks: &[Attack<Switch>] = &[
        ("a silent relay", silence),
        ("hostile texts", hostile_texts),
        ("answers without an end", without_an_end),
        ("hostile numbers", hostile_numbers),
    ];
    siege("switch", attacks);
}
