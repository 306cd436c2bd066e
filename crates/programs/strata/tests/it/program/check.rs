//! `--check` finds what a start would fail on, and a start that fails leaves nothing behind.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use strata_testkit::{data_dir, may_use_kernel};

use crate::common::recording::wait_for;

fn strata() -> Command {
    Command::new(env!("CARGO_BIN_EXE_strata"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn trace() -> PathBuf {
    data_dir().join("labelled/cic2017-sqli/trace.pcap")
}

/// A secret that only its owner may read.
fn secret(path: &Path) {
    fs::write(path, "0123456789abcdef").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(path, mode).unwrap();
}

/// Every path below a directory.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

/// A recording that cannot start.
struct Case<'a> {
    /// Of the configuration file.
    config: &'a str,
    options: &'a [&'a str],
    /// The expected message.
    says: &'a str,
}

fn case<'a>(config: &'a str, options: &'a [&'a str], says: &'a str) -> Case<'a> {
    Case {
        config,
        options,
        says,
    }
}

/// Both the check and the start report it, and create nothing.
fn refused(dir: &Path, input: &[&str], case: &Case<'_>) {
    let config = dir.join("strata.toml");
    fs::write(&config, case.config).unwrap();
    let before = tree(dir);
    for check in [true, false] {
        let mut record = strata();
        record.current_dir(dir).arg("record").args(input);
        record.args(["--config", "strata.toml", "-o", "made/here/log"]);
        record.args(check.then_some("--check")).args(case.options);
        let output = record.output().unwrap();
        let text = stderr(&output);
        let code = output.status.code();
        assert!(matches!(code, Some(1 | 2)), "{record:?}: {code:?}, {text}");
        assert!(text.contains(case.says), "{record:?}: {text}");
        assert!(output.stdout.is_empty());
        assert_eq!(tree(dir), before, "{record:?} leaves something");
    }
}

#[test]
fn the_check_finds_what_a_start_fails_on() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    fs::write(dir.path().join("file"), "text").unwrap();
    secret(&dir.path().join("token"));
    secret(&dir.path().join("short"));
    fs::write(dir.path().join("short"), "12345\n").unwrap();
    let listen = |address: &str| format!("[control]\nlisten = '{address}'\ntoken_file = 'token'\n");
    let [elsewhere, in_use] = [listen("203.0.113.1:9477"), listen(&taken.to_string())];
    let trace = trace();
    let input = ["-r", trace.to_str().unwrap()];
    for case in [
        case(
            "[control]\nlisten = '127.0.0.1:0'\n",
            &[],
            "control.token_file",
        ),
        case(
            "[control]\nlisten = '127.0.0.1:0'\ntoken_file = 'none'\n",
            &[],
            "none: cannot read",
        ),
        case(
            "[control]\nlisten = '127.0.0.1:0'\ntls_cert = 'no.pem'\ntls_key = 'no.key'\n",
            &[],
            "no.pem",
        ),
        case(
            "[control]\nlisten = '127.0.0.1:0'\ntoken_file = 'short'\n",
            &[],
            "at least 16 bytes",
        ),
        case(&elsewhere, &[], "203.0.113.1:9477"),
        case(&in_use, &[], "in use"),
        // A mode that can be set later.
        case(
            "[modes.x]\nbenign = 'headr'\nanomalous = 'full'\n",
            &[],
            "'headr' is not a granularity",
        ),
        case("", &["--mode", "none"], "unknown mode 'none'"),
        case(
            "[alerts]\nwebhook = 'alerts.example'\n",
            &[],
            "alerts.webhook: not an address",
        ),
        case(
            "[alerts]\nwebhook = 'https://'\n",
            &[],
            "alerts.webhook: not an address",
        ),
        case(
            "[alerts]\nwebhook = 'https://a.example/'\nca_file = 'file'\n",
            &[],
            "file: contains no certificate",
        ),
        case("", &["--model", "none.json"], "none.json"),
        case("", &["--policy", "none.toml"], "none.toml"),
        case("", &["--mirror-to", "nosuch0"], "nosuch0"),
        case("", &["--eve", "file/eve.sock"], "file/eve.sock"),
        // Only a name that ends in .sock or .socket becomes a socket.
        case("", &["--eve", "typo.json"], "no such file"),
        case("", &["--socket", "file"], "file"),
        case("", &["--look-back", "1k"], "--look-back"),
        case("", &["--memory", "1k"], "at least 512KiB"),
        case("", &["--memory", "900T"], "of this machine"),
        case("", &["--memory", "lots"], "'lots' is not a size"),
        case("memory = '-1G'\n", &[], "memory: '-1G' is not a size"),
        case("memory = '9000TiB'\n", &[], "of this machine"),
        case("", &["tcp", "prot", "80"], "prot"),
    ] {
        refused(dir.path(), &input, &case);
    }
    let [_, trace] = input;
    let twice = ["-r", trace, "-r", trace];
    refused(dir.path(), &twice, &case("", &[], "named twice"));
    let not_a_capture = ["-r", "file"];
    refused(dir.path(), &not_a_capture, &case("", &[], "file"));
    refused(
        dir.path(),
        &["-r", "none.pcap"],
        &case("", &[], "none.pcap"),
    );
}

