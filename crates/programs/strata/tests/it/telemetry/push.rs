//! Immediate reports across the RDMA wire: a subscriber of a collector gets them by WRITE with
//! immediate data, even if peers are killed, stop reading, or are not what they claim.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use strata_rdma::{Event, PacketBatch, Psn, Requester, RequesterOptions};
use strata_roce::Port as _;
use strata_roce::udp::{UdpPort, UdpToPeer};
use strata_wire::roce::Service;
use tempfile::TempDir;

use crate::common::link::{COLLECTOR, Link};
use crate::common::program::{ok, strata};
use crate::common::signal::signal;
use crate::common::telemetry::{
    IMMEDIATE, PATIENCE, Process, event, listens, next, number, one, packed, status, telemetry,
    wait_status,
};

/// A collector with an API.
struct Collector {
    process: Process,
    store: PathBuf,
    socket: PathBuf,
}

impl Collector {
    fn start(mut command: Command, dir: &Path, listen: &str) -> Self {
        fs::create_dir_all(dir).unwrap();
        let (store, socket) = (dir.join("store"), dir.join("api.sock"));
        command.args(["telemetry", "collect", "--insecure", "--listen", listen]);
        command.arg("-o").arg(&store).arg("--socket").arg(&socket);
        Self {
            process: Process::start(&mut command),
            store,
            socket,
        }
    }

    fn here(dir: &Path) -> Self {
        Self::start(strata(), dir, "127.0.0.1:0")
    }

    fn subscribe(&self) -> Subscriber {
        let mut curl = Command::new("curl");
        curl.args(["-sSN", "--unix-socket"]).arg(&self.socket);
        curl.arg("http://strata/api/v1/telemetry/events");
        let mut curl = curl.stdout(Stdio::piped()).spawn().unwrap();
        let stream = BufReader::new(curl.stdout.take().unwrap());
        Subscriber { curl, stream }
    }
}

/// Somebody who gets immediate reports.
struct Subscriber {
    curl: Child,
    stream: BufReader<ChildStdout>,
}

impl Subscriber {
    fn next(&mut self) -> Option<(String, Value)> {
        next(&mut self.stream)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.curl.kill();
        let _ = self.curl.wait();
    }
}

/// A translator on this machine.
fn translate(counters: &Path, collectors: &[&str]) -> Process {
    let mut command = strata();
    command.args(["telemetry", "run", "--listen", "127.0.0.1:0", "-o"]);
    command.arg(counters);
    command.args([
        "--store-memory",
        "4MiB",
        "--lists",
        "8",
        "--entry-bytes",
        "18",
    ]);
    for collector in collectors {
        command.args(["--collector", collector]);
    }
    Process::start(&mut command)
}

fn is_watched(status: &Value, collector: usize) -> bool {
    status["collectors"][collector]["watched"] == true
}

/// Memory that a process has, in bytes.
fn resident(process: &Process) -> u64 {
    let path = format!("/proc/{}/status", process.child.id());
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim_end_matches("kB").trim();
    kib.parse::<u64>().unwrap() << 10
}

/// This much may come and go: stacks, pages of the program that were not used before.
const BREATH: u64 = 8 << 20;

