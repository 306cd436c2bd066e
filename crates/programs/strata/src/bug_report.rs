//! `strata bug-report`: what is needed to understand a fault here, as text, without packets.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use strata_control::config::Config;
use strata_terminal::output::standard;
use strata_wire::Printable;
use tracing::info;

/// How long a command may take.
const SECONDS_MAX: u64 = 10;

/// Arguments of `strata bug-report`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata bug-report -o report.txt
  strata bug-report /var/log/strata --config /etc/strata/strata.toml

The report has no packets, encryption keys, tokens or values of environment variables. It does have
the names of hosts, interfaces and files, the policies of running recordings, and the totals of the
given logs: read it before you send it.

Exit status: 0 if the report is written, even if parts of it are missing; 1 if not.")]
pub(crate) struct Args {
    /// Include what `strata info` shows of these logs.
    #[arg(value_name = "LOG")]
    logs: Vec<PathBuf>,

    /// Include the settings of this configuration file.
    #[arg(long, value_name = "FILE", env = "STRATA_CONFIG")]
    config: Option<PathBuf>,

    /// Write the report to this new file; without it, to standard output.
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let report = report(args);
    let Some(file) = &args.output else {
        return Ok(standard().write_all(report.as_bytes())?);
    };
    let made = OpenOptions::new().write(true).create_new(true).open(file);
    let written = made.and_then(|mut made| made.write_all(report.as_bytes()));
    let name = file.display().to_string();
    written.with_context(|| format!("{}: cannot write the report", Printable(&name)))?;
    info!("{}: read it before you send it", Printable(&name));
    Ok(())
}

fn report(args: &Args) -> String {
    let mut report = String::new();
    let mut section = |title: &str, text: &str| {
        // What other programs and files say is printed with care.
        let lines: String = text
            .lines()
            .map(|line| format!("  {}\n", Printable(line.trim_end())))
            .collect();
        let _ = write!(report, "== {title}\n{lines}\n");
    };
    section("version", &output_of(&["--version"]));
    section("programs beside it", &programs());
    section("machine", &machine());
    section("process", &process());
    section("variables that are set", &variables());
    section("configuration", &configuration(args.config.as_deref()));
    section("interfaces", &output_of(&["interfaces"]));
    section("running recordings", &output_of(&["status"]));
    for log in &args.logs {
        let log = log.display().to_string();
        section(&format!("log {log}"), &output_of(&["info", &log]));
    }
    report
}

