//! Reports by UDP into a telemetry collector, or into nothing:
//! `cargo run --release -p strata-record --example telemetry_receive DIRECTORY KIND MODE [THOUSANDS]`,
//! where KIND is `packed`, `published`, `increment` or `append`, and MODE is `collector`
//! (`strata telemetry run` without its sandbox) or `discard` (a loop of recvmmsg), by loopback;
//! or, as root, `veth-collector`, `veth-xdp` (with `--interface`) or `veth-discard`, between two network
//! namespaces.
//!
//! Prints JSON: reports sent and taken, and reports taken per second, until the socket was empty.
//! Instructions per report are those of `valgrind --tool=callgrind
//! --toggle-collect='*Service>::receive'` for the collector, and of `'*telemetry_receive::discard'`
//! for the loop, on a program built with `CARGO_PROFILE_RELEASE_STRIP=none`.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "prints a line")]
#![allow(clippy::cast_precision_loss, reason = "rates")]

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_dta::protocol::{Flags, Report, packed, published};
use strata_role::{Handle, Notice, start};
use strata_sys::pause;
use strata_sys::socket::{self, Destination, Message, Receiver};
use strata_telemetry_run::{TelemetryApiSpec, TelemetryLayout, TelemetrySpec};
use strata_testkit::Namespace;
use strata_wire::mix64;

/// Reports of a packed datagram.
const PACKED: usize = 100;
/// Messages of a system call, on both sides.
const BATCH: usize = 32;
/// Lists of reports of Append.
const LISTS: u32 = 64;

/// Datagrams with `reports` reports in all, and the number that each has.
fn datagrams(kind: &str, reports: u32) -> (Vec<Vec<u8>>, u64) {
    let each = if kind == "published" { 1 } else { PACKED };
    let keys: Vec<[u8; 4]> = (0..reports)
        .map(|n| mix64(u64::from(n)).to_be_bytes())
        .map(|[a, b, c, d, ..]| [a, b, c, d])
        .collect();
    let report = |key: &'static [u8; 4]| match kind {
        "append" => Report::Append {
            list: u32::from_be_bytes(*key) % LISTS,
            data: &[1; 18],
        },
        "increment" => Report::KeyIncrement {
            redundancy: 2,
            key,
            counter: 1,
        },
        _ => Report::KeyWrite {
            redundancy: 1,
            key,
            data: &[1, 2, 3, 4],
        },
    };
    let keys: &'static [[u8; 4]] = keys.leak();
    let mut sequence = 0;
    let datagram = |keys: &'static [[u8; 4]]| {
        let reports: Vec<_> = keys.iter().map(report).collect();
        let mut bytes = Vec::new();
        if kind == "published" {
            let repr = published::Repr {
                sequence: None,
                flags: Flags::default(),
                report: reports[0],
            };
            repr.emit(&mut bytes);
            return bytes;
        }
        let mut repr = packed::Repr::of(&reports[0], Flags::default());
        repr.sequence = sequence;
        sequence += u32::try_from(reports.len()).unwrap();
        repr.emit(&reports, &mut bytes);
        bytes
    };
    (keys.chunks(each).map(datagram).collect(), each as u64)
}

/// Two namespaces with a link between them.
struct Link {
    sender: Namespace,
    receiver: Namespace,
}

const FAR: &str = "st-tr-far";

impl Link {
    fn new() -> Self {
        let (sender, receiver) = (Namespace::new("st-tr-s"), Namespace::new("st-tr-r"));
        let peer = format!("type veth peer name {FAR} netns {}", receiver.name());
        sender.ip(&format!("link add st-tr-near {peer}"));
        sender.ip("addr add 192.0.2.1/24 dev st-tr-near");
        receiver.ip(&format!("addr add 192.0.2.2/24 dev {FAR}"));
        sender.ip("link set st-tr-near up");
        receiver.ip(&format!("link set {FAR} up"));
        Self { sender, receiver }
    }
}

/// Sends all.
fn send(datagrams: &[Vec<u8>], to: SocketAddr) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(to).unwrap();
    let messages: Vec<Message<'_>> = datagrams
        .iter()
        .map(|bytes| Message {
            parts: [bytes, &[]],
            segment: None,
        })
        .collect();
    socket::send_all::<BATCH>(socket.as_fd(), &Destination::Own, &messages).unwrap();
}

/// Sends all by loopback; returns how long it took until the listener had taken them.
fn send_here(datagrams: &[Vec<u8>], to: SocketAddr) -> Duration {
    let start = Instant::now();
    send(datagrams, to);
    while waiting(to) > 0 {
        pause::backoff(Duration::from_micros(50));
    }
    start.elapsed()
}

