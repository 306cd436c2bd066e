//! What commands write, and what they must not overwrite.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use strata_testkit::data_dir;

use crate::common::signal::signal;

fn strata() -> Command {
    Command::new(env!("CARGO_BIN_EXE_strata"))
}

fn run(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

fn ok(command: &mut Command) -> String {
    let (code, stderr) = run(command);
    assert_eq!(code, Some(0), "{command:?}: {stderr}");
    stderr
}

/// The message of a command that is refused.
fn refused(command: &mut Command) -> String {
    let (code, stderr) = run(command);
    assert_eq!(code, Some(2), "{command:?}: {stderr}");
    assert!(stderr.starts_with("strata: "), "{stderr}");
    stderr
}

fn record(trace: &Path, log: &Path) {
    ok(strata()
        .arg("record")
        .arg("-r")
        .arg(trace)
        .arg("-o")
        .arg(log));
}

fn sqli() -> PathBuf {
    data_dir().join("labelled/cic2017-sqli/trace.pcap")
}

/// A terminal: its other end, which keeps it open, and a file to write to.
fn terminal() -> (rustix::fd::OwnedFd, File) {
    let other = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&other).unwrap();
    unlockpt(&other).unwrap();
    let name = ptsname(&other, Vec::new()).unwrap();
    let file = OpenOptions::new().write(true).open(name.to_str().unwrap());
    (other, file.unwrap())
}

#[test]
fn the_files_name_decides_its_format_unless_an_option_does() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&sqli(), &log);
    let pcap: &[u8] = &0xa1b2_3c4d_u32.to_le_bytes();
    let pcapng: &[u8] = &0x0a0d_0d0a_u32.to_le_bytes();
    let cases: [(&str, &[&str], &[u8]); 10] = [
        ("x.pcap", &[], pcap),
        ("x.CAP", &[], pcap),
        ("x.pcapng", &[], pcapng),
        ("x", &[], pcapng),
        ("y.pcap", &["-F", "pcapng"], pcapng),
        ("x.pcap.gz", &[], &[0x1f, 0x8b]),
        ("x.pcap.zst", &[], &0xfd2f_b528_u32.to_le_bytes()),
        ("x.csv", &[], b"first_time,"),
        ("x.json", &[], b"{"),
        ("x.ipfix", &[], &[0, 10]),
    ];
    for (name, options, magic) in cases {
        let file = dir.path().join(name);
        // Existing contents are replaced, however long they were.
        fs::write(&file, [b'?'; 1 << 20]).unwrap();
        ok(strata()
            .arg("export")
            .arg(&log)
            .args(options)
            .arg("-w")
            .arg(&file));
        let bytes = fs::read(&file).unwrap();
        assert!(bytes.starts_with(magic), "{name}: {:?}", &bytes[..8]);
        assert!(bytes.len() < 1 << 20, "{name}");
    }
    // A mistyped suffix is no format, unless one is named.
    let odd = dir.path().join("x.pcpng");
    let said = refused(strata().arg("export").arg(&log).arg("-w").arg(&odd));
    assert!(
        said.contains("'.pcpng' is not that of a known format") && said.contains("-F"),
        "{said}"
    );
    assert!(!odd.exists());
    ok(strata()
        .arg("export")
        .arg(&log)
        .args(["-F", "pcap", "-w"])
        .arg(&odd));
    assert!(fs::read(&odd).unwrap().starts_with(pcap));
    let packets = |name: &str| {
        let read = Command::new("tshark")
            .arg("-r")
            .arg(dir.path().join(name))
            .output();
        let read = read.unwrap();
        assert!(read.status.success(), "{name}");
        read.stdout.iter().filter(|byte| **byte == b'\n').count()
    };
    assert_eq!(
        [packets("x.pcap"), packets("x.pcapng"), packets("x.pcap.gz")],
        [94; 3]
    );
    // What was written can be read again, compressed or not.
    record(&dir.path().join("x.pcap.zst"), &dir.path().join("again"));

    let made = dir.path().join("made.pcapng");
    ok(strata().args(["generate", "-c", "100", "-o"]).arg(&made));
    assert!(fs::read(&made).unwrap().starts_with(pcapng));
    assert_eq!(packets("made.pcapng"), 100);
}

