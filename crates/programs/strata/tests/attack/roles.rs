//! Every other role that faces strangers: by UDP, by TCP, in packets, in files and in what it reads.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use strata_testkit::Namespace;

use crate::commands::{FLOW_FOREST, Faces, LONG_RUNNING};
use crate::harness::{
    Attack, Bounds, END_MAX, PATIENCE, Round, Site, Victim, network, run, siege, strata, until,
};
use crate::strangers::{Crowd, HOSTILE_TEXT, send};

const BOUNDS: Bounds = Bounds {
    // An agent of vectors has 8,192 flows of 2.1 kB for each of 16 senders.
    memory_growth: 384 << 20,
    // A server of streams has one for each client and each stranger.
    threads_growth: 256 + 64 + 8,
    descriptors: 500,
    said: 256 << 10,
};

/// How a role is started, and what becomes of it.
struct Role {
    /// As in the list of commands.
    name: &'static str,
    /// With `{}` for the directory.
    arguments: &'static str,
    /// When it works.
    says: &'static str,
    /// Whether it succeeds at SIGINT: not, if what it was given was refused in part.
    ends_well: bool,
}

const fn role(name: &'static str, arguments: &'static str, says: &'static str) -> Role {
    Role {
        name,
        arguments,
        says,
        ends_well: true,
    }
}

const COLLECTOR: usize = 0;
const GPV_AGENT: usize = 1;
const TELEMETRY: usize = 2;
const CONTROLLER: usize = 3;
const SERVE: usize = 4;
const STREAMS: usize = 5;
const MEMORY: usize = 6;
const AGENT: usize = 7;
const ASK: usize = 8;
const GPV_RUN: usize = 9;
const REPLAY: usize = 10;
const TAIL: usize = 11;
const APPEND: usize = 12;
const BURSTS: usize = 13;
const PROFILE: usize = 14;
const CLASSIFY: usize = 15;

const ROLES: [Role; 16] = [
    role(
        "collector",
        "-o {}/collected --socket {}/control.sock",
        "collecting",
    ),
    role(
        "gpv agent",
        "--listen 0.0.0.0:4739 --allow 127.0.0.0/8 -w {}/r.parquet --flush-idle 1s",
        "listening",
    ),
    role(
        "telemetry run",
        "-o {}/store --store-memory 16MiB --int 127.0.0.1",
        "reports",
    ),
    role("controller run", "--state {}/controller", "agents on"),
    role("serve", "{}/log --state {}/page", "the page is"),
    role(
        "stream serve",
        "{}/streams --otlp 127.0.0.1 --otlp-stream events",
        "streams on",
    ),
    role("telemetry collect", "-o {}/there --store-memory 16MiB", ""),
    role(
        "agent",
        "--policy {}/policies.toml --identity 5 -i in0 --state {}/agent --destination here=udp://127.0.0.1:4749",
        "capturing on",
    ),
    Role {
        // Packets that came too fast are in no answer.
        ends_well: false,
        ..role(
            "ask",
            "-i in0 packet-counts-per-source --skip-incomplete -w {}/a.csv",
            "",
        )
    },
    role(
        "gpv run",
        "-i in0 -w {}/v.gpv --send-to 127.0.0.1:4739",
        "grouping",
    ),
    role(
        "replay",
        "-i in0 -r {}/hostile.pcap --loop 0 --pps 2000",
        "",
    ),
    role("stream tail", "{}/streams events -f --json", ""),
    Role {
        // Lines that are too long are refused.
        ends_well: false,
        ..role("stream append", "{}/streams events", "")
    },
    application(
        "gpv bursts",
        "udp://127.0.0.1:4739 --when depth:7 -w {}/bursts.csv",
    ),
    application("gpv profile", "udp://127.0.0.1:4739 -w {}/profile.json"),
    application(
        "gpv classify",
        "udp://127.0.0.1:4739 -m {}/flows.forest -w {}/classes.parquet",
    ),
];

/// An application of vectors. Those that were lost are in no answer.
const fn application(name: &'static str, arguments: &'static str) -> Role {
    Role {
        ends_well: false,
        ..role(name, arguments, "listening")
    }
}

/// Roles with files of their own in this suite.
const ELSEWHERE: [&str; 4] = ["compact", "record", "relay", "switch"];

/// A role at work.
struct Working<const ROLE: usize> {
    victim: Mutex<Victim>,
    namespace: Namespace,
    dir: tempfile::TempDir,
}

