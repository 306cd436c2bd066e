//! What is said of packets that never were in a file.

use super::http::Serving;
use super::logs::number;
use crate::log::killed::killed;

#[test]
fn answers_say_what_a_killed_recording_lost() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let lost = killed(&log);
    let serving = Serving::start(&[&log], &[]);
    let recording = serving.json("/api/v1/logs")[0]["recordings"][0].clone();
    assert_eq!(recording["state"], "interrupted");
    assert_eq!(number(&recording["lost_packets"]), lost, "{recording:#}");
    let warnings = recording["warnings"].to_string();
    assert!(warnings.contains("are known to be lost"), "{recording:#}");
    let (result, search) = serving.search("");
    let flows = serving.json(&format!("/api/v1/searches/{search}/flows"));
    let flow = flows["rows"][0]["id"].as_str().unwrap();
    let series = serving.json("/api/v1/logs/0/series");
    let packets = serving.json(&format!("/api/v1/logs/0/flows/{flow}/packets"));
    let reasons = serving.json("/api/v1/logs/0/reasons");
    for answer in [&result, &series, &packets, &reasons] {
        let covered = &answer["covered"];
        assert_eq!(covered["complete"], false, "{covered:#}");
        let why = covered["why"].as_str().unwrap();
        assert!(why.contains("before they were in a file"), "{why}");
        assert!(why.contains("ended abruptly"), "{why}");
    }
    serving.get("/api/v1/logs/0/export?format=csv");
    let told = serving.until("/api/v1/audit", "the incomplete download", |audit| {
        audit[0]["what"] == "a download of log 0 is incomplete"
    });
    let why = told[0]["why"].as_str().unwrap();
    assert!(why.contains("before they were in a file"), "{why}");
}