#[test]
fn two_outputs_of_a_command_are_not_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let trace = sqli();
    let labels = trace.with_file_name("labels.csv");
    let path = |name: &str| dir.path().join(name);
    fs::write(path("there.html"), "a page").unwrap();
    symlink(path("there.html"), path("link.json")).unwrap();
    fs::create_dir(path("sub")).unwrap();
    for (output, report) in [
        ("x.json", "x.json"),
        ("x.json", "sub/../x.json"),
        ("x.figures.json", "x.html"),
        ("link.json", "there.html"),
    ] {
        let (output, report) = (path(output), path(report));
        let mut train = strata();
        train.arg("train").arg(&trace).arg("--labels").arg(&labels);
        let said = refused(train.arg("-o").arg(&output).arg("--report").arg(&report));
        assert!(said.contains("this is also the file of"), "{said}");
        let mut eval = strata();
        eval.args(["eval", "-r"])
            .arg(&trace)
            .arg("--labels")
            .arg(&labels);
        let said = refused(
            eval.arg("--decisions")
                .arg(&output)
                .arg("--report")
                .arg(&report),
        );
        assert!(said.contains("this is also the file of"), "{said}");
    }
    assert_eq!(fs::read_to_string(path("there.html")).unwrap(), "a page");
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        3,
        "only what was there"
    );
}

#[test]
fn nothing_is_written_over_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (log, trace) = (dir.path().join("log"), dir.path().join("trace.pcap"));
    fs::copy(sqli(), &trace).unwrap();
    record(&trace, &log);
    let block = log.join("blocks/00000001-00.strata");
    let block = if block.exists() {
        block
    } else {
        let mut files = fs::read_dir(log.join("blocks")).unwrap();
        files.next().unwrap().unwrap().path()
    };
    let [hard, link, linked] = ["hard", "link", "linked"].map(|name| dir.path().join(name));
    fs::hard_link(&block, &hard).unwrap();
    symlink(&block, &link).unwrap();
    symlink(&log, &linked).unwrap();
    let before = fs::read(&block).unwrap();
    let new = log.join("blocks/../out.pcapng");
    for output in [&block, &hard, &link, &new, &linked.join("out.pcapng")] {
        for format in ["pcapng", "csv"] {
            let mut export = strata();
            export
                .args(["export", "-F", format])
                .arg(&log)
                .arg("-w")
                .arg(output);
            let text = refused(&mut export);
            assert!(text.contains("is inside the log"), "{text}");
        }
    }
    assert!(!log.join("out.pcapng").exists());
    assert_eq!(fs::read(&block).unwrap(), before);
    let key = dir.path().join("a.key");
    ok(strata().args(["key", "new"]).arg(&key));
    let mut export = strata();
    export
        .arg("export")
        .arg(&log)
        .arg("--key")
        .arg(&key)
        .arg("-w")
        .arg(&key);
    assert!(refused(&mut export).contains("a.key"));

    let labels = dir.path().join("labels.csv");
    fs::write(&labels, "frame,label\n1,0\n").unwrap();
    let again = dir.path().join("again.pcap");
    fs::hard_link(&trace, &again).unwrap();
    for output in [&trace, &again, &labels] {
        let mut features = strata();
        features
            .arg("features")
            .arg("-r")
            .arg(&trace)
            .arg("--labels")
            .arg(&labels);
        assert!(refused(features.arg("-o").arg(output)).contains("is the input"));
        let mut eval = strata();
        eval.arg("eval")
            .arg("-r")
            .arg(&trace)
            .arg("--labels")
            .arg(&labels);
        assert!(refused(eval.arg("--decisions").arg(output)).contains("is the input"));
    }
    // Also if it is standard input.
    let mut features = strata();
    features.args(["features", "-r", "-", "-o"]).arg(&trace);
    assert!(refused(features.stdin(File::open(&trace).unwrap())).contains("standard input"));
    assert_eq!(fs::read(&trace).unwrap(), fs::read(sqli()).unwrap());
    let mut generate = strata();
    generate.args(["generate", "-c", "10", "-o"]).arg(&again);
    assert!(refused(generate.arg("--labels").arg(&trace)).contains("again.pcap"));
}

