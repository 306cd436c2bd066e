//! A server, and a client that speaks HTTP/1.0: an answer ends with its connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::program::strata;

/// How long to wait for a state, on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running server; it ends with this.
pub(crate) struct Serving {
    child: Child,
    pub(crate) address: String,
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        let parsed = serde_json::from_slice(&self.body);
        parsed.unwrap_or_else(|error| {
            panic!(
                "{error}: {} {}",
                self.status,
                String::from_utf8_lossy(&self.body)
            )
        })
    }

    /// The lines of a stream.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let text = String::from_utf8(self.body.clone()).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

impl Serving {
    pub(crate) fn start(logs: &[&Path], arguments: &[&str]) -> Self {
        let mut command = strata();
        command
            .arg("serve")
            .args(logs)
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments);
        Self::of(&mut command)
    }

    /// A program that serves the page, by itself or by a process of its own.
    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("it says where the page is").unwrap();
            if let Some((_, place)) = line.split_once("the page is at ") {
                let place = place.trim_end_matches('/').split_once("://").unwrap().1;
                break place.to_owned();
            }
        };
        // What it says later must be read, so that it does not block.
        thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { child, address }
    }

    pub(crate) fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits until the program has ended and has no listener any more; returns whether it
    /// succeeded.
    pub(crate) fn ended(&mut self) -> bool {
        let status = self.child.wait().unwrap();
        let start = Instant::now();
        while TcpStream::connect(&self.address).is_ok() {
            assert!(start.elapsed() < PATIENCE, "the page is still served");
            thread::sleep(Duration::from_millis(20));
        }
        status.success()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request with these lines of its head.
    pub(crate) fn send(&self, method: &str, path: &str, head: &[&str], body: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut request = format!("{method} {path} HTTP/1.0\r\n");
        if !head.iter().any(|line| line.starts_with("Host:")) {
            request += &format!("Host: {}\r\n", self.address);
        }
        for line in head {
            request += &format!("{line}\r\n");
        }
        if !body.is_empty() {
            request += &format!("Content-Length: {}\r\n", body.len());
        }
        request += "\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer {
            status,
            head: head.to_ascii_lowercase(),
            body: answer[end + 4..].to_vec(),
        }
    }

    /// The answer to a GET that succeeds.
    pub(crate) fn get(&self, path: &str) -> Answer {
        let answer = self.send("GET", path, &[], b"");
        let said = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, 200, "{path}: {said}");
        answer
    }

    pub(crate) fn json(&self, path: &str) -> Value {
        self.get(path).json()
    }

    /// A change, as the page sends it.
    pub(crate) fn change(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = match body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        let origin = format!("Origin: http://{}", self.address);
        let head = [
            "X-Strata: 1",
            "Content-Type: application/json",
            origin.as_str(),
        ];
        self.send(method, path, &head, &body)
    }

    /// The end of a search: its result, and the number to page through.
    pub(crate) fn search(&self, query: &str) -> (Value, String) {
        let lines = self.get(&format!("/api/v1/logs/0/search?{query}")).lines();
        let last = lines.last().unwrap();
        assert_eq!(last["event"], "done", "{last}");
        (
            last["result"].clone(),
            last["search"].as_str().unwrap().to_owned(),
        )
    }

    /// Waits until an answer is as wanted.
    pub(crate) fn until(&self, path: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let answer = self.json(path);
            if wanted(&answer) {
                return answer;
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {answer:#}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A text as a value of a query.
pub(crate) fn quoted(text: &str) -> String {
    let quote = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(quote).collect()
}
