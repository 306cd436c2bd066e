//! Requests and responses in flow records, compared with the fields of tshark.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use strata_pipeline::DataPath;
use strata_query::{Find, FlowOptions, RecordFormat, export_flows};
use strata_testkit::{data_dir, format_captures};

use super::formats::{model, record_on};

/// Both ends of a flow.
type Ends = [(String, u16); 2];
/// What is known of a flow, by column.
type Details = BTreeMap<&'static str, String>;

/// The columns that are compared.
const COLUMNS: [&str; 9] = [
    "dns_query_type",
    "dns_response_code",
    "dns_answers",
    "http_method",
    "http_uri",
    "http_user_agent",
    "http_status",
    "ssh_version",
    "modbus_functions",
];

/// The fields of tshark, all values of a frame.
const FIELDS: [&str; 24] = [
    "ip.src",
    "ipv6.src",
    "ip.dst",
    "ipv6.dst",
    "tcp.srcport",
    "udp.srcport",
    "tcp.dstport",
    "udp.dstport",
    "dns.qry.type",
    "dns.flags.response",
    "dns.flags.rcode",
    "dns.count.answers",
    "dns.resp.type",
    "dns.a",
    "dns.aaaa",
    "http.request.method",
    "http.request.uri",
    "http.user_agent",
    "http.response.code",
    "ssh.protocol",
    "modbus.func_code",
    "tcp.segment",
    "frame.protocols",
    "dns.count.queries",
];

/// Captures that tshark reads in another way: an invalid name, an inverse query, Modbus of random bytes, requests of
/// HTTP/0.9, without a target, and cut within their first line.
const FAULTY: [&str; 6] = [
    "dns-invalid-names.pcap",
    "dns-inverse-query.pcap",
    "fuzz-72.pcap",
    "mixed-vlan-mpls.pcap",
    "no-uri.pcap",
    "tcp.pcap",
];

/// What tshark takes from packets whose flows Strata looks into: DNS at its ports, Modbus at its, all of HTTP/1 and
/// SSH over TCP, if the message is in one packet and has no fault.
const READ: &str = "(((dns or mdns) and (udp.port in {53,5353} or tcp.port in {53,5353})) or (http and tcp) or \
    (ssh.protocol and tcp) or (modbus and tcp.port == 502)) and not _ws.malformed and not icmp and not icmpv6";

/// The texts of addresses as a list in JSON.
fn list(addresses: &[String]) -> String {
    format!("[\"{}\"]", addresses.join("\",\""))
}

/// What tshark finds first in each flow; and the columns that Strata need not find, since their message is in several
/// packets.
fn by_tshark(trace: &Path) -> BTreeMap<Ends, (Details, Vec<&'static str>)> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-r"]).arg(trace);
    tshark.args(["-T", "fields", "-E", "aggregator=\u{1}", "-Y", READ]);
    tshark.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let output = tshark.output().expect("tshark is installed (`make tools`)");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut flows = BTreeMap::<Ends, (Details, Vec<&'static str>)>::new();
    let mut functions = BTreeMap::<Ends, Vec<u8>>::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split('\t').collect();
        let field = |name: &str| -> Vec<String> {
            let at = FIELDS.iter().position(|field| *field == name).unwrap();
            let values = cells[at].split('\u{1}').filter(|value| !value.is_empty());
            values.map(str::to_owned).collect()
        };
        let is_ip = |name: &&str| ["ip", "ipv6"].contains(name);
        // The innermost ones.
        let Some(family) = cells[22].rsplit(':').find(is_ip) else {
            continue;
        };
        let is_tcp = !field("tcp.srcport").is_empty();
        let transport = if is_tcp { "tcp" } else { "udp" };
        let end = |of: &str| {
            let address = field(&format!("{family}.{of}"));
            let port = field(&format!("{transport}.{of}port"));
            let port = port.last().unwrap().parse().unwrap();
            (address.last().unwrap().clone(), port)
        };
        let mut ends = [end("src"), end("dst")];
        ends.sort();
        let (known, split) = flows.entry(ends.clone()).or_default();
        let is_split = !field("tcp.segment").is_empty();
        let mut put = |column: &'static str, value: Option<String>| {
            if let Some(value) = value
                && !known.contains_key(column)
            {
                known.insert(column, value);
                if is_split {
                    split.push(column);
                }
            }
        };
        let first = |name: &str| field(name).into_iter().next();
        let is_response =
            first("dns.flags.response").is_some_and(|value| value == "True" || value == "1");
        put("dns_query_type", first("dns.qry.type"));
        if is_response {
            put("dns_response_code", first("dns.flags.rcode"));
            // In the order of the records, of which the first are the answers.
            let answers: usize = first("dns.count.answers").map_or(0, |n| n.parse().unwrap());
            let (mut ipv4, mut ipv6) = (field("dns.a").into_iter(), field("dns.aaaa").into_iter());
            let kinds = field("dns.resp.type").into_iter().take(answers);
            let addresses: Vec<String> = kinds
                .filter_map(|kind| match kind.as_str() {
                    "1" => ipv4.next(),
                    "28" => ipv6.next(),
                    _ => None,
                })
                .take(16)
                .collect();
            // Of the first response only.
            put(
                "dns_answers",
                Some(if addresses.is_empty() {
                    String::new()
                } else {
                    list(&addresses)
                }),
            );
        }
        if let Some(method) = first("http.request.method") {
            let is_first = !known.contains_key("http_method");
            let mut put = |column: &'static str, value: Option<String>| {
                let Some(value) = value.filter(|_| is_first) else {
                    return;
                };
                known.insert(column, value);
                if is_split {
                    split.push(column);
                }
            };
            put("http_method", Some(method));
            let cut = |uri: String| uri.chars().take(1_024).collect();
            put("http_uri", first("http.request.uri").map(cut));
            put("http_user_agent", first("http.user_agent"));
        }
        if let Some(code) = first("http.response.code")
            && !known.contains_key("http_status")
        {
            known.insert("http_status", code);
            if is_split {
                split.push("http_status");
            }
        }
        if let Some(version) = first("ssh.protocol") {
            let port = end("src").1;
            let versions = known.entry("ssh_version").or_default();
            let from = format!("{port}:");
            if !versions.contains(&from) {
                let mut all: Vec<&str> = versions.split('|').filter(|v| !v.is_empty()).collect();
                let one = format!("{from}{version}");
                all.push(&one);
                all.sort_unstable();
                *versions = all.join("|");
            }
            if is_split {
                split.push("ssh_version");
            }
        }
        let codes = field("modbus.func_code")
            .into_iter()
            .map(|code| code.parse::<u8>().unwrap());
        functions.entry(ends).or_default().extend(codes);
    }
    for (ends, mut codes) in functions {
        codes.sort_unstable();
        codes.dedup();
        if !codes.is_empty() {
            let codes: Vec<String> = codes.iter().map(u8::to_string).collect();
            let (known, _) = flows.get_mut(&ends).unwrap();
            known.insert("modbus_functions", format!("[{}]", codes.join(",")));
        }
    }
    for (known, _) in flows.values_mut() {
        known.retain(|_, value| !value.is_empty());
    }
    flows
}

