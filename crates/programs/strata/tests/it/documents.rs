//! The commands of README, tutorial and cookbook, run as a reader runs them, and the page of all options.
//!
//! Every block of commands says by its first line what becomes of it:
//!
//! ```text
//! sh run                 run by bash, in one directory for the page, after the blocks above it
//! console run            the same for lines after `$ `; the other lines are printed, in this order, and `...` is
//!                        anything
//! ... needs=root,age     only where this is: root has a network namespace with eth0 and traffic on it
//! ... until-stopped      with commands that run until Ctrl-C: a recording ends after some packets, others as soon as
//!                        they say that they work
//! ... while-recording    while eth0 is recorded
//! sh shown why=...       not run, for this reason
//! toml file=NAME         a file that the commands use
//! ```

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use strata_testkit::{Namespace, check_golden, data_dir, may_use_kernel, workspace_root};
use tempfile::TempDir;

use crate::common::commands;
use crate::common::program::{ok, strata};

/// Programs that stand before those of the machine.
const PROGRAMS: [(&str, &str); 5] = [
    ("strata", UNTIL_STOPPED),
    // Is there such a target?
    (
        "make",
        "#!/bin/sh\nPATH=${PATH#*:}\nexec make -n -C \"$ROOT\" \"$@\" >/dev/null\n",
    ),
    ("wireshark", "#!/bin/sh\nexec tshark -r - >/dev/null\n"),
    ("xdg-open", "#!/bin/sh\n"),
    (
        "duckdb",
        "#!/bin/sh\nPATH=${PATH#*:}\nif command -v duckdb >/dev/null; then exec duckdb \"$@\"; fi\n\
         exec \"$ROOT/python/.venv/bin/python\" -c 'import duckdb, sys; print(duckdb.sql(sys.argv[2]))' \"$@\"\n",
    ),
];

/// `strata`, which ends by itself in blocks that are marked so.
const UNTIL_STOPPED: &str = r#"#!/bin/bash
set -eu
until_it_says() {
    "$STRATA" "${@:2}" >said 2>&1 &
    pid=$!
    tail --follow --lines=+1 --pid=$pid said | grep --max-count=1 "$1" || cat said
    kill -INT $pid
    wait $pid
}
case "$ENDS $*" in
    "yes record "*-i*) exec "$STRATA" record --count 500 "${@:2}" ;;
    "yes serve "*) until_it_says 'the page is at' "$@" ;;
    "yes compact "*--every*) until_it_says 'compacted' "$@" ;;
    *) exec "$STRATA" "$@" ;;
esac
"#;

/// Before and after commands that are run while eth0 is recorded.
const RECORDING: [&str; 2] = [
    "\"$STRATA\" record -i eth0 -o recording/ >said 2>&1 &\n\
     { tail --follow --lines=+1 --pid=$! said | grep --max-count=1 'capturing on'; } || cat said\n",
    "kill %1 && wait %1\n",
];

/// A block of a page.
struct Block<'a> {
    line: usize,
    marks: Vec<&'a str>,
    text: String,
}

impl Block<'_> {
    fn is(&self, mark: &str) -> bool {
        self.marks.contains(&mark)
    }

    fn value<'a>(&'a self, name: &str) -> Option<&'a str> {
        self.marks
            .iter()
            .find_map(|mark| mark.strip_prefix(name)?.strip_prefix('='))
    }

    /// Its commands, each with the line where it begins and what it prints.
    fn commands(&self) -> Vec<(usize, String, Vec<&str>)> {
        if self.marks[0] != "console" {
            return vec![(self.line, self.text.clone(), Vec::new())];
        }
        let mut all: Vec<(usize, String, Vec<&str>)> = Vec::new();
        for (at, line) in self.text.lines().enumerate() {
            match (line.strip_prefix("$ "), all.last_mut()) {
                (Some(command), _) => {
                    all.push((self.line + at + 1, command.to_owned(), Vec::new()));
                }
                // As a shell shows it: the command goes on.
                (None, Some((_, command, said))) if said.is_empty() && command.ends_with('\\') => {
                    command.push('\n');
                    command.push_str(line);
                }
                (None, Some((_, _, said))) => said.push(line),
                (None, None) => panic!("line {}: output without a command", self.line + at),
            }
        }
        all
    }
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some(marks) = line.strip_prefix("```") else {
            continue;
        };
        let inside = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| *line != "```");
        let text = inside.fold(String::new(), |text, line| text + line + "\n");
        blocks.push(Block {
            line: at + 1,
            marks: marks.split(' ').collect(),
            text,
        });
    }
    blocks
}

