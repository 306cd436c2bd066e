//! The walk-through of docs/telemetry.md, command by command, as an engineer runs it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// It has ended by then, even while other tests use the CPU.
const PATIENCE: Duration = Duration::from_secs(120);

/// The commands of the page.
fn commands() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/telemetry.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("```sh walk\n").skip(1);
    let blocks: Vec<&str> = blocks
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(blocks.len() >= 5, "the walk-through has its commands");
    blocks.concat()
}

#[test]
fn every_command_of_the_walk_through_does_what_the_page_says() {
    let dir = TempDir::new().unwrap();
    // Ports that are not in use, instead of those of the page.
    let free: Vec<UdpSocket> = (0..2)
        .map(|_| UdpSocket::bind("127.0.0.1:0").unwrap())
        .collect();
    let ports: Vec<String> = free
        .iter()
        .map(|socket| socket.local_addr().unwrap().port().to_string())
        .collect();
    drop(free);
    let script = commands()
        .replace("40040", &ports[0])
        .replace("32766", &ports[1]);
    let program = Path::new(env!("CARGO_BIN_EXE_strata")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let [said, errors] = ["said", "errors"].map(|name| dir.path().join(name));
    let mut child = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .current_dir(dir.path())
        .env("PATH", path)
        .stdout(File::create(&said).unwrap())
        .stderr(File::create(&errors).unwrap())
        // So that what it starts ends with it, whatever happens.
        .process_group(0)
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        let status = child.try_wait().unwrap();
        if status.is_some() || start.elapsed() > PATIENCE {
            break status;
        }
        thread::sleep(Duration::from_millis(50));
    };
    let group = format!("-{}", child.id());
    let _ = Command::new("kill")
        .args(["-KILL", "--", &group])
        .stderr(Stdio::null())
        .status();
    let [said, errors] = [said, errors].map(|file| fs::read_to_string(file).unwrap());
    let success = status.is_some_and(|status| status.success());
    assert!(success, "{said}\n{errors}");

    // The path that was found is the one that the flow took.
    let flows = fs::read_to_string(dir.path().join("flows.txt")).unwrap();
    let (flow, nodes) = flows.lines().next().unwrap().split_once('\t').unwrap();
    let found = fs::read_to_string(dir.path().join("path.json")).unwrap();
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["flow"], flow);
    let hops = found["hops"].as_array().unwrap();
    let path: Vec<String> = hops.iter().map(|hop| hop["node"].to_string()).collect();
    assert_eq!(path.join(" "), nodes);
    assert!(
        hops.iter()
            .all(|hop| hop["latency"].as_u64().unwrap() >= 600)
    );
    assert!(found["latency_at_least"].as_u64().unwrap() >= 600 * hops.len() as u64);
    assert!(
        found["latency"].is_null() && found["whole"] == false,
        "by INT-XD"
    );

    // And so is the answer over HTTP.
    let answer = fs::read_to_string(dir.path().join("path-http.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap(), found);

    // Events were pushed as they happened.
    let pushed = fs::read_to_string(dir.path().join("pushed.txt")).unwrap();
    let reports = pushed.lines().filter(|line| line.starts_with("data: {"));
    let congested = reports.filter(|line| line.contains("\"what\":\"congested\""));
    assert!(congested.count() > 10, "{pushed}");

    // Congestion was seen as it happened, at nodes that there are.
    let events = fs::read_to_string(dir.path().join("events.txt")).unwrap();
    assert!(!events.is_empty(), "{said}\n{errors}");
    let there: BTreeSet<&str> = flows
        .lines()
        .flat_map(|line| line.split('\t').nth(1).unwrap().split(' '))
        .collect();
    for event in events.lines() {
        let words: Vec<&str> = event.split(' ').collect();
        assert_eq!(words[..2], ["congested", "node"], "{event}");
        assert!(there.contains(words[2]), "{event}");
        assert_eq!(words[7], "value", "{event}");
        assert!(words[8].parse::<u32>().unwrap() >= 4000, "{event}");
    }
    assert!(
        said.contains("at least") && said.contains("INT datagrams"),
        "{said}"
    );
}