/// A subscriber of a collector gets the reports of its share, with the numbers that lists have there.
#[test]
fn immediate_reports_reach_a_subscriber_of_a_collector_elsewhere() {
    let dir = TempDir::new().unwrap();
    let [first, second] = ["first", "second"].map(|name| Collector::here(&dir.path().join(name)));
    let counters = dir.path().join("counters");
    let addresses = [&first, &second].map(|collector| listens(&collector.store));
    let translator = translate(&counters, &addresses.each_ref().map(|address| &**address));
    let mut subscriber = second.subscribe();
    let started = wait_status(&counters, |status| is_watched(status, 1));
    assert!(!is_watched(&started, 0));

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let reports = listens(&counters);
    let send = |bytes: &[u8]| {
        socket.send_to(bytes, &reports).unwrap();
    };
    let entry = |list: u32, value: u8| [&list.to_be_bytes(), &event(value)[4..]].concat();
    // Of the first collector; not immediate; not accepted; of the second.
    for (sequence, flags, list) in [
        (0, IMMEDIATE, 0),
        (1, 0, 1),
        (2, IMMEDIATE, 99),
        (3, IMMEDIATE, 1),
    ] {
        let value = 40 + u8::try_from(sequence).unwrap();
        send(&one(0x22, flags, sequence, [0, 18, 0], &entry(list, value)));
    }
    let (name, told) = subscriber.next().unwrap();
    assert_eq!((&*name, &told["kind"]), ("report", &"append".into()));
    // List 1 of all is list 0 there, and has the name that it has at the translator.
    assert_eq!(
        (&told["list"], &told["name"]),
        (&0.into(), &"drops".into()),
        "{told}"
    );
    assert_eq!(
        (&told["entry"]["node"], &told["entry"]["value"]),
        (&7.into(), &43.into())
    );
    assert_eq!(told["reporter"], "127.0.0.1");
    // Of keys, each collector has its share.
    let sent = 64_u32;
    for n in 0..sent {
        let [.., low] = n.to_be_bytes();
        let report = [192, 0, 2, low, 0, 0, 0, low];
        send(&one(0x21, IMMEDIATE, 4 + n, [4, 4, 2], &report));
    }
    let last = entry(3, 99);
    send(&one(0x22, IMMEDIATE, 4 + sent, [0, 18, 0], &last));
    let mut keys = Vec::new();
    loop {
        let (_, told) = subscriber.next().unwrap();
        match told["key"].as_str() {
            Some(key) => keys.push((key.to_owned(), told["number"].clone())),
            None => break assert_eq!(told["list"], 1, "{told}"),
        }
    }
    assert!((8..56).contains(&keys.len()), "{keys:?}");
    // A subscriber that was notified of a value finds it in memory.
    for (key, number) in &keys {
        let found = ok(&mut telemetry(&second.store, &["get", key, "--json"]));
        let found: Value = serde_json::from_str(&found).unwrap();
        assert_eq!(&found["value"]["number"], number, "{found}");
    }
    let pushed = keys.len() as u64 + 2;
    let counted = wait_status(&counters, |status| {
        number(&status["events"]["pushed"]) == pushed
    });
    assert_eq!(number(&counted["totals"]["lost"]), 0);
    wait_status(&second.store, |status| {
        number(&status["events"]["pushed"]) == pushed
    });
    // There is no subscriber any more, and nothing is sent in vain.
    drop(subscriber);
    wait_status(&counters, |status| !is_watched(status, 1));
    send(&one(0x22, IMMEDIATE, 5 + sent, [0, 18, 0], &last));
    let ended = wait_status(&counters, |status| {
        number(&status["totals"]["reports"]) == u64::from(sent) + 6
    });
    assert_eq!(number(&ended["events"]["pushed"]), pushed);
    translator.end();
}

/// Two processes in a network namespace each, and reports of INT.
#[test]
fn either_may_be_killed_and_subscribers_hear_of_what_comes_after() {
    let dir = TempDir::new().unwrap();
    let link = Link::new("push");
    let collect = || {
        let listen = format!("{COLLECTOR}:4791");
        Collector::start(link.strata(1), dir.path(), &listen)
    };
    let translate = |name: &str| {
        let counters = dir.path().join(name);
        let mut command = link.strata(0);
        command.args(["telemetry", "run", "--insecure", "--store-memory", "4MiB"]);
        command.args(["--listen", "127.0.0.1:4001", "--int", "127.0.0.1:4002"]);
        command
            .args(["--collector", COLLECTOR, "-o"])
            .arg(&counters);
        (Process::start(&mut command), counters)
    };
    // Congestion, half of the time.
    let generate = || {
        let mut command = link.strata(0);
        command.args(["telemetry", "generate", "--profile", "fat-tree"]);
        command.args(["--send-to", "127.0.0.1:4002", "--rate", "5k"]);
        ok(command.args(["--duration", "1.2"]));
    };
    let congested = |subscriber: &mut Subscriber, after_ns: u64| loop {
        let (name, told) = subscriber.next().unwrap();
        if name == "report" && number(&told["time_ns"]) > after_ns {
            let said = (&told["name"], &told["reporter"]);
            assert_eq!(said, (&"congestion".into(), &"int".into()), "{told}");
            break number(&told["time_ns"]);
        }
    };
    let collector = collect();
    let (translator, counters) = translate("one");
    let mut subscriber = collector.subscribe();
    wait_status(&counters, |status| is_watched(status, 0));
    generate();
    let first_ns = congested(&mut subscriber, 0);

    // Another translator hears at once that somebody listens.
    translator.kill();
    let (translator, counters) = translate("other");
    let begun = wait_status(&counters, |status| is_watched(status, 0));
    generate();
    let second_ns = congested(&mut subscriber, number(&begun["updated_ns"]));
    assert!(second_ns > first_ns);

    // The stream of a collector that is killed ends. The translator counts, and tells the next one.
    collector.process.kill();
    while subscriber.next().is_some() {}
    let gone = wait_status(&counters, |status| {
        status["collectors"][0]["connected"] == false
    });
    assert!(!is_watched(&gone, 0), "{gone:#}");
    generate();
    let collector = collect();
    let mut subscriber = collector.subscribe();
    let back = wait_status(&counters, |status| is_watched(status, 0));
    assert_eq!(number(&back["collectors"][0]["connections"]), 2);
    generate();
    congested(&mut subscriber, number(&back["updated_ns"]));
    translator.end();
    collector.process.end();
}