#[test]
fn the_check_looks_at_the_logs_directory() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("foreign")).unwrap();
    fs::write(dir.path().join("foreign/thesis.txt"), "text").unwrap();
    let before = tree(dir.path());
    for (log, says) in [
        ("foreign", "foreign"),
        ("foreign/thesis.txt", "thesis.txt"),
        ("foreign/thesis.txt/log", "thesis.txt/log"),
    ] {
        for check in [true, false] {
            let mut record = strata();
            record
                .current_dir(dir.path())
                .arg("record")
                .arg("-r")
                .arg(trace());
            record.args(["-o", log]).args(check.then_some("--check"));
            let output = record.output().unwrap();
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{record:?}: {text}");
            assert!(text.contains(says), "{text}");
            assert_eq!(tree(dir.path()), before);
        }
    }
}

#[test]
fn the_check_looks_at_interfaces_and_users() {
    if !may_use_kernel("interfaces") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (input, case) in [
        (["-i", "nosuch0"], case("", &[], "nosuch0")),
        (
            ["-i", "lo"],
            case("", &["-Z", "nobody-of-this-name"], "nobody-of-this-name"),
        ),
        (["-i", "lo"], case("", &["--cores", "9-x"], "--cores")),
        (
            ["-i", "lo"],
            case("", &["--cores", "5-2"], "ranges from low to high"),
        ),
        (
            ["-i", "lo"],
            case("", &["--cores", "0,5-2"], "'5-2': write ranges"),
        ),
        (
            ["-i", "lo"],
            case("", &["--cores", "1023"], "CPU 1023 cannot be used; online"),
        ),
        (["-i", "lo"], case("", &["-B", "much"], "much")),
        (["-i", "lo,lo"], case("", &[], "named twice")),
        (["-i", "any,lo"], case("", &[], "named twice")),
        (
            ["-i", "lo"],
            case("", &["--disk-limit", "1M"], "--disk-limit"),
        ),
        (
            ["-i", "lo"],
            case("", &["--mirror-to", "lo"], "captured again"),
        ),
        (
            ["-i", "lo"],
            case("", &["wlan", "type", "mgt"], "cannot be applied to lo"),
        ),
    ] {
        refused(dir.path(), &input, &case);
    }
}

