//! The time budget, and the process under attack with its bounds.

use std::any::Any;
use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process, setrlimit};
use serde_json::Value;
use strata_testkit::{Namespace, may_use_kernel};
use strata_wire::mix64;

/// Authorized clients are answered within this time, whatever strangers do.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);
/// SIGINT ends a process within this time.
pub(crate) const END_MAX: Duration = Duration::from_secs(10);
/// How long to wait for other states, on the busiest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Number of attacks that share the seconds.
const ATTACKS: u32 = 44;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}: '{text}'")))
}

/// The program under attack.
pub(crate) fn program() -> String {
    let other = std::env::var("STRATA_ATTACK_PROGRAM");
    other.unwrap_or_else(|_| env!("CARGO_BIN_EXE_strata").into())
}

/// The program without Strata's environment variables.
pub(crate) fn strata() -> Command {
    let mut command = Command::new(program());
    // A backtrace would displace the other messages.
    command.env("RUST_BACKTRACE", "0");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("STRATA_") {
            command.env_remove(name);
        }
    }
    command
}

/// The resources of one attack.
pub(crate) struct Round {
    until: Instant,
    seed: u64,
    rounds: u32,
}

impl Round {
    /// Whether there is time for another round; always true for the first.
    pub(crate) fn goes_on(&mut self) -> bool {
        self.rounds += 1;
        self.rounds == 1 || Instant::now() < self.until
    }

    /// A random number.
    pub(crate) fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(1);
        mix64(self.seed)
    }

    /// Random bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.random().to_le_bytes());
        words.flatten().take(len).collect()
    }
}

/// A role in its environment: namespace, files, process.
pub(crate) trait Site: Sized + Sync {
    /// Starts it, and waits until it is working.
    fn start() -> Self;
    /// Its network.
    fn namespace(&self) -> &Namespace;
    /// Checks what must hold when the attack is over, and stops it.
    fn finish(self);
}

/// An attack: its name, and what strangers do.
pub(crate) type Attack<S> = (&'static str, fn(&S, &mut Round));

/// Runs all attacks on a role, each on its own process, and fails with all problems found.
pub(crate) fn siege<S: Site>(role: &str, attacks: &[Attack<S>]) {
    if !may_use_kernel("an attack on a role in a namespace") {
        return;
    }
    raise_descriptors();
    let seconds = number("STRATA_ATTACK_SECONDS").unwrap_or(30);
    let share = Duration::from_secs(seconds) / ATTACKS;
    let random = u64::from(std::process::id());
    let seed = number("STRATA_ATTACK_SEED").unwrap_or_else(|| mix64(random) >> 32);
    let only = std::env::var("STRATA_ATTACK_ONLY").unwrap_or_default();
    let mut findings = Vec::new();
    for (name, attack) in attacks.iter().filter(|(name, _)| name.contains(&only)) {
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let site = S::start();
            let mut round = Round {
                until: Instant::now() + share,
                seed: mix64(seed),
                rounds: 0,
            };
            site.namespace().enter(|| attack(&site, &mut round));
            site.finish();
        }));
        let took = started.elapsed().as_secs_f64();
        let outcome = outcome.map_err(|panic| words(&*panic));
        let said = outcome.as_ref().err().map_or("held", String::as_str);
        eprintln!("{role}: {name}: {said} ({took:.1} s, STRATA_ATTACK_SEED={seed})");
        if let Err(problem) = outcome {
            findings.push(format!("{role}: attack '{name}' (seed {seed}): {problem}"));
        }
    }
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

/// A separate network for an attack; several attacks run at a time.
pub(crate) fn network() -> Namespace {
    let namespace = Namespace::new("strata-attack");
    namespace.ip("link set lo up");
    namespace
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").to_owned()
}

/// Strangers need as many descriptors as they can get.
fn raise_descriptors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).unwrap();
    });
}

/// Waits until a condition is true.
pub(crate) fn until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        let waited = started.elapsed();
        assert!(waited < limit, "{what}: not within {limit:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// What a process may use under attack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Growth of resident memory since its start, in bytes.
    pub(crate) memory_growth: u64,
    /// Growth in threads since its start.
    pub(crate) threads_growth: u64,
    /// Descriptors in all.
    pub(crate) descriptors: u64,
    /// Bytes on standard error.
    pub(crate) said: u64,
}

/// How many threads a process has made: the kernel's workers of its io_uring are as many as the
/// kernel wants.
fn threads_of_its_own(process: &Path) -> Option<u64> {
    let tasks = fs::read_dir(process.join("task")).ok()?;
    let own = tasks.filter_map(Result::ok).filter(|task| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| !name.starts_with("iou-wrk-"))
    });
    Some(own.count() as u64)
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    memory: u64,
    threads: u64,
    descriptors: u64,
}