/// Nothing grows, nothing waits, and every event was given to the subscriber or counted.
#[test]
fn a_subscriber_that_does_not_read_costs_events_alone() {
    let dir = TempDir::new().unwrap();
    let collector = Collector::here(dir.path());
    let counters = dir.path().join("counters");
    let translator = translate(&counters, &[&listens(&collector.store)]);
    let mut subscriber = collector.subscribe();
    wait_status(&counters, |status| is_watched(status, 0));
    signal(&subscriber.curl, "STOP");
    let before = [&collector.process, &translator].map(resident);

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let reports = listens(&counters);
    let entries: Vec<Vec<u8>> = (0..100).map(event).collect();
    let (start, mut sent) = (Instant::now(), 0);
    // Until the subscriber's queue is full, and long after.
    while number(&status(&collector.store)["events"]["lost"]) < 20_000 {
        let datagram = packed(0x22, IMMEDIATE, sent, [0, 18, 0], &entries);
        socket.send_to(&datagram, &reports).unwrap();
        sent += 100;
        assert!(start.elapsed() < PATIENCE, "{sent} were not enough");
        thread::sleep(Duration::from_millis(1));
    }
    let counted = wait_status(&counters, |status| {
        number(&status["totals"]["confirmed"]) == u64::from(sent)
    });
    assert_eq!(number(&counted["totals"]["accepted"]), u64::from(sent));
    for (process, before) in [&collector.process, &translator].into_iter().zip(before) {
        let after = resident(process);
        assert!(after < before + BREATH, "{before} bytes, then {after}");
    }
    // The next one that is looked at tells of those that were lost before it.
    let all =
        |status: &Value| number(&status["events"]["pushed"]) + number(&status["events"]["lost"]);
    wait_status(&counters, |status| all(status) == u64::from(sent));
    let there = loop {
        let datagram = one(0x22, IMMEDIATE, sent, [0, 18, 0], &event(1));
        socket.send_to(&datagram, &reports).unwrap();
        sent += 1;
        let looking = Instant::now();
        let mut there = status(&collector.store);
        while all(&there) != u64::from(sent) && looking.elapsed() < Duration::from_secs(3) {
            thread::sleep(Duration::from_millis(50));
            there = status(&collector.store);
        }
        if all(&there) == u64::from(sent) {
            break there;
        }
        assert!(start.elapsed() < PATIENCE, "{there:#}");
    };
    // It gets what fitted, and the number of those that did not.
    signal(&subscriber.curl, "CONT");
    let (mut came, mut lost) = (0, 0);
    while came < number(&there["events"]["pushed"]) {
        let (name, told) = subscriber.next().unwrap();
        match &*name {
            "report" => came += 1,
            _ => lost += number(&told["lost"]),
        }
    }
    assert_eq!((came + lost), u64::from(sent));
    translator.end();
    collector.process.end();
}

/// What a collector says to a translator, until that has begun: lines of JSON, by docs/formats/dta.md.
fn welcome(stream: &TcpStream, port: u16) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut say = |message: Value| {
        let heard = lines.next().and_then(Result::ok);
        // The translator may be gone.
        let _ = heard.map(|_| writeln!(&*stream, "{message}"));
    };
    say(json!({ "challenge": { "version": 5, "nonce": [1, 2], "secret": false } }));
    say(json!({ "store": { "proof": "", "manifest": null } }));
    let granted = json!({
        "qpn": 9, "rkey": 7, "va": 0, "mtu": 1024, "port": port, "atomics": 16,
        "ends": [], "events": 7, "largest": [], "others": null, "values": [],
    });
    say(json!({ "welcome": granted }));
}

