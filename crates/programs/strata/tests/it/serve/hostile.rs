//! Strangers: requests that are wrong, huge, endless or many. The server lives, and stays small; a
//! recording that it shows loses nothing.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use strata_testkit::may_use_kernel;

use super::beside::Beside;
use super::http::{Serving, quoted};
use super::logs::capture;
use crate::common::program::{ok, record};

/// Memory that the server may use after all of it.
const MEMORY_KB_MAX: u64 = 400 << 10;

fn memory_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A generator of numbers (Knuth's).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len)
            .map(|_| u8::try_from(self.below(256)).unwrap())
            .collect()
    }
}

/// Sends bytes, whatever they are, and reads some of the answer.
fn thrown(serving: &Serving, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    // It may have been refused before all of it was sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = vec![0; 4096];
    let len = stream.read(&mut answer).unwrap_or(0);
    answer.truncate(len);
    answer
}

fn wild(numbers: &mut Numbers, host: &str) -> Vec<u8> {
    let paths = [
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/api/v1/logs/../../etc",
        "/api/v1/logs/-1/series",
        "/api/v1/logs/99999999999999999999/search",
        "/api/v1/logs/0/flows/6_1.1.1.1_1_2.2.2.2_2/packets?cursor=x.y",
        "/api/v1/logs/0/packets/x@1.2.3",
        "/api/v1/logs/0/packets/6_10.0.0.1_1_10.0.0.2_2@1.18446744073709551615.9",
        "/api/v1/searches/1/flows?offset=18446744073709551615&limit=18446744073709551615",
        "/api/v1/searches/9/flows?sort=nonsense",
        "/api/v1/logs/0/series?points=99999999999",
        "/api/v1/logs/0/series?from=99999999999999999999999",
        "/api/v1/logs/0/series?from=2&to=1",
        "/api/v1/filter/complete?filter=%F0%9F%98%80&at=18446744073709551615",
        "/api/v1/filter/check?filter=%00%ff",
        "/api/v1/logs/0/storage?max_age_days=nan",
        "/api/v1/logs/0/storage?max_age_days=1e300",
        "/api/v1/logs/0/reasons?limit=-1",
        "/api/v1/recorders/0/history",
        "/api/v1/recorders/0/events",
        "/api/v1/recorders",
        "/api/v1/logs/1/search?filter=tcp",
        "/api/v1/logs/1/models",
        "/api/v1/recorders/%00/events",
        "/index.html%00.js",
        "//evil.example/",
        "/api/v1/logs/0/export?format=parquet",
        "*",
    ];
    match numbers.below(8) {
        0 => {
            let len = numbers.below(2000);
            numbers.bytes(len)
        }
        1 => {
            let open = "(".repeat(numbers.below(3000));
            let path = format!("/api/v1/filter/check?filter={open}");
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes()
        }
        2 => {
            let filter = quoted(&"host 10.0.0.1 or ".repeat(numbers.below(300)));
            format!("GET /api/v1/logs/0/series?filter={filter} HTTP/1.1\r\nHost: {host}\r\n\r\n")
                .into_bytes()
        }
        3 => {
            let header = "x".repeat(numbers.below(40_000));
            format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-Long: {header}\r\n\r\n").into_bytes()
        }
        4 => {
            let many = "X-Many: 1\r\n".repeat(numbers.below(2000));
            format!("GET / HTTP/1.1\r\nHost: {host}\r\n{many}\r\n").into_bytes()
        }
        5 => {
            let len = numbers.below(3000);
            let mut request = format!(
                "POST /api/v1/policies/check HTTP/1.1\r\nHost: {host}\r\nX-Strata: 1\r\nContent-Length: {len}\r\n\r\n"
            )
            .into_bytes();
            request.extend(numbers.bytes(len));
            request
        }
        6 => {
            let head = "POST /api/v1/policies/check HTTP/1.1";
            let length = u64::MAX;
            format!("{head}\r\nHost: {host}\r\nX-Strata: 1\r\nContent-Length: {length}\r\n\r\nx")
                .into_bytes()
        }
        _ => {
            let path = paths[numbers.below(paths.len())];
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").into_bytes()
        }
    }
}

#[test]
fn ten_thousand_hostile_requests_leave_it_well_and_small_and_a_recording_whole() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(capture(), &log));
    let beside = may_use_kernel("a recording of an interface beside the attack");
    let beside = beside.then(|| Beside::start(dir.path()));
    let serving = match &beside {
        Some(beside) => {
            let socket = beside.socket.to_str().unwrap();
            Serving::start(&[&log, &beside.log], &["--socket", socket])
        }
        None => Serving::start(&[&log], &[]),
    };
    let before = serving.json("/api/v1/logs")[0].clone();
    let (_, search) = serving.search("");
    // These hold their connections, and send or read next to nothing.
    let mut idle = Vec::new();
    for n in 0..300 {
        let mut stream = TcpStream::connect(&serving.address).unwrap();
        let request = match n % 3 {
            0 => format!(
                "GET /api/v1/live HTTP/1.1\r\nHost: {}\r\n\r\n",
                serving.address
            ),
            1 => String::from("GET / HTTP/1.1\r\nX-Slow: "),
            _ => format!(
                "GET /api/v1/logs/0/export?format=pcapng HTTP/1.1\r\nHost: {}\r\n\r\n",
                serving.address
            ),
        };
        let _ = stream.write_all(request.as_bytes());
        if n % 7 == 0 {
            idle.push(stream);
        }
    }
    let mut numbers = Numbers(22);
    for _ in 0..10_000 {
        let request = wild(&mut numbers, &serving.address);
        let answer = thrown(&serving, &request);
        let text = String::from_utf8_lossy(&answer);
        assert!(
            !text.contains("root:") && !text.contains("panicked"),
            "{text}"
        );
        assert!(
            !text.starts_with("HTTP/1.1 500"),
            "{}: {text}",
            String::from_utf8_lossy(&request)
        );
    }
    drop(idle);
    assert_eq!(serving.json("/api/v1/logs")[0], before);
    serving.json(&format!("/api/v1/searches/{search}/flows"));
    let memory = memory_kb(serving.pid());
    assert!(memory < MEMORY_KB_MAX, "{memory} kB");
    if let Some(beside) = beside {
        beside.lost_nothing();
    }
}