/// What this program says as another process, with these arguments.
fn output_of(arguments: &[&str]) -> String {
    let started = env::current_exe().and_then(|program| {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    });
    let child = match started {
        Ok(child) => child,
        Err(error) => return format!("cannot be run: {error}"),
    };
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (sender, ended) = channel();
    let reader = thread::spawn(move || sender.send(child.wait_with_output()));
    let output = ended.recv_timeout(Duration::from_secs(SECONDS_MAX));
    let Ok(output) = output else {
        if let Some(pid) = pid {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
        drop(reader.join());
        return format!("no answer within {SECONDS_MAX} seconds");
    };
    match output {
        Ok(output) => {
            let [out, said] =
                [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            let status = match output.status.success() {
                true => String::new(),
                false => format!("({})\n", output.status),
            };
            format!("{out}{said}{status}")
        }
        Err(error) => format!("cannot be read: {error}"),
    }
}

/// Names of programs in the directory of this one that belong to it.
fn programs() -> String {
    let names = env::current_exe().and_then(|program| {
        let dir = program.parent().map_or_else(PathBuf::new, Path::to_owned);
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with("strata") && !name.contains('.') {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names.join(" "))
    });
    names.unwrap_or_else(|error| format!("cannot be listed: {error}"))
}

/// The lines of a file that begin with one of these words; the first of each, if they are many.
fn lines_of(file: &str, words: &[&str]) -> String {
    match fs::read_to_string(file) {
        Ok(text) => words
            .iter()
            .filter_map(|word| text.lines().find(|line| line.starts_with(word)))
            .map(|line| {
                format!(
                    "{}\n",
                    line.split_whitespace().collect::<Vec<_>>().join(" ")
                )
            })
            .collect(),
        Err(error) => format!("{file}: {error}\n"),
    }
}

fn machine() -> String {
    let kernel = rustix::system::uname();
    let [system, release, machine] = [kernel.sysname(), kernel.release(), kernel.machine()]
        .map(|part| part.to_string_lossy().into_owned());
    let cpus = thread::available_parallelism().map_or_else(
        |error| format!("not known: {error}"),
        |count| count.to_string(),
    );
    [
        format!("{system} {release} {machine}\n"),
        lines_of("/etc/os-release", &["PRETTY_NAME="]),
        lines_of("/proc/cpuinfo", &["model name"]),
        format!("CPUs for this process: {cpus}\n"),
        lines_of("/proc/meminfo", &["MemTotal:", "MemAvailable:"]),
    ]
    .concat()
}

fn process() -> String {
    let status = [
        "Uid:",
        "Gid:",
        "CapPrm:",
        "CapEff:",
        "CapBnd:",
        "NoNewPrivs:",
        "Seccomp:",
        "Cpus_allowed_list:",
    ];
    let limits = ["Max open files", "Max locked memory", "Max processes"];
    [
        lines_of("/proc/self/status", &status),
        lines_of("/proc/self/limits", &limits),
    ]
    .concat()
}

/// Names of the variables that change what Strata does; values may be secret.
fn variables() -> String {
    const OTHERS: [&str; 5] = [
        "NO_COLOR",
        "RUST_BACKTRACE",
        "TMPDIR",
        "TZ",
        "XDG_RUNTIME_DIR",
    ];
    let names = env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let mut names: Vec<String> = names
        .filter(|name| name.starts_with("STRATA_") || OTHERS.contains(&name.as_str()))
        .collect();
    names.sort_unstable();
    match names.is_empty() {
        true => String::from("none"),
        false => names.join(" "),
    }
}

/// Keys whose texts are no secrets. Numbers and switches are shown of every key.
const SHOWN: [&str; 6] = [
    "mode",
    "default",
    "detail",
    "memory",
    "on_drift",
    "control.listen",
];
/// Tables of such keys.
const SHOWN_TABLES: [&str; 4] = ["elastic.", "modes.", "policy.", "tunnels."];

/// The keys that a file sets, without texts that may be secrets, and without values of the environment.
fn configuration(file: Option<&Path>) -> String {
    let Some(path) = file else {
        return String::from("none is given: --config FILE or STRATA_CONFIG");
    };
    let file = path.display().to_string();
    // Messages of other commands repeat what is wrong, which may be a secret: so may be all of a file that is no
    // configuration.
    if let Err(error) = Config::read(path) {
        return format!("{file}: {}", error.without_values());
    }
    let text = output_of(&["config", "show", "--changed", "--json", "--config", &file]);
    let Ok(answer) = serde_json::from_str::<Value>(&text) else {
        return format!("{file}: cannot be shown: see strata config show --config {file}");
    };
    let keys = answer["keys"].as_array().into_iter().flatten();
    let lines = keys.map(|key| {
        let name = key["name"].as_str().unwrap_or("?");
        let from = key["from"].as_str().unwrap_or("?");
        let value = match &key["value"] {
            // Another source is a variable of the environment.
            _ if !["default", "file"].contains(&from) => format!("(of {from})"),
            value if is_shown(name, value) => value.to_string(),
            _ => String::from("(set, not shown)"),
        };
        format!("{name} = {value}\n")
    });
    [format!("{file}\n"), lines.collect()].concat()
}

/// Whether a key's value is certainly no secret.
fn is_shown(name: &str, value: &Value) -> bool {
    let is_known = SHOWN.contains(&name) || SHOWN_TABLES.iter().any(|of| name.starts_with(of));
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
        Value::String(_) => is_known,
        Value::Array(items) => items.iter().all(|item| is_shown(name, item)),
        Value::Object(_) => false,
    }
}
