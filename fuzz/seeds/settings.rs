//! What users write: filters, policies, configurations, labels, models, alerts.

use std::fs;
use std::io;
use std::path::Path;

use super::seed;

/// A label file of each form, with a packet that it names.
const LABELS: [(u64, &str); 6] = [
    (1, "frame,label,source\n1,0,web\n2,1,scan\n"),
    (
        150,
        "label,source_address,port,protocol,from,to\nscan,10.0.0.0/24,80,tcp,100,200\nother,,,,,\n",
    ),
    (
        1_499_083_201,
        "Flow ID, Source IP, Source Port, Destination IP, Destination Port, Protocol, Timestamp, Flow Duration, Label\n\
         x,10.0.0.1,4000,10.0.0.2,80,6,03/07/2017 12:00:00,2000000,BENIGN\n",
    ),
    (
        1_499_083_201,
        "Src IP,Src Port,Dst IP,Dst Port,Protocol,Timestamp,Flow Duration,Label\n\
         10.0.0.1,4000,10.0.0.2,80,6,03/07/2017 12:00:00 PM,2000000,DoS Hulk\n",
    ),
    (
        102,
        "#separator \\x09\n#fields\tts\tid.orig_h\tid.orig_p\tid.resp_h\tid.resp_p\tproto\tduration\tlabel   detailed-label\n\
         100.5\t10.0.0.1\t4000\t10.0.0.2\t80\ttcp\t3.0\tMalicious   Scan\n",
    ),
    (
        102,
        "{\"ts\":100.5,\"id.orig_h\":\"10.0.0.1\",\"id.orig_p\":4000,\"id.resp_h\":\"10.0.0.2\",\"id.resp_p\":80,\"proto\":\"tcp\",\"duration\":3.0,\"label\":\"scan\"}\n",
    ),
];

