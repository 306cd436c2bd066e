//! Names of TLS servers' certificates in flow records, compared with tshark and OpenSSL.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use strata_testkit::data_dir;

use crate::common::program::{ok, record, strata};

type End = (String, u16);
/// Both ends of a flow.
type Ends = [End; 2];

/// What the server of a flow sent.
struct Sent {
    /// Its own certificate, in hexadecimal.
    certificate: String,
    /// DNS names of all its certificates.
    hosts: Vec<String>,
}

/// The labelled captures in which tshark finds a certificate of TLS.
const LABELLED: &[&str] = &[
    "labelled/everyday-benign/trace.pcap",
    "labelled/smb-exploits/trace.pcap",
    "labelled/rat-c2/trace.pcap",
    "labelled/ad-attacks/trace.pcap",
    "labelled/infected-hosts/trace.pcap.gz",
    "labelled/mix-test/trace.pcap",
    "labelled/mix-train/trace.pcap",
];

/// The other ones.
const FORMATS: &[&str] = &[
    "formats/pcapplusplus/IgmpPackets.pcap",
    "formats/pcapplusplus/SSL-MultipleRecords3.pcap",
    "formats/pcapplusplus/tls.pcap",
    "formats/zeek/CVE-2015-3194.pcap",
    "formats/zeek/cert-no-cn.pcap",
    "formats/zeek/certificate-request-failed.pcap",
    "formats/zeek/certificate-with-sct.pcap",
    "formats/zeek/chrome-34-google.pcap",
    "formats/zeek/client-certificate.pcap",
    "formats/zeek/dhe.pcap",
    "formats/zeek/ecdhe.pcap",
    "formats/zeek/ecdsa-cert.pcap",
    "formats/zeek/encrypted.pcap",
    "formats/zeek/geneve-47101.pcap",
    "formats/zeek/globus-url-copy-bad-encoding.pcap",
    "formats/zeek/globus-url-copy.pcap",
    "formats/zeek/google-cert-repeat.pcap",
    "formats/zeek/google-duplicate.pcap",
    "formats/zeek/heartbleed-encrypted-short.pcap",
    "formats/zeek/heartbleed-encrypted.pcap",
    "formats/zeek/heartbleed-success.pcap",
    "formats/zeek/heartbleed.pcap",
    "formats/zeek/imap-starttls.pcap",
    "formats/zeek/missing-intermediate.pcap",
    "formats/zeek/ml-dsa-44-cert.pcap",
    "formats/zeek/ocsp-stapling-digicert.pcap",
    "formats/zeek/ocsp-stapling-twimg.pcap",
    "formats/zeek/ocsp-stapling.pcap",
    "formats/zeek/pop3-starttls.pcap",
    "formats/zeek/pppoe-over-qinq.pcap",
    "formats/zeek/psql-aws-ssl-preferred.pcap",
    "formats/zeek/psql-aws-ssl-require-15432.pcap",
    "formats/zeek/psql-aws-ssl-require.pcap",
    "formats/zeek/signed_certificate_timestamp-2.pcap",
    "formats/zeek/signed_certificate_timestamp.pcap",
    "formats/zeek/signed_certificate_timestamp_tls1_0.pcap",
    "formats/zeek/smtp-starttls.pcap",
    "formats/zeek/smtp.pcap",
    "formats/zeek/socks-with-ssl.pcap",
    "formats/zeek/ssl-and-ssh-using-sslh.pcap",
    "formats/zeek/telesec.pcap",
    "formats/zeek/tls-12-amazon-rds.pcap",
    "formats/zeek/tls-conn-with-extensions.pcap",
    "formats/zeek/tls-early-alert.pcap",
    "formats/zeek/tls-expired-cert.pcap",
    "formats/zeek/tls1.2-late-protocol-error.pcap",
    "formats/zeek/tls1.2-protocol-violation.pcap",
    "formats/zeek/tls1.2.pcap",
    "formats/zeek/tls12-decryption.pcap",
    "formats/zeek/tls1_1.pcap",
    "formats/zeek/x509-generalizedtime.pcap",
    "formats/zeek/xmpp-dialback-starttls.pcap",
    "formats/zeek/xmpp-starttls.pcap",
];

/// The first certificate of each flow's server.
fn by_tshark(trace: &Path) -> BTreeMap<Ends, Sent> {
    const FIELDS: [&str; 10] = [
        "ip.src",
        "ipv6.src",
        "tcp.srcport",
        "ip.dst",
        "ipv6.dst",
        "tcp.dstport",
        "tls.handshake.type",
        "tls.handshake.certificate",
        "x509ce.dNSName",
        "frame.protocols",
    ];
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(trace).args(["-T", "fields"]);
    tshark.args(["-E", "aggregator=;", "-Y"]);
    tshark.arg("tcp and not openvpn and (tls.handshake.type == 2 or tls.handshake.type == 11)");
    tshark.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let text = ok(&mut tshark);
    let (mut servers, mut sent) = (BTreeMap::<Ends, End>::new(), BTreeMap::new());
    for line in text.lines() {
        let fields: Vec<Vec<&str>> = line
            .split('\t')
            .map(|field| field.split(';').filter(|value| !value.is_empty()).collect())
            .collect();
        // The innermost, in a tunnel.
        let end = |at: usize| -> End {
            let is_6in4 = fields[9].iter().any(|layers| layers.contains(":ip:ipv6:"));
            let ipv4 = fields[at].last().filter(|_| !is_6in4);
            let address = ipv4.or(fields[at + 1].last());
            let port = fields[at + 2].last().unwrap().parse().unwrap();
            ((*address.unwrap()).to_owned(), port)
        };
        let (from, to) = (end(0), end(3));
        let mut ends = [from.clone(), to];
        ends.sort();
        if fields[6].contains(&"2") {
            servers.entry(ends.clone()).or_insert_with(|| from.clone());
        }
        if let (Some(certificate), true) = (fields[7].first(), servers.get(&ends) == Some(&from)) {
            sent.entry(ends).or_insert_with(|| Sent {
                certificate: certificate.replace(':', ""),
                hosts: fields[8].iter().map(|host| (*host).to_owned()).collect(),
            });
        }
    }
    sent
}

