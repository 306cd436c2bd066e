//! Fingerprints of TLS, DTLS and QUIC clients in flow records, compared with tshark.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use strata_testkit::data_dir;

use crate::common::program::{ok, record, strata};

/// Both ends of a flow.
type Ends = [(String, u16); 2];

#[derive(Debug, Default, PartialEq, Eq, Clone)]
struct Client {
    ja3: String,
    /// `None` where tshark's fields do not tell it.
    ja4: Option<String>,
    server: String,
}

const CAPTURES: &[&str] = &[
    "labelled/mix-test/trace.pcap",
    "labelled/rat-c2/trace.pcap",
    "formats/tcpdump/quic_handshake.pcap",
    "formats/tcpdump/quic_retry.pcap",
    "formats/zeek/quic-39264-rand.pcap",
    "formats/zeek/quic-multiple-initial-fragmented-crypto.pcap",
    "formats/zeek/quic-interop-retry.pcap",
    "formats/zeek/quicv2-http3-443.pcap",
    "formats/zeek/quicv2-echo-dpd-custom-port-4433.pcap",
    "formats/zeek/dtls13-cid.pcap",
    "formats/zeek/chrome-1250-tls-x25519-kyber.pcap",
    "formats/zeek/tls13-ech.pcap",
    "formats/pcapplusplus/tls_grease.pcap",
    "formats/pcapplusplus/tls1_3.pcap",
    "formats/pcapplusplus/SSL-ClientHello1.pcap",
];

/// Not read: a hello that goes on for more than 8 KiB; one within CAPWAP or OpenVPN; one of
/// Facebook's versions before the standard, with a salt of draft 22.
const READ: &str = "not capwap and not openvpn and \
    not quic.version == 0xfaceb001 and not tls.handshake.length > 8192";

fn ends(mut ends: Ends) -> Ends {
    ends.sort();
    ends
}

/// JA4 as its description says it, from the values that tshark prints. Only the first hello of a frame has them all.
fn ja4(transport: char, field: impl Fn(&str) -> Vec<String>) -> Option<String> {
    let grease = |value: &u16| value & 0x0f0f == 0x0a0a && value >> 8 == value & 0xff;
    let number = |text: &String| match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    };
    let numbers = |name: &str| -> Vec<u16> {
        let values = field(name);
        values.iter().map(number).filter(|v| !grease(v)).collect()
    };
    let hashed = |text: String| match text.is_empty() {
        true => "000000000000".to_owned(),
        false => format!("{:x}", Sha256::digest(text))[..12].to_owned(),
    };
    let hex = |mut values: Vec<u16>, sorted: bool| {
        if sorted {
            values.sort_unstable();
        }
        let values: Vec<String> = values.iter().map(|v| format!("{v:04x}")).collect();
        values.join(",")
    };
    let extensions = numbers("extension.type");
    // Delegated credentials have signature algorithms too, which tshark prints in the same field.
    if extensions.contains(&34) {
        return None;
    }
    let versions = numbers("extensions.supported_version");
    // Of DTLS, 0xfefc is higher than 0xfefd.
    let rank = |version: &u16| {
        if *version >= 0xfe00 {
            u16::MAX - version
        } else {
            *version
        }
    };
    let version = versions.into_iter().max_by_key(rank);
    let version = match version.unwrap_or_else(|| numbers("version")[0]) {
        0x0304 => "13",
        0x0303 => "12",
        0x0302 => "11",
        0x0301 => "10",
        0xfefc => "d3",
        0xfefd => "d2",
        0xfeff => "d1",
        _ => "00",
    };
    let protocol = match field("extensions_alpn_str").first() {
        Some(name) => format!("{}{}", &name[..1], &name[name.len() - 1..]),
        None => "00".to_owned(),
    };
    let (ciphers, server) = (numbers("ciphersuite"), extensions.contains(&0));
    let (ciphers_len, extensions_len) = (ciphers.len(), extensions.len());
    let others = extensions
        .into_iter()
        .filter(|kind| ![0, 16].contains(kind));
    let mut last = hex(others.collect(), true);
    let signatures = hex(numbers("sig_hash_alg"), false);
    if !signatures.is_empty() {
        last = format!("{last}_{signatures}");
    }
    Some(format!(
        "{transport}{version}{}{ciphers_len:02}{extensions_len:02}{protocol}_{}_{}",
        if server { 'd' } else { 'i' },
        hashed(hex(ciphers, true)),
        hashed(last),
    ))
}