/// Alerts of Suricata, and an event that is not an alert.
pub(crate) fn of_alerts(corpus: &Path) -> io::Result<()> {
    let alert = |source: &str, destination: &str, proto: &str| {
        format!(
            r#"{{"timestamp":"2024-05-01T10:00:00.000000+0000","event_type":"alert","src_ip":"{source}","src_port":49152,"dest_ip":"{destination}","dest_port":443,"proto":"{proto}","alert":{{"severity":1}}}}"#
        )
    };
    let lines = [
        alert("10.1.2.3", "192.0.2.7", "TCP"),
        alert("2001:db8::1", "2001:db8::2", "udp"),
        alert("10.1.2.3", "192.0.2.7", "ICMP"),
        alert("10.1.2.3", "192.0.2.7", "132"),
        String::from(r#"{"event_type":"flow","proto":"TCP"}"#),
    ];
    for line in &lines {
        seed(corpus, "eve", line.as_bytes())?;
    }
    seed(corpus, "eve", lines.join("\n").as_bytes())
}

/// Policies of every kind of field, with two packets.
pub(crate) fn of_policies(corpus: &Path) -> io::Result<()> {
    let mut policies = b"src net 10.1.0.0/16 and port 443=>header
tcp portrange 20-30 or vlan 5=>full 1/10 flows
ip6 net 2001:db8::/32 and not udp=>partial 64
host 10.1.0.1=>drop
icmp=>classify 1/3\0"
        .to_vec();
    let ipv4 = [&[0, 6, 1, 187, 4, 0, 0, 5, 1, 0, 0, 0], &[10, 1, 0, 1][..]];
    policies.extend(ipv4.concat());
    policies.extend([0; 28]);
    policies.extend([1, 17, 0, 53, 0, 53, 0, 0, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8]);
    policies.extend([0; 28]);
    seed(corpus, "rules", &policies)?;
    // Ports in a row about the numbers that need another bit of a port, and 10,000 in steps of 6.
    for (count, step, first) in [
        (4095_u16, 1_u16, 1_u16),
        (4096, 1, 1),
        (4097, 16, 7),
        (10_000, 6, 5),
    ] {
        let mut ports = Vec::new();
        for number in [count, step, first] {
            ports.extend(number.to_le_bytes());
        }
        ports.push(0);
        ports.extend([1, 80, 0, 0, 0, 0, 0xff, 0xff, 0, 0]);
        seed(corpus, "ports", &ports)?;
    }
    Ok(())
}

/// The keys of the configuration, and bodies of requests.
pub(crate) fn of_configuration(corpus: &Path) -> io::Result<()> {
    let config = "mode = ['office']\ndefault = 'drop'\n[modes.office]\nbenign = 'header'\n\
        anomalous = 'full'\n[modes.office.classes]\nunclassified = 'drop'\n[[policy]]\n\
        match = 'port 443'\naction = 'header'\ninterface = 'eth0'\nprotect = true\n[elastic]\n\
        blocks_percent = 50\nremove_percent = 97.5\ncpu_budget_percent = 10\n[control]\n\
        listen = '127.0.0.1:9477'\n[alerts]\nwebhook = 'https://example.com/'\n";
    seed(corpus, "config", config.as_bytes())?;
    let report = "{\"time_ns\":1,\"program\":\"1\",\"labels\":{\"rack\":\"1\"},\"interfaces\":\
        [{\"name\":\"tap0\",\"index\":1},{\"name\":\"eth0\",\"index\":2}],\"has\":null,\"runs\":0,\
        \"captures\":0,\"problem\":\"\",\"exports\":[]}";
    seed(corpus, "agents", &[b"\0", report.as_bytes()].concat())?;
    let policies = "[[policy]]\nname = 'a'\nmatch = 'tcp port 80'\naction = 'payload 9 -> b'\n\
        hosts = ['h*']\nlabels = { rack = '1' }\ninterfaces = ['tap?']\ntenant = 't'\npriority = 7\n\
        [[tenant]]\nname = 't'\ninterfaces = ['*:tap*']\n\
        [[identity]]\ninterface = 'host-1:tap0'\nidentity = 9\n";
    seed(corpus, "agents", &[b"\x01", policies.as_bytes()].concat())?;
    let mode = br#" {"mode":"log-all+default","seconds":1.5,"why":"x"}"#;
    seed(corpus, "api", &[b"\0", &mode[..]].concat())?;
    let policy = br#"{"match":"tcp","action":"full","priority":7,"protect":true}"#;
    seed(corpus, "api", &[b"\x01", &policy[..]].concat())?;
    seed(corpus, "api", b"\x021")
}

/// The expressions that the filter's own tests use, each with some packet.
pub(crate) fn of_filters(source: &Path, packets: &[Vec<u8>], corpus: &Path) -> io::Result<()> {
    let tests = source.join("crates/path/filter/tests/it/support/expressions.rs");
    let tests = fs::read_to_string(tests)?;
    let lines = tests.lines().filter_map(|line| {
        let quoted = line.strip_prefix("    \"")?.strip_suffix("\",")?;
        Some(quoted.replace("\\\\", "\\"))
    });
    let step = (packets.len() / 700).max(1);
    let none = Vec::new();
    for (index, expression) in lines.enumerate() {
        let packet = packets.get(index * step).unwrap_or(&none);
        let packet = &packet[..packet.len().min(128)];
        seed(
            corpus,
            "filter",
            &[expression.as_bytes(), &[0], packet].concat(),
        )?;
    }
    Ok(())
}

/// Seeds of `labels`.
pub(crate) fn of_labels(corpus: &Path) -> io::Result<()> {
    for (ts_s, text) in LABELS {
        let ts_ns = (ts_s * 1_000_000_000).to_le_bytes();
        for choice in [0, 1] {
            seed(
                corpus,
                "labels",
                &[&[choice], &ts_ns[..], text.as_bytes()].concat(),
            )?;
        }
    }
    Ok(())
}

/// The built-in model whole and with one small tree of each kind, and some bytes
/// from which the target makes models itself.
pub(crate) fn of_models(source: &Path, corpus: &Path) -> io::Result<()> {
    let content = fs::read(source.join("models/default.json"))?;
    let mut model: serde_json::Value = serde_json::from_slice(&content)?;
    let values: Vec<u8> = (0..=255).collect();
    seed(
        corpus,
        "model",
        &[model.to_string().as_bytes(), &[0], &values].concat(),
    )?;
    for trees in ["flow_trees", "packet_trees"] {
        let split = serde_json::json!({"feature": 0, "at_most": 100.5, "left": 1, "right": 2});
        let leaf = |share: f64| serde_json::json!({"classes": [share, 1.0 - share]});
        model[trees] = serde_json::json!([{"nodes": [split, leaf(1.0), leaf(0.25)]}]);
    }
    seed(
        corpus,
        "model",
        &[model.to_string().as_bytes(), &[0], &values].concat(),
    )?;
    for first in 0..32_u8 {
        let made: Vec<u8> = (0..=255_u8)
            .map(|n| n.wrapping_mul(first * 2 + 1) ^ first)
            .collect();
        seed(corpus, "model", &made)?;
    }
    Ok(())
}