/// What a block needs, and does not find here.
fn missing<'a>(needs: &'a str, path: &str) -> Option<&'a str> {
    needs.split(',').find(|need| match *need {
        "root" => !may_use_kernel("a recording of an interface"),
        "duckdb" if workspace_root().join("python/.venv/bin/python").exists() => false,
        // The one before it on the path is ours.
        "duckdb" => !path
            .split(':')
            .skip(1)
            .any(|folder| Path::new(folder).join("duckdb").exists()),
        program => !path
            .split(':')
            .any(|folder| Path::new(folder).join(program).exists()),
    })
}

/// A network of the page's own, with traffic on eth0 until it is dropped.
struct Network {
    namespace: Namespace,
    traffic: Child,
}

impl Network {
    fn new(capture: &Path) -> Self {
        let namespace = Namespace::new("st-doc");
        namespace.ip("link set lo up");
        namespace.pair("eth0", "peer0");
        let traffic = Command::new("ip")
            .args([
                "netns",
                "exec",
                namespace.name(),
                env!("CARGO_BIN_EXE_strata"),
            ])
            .args([
                "replay", "-i", "peer0", "--loop", "0", "--pps", "5000", "-r",
            ])
            .arg(capture)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { namespace, traffic }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.traffic.kill();
        let _ = self.traffic.wait();
    }
}

