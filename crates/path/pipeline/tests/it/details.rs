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
const COLUMNS: [&str; 14] = [
    "dns_query_type",
    "dns_response_code",
    "dns_answers",
    "http_method",
    "http_uri",
    "http_user_agent",
    "http_status",
    "ssh_version",
    "modbus_functions",
    "tls_version",
    "tls_cipher",
    "quic_version",
    "smb_dialect",
    "smb_shares",
];

/// The fields of tshark, all values of a frame.
const FIELDS: [&str; 37] = [
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
    "tls.handshake.type",
    "tls.handshake.version",
    "tls.handshake.ciphersuite",
    "tls.handshake.extensions.supported_version",
    "dtls.handshake.type",
    "dtls.handshake.version",
    "dtls.handshake.ciphersuite",
    "dtls.handshake.extensions.supported_version",
    "quic.version",
    "smb2.cmd",
    "smb2.flags.response",
    "smb2.dialect",
    "smb2.tree",
];

/// Captures that tshark reads in another way: an invalid name, an inverse query, Modbus of random bytes, requests of
/// HTTP/0.9, without a target, and cut within their first line, a request to no port of a server; and requests in
/// fragments of IP, of which Strata reads the first.
const OTHERWISE: [&str; 11] = [
    "pcapplusplus/frag_http_req.pcap",
    "pcapplusplus/http_req_frag.pcap",
    "pcapplusplus/ipfragutil_bpf_filter.pcap",
    "pcapplusplus/ipfragutil_ip_ids.pcap",
    "zeek/dns-invalid-names.pcap",
    "zeek/dns-inverse-query.pcap",
    "zeek/fuzz-72.pcap",
    "zeek/mixed-vlan-mpls.pcap",
    "zeek/mpls-in-vlan.pcap",
    "zeek/no-uri.pcap",
    "zeek/tcp.pcap",
];

/// What tshark takes from packets whose flows Strata looks into: DNS at its ports, Modbus at its, all of HTTP/1 and
/// SSH over TCP, hellos of servers of TLS and DTLS, client hellos in QUIC, negotiations and shares of SMB, if the
/// message is in one packet and has no fault. Not DTLS in CAPWAP, which puts four bytes before it, and not the version of
/// QUIC that Facebook has made of an early draft.
const READ: &str = "(((dns or mdns) and (udp.port in {53,5353} or tcp.port in {53,5353})) or (http and tcp) or \
    (ssh.protocol and tcp) or (modbus and tcp.port == 502) or (tls.handshake.type == 2 and tcp) or \
    (dtls.handshake.type == 2 and not capwap) or \
    (quic.version and not quic.version == 0xfaceb001 and tls.handshake.type == 1) or \
    (smb2.cmd in {0,3} and tcp.port in {139,445})) and not _ws.malformed and not icmp and not icmpv6";

/// The texts of addresses as a list in JSON.
fn list(addresses: &[String]) -> String {
    format!("[\"{}\"]", addresses.join("\",\""))
}

/// A frame as tshark prints it.
struct Frame<'a>(Vec<&'a str>);

impl Frame<'_> {
    fn field(&self, name: &str) -> Vec<String> {
        let at = FIELDS.iter().position(|field| *field == name).unwrap();
        let values = self.0[at].split('\u{1}').filter(|value| !value.is_empty());
        values.map(str::to_owned).collect()
    }

    fn first(&self, name: &str) -> Option<String> {
        self.field(name).into_iter().next()
    }

    /// Whether its message began in an earlier packet.
    fn is_split(&self) -> bool {
        !self.field("tcp.segment").is_empty()
    }

    /// The source and the destination: the innermost ones.
    fn ends(&self) -> Option<[(String, u16); 2]> {
        let is_ip = |name: &&str| ["ip", "ipv6"].contains(name);
        let family = self.0[22].rsplit(':').find(is_ip)?;
        let is_tcp = !self.field("tcp.srcport").is_empty();
        let transport = if is_tcp { "tcp" } else { "udp" };
        Some(["src", "dst"].map(|of| {
            let address = self.field(&format!("{family}.{of}"));
            let port = self.field(&format!("{transport}.{of}port"));
            let port = port.last().unwrap().parse().unwrap();
            (address.last().unwrap().clone(), port)
        }))
    }
}

