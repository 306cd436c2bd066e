//! Why packets were kept, as shown to users: the same in both tiers, and for every packet.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use strata_capture::{Input, InputOptions, Next};
use strata_testkit::data_dir;
use strata_wire::pcapng::options;

use crate::common::program::{ok, strata};

fn trace() -> PathBuf {
    data_dir().join("labelled/mix-test/trace.pcap")
}

/// Packets by granularity and reason.
type Counts = BTreeMap<(String, String), u64>;

/// What `info --reasons` counts, which must be every packet of the log.
fn counted(log: &Path) -> (Counts, Value) {
    let json = ok(strata().args(["info", "--json", "--reasons"]).arg(log));
    let report: Value = serde_json::from_str(&json).unwrap();
    let mut counts = Counts::new();
    for each in report[0]["reasons"].as_array().unwrap() {
        let text = |name: &str| each[name].as_str().unwrap().to_owned();
        let packets = each["packets"].as_u64().unwrap();
        *counts
            .entry((text("granularity"), text("reason")))
            .or_default() += packets;
    }
    let of = |list: &Value| -> u64 {
        let list = list.as_array().unwrap().iter();
        list.map(|each| each["packets"].as_u64().unwrap()).sum()
    };
    assert_eq!(of(&report[0]["reasons"]), of(&report[0]["counts"]));
    assert_eq!(
        of(&report[0]["counts"]),
        report[0]["accounting"]["logged"][0].as_u64().unwrap()
    );
    (counts, report[0]["reasons"].clone())
}

/// The reasons in the comments of an export, counted.
fn commented(log: &Path, dir: &Path) -> Counts {
    let out = dir.join("out.pcapng");
    ok(strata().arg("export").arg(log).arg("-w").arg(&out));
    let mut input = Input::open(&[out], &InputOptions::default()).unwrap();
    let mut counts = Counts::new();
    loop {
        match input.advance().unwrap() {
            Next::End => return counts,
            Next::Meta(_) => {}
            Next::Packets => {
                for packet in input.batch().iter() {
                    let comment = options::comments(packet.options).next().unwrap();
                    let comment = String::from_utf8_lossy(comment.as_ref()).into_owned();
                    let (_, said) = comment.split_once(" granularity=").unwrap();
                    let (granularity, said) = said.split_once(" reason=").unwrap();
                    let (reason, _) = said.rsplit_once(" mode=").unwrap();
                    let key = (granularity.to_owned(), reason.to_owned());
                    *counts.entry(key).or_default() += 1;
                }
            }
        }
    }
}

/// Packets that a filter of libpcap matches.
fn matching(filter: &str) -> u64 {
    let mut capture = pcap::Capture::from_file(trace()).unwrap();
    capture.filter(filter, true).unwrap();
    let mut packets = 0;
    while capture.next_packet().is_ok() {
        packets += 1;
    }
    packets
}

/// Records without a budget of detail, and checks what [`record_with_detail`] does.
fn record(dir: &Path, arguments: &[&str]) -> (PathBuf, Counts) {
    record_with_detail(dir, &[arguments, &["--detail", "none"]].concat())
}

/// Records, and checks that both tiers and all commands that show reasons agree.
fn record_with_detail(dir: &Path, arguments: &[&str]) -> (PathBuf, Counts) {
    let log = dir.join("log");
    ok(strata()
        .arg("record")
        .arg("-r")
        .arg(trace())
        .arg("-o")
        .arg(&log)
        .args(arguments));
    let (before, details) = counted(&log);
    assert_eq!(commented(&log, dir), before);
    let words = ok(strata().args(["info", "--reasons=1000000"]).arg(&log));
    ok(strata().arg("compact").arg(&log));
    let (after, compacted) = counted(&log);
    assert_eq!(after, before, "compaction keeps reasons");
    assert!(compacted == details, "when and whose the first is, too");
    assert_eq!(commented(&log, dir), before);
    // As text, the same except for what concerns the log itself.
    let reasons = |text: &str| text[text.find("kept as ").unwrap()..].to_owned();
    let again = ok(strata().args(["info", "--reasons=1000000"]).arg(&log));
    assert_eq!(reasons(&again), reasons(&words));
    (log, before)
}

/// Packets with this reason, whatever was kept of them.
fn of(counts: &Counts, wanted: impl Fn(&str) -> bool) -> u64 {
    let found = counts.iter().filter(|((_, reason), _)| wanted(reason));
    found.map(|(_, packets)| packets).sum()
}

