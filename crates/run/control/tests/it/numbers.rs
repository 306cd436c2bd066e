//! Whatever number a request holds, there is an answer, and a timed mode ends.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use strata_classify::Model;
use strata_control::api::{Endpoints, Server, serve};
use strata_control::{Controller, MODE_PERIOD_MAX, Observed, Settings};
use strata_sandbox::{Owner, SocketFile};
use strata_testkit::workspace_root;

/// Numbers that JSON allows, and some that only look like one.
const EXTREMES: &[&str] = &[
    "0",
    "-0",
    "-0.0",
    "-1",
    "1",
    "1e-9",
    "1e-300",
    "1e19",
    "1e308",
    "1e400",
    "-1e400",
    "NaN",
    "Infinity",
    "-Infinity",
    "255",
    "256",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "0x10",
    "1.5",
    "null",
    "\"1\"",
    "true",
    "[]",
];

struct Api {
    dir: tempfile::TempDir,
    controller: Arc<Controller>,
    _server: Server,
}

impl Api {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let json = std::fs::read(workspace_root().join("models/default.json")).unwrap();
        let beginning = Settings {
            modes: vec!["default".into()],
            ..Settings::default()
        };
        let model = Model::from_json(&json).unwrap();
        let controller = Arc::new(Controller::new(model, beginning).unwrap());
        let path = dir.path().join("api.sock");
        let endpoints = Endpoints {
            socket: Some(SocketFile::bind(&path, &Owner::default()).unwrap()),
            tcp: None,
        };
        strata_sandbox::leave_unrestricted();
        let server = serve(Arc::clone(&controller), endpoints).unwrap();
        Self {
            dir,
            controller,
            _server: server,
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    /// The status code of the answer. There always is one.
    fn status(&self, method: &str, path: &str, body: &str) -> u16 {
        self.answer(method, path, body).0
    }

    /// The status code of an answer, and all of it.
    fn answer(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let limit = Some(Duration::from_secs(30));
        stream.set_read_timeout(limit).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
             connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.strip_prefix("HTTP/1.1 ").and_then(|a| a.get(..3));
        let status = status.and_then(|digits| digits.parse().ok());
        let status = status.unwrap_or_else(|| panic!("{method} {path} {body}: {answer:?}"));
        (status, answer)
    }

    /// Requests a timed mode, and lets its time pass; returns whether it was accepted.
    fn mode_for(&self, seconds: &str) -> bool {
        let body = format!("{{\"mode\":\"log-all\",\"seconds\":{seconds}}}");
        let status = self.status("PUT", "/api/v1/mode", &body);
        assert!([200, 400, 422].contains(&status), "{seconds}: {status}");
        if seconds != "null" {
            let later = Instant::now() + MODE_PERIOD_MAX;
            self.controller.tick(later, Observed::default());
            assert_eq!(self.controller.status().mode, "default", "{seconds}");
        }
        status == 200
    }
}

#[test]
fn extreme_numbers_are_answered() {
    let api = Api::start();
    for number in EXTREMES {
        let accepted = api.mode_for(number);
        let fits = number
            .parse()
            .is_ok_and(|n: f64| (1e-9..=31_536_000.0).contains(&n));
        assert_eq!(accepted, fits || *number == "null", "{number}");
        api.controller
            .set_modes(&["default".into()], None, "test", "")
            .unwrap();

        let body = format!("{{\"match\":\"tcp\",\"action\":\"drop\",\"priority\":{number}}}");
        let added = api.status("POST", "/api/v1/policies", &body);
        let fits = number.parse::<u16>().is_ok();
        assert_eq!(added, if fits { 201 } else { added.max(400) }, "{number}");

        let action = format!("{{\"match\":\"tcp\",\"action\":\"partial {number} 1/{number}\"}}");
        let added = api.status("POST", "/api/v1/policies", &action);
        assert!([201, 400].contains(&added), "{number}: {added}");

        let path = format!("/api/v1/policies/{number}").replace('"', "%22");
        let removed = api.status("DELETE", &path, "");
        assert!([204, 400, 404].contains(&removed), "{number}: {removed}");
    }
    // A refused request does not cancel an earlier mode.
    assert!(api.mode_for("3600"));
}

/// Whether this crate or a library below it refuses, clients read one form.
#[test]
fn refusals_have_one_form() {
    let api = Api::start();
    for (method, path, body, status, said) in [
        ("GET", "/api/v1/none", "", 404, "openapi.json"),
        ("GET", "/", "", 404, "openapi.json"),
        ("POST", "/api/v1/mode", "{}", 405, "openapi.json"),
        ("PUT", "/api/v1/mode", "{", 400, "EOF"),
        ("PUT", "/api/v1/mode", "{}", 422, "mode"),
        ("PUT", "/api/v1/mode", r#"{"mode":"none"}"#, 400, "none"),
        ("DELETE", "/api/v1/policies/x", "", 400, "x"),
        ("DELETE", "/api/v1/policies/7", "", 404, "7"),
    ] {
        let (refused, answer) = api.answer(method, path, body);
        assert_eq!(refused, status, "{method} {path} {body}: {answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let head = head.to_ascii_lowercase();
        assert!(head.contains("content-type: application/json"), "{answer}");
        assert_eq!(head.contains("\nallow: put"), status == 405, "{answer}");
        let refusal: serde_json::Value = serde_json::from_str(body).unwrap();
        assert!(refusal["error"].as_str().unwrap().contains(said), "{body}");
    }
}

/// After a refused time, an earlier one still ends on schedule.
#[test]
fn refused_times_change_nothing() {
    let api = Api::start();
    let body = "{\"mode\":\"log-all\",\"seconds\":60}";
    assert_eq!(api.status("PUT", "/api/v1/mode", body), 200);
    let body = "{\"mode\":\"log-minimum\",\"seconds\":1e19}";
    assert_eq!(api.status("PUT", "/api/v1/mode", body), 400);
    assert_eq!(api.controller.status().mode, "log-all");
    let later = Instant::now() + Duration::from_secs(61);
    api.controller.tick(later, Observed::default());
    assert_eq!(api.controller.status().mode, "default");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_time_is_answered_and_ends(seconds in proptest::num::f64::ANY) {
        thread_local!(static API: Api = Api::start());
        API.with(|api| api.mode_for(&format!("{seconds:e}")));
    }
}
