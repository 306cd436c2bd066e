//! Vectors by UDP, through a network that loses them, and from strangers.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_gpv::format::datagram::Datagram;
use strata_gpv::{Full, Vector};
use strata_testkit::sim::Rng;

use super::{expected, gpv, json, labelled, says, unnested};
use crate::common::listening::wait_until_read;
use crate::common::signal::signal;

/// An agent that listens; where.
struct Agent {
    child: Child,
    errors: BufReader<ChildStderr>,
    at: SocketAddr,
}

impl Agent {
    fn start(words: &[&str]) -> Self {
        let mut command = gpv(&["agent", "--listen", "127.0.0.1:0", "--json"]);
        command.args(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("listening on") {
            line.clear();
            assert!(errors.read_line(&mut line).unwrap() > 0, "it has ended");
        }
        let at = line.trim().rsplit(' ').next().unwrap().parse();
        let at = at.unwrap_or_else(|_| panic!("{line}"));
        Self { child, errors, at }
    }

    /// Waits until it ends; its counts, and its output.
    fn ends(mut self) -> (Value, String) {
        let mut said = String::new();
        self.errors.read_to_string(&mut said).unwrap();
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success(), "{said}");
        (serde_json::from_slice(&output.stdout).unwrap(), said)
    }
}

/// The datagrams of a capture's vectors, as `strata gpv run --send-to` sends them.
fn datagrams(words: &[&str]) -> (Vec<Vec<u8>>, Value) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let timeout = Some(Duration::from_millis(500));
    socket.set_read_timeout(timeout).unwrap();
    let to = socket.local_addr().unwrap().to_string();
    let receiver = std::thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        let mut datagrams = Vec::new();
        // Until `run` has ended and all is read; the first may take long.
        loop {
            match socket.recv(&mut bytes) {
                Ok(1) => return datagrams,
                Ok(len) => datagrams.push(bytes[..len].to_vec()),
                Err(_) => {}
            }
        }
    });
    let mut run = gpv(&["run", "--send-to", &to]);
    let counts = json(run.args(words));
    let end = UdpSocket::bind("127.0.0.1:0").unwrap();
    end.send_to(&[0], to).unwrap();
    let datagrams = receiver.join().unwrap();
    assert_eq!(counts["destinations"][0]["datagrams"], datagrams.len());
    (datagrams, counts)
}

fn vectors_in(datagram: &[u8]) -> u64 {
    u64::from(u16::from_le_bytes([datagram[14], datagram[15]]))
}

#[test]
fn every_vector_that_the_network_loses_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("ad-attacks");
    let (datagrams, counts) = datagrams(&["-r", trace.to_str().unwrap(), "tcp or udp"]);
    let total = counts["vectors"].as_u64().unwrap();
    let expected = expected(&trace);
    for seed in 1..=4 {
        let file = dir.path().join(format!("{seed}.parquet"));
        let mut rng = Rng::new(seed);
        let (last, others) = datagrams.split_last().unwrap();
        assert_eq!(vectors_in(last), 0, "the last one says how many there were");
        // Lost, doubled, and out of order by up to 8; the first seed loses nothing.
        let mut sent: Vec<(u64, &Vec<u8>)> = Vec::new();
        let mut lost = 0;
        for (at, datagram) in others.iter().enumerate() {
            let at = u64::try_from(at).unwrap();
            match rng.below(5) {
                0 if seed > 1 => lost += vectors_in(datagram),
                1 if seed > 1 => sent.extend([(at, datagram), (at + rng.below(8), datagram)]),
                _ if seed > 2 => sent.push((at + rng.below(8), datagram)),
                _ => sent.push((at, datagram)),
            }
        }
        sent.sort_by_key(|(at, _)| *at);
        let count = (sent.len() + 1).to_string();
        let agent = Agent::start(&["-c", &count, "-w", file.to_str().unwrap()]);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (_, datagram) in sent {
            socket.send_to(datagram, agent.at).unwrap();
        }
        socket.send_to(last, agent.at).unwrap();
        let (got, said) = agent.ends();
        assert_eq!(got["lost"], lost, "seed {seed}: {got} {said}");
        assert_eq!(got["vectors"], total - lost, "seed {seed}: {got}");
        assert_eq!((&got["damaged"], &got["senders"]), (&0.into(), &1.into()));
        let (flows, _) = unnested(&file);
        let packets: usize = flows.values().map(Vec::len).sum();
        assert_eq!(got["packets"], packets);
        for (flow, packets) in &flows {
            // What came is a part of what was sent, in its order.
            let mut all = expected[flow].iter();
            let is_part = packets.iter().all(|packet| all.any(|sent| sent == packet));
            assert!(is_part, "seed {seed}: {flow}");
        }
        if lost == 0 {
            assert_eq!(flows, expected);
        }
    }
}