/// Also of a log that the command does not read.
#[test]
fn no_command_writes_over_a_file_of_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let [log, other] = ["log", "other"].map(|name| dir.path().join(name));
    let trace = sqli();
    record(&trace, &log);
    record(&trace, &other);
    ok(strata().arg("compact").arg(&other));
    record(&trace, &other);
    let vectors = dir.path().join("a.gpv");
    let gpv = |name: &str| {
        let mut command = strata();
        command.args(["gpv", name, "-r"]);
        command
    };
    ok(gpv("run").arg(&trace).arg("-w").arg(&vectors));
    let below = |name: &str| {
        let files = fs::read_dir(other.join(name)).unwrap();
        let mut files = files.map(|file| file.unwrap().path());
        files.find(|file| file.is_file()).unwrap()
    };
    let targets = [
        other.join("manifest.json"),
        other.join("archive.json"),
        below("blocks"),
        below("meta"),
    ];
    let before = targets.each_ref().map(|file| fs::read(file).unwrap());
    for target in &targets {
        let with = |words: &[&str]| {
            let mut command = strata();
            command.args(words);
            command
        };
        let mut commands = [
            with(&["generate", "-c", "10"]),
            with(&["features"]),
            with(&["export", "-F", "csv"]),
            with(&["ask", "packet-counts-per-source", "-F", "csv"]),
            with(&["collector", "--listen", "127.0.0.1:0"]),
            gpv("run"),
            gpv("agent"),
        ];
        let [generate, features, export, ask, collector, run, agent] = &mut commands;
        generate.arg("-o").arg(target);
        features.arg("-r").arg(&trace).arg("-o").arg(target);
        export.arg(&log).arg("-w").arg(target);
        ask.arg("-r").arg(&trace).arg("-w").arg(target);
        collector.arg("-w").arg(target);
        run.arg(&trace).arg("-w").arg(target);
        agent.arg(&vectors).arg("-w").arg(target);
        for command in &mut commands {
            let said = refused(command);
            assert!(said.contains("is a file of the log"), "{command:?}: {said}");
        }
    }
    let after = targets.each_ref().map(|file| fs::read(file).unwrap());
    assert!(before == after);
    ok(strata().arg("verify").arg(&other));
    // A file of the user's own may lie there.
    for _ in 0..2 {
        let mut export = strata();
        export.arg("export").arg(&log).arg("-w");
        ok(export.arg(other.join("out.pcapng")));
    }
}

#[test]
fn a_terminal_gets_text_alone() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&sqli(), &log);
    let binary: [&[&str]; 4] = [
        &["export", "LOG", "-w", "-"],
        &["export", "LOG", "-w", "/dev/stdout"],
        &["export", "LOG", "-w", "-", "-F", "ipfix"],
        &["generate", "-c", "10", "-o", "-"],
    ];
    let command = |words: &[&str], terminal: File| {
        let mut command = strata();
        for word in words {
            match *word {
                "LOG" => command.arg(&log),
                word => command.arg(word),
            };
        }
        let child = command.stdout(terminal).stderr(Stdio::piped()).spawn();
        let output = child.unwrap().wait_with_output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    for words in binary {
        let (_other, file) = terminal();
        let (code, stderr) = command(words, file);
        assert_eq!(code, Some(2), "{words:?}: {stderr}");
        assert!(stderr.contains("terminal"), "{stderr}");
    }
    let (_other, file) = terminal();
    let none = ["export", "LOG", "-w", "-", "-F", "csv", "port 9"];
    assert_eq!(command(&none, file).0, Some(0));
}

