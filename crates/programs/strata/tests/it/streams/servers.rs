//! `strata stream` with stripes at servers (`strata stream serve --offer-stripe`), of which one is killed, stopped, full or
//! asked by strangers.

use std::fs;
use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use strata_stream::message::{Answer, Frames, MAGIC, Message, Request};
use strata_testkit::Certificates;
use tempfile::TempDir;

use crate::common::program::{failed, ok, refused, strata};
use crate::common::serving::serving;
use crate::common::signal::signal;

/// What should be so is so by then, even while other tests use the CPU.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options for TLS, of one of the certificates.
fn tls_of(certificates: &Certificates, name: &str) -> Vec<String> {
    let [certificate, key, authority] = certificates.of(name);
    let text = |path: PathBuf| path.display().to_string();
    let options = [
        ("--tls-cert", text(certificate)),
        ("--tls-key", text(key)),
        ("--tls-ca", text(authority)),
    ];
    let options = options.into_iter();
    options
        .flat_map(|(option, file)| [option.to_owned(), file])
        .collect()
}

/// A server with the stripe `disk`.
struct Server {
    child: Child,
    _errors: BufReader<ChildStderr>,
    address: SocketAddr,
    path: PathBuf,
    options: Vec<String>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Server {
    fn start(path: &Path, options: &[String]) -> Self {
        Self::at("127.0.0.1:0", path, options)
    }

    fn at(listen: &str, path: &Path, options: &[String]) -> Self {
        let mut command = strata();
        command.args(["stream", "serve", "--listen", listen]);
        command.arg("--offer-stripe");
        command.arg(format!("disk={}", path.display()));
        Self::of(command.args(options), path, options)
    }

    fn of(command: &mut Command, path: &Path, options: &[String]) -> Self {
        let (child, errors, address) = serving(command.stdout(Stdio::null()));
        Self {
            child,
            _errors: errors,
            address,
            path: path.to_owned(),
            options: options.to_vec(),
        }
    }

    fn stripe(&self) -> String {
        format!("{}/disk", self.address)
    }

    /// kill -9.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn restart(&mut self) {
        self.kill();
        *self = Self::at(&self.address.to_string(), &self.path, &self.options);
    }
}

fn create(dir: &Path, name: &str, stripes: &[String], options: &[String]) -> Command {
    let mut command = strata();
    command.args(["stream", "create"]).arg(dir).arg(name);
    for stripe in stripes {
        command.args(["--stripe", stripe]);
    }
    command.args(options);
    command
}

/// With pages of 64 KiB, so that there are many.
fn created(dir: &Path, stripes: &[String], options: &[String]) {
    let mut command = create(dir, "events", stripes, options);
    ok(command.args(["--pages", "4KiB-4KiB-64KiB"]));
}

/// Of about 100 bytes.
fn line(number: u32) -> String {
    format!("{number} {}\n", "x".repeat(90))
}

fn lines(range: Range<u32>) -> String {
    range.map(line).collect()
}

fn appender(place: &[&str]) -> Child {
    let mut command = strata();
    command.args(["stream", "append"]).args(place);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().unwrap()
}

fn fed(mut child: Child, range: Range<u32>) -> Output {
    let mut stdin = child.stdin.take().unwrap();
    let input = lines(range);
    let writer = thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    output
}