#[test]
fn destinations_get_what_their_rules_choose() {
    let trace = labelled("ad-attacks");
    let trace = trace.to_str().unwrap();
    let others = [
        "--send-to",
        "127.0.0.1:9,proto=udp",
        "--send-to",
        "127.0.0.1:9,dport=445",
    ];
    let words = [&["-r", trace][..], &others].concat();
    let (_, counts) = datagrams(&words);
    let [all, udp, smb] = [0, 1, 2].map(|at| &counts["destinations"][at]);
    let number = |value: &Value, name: &str| value[name].as_u64().unwrap();
    assert_eq!(number(all, "vectors"), number(&counts, "vectors"));
    for some in [udp, smb] {
        assert!(number(some, "vectors") > 0, "{counts}");
        let both = number(some, "vectors") + number(some, "not_chosen");
        assert_eq!(both, number(&counts, "vectors"));
    }
    let filtered = json(&mut gpv(&["run", "-r", trace, "udp"]));
    assert!(number(udp, "vectors") <= number(&filtered, "vectors"));
}

#[test]
fn the_papers_form_arrives_and_records_go_on_to_another_agent() {
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("ad-attacks");
    let trace = trace.to_str().unwrap();
    let file = dir.path().join("records.parquet");
    let (sent, counts) = datagrams(&["-F", "paper-seq", "-r", trace, "tcp or udp"]);
    let last = Agent::start(&["-w", file.to_str().unwrap()]);
    let (to, count) = (last.at.to_string(), sent.len().to_string());
    let first = Agent::start(&["-F", "paper-seq", "-c", &count, "--send-to", &to]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for datagram in &sent {
        socket.send_to(datagram, first.at).unwrap();
    }
    let (first, _) = first.ends();
    assert_eq!(first["vectors"], counts["destinations"][0]["vectors"]);
    // The last one runs until Ctrl-C, and then writes what it has.
    wait_until_read(last.at.port());
    signal(&last.child, "INT");
    let (last, _) = last.ends();
    assert_eq!(last["packets"], first["packets"], "{last}");
    assert_eq!((&last["lost"], &last["senders"]), (&0.into(), &1.into()));
    let (flows, _) = unnested(&file);
    let expected = expected(Path::new(trace));
    for (flow, packets) in flows {
        let sizes = |packets: &[(u64, u64, u64)]| -> Vec<(u64, u64)> {
            packets.iter().map(|p| (p.1.min(2047), p.2)).collect()
        };
        assert_eq!(sizes(&packets), sizes(&expected[&flow]), "{flow}");
    }
}

#[test]
fn what_strangers_send_costs_a_counter() {
    let trace = labelled("cic2017-sqli");
    let (sent, _) = datagrams(&["-r", trace.to_str().unwrap()]);
    let mut rng = Rng::new(7);
    let agent = Agent::start(&["--senders", "4"]);
    let strangers: Vec<UdpSocket> = (0..8)
        .map(|_| UdpSocket::bind("127.0.0.1:0").unwrap())
        .collect();
    // The usual one is heard first, and then drowned out.
    let usual = UdpSocket::bind("127.0.0.1:0").unwrap();
    usual.send_to(&sent[0], agent.at).unwrap();
    let mut hostile = 0_u64;
    for stranger in &strangers {
        for _ in 0..50 {
            let mut datagram = sent[0].clone();
            match rng.below(4) {
                0 => datagram.truncate(usize::try_from(rng.below(40)).unwrap()),
                1 => {
                    let at = usize::try_from(rng.below(datagram.len() as u64)).unwrap();
                    datagram[at] ^= 1 << rng.below(8);
                }
                // A number far ahead.
                2 => datagram[16..24].copy_from_slice(&rng.bits().to_le_bytes()),
                _ => datagram.fill(0xff),
            }
            stranger.send_to(&datagram, agent.at).unwrap();
            hostile += 1;
        }
    }
    for datagram in &sent[1..] {
        usual.send_to(datagram, agent.at).unwrap();
    }
    // Everything was sent, and is read before the signal: another datagram is answered by none, so
    // the kernel's queue of the socket says when.
    wait_until_read(agent.at.port());
    signal(&agent.child, "INT");
    let (got, said) = agent.ends();
    assert_eq!(got["datagrams"], hostile + sent.len() as u64, "{got}");
    assert!(got["senders"].as_u64().unwrap() <= 4, "{got}");
    assert!(got["refused"].as_u64().unwrap() > 0, "{got}");
    assert!(got["damaged"].as_u64().unwrap() > 0, "{got}");
    assert!(said.contains("further unreadable datagrams"), "{said}");
    let vectors: u64 = sent.iter().map(|datagram| vectors_in(datagram)).sum();
    assert!(got["vectors"].as_u64().unwrap() >= vectors, "{got}");
}

#[test]
fn others_than_those_named_are_not_heard() {
    let trace = labelled("cic2017-sqli");
    let (sent, _) = datagrams(&["-r", trace.to_str().unwrap()]);
    let agent = Agent::start(&["--allow", "192.0.2.0/24"]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(&sent[0], agent.at).unwrap();
    wait_until_read(agent.at.port());
    signal(&agent.child, "TERM");
    let (got, _) = agent.ends();
    assert_eq!((&got["foreign"], &got["datagrams"]), (&1.into(), &0.into()));
}

#[test]
fn on_an_interface_packets_wait_no_longer_than_said() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = receiver.local_addr().unwrap().to_string();
    let port = target.local_addr().unwrap().port();
    let mut run = gpv(&[
        "run",
        "-i",
        "lo",
        "--send-to",
        &to,
        "--flush-after",
        "1s",
        "--json",
    ]);
    run.arg(format!("udp dst port {port}"));
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = run.spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("grouping packets of lo") {
        line.clear();
        assert!(errors.read_line(&mut line).unwrap() > 0, "{line}");
    }
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..3 {
        sender
            .send_to(&[7; 100], target.local_addr().unwrap())
            .unwrap();
    }
    // The flow is silent from now on, and its buffer is not full.
    receiver
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut bytes = vec![0; 65_536];
    let mut packets = 0;
    while packets < 3 {
        let len = receiver.recv(&mut bytes).unwrap();
        let datagram = Datagram::new_checked(&bytes[..len]).unwrap();
        let count = |vector: &Vector<'_, Full>| packets += vector.tuples().count();
        datagram.for_each(&mut Vec::new(), count).unwrap();
    }
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let counts: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(counts["packets"], packets, "{counts}");
    assert_eq!(counts["packets_in_vectors"], packets, "{counts}");
}

#[test]
fn an_agent_that_others_reach_says_whom_it_listens_to() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let said = says(&mut gpv(&["agent", "--listen", address]), 2);
        assert!(said.contains("--allow 192.0.2.0/24"), "{said}");
    }
    for more in [&["--allow", "127.0.0.0/8"][..], &["--insecure"]] {
        let mut agent = gpv(&["agent", "-c", "0", "--listen", "0.0.0.0:0"]);
        let agent = agent.args(more).stdout(Stdio::null()).status().unwrap();
        assert!(agent.success());
    }
}

