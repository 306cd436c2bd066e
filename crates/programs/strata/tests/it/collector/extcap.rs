//! tshark lists what agents export among its interfaces, and captures it.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use strata_testkit::{Namespace, data_dir, may_use_kernel};

use crate::common::program::ok;
use crate::common::signal::signal;

/// Where Wireshark looks for a user's extcaps, from 4.2 on and before, below the home directory.
const FOLDERS: [&str; 2] = [".local/lib/wireshark/extcap", ".config/wireshark/extcap"];

/// A program that finds this one among its extcaps, and nothing of this user's.
fn with_extcap(program: &str, namespace: Option<&Namespace>, dir: &Path) -> Command {
    for folder in FOLDERS {
        let folder = dir.join(folder);
        if !folder.exists() {
            fs::create_dir_all(&folder).unwrap();
            symlink(env!("CARGO_BIN_EXE_strata"), folder.join("strata-extcap")).unwrap();
        }
    }
    let mut command = match namespace {
        None => Command::new(program),
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace.name(), program]);
            command
        }
    };
    command.env("HOME", dir).env_remove("XDG_CONFIG_HOME");
    command.env("STRATA_CONTROLLER", dir.join("none"));
    command.env("XDG_CACHE_HOME", dir.join("cache"));
    command
}

fn extcap(dir: &Path, arguments: &[&str]) -> (bool, String) {
    with_extcap("true", None, dir);
    let program = dir.join(FOLDERS[0]).join("strata-extcap");
    let mut command = with_extcap(program.to_str().unwrap(), None, dir);
    let output = command.args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn tshark_lists_it_and_knows_what_can_be_set() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir_all(dir.join("cache/strata")).unwrap();
    fs::write(dir.join("cache/strata/extcap"), "77 web-1:{eth0}\nodd\n").unwrap();
    let text = ok(with_extcap("tshark", None, dir).arg("-D"));
    for expected in [
        "strata (Strata: all agents and recordings)",
        "strata-77 (Strata: web-1:(eth0) (identity 77))",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    let text = ok(with_extcap("tshark", None, dir).args(["-i", "strata", "-L"]));
    assert!(text.contains("EN10MB"), "{text}");
    let (_, text) = extcap(dir, &["--extcap-interface", "strata", "--extcap-config"]);
    for option in ["--listen", "--allow", "--key-file"] {
        assert!(text.contains(&format!("{{call={option}}}")), "{text}");
    }
    for odd in ["eth0", "strata-x", "strata8"] {
        let (is_fine, text) = extcap(dir, &["--extcap-interface", odd, "--extcap-dlts"]);
        assert!(
            !is_fine && text.contains(&format!("no interface {odd}")),
            "{text}"
        );
    }
    let check = |filter| {
        let arguments = [
            "--extcap-interface",
            "strata",
            "--extcap-capture-filter",
            filter,
        ];
        extcap(dir, &arguments)
    };
    assert_eq!(check("tcp port 443"), (true, String::new()));
    let (is_fine, text) = check("tcp prt 443");
    assert!(!is_fine && text.contains("prt"), "{text}");
    let pipe = [
        "--capture",
        "--extcap-interface",
        "strata",
        "--fifo",
        "/dev/null",
    ];
    let (is_fine, text) = extcap(dir, &[&pipe[..], &["--listen", "0.0.0.0:0"]].concat());
    assert!(!is_fine && text.contains("--allow 192.0.2.0/24"), "{text}");
    let key = dir.join("key");
    fs::write(&key, "0").unwrap();
    let key = ["--key-file", key.to_str().unwrap()];
    let (is_fine, text) = extcap(dir, &[&pipe[..], &key].concat());
    assert!(
        !is_fine && text.contains("others can read this secret"),
        "{text}"
    );
}

struct Running(Child);

impl Drop for Running {
    /// As a user ends it, so that its extcap ends in order and frees the port.
    fn drop(&mut self) {
        signal(&self.0, "INT");
        let _ = self.0.wait();
    }
}

/// A key that senders and Wireshark share.
fn key_file(dir: &Path) -> PathBuf {
    let file = dir.join("export.key");
    let mut options = fs::OpenOptions::new();
    let mut made = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&file)
        .unwrap();
    std::io::Write::write_all(&mut made, "5a".repeat(32).as_bytes()).unwrap();
    file
}

/// What arrives is in tshark's capture: of all senders, of one identity only, what a filter matches.
#[test]
fn tshark_captures_what_is_exported() {
    if !may_use_kernel("tshark in a network namespace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let namespace = Namespace::new("st-extcap");
    namespace.ip("link set lo up");
    let key = key_file(dir);
    // As if something had been captured before.
    fs::create_dir_all(dir.join("cache/strata")).unwrap();
    fs::write(dir.join("cache/strata/extcap"), "8 host-8\n").unwrap();
    let export = |identity: u32| {
        let config = dir.join(format!("{identity}.toml"));
        let text = format!(
            "default = 'drop'\n[[policy]]\nmatch = 'tcp'\naction = 'header -> here'\n\
             [export]\nidentity = {identity}\nhost = 'host-{identity}'\nkey_file = '{}'\n\
             [export.destinations]\nhere = 'udp://127.0.0.1:4740'\n",
            key.display()
        );
        fs::write(&config, text).unwrap();
        let trace = data_dir().join("labelled/cic2017-sqli/trace.pcap");
        let mut command = with_extcap(env!("CARGO_BIN_EXE_strata"), Some(&namespace), dir);
        command
            .args(["record", "-r"])
            .arg(trace)
            .arg("--config")
            .arg(config);
        ok(&mut command);
    };
    let option = format!("extcap.strata.keyfile:{}", key.display());
    let option_8 = format!("extcap.strata_8.keyfile:{}", key.display());
    let web = "tcp src port 80";
    for (interface, filter, hosts) in [
        ("strata", "", vec!["host-7", "host-8"]),
        ("strata-8", "", vec!["host-8"]),
        ("strata-8", web, vec!["host-8"]),
    ] {
        let mut command = with_extcap("tshark", Some(&namespace), dir);
        let out = dir.join("out.txt");
        command.args(["-n", "-l", "-i", interface, "-f", filter]);
        command.args(["-o", &option, "-o", &option_8, "-T", "fields"]);
        command.args(["-e", "frame.interface_name", "-e", "tcp.srcport"]);
        command.stdout(fs::File::create(&out).unwrap());
        let errors = dir.join("errors.txt");
        command.stderr(fs::File::create(&errors).unwrap());
        let tshark = Running(command.spawn().unwrap());
        let started = Instant::now();
        loop {
            export(7);
            export(8);
            let text = fs::read_to_string(&out).unwrap();
            let lines: Vec<_> = text
                .lines()
                .filter_map(|line| line.split_once('\t'))
                .collect();
            let mut names: Vec<&str> = lines.iter().map(|(name, _)| *name).collect();
            names.sort_unstable();
            names.dedup();
            if names == hosts {
                let is_web = lines.iter().all(|(_, port)| *port == "80");
                assert_eq!(is_web, filter == web);
                break;
            }
            let waited = started.elapsed();
            assert!(waited < Duration::from_secs(60), "{interface}: {names:?}");
            thread::sleep(Duration::from_millis(200));
        }
        drop(tshark);
        // tshark shows all that an extcap says there as an error.
        let errors = fs::read_to_string(errors).unwrap();
        assert!(!errors.contains("strata: "), "{errors}");
    }
}