#[test]
fn policies_alerts_first_bytes_and_look_back_are_named_by_what_they_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (_, plain) = record(&dir.path().join("plain"), &[]);
    assert_eq!(
        of(&plain, |reason| reason.starts_with("flow-trees:")),
        of(&plain, |_| true)
    );

    let config = dir.path().join("strata.toml");
    let policies = "[[policy]]\nmatch = 'udp port 53'\naction = 'full'\n\
                    [[policy]]\nmatch = 'tcp port 443'\naction = 'partial 16'\n\
                    [[policy]]\nmatch = 'icmp'\naction = 'header 1/2'\n";
    std::fs::write(&config, policies).unwrap();
    // An alert on a flow of which only headers would be kept.
    let json = ok(strata()
        .args(["info", "--json", "--reasons"])
        .arg(dir.path().join("plain/log")));
    let report: Value = serde_json::from_str(&json).unwrap();
    let reasons = report[0]["reasons"].as_array().unwrap().iter();
    let flows = reasons
        .filter(|each| each["granularity"] == "header")
        .map(|each| each["first_flow"].as_str().unwrap());
    let flow = flows
        .filter(|flow| flow.ends_with(" TCP") && !flow.contains(":443 "))
        .find(|flow| !flow.contains('['))
        .unwrap();
    let (ends, _) = flow.rsplit_once(' ').unwrap();
    let (one, other) = ends.split_once(" - ").unwrap();
    let (one, other) = (one.split_once(':').unwrap(), other.split_once(':').unwrap());
    let eve = dir.path().join("eve.json");
    let alert = format!(
        r#"{{"event_type":"alert","src_ip":"{}","src_port":{},"dest_ip":"{}","dest_port":{},"proto":"TCP","alert":{{"signature_id":2001219,"signature":"ET SCAN x\u001b[2J reason=none mode=none"}}}}"#,
        one.0, one.1, other.0, other.1
    );
    std::fs::write(&eve, alert + "\n").unwrap();
    let arguments = [
        "--config",
        config.to_str().unwrap(),
        "--eve",
        eve.to_str().unwrap(),
        "--first-bytes",
        "300",
        "--look-back",
        "256MiB",
    ];
    let (log, counts) = record(&dir.path().join("decided"), &arguments);

    let dns = of(&counts, |reason| reason == "policy:1:\"udp port 53\"");
    // A policy looks into tags and tunnels, as tshark does.
    let output = Command::new("tshark")
        .arg("-r")
        .arg(trace())
        .args(["-Y", "udp.port == 53 && !icmp && !icmpv6"])
        .output()
        .expect("tshark is installed (`make tools`)");
    let expected = output.stdout.split(|&byte| byte == b'\n').count() - 1;
    assert_eq!(dns, expected as u64);
    let alerted = r#"alert:2001219:"ET SCAN x\u{1b}[2J reason=none mode=none""#;
    assert!(of(&counts, |reason| reason == alerted) > 0, "{counts:#?}");
    for expected in ["policy:2:", "first-bytes", "look-back:class:"] {
        assert!(
            of(&counts, |reason| reason.starts_with(expected)) > 0,
            "{expected}"
        );
    }
    let filter = "(host {0} and port {1}) and (host {2} and port {3})";
    let filter = filter
        .replace("{0}", one.0)
        .replace("{1}", one.1)
        .replace("{2}", other.0)
        .replace("{3}", other.1);
    assert!(of(&counts, |reason| reason.contains("alert:")) <= matching(&filter));
    // By the beginning of the reason: all alerts, and those of one signature.
    let by_alert = of(&counts, |reason| {
        reason
            .strip_prefix("look-back:")
            .unwrap_or(reason)
            .starts_with("alert:2001219:")
    });
    for (reason, expected) in [
        ("alert", by_alert),
        ("alert:2001219", by_alert),
        ("alert:2", 0),
    ] {
        let printed = ok(strata().arg("read").arg(&log).args(["--reason", reason]));
        assert_eq!(printed.lines().count() as u64, expected, "{reason}");
    }
    let words = ok(strata().args(["info", "--reasons=1000000"]).arg(&log));
    for expected in [
        "packets: policy 1 \"udp port 53\"; class ",
        "packets: an alert on the flow, signature 2001219 \"ET SCAN x",
        "packets: among the first bytes of the flow",
        "packets: look-back, because the flow was kept whole afterwards: a later packet of class ",
    ] {
        assert!(words.contains(expected), "{expected} in {words}");
    }
    assert!(!words.contains('\u{1b}'));
}