fn append(dir: &Path, range: Range<u32>) -> Output {
    fed(appender(&[dir.to_str().unwrap(), "events"]), range)
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Numbers of the lines that are there, in order and whole, and the report of others.
fn numbers(dir: &Path) -> (Vec<u32>, String) {
    let mut command = strata();
    command.args(["stream", "tail"]).arg(dir);
    let output = command
        .args(["events", "--cursor", "0.0"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = |line: &str| line.split(' ').next().unwrap().parse().unwrap();
    let numbers: Vec<u32> = text.lines().map(number).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "order, or twice");
    let expected: String = numbers.iter().copied().map(line).collect();
    assert!(text == expected, "what was appended");
    (numbers, errors(&output))
}

/// How many records `check` says are missing.
fn missing(dir: &Path) -> u64 {
    let mut command = strata();
    command.args(["stream", "check", "--json"]).arg(dir);
    let output = command.output().unwrap();
    let check: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(check["missing_min"], check["missing_max"]);
    check["missing_min"].as_u64().unwrap()
}

fn wait_for(dir: &Path, last: u32) {
    let start = Instant::now();
    while numbers(dir).0.last() != Some(&last) {
        assert!(start.elapsed() < PATIENCE, "{last}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// How many bytes the pages of a stripe take.
fn used(server: &Server) -> u64 {
    fs::metadata(server.path.join("pages")).unwrap().len()
}

#[test]
fn a_server_that_is_killed_costs_what_is_counted_until_it_is_back() {
    let folder = TempDir::new().unwrap();
    let certificates = Certificates::make(folder.path(), "127.0.0.1");
    let (own, theirs) = (
        tls_of(&certificates, "switch"),
        tls_of(&certificates, "relay"),
    );
    let paths = (0..3).map(|number| folder.path().join(format!("disk{number}")));
    let mut servers: Vec<Server> = paths.map(|path| Server::start(&path, &theirs)).collect();
    let stripes: Vec<String> = servers.iter().map(Server::stripe).collect();
    let dir = folder.path().join("streams");
    created(&dir, &stripes, &own);
    let output = append(&dir, 0..20_000);
    assert!(output.status.success(), "{}", errors(&output));
    let (all, said) = numbers(&dir);
    assert_eq!((all.len(), said.as_str()), (20_000, ""));
    // Each has its share: 2 MB over four.
    for server in &servers {
        assert!(used(server) >= 6 << 16, "{}", used(server));
    }

    let mut child = appender(&[dir.to_str().unwrap(), "events"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(lines(20_000..25_000).as_bytes()).unwrap();
    wait_for(&dir, 24_999);
    servers[1].kill();
    stdin.write_all(lines(25_000..30_000).as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = errors(&output);
    assert!(said.contains(&format!("stripe {}: ", stripes[1])), "{said}");
    // While it is gone, what is on it is missing, and no more.
    let (some, said) = numbers(&dir);
    assert!(said.contains(&format!("stripe {}: ", stripes[1])), "{said}");
    assert!((20_000..26_000).contains(&some.len()), "{}", some.len());
    assert_eq!(missing(&dir), 30_000 - some.len() as u64);
    assert_eq!(some.last(), Some(&29_999));
    let listed = strata().args(["stream", "list"]).arg(&dir).output();
    assert!(errors(&listed.unwrap()).contains(&stripes[1]));
    // It is back, with all that had been read; what was on its way to it is lost, and that was
    // reported.
    servers[1].restart();
    let (back, said) = numbers(&dir);
    assert!(!said.contains("stripe "), "{said}");
    assert!(back.starts_with(&(0..25_000).collect::<Vec<u32>>()));
    assert_eq!(missing(&dir), 30_000 - back.len() as u64);
    assert!(!output.status.success() || back.len() == 30_000);
    let output = append(&dir, 30_000..34_000);
    assert!(output.status.success(), "{}", errors(&output));
    let (more, _) = numbers(&dir);
    assert_eq!(more.len(), back.len() + 4000);
}

#[test]
fn a_server_that_stops_answering_is_gone_and_what_it_takes_late_harms_nothing() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&folder.path().join("disk"), &[]);
    let dir = folder.path().join("streams");
    created(&dir, &[server.stripe()], &[]);
    let mut child = appender(&[dir.to_str().unwrap(), "events"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(lines(0..3000).as_bytes()).unwrap();
    wait_for(&dir, 2999);
    signal(&server.child, "STOP");
    stdin.write_all(lines(3000..9000).as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = errors(&output);
    assert!(said.contains("no answer in 15 s"), "{said}");
    signal(&server.child, "CONT");
    // Who appends next takes the stream over from the connection that was given up.
    let output = append(&dir, 9000..12_000);
    assert!(output.status.success(), "{}", errors(&output));
    let (there, said) = numbers(&dir);
    assert!(!said.contains("stripe "), "{said}");
    assert_eq!(missing(&dir), 12_000 - there.len() as u64);
    assert!(there.len() >= 9000, "{}", there.len());
}

#[test]
fn a_full_stripe_and_a_server_in_its_sandbox() {
    let folder = TempDir::new().unwrap();
    let certificates = Certificates::make(folder.path(), "127.0.0.1");
    let (own, theirs) = (
        tls_of(&certificates, "switch"),
        tls_of(&certificates, "relay"),
    );
    let small = [&theirs[..], &["--stripe-max".into(), "512KiB".into()]].concat();
    let mut far = Server::start(&folder.path().join("disk"), &small);
    let dir = folder.path().join("streams");
    created(&dir, &[far.stripe()], &own);
    // A server of the directory asks the other one, from its sandbox.
    let mut near = strata();
    near.args(["stream", "serve", "--listen", "127.0.0.1:0"])
        .arg(&dir);
    let near = Server::of(&mut near, &dir, &[]);
    let place = format!("{}/events", near.address);
    let output = fed(appender(&[&place]), 0..2000);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(used(&far) > 0);
    far.restart();
    let mut tail = strata();
    tail.args(["stream", "tail", &place, "--cursor", "0.0"]);
    assert!(ok(&mut tail) == lines(0..2000));
    drop(near);
    // It is full: nothing is lost, since that is known before anything is put there.
    let output = append(&dir, 2000..20_000);
    let said = errors(&output);
    assert!(
        output.status.success() && said.contains("disk: full: "),
        "{said}"
    );
    assert_eq!((numbers(&dir).0.len(), missing(&dir)), (20_000, 0));
    assert_eq!(used(&far), 512 << 10);
}

#[test]
fn strangers_and_other_directories_get_no_stripe() {
    let folder = TempDir::new().unwrap();
    let certificates = Certificates::make(folder.path(), "127.0.0.1");
    let server = Server::start(&folder.path().join("disk"), &tls_of(&certificates, "relay"));
    let dir = |name: &str| folder.path().join(name);
    let of = |name: &str, certificate: &str| {
        let options = tls_of(&certificates, certificate);
        create(&dir(name), "events", &[server.stripe()], &options)
    };
    let said = failed(&mut of("stranger", "stranger"));
    assert!(said.contains("127.0.0.1"), "{said}");
    let mut plain = create(&dir("plain"), "events", &[server.stripe()], &[]);
    let said = failed(&mut plain);
    assert!(said.contains("--tls-cert"), "{said}");
    let mut unknown = create(
        &dir("unknown"),
        "events",
        &[format!("{}/other", server.address)],
        &tls_of(&certificates, "switch"),
    );
    let said = failed(&mut unknown);
    assert!(said.contains("offers no stripe other"), "{said}");
    ok(&mut of("first", "switch"));
    let said = failed(&mut of("second", "switch"));
    assert!(
        said.contains("it is a stripe of another directory"),
        "{said}"
    );
    // The same directory finds it again.
    let mut again = create(
        &dir("first"),
        "more",
        &[server.stripe()],
        &tls_of(&certificates, "switch"),
    );
    ok(&mut again);
    // Somebody else's address takes certificates; and they are for servers.
    let far = ["192.0.2.1:4793/disk".to_owned()];
    let said = refused(&mut create(&dir("far"), "events", &far, &[]));
    assert!(said.contains("--tls-cert"), "{said}");
    let options = tls_of(&certificates, "switch");
    let said = refused(&mut create(&dir("here"), "events", &[], &options));
    assert!(said.contains("HOST:PORT/NAME"), "{said}");
    // What cannot be offered.
    let serve = |stripe: &str| {
        let mut command = strata();
        command.args([
            "stream",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--offer-stripe",
            stripe,
        ]);
        command
    };
    let at = |name: &str| format!("disk={}", dir(name).display());
    assert!(failed(&mut serve(&at("disk"))).contains("another server is using it"));
    assert!(failed(&mut serve(&at("first"))).contains("a directory of streams itself"));
    assert!(failed(&mut serve(&at(""))).contains("it is not empty"));
    assert!(refused(&mut serve("disk")).contains("NAME=DIR"));
}

/// A client that says what it wants.
struct Rude {
    stream: TcpStream,
    frames: Frames,
}

impl Rude {
    fn new(server: &Server) -> Self {
        let stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let frames = Frames::of_server();
        let mut rude = Self { stream, frames };
        rude.stream.write_all(&MAGIC).unwrap();
        let said = rude.say(&Message::Stripe { name: "disk" });
        assert!(said.starts_with("Answer(There"), "{said}");
        rude
    }

    fn say(&mut self, message: &Message<'_>) -> String {
        let mut out = Vec::new();
        message.emit(&mut out);
        self.stream.write_all(&out).unwrap();
        let mut bytes = [0; 1000];
        loop {
            if let Some(answer) = self.frames.next_message().unwrap() {
                return format!("{answer:?}");
            }
            let read = self.stream.read(&mut bytes).unwrap();
            assert!(read > 0, "the connection is closed");
            self.frames.push(&bytes[..read]);
        }
    }

    fn ask(&mut self, request: Request<'_>) -> String {
        self.say(&Message::Request(request))
    }
}

#[test]
fn a_client_writes_pages_of_its_stream_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&folder.path().join("disk"), &[]);
    let mut first = Rude::new(&server);
    let write = |page: u32, offset: u32| Request::Write {
        page,
        offset,
        bytes: &[7; 100],
    };
    let sizes = [64, 4096, 1 << 16];
    let done = format!("{:?}", Message::Answer(Answer::Done));
    assert!(
        first
            .ask(Request::Take)
            .contains("this stripe does not exist")
    );
    assert_eq!(first.ask(Request::Make { id: 5, sizes }), done);
    assert!(
        first
            .ask(Request::Make { id: 6, sizes })
            .contains("already")
    );
    assert!(
        first
            .ask(Request::Take)
            .contains("does not append to a stream")
    );
    assert!(
        first
            .ask(write(0, 0))
            .contains("does not append to a stream")
    );
    let streams = &[1_u64.to_le_bytes(), 2_u64.to_le_bytes()];
    assert_eq!(first.ask(Request::Join { stream: 1, streams }), done);
    assert!(first.ask(Request::Take).contains("Number(0)"));
    assert_eq!(first.ask(write(0, 65_436)), done);
    assert!(first.ask(write(0, 65_437)).contains("beyond the page"));
    assert!(first.ask(write(1, 0)).contains("belongs to another stream"));
    assert!(
        first
            .ask(write(u32::MAX, 0))
            .contains("belongs to another stream")
    );
    let mut second = Rude::new(&server);
    assert_eq!(second.ask(Request::Join { stream: 2, streams }), done);
    assert!(
        second
            .ask(write(0, 0))
            .contains("belongs to another stream")
    );
    let read = |len: u32| Request::Read {
        page: 0,
        offset: 65_436,
        len,
    };
    assert!(second.ask(read(100)).contains("Bytes([7, 7"));
    assert!(second.ask(read(101)).contains("beyond the page"));
    // Another connection appends to the stream: the first one no longer does.
    let mut third = Rude::new(&server);
    assert_eq!(third.ask(Request::Join { stream: 1, streams }), done);
    for request in [write(0, 0), Request::Take, Request::Release { pages: &[] }] {
        assert!(first.ask(request).contains("another connection"));
    }
    assert_eq!(third.ask(write(0, 0)), done);
    assert_eq!(third.ask(Request::Sync), done);
    let of = fs::read_dir(folder.path().join("disk")).unwrap();
    assert_eq!(of.count(), 5, "its files, and no others");
}