/// A collector that wants immediate reports and does not, and acknowledges none of them, costs a
/// translator neither memory nor its other reports.
#[test]
fn a_collector_that_is_none_costs_its_translator_nothing() {
    let dir = TempDir::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // RoCEv2 without an answer.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            thread::spawn(move || {
                welcome(&stream, port);
                let flood = "{\"watched\":true}\n{\"watched\":false}\n{\"watched\":true}\n";
                while (&stream).write_all(flood.repeat(100).as_bytes()).is_ok() {}
            });
        }
    });
    let counters = dir.path().join("counters");
    let translator = translate(&counters, &[&address.to_string()]);
    wait_status(&counters, |status| {
        status["collectors"][0]["connected"] == true
    });
    let before = resident(&translator);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let reports = listens(&counters);
    let entries: Vec<Vec<u8>> = (0..100).map(event).collect();
    let (start, mut sent) = (Instant::now(), 0);
    // Until it has been given up for gone, and tried again.
    while number(&status(&counters)["collectors"][0]["connections"]) < 3 {
        let datagram = packed(0x22, IMMEDIATE, sent, [0, 18, 0], &entries);
        socket.send_to(&datagram, &reports).unwrap();
        sent += 100;
        assert!(start.elapsed() < PATIENCE, "{:#}", status(&counters));
        thread::sleep(Duration::from_millis(1));
    }
    let counted = wait_status(&counters, |status| {
        let drops = number(&status["socket_drops"]) * 100;
        number(&status["totals"]["reports"]) + drops == u64::from(sent)
    });
    let totals = &counted["totals"];
    let dropped =
        ["dropped_without_room", "dropped_without_collector"].map(|why| number(&totals[why]));
    assert_eq!(
        number(&totals["accepted"]) + dropped.iter().sum::<u64>(),
        number(&totals["reports"]),
        "{totals:#}"
    );
    assert_eq!(number(&totals["confirmed"]), 0);
    let after = resident(&translator);
    assert!(after < before + BREATH, "{before} bytes, then {after}");
    translator.end();
}

/// A translator that writes what it likes.
struct Hostile {
    stream: TcpStream,
    requester: Requester,
    peer: UdpToPeer,
    packets: PacketBatch,
    start: Instant,
    /// Key of the ring of immediate reports.
    events: u32,
}

impl Hostile {
    fn begin(address: SocketAddr, manifest: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answers = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut say = |message: Value| {
            writeln!(&stream, "{message}").unwrap();
            let line = answers.next().unwrap().unwrap();
            serde_json::from_str::<Value>(&line).unwrap()
        };
        let hello = json!({ "version": 5, "instance": 7, "nonce": [1, 2], "secret": false });
        say(json!({ "hello": hello }));
        say(json!({ "proof": "" }));
        let port = UdpPort::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let local = port.local_address().unwrap();
        let pair =
            json!({ "manifest": manifest, "qpn": 9, "psn": 1, "port": local.port(), "mtu": 1024 });
        let granted = say(json!({ "begin": pair }));
        let granted = &granted["welcome"];
        let low = |name: &str| u32::try_from(number(&granted[name])).unwrap();
        let mut options = RequesterOptions::new(Service::Rc, low("qpn"), Psn::new(1), 1024);
        options.window = 8192;
        Self {
            requester: Requester::new(options),
            peer: UdpToPeer::new(port, local, address).unwrap(),
            packets: PacketBatch::new(),
            start: Instant::now(),
            events: low("events"),
            stream,
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap()
    }

    /// Writes a slot of the ring, and says that it is of this number.
    fn tell(&mut self, at: u64, bytes: &[u8], number: u32) {
        let now_ns = self.now_ns();
        let posted = self.requester.write_immediate(
            at,
            self.events,
            bytes,
            number,
            now_ns,
            &mut self.packets,
        );
        posted.unwrap();
    }

    /// Until all was acknowledged, or the connection has failed.
    fn finish(&mut self) {
        let start = Instant::now();
        self.requester.request_ack(&mut self.packets);
        while self.requester.settled() < self.requester.next() && start.elapsed() < PATIENCE {
            self.peer.send(&mut self.packets).unwrap();
            self.packets.clear();
            let now_ns = self.now_ns();
            let Self {
                requester,
                peer,
                packets,
                ..
            } = self;
            let mut failed = false;
            peer.receive(&mut |packet| {
                let event = requester.receive(packet, now_ns, packets);
                failed |= matches!(event, Some(Event::Failed(_)));
            })
            .unwrap();
            let event = requester.tick(now_ns, packets);
            if failed || matches!(event, Some(Event::Failed(_))) {
                return;
            }
        }
    }
}

/// A slot by docs/formats/dta.md: of an entry of list 0, from 192.0.2.77.
fn slot(lost: u32, value: u8) -> Vec<u8> {
    let datagram = one(0x22, IMMEDIATE, 0, [0, 18, 0], &event(value));
    let mut slot = 5_u64.to_be_bytes().to_vec();
    slot.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 77]);
    slot.extend(4000_u16.to_be_bytes());
    slot.extend(u16::try_from(datagram.len()).unwrap().to_be_bytes());
    slot.extend(lost.to_be_bytes());
    slot.extend(datagram);
    slot.resize(slot.len().next_multiple_of(8), 0);
    slot
}