/// The first client hello of each flow.
fn by_tshark(trace: &Path) -> BTreeMap<Ends, Client> {
    const ENDS: [&str; 8] = [
        "ip.src",
        "ip.dst",
        "ipv6.src",
        "ipv6.dst",
        "tcp.srcport",
        "tcp.dstport",
        "udp.srcport",
        "udp.dstport",
    ];
    const FIELDS: [&str; 8] = [
        "version",
        "ciphersuite",
        "extension.type",
        "extensions.supported_version",
        "extensions_alpn_str",
        "sig_hash_alg",
        "ja3",
        "extensions_server_name",
    ];
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(trace);
    // By its other port, tshark takes a connection for one of Gearman.
    command.args(["-d", "tcp.port==8443,tls", "-T", "fields", "-Y"]);
    command.arg(format!(
        "(tls.handshake.ja3 or dtls.handshake.ja3) and {READ}"
    ));
    for field in ENDS {
        command.args(["-e", field]);
    }
    for layer in ["tls", "dtls"] {
        for field in FIELDS {
            command.args(["-e", &format!("{layer}.handshake.{field}")]);
        }
    }
    let mut clients = BTreeMap::new();
    for line in ok(&mut command).lines() {
        let cells: Vec<&str> = line.split('\t').collect();
        // The innermost ones.
        let last = |at: usize| cells[at].rsplit(',').next().unwrap().to_owned();
        let addresses = if cells[2].is_empty() { 0 } else { 2 };
        let ports = if cells[4].is_empty() { 6 } else { 4 };
        let end = |at: usize| (last(addresses + at), last(ports + at).parse().unwrap());
        let fields = |from: usize, name: &str| -> Vec<String> {
            let at = FIELDS.iter().position(|field| *field == name).unwrap();
            let values = cells[from + at]
                .split(',')
                .filter(|value| !value.is_empty());
            values.map(str::to_owned).collect()
        };
        let (transport, from) = match (fields(8, "ja3").is_empty(), ports) {
            (true, _) => ('d', 16),
            (false, 4) => ('t', 8),
            (false, _) => ('q', 8),
        };
        let field = |name: &str| fields(from, name);
        let first = |name: &str| field(name).into_iter().next();
        let client = Client {
            ja3: first("ja3").unwrap(),
            ja4: ja4(transport, field).filter(|_| field("ja3").len() == 1),
            server: first("extensions_server_name").unwrap_or_default(),
        };
        clients.entry(ends([end(0), end(1)])).or_insert(client);
    }
    clients
}

fn by_strata(log: &Path) -> BTreeMap<Ends, Client> {
    let mut command = strata();
    command
        .arg("export")
        .arg(log)
        .args(["-F", "json", "-w", "-"]);
    let text = ok(&mut command);
    let rows = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut clients = BTreeMap::new();
    for row in rows.filter(|row| row["tls_ja3"].is_string()) {
        let text = |name: &str| row[name].as_str().map(str::to_owned);
        let end = |of: &str| {
            let port = row[format!("{of}_port")].as_u64().unwrap();
            (text(of).unwrap(), port.try_into().unwrap())
        };
        let client = Client {
            ja3: text("tls_ja3").unwrap(),
            ja4: text("tls_ja4"),
            server: text("tls_server_name").unwrap_or_default(),
        };
        clients
            .entry(ends([end("src"), end("dst")]))
            .or_insert(client);
    }
    clients
}

#[test]
fn clients_are_those_of_tshark_in_both_tiers() {
    let (mut flows, mut with_ja4) = (0, 0);
    for name in CAPTURES {
        let dir = tempfile::tempdir().unwrap();
        let (trace, log) = (data_dir().join(name), dir.path().join("log"));
        ok(record(&trace, &log).args(["--mode", "log-all"]));
        let expected = by_tshark(&trace);
        assert!(!expected.is_empty(), "{name}");
        let found = by_strata(&log);
        for (ends, client) in &found {
            let expected = expected.get(ends);
            let expected = expected.unwrap_or_else(|| panic!("{name}: {ends:?}: {client:?}"));
            let mut client = client.clone();
            client.ja4 = client.ja4.filter(|_| expected.ja4.is_some());
            assert_eq!(client, *expected, "{name}: {ends:?}");
            with_ja4 += u64::from(expected.ja4.is_some());
        }
        let missed: Vec<_> = expected
            .iter()
            .filter(|(ends, _)| !found.contains_key(*ends))
            .collect();
        assert!(missed.is_empty(), "{name}: {missed:?}");
        ok(strata().arg("compact").arg(&log));
        assert_eq!(by_strata(&log), found, "{name}");
        flows += found.len();
    }
    assert!(flows > 300 && with_ja4 > 250, "{flows} {with_ja4}");
}