/// Standard output that cannot be written is an error with its name; one that has lost its reader
/// is not.
#[test]
fn standard_output_may_be_full_or_closed() {
    for arguments in [&["config", "reference"][..], &["interfaces"]] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, stderr) = run(strata().args(arguments).stdout(full));
        assert_eq!(code, Some(1), "{stderr}");
        assert!(
            stderr.starts_with("strata: standard output: cannot write: "),
            "{stderr}"
        );
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
    for arguments in [&["config", "reference"][..], &["features", "-r"]] {
        let mut command = strata();
        command.args(arguments);
        command.args(arguments.contains(&"-r").then(sqli));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, stderr) = run(command.stdout(writer));
        assert_eq!((code, &*stderr), (Some(0), ""), "{arguments:?}");
    }
}

/// A signal leaves no file that would pass for a whole one.
#[test]
fn interfaces_are_listed_as_json_too() {
    let listed = strata().args(["interfaces", "--json", "lo"]).output();
    let listed: Value = serde_json::from_slice(&listed.unwrap().stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(
        (&listed[0]["name"], &listed[0]["loopback"]),
        (&"lo".into(), &true.into())
    );
}

#[test]
fn an_interrupted_output_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (fifo, file) = (dir.path().join("fifo"), dir.path().join("x.parquet"));
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let mut command = strata();
    command
        .args(["features", "-r"])
        .arg(&fifo)
        .arg("-o")
        .arg(&file);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let start = std::time::Instant::now();
    while !file.exists() {
        assert!(start.elapsed().as_secs() < 60 && child.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    // The file may be there a moment before the signal is handled.
    let mut writer = OpenOptions::new().write(true).open(&fifo).unwrap();
    let capture = fs::read(sqli()).unwrap();
    writer.write_all(&capture).unwrap();
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && !file.exists(), "{text}");
    assert!(
        text.contains("removed the unfinished ") && text.contains("x.parquet"),
        "{text}"
    );
}

#[test]
fn flows_in_json_have_types() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let trace = data_dir().join("labelled/mix-test/trace.pcap");
    record(&trace, &log);
    let file = dir.path().join("flows.json");
    let count = |filter: &str, field: &str| -> Vec<String> {
        let tshark = Command::new("tshark")
            .arg("-r")
            .arg(&trace)
            .args(["-Y", filter, "-T", "fields", "-e", field])
            .output();
        let text = String::from_utf8(tshark.unwrap().stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    let first_ns = &count("frame.number==1", "frame.time_epoch")[0].replace('.', "");
    let mut types: Vec<u64> = Vec::new();
    for compacted in [false, true] {
        if compacted {
            ok(strata().arg("compact").arg(&log));
        }
        ok(strata().arg("export").arg(&log).arg("-w").arg(&file));
        let text = fs::read_to_string(&file).unwrap();
        let mut first = None;
        types.clear();
        for line in text.lines() {
            let flow: Value = serde_json::from_str(line).unwrap();
            assert!(flow["classes"].is_object(), "{line}");
            assert!(flow["packets"].is_u64() && flow["interface"].is_u64());
            let time = flow["first_time"].as_str().unwrap();
            assert!(
                time.len() == "2026-01-31T13:05:00.123456789Z".len(),
                "{time}"
            );
            let time: jiff::Timestamp = time.parse().unwrap();
            first = first.into_iter().chain([time.as_nanosecond()]).min();
            let number = flow["protocol"].as_u64();
            if let Some(1 | 58) = number {
                assert!(flow["icmp_code"].is_u64(), "{line}");
                let kind = flow["icmp_type"].as_u64().unwrap();
                types.extend((number == Some(1)).then_some(kind));
            } else {
                assert!(flow.get("icmp_type").is_none(), "{line}");
            }
        }
        assert_eq!(first.unwrap().to_string(), *first_ns);
    }
    let seen = count("icmp", "icmp.type");
    assert!(!seen.is_empty() && !types.is_empty(), "the trace has ICMP");
    for kind in types {
        assert!(
            seen.iter()
                .any(|line| line.split(',').any(|t| t == kind.to_string()))
        );
    }
}

#[test]
fn ipfix_says_type_and_code_of_icmp() {
    let dir = tempfile::tempdir().unwrap();
    let (log, file) = (dir.path().join("log"), dir.path().join("flows.ipfix"));
    record(&data_dir().join("labelled/mix-test/trace.pcap"), &log);
    ok(strata()
        .arg("export")
        .arg(&log)
        .arg("-w")
        .arg(&file)
        .arg("icmp"));
    let read = Command::new("tshark")
        .arg("-r")
        .arg(&file)
        .arg("-V")
        .output()
        .unwrap();
    let text = String::from_utf8(read.stdout).unwrap();
    assert!(
        !text.contains("Malformed") && text.contains("ICMP Type: 0x"),
        "{text}"
    );
}

#[test]
fn an_export_of_another_time_says_when_the_log_is() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&sqli(), &log);
    let file = dir.path().join("x.pcapng");
    let export = |options: &[&str]| {
        let mut export = strata();
        export
            .env("TZ", "UTC")
            .arg("export")
            .arg(&log)
            .arg("-w")
            .arg(&file)
            .args(options);
        ok(&mut export)
    };
    let tshark = Command::new("tshark")
        .arg("-r")
        .arg(sqli())
        .args(["-t", "ud", "-T", "fields", "-e", "_ws.col.Time"])
        .output();
    let times = String::from_utf8(tshark.unwrap().stdout).unwrap();
    let (first, last) = (times.lines().next().unwrap(), times.lines().last().unwrap());
    for options in [
        &["--from", "2031-01-01T00:00Z"],
        &["--to", "2001-01-01T00:00Z"],
    ] {
        let text = export(options);
        assert!(text.contains("0 packets exported"), "{text}");
        assert!(
            text.contains(first) && text.contains(last),
            "{text}: {first} {last}"
        );
    }
    // Nothing at that time, and nothing that matches, are different cases.
    assert!(!export(&["port 9"]).contains("no packets of that time"));
}