/// Whatever a translator writes into the ring of immediate reports, a subscriber gets reports or
/// nothing, and what is beyond the ring is not written.
#[test]
fn a_translator_that_writes_nonsense_is_no_danger() {
    let dir = TempDir::new().unwrap();
    let collector = Collector::here(dir.path());
    let address = listens(&collector.store).parse().unwrap();
    // The description of a store as a translator makes it.
    let counters = dir.path().join("counters");
    translate(&counters, &[&listens(&collector.store)]).end();
    let manifest = fs::read_to_string(collector.store.join("telemetry.json")).unwrap();
    let mut subscriber = collector.subscribe();
    let mut hostile = Hostile::begin(address, &manifest);
    let before = resident(&collector.process);
    // Nonsense in many slots, with any number; some more than there are slots.
    for n in 0..6000_u32 {
        let at = u64::from(n % 4096) * 192;
        let byte = n.to_be_bytes()[3];
        hostile.tell(at, &[byte; 192], n.wrapping_mul(0x9e37_79b9));
        if n.is_multiple_of(512) {
            hostile.finish();
        }
    }
    // A datagram that says it is longer than it is, and an invalid one.
    let mut long = slot(0, 1);
    long[26..28].copy_from_slice(&60_000_u16.to_be_bytes());
    hostile.tell(0, &long, 0);
    let mut none = slot(0, 1);
    none[32] = 0x7f;
    hostile.tell(192, &none, 1);
    // As the specification says.
    hostile.tell(384, &slot(41, 2), 2);
    hostile.finish();
    let (name, told) = subscriber.next().unwrap();
    assert_eq!((&*name, &told), ("lost", &json!({ "lost": 41 })));
    let (name, told) = subscriber.next().unwrap();
    assert_eq!(
        (
            &*name,
            &told["reporter"],
            &told["time_ns"],
            &told["entry"]["value"]
        ),
        ("report", &"192.0.2.77".into(), &5.into(), &2.into())
    );
    // Beyond the ring: refused, as a NIC refuses it.
    hostile.tell(4096 * 192 - 8, &[1; 16], 3);
    hostile.finish();
    let refused = wait_status(&collector.store, |status| {
        number(&status["requests"]["refused"]) == 1
    });
    let events = &refused["events"];
    assert_eq!(
        (number(&events["pushed"]), number(&events["lost"])),
        (1, 41)
    );
    assert!(number(&events["invalid"]) >= 5000, "{events}");
    let after = resident(&collector.process);
    assert!(after < before + BREATH, "{before} bytes, then {after}");
    // The next one finds a collector that works.
    drop(hostile.stream);
    let translator = translate(&counters, &[&listens(&collector.store)]);
    wait_status(&counters, |status| is_watched(status, 0));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let datagram = one(0x22, IMMEDIATE, 0, [0, 18, 0], &event(77));
    socket.send_to(&datagram, listens(&counters)).unwrap();
    let (_, told) = subscriber.next().unwrap();
    assert_eq!(told["entry"]["value"], 77, "{told}");
    translator.end();
    collector.process.end();
}