/// Whose address is forged gets no more bytes than the forger has sent, with the headers of IP and UDP,
/// and no more than three rounds of requests.
#[test]
fn an_address_gets_at_most_as_much_as_it_has_sent() {
    let trace = labelled("ad-attacks");
    let (sent, _) = datagrams(&["-r", trace.to_str().unwrap()]);
    let agent = Agent::start(&["--flush-idle", "1s"]);
    let victims: Vec<UdpSocket> = (0..2)
        .map(|_| UdpSocket::bind("127.0.0.1:0").unwrap())
        .collect();
    let (last, vectors) = sent.split_last().unwrap();
    let forged = [
        &vectors[..vectors.len().min(40)],
        std::slice::from_ref(last),
    ];
    let mut came = [0, 0];
    for (at, victim) in victims.iter().enumerate() {
        for datagram in forged[at] {
            victim.send_to(datagram, agent.at).unwrap();
            came[at] += 28 + datagram.len();
        }
        victim.set_nonblocking(true).unwrap();
    }
    // One round a second, and one more than there may be.
    let until = Instant::now() + Duration::from_secs(6);
    let (mut got, mut packets) = ([0, 0], [0, 0]);
    let mut bytes = vec![0; 65_536];
    while Instant::now() < until {
        for (at, victim) in victims.iter().enumerate() {
            if let Ok(len) = victim.recv(&mut bytes) {
                got[at] += 28 + len;
                packets[at] += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&agent.child, "INT");
    let (counts, said) = agent.ends();
    for at in 0..2 {
        assert!(packets[at] > 0, "{at}: asked never: {counts} {said}");
        assert!(got[at] <= came[at], "{at}: {got:?} of {came:?}: {counts}");
    }
    assert_eq!(packets[1], 1, "one request is what a datagram pays for");
    assert_eq!(counts["requests"], packets[0] + packets[1]);
    assert!(
        counts["requests_withheld"].as_u64().unwrap() >= 2,
        "{counts}"
    );
}

/// Names of the parts of a file of records.
fn parts(dir: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut parts: Vec<PathBuf> = names
        .filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("r.part") && name.ends_with(".parquet")
        })
        .collect();
    parts.sort();
    parts
}

