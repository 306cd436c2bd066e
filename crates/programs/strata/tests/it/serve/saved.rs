//! What users keep with the server: questions, and labels for training.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::http::Serving;
use super::logs::capture;
use crate::common::program::{ok, record, strata};

const TOKENS: [(&str, &str); 3] = [
    ("look", "look-0123456789abcdef"),
    ("payload", "payload-0123456789abcdef"),
    ("change", "change-0123456789abcdef"),
];

/// A log, and a directory to keep things in.
struct Kept {
    dir: tempfile::TempDir,
}

impl Kept {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        ok(&mut record(capture(), dir.path().join("log")));
        Self { dir }
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn serve(&self, more: &[&str]) -> Serving {
        let state = self.file("state");
        let more = [&["--state", state.as_str()], more].concat();
        Serving::start(&[Path::new(&self.file("log"))], &more)
    }

    fn tokens(&self) -> String {
        let file = self.file("tokens");
        let lines = TOKENS.map(|(role, token)| format!("{role} {token}\n"));
        fs::write(&file, lines.concat()).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        file
    }
}

/// The flow with most packets that a filter finds.
fn flow(serving: &Serving, filter: &str) -> Value {
    let (_, search) = serving.search(&format!("filter={filter}"));
    let path = format!("/api/v1/searches/{search}/flows?sort=packets&order=desc&limit=1");
    serving.json(&path)["rows"][0].clone()
}

fn lines(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_flow_is_labelled_as_the_command_line_does_it() {
    let kept = Kept::new();
    let serving = kept.serve(&[]);
    assert_eq!(serving.json("/api/v1/session")["keeps"], true);
    let label = |flow: &Value, label: &str| {
        let body = json!({"flow": flow["id"], "label": label});
        serving.change("POST", "/api/v1/logs/0/labels", &body)
    };
    let labels = kept.file("state/labels.json");
    for (filter, name) in [("tcp", "scan it"), ("udp", "benign"), ("icmp", "ping")] {
        let flow = flow(&serving, filter);
        let answer = label(&flow, name);
        let said = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(answer.status, 200, "{said}");
        let done = answer.json();
        assert!(done["what"].as_str().unwrap().contains("1 new"), "{said}");
        // The command that is shown writes the same.
        let own = kept.file("own.json");
        let line = done["command"].as_str().unwrap().replace(&labels, &own);
        let line = line.replacen("strata", env!("CARGO_BIN_EXE_strata"), 1);
        ok(Command::new("sh").args(["-c", &line]));
        assert_eq!(lines(&labels), lines(&own), "{line}");
        let last = lines(&labels);
        let last = last.iter().find(|line| line["label"] == name).unwrap();
        let ends = [&last["id.orig_h"], &last["id.resp_h"]];
        assert!(ends.contains(&&flow["src"]) && ends.contains(&&flow["dst"]));
    }
    // Once more: the new label only.
    let tcp = flow(&serving, "tcp");
    assert_eq!(label(&tcp, "worm").status, 200);
    let labels = lines(&labels);
    let names: Vec<&Value> = labels.iter().map(|line| &line["label"]).collect();
    assert!(names.contains(&&json!("worm")) && !names.contains(&&json!("scan it")));
    let arp = flow(&serving, "arp");
    for (flow, name, field) in [
        (&tcp, "", "label"),
        (&tcp, "-", "label"),
        (&json!({"id": "6_10.0.0.1_1_10.0.0.2_2"}), "scan", "flow"),
        (&json!({"id": "--output=x"}), "scan", "flow"),
        (&arp, "scan", "flow"),
    ] {
        let answer = label(flow, name);
        let said = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(answer.status, 400, "{said}");
        assert_eq!(answer.json()["field"], field, "{said}");
    }
    let audit = serving.json("/api/v1/audit").to_string();
    assert!(audit.contains("1 flow labelled worm"), "{audit}");
}

#[test]
fn questions_are_kept_for_everybody_and_over_a_restart() {
    let kept = Kept::new();
    let question = json!({"name": "a/b ?", "language": "sql", "text": "SELECT 1"});
    {
        let serving = kept.serve(&[]);
        assert_eq!(serving.json("/api/v1/questions"), json!([]));
        let answer = serving.change("POST", "/api/v1/questions", &question);
        assert_eq!(answer.status, 204);
    }
    let serving = kept.serve(&[]);
    // A second server would lose what this one saves.
    let mut second = strata();
    let state = kept.file("state");
    let second = second.arg("serve").arg(kept.file("log"));
    let second = second.args(["--listen", "127.0.0.1:0", "--state", &state]);
    let second = second.output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(
        !second.status.success() && said.contains("another server"),
        "{said}"
    );
    let all = serving.json("/api/v1/questions");
    assert_eq!(
        (&all[0]["name"], &all[0]["by"]),
        (&json!("a/b ?"), &json!("local"))
    );
    let wrong = json!({"name": "x", "language": "lisp", "text": "1"});
    assert_eq!(
        serving.change("POST", "/api/v1/questions", &wrong).status,
        400
    );
    let gone = "/api/v1/questions/a%2Fb%20%3F";
    assert_eq!(serving.change("DELETE", gone, &Value::Null).status, 204);
    assert_eq!(serving.change("DELETE", gone, &Value::Null).status, 404);
    let audit = serving.json("/api/v1/audit").to_string();
    assert!(audit.contains("deleted the query 'a/b ?'"), "{audit}");
}

#[test]
fn who_may_not_keeps_nothing_and_no_other_page_does() {
    let kept = Kept::new();
    let tokens = kept.tokens();
    let question = json!({"name": "q", "language": "sql", "text": "SELECT 1"}).to_string();
    let labelling = json!({"flow": "6_10.0.0.1_1_10.0.0.2_2", "label": "scan"}).to_string();
    let asked = [
        ("POST", "/api/v1/questions", question.as_bytes()),
        ("DELETE", "/api/v1/questions/q", b""),
        // 400: it may, and there is no such flow.
        ("POST", "/api/v1/logs/0/labels", labelling.as_bytes()),
    ];
    let statuses = |serving: &Serving, head: &[&str]| {
        asked.map(|(method, path, body)| serving.send(method, path, head, body).status)
    };
    let serving = kept.serve(&["--token-file", &tokens]);
    let read_only = kept.serve(&["--token-file", &tokens, "--read-only"]);
    let without = Serving::start(&[Path::new(&kept.file("log"))], &["--token-file", &tokens]);
    for ((role, token), may) in TOKENS
        .into_iter()
        .zip([[403; 3], [204, 204, 403], [204, 204, 400]])
    {
        let who = format!("Authorization: Bearer {token}");
        let head = [who.as_str(), "X-Strata: 1"];
        assert_eq!(statuses(&serving, &head), may, "{role}");
        assert_eq!(statuses(&read_only, &head), [403; 3], "{role}");
        // Another page of the same browser does not know the header.
        assert_eq!(statuses(&serving, &[who.as_str()]), [403; 3], "{role}");
    }
    assert_eq!(statuses(&serving, &["X-Strata: 1"]), [401; 3]);
    let head = [
        &*format!("Authorization: Bearer {}", TOKENS[2].1),
        "X-Strata: 1",
    ];
    assert_eq!(statuses(&without, &head), [404; 3]);
    assert!(!Path::new(&kept.file("state/labels.json")).exists());
}
