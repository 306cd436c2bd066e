//! What a policy would have kept, against a recording of the same with that policy.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::http::{Serving, quoted};
use super::logs::{capture, counted, number};
use crate::common::program::{ok, record};

/// Packets of which one in ten is enough to tell the sizes of all.
const SAMPLE_MIN: u64 = 1000;

/// What the page says of a policy.
fn checked(serving: &Serving, filter: &str, action: &str) -> Value {
    let asked = json!({"match": filter, "action": action, "log": "0"});
    let answer = serving.change("POST", "/api/v1/policies/check", &asked);
    assert_eq!(answer.status, 200, "{}", answer.head);
    answer.json()["matched"]["would"].clone()
}

/// Bytes that a recording with the policy has of what it matches.
fn with_policy(dir: &Path, filter: &str, action: &str) -> u64 {
    let (rules, log) = (dir.join("rules"), dir.join("with"));
    let _ = fs::remove_dir_all(&log);
    let rule = format!("[[policy]]\nmatch = \"{filter}\"\naction = \"{action}\"\n");
    fs::write(&rules, rule).unwrap();
    ok(record(capture(), &log).arg("--policy").arg(&rules));
    let serving = Serving::start(&[&log], &[]);
    let (result, _) = serving.search(&format!("filter={}", quoted(filter)));
    number(&result["kept_bytes"])
}

#[test]
fn what_is_counted_for_a_policy_of_one_interface_is_remarked_on() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(capture(), &log));
    let serving = Serving::start(&[&log], &[]);
    let checked = |interface: Value| {
        let asked = json!({"match": "tcp", "action": "drop", "log": "0", "interface": interface});
        let answer = serving.change("POST", "/api/v1/policies/check", &asked);
        assert_eq!(answer.status, 200, "{}", answer.head);
        answer.json()
    };
    let remark = |checked: &Value| checked["matched"]["covered"]["remark"].to_string();
    assert!(!remark(&checked(Value::Null)).contains("all interfaces"));
    assert!(remark(&checked(json!("eth0"))).contains("all interfaces"));
    assert_eq!(checked(json!(""))["error"]["field"], "interface");
}

#[test]
fn what_a_policy_would_keep_is_what_a_recording_with_it_keeps() {
    let dir = tempfile::tempdir().unwrap();
    let (all, sampled) = (dir.path().join("all"), dir.path().join("sampled"));
    ok(record(capture(), &all).args(["--mode", "log-all"]));
    ok(record(capture(), &sampled).args(["--mode", "log-sampled"]));
    let (all, sampled) = (
        Serving::start(&[&all], &[]),
        Serving::start(&[&sampled], &[]),
    );
    for (filter, action) in [
        ("tcp", "header"),
        ("tcp", "partial 64"),
        ("udp", "full"),
        ("udp", "drop"),
    ] {
        let expected = with_policy(dir.path(), filter, action);
        let would = checked(&all, filter, action);
        assert_eq!(would["exact"], true, "{filter} {action}: {would}");
        assert_eq!(
            number(&would["kept_bytes"]),
            expected,
            "{filter} {action}: {would}"
        );
        assert_eq!(number(&would["packets"]), counted(filter), "{would}");
        // From a sample it is a guess, but not of another size.
        let would = checked(&sampled, filter, action);
        assert_eq!(would["exact"], false, "{filter} {action}: {would}");
        let near = |said: &Value, is: u64| {
            let said = number(said);
            assert!(
                said * 2 >= is && said <= is * 2,
                "{filter} {action}: {would}, not {is}"
            );
        };
        if counted(filter) >= SAMPLE_MIN {
            near(&would["kept_bytes"], expected);
            near(&would["packets"], counted(filter));
        }
    }
    assert!(counted("tcp") >= SAMPLE_MIN);
    // The model decides: the outcome is unknown.
    assert_eq!(checked(&all, "tcp", "classify"), Value::Null);
}
