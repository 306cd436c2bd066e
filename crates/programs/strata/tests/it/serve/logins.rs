//! Failed logins: they wait, longer each time, and are reported.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::{Answer, Serving};
use super::logs::capture;
use crate::common::program::{ok, record, strata};

const TOKEN: &str = "payload-0123456789abcdef";
const GUESS: &str = "guessed-0123456789abcdef";
/// Failures without a wait.
const FREE: usize = 5;

/// A server that IPv4 and IPv6 reach, which are two addresses of one client.
fn guarded() -> (tempfile::TempDir, Serving) {
    let dir = tempfile::tempdir().unwrap();
    let (log, file) = (dir.path().join("log"), dir.path().join("tokens"));
    ok(&mut record(capture(), &log));
    fs::write(&file, format!("payload {TOKEN}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let has_v6 = TcpListener::bind("[::]:0").is_ok();
    let listen = if has_v6 { "[::]:0" } else { "0.0.0.0:0" };
    let mut command = strata();
    command
        .arg("serve")
        .arg(&log)
        .args(["--listen", listen, "--token-file"])
        .arg(&file);
    (dir, Serving::of(&mut command))
}

fn log_in(serving: &Serving, token: &str) -> Answer {
    let body = json!({"token": token}).to_string();
    serving.send("POST", "/api/v1/session", &["X-Strata: 1"], body.as_bytes())
}

fn with_bearer(serving: &Serving, token: &str) -> Answer {
    let head = format!("Authorization: Bearer {token}");
    serving.send("GET", "/api/v1/logs", &[&head], b"")
}

/// Seconds to wait, as the answer says; 0 if there is no wait.
fn wait(answer: &Answer) -> u64 {
    match answer.status {
        401 => 0,
        429 => {
            assert_eq!(answer.json()["code"], "wait");
            let mut lines = answer.head.lines();
            let after = lines.find_map(|line| line.strip_prefix("retry-after: "));
            after.unwrap().parse().unwrap()
        }
        status => panic!("{status}: {}", answer.head),
    }
}

#[test]
fn failed_logins_wait_longer_each_time_and_are_told() {
    let (_dir, mut serving) = guarded();
    let cookie = log_in(&serving, TOKEN).head;
    let cookie = cookie
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "));
    let cookie = format!("Cookie: {}", cookie.unwrap().split(';').next().unwrap());
    // By the form, and as programs do; to show nothing is no attempt.
    for n in 0..FREE {
        assert_eq!(serving.send("GET", "/api/v1/logs", &[], b"").status, 401);
        let answer = match n % 2 {
            0 => log_in(&serving, GUESS),
            _ => with_bearer(&serving, GUESS),
        };
        assert_eq!(wait(&answer), 0, "{n}");
    }
    let seen = Instant::now();
    for answer in [
        log_in(&serving, TOKEN),
        with_bearer(&serving, TOKEN),
        with_bearer(&serving, GUESS),
    ] {
        assert_eq!(wait(&answer), 1, "nothing is looked at meanwhile");
    }
    // Who is logged in stays so, and who comes from elsewhere is not concerned.
    let session = |serving: &Serving| {
        serving
            .send("GET", "/api/v1/session", &[&cookie], b"")
            .status
    };
    assert_eq!(session(&serving), 200);
    let elsewhere = serving.address.replace("[::]", "127.0.0.1");
    let is_elsewhere = elsewhere != serving.address;
    let first = std::mem::replace(&mut serving.address, elsewhere);
    if is_elsewhere {
        assert_eq!(log_in(&serving, TOKEN).status, 200);
    }
    serving.address = first;
    // The wait is over at the announced time, and each further failure makes it twice as long.
    for expected in [2, 4] {
        let answer = loop {
            let answer = log_in(&serving, GUESS);
            if answer.status != 429 {
                break answer;
            }
            assert!(
                seen.elapsed() < Duration::from_secs(100),
                "it has to wait for ever"
            );
            thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(wait(&answer), 0);
        assert_eq!(wait(&log_in(&serving, TOKEN)), expected);
    }
    assert!(
        seen.elapsed() >= Duration::from_millis(2900),
        "{:?}",
        seen.elapsed()
    );
    let audit = serving.send("GET", "/api/v1/audit", &[&cookie], b"").json();
    let events: Vec<&Value> = audit.as_array().unwrap().iter().collect();
    let failed = |event: &&&Value| event["what"] == "could not log in: wrong token";
    let failed: Vec<&&Value> = events.iter().filter(failed).collect();
    assert_eq!(failed.len(), FREE + 2, "{audit:#}");
    let whys: Vec<&str> = failed
        .iter()
        .map(|event| event["why"].as_str().unwrap())
        .collect();
    assert!(
        whys[0].starts_with("failure 7 from this address, which waits 4 s; "),
        "{whys:?}"
    );
    assert!(
        whys[0].ends_with(" earlier attempts were not checked"),
        "{whys:?}"
    );
    assert_eq!(whys[FREE + 1], "failure 1 from this address");
    let who = if is_elsewhere { "::1" } else { "127.0.0.1" };
    assert!(failed.iter().all(|event| event["who"] == who), "{audit:#}");
    // Newest first, with what was done by others in its place.
    let times: Vec<&str> = events
        .iter()
        .map(|event| event["at"].as_str().unwrap())
        .collect();
    assert!(times.windows(2).all(|two| two[0] >= two[1]), "{audit:#}");
    assert!(!audit.to_string().contains(GUESS), "{audit:#}");
}

#[test]
fn a_flood_of_failed_logins_pushes_out_nothing_that_was_done() {
    let (_dir, serving) = guarded();
    let cookie = log_in(&serving, TOKEN).head;
    let cookie = cookie
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "));
    let cookie = format!("Cookie: {}", cookie.unwrap().split(';').next().unwrap());
    for _ in 0..1500 {
        with_bearer(&serving, GUESS);
    }
    let audit = serving.send("GET", "/api/v1/audit", &[&cookie], b"").json();
    let events = audit.as_array().unwrap();
    let is = |event: &&Value| event["what"] == "logged in";
    assert_eq!(events.iter().filter(is).count(), 1, "{audit:#}");
    assert!(events.len() < 30, "{}", events.len());
}