impl Usage {
    /// `None` once the process is gone.
    fn of(pid: u32) -> Option<Self> {
        let process = Path::new("/proc").join(pid.to_string());
        let status = fs::read_to_string(process.join("status")).ok()?;
        let field = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Some(Self {
            memory: field("VmRSS:")? << 10,
            threads: threads_of_its_own(&process)?,
            descriptors: fs::read_dir(process.join("fd")).ok()?.count() as u64,
        })
    }

    fn most(self, other: Self) -> Self {
        Self {
            memory: self.memory.max(other.memory),
            threads: self.threads.max(other.threads),
            descriptors: self.descriptors.max(other.descriptors),
        }
    }
}

/// A process under attack, killed when the value is dropped.
pub(crate) struct Victim {
    child: Child,
    bounds: Bounds,
    said: PathBuf,
    printed: PathBuf,
    start: Mutex<Usage>,
    peak: Arc<Mutex<Usage>>,
    stop: Arc<AtomicBool>,
    watch: Option<JoinHandle<()>>,
}

impl Victim {
    /// Starts the program with the descriptor limit of a login shell; its output goes to files in
    /// `dir`.
    pub(crate) fn start(dir: &Path, name: &str, bounds: Bounds, command: &Command) -> Self {
        let (said, printed) = (
            dir.join(format!("{name}.err")),
            dir.join(format!("{name}.out")),
        );
        let mut limited = Command::new("sh");
        limited
            .args(["-c", "ulimit -Sn 1024 && exec \"$@\"", "sh"])
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::piped())
            .stdout(File::create(&printed).unwrap())
            .stderr(File::create(&said).unwrap());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => limited.env(name, value),
                None => limited.env_remove(name),
            };
        }
        let child = limited.spawn().unwrap();
        let (peak, stop) = (Arc::<Mutex<Usage>>::default(), Arc::<AtomicBool>::default());
        let watch = {
            let (pid, peak, stop) = (child.id(), Arc::clone(&peak), Arc::clone(&stop));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Some(usage) = Usage::of(pid) {
                        let mut peak = peak.lock().unwrap();
                        *peak = peak.most(usage);
                    }
                    thread::sleep(Duration::from_millis(10));
                }
            })
        };
        Self {
            child,
            bounds,
            said,
            printed,
            start: Mutex::default(),
            peak,
            stop,
            watch: Some(watch),
        }
    }

    /// Waits until the shell that sets its limits has become the program.
    pub(crate) fn has_begun(&self) {
        let comm = format!("/proc/{}/comm", self.child.id());
        until("the program runs", PATIENCE, || {
            fs::read_to_string(&comm).is_ok_and(|name| name.trim() != "sh")
        });
    }

    /// Marks it as working: its current usage is the baseline.
    pub(crate) fn is_ready(&self) {
        let usage = Usage::of(self.child.id()).expect("it runs");
        *self.start.lock().unwrap() = usage;
        *self.peak.lock().unwrap() = usage;
    }

    /// Whether its first thread has a filter of system calls.
    pub(crate) fn is_confined(&self) -> bool {
        let status = format!("/proc/{}/status", self.child.id());
        fs::read_to_string(status).is_ok_and(|status| status.contains("\nSeccomp:\t2\n"))
    }

    pub(crate) fn take_stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// What it has written to standard error so far.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.said).unwrap()).into_owned()
    }

    /// The end of its standard error, for messages.
    fn last_words(&self) -> String {
        let said = self.said();
        let panicked = said.find("panicked at");
        let late = || said.char_indices().rev().nth(600).map_or(0, |(at, _)| at);
        let from = panicked.unwrap_or_else(late);
        said[from..].escape_debug().take(700).collect()
    }

    /// Asserts that it has not ended.
    pub(crate) fn lives(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("it ended with {status}: {}", self.last_words());
        }
    }

    /// Asserts that it has stayed within its bounds so far.
    pub(crate) fn is_within_bounds(&self) {
        let (start, peak) = (*self.start.lock().unwrap(), *self.peak.lock().unwrap());
        let bounds = self.bounds;
        let below = |what: &str, peak: u64, bound: u64| {
            assert!(peak <= bound, "{what}: {peak}, the bound is {bound}");
        };
        let memory = start.memory + bounds.memory_growth;
        below("resident memory in bytes", peak.memory, memory);
        let threads = start.threads + bounds.threads_growth;
        below("threads", peak.threads, threads);
        below("descriptors", peak.descriptors, bounds.descriptors);
        let said = fs::metadata(&self.said).unwrap().len();
        below("bytes on standard error", said, bounds.said);
    }

    /// Asserts that nothing a stranger sent reached the terminal unescaped.
    fn spoke_cleanly(&self) {
        for file in [&self.said, &self.printed] {
            let text = String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned();
            let raw = text
                .char_indices()
                .find(|(_, c)| c.is_control() && *c != '\n');
            if let Some((at, found)) = raw {
                let line = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
                let line = text[line..].lines().next().unwrap_or_default();
                let line: String = line.chars().take(200).collect();
                panic!("the control character {found:?} was printed: {line:?}");
            }
            let forged = text
                .lines()
                .find(|line| line.starts_with(crate::strangers::FORGED));
            assert!(forged.is_none(), "a stranger wrote the line {forged:?}");
        }
    }

    /// How it ended within `limit`; `None` if it did not.
    fn ended_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let started = Instant::now();
        while started.elapsed() < limit {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// Waits for it to end, by itself or on SIGINT; returns what it printed. The end must not be a
    /// signal or a panic.
    pub(crate) fn ended(mut self, interrupt: bool, limit: Duration) -> (ExitStatus, String) {
        self.is_within_bounds();
        if interrupt && self.child.try_wait().unwrap().is_none() {
            self.signal(Signal::INT);
        }
        let status = self.ended_within(limit);
        let Some(status) = status else {
            let why = if interrupt { " after SIGINT" } else { "" };
            panic!("no end within {limit:?}{why}: {}", self.last_words());
        };
        self.spoke_cleanly();
        let has_panicked = status.code().is_none_or(|code| code == 101);
        assert!(!has_panicked, "{status}: {}", self.last_words());
        let said = self.said();
        assert!(!said.contains("panicked at"), "{}", self.last_words());
        (status, fs::read_to_string(&self.printed).unwrap())
    }

    /// Ends it as Ctrl-C does: soon, and successfully.
    pub(crate) fn ended_well(mut self) -> String {
        self.lives();
        let said = self.said.clone();
        let (status, printed) = self.ended(true, END_MAX);
        let said = fs::read_to_string(said).unwrap_or_default();
        let from = said.char_indices().rev().nth(600).map_or(0, |(at, _)| at);
        assert!(
            status.success(),
            "it ended with {status}: {}",
            &said[from..]
        );
        printed
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.stop.store(true, Ordering::Relaxed);
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

/// Runs the program, which must end within `limit`: whether it succeeded, and all its output.
pub(crate) fn run(command: &mut Command, limit: Duration) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join("text")).unwrap();
    let output = command.stdout(file.try_clone().unwrap()).stderr(file);
    let mut child = output.stdin(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    let text = || String::from_utf8_lossy(&fs::read(dir.path().join("text")).unwrap()).into_owned();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return (status.success(), text());
        }
        if started.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{command:?}: no end within {limit:?}: {}", text());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Asserts that a log is intact.
pub(crate) fn verified(log: &Path) {
    let (whole, text) = run(strata().arg("verify").arg(log), PATIENCE);
    assert!(whole, "strata verify: {text}");
}

/// Asserts that the counters of a log's last recording balance; returns the packets seen.
pub(crate) fn seen(log: &Path) -> u64 {
    let mut command = strata();
    let (done, text) = run(command.args(["info", "--json"]).arg(log), PATIENCE);
    assert!(done, "strata info: {text}");
    let from = text.find('[').expect("a list of recordings");
    let list: Value = serde_json::from_str(&text[from..]).unwrap();
    let accounting = &list.as_array().unwrap().last().unwrap()["accounting"];
    let of = |name: &str| {
        accounting[name][0]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {accounting}"))
    };
    let dropped = accounting["dropped"].as_array().unwrap().iter();
    let dropped: u64 = dropped.map(|reason| reason[1][0].as_u64().unwrap()).sum();
    let ended = ["filtered", "discarded", "sampled_out", "logged"].map(of);
    let total = ended.iter().sum::<u64>() + dropped;
    assert_eq!(
        of("seen"),
        total,
        "the accounting do not balance: {accounting}"
    );
    total
}

/// Asserts that files of a log that grow with strangers' requests stay below `bound`.
pub(crate) fn manifest_below(log: &Path, bound: u64) {
    let len = fs::metadata(log.join("manifest.json")).unwrap().len();
    assert!(
        len <= bound,
        "manifest.json has {len} bytes, the bound is {bound}"
    );
}
