//! Eight producers with spools, while they and the server are killed: each line that was in a spool is in the stream once,
//! in its producer's order. `STRATA_KILLS=1000` kills as often (`make soak`), `SEED=17` draws otherwise.

use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};

use serde_json::Value;
use strata_wire::mix64;
use tempfile::TempDir;

use super::producers::{Server, expected, feed, producer, until};
use crate::common::program::{ok, strata};

const PRODUCERS: usize = 8;
/// Without `STRATA_KILLS`.
const KILLS: u64 = 16;

struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0) % bound
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

struct Producer {
    name: String,
    spool: PathBuf,
    child: Child,
    stdin: Option<ChildStdin>,
    /// The next line to give to it.
    next: u32,
}

impl Producer {
    fn spawn(place: &str, name: &str, spool: &Path) -> (Child, Option<ChildStdin>) {
        let mut command = producer(place, name);
        command.arg("--spool").arg(spool);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        (child, stdin)
    }

    fn start(place: &str, name: String, spool: PathBuf) -> Self {
        let (child, stdin) = Self::spawn(place, &name, &spool);
        Self {
            name,
            spool,
            child,
            stdin,
            next: 0,
        }
    }

    fn feed(&mut self, lines: u32) {
        let until = self.next + lines;
        feed(self.stdin.as_mut().unwrap(), &self.name, self.next..until);
        self.next = until;
    }

    /// The number of lines that are in the spool.
    fn spooled(&self) -> u32 {
        let mut tail = strata();
        tail.args(["stream", "tail"]).arg(&self.spool);
        // Before the first line, there is no spool.
        let output = tail.args(["events", "-n", "1"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let last = text.trim_end().rsplit_once(' ');
        last.map_or(0, |(_, number)| number.parse::<u32>().unwrap() + 1)
    }

    /// Kills it, and starts another one, which is given the lines again that were in no spool.
    fn kill(&mut self, place: &str) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let spooled = self.spooled();
        assert!(spooled <= self.next, "{}", self.name);
        self.next = spooled;
        (self.child, self.stdin) = Self::spawn(place, &self.name, &self.spool);
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number of records that the stream has had; `None` while the server writes it.
fn records(dir: &Path) -> Option<u64> {
    let mut list = strata();
    let listed = ok(list.args(["stream", "list"]).arg(dir).arg("--json"));
    let streams = listed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let mut events = streams.filter(|stream: &Value| stream["name"] == "events");
    events.next()?["records"].as_u64()
}

#[test]
fn lines_of_eight_producers_are_there_once_although_they_and_the_server_are_killed() {
    let (kills, seed) = (number("STRATA_KILLS", KILLS), number("SEED", 1));
    let mut draw = Draw(seed);
    let folder = TempDir::new().unwrap();
    let dir = folder.path().join("streams");
    ok(strata().args(["stream", "create"]).arg(&dir).arg("events"));
    let mut server = Server::start(&dir, "127.0.0.1:0");
    let place = server.place();
    let start = |of: usize| {
        let spool = folder.path().join(format!("spool{of}"));
        Producer::start(&place, format!("host{of}"), spool)
    };
    let mut producers: Vec<Producer> = (0..PRODUCERS).map(start).collect();
    let (mut of_server, mut of_producers) = (0_u64, 0_u64);
    for _ in 0..kills {
        for producer in &mut producers {
            producer.feed(u32::try_from(draw.below(200)).unwrap());
        }
        let of = usize::try_from(draw.below(PRODUCERS as u64)).unwrap();
        // How far it may come before that.
        match draw.below(3) {
            0 => {}
            1 => {
                let producer = &producers[of];
                until("in the spool", || producer.spooled() == producer.next);
            }
            _ => {
                let mut before = records(&dir);
                while before.is_none() {
                    before = records(&dir);
                }
                producers[of].feed(1);
                until("at the server", || records(&dir) > before);
            }
        }
        match draw.below(2) {
            0 => {
                server.restart();
                of_server += 1;
            }
            _ => {
                producers[of].kill(&place);
                of_producers += 1;
            }
        }
    }
    eprintln!(
        "SEED={seed}: the server was killed {of_server} times, producers {of_producers} times"
    );
    for producer in &mut producers {
        until("in the spool", || producer.spooled() == producer.next);
        drop(producer.stdin.take());
        assert!(producer.child.wait().unwrap().success());
        // What the first could not send before its end.
        (producer.child, producer.stdin) = Producer::spawn(&place, &producer.name, &producer.spool);
        drop(producer.stdin.take());
        assert!(producer.child.wait().unwrap().success());
    }
    let all: u64 = producers
        .iter()
        .map(|producer| u64::from(producer.next))
        .sum();
    until("all sent", || records(&dir) >= Some(all));
    let records = server.records();
    for producer in &producers {
        let name = &producer.name;
        let there = records.get(name).map_or(&[][..], Vec::as_slice);
        assert!(
            there == expected(name, producer.next),
            "SEED={seed}: {name}"
        );
    }
}
