//! Interfaces by another name and by number, as `ip link` shows them.

use std::process::Command;

use serde_json::Value;

use super::live::{FAR, PACKETS, Recording, namespace, until};

const STRATA: &str = env!("CARGO_BIN_EXE_strata");

/// Short enough to be a name itself, and longer than any name.
const ALTNAMES: [&str; 2] = ["st-mirror", "st-mirror-port-of-the-switch-in-rack-seven"];

#[test]
fn interfaces_have_other_names_and_numbers() {
    let Some(namespace) = namespace("altnames") else {
        return;
    };
    let inside = |program: &str, arguments: &[&str]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace.name(), program]);
        command.args(arguments).output().unwrap()
    };
    for other in ALTNAMES {
        namespace.ip(&format!("link property add dev {FAR} altname {other}"));
    }
    let links = inside("ip", &["-j", "link", "show", FAR]).stdout;
    let links: Value = serde_json::from_slice(&links).unwrap();
    let number = links[0]["ifindex"].to_string();
    let given = [&ALTNAMES[..], &[FAR, number.as_str()]].concat();
    for name in &given {
        let output = inside(STRATA, &["interfaces", "--json", name]);
        let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(listed[0]["name"], FAR, "{name}");
    }
    let dir = tempfile::tempdir().unwrap();
    let other_log = dir.path().join("other");
    let other_log = other_log.to_str().unwrap();
    // One interface, twice; a number and a name that none has.
    for (names, why) in [
        (format!("{FAR},{}", ALTNAMES[1]), FAR),
        ("2147483647".to_owned(), "2147483647"),
        (
            "st-mirror-port-of-no-switch".to_owned(),
            "st-mirror-port-of-no-switch",
        ),
    ] {
        let output = inside(
            STRATA,
            &["record", "-o", other_log, "--check", "-i", &names],
        );
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(why), "{said}");
    }
    // Commas separate interfaces.
    namespace.ip("link add name st-a,st-b type veth peer name st-c");
    namespace.ip("link set st-a,st-b up");
    let links = inside("ip", &["-j", "link", "show", "st-a,st-b"]).stdout;
    let links: Value = serde_json::from_slice(&links).unwrap();
    let number = links[0]["ifindex"].to_string();
    let check = |interface: &str| {
        inside(
            STRATA,
            &["record", "-o", other_log, "--check", "-i", interface],
        )
    };
    let said = String::from_utf8(check("st-a,st-b").stderr).unwrap();
    let advice = format!("'st-a,st-b' (commas separate names: give its number, {number})");
    assert!(said.contains(&advice), "{said}");
    assert!(check(&number).status.success());
    let log = dir.path().join("log");
    let recording = Recording::start_on(ALTNAMES[1], &namespace, &log, &["--mode", "log-all"]);
    recording.send(&namespace);
    until("all are logged", || {
        recording.packets("logged", "") == PACKETS
    });
    assert_eq!(recording.status()["interfaces"][0]["name"], FAR);
    recording.signal("INT");
    recording.ended();
}