/// The first values that tshark finds in a flow; and the columns that Strata need not find, since their message is in
/// several packets.
#[derive(Default)]
struct Known {
    values: Details,
    split: Vec<&'static str>,
    functions: Vec<u8>,
    shares: Vec<String>,
}

impl Known {
    fn put(&mut self, frame: &Frame<'_>, column: &'static str, value: Option<String>) {
        if let Some(value) = value
            && !self.values.contains_key(column)
        {
            self.values.insert(column, value);
            if frame.is_split() {
                self.split.push(column);
            }
        }
    }

    fn dns(&mut self, frame: &Frame<'_>) {
        self.put(frame, "dns_query_type", frame.first("dns.qry.type"));
        let response = frame.first("dns.flags.response");
        if !response.is_some_and(|value| value == "True" || value == "1") {
            return;
        }
        self.put(frame, "dns_response_code", frame.first("dns.flags.rcode"));
        // In the order of the records, of which the first are the answers.
        let answers = frame.first("dns.count.answers");
        let answers: usize = answers.map_or(0, |count| count.parse().unwrap());
        let mut ipv4 = frame.field("dns.a").into_iter();
        let mut ipv6 = frame.field("dns.aaaa").into_iter();
        let kinds = frame.field("dns.resp.type").into_iter().take(answers);
        let addresses = kinds.filter_map(|kind| match kind.as_str() {
            "1" => ipv4.next(),
            "28" => ipv6.next(),
            _ => None,
        });
        let addresses: Vec<String> = addresses.take(16).collect();
        let listed = match addresses.is_empty() {
            true => String::new(),
            false => list(&addresses),
        };
        // Of the first response only.
        self.put(frame, "dns_answers", Some(listed));
    }

    fn http(&mut self, frame: &Frame<'_>) {
        let method = frame.first("http.request.method");
        if method.is_some() && !self.values.contains_key("http_method") {
            self.put(frame, "http_method", method);
            let uri = frame.first("http.request.uri");
            let uri = uri.map(|uri| uri.chars().take(1_024).collect());
            self.put(frame, "http_uri", uri);
            self.put(frame, "http_user_agent", frame.first("http.user_agent"));
        }
        self.put(frame, "http_status", frame.first("http.response.code"));
    }

    fn ssh(&mut self, frame: &Frame<'_>, port: u16) {
        let Some(version) = frame.first("ssh.protocol") else {
            return;
        };
        let versions = self.values.entry("ssh_version").or_default();
        let from = format!("{port}:");
        let mut all: Vec<&str> = versions.split('|').filter(|v| !v.is_empty()).collect();
        if !all.iter().any(|one| one.starts_with(&from)) {
            let one = format!("{from}{version}");
            all.push(&one);
            all.sort_unstable();
            *versions = all.join("|");
        }
        if frame.is_split() {
            self.split.push("ssh_version");
        }
    }

    /// What a server of TLS or DTLS has chosen.
    fn chosen(&mut self, frame: &Frame<'_>) {
        for (protocol, transport) in [("tls", "tcp"), ("dtls", "udp")] {
            let field = |name: &str| frame.first(&format!("{protocol}.handshake.{name}"));
            let has_transport = frame.first(&format!("{transport}.srcport")).is_some();
            if field("type").as_deref() != Some("2") || !has_transport {
                continue;
            }
            let version = field("extensions.supported_version").or_else(|| field("version"));
            let version = version.map(|version| match version.as_str() {
                "0x0300" => "SSL 3.0".to_owned(),
                "0x0301" => "TLS 1.0".into(),
                "0x0302" => "TLS 1.1".into(),
                "0x0303" => "TLS 1.2".into(),
                "0x0304" => "TLS 1.3".into(),
                "0xfeff" => "DTLS 1.0".into(),
                "0xfefd" => "DTLS 1.2".into(),
                "0xfefc" => "DTLS 1.3".into(),
                other => other.into(),
            });
            self.put(frame, "tls_version", version);
            let number = |text: String| match text.strip_prefix("0x") {
                Some(digits) => u16::from_str_radix(digits, 16).unwrap().to_string(),
                None => text,
            };
            self.put(frame, "tls_cipher", field("ciphersuite").map(number));
        }
    }