#[test]
fn modes_and_sampling_are_named_where_the_class_makes_no_difference() {
    let dir = tempfile::tempdir().unwrap();
    let (_, counts) = record(&dir.path().join("all"), &["--mode", "log-all"]);
    let everything = matching("");
    assert_eq!(
        counts.into_iter().collect::<Vec<_>>(),
        [(("full".into(), "mode:log-all".into()), everything)]
    );
    let (_, counts) = record(&dir.path().join("sampled"), &["--mode", "log-sampled"]);
    for (granularity, reason) in counts.keys() {
        let sampled = reason == "sampling:1/10";
        assert_eq!(sampled, granularity == "header", "{granularity} {reason}");
        assert!(sampled || reason.starts_with("flow-trees:"), "{reason}");
    }
    // Two modes: of those that ask for the same, the first decides.
    let modes = ["--mode", "log-all", "--mode", "default"];
    let (_, counts) = record(&dir.path().join("both"), &modes);
    assert_eq!(of(&counts, |reason| reason == "mode:log-all"), everything);
    let modes = ["--mode", "default", "--mode", "log-all"];
    let (_, counts) = record(&dir.path().join("turned"), &modes);
    let by_mode = of(&counts, |reason| reason == "mode:log-all");
    let by_forest = of(&counts, |reason| reason.starts_with("flow-trees:"));
    assert!(by_mode > 0 && by_forest > 0);
    assert_eq!(by_mode + by_forest, everything);
}

/// A budget of detail is kept to, each packet says what it did, and the log and its readers agree.
#[test]
fn a_budget_of_detail_is_kept_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("strata.toml");
    std::fs::write(
        &config,
        "detail = \"2%\"\n[[policy]]\nmatch = 'udp'\naction = 'full'\n",
    )
    .unwrap();
    let config = config.to_str().unwrap();
    for (name, share, arguments) in [
        (
            "option",
            0.05,
            &["--detail", "5%", "--first-bytes", "100"][..],
        ),
        ("file", 0.02, &["--config", config]),
        ("override", 0.05, &["--config", config, "--detail=5%"]),
    ] {
        let (log, counts) = record_with_detail(&dir.path().join(name), arguments);
        assert!(
            of(&counts, |reason| reason == "over-budget") > 0,
            "{name}: {counts:?}"
        );
        assert!(
            of(&counts, |reason| reason == "detail") > 0,
            "{name}: {counts:?}"
        );
        let info = ok(strata().args(["info", "--json"]).arg(&log));
        let info: Value = serde_json::from_str(&info).unwrap();
        let detail = &info[0]["detail"];
        let bytes = |field: &str| detail[field].as_u64().unwrap();
        #[allow(clippy::cast_precision_loss)]
        let (given, budget) = (
            bytes("given_bytes") as f64,
            bytes("offered_bytes") as f64 * share,
        );
        assert!(given < budget * 1.1, "{name}: {detail}");
        assert!(given > budget * 0.7, "{name}: {detail}");
        assert!(bytes("over_budget_bytes") > 0, "{name}: {detail}");
        assert!(bytes("outside_bytes") > 0, "{name}: {detail}");
        let shown = ok(strata().args(["info", "--reasons"]).arg(&log));
        assert!(shown.contains("over budget"), "{shown}");
        assert!(shown.contains("\ndetail: "), "{shown}");
    }
    for (name, arguments) in [
        ("none", &["--config", config, "--detail", "none"][..]),
        ("log-all", &["--mode", "log-all", "--detail", "5%"]),
    ] {
        let (log, counts) = record_with_detail(&dir.path().join(name), arguments);
        assert_eq!(of(&counts, |reason| reason.contains("over-budget")), 0);
        let info = ok(strata().args(["info", "--json"]).arg(&log));
        let info: Value = serde_json::from_str(&info).unwrap();
        assert!(info[0]["detail"].is_null(), "{info}");
    }
    for text in ["10", "ten%", "5MB", "120%"] {
        let refused = strata()
            .arg("record")
            .arg("-r")
            .arg(trace())
            .arg("-o")
            .arg(dir.path().join("refused"))
            .args(["--detail", text])
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(2));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(
            said.contains("--detail") && said.contains("20GB/day"),
            "{said}"
        );
    }
}