/// Sends the datagrams, waits until the agent has more parts than before, and goes on with the rest.
fn send_in_two(agent: &Agent, sent: &[Vec<u8>], dir: &Path) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let before = parts(dir).len();
    let (first, second) = sent.split_at(sent.len() / 2);
    for datagram in first {
        socket.send_to(datagram, agent.at).unwrap();
    }
    let end = Instant::now() + Duration::from_secs(60);
    while parts(dir).len() == before {
        assert!(Instant::now() < end, "no part is complete");
        std::thread::sleep(Duration::from_millis(10));
    }
    for datagram in second {
        socket.send_to(datagram, agent.at).unwrap();
    }
}

/// What was there stays until all of what replaces it is there; what came until a kill is in parts.
#[test]
fn what_an_agent_has_written_survives_its_being_killed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.parquet");
    std::fs::write(&file, "what was there").unwrap();
    let trace = labelled("ad-attacks");
    let (sent, counts) = datagrams(&["-r", trace.to_str().unwrap(), "tcp or udp"]);
    let expected = expected(&trace);
    let words = [
        "--save-every",
        "1s",
        "--interval",
        "1s",
        "-w",
        file.to_str().unwrap(),
    ];
    let mut killed = Agent::start(&words);
    send_in_two(&killed, &sent, dir.path());
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"what was there");
    let left = parts(dir.path());
    let mut packets = 0;
    for part in &left {
        for (flow, got) in unnested(part).0 {
            packets += got.len();
            let mut all = expected[&flow].iter();
            assert!(got.iter().all(|packet| all.any(|sent| sent == packet)));
        }
    }
    assert!(packets > 0, "{left:?}");
    // The next one leaves those parts alone, and its own become one file.
    let count = sent.len().to_string();
    let next = Agent::start(&[&words[..], &["-c", &count]].concat());
    send_in_two(&next, &sent, dir.path());
    let (got, said) = next.ends();
    assert!(said.is_empty() || !said.contains("error"), "{said}");
    assert_eq!(got["vectors"], counts["vectors"], "{got}");
    assert_eq!(parts(dir.path()), left);
    assert_eq!(unnested(&file).0, expected);
}