    fn smb(&mut self, frame: &Frame<'_>) {
        let is_response = |value: String| value == "True" || value == "1";
        let command = frame.first("smb2.cmd");
        let response = frame.first("smb2.flags.response").is_some_and(is_response);
        match (command.as_deref(), response) {
            (Some("0"), true) => {
                let dialect = frame.first("smb2.dialect");
                let dialect = dialect.map(|dialect| match dialect.as_str() {
                    "0x0202" => "2.0.2".to_owned(),
                    "0x0210" => "2.1".into(),
                    "0x02ff" => "2.???".into(),
                    "0x0300" => "3.0".into(),
                    "0x0302" => "3.0.2".into(),
                    "0x0311" => "3.1.1".into(),
                    other => other.into(),
                });
                // The last one.
                self.values.remove("smb_dialect");
                self.put(frame, "smb_dialect", dialect);
            }
            (Some("3"), false) => {
                for path in frame.field("smb2.tree") {
                    if !self.shares.contains(&path) {
                        self.shares.push(path);
                    }
                    if frame.is_split() {
                        self.split.push("smb_shares");
                    }
                }
            }
            _ => {}
        }
    }

    fn modbus(&mut self, frame: &Frame<'_>) {
        let codes = frame.field("modbus.func_code").into_iter();
        self.functions
            .extend(codes.map(|code| code.parse::<u8>().unwrap()));
    }

    /// Whether a value of a column is what tshark has. Of SSH, it does not show each side's version.
    fn has(column: &str, ours: &str, value: &str) -> bool {
        match column {
            "ssh_version" => value
                .split('|')
                .all(|one| ours.split('|').any(|ours| ours == one)),
            _ => ours == value,
        }
    }
}

fn by_tshark(trace: &Path) -> BTreeMap<Ends, Known> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-r"]).arg(trace);
    tshark.args(["-T", "fields", "-E", "aggregator=\u{1}", "-Y", READ]);
    tshark.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let output = tshark.output().expect("tshark is installed (`make tools`)");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut flows = BTreeMap::<Ends, Known>::new();
    for line in text.lines() {
        let frame = Frame(line.split('\t').collect());
        let Some(mut ends) = frame.ends() else {
            continue;
        };
        let port = ends[0].1;
        ends.sort();
        let known = flows.entry(ends).or_default();
        known.dns(&frame);
        known.http(&frame);
        known.ssh(&frame, port);
        known.modbus(&frame);
        known.chosen(&frame);
        let has_hello = frame
            .field("tls.handshake.type")
            .iter()
            .any(|kind| kind == "1");
        let version = frame.first("quic.version").filter(|_| has_hello);
        known.put(&frame, "quic_version", version);
        known.smb(&frame);
    }
    for known in flows.values_mut() {
        known.functions.sort_unstable();
        known.functions.dedup();
        let codes: Vec<String> = known.functions.iter().map(u8::to_string).collect();
        if !codes.is_empty() {
            let codes = format!("[{}]", codes.join(","));
            known.values.insert("modbus_functions", codes);
        }
        if !known.shares.is_empty() {
            let shares = serde_json::to_string(&known.shares).unwrap();
            known.values.insert("smb_shares", shares);
        }
        known.values.retain(|_, value| !value.is_empty());
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
        let is_otherwise = OTHERWISE.iter().any(|name| trace.ends_with(name));
        let found = by_strata(&trace);
        if found.is_empty() || is_otherwise {
            continue;
        }
        let expected = by_tshark(&trace);
        let name = trace.strip_prefix(data_dir()).unwrap().display();
        for (ends, known) in &expected {
            for (column, value) in &known.values {
                let ours = found.get(ends).and_then(|details| details.get(column));
                match ours {
                    Some(ours) if Known::has(column, ours, value) => {
                        *compared.entry(column).or_default() += 1;
                    }
                    None if known.split.contains(column) => missing += 1,
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
                    .is_some_and(|known| known.values.contains_key(column));
                if !is_known {
                    more.push(format!("{name} {ends:?} {column}: {value:?}"));
                }
            }
        }
    }
    // Each column is compared often enough.
    for column in COLUMNS {
        let least = match column {
            "modbus_functions" => 10,
            "quic_version" | "smb_dialect" => 10,
            "smb_shares" => 5,
            _ => 50,
        };
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
