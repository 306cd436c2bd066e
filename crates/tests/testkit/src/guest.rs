//! A Linux guest under QEMU's software emulation, with Soft-RoCE, in a network namespace of its own:
//! `guest/boot.sh` builds and boots it.
#![allow(clippy::print_stdout, reason = "says why a test did not run")]
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// This machine's address in the namespace.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The guest's.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const INNER: &str = "STRATA_GUEST_INNER";

/// A test that restarts itself in a namespace, where a guest can be reached.
#[derive(Clone, Copy, Debug)]
pub struct GuestTest {
    /// Its name, also that of the namespace and of the folder that is kept from run to run.
    pub name: &'static str,
    /// `env!("CARGO_TARGET_TMPDIR")`.
    pub target_tmp: &'static str,
    /// The function.
    pub test: &'static str,
    /// An example built with the feature `verbs`, for the guest's `/extra`, and its crate.
    pub program: (&'static str, &'static str),
}

fn ip(arguments: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(arguments.split(' ')).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Tears down namespace and guest, whatever happens.
struct Lab {
    guest: Child,
    namespace: String,
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.guest.kill();
        let _ = self.guest.wait();
        ip(&format!("netns del {}", self.namespace));
    }
}

/// Whether this process is the one in the namespace.
#[must_use]
pub fn is_inner() -> bool {
    std::env::var_os(INNER).is_some()
}

impl GuestTest {
    /// Where its files are.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        Path::new(self.target_tmp).join(self.name)
    }

    fn built(&self) -> PathBuf {
        let target = Path::new(self.target_tmp).join("../debug/examples");
        target.join(self.program.1)
    }

    /// Why it cannot run here, if so.
    fn missing(&self) -> Option<String> {
        let has = |tool: &str| {
            let mut look = Command::new("sh");
            look.args(["-c", &format!("command -v {tool}")]);
            let found = look.stdout(Stdio::null()).status();
            found.is_ok_and(|status| status.success())
        };
        let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
        if !root {
            return Some("it needs root, for a network namespace".into());
        }
        for tool in ["ip", "gcc", "apt-get", "dpkg-deb", "flock", "strip", "find"] {
            if !has(tool) {
                return Some(format!("it needs {tool}"));
            }
        }
        let (package, program) = self.program;
        (!self.built().exists()).then(|| {
            format!("it needs `cargo build -p {package} --features verbs --example {program}`")
        })
    }

    /// Runs `inside` in the namespace, with a guest that QEMU was given these further arguments for. Without
    /// root or what it needs, says so and does nothing, but not where `CI` is set.
    ///
    /// # Panics
    ///
    /// If the test fails, or the guest does.
    pub fn run(&self, qemu: &[String], inside: fn()) {
        if is_inner() {
            return inside();
        }
        if let Some(why) = self.missing() {
            assert!(
                std::env::var_os("CI").is_none(),
                "in CI it must run, but {why}"
            );
            println!("not run: {why}");
            return;
        }
        let work = self.dir();
        fs::create_dir_all(work.join("extra")).unwrap();
        fs::copy(self.built(), work.join("extra").join(self.program.1)).unwrap();
        let namespace = format!("strata-{}", self.name);
        ip(&format!("netns del {namespace}"));
        assert!(ip(&format!("netns add {namespace}")));
        let within = |arguments: &str| assert!(ip(&format!("-n {namespace} {arguments}")));
        within("link set lo up");
        within("tuntap add dev tap0 mode tap");
        within("link set tap0 address 02:00:00:00:00:01 up");
        within(&format!("addr add {HOST}/24 dev tap0"));
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/boot.sh");
        let guest = Command::new("sh")
            .arg(script)
            .arg(&work)
            .arg(&namespace)
            .args(qemu)
            .spawn();
        let mut lab = Lab {
            guest: guest.unwrap(),
            namespace: namespace.clone(),
        };
        let inner = Command::new("ip")
            .args(["netns", "exec", &namespace])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", self.test, "--nocapture"])
            .env(INNER, "1")
            .status();
        let console = fs::read_to_string(work.join("console.log")).unwrap_or_default();
        assert!(inner.unwrap().success(), "the guest said:\n{console}");
        assert!(lab.guest.try_wait().unwrap().is_none(), "the guest lived");
    }
}

/// A shell in the guest, or the program it runs.
#[derive(Debug)]
pub struct Shell {
    stream: TcpStream,
    /// What it says.
    pub lines: BufReader<TcpStream>,
}

impl Default for Shell {
    fn default() -> Self {
        Self::open()
    }
}

impl Shell {
    /// Once the guest has booted.
    ///
    /// # Panics
    ///
    /// If it does not in four minutes.
    #[must_use]
    pub fn open() -> Self {
        let end = Instant::now() + Duration::from_secs(240);
        let address = SocketAddr::from((GUEST, 9000));
        let stream = loop {
            match TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > end => panic!("no guest: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        };
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        Self { stream, lines }
    }

    /// Waits so long for each line from now on, instead of 30 s.
    ///
    /// # Panics
    ///
    /// If the system does not take the limit.
    pub fn wait_up_to(&self, limit: Duration) {
        self.stream.set_read_timeout(Some(limit)).unwrap();
    }

    /// Says a line.
    ///
    /// # Panics
    ///
    /// If there is no listener.
    pub fn say(&mut self, text: &str) {
        self.send(format!("{text}\n").as_bytes());
    }

    /// Sends bytes as they are.
    ///
    /// # Panics
    ///
    /// If there is no listener.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The rest of the first line that starts with a word.
    ///
    /// # Panics
    ///
    /// If there is no such line, or one before it begins with FAIL.
    pub fn hear(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            let len = self.lines.read_line(&mut line).unwrap();
            assert!(len > 0, "the guest hung up before '{word}'");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
            assert!(!line.starts_with("FAIL"), "{line}");
        }
    }

    /// Waits until the guest's program has ended.
    ///
    /// # Panics
    ///
    /// If the connection fails.
    pub fn ended(mut self) {
        let mut rest = Vec::new();
        self.lines.read_to_end(&mut rest).unwrap();
    }
}
