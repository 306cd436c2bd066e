//! `strata stream serve`: streams over TCP, for friends and strangers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use strata_testkit::{Certificates, LoopDevice, may_use_loop_devices};
use tempfile::TempDir;

use crate::common::program::{failed, ok, strata};
use crate::common::serving::serving;
use crate::common::signal::signal;

/// What should be so is so by then, even while other tests use the CPU.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server of a directory with the stream `events`.
struct Server {
    folder: TempDir,
    child: Child,
    _errors: BufReader<ChildStderr>,
    address: SocketAddr,
}

impl Server {
    fn start(options: &[&str]) -> Self {
        Self::in_folder(TempDir::new().unwrap(), options)
    }

    fn in_folder(folder: TempDir, options: &[&str]) -> Self {
        let dir = folder.path().join("streams");
        ok(strata().args(["stream", "create"]).arg(&dir).arg("events"));
        Self::of(folder, options)
    }

    fn of(folder: TempDir, options: &[&str]) -> Self {
        let mut command = strata();
        command
            .args(["stream", "serve"])
            .arg(folder.path().join("streams"));
        command.args(["--listen", "127.0.0.1:0"]).args(options);
        let (child, errors, address) = serving(command.stdout(Stdio::piped()));
        Self {
            folder,
            address,
            child,
            _errors: errors,
        }
    }

    fn place(&self) -> String {
        format!("{}/events", self.address)
    }

    fn tail(&self, options: &[&str]) -> Command {
        let mut command = strata();
        command
            .args(["stream", "tail", &self.place()])
            .args(options);
        command
    }