/// The link types of an input are known only once it is read: the log exists by then.
#[test]
fn a_filter_that_fits_no_interface_leaves_no_log() {
    let dir = tempfile::tempdir().unwrap();
    let record = |log: &str, filter: &[&str]| {
        let mut record = strata();
        record.current_dir(dir.path()).arg("record").arg("-r");
        record.arg(trace()).args(["-o", log]).args(filter);
        record.output().unwrap()
    };
    let output = record("made/here/log", &["wlan", "type", "mgt"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains("cannot be applied to any interface of the input: "),
        "{text}"
    );
    assert!(output.stdout.is_empty());
    assert_eq!(tree(dir.path()), Vec::<PathBuf>::new());
    // An existing log keeps its contents.
    assert!(record("old", &["tcp"]).status.success());
    let before = tree(dir.path());
    assert!(!record("old", &["wlan", "type", "mgt"]).status.success());
    let after = tree(dir.path());
    assert!(before.iter().all(|path| after.contains(path)));
}

#[test]
fn what_is_fine_is_said_to_be_and_nothing_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let config = "[control]\nlisten = '127.0.0.1:0'\ntoken_file = 'token'\nsocket = 'run/s.sock'\n\
                  [alerts]\nwebhook = 'http://127.0.0.1:9/alerts'\n\
                  [modes.x]\nbenign = 'header'\nanomalous = 'full'\n";
    secret(&dir.path().join("token"));
    fs::write(dir.path().join("strata.toml"), config).unwrap();
    let before = tree(dir.path());
    let mut record = strata();
    record
        .current_dir(dir.path())
        .arg("record")
        .arg("-r")
        .arg(trace());
    record.args([
        "--config",
        "strata.toml",
        "-o",
        "log",
        "--eve",
        "eve.sock",
        "--check",
    ]);
    let output = record.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(output.stdout, b"configuration OK\n");
    assert_eq!(tree(dir.path()), before);
}

/// A configuration can be checked before anybody knows what will be recorded with it.
#[test]
fn a_configuration_is_checked_without_an_input() {
    let dir = tempfile::tempdir().unwrap();
    let check = |config: &str| {
        fs::write(dir.path().join("strata.toml"), config).unwrap();
        let mut record = strata();
        record.current_dir(dir.path());
        record.args(["record", "--check", "--config", "strata.toml"]);
        record.output().unwrap()
    };
    let fine = check("mode = ['x']\n[modes.x]\nbenign = 'header'\nanomalous = 'full'\n");
    assert!(fine.status.success(), "{}", stderr(&fine));
    assert!(fine.stdout.starts_with(b"configuration OK; no input"));
    for (config, says) in [
        ("mode = ['x']\n", "unknown mode 'x'"),
        (
            "[modes.x]\nbenign = 'headr'\nanomalous = 'full'\n",
            "'headr'",
        ),
        (
            "[[policy]]\nmatch = 'tcp prot 80'\naction = 'full'\n",
            "prot",
        ),
        ("nothing = 1\n", "nothing"),
    ] {
        let refused = check(config);
        assert!(
            !refused.status.success() && stderr(&refused).contains(says),
            "{config}"
        );
    }
    assert_eq!(tree(dir.path()).len(), 1);
}

#[test]
fn an_input_that_is_forgotten_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("trace.pcap"), "").unwrap();
    for (words, says) in [
        (
            &["-o", "log"][..],
            "no input: name interfaces (-i eth0) or capture files (-r FILE)",
        ),
        (&["trace.pcap", "-o", "log"], "write -r trace.pcap"),
        (&["-o", "log", "trace.pcap"], "write -r trace.pcap"),
    ] {
        let mut record = strata();
        let refused = record
            .current_dir(dir.path())
            .arg("record")
            .args(words)
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(2), "{words:?}");
        assert!(
            stderr(&refused).contains(says),
            "{words:?}: {}",
            stderr(&refused)
        );
    }
    assert_eq!(tree(dir.path()).len(), 1);
}