/// The common names of a certificate's subject, and its DNS names.
fn by_openssl(certificate: &str) -> [Vec<String>; 2] {
    let bytes = certificate.as_bytes().chunks(2).map(|digits| {
        let digits = std::str::from_utf8(digits).unwrap();
        u8::from_str_radix(digits, 16).unwrap()
    });
    let mut openssl = Command::new("openssl");
    openssl.args(["x509", "-inform", "DER", "-noout", "-subject"]);
    openssl.args([
        "-nameopt",
        "sep_multiline,lname,utf8",
        "-ext",
        "subjectAltName",
    ]);
    openssl
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut openssl = openssl
        .spawn()
        .expect("openssl is installed (`make tools`)");
    let mut stdin = openssl.stdin.take().unwrap();
    stdin.write_all(&bytes.collect::<Vec<u8>>()).unwrap();
    drop(stdin);
    let text = openssl.wait_with_output().unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().map(str::trim);
    let common = lines
        .clone()
        .filter_map(|line| line.strip_prefix("commonName="));
    let hosts = lines
        .flat_map(|line| line.split(", "))
        .filter_map(|name| name.strip_prefix("DNS:"));
    [
        common.map(str::to_owned).collect(),
        hosts.map(str::to_owned).collect(),
    ]
}

fn by_strata(log: &Path) -> BTreeMap<Ends, Vec<String>> {
    let mut command = strata();
    command.arg("export").arg(log);
    let text = ok(command.args(["-F", "json", "-w", "-"]));
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let Some(names) = row["tls_certificate_names"].as_array() else {
            continue;
        };
        let end = |of: &str| {
            let port = row[format!("{of}_port")].as_u64().unwrap();
            (
                row[of].as_str().unwrap().to_owned(),
                port.try_into().unwrap(),
            )
        };
        let mut ends = [end("src"), end("dst")];
        ends.sort();
        let names = names.iter().map(|name| name.as_str().unwrap().to_owned());
        found.entry(ends).or_insert_with(|| names.collect());
    }
    found
}

/// What a row has of these names: each once, and the first 16.
fn expected([common, hosts]: &[Vec<String>; 2]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in common.iter().chain(hosts) {
        if !name.is_empty() && name.len() <= 255 && !names.contains(name) && names.len() < 16 {
            names.push(name.clone());
        }
    }
    names
}

/// Compares the rows of these captures, also when they are compacted; returns how many have names.
fn compared(captures: &[&str], in_both_tiers: bool) -> usize {
    let (mut flows, mut known) = (0, BTreeMap::new());
    for name in captures {
        let dir = tempfile::tempdir().unwrap();
        let (trace, log) = (data_dir().join(name), dir.path().join("log"));
        ok(record(&trace, &log).args(["--mode", "log-all"]));
        let found = by_strata(&log);
        let mut wanted = BTreeMap::new();
        for (ends, sent) in by_tshark(&trace) {
            let certificate = sent.certificate;
            let names = known
                .entry(certificate)
                .or_insert_with_key(|der| by_openssl(der));
            // The server's own certificate comes first, and those of its issuers after it.
            assert!(
                sent.hosts.starts_with(&names[1]),
                "{name}: {ends:?}: {:?}",
                sent.hosts
            );
            let names = expected(names);
            if !names.is_empty() {
                wanted.insert(ends, names);
            }
        }
        for (ends, names) in &wanted {
            assert_eq!(found.get(ends), Some(names), "{name}: {ends:?}");
        }
        // Servers at ports of other protocols, and certificates whose issuers' ones were lost.
        assert!(
            found.len() <= wanted.len() + wanted.len() / 10 + 4,
            "{name}"
        );
        if in_both_tiers {
            ok(strata().arg("compact").arg(&log));
            assert_eq!(by_strata(&log), found, "{name}");
        }
        flows += found.len();
    }
    flows
}

#[test]
fn names_of_certificates_are_those_of_tshark_in_both_tiers() {
    let flows = compared(LABELLED, true);
    assert!(flows > 500, "{flows}");
}

#[test]
fn names_of_many_kinds_of_certificates_are_those_of_tshark() {
    let flows = compared(FORMATS, false);
    assert!(flows > 50, "{flows}");
}