    fn append(&self, options: &[&str], input: &[u8]) -> Output {
        let mut command = strata();
        command
            .args(["stream", "append", &self.place()])
            .args(options);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It may end before it has read everything.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    fn local(&self) -> Command {
        let mut command = strata();
        command
            .args(["stream", "tail"])
            .arg(self.folder.path().join("streams"));
        command.args(["events", "--cursor", "0.0"]);
        command
    }

    /// Ends it by Ctrl-C; what it says.
    fn end(mut self) -> String {
        signal(&self.child, "INT");
        let mut said = String::new();
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(self.child.wait().unwrap().success());
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn succeeded(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn lines(range: std::ops::Range<u32>) -> String {
    range.map(|number| format!("line {number}\n")).collect()
}

#[test]
fn a_client_is_told_that_records_after_its_cursor_were_deleted() {
    let folder = TempDir::new().unwrap();
    let small = ["--pages", "4KiB-4KiB-64KiB", "--retain", "128KiB"];
    let mut create = strata();
    create.args(["stream", "create"]).args(small);
    ok(create.arg(folder.path().join("streams")).arg("events"));
    let server = Server::of(folder, &[]);
    let input = "a line of some length\n".repeat(20_000);
    assert!(server.append(&[], input.as_bytes()).status.success());
    for (cursor, is_told) in [("0.0", false), ("0.64", true)] {
        let output = server.tail(&["--cursor", cursor, "-n", "1"]).output();
        let output = output.unwrap();
        assert_eq!(output.stdout, b"a line of some length\n");
        let errors = String::from_utf8(output.stderr).unwrap();
        let told = format!(
            "--cursor {cursor}: the page at that cursor, and perhaps more, was deleted before it was read"
        );
        assert_eq!(errors.contains(&told), is_told, "{errors}");
        assert!(is_told || errors.is_empty(), "{errors}");
    }
    server.end();
}

#[test]
fn what_is_appended_elsewhere_is_read_elsewhere() {
    let server = Server::start(&[]);
    let said = succeeded(&server.append(&[], lines(0..10_000).as_bytes()));
    assert!(said.starts_with("10,000 records appended; "), "{said}");
    let all = ok(server.tail(&["--cursor", "0.0"]).arg("--json"));
    assert_eq!(all, ok(server.local().arg("--json")));
    assert_eq!(all.lines().count(), 10_000);
    assert_eq!(ok(&mut server.tail(&["-n", "2"])), lines(9998..10_000));
    assert_eq!(
        ok(&mut server.tail(&["--cursor", "0.0", "-n", "2"])),
        lines(0..2)
    );
    assert_eq!(
        ok(&mut server.tail(&["--since", "2200-01-01T00:00:00Z"])),
        ""
    );
    let output = server.tail(&["--cursor", "1000.64"]).output().unwrap();
    assert_eq!(succeeded(&output), "");
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = "--cursor 1000.64: this cursor is after the end of the stream, 0.";
    assert!(errors.contains(said), "{errors}");
    // One who follows sees what others append, as it comes.
    let mut following = server.tail(&["-f", "-n", "1"]);
    let mut following = following.stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = BufReader::new(following.stdout.take().unwrap()).lines();
    assert_eq!(seen.next().unwrap().unwrap(), "line 9999");
    let big = "b".repeat(1 << 20);
    succeeded(&server.append(&[], format!("{}{big}\n", lines(0..1000)).as_bytes()));
    for number in 0..1000 {
        assert_eq!(seen.next().unwrap().unwrap(), format!("line {number}"));
    }
    assert_eq!(seen.next().unwrap().unwrap(), big);
    signal(&following, "INT");
    assert!(following.wait().unwrap().success());
    // Longer ones are skipped and counted, as on this machine.
    let output = server.append(&[], format!("{big}b\nlast\n").as_bytes());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(ok(&mut server.tail(&["-n", "1"])), "last\n");
    let said = server.end();
    assert!(said.contains("11,002 records appended"), "{said}");
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let server = Server::start(&[]);
    let of = |verb: &str, place: String| {
        let mut command = strata();
        command.args(["stream", verb, &place]).stdin(Stdio::null());
        command
    };
    for verb in ["append", "tail"] {
        let said = failed(&mut of(verb, format!("{}/nobody", server.address)));
        assert!(said.contains("no stream nobody here"), "{said}");
        // A server that is not there.
        let said = failed(&mut of(verb, "127.0.0.1:1/events".into()));
        assert!(
            said.contains("127.0.0.1:1") && said.contains("refused"),
            "{said}"
        );
        for (place, problem) in [
            (format!("{}/..", server.address.ip()), "names no stream"),
            (format!("{}/a b", server.address), "a stream's name has"),
            ("streams".into(), "names no stream"),
            ("192.0.2.1:4793/events".into(), "--tls-cert"),
        ] {
            let output = of(verb, place).output().unwrap();
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{errors}");
            assert!(errors.contains(problem), "{errors}");
        }
    }
    let output = server.tail(&["--cursor", "@../me"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    // While a client appends, no process of the server's machine does.
    let mut first = strata();
    first.args(["stream", "append", &server.place()]);
    let mut first = first
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    first.stdin.as_mut().unwrap().write_all(b"first\n").unwrap();
    let start = Instant::now();
    while ok(&mut server.tail(&[])).is_empty() {
        assert!(start.elapsed() < PATIENCE);
    }
    let local = |verb: &str| {
        let mut command = strata();
        command.args(["stream", verb]).stdin(Stdio::null());
        command
            .arg(server.folder.path().join("streams"))
            .arg("events");
        command
    };
    let said = failed(&mut local("append"));
    assert!(
        said.contains("another process is appending to events"),
        "{said}"
    );
    // Other clients do.
    assert!(server.append(&[], b"second\n").status.success());
    // The stream is free again when its clients are gone without a word.
    first.kill().unwrap();
    first.wait().unwrap();
    let start = Instant::now();
    while !local("append").output().unwrap().status.success() {
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(ok(&mut server.tail(&[])), "first\nsecond\n");
    let mut spooled = local("append");
    spooled
        .arg("--spool")
        .arg(server.folder.path().join("spool"));
    let output = spooled.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("--spool and --name are for a server"),
        "{errors}"
    );
    // Others reach this address.
    let mut open = strata();
    open.args(["stream", "serve"])
        .arg(server.folder.path().join("streams"));
    let output = open.args(["--listen", "0.0.0.0"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && errors.contains("--tls-cert"),
        "{errors}"
    );
}

#[test]
fn only_those_with_a_certificate_of_the_authority_are_served() {
    let folder = TempDir::new().unwrap();
    let certificates = Certificates::make(folder.path(), "127.0.0.1");
    let options = |name: &str| {
        let [certificate, key, authority] = certificates.of(name);
        let text = |path: PathBuf| path.display().to_string();
        let options = [
            ("--tls-cert", text(certificate)),
            ("--tls-key", text(key)),
            ("--tls-ca", text(authority)),
        ];
        options
            .into_iter()
            .flat_map(|(option, file)| [option.to_owned(), file])
            .collect()
    };
    let as_refs = |options: &[String]| -> Vec<String> { options.to_vec() };
    let of_server: Vec<String> = options("relay");
    let of_server: Vec<&str> = of_server.iter().map(String::as_str).collect();
    let server = Server::in_folder(folder, &of_server);
    let friend: Vec<String> = as_refs(&options("switch"));
    let friend: Vec<&str> = friend.iter().map(String::as_str).collect();
    let stranger: Vec<String> = as_refs(&options("stranger"));
    let stranger: Vec<&str> = stranger.iter().map(String::as_str).collect();
    succeeded(&server.append(&friend, lines(0..1000).as_bytes()));
    assert_eq!(
        ok(&mut server.tail(&[&friend[..], &["-n", "1000"]].concat())),
        lines(0..1000)
    );
    for options in [&stranger[..], &[]] {
        let said = failed(&mut server.tail(options));
        assert!(said.contains("127.0.0.1"), "{said}");
        assert_eq!(server.append(options, b"forged\n").status.code(), Some(1));
    }
    assert_eq!(ok(&mut server.local()), lines(0..1000));
}

/// The first bytes of a client, and a frame.
fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 1).unwrap();
    [&b"STRNET02"[..], &len.to_le_bytes(), &[kind], body].concat()
}

/// A producer that appends to a stream: its id, the length of its name, its name, and that of the stream.
fn append_of(id: u64, producer: &[u8], stream: &[u8]) -> Vec<u8> {
    let len = u8::try_from(producer.len()).unwrap();
    frame(
        1,
        &[&id.to_le_bytes()[..], &[len], producer, stream].concat(),
    )
}

/// Whether a connection is closed by the other end, before long.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn strangers_cost_little_and_stop_no_client() {
    let server = Server::start(&[]);
    let connect = || TcpStream::connect(server.address).unwrap();
    let tail_of = |name: &[u8]| [&[0, 1][..], &[0; 12], &[0xff; 8], name].concat();
    let kept_of = |consumer: &[u8], name: &[u8]| {
        let len = [u8::try_from(consumer.len()).unwrap()];
        frame(28, &[&[1][..], &[0xff; 8], &len, consumer, name].concat())
    };
    // What is no client, or asks for what cannot be, is disconnected.
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"STRNET01\0\0\0\0".to_vec(),
        [&b"STRNET02"[..], &u32::MAX.to_le_bytes()].concat(),
        [&b"STRNET02"[..], &[0; 4]].concat(),
        frame(3, b"a record of nothing"),
        frame(99, b""),
        append_of(7, b"me", b"../../etc"),
        append_of(7, b"..\n", b"events"),
        append_of(0, b"me", b"events"),
        append_of(7, b"", b"events"),
        frame(1, b"\xff\xff"),
        frame(2, &tail_of(b"a/b")),
        frame(2, &tail_of(b"")[..10]),
        kept_of(b"../../me", b"events"),
        kept_of(b"..", b"events"),
        kept_of(b"me", b"nobody"),
        frame(29, &[0; 8]),
    ] {
        let mut stream = connect();
        stream.write_all(&bytes).unwrap();
        assert!(is_closed(&mut stream), "{bytes:?}");
    }
    // An appender that sends a frame too long keeps what it sent before.
    let mut appender = connect();
    appender.write_all(&append_of(7, b"me", b"events")).unwrap();
    appender.write_all(&[6, 0, 0, 0, 3]).unwrap();
    appender.write_all(b"there").unwrap();
    appender.write_all(&[0xff; 64]).unwrap();
    assert!(is_closed(&mut appender));
    assert_eq!(ok(&mut server.tail(&[])), "there\n");
    // Some say nothing: of one address, few are waited for. One more is disconnected at once, and who
    // comes after they were given up is served.
    let silent: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
    assert!(is_closed(&mut connect()));
    let start = Instant::now();
    while !server
        .append(&[], lines(0..50_000).as_bytes())
        .status
        .success()
    {
        assert!(
            start.elapsed() < PATIENCE,
            "the silent ones are still there"
        );
    }
    drop(silent);
    // One asks for everything and reads nothing; others go on.
    let mut lazy = connect();
    lazy.write_all(&frame(2, &tail_of(b"events"))).unwrap();
    succeeded(&server.append(&[], lines(0..10).as_bytes()));
    assert_eq!(ok(&mut server.tail(&["-n", "10"])), lines(0..10));
    drop(lazy);
    // With the record of the client that was disconnected.
    let said = server.end();
    assert!(said.contains("50,011 records appended"), "{said}");
}

#[test]
fn producers_and_readers_are_told_that_the_server_ends() {
    let mut server = Server::start(&[]);
    let mut appender = strata();
    appender
        .args(["stream", "append", &server.place()])
        .stdin(Stdio::piped());
    let appender = appender.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut appender = appender.spawn().unwrap();
    let mut stdin = appender.stdin.take().unwrap();
    stdin.write_all(b"first\n").unwrap();
    let mut following = server.tail(&["-f", "--cursor", "0.0"]);
    let following = following.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut following = following.spawn().unwrap();
    let mut seen = BufReader::new(following.stdout.take().unwrap());
    let mut line = String::new();
    seen.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    signal(&server.child, "INT");
    let output = following.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("the server is shutting down"), "{errors}");
    // A producer waits for the next server while there is input. It was told that all its records are durable.
    drop(stdin);
    let output = appender.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let is_told = [
        "the server is shutting down; trying again",
        "closed; trying again",
    ];
    assert!(is_told.iter().any(|said| errors.contains(said)), "{errors}");
    assert!(server.child.wait().unwrap().success());
    assert_eq!(ok(&mut server.local()), "first\n");
}

#[test]
fn a_server_in_its_sandbox_writes_and_reads_a_device() {
    if !may_use_loop_devices() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("disk");
    std::fs::write(&file, vec![0; 64 << 20]).unwrap();
    let device = LoopDevice::attach(&file, &[]);
    let mut create = strata();
    create
        .args(["stream", "create"])
        .arg(folder.path().join("streams"));
    create.arg("events").arg("--stripe").arg(device.path());
    ok(&mut create);
    let server = Server::of(folder, &[]);
    // Several pages of 4 MiB.
    let line = |number: u32| format!("{number} {}\n", "x".repeat(200));
    let input: String = (0..100_000).map(line).collect();
    let appended = server.append(&[], input.as_bytes());
    assert!(appended.status.success());
    let tailed = server.tail(&["--cursor", "0.0"]).output().unwrap();
    assert!(tailed.status.success() && tailed.stderr.is_empty());
    assert!(tailed.stdout == input.as_bytes());
    let bytes = std::fs::read(&file).unwrap();
    let (pages, _) = bytes[4 << 20..].as_chunks::<{ 4 << 20 }>();
    let begun = pages.iter().filter(|page| page.starts_with(b"STRAPAGE"));
    assert!((2..=4).contains(&begun.count()));
    server.end();
}

/// The records that were printed, and no others, are before a cursor that the server keeps; local readers have the same.
#[test]
fn a_cursor_that_a_server_keeps_is_that_of_local_readers() {
    let server = Server::start(&[]);
    server.append(&[], lines(0..5_000).as_bytes());
    let kept = |options: &[&str]| ok(server.tail(&["--cursor", "@me"]).args(options));
    // In the middle of what the server sends at once.
    assert_eq!(kept(&["-n", "1500"]), lines(0..1_500));
    assert_eq!(kept(&["-n", "7"]), lines(1_500..1_507));
    let here = |verb: &str, options: &[&str]| {
        let mut command = strata();
        command.args(["stream", verb]);
        command
            .arg(server.folder.path().join("streams"))
            .args(options);
        ok(&mut command)
    };
    let local = here("tail", &["events", "--cursor", "@me", "-n", "3"]);
    assert_eq!(local, lines(1_507..1_510));
    assert_eq!(kept(&[]), lines(1_510..5_000));
    assert_eq!(kept(&[]), "");
    let listed: serde_json::Value = serde_json::from_str(&here("list", &["--json"])).unwrap();
    let consumer = &listed["consumers"][0];
    assert_eq!(
        (&consumer["name"], &consumer["lag"]),
        (&"me".into(), &0.into())
    );
    // Followed, and ended by Ctrl-C.
    let mut follow = server.tail(&["--cursor", "@me", "--follow"]);
    let mut child = follow.stdout(Stdio::piped()).spawn().unwrap();
    server.append(&[], b"new\n");
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "new\n");
    signal(&child, "INT");
    assert!(child.wait().unwrap().success());
    assert_eq!(kept(&[]), "");
}

#[test]
fn a_server_keeps_a_bounded_number_of_cursors() {
    let server = Server::start(&[]);
    server.append(&[], b"first\n");
    let cursors = server.folder.path().join("streams/cursors/events.stream");
    ok(&mut server.tail(&["--cursor", "@0"]));
    for other in 1..1_024 {
        std::fs::copy(cursors.join("0"), cursors.join(other.to_string())).unwrap();
    }
    let said = failed(&mut server.tail(&["--cursor", "@one-more"]));
    assert!(said.contains("1024 saved cursors already"), "{said}");
    ok(&mut server.tail(&["--cursor", "@1023"]));
}