fn ok(dir: &Path, arguments: &str) {
    let arguments = arguments.replace("{}", &dir.display().to_string());
    let mut command = strata();
    let (done, text) = run(command.args(arguments.split_whitespace()), PATIENCE);
    assert!(done, "{arguments}: {text}");
}

/// A capture of frames that no host would send.
fn hostile_capture(path: &Path) {
    let mut state = 1_u64;
    let mut bytes = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    bytes.extend([0; 8]);
    bytes.extend(65_535_u32.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    for number in 0..500_u32 {
        let len = 14 + number * 2;
        bytes.extend(number.to_le_bytes());
        bytes.extend(number.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend((len * 3).to_le_bytes());
        bytes.extend((0..len).map(|_| {
            state = strata_wire::mix64(state);
            state.to_le_bytes()[0]
        }));
    }
    fs::write(path, bytes).unwrap();
}

impl<const ROLE: usize> Site for Working<ROLE> {
    fn start() -> Self {
        let role = &ROLES[ROLE];
        let namespace = network();
        namespace.pair("in0", "out0");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        match ROLE {
            SERVE => {
                ok(path, "generate --profile cic-w1 -c 2k -o {}/in.pcap");
                ok(path, "record -r {}/in.pcap -o {}/log");
            }
            STREAMS | TAIL | APPEND => ok(path, "stream create {}/streams events"),
            AGENT => {
                let policy = "[[policy]]\nname = 'all'\nmatch = 'ip'\naction = 'header -> here'\n";
                fs::write(path.join("policies.toml"), policy).unwrap();
            }
            CLASSIFY => fs::write(path.join("flows.forest"), FLOW_FOREST).unwrap(),
            REPLAY => hostile_capture(&path.join("hostile.pcap")),
            _ => {}
        }
        let arguments = role.arguments.replace("{}", &path.display().to_string());
        let mut command = strata();
        command
            .args(role.name.split(' '))
            .args(arguments.split_whitespace());
        let victim = namespace.enter(|| {
            let mut victim = Victim::start(path, "victim", BOUNDS, &command);
            until("it works", PATIENCE, || {
                victim.lives();
                victim.is_confined() && victim.said().contains(role.says)
            });
            victim.is_ready();
            victim
        });
        Self {
            victim: Mutex::new(victim),
            namespace,
            dir,
        }
    }

    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn finish(self) {
        let mut victim = self.victim.into_inner().unwrap();
        victim.lives();
        match ROLES[ROLE].ends_well {
            true => drop(victim.ended_well()),
            false => drop(victim.ended(true, END_MAX)),
        }
    }
}

impl<const ROLE: usize> Working<ROLE> {
    fn lives(&self) {
        self.victim.lock().unwrap().lives();
    }

    /// Datagrams that begin as those of others do, and go on at random.
    fn datagrams(&self, round: &mut Round, ports: &[u16], starts: &[&[u8]]) {
        let from: Vec<UdpSocket> = (1..20)
            .map(|last| UdpSocket::bind((Ipv4Addr::new(127, 0, 3, last), 0)).unwrap())
            .collect();
        while round.goes_on() {
            for (number, socket) in from.iter().cycle().take(400).enumerate() {
                let len = usize::try_from(round.random() % 1400).unwrap();
                let mut bytes = starts[number % starts.len()].to_vec();
                bytes.extend(round.bytes(len));
                if bytes.starts_with(b"SGPV") && bytes.len() >= 24 {
                    // The length is as it should be, so that more of it is read.
                    let len = u16::try_from(bytes.len()).unwrap();
                    bytes[12..14].copy_from_slice(&len.to_le_bytes());
                }
                let to = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[number % ports.len()]));
                // What the socket has no room for is lost.
                let _ = socket.send_to(&bytes, to);
            }
            self.lives();
        }
    }

    /// As [`besieged`], on the control socket of a collector that records.
    fn control(&self, round: &mut Round) {
        let socket = self.dir.path().join("control.sock");
        besieged(round, &socket, || self.lives());
    }

    /// The same, on that of a collector that writes a stream.
    fn control_of_stream(&self, round: &mut Round) {
        let dir = self.dir.path();
        let socket = dir.join("stream.sock");
        let mut command = strata();
        command
            .args(["collector", "--listen", "127.0.0.1:4799", "-w"])
            .arg(dir.join("all.pcapng"))
            .arg("--socket")
            .arg(&socket);
        let mut victim = Victim::start(dir, "stream", BOUNDS, &command);
        until("it works", PATIENCE, || {
            victim.lives();
            victim.is_confined() && victim.said().contains("collecting")
        });
        victim.is_ready();
        besieged(round, &socket, || victim.lives());
        drop(victim.ended_well());
    }

    /// Vectors that no switch would send.
    fn vectors(&self, round: &mut Round) {
        self.datagrams(round, &[4739], &[b"SGPV\x02\0\x01\0", b"SGPV", b""]);
    }

    /// Connections that stay, send little or much, and never what is expected.
    fn connections(&self, round: &mut Round, port: u16, starts: &[&[u8]]) {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        while round.goes_on() {
            for start in starts {
                let mut crowd = Crowd::gather(to, 150, start);
                crowd.drip(HOSTILE_TEXT.as_bytes());
                crowd.pour(&round.bytes(4096), 64 << 10);
            }
            for source in 1..20 {
                let mut bytes = starts[usize::from(source) % starts.len()].to_vec();
                bytes.extend(round.bytes(2000));
                send(to, source, &bytes);
            }
            self.lives();
        }
    }

    /// Frames of any kind on its interface.
    fn frames(&self, round: &mut Round) {
        let mut sender = pcap::Capture::from_device("out0").unwrap().open().unwrap();
        while round.goes_on() {
            for number in 0..300_usize {
                let len = 1 + usize::try_from(round.random() % 1400).unwrap();
                let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
                let types: [&[u8]; 5] = [
                    &[8, 0, 0x45],
                    &[0x86, 0xdd, 0x60],
                    &[0x81, 0],
                    &[0x88, 0x47],
                    &[0x88, 0xbe],
                ];
                frame.extend(types[number % types.len()]);
                frame.extend(round.bytes(len));
                let _ = sender.sendpacket(frame);
            }
            self.lives();
        }
    }

    /// Records of a stream that it follows, or lines that it is given.
    fn records(&self, round: &mut Round) {
        let streams = self.dir.path().join("streams");
        while round.goes_on() {
            let mut command = strata();
            command
                .args(["stream", "append"])
                .arg(&streams)
                .arg("events");
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            let mut child = command.spawn().unwrap();
            let mut input = child.stdin.take().unwrap();
            for _ in 0..50 {
                input.write_all(HOSTILE_TEXT.as_bytes()).unwrap();
                input.write_all(&round.bytes(500)).unwrap();
                input.write_all(b"\n").unwrap();
            }
            drop(input);
            assert!(child.wait().unwrap().success());
            self.lives();
        }
    }

    fn lines(&self, round: &mut Round) {
        let mut input = self.victim.lock().unwrap().take_stdin();
        while round.goes_on() {
            let long = vec![b'x'; 3 << 20];
            input.write_all(&long).unwrap();
            input.write_all(&round.bytes(100_000)).unwrap();
            input.write_all(HOSTILE_TEXT.as_bytes()).unwrap();
            self.lives();
        }
    }
}

