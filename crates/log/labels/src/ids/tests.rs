use std::io::Cursor;

use super::*;
use crate::flows::key;

fn headers(source: (&str, u16), destination: (&str, u16), number: u8) -> Headers {
    let end = |(address, port): (&str, u16)| (address.parse().unwrap(), port);
    Headers {
        key: Some(key(end(source), end(destination), number)),
        ..Headers::default()
    }
}

fn read(files: &[(&str, Format)], options: Options) -> Result<Ids, LabelError> {
    let mut reader = Reader::new(options, 0);
    for (text, format) in files {
        assert_eq!(Format::of(text), Some(*format), "{text}");
        reader.read(Cursor::new(text), *format, "x.log")?;
    }
    reader.finish()
}

fn said(ids: &mut Ids, ts_s: u64, headers: &Headers) -> String {
    match ids.of(ts_s * 1_000_000_000, headers) {
        Said::Alert(label) => format!("{}/{}", label.class, label.source),
        Said::Near => String::from("near"),
        Said::Nothing => String::from("nothing"),
    }
}

const ALERT: &str = r#"{"timestamp":"1970-01-01T01:16:40.000000+0100","flow_id":7,"event_type":"alert","src_ip":"10.0.0.1","src_port":4000,"dest_ip":"10.0.0.2","dest_port":80,"proto":"TCP","alert":{"action":"allowed","gid":1,"signature_id":2018358,"rev":10,"signature":"ET x","category":"Potentially Bad Traffic","severity":2},"flow":{"pkts_toserver":3,"start":"1970-01-01T01:16:20.000000+0100"}}
"#;

#[test]
fn an_alert_labels_its_flow_and_what_is_near_it_has_no_label() {
    let mut ids = read(&[(ALERT, Format::Eve)], Options::default()).unwrap();
    let flow = headers(("10.0.0.2", 80), ("10.0.0.1", 4000), 6);
    let label = "anomalous/Potentially Bad Traffic";
    for (ts_s, expected) in [(970, "near"), (980, label), (1_000, label), (2_000, "near")] {
        assert_eq!(said(&mut ids, ts_s, &flow), expected, "{ts_s}");
    }
    let other = headers(("10.0.0.1", 4001), ("10.0.0.3", 80), 6);
    for (ts_s, expected) in [
        (600, "nothing"),
        (980, "near"),
        (1_600, "near"),
        (1_601, "nothing"),
    ] {
        assert_eq!(said(&mut ids, ts_s, &other), expected, "{ts_s}");
    }
    let apart = headers(("10.0.0.4", 4001), ("10.0.0.3", 80), 6);
    assert_eq!(said(&mut ids, 1_000, &apart), "nothing");
    assert_eq!((ids.unmatched(), ids.quarantined()), ((1, 0), 4));

    let all = Options {
        quarantine_ns: 0,
        ..Options::default()
    };
    let mut ids = read(&[(ALERT, Format::Eve)], all).unwrap();
    assert_eq!(said(&mut ids, 980, &other), "nothing");
}

#[test]
fn the_end_of_a_flow_and_its_severity_are_taken_into_account() {
    let end = r#"{"timestamp":"1970-01-01T00:17:00.0+0000","flow_id":7,"event_type":"flow","src_ip":"10.0.0.1","dest_ip":"10.0.0.2","proto":"TCP","flow":{"start":"1970-01-01T00:16:20.0+0000","end":"1970-01-01T00:16:50.0+0000","alerted":true}}"#;
    let text = format!("{ALERT}{end}\n");
    let severity = Options {
        class: AlertClass::Severity,
        ..Options::default()
    };
    let mut ids = read(&[(&text, Format::Eve)], severity).unwrap();
    let flow = headers(("10.0.0.2", 80), ("10.0.0.1", 4000), 6);
    assert_eq!(
        said(&mut ids, 1_010, &flow),
        "severity-2/Potentially Bad Traffic"
    );
    assert_eq!(said(&mut ids, 1_020, &flow), "near");
    let grave = Options {
        severity_max: Some(1),
        class: AlertClass::Category,
        ..Options::default()
    };
    let mut ids = read(&[(&text, Format::Eve)], grave).unwrap();
    assert_eq!(said(&mut ids, 1_000, &flow), "near");
    assert_eq!(ids.problems().len(), 1);
    let worse = ALERT
        .replace("\"severity\":2", "\"severity\":1")
        .replace("Potentially Bad Traffic", "A Network Trojan was detected");
    let mut ids = read(&[(&format!("{text}{worse}"), Format::Eve)], grave).unwrap();
    assert_eq!(
        said(&mut ids, 1_000, &flow),
        "a-network-trojan-was-detected/A Network Trojan was detected"
    );
}

#[test]
fn flows_are_found_by_community_id_of_any_seed() {
    // Of the Community ID specification: 128.232.110.120:34855 to 66.35.250.204:80.
    let flow = headers(("128.232.110.120", 34_855), ("66.35.250.204", 80), 6);
    let alone = |id: &str| {
        format!(
            "{{\"timestamp\":\"1970-01-01T00:16:40Z\",\"event_type\":\"alert\",\"community_id\":\"{id}\",\"alert\":{{\"severity\":1}}}}\n"
        )
    };
    let text = alone("1:LQU9qZlK+B5F3KDmev6m5PMibrg=");
    let mut ids = read(&[(&text, Format::Eve)], Options::default()).unwrap();
    assert_eq!(said(&mut ids, 1_000, &flow), "anomalous/alert");
    // Another alert shows that the seed is 1.
    let seeded = community_id_seeded(
        &headers(("10.0.0.1", 4000), ("10.0.0.2", 80), 6)
            .key
            .unwrap(),
        1,
    );
    let both = ALERT.replace("\"flow_id\":7", &format!("\"community_id\":\"{seeded}\""));
    let text = format!("{both}{}", alone("1:3V71V58M3Ksw/yuFALMcW0LAHvc="));
    let mut ids = read(&[(&text, Format::Eve)], Options::default()).unwrap();
    assert_eq!(said(&mut ids, 1_000, &flow), "anomalous/alert");
    let other = headers(("128.232.110.120", 34_856), ("66.35.250.204", 80), 6);
    assert_eq!(said(&mut ids, 1_000, &other), "nothing");
}