/// Files that the pages name.
fn furnish(dir: &Path) {
    let labelled = data_dir().join("labelled");
    let trace = labelled.join("mix-test/trace.pcap");
    symlink(&trace, dir.join("trace.pcap")).unwrap();
    symlink(&trace, dir.join("trace.pcapng")).unwrap();
    symlink(labelled.join("iot-week/trace.pcap"), dir.join("week.pcap")).unwrap();
    symlink(workspace_root().join("demo"), dir.join("demo")).unwrap();
    let alert =
        r#"{"event_type":"alert","timestamp":"2023-11-14T22:13:22.000000+0000","proto":"TCP","#
            .to_owned()
            + r#""src_ip":"172.16.238.1","src_port":58395,"dest_ip":"172.16.238.168","dest_port":22,"#
            + r#""alert":{"signature_id":2001219,"signature":"ET SCAN Potential SSH Scan","severity":2}}"#;
    fs::write(dir.join("eve.json"), alert + "\n").unwrap();
    fs::create_dir(dir.join("bin")).unwrap();
    for (name, text) in PROGRAMS {
        let path = dir.join("bin").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Whether a line is one of a page, where `...` is anything.
fn is_like(line: &str, expected: &str) -> bool {
    let Some((start, end)) = expected.split_once("...") else {
        return line == expected;
    };
    line.len() >= start.len() + end.len() && line.starts_with(start) && line.ends_with(end)
}

/// The commands of a page that can be run here.
#[derive(Default)]
struct Script {
    text: String,
    /// What each prints, by its line.
    printed: Vec<(usize, Vec<String>)>,
    is_root_needed: bool,
}

/// The commands of a page, whose files are put into a directory. Says which are not run.
fn script(name: &str, page: &str, dir: &Path, path: &str) -> Script {
    let mut script = Script::default();
    for block in blocks(page) {
        if let Some(file) = block.value("file") {
            fs::write(dir.join(file), &block.text).unwrap();
        }
        if !matches!(block.marks[0], "" | "sh" | "console") {
            continue;
        }
        let place = format!("{name}, line {}", block.line);
        let is_shown = block.is("shown");
        assert!(
            is_shown || block.is("run"),
            "{place}: neither run nor shown"
        );
        let needs = block.value("needs");
        let lacks = needs.and_then(|needs| missing(needs, path));
        let why = if is_shown {
            Some(
                block
                    .value("why")
                    .expect("a block that is only shown says why"),
            )
        } else {
            lacks
        };
        if let Some(why) = why {
            // Where every test has to run, so has every block.
            let may_lack = is_shown || std::env::var_os("CI").is_none();
            assert!(may_lack, "{place}: needs {why}");
            #[allow(clippy::print_stderr)]
            {
                let verb = if is_shown { "because" } else { "needs" };
                eprintln!("not run: {place} {verb} {}", why.replace('-', " "));
            }
            continue;
        }
        script.is_root_needed |= needs.is_some_and(|needs| needs.contains("root"));
        let ends = if block.is("until-stopped") {
            "yes"
        } else {
            "no"
        };
        let [before, after] = if block.is("while-recording") {
            RECORDING
        } else {
            [""; 2]
        };
        for (line, command, printed) in block.commands() {
            let text = &mut script.text;
            write!(
                text,
                "printf '\\n== {line}\\n'\nexport ENDS={ends}\n{before}{command}\n{after}"
            )
            .unwrap();
            let printed = printed.into_iter().map(str::to_owned).collect();
            script.printed.push((line, printed));
        }
    }
    script
}

/// Runs the commands of a page, in order, and compares what they print.
fn run(name: &str) {
    let page = fs::read_to_string(workspace_root().join(name)).unwrap();
    let dir = TempDir::new().unwrap();
    furnish(dir.path());
    let own = Path::new(env!("CARGO_BIN_EXE_strata")).parent().unwrap();
    let first = [&dir.path().join("bin"), own].map(|path| path.display().to_string());
    let path = first.join(":") + ":" + &std::env::var("PATH").unwrap();
    let script = script(name, &page, dir.path(), &path);
    assert!(script.printed.len() >= 4, "{name} has its commands");

    let network = script
        .is_root_needed
        .then(|| Network::new(&dir.path().join("trace.pcap")));
    let mut command = Command::new(if network.is_some() { "ip" } else { "timeout" });
    if let Some(network) = &network {
        command.args(["netns", "exec", network.namespace.name(), "timeout"]);
    }
    let said = dir.path().join("printed");
    let output = File::create(&said).unwrap();
    let status = command
        .args([
            "--kill-after=10",
            "300",
            "bash",
            "-euo",
            "pipefail",
            "-c",
            &script.text,
        ])
        .current_dir(dir.path())
        .env("PATH", &path)
        .env("ROOT", workspace_root())
        .env("STRATA", env!("CARGO_BIN_EXE_strata"))
        .env("STRATA_SOCKET", dir.path().join("socket"))
        .env("TZ", "UTC")
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .status()
        .unwrap();
    let said = fs::read_to_string(&said).unwrap();
    assert!(status.success(), "{name}: {status}\n{said}");
    for (line, expected) in script.printed {
        let (_, after) = said.split_once(&format!("\n== {line}\n")).unwrap();
        let part = after.split("\n== ").next().unwrap();
        let mut printed = part.lines().map(str::trim_end);
        for expected in expected.iter().filter(|line| *line != "...") {
            let is_there = printed.any(|line| is_like(line, expected));
            assert!(
                is_there,
                "{name}, line {line}: not printed: {expected}\n{part}"
            );
        }
    }
}

#[test]
fn the_commands_of_the_readme_run() {
    run("README.md");
}

#[test]
fn the_commands_of_the_tutorial_run_and_print_what_it_shows() {
    run("docs/tutorial.md");
}

#[test]
fn the_commands_of_the_cookbook_run_and_print_what_it_shows() {
    run("docs/cookbook.md");
}

/// `docs/options.md` is made of the help of each command.
#[test]
fn the_page_of_options_is_the_help_of_the_commands() {
    let mut page = "# Commands and options\n\nThis page is made from the help of each command, `strata COMMAND --help`.\n\
        [Configuration](configuration.md) has the keys of the configuration file.\n"
        .to_owned();
    let names: BTreeSet<&str> = commands::all()
        .into_iter()
        .filter(|name| *name != "helper")
        .collect();
    for name in names {
        let mut command = strata();
        command
            .args(name.split(' '))
            .arg("--help")
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap());
        let help = ok(&mut command);
        let mut help: Vec<&str> = help.lines().map(str::trim_end).collect();
        // Its default is of this machine.
        if let Some(jobs) = help.iter().position(|line| line.contains("--jobs <N>")) {
            help.retain({
                let mut at = 0;
                move |line| {
                    at += 1;
                    !(at > jobs && at < jobs + 6 && line.contains("[default: "))
                }
            });
        }
        write!(
            page,
            "\n## strata {name}\n\n```text\n{}\n```\n",
            help.join("\n")
        )
        .unwrap();
    }
    check_golden(&workspace_root().join("docs/options.md"), &page);
}