/// Programs of a user who may open a control socket: requests that are broken, long, slow or many. One that asks
/// properly has its answer all the while.
fn besieged(round: &mut Round, socket: &Path, mut lives: impl FnMut()) {
    const STEP: Duration = Duration::from_millis(50);
    const STARTS: [&[u8]; 7] = [
        b"",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Slow: ",
        b"GET /api/v1/status HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /api/v1/events HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"PUT /api/v1/mode HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\n{",
        b"POST /api/v1/policies HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    while round.goes_on() {
        let mut held = Vec::new();
        for number in 0..200 {
            let Ok(mut stream) = UnixStream::connect(socket) else {
                continue;
            };
            stream.set_write_timeout(Some(STEP)).unwrap();
            let start = STARTS[number % STARTS.len()];
            // It may be closed by now, or take no more.
            let _ = stream.write_all(start);
            let more = usize::try_from(round.random() % 9000).unwrap();
            let _ = match number % 3 {
                0 => stream.write_all(&round.bytes(more)),
                1 => stream.write_all(HOSTILE_TEXT.as_bytes()),
                _ => Ok(()),
            };
            held.push(stream);
        }
        let mut status = strata();
        let status = status.args(["status", "--socket"]).arg(socket);
        let (done, text) = run(status, PATIENCE);
        assert!(done, "{text}");
        assert!(text.contains("collects on UDP"), "{text}");
        drop(held);
        lives();
    }
}

#[test]
fn every_role_that_faces_strangers_is_attacked() {
    let here = ROLES.iter().map(|role| role.name);
    let mut covered: Vec<&str> = here.chain(ELSEWHERE).collect();
    covered.sort_unstable();
    let faces = LONG_RUNNING
        .iter()
        .filter(|(_, of)| *of == Faces::Strangers);
    let mut wanted: Vec<&str> = faces.map(|(name, _)| *name).collect();
    wanted.sort_unstable();
    assert_eq!(covered, wanted);
}

#[test]
fn by_datagrams() {
    let attacks: &[Attack<Working<COLLECTOR>>] = &[
        ("datagrams", |s, r| {
            s.datagrams(r, &[4740], &[b"", b"SX\x01", b"SX", b"SE\x01"]);
        }),
        ("control socket", |s, r| s.control(r)),
        ("control socket of a stream", |s, r| s.control_of_stream(r)),
    ];
    siege("collector", attacks);
    let attacks: &[Attack<Working<GPV_AGENT>>] = &[("datagrams", |s, r| {
        s.vectors(r);
    })];
    siege("gpv agent", attacks);
    let attacks: &[Attack<Working<BURSTS>>] = &[("datagrams", |s, r| s.vectors(r))];
    siege("gpv bursts", attacks);
    let attacks: &[Attack<Working<PROFILE>>] = &[("datagrams", |s, r| s.vectors(r))];
    siege("gpv profile", attacks);
    let attacks: &[Attack<Working<CLASSIFY>>] = &[("datagrams", |s, r| s.vectors(r))];
    siege("gpv classify", attacks);
    let attacks: &[Attack<Working<TELEMETRY>>] = &[("datagrams", |s, r| {
        let starts: &[&[u8]] = &[
            b"\x14\0\0\0\0\0\0\x07",
            b"\x20\0\0\0\0\0\0\x07",
            b"\x25",
            b"",
        ];
        s.datagrams(r, &[32_766, 40_040], starts);
    })];
    siege("telemetry run", attacks);
    let attacks: &[Attack<Working<MEMORY>>] = &[
        ("datagrams", |s, r| {
            s.datagrams(r, &[4791], &[b"\x0a", b"\x2a", b""]);
        }),
        ("connections", |s, r| {
            s.connections(r, 4791, &[b"", b"\0\0\0\x10"]);
        }),
    ];
    siege("telemetry collect", attacks);
}

#[test]
fn by_connections() {
    const HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let attacks: &[Attack<Working<CONTROLLER>>] =
        &[("connections", |s, r| s.connections(r, 4741, &[HELLO, b""]))];
    siege("controller", attacks);
    let attacks: &[Attack<Working<SERVE>>] = &[("connections", |s, r| {
        let get: &[u8] = b"GET /api/logs HTTP/1.1\r\nHost: localhost\r\nX: ";
        s.connections(
            r,
            9470,
            &[get, b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b""],
        );
    })];
    siege("serve", attacks);
    let connections: fn(&Working<STREAMS>, &mut Round) = |s, r| {
        s.connections(
            r,
            4793,
            &[
                b"",
                b"STRNET02",
                b"STRNET02\x10\0\0\0",
                b"STRNET02\x12\0\0\0\x01\x07\0\0\0\0\0\0\0\x02meevents\x05\0\0\0\x03abcd",
            ],
        );
    };
    let logs: fn(&Working<STREAMS>, &mut Round) = |s, r| {
        s.connections(
            r,
            4318,
            &[
                b"",
                b"POST /v1/logs HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nffffff\r\n",
                b"POST /v1/logs HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-protobuf\r\nContent-Encoding: gzip\r\n\
                  Content-Length: 8000000\r\n\r\n\x1f\x8b\x08\0\0\0\0\0",
                b"POST /v1/logs HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n[[[[[[[[",
            ],
        );
    };
    let attacks: &[Attack<Working<STREAMS>>] = &[("connections", connections), ("logs", logs)];
    siege("stream serve", attacks);
}

#[test]
fn by_packets() {
    let attacks: &[Attack<Working<AGENT>>] = &[("frames", |s, r| s.frames(r))];
    siege("agent", attacks);
    let attacks: &[Attack<Working<ASK>>] = &[("frames", |s, r| s.frames(r))];
    siege("ask", attacks);
    let attacks: &[Attack<Working<GPV_RUN>>] = &[("frames", |s, r| s.frames(r))];
    siege("gpv run", attacks);
    let attacks: &[Attack<Working<REPLAY>>] = &[("frames", |s, r| s.frames(r))];
    siege("replay", attacks);
}

#[test]
fn by_what_is_read() {
    let attacks: &[Attack<Working<TAIL>>] = &[("records", |s, r| s.records(r))];
    siege("stream tail", attacks);
    let attacks: &[Attack<Working<APPEND>>] = &[("lines", |s, r| s.lines(r))];
    siege("stream append", attacks);
}
