//! Alerts to a small server: they arrive, are retried, and never make anybody wait.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_control::Event;
use strata_control::alerts::{AlertCounts, AlertSender, Webhook, WebhookError};

/// Answers successive requests with these statuses, and passes on each request: the header lines,
/// and the body.
fn server(statuses: &'static [u16]) -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (came, received) = mpsc::channel();
    thread::spawn(move || {
        for status in statuses {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert!(reader.read_line(&mut head).unwrap() > 0);
            }
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                let is_length = name.eq_ignore_ascii_case("content-length");
                is_length.then(|| value.trim().parse::<usize>().unwrap())
            });
            let mut body = vec![0; length.unwrap()];
            reader.read_exact(&mut body).unwrap();
            came.send((head, serde_json::from_slice(&body).unwrap()))
                .unwrap();
            let answer =
                format!("HTTP/1.1 {status} -\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    (url, received)
}

fn event(what: &str) -> Event {
    Event {
        at: String::from("2026-01-31T13:00:00Z"),
        who: String::from("strata"),
        what: what.to_owned(),
        why: String::from("disk_space is short: 96 % in use"),
        is_alert: true,
    }
}

fn wait_for(alerts: &AlertSender, wanted: AlertCounts) {
    let start = Instant::now();
    while alerts.counts() != wanted {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{:?}",
            alerts.counts()
        );
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_alert_is_sent_again_until_the_server_takes_it() {
    let (url, received) = server(&[500, 503, 204, 200]);
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    let with_mode = |mode| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&token, permissions).unwrap();
    };
    let webhook = Webhook {
        url,
        token_file: Some(token.clone()),
        ca_file: None,
    };
    with_mode(0o644);
    let refused = AlertSender::start(&webhook, String::new()).unwrap_err();
    assert!(refused.to_string().contains("chmod 600"), "{refused}");
    with_mode(0o600);
    strata_sandbox::leave_unrestricted();
    let alerts = AlertSender::start(&webhook, String::from("/var/log/strata")).unwrap();
    alerts.send(&event("mode log-sampled"));
    alerts.send(&event("mode default"));
    for what in [
        "mode log-sampled",
        "mode log-sampled",
        "mode log-sampled",
        "mode default",
    ] {
        let (head, body) = received.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(head.starts_with("POST /hook HTTP/1.1\r\n"), "{head}");
        let head = head.to_ascii_lowercase();
        assert!(head.contains("authorization: bearer secret\r\n"), "{head}");
        assert!(
            head.contains("content-type: application/json\r\n"),
            "{head}"
        );
        assert_eq!(body["what"], what);
        assert_eq!(body["why"], "disk_space is short: 96 % in use");
        assert_eq!(body["log"], "/var/log/strata");
    }
    wait_for(
        &alerts,
        AlertCounts {
            sent: 2,
            ..AlertCounts::default()
        },
    );
}

/// A server that accepts connections but never answers: senders of alerts do not notice, and alerts
/// that do not fit the queue are counted.
#[test]
fn a_server_that_does_not_answer_does_not_delay_others() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let webhook = Webhook {
        url: format!("http://{}/", listener.local_addr().unwrap()),
        ..Webhook::default()
    };
    strata_sandbox::leave_unrestricted();
    let alerts = AlertSender::start(&webhook, String::new()).unwrap();
    for _ in 0..1_000 {
        alerts.send(&event("x"));
    }
    let counts = alerts.counts();
    assert_eq!((counts.sent, counts.failed), (0, 0));
    // One may be in flight.
    assert!((743..=744).contains(&counts.dropped), "{counts:?}");
    // Do not join the thread, which still waits for its answers.
    std::mem::forget(alerts);
}

#[test]
fn what_is_wrong_with_a_webhook_is_said_at_once() {
    let start = |url: &str, ca: Option<&str>| {
        let webhook = Webhook {
            url: url.to_owned(),
            token_file: None,
            ca_file: ca.map(Into::into),
        };
        AlertSender::start(&webhook, String::new()).unwrap_err()
    };
    let error = start("example.com/hook", None);
    assert!(matches!(error, WebhookError::Address), "{error}");
    let error = start("https://example.com/", Some("/nonexistent.pem")).to_string();
    assert!(error.starts_with("/nonexistent.pem: "), "{error}");
    let error = start("https://example.com/", Some("/dev/null")).to_string();
    assert_eq!(error, "/dev/null: contains no certificate");
}