/// What is found first in the records of each flow.
fn by_strata(trace: &Path) -> BTreeMap<Ends, Details> {
    let files = [trace.to_owned()];
    let Some(recorded) = record_on(DataPath::best(), &files, &model(), "log-all", (None, None))
    else {
        return BTreeMap::new();
    };
    let mut out = Vec::new();
    let (find, options) = (Find::default(), FlowOptions::default());
    export_flows(&recorded.log, &mut out, RecordFormat::Json, &find, &options).unwrap();
    let text = String::from_utf8(out).unwrap();
    let mut rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    rows.sort_by_key(|row| row["first_time"].as_str().unwrap().to_owned());
    let mut flows = BTreeMap::<Ends, Details>::new();
    for row in rows {
        let end = |of: &str| {
            Some((
                row[of].as_str()?.to_owned(),
                row[format!("{of}_port")].as_u64()?,
            ))
        };
        let (Some(src), Some(dst)) = (end("src"), end("dst")) else {
            continue;
        };
        let mut ends =
            [&src, &dst].map(|(address, port)| (address.clone(), u16::try_from(*port).unwrap()));
        ends.sort();
        let versions = [("ssh_version", &src), ("reverse_ssh_version", &dst)];
        let mut versions: Vec<String> = versions
            .into_iter()
            .filter_map(|(column, (_, port))| Some(format!("{port}:{}", row[column].as_str()?)))
            .collect();
        versions.sort();
        for column in COLUMNS {
            let value = match (&row[column], column) {
                (_, "ssh_version") if versions.is_empty() => continue,
                (_, "ssh_version") => versions.join("|"),
                (Value::Null, _) => continue,
                (Value::String(text), _) => text.clone(),
                (value, _) => value.to_string(),
            };
            flows
                .entry(ends.clone())
                .or_default()
                .entry(column)
                .or_insert(value);
        }
    }
    flows
}

#[test]
fn requests_and_responses_are_those_of_tshark() {
    let labelled = ["mix-test", "cic2017-sqli", "westermo-right"];
    let labelled = labelled.map(|name| data_dir().join("labelled").join(name).join("trace.pcap"));
    let mut compared = BTreeMap::<&str, u64>::new();
    let (mut wrong, mut missing, mut more) = (Vec::new(), 0, Vec::new());
    for trace in format_captures().into_iter().chain(labelled) {
        let is_faulty = FAULTY
            .iter()
            .any(|name| trace.ends_with(Path::new("zeek").join(name)));
        let found = by_strata(&trace);
        if found.is_empty() || is_faulty {
            continue;
        }
        let expected = by_tshark(&trace);
        let name = trace.strip_prefix(data_dir()).unwrap().display();
        for (ends, (known, split)) in &expected {
            for (column, value) in known {
                let ours = found.get(ends).and_then(|details| details.get(column));
                match ours {
                    Some(ours) if ours == value => *compared.entry(column).or_default() += 1,
                    None if split.contains(column) => missing += 1,
                    _ => wrong.push(format!(
                        "{name} {ends:?} {column}: {ours:?}, tshark {value:?}"
                    )),
                }
            }
        }
        for (ends, details) in &found {
            for (column, value) in details {
                let is_known = expected
                    .get(ends)
                    .is_some_and(|(known, _)| known.contains_key(column));
                if !is_known {
                    more.push(format!("{name} {ends:?} {column}: {value:?}"));
                }
            }
        }
    }
    // Each column is compared often enough.
    for column in COLUMNS {
        let least = if column == "modbus_functions" { 10 } else { 50 };
        let count = compared.get(column).copied();
        assert!(
            count.is_some_and(|count| count >= least),
            "{column}: {compared:?}"
        );
    }
    assert!(
        wrong.is_empty(),
        "{compared:?}, {missing} missing: {wrong:#?}"
    );
    // What tshark takes for malformed, or waits for the rest of.
    let all: u64 = compared.values().sum();
    assert!((more.len() as u64) < all / 10, "{all}: {more:#?}");
}