/// As `record` refuses such a filter: nothing of the input can match it.
#[test]
fn a_filter_that_fits_no_interface_of_the_log_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (log, file) = (dir.path().join("log"), dir.path().join("x.pcapng"));
    record(&sqli(), &log);
    for is_compacted in [false, true] {
        if is_compacted {
            ok(strata().arg("compact").arg(&log));
        }
        for filter in ["wlan type mgt", "inbound"] {
            for format in [
                "pcapng",
                "json",
                "ipfix",
                "packets-parquet",
                "flows-parquet",
            ] {
                let mut export = strata();
                export.arg("export").arg(&log).args(["-F", format, "-w"]);
                let (code, said) = run(export.arg(&file).arg(filter));
                assert_eq!(code, Some(1), "{format} {filter}: {said}");
                assert!(
                    said.contains("the filter cannot be applied to any interface of the log"),
                    "{said}"
                );
                assert!(!file.exists(), "{format} {filter}");
            }
            let mut ask = strata();
            ask.arg("ask")
                .arg(&log)
                .args(["packet-counts-per-source", filter]);
            let (code, said) = run(&mut ask);
            assert_eq!(code, Some(1), "{said}");
            assert!(
                said.contains("cannot be applied to any interface"),
                "{said}"
            );
        }
    }
    let mut ask = strata();
    ask.args(["ask", "-r"]).arg(sqli());
    let (code, said) = run(ask.args(["packet-counts-per-source", "wlan type mgt"]));
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("cannot be applied to any interface"),
        "{said}"
    );
}

#[test]
fn times_are_in_the_zone_that_tz_says() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&sqli(), &log);
    let info = |zone: &str| {
        let output = strata().env("TZ", zone).arg("info").arg(&log).output();
        let output = output.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().nth(1).unwrap().to_owned();
        (line, String::from_utf8(output.stderr).unwrap())
    };
    // By its name, and by its rule (POSIX.1).
    let (line, said) = info("Europe/Berlin");
    assert_eq!(line, info("CET-1CEST,M3.5.0,M10.5.0/3").0);
    assert_ne!(line, info("UTC").0);
    assert!(said.is_empty(), "{said}");
    // A name that does not exist.
    let (line, said) = info("Nonsense/Zone");
    assert_eq!(line, info("UTC").0);
    assert!(
        said.contains("TZ=Nonsense/Zone: unknown time zone"),
        "{said}"
    );
    let file = dir.path().join("x.pcap");
    let mut export = strata();
    export
        .env("TZ", "Nonsense/Zone")
        .arg("export")
        .arg(&log)
        .arg("-w")
        .arg(&file);
    let (code, said) = run(export.args(["--from", "2017-07-07T13:00"]));
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("TZ=Nonsense/Zone: unknown time zone"),
        "{said}"
    );
    // A time that says its offset is in no zone.
    let mut export = strata();
    export
        .env("TZ", "Nonsense/Zone")
        .arg("export")
        .arg(&log)
        .arg("-w")
        .arg(&file);
    let (code, said) = run(export.args(["--from", "2017-07-07T13:00Z"]));
    assert_eq!(code, Some(0), "{said}");
}