/// What is valid but hardly meant is reported, by the check and at start.
#[test]
fn modes_that_keep_nothing_and_policies_for_nothing_are_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let config = "[modes.log-all]\nbenign = 'drop'\nanomalous = 'drop'\n\
                  [[policy]]\nmatch = 'tcp'\naction = 'full'\ninterface = 'nope'\n\
                  [elastic]\ndisk_space_percent = 200\n";
    fs::write(dir.path().join("strata.toml"), config).unwrap();
    let check = |input: &[&str]| {
        let mut record = strata();
        record.current_dir(dir.path()).arg("record").args(input);
        record.args(["--config", "strata.toml", "-o", "log", "--check"]);
        let output = record.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let text = check(&["-r", trace().to_str().unwrap()]);
    assert!(text.contains("warning: mode log-all drops"), "{text}");
    // A capture file may have an interface of any name.
    assert!(!text.contains("nope"), "{text}");
    if may_use_kernel("interfaces") {
        let text = check(&["-i", "lo"]);
        assert!(
            text.contains("warning: a policy is for interface nope"),
            "{text}"
        );
        assert!(
            text.contains("warning: elastic.disk_space_percent is 200 %"),
            "{text}"
        );
    }
}

#[test]
fn a_token_that_is_sent_in_the_clear_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    secret(&dir.path().join("token"));
    let check = |listen: &str| {
        let config = format!("[control]\nlisten = '{listen}'\ntoken_file = 'token'\n");
        fs::write(dir.path().join("strata.toml"), config).unwrap();
        let mut record = strata();
        record.current_dir(dir.path()).arg("record");
        record.args(["--config", "strata.toml", "-o", "log", "--check"]);
        let output = record.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    for open in [
        "0.0.0.0:9477",
        "[::]:9477",
        "192.0.2.7:9477",
        "sensor.example:9477",
    ] {
        let text = check(open);
        assert!(
            text.contains(&format!("warning: control.listen is {open}"))
                && text.contains("tls_cert"),
            "{text}"
        );
    }
    for own in ["127.0.0.1:9477", "[::1]:9477", "localhost:9477"] {
        let text = check(own);
        assert!(!text.contains("control.listen"), "{text}");
    }
}

/// Options that would have no effect on files are refused; those of tcpdump are warned of.
#[test]
fn options_of_interfaces_are_not_ignored_in_silence() {
    let dir = tempfile::tempdir().unwrap();
    let record = |options: &[&str]| {
        let mut record = strata();
        record.current_dir(dir.path()).args(["record", "-r"]);
        record.arg(trace()).args(["-o", "log"]).args(options);
        record.output().unwrap()
    };
    for options in [
        &["--cores", "0"][..],
        &["--cpu", "10%"],
        &["--exclusive"],
        &["--early-cut"],
        &["--bridge-ports", "tap0,tap1"],
        &["--disk-limit", "1G"],
        &["-W", "3"],
    ] {
        let output = record(options);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {text}");
        assert!(text.contains(options[0]) && text.contains("-i"), "{text}");
    }
    assert!(!dir.path().join("log").exists());
    let output = record(&["-B", "4096", "-Z", "nobody"]);
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("warning: -B has no effect") && text.contains("-Z has"),
        "{text}"
    );
}

#[test]
fn a_check_beside_a_running_recording_is_fine() {
    if !may_use_kernel("a recording of lo") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s.sock");
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let config = format!("[control]\nsocket = 's.sock'\nlisten = '{free}'\ntoken_file = 'token'\n");
    secret(&dir.path().join("token"));
    fs::write(dir.path().join("strata.toml"), config).unwrap();
    let record = || {
        let mut record = strata();
        record.current_dir(dir.path());
        record.args(["record", "-i", "lo", "-o", "log", "--config", "strata.toml"]);
        record
    };
    let mut running = record()
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // Packets are counted once the log exists.
    let seen = |status: &serde_json::Value| {
        let ping = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        ping.send_to(b"ping", "127.0.0.1:9").unwrap();
        status["interfaces"][0]["received"].as_u64() > Some(0)
    };
    wait_for(&socket, "it records", seen);
    let checked = record().arg("--check").output().unwrap();
    let second = record().output().unwrap();
    running.kill().unwrap();
    running.wait().unwrap();
    let text = stderr(&checked);
    assert!(checked.status.success(), "{text}");
    assert!(
        text.contains("another process is recording into it now"),
        "{text}"
    );
    assert_eq!(second.status.code(), Some(1));
    // With the recording gone, its addresses are free, and the log can be added to.
    assert!(record().arg("--check").output().unwrap().status.success());
}