/// Bytes of the buffer of a socket that are used, as `/proc/net/udp` has them.
fn waiting(address: SocketAddr) -> u64 {
    let table = std::fs::read_to_string("/proc/net/udp").unwrap();
    let ours = format!(":{:04X}", address.port());
    let mut lines = table.lines().map(|line| line.split_whitespace());
    let mut line = lines.find(|line| line.clone().nth(1).is_some_and(|at| at.ends_with(&ours)));
    let queues = line.as_mut().and_then(|line| line.nth(4)).unwrap();
    u64::from_str_radix(queues.split_once(':').unwrap().1, 16).unwrap()
}

/// Takes datagrams until told to end; how many.
#[inline(never)]
fn discard(socket: &UdpSocket, stop: &AtomicBool) -> u64 {
    let mut receiver = Receiver::<BATCH>::default();
    let mut datagrams = 0;
    loop {
        let ending = stop.load(Ordering::Relaxed);
        let received = receiver.receive(socket.as_fd(), |run| {
            let len = run.segment.unwrap_or(run.bytes.len()).max(1);
            datagrams += run.bytes.len().div_ceil(len) as u64;
        });
        if received.unwrap() == 0 {
            if ending {
                return datagrams;
            }
            socket::wait(socket.as_fd(), false, Duration::from_millis(1)).unwrap();
        }
    }
}

/// A receiver of reports.
enum Taker {
    Discard(SocketAddr, Arc<AtomicBool>, JoinHandle<u64>),
    Collector(SocketAddr, Handle<TelemetrySpec>),
}

impl Taker {
    fn start(mode: &str, directory: &str, link: Option<&Link>) -> Self {
        let listen = match link {
            Some(_) => "192.0.2.2:0",
            None => "127.0.0.1:0",
        };
        let listen = listen.parse().unwrap();
        let begin = || match mode.trim_start_matches("veth-") {
            "discard" => Self::discard(listen),
            "collector" => Self::collector(directory, listen, None),
            "xdp" => Self::collector(directory, listen, Some(FAR.to_owned())),
            other => panic!("{other} is no mode"),
        };
        match link {
            Some(link) => link.receiver.enter(begin),
            None => begin(),
        }
    }

    fn discard(listen: SocketAddr) -> Self {
        let socket = socket::udp(listen, 64 << 20).unwrap();
        let address = socket.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let taking = thread::spawn(move || discard(&socket, &stopped));
        Self::Discard(address, stop, taking)
    }

    fn collector(directory: &str, listen: SocketAddr, interface: Option<String>) -> Self {
        let listening = Arc::new(OnceLock::new());
        let told = Arc::clone(&listening);
        let tell = move |notice: &Notice| {
            if notice.kind == "serving" {
                let address = notice.field("address").unwrap();
                told.set(address.parse().unwrap()).unwrap();
            }
        };
        let spec = TelemetrySpec {
            path_rows: None,
            store: PathBuf::from(directory),
            collectors: None,
            layout: TelemetryLayout {
                memory_bytes: Some(256 << 20),
                lists: Some(LISTS),
                ..TelemetryLayout::default()
            },
            listen,
            interface,
            int: None,
            table: None,
            allowed: Vec::new(),
            rate: None,
            fade: None,
            api: TelemetryApiSpec::default(),
            to_stream: None,
            owner: strata_sandbox::Owner::default(),
            sandboxed: false,
        };
        let handle = start(spec, Arc::default(), Arc::new(tell)).unwrap();
        Self::Collector(*listening.get().unwrap(), handle)
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::Discard(address, ..) | Self::Collector(address, _) => *address,
        }
    }

    /// Ends it; returns how many reports it took, with `each` a datagram.
    fn end(self, each: u64) -> u64 {
        match self {
            Self::Discard(_, stop, taking) => {
                stop.store(true, Ordering::Relaxed);
                taking.join().unwrap() * each
            }
            Self::Collector(_, handle) => {
                handle.stop();
                handle.wait().unwrap().status.totals.accepted.unwrap()
            }
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, kind, mode, rest @ ..] = &arguments[..] else {
        panic!("DIRECTORY KIND MODE [THOUSANDS]");
    };
    let thousands: u32 = rest.first().map_or(1000, |text| text.parse().unwrap());
    let (datagrams, each) = datagrams(kind, thousands * 1000);
    let sent = datagrams.len() as u64 * each;
    let link = mode.starts_with("veth-").then(Link::new);
    let taker = Taker::start(mode, directory, link.as_ref());
    let to = taker.address();
    let start = Instant::now();
    let took = match &link {
        None => Some(send_here(&datagrams, to)),
        Some(link) => {
            link.sender.enter(|| send(&datagrams, to));
            None
        }
    };
    let taken = taker.end(each);
    // What is on the link or in a ring is seen by no other process; at its end, the taker has taken
    // it.
    let took = took.unwrap_or_else(|| start.elapsed());
    println!(
        "{{\"kind\": \"{kind}\", \"mode\": \"{mode}\", \"sent\": {sent}, \"taken\": {taken}, \
         \"taken_per_second\": {:.0}}}",
        taken as f64 / took.as_secs_f64(),
    );
}
