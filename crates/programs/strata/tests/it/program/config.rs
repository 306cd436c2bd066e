//! `strata config`: a file to start from, and what is in force.

use std::fs;

use serde_json::{Value, json};

use crate::common::program::{failed, ok, strata};

#[test]
fn a_file_to_start_from_is_made_once_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("strata.toml");
    ok(strata().args(["config", "init"]).arg(&path));
    let made = fs::read_to_string(&path).unwrap();
    assert_eq!(made, ok(strata().args(["config", "init"])));
    let show = |file: bool| {
        let mut command = strata();
        command.args(["config", "show", "--json"]);
        if file {
            command.arg("--config").arg(&path);
        }
        let answer: Value = serde_json::from_str(&ok(&mut command)).unwrap();
        answer["keys"].clone()
    };
    assert_eq!(show(true), show(false));
    // What has been edited since is not lost.
    fs::write(&path, "mode = ['log-all']\n").unwrap();
    let said = failed(strata().args(["config", "init"]).arg(&path));
    let wanted = format!("strata: {}: cannot make it", path.display());
    assert!(said.starts_with(&wanted), "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "mode = ['log-all']\n");
}

#[test]
fn each_value_has_its_origin() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("strata.toml");
    let text =
        "mode = ['log-all']\ndetail = '5%'\n[[policy]]\nmatch = 'port 53'\naction = 'full'\n";
    fs::write(&path, text).unwrap();
    let show = |arguments: &[&str]| {
        let mut command = strata();
        command.args(["config", "show"]).args(arguments);
        command.env("STRATA_CONFIG", &path);
        command
            .env("STRATA_DETAIL", "20%")
            .env("STRATA_POLICY", "p.toml");
        ok(&mut command)
    };
    let answer: Value = serde_json::from_str(&show(&["--json"])).unwrap();
    assert_eq!(answer["file"], path.to_str().unwrap());
    let key = |name: &str| {
        let mut keys = answer["keys"].as_array().unwrap().iter();
        keys.find(|key| key["name"] == name).unwrap().clone()
    };
    for (name, value, from) in [
        ("mode", json!(["log-all"]), "file"),
        ("detail", json!("20%"), "STRATA_DETAIL"),
        ("policy.1.match", json!("port 53"), "file"),
        ("policy.1.protect", json!(false), "default"),
        ("elastic.enabled", json!(true), "default"),
        ("memory", Value::Null, "default"),
    ] {
        assert_eq!(
            key(name),
            json!({"name": name, "value": value, "from": from})
        );
    }
    let policies = json!({"name": "--policy", "value": "p.toml", "from": "STRATA_POLICY"});
    assert_eq!(answer["options"], json!([policies]));
    // For people: what an absent value means, and on request only what is changed.
    let page = show(&[]);
    assert!(
        page.starts_with(&format!("file: {}\n", path.display())),
        "{page}"
    );
    let of_memory = page
        .lines()
        .find(|line| line.starts_with("memory "))
        .unwrap();
    assert!(
        of_memory.contains("a sixteenth of the machine's memory"),
        "{page}"
    );
    let changed = show(&["--changed"]);
    assert!(!changed.contains("default\n"), "{changed}");
    assert_eq!(changed.lines().count(), 2 + 1 + 5, "{changed}");
}

#[test]
fn a_report_has_what_is_asked_for_and_no_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("strata.toml");
    let text = "mode = ['log-all']\n[elastic]\nremove_percent = 90\n[alerts]\n\
                webhook = 'https://user:hunter2@example.com/hook'\ntoken_file = 'hunter2'\n";
    fs::write(&path, text).unwrap();
    let out = dir.path().join("report.txt");
    let missing = dir.path().join("missing");
    let mut command = strata();
    command
        .args(["bug-report", "-o"])
        .arg(&out)
        .arg("--config")
        .arg(&path);
    command.arg(&missing).env("STRATA_EXAMPLE", "a-secret");
    command.env("STRATA_DETAIL", "17%");
    let output = command.output().unwrap();
    assert!(output.status.success());
    let report = fs::read_to_string(&out).unwrap();
    for part in [
        "== version\n  strata ",
        "commit: ",
        "\n== machine\n  Linux ",
        "\n  CapEff: ",
        "== interfaces\n  ",
        "\n  alerts.webhook = (set, not shown)\n",
        "\n  elastic.remove_percent = 90.0\n",
        "\n  mode = [\"log-all\"]\n",
        "\n  detail = (of STRATA_DETAIL)\n",
        "missing: no log here",
        "STRATA_EXAMPLE",
    ] {
        assert!(report.contains(part), "{part:?}: {report}");
    }
    assert!(
        !["secret", "hunter2", "17%"]
            .iter()
            .any(|of| report.contains(of)),
        "{report}"
    );
    // It does not write over what is there.
    let said = failed(strata().args(["bug-report", "-o"]).arg(&out));
    assert!(
        said.contains("report.txt: cannot write the report"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&out).unwrap(), report);
}

#[test]
fn a_report_has_nothing_of_a_file_that_is_no_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("strata.toml");
    for (text, says) in [
        // A line without its last quote.
        (
            "[alerts]\nwebhook = \"https://u:hunter2@h/x\n",
            "line 2, column ",
        ),
        (
            "[alerts]\nwebhook = \"u:hunter2@h/x\"\n",
            "alerts.webhook: an invalid value",
        ),
        ("detail = 'hunter2'\n", "detail: an invalid value"),
        // A key of age, a file of tokens.
        (
            "# created: 2026\nAGE-SECRET-KEY-1hunter2\n",
            "line 2, column ",
        ),
        ("hunter2 analyst alice\n", "line 1, column "),
        ("hunter2 = 'analyst'\n", "an unknown key"),
    ] {
        fs::write(&path, text).unwrap();
        let output = strata()
            .args(["bug-report", "--config"])
            .arg(&path)
            .output()
            .unwrap();
        assert!(output.status.success());
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        let said = said.concat();
        assert!(
            said.contains("strata.toml: ") && said.contains(says),
            "{says}: {said}"
        );
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn what_a_recording_refuses_is_not_shown_as_in_force() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("strata.toml");
    for (text, says) in [
        ("detail = '99999999999999999GB/s'\n", "detail: "),
        ("[alerts]\nwebhook = 'ftp://x'\n", "alerts.webhook: "),
    ] {
        fs::write(&path, text).unwrap();
        let said = failed(strata().args(["config", "show", "--config"]).arg(&path));
        assert!(
            said.contains("strata.toml: ") && said.contains(says),
            "{said}"
        );
    }
}