/// The reader of an export may have seen enough: `| head`.
#[test]
fn a_reader_that_goes_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&data_dir().join("labelled/mix-test/trace.pcap"), &log);
    let formats = [
        "pcapng",
        "pcap",
        "csv",
        "json",
        "ipfix",
        "flows-parquet",
        "packets-parquet",
    ];
    for format in formats {
        let mut export = strata();
        let export = export
            .arg("export")
            .arg(&log)
            .args(["-F", format, "-w", "-"]);
        let piped = export.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let mut first = [0];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut first).unwrap();
        drop(stdout);
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(
            ended.status.success() && !said.contains("pipe"),
            "{format}: {said}"
        );
    }
}

#[test]
fn tls_secrets_are_in_a_file_as_editcap_puts_them_there() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&sqli(), &log);
    let keys = dir.path().join("keys.log");
    let secret = format!("CLIENT_RANDOM {} {}\n", "ab".repeat(32), "01".repeat(48));
    fs::write(&keys, format!("# of a browser\n{secret}{secret}\n")).unwrap();
    let [plain, with, injected] =
        ["plain", "with", "injected"].map(|name| dir.path().join(name).with_extension("pcapng"));
    ok(strata().arg("export").arg(&log).arg("-w").arg(&plain));
    let export = || {
        let mut command = strata();
        command.arg("export").arg(&log).arg("--tls-keys").arg(&keys);
        command.arg("-w").arg(&with);
        command
    };
    ok(&mut export());
    let mut editcap = Command::new("editcap");
    editcap
        .arg("--inject-secrets")
        .arg(format!("tls,{}", keys.display()));
    ok(editcap.arg(&plain).arg(&injected));
    let secrets = |file: &Path| -> Vec<Vec<u8>> {
        let bytes = fs::read(file).unwrap();
        let (mut blocks, mut rest) = (Vec::new(), bytes.as_slice());
        while let Some(head) = rest.first_chunk::<8>() {
            let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
            let (block, after) = rest.split_at(word(4) as usize);
            if word(0) == 10 {
                blocks.push(block.to_vec());
            }
            rest = after;
        }
        blocks
    };
    assert_eq!(secrets(&with), secrets(&injected));
    assert_eq!([secrets(&with).len(), secrets(&plain).len()], [1, 0]);
    // What is no key log is not put into a file that may be given away.
    fs::write(&keys, format!("{secret}-----BEGIN PRIVATE KEY-----\n")).unwrap();
    let (code, said) = run(&mut export());
    assert_eq!(code, Some(1));
    assert!(
        said.contains("keys.log:2: neither a comment nor a TLS secret"),
        "{said}"
    );
    // Nothing is decrypted with a file that has no secrets.
    for none in ["", "# of a browser\n\n"] {
        fs::write(&keys, none).unwrap();
        let (code, said) = run(&mut export());
        assert_eq!(code, Some(0), "{said}");
        assert!(
            said.contains("keys.log: this file has no TLS secrets"),
            "{said}"
        );
        assert_eq!(secrets(&with).len(), 0);
    }
    let mut csv = strata();
    csv.arg("export").arg(&log).arg("--tls-keys").arg(&keys);
    let said = refused(csv.arg("-w").arg(dir.path().join("flows.csv")));
    assert!(said.contains("--tls-keys applies only to pcapng"), "{said}");
}