#[test]
fn notices_of_zeek_take_their_times_from_connections() {
    let notices = "#separator \\x09\n#path\tnotice\n#fields\tts\tuid\tid.orig_h\tid.orig_p\tid.resp_h\tid.resp_p\tproto\tnote\tmsg\tsrc\tdst\tp\n\
                       1000.5\tC1\t10.0.0.1\t4000\t10.0.0.2\t22\ttcp\tSSH::Password_Guessing\tx y\t-\t-\t-\n\
                       1000.5\t-\t-\t-\t-\t-\t-\tScan::Port_Scan\tx\t10.0.0.9\t10.0.0.2\t-\n";
    let conns = "#path\tconn\n#fields\tts\tuid\tid.orig_h\tid.orig_p\tid.resp_h\tid.resp_p\tproto\tduration\n\
                     900.0\tC1\t10.0.0.1\t4000\t10.0.0.2\t22\ttcp\t500.0\n900.0\tC2\t10.0.0.3\t1\t10.0.0.4\t2\tudp\t-\n";
    let files = [(notices, Format::NoticeTsv), (conns, Format::ConnTsv)];
    let category = Options {
        class: AlertClass::Category,
        ..Options::default()
    };
    let mut ids = read(&files, category).unwrap();
    let flow = headers(("10.0.0.1", 4000), ("10.0.0.2", 22), 6);
    let label = "ssh-password-guessing/SSH::Password_Guessing";
    assert_eq!(said(&mut ids, 900, &flow), label);
    assert_eq!(said(&mut ids, 1_400, &flow), label);
    assert_eq!(said(&mut ids, 890, &flow), "near");
    let scanner = headers(("10.0.0.9", 1), ("10.0.0.7", 2), 6);
    assert_eq!(said(&mut ids, 1_000, &scanner), "near");
    assert!(
        ids.problems()[0]
            .to_string()
            .starts_with("1 alert without a flow")
    );

    let notice = r#"{"ts":1000.5,"uid":"C1","id.orig_h":"10.0.0.1","id.orig_p":4000,"id.resp_h":"10.0.0.2","id.resp_p":22,"proto":"tcp","note":"SSH::Password_Guessing"}"#;
    let conn = r#"{"ts":"1970-01-01T00:15:00.000000Z","uid":"C1","id.orig_h":"10.0.0.1","id.orig_p":4000,"id.resp_h":"10.0.0.2","id.resp_p":22,"proto":"tcp","duration":500.0}"#;
    let files = [(notice, Format::NoticeJson), (conn, Format::ConnJson)];
    let mut ids = read(&files, category).unwrap();
    assert_eq!(said(&mut ids, 1_400, &flow), label);
    assert_eq!(said(&mut ids, 1_500, &flow), "near");
}

#[test]
fn invalid_lines_are_named_and_counted_and_do_not_fill_the_memory() {
    let deep = "[".repeat(100_000);
    let long = "x".repeat(3 << 20);
    let text = format!(
        "{ALERT}\n{{\"event_type\":\"alert\"}}\n{{\"event_type\":\"alert\",\"tls\":{deep}\n{long}\nnoise\n{{\"event_type\":\"dns\"}}\n"
    );
    let ids = read(&[(&text, Format::Eve)], Options::default()).unwrap();
    let problems: Vec<String> = ids.problems().iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 4, "{problems:?}");
    assert!(problems[0].starts_with("x.log: line 3: the alert has no valid timestamp"));
    assert!(
        problems[1].starts_with("x.log: line 4: EOF while parsing"),
        "{problems:?}"
    );
    assert_eq!(problems[2], "x.log: line 5: the line is longer than 1 MiB");
    assert_eq!(problems[3], "x.log: and 1 other invalid line");

    // Without addresses, an alert has its ID only.
    let cut = "{\"timestamp\":\"1970-01-01T00:16:40Z\",\"event_type\":\"alert\",\
               \"community_id\":\"1:LQU9qZlK\",\"alert\":{\"severity\":1}}\n";
    let ids = read(
        &[(&format!("{ALERT}\n{cut}"), Format::Eve)],
        Options::default(),
    )
    .unwrap();
    let expected = "x.log: line 3: '1:LQU9qZlK' in 'community_id' is not a Community ID";
    assert!(
        ids.problems()[0].to_string().starts_with(expected),
        "{:?}",
        ids.problems()
    );

    let none = read(&[("{\"event_type\":1}\n", Format::Eve)], Options::default());
    assert!(none.unwrap_err().to_string().contains("no valid line"));
    let quiet = read(
        &[("{\"event_type\":\"dns\"}\n", Format::Eve)],
        Options::default(),
    );
    assert!(
        quiet
            .unwrap_err()
            .to_string()
            .contains("no alert in 1 line:")
    );
}

#[test]
fn many_alerts_of_one_flow_are_one_span() {
    let text = ALERT.repeat(10_000);
    let ids = read(&[(&text, Format::Eve)], Options::default()).unwrap();
    assert_eq!(ids.unmatched(), (1, 1));
    assert_eq!(ids.hosts[&"10.0.0.1".parse::<IpAddr>().unwrap()].0.len(), 1);
}
