//! `strata export --anonymize`: nothing of the originals is left, and the traffic has the same shape to tshark.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use memchr::memmem;
use serde_json::Value;
use strata_testkit::data_dir;

use crate::common::program::{failed, ok, record, refused, strata};

/// The key of the reference implementation's example.
const KEY: &str = "1522178d33a4cf80130a5b1649907d10d8988f837979652762574c2d2a842202";

/// Runs a program of Wireshark.
fn wireshark(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Values of fields, packet by packet.
fn fields(capture: &str, names: &[&str]) -> Vec<Vec<String>> {
    let mut arguments = vec![
        "-n",
        "-r",
        capture,
        "-T",
        "fields",
        "-o",
        "ip.check_checksum:TRUE",
    ];
    arguments.extend(names.iter().flat_map(|name| ["-e", name]));
    let text = wireshark("tshark", &arguments);
    let cells = |line: &str| line.split('\t').map(str::to_owned).collect();
    text.lines().map(cells).collect()
}

/// A name resolution block of pcapng: an IPv4 address and its name (section 4.5).
fn name_block(address: [u8; 4], name: &str) -> Vec<u8> {
    let mut record = [&address[..], name.as_bytes(), &[0]].concat();
    let len = u16::try_from(record.len()).unwrap();
    record.resize(record.len().next_multiple_of(4), 0);
    let body = [
        &1_u16.to_le_bytes()[..],
        &len.to_le_bytes(),
        &record,
        &[0; 4],
    ]
    .concat();
    let total = u32::try_from(body.len() + 12).unwrap().to_le_bytes();
    [&4_u32.to_le_bytes()[..], &total, &body, &total].concat()
}

/// The mix with all that can name people around packets: comments, names of addresses.
fn capture(dir: &Path) -> String {
    let mix = data_dir().join("labelled/mix-test/trace.pcap");
    let commented = dir.join("commented.pcapng").to_str().unwrap().to_owned();
    let comments = ["-a", "3:alice called", "--capture-comment", "at alice's"];
    let files = [mix.to_str().unwrap(), &commented];
    wireshark("editcap", &[&comments[..], &files].concat());
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(&commented)
        .unwrap();
    file.write_all(&name_block([10, 10, 10, 30], "alices-printer"))
        .unwrap();
    commented
}

fn key(dir: &Path) -> String {
    let file = dir.join("anon.key");
    fs::write(&file, format!("{KEY}\n")).unwrap();
    file.to_str().unwrap().to_owned()
}

/// The mix in a log, and as an anonymized capture.
fn anonymized(dir: &Path) -> (String, String, Value) {
    let original = capture(dir);
    let log = dir.join("log");
    ok(record(&original, &log).args(["--mode", "log-all", "--detail", "none"]));
    let written = dir.join("public.pcapng");
    let mut command = strata();
    command
        .arg("export")
        .arg(&log)
        .arg("-w")
        .arg(&written)
        .arg("--json");
    let answer = ok(command.args(["--anonymize", &key(dir)]));
    let written = written.to_str().unwrap().to_owned();
    (original, written, serde_json::from_str(&answer).unwrap())
}

/// Two addresses share as many bits as before.
fn keep_prefixes(addresses: &BTreeMap<IpAddr, IpAddr>) {
    let v4 = |address: &IpAddr| match address {
        IpAddr::V4(address) => Some(u32::from(*address)),
        IpAddr::V6(_) => None,
    };
    let pairs: Vec<(u32, u32)> = addresses
        .iter()
        .filter_map(|(before, after)| Some((v4(before)?, v4(after)?)))
        .collect();
    for (index, (before, after)) in pairs.iter().enumerate() {
        for (other_before, other_after) in &pairs[..index] {
            let [before, after] = [before ^ other_before, after ^ other_after];
            assert_eq!(before.leading_zeros(), after.leading_zeros());
        }
    }
}

/// Nothing of the originals is there as bytes: addresses that are no small numbers, names, comments.
fn holds_nothing_of(written: &str, addresses: &BTreeMap<IpAddr, IpAddr>, macs: &BTreeSet<[u8; 6]>) {
    let bytes = fs::read(written).unwrap();
    let has = |part: &[u8]| memmem::find(&bytes, part).is_some();
    for mac in macs.iter().filter(|mac| {
        mac.iter()
            .filter(|&&byte| byte != 0 && byte != 0xff)
            .count()
            > 4
    }) {
        assert!(!has(mac), "{mac:02x?}");
    }
    for address in addresses.keys() {
        if let IpAddr::V6(address) = address {
            assert!(!has(&address.octets()), "{address}");
        }
    }
    for text in [
        "alice",
        "10.10.10.30",
        "facebook",
        "HTTP/1.1",
        "strata",
        "benign",
        "mode:",
    ] {
        assert!(!has(text.as_bytes()), "{text}");
    }
}

#[test]
fn packets_keep_networks_and_shape_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (original, written, answer) = anonymized(dir.path());
    assert_eq!(
        (&answer["emptied"], &answer["complete"]),
        (&0.into(), &true.into())
    );
    let names = [
        "frame.time_epoch",
        "frame.len",
        "eth.src",
        "eth.dst",
        "ip.addr",
        "ipv6.addr",
        "tcp.port",
        "udp.port",
        "tcp.flags",
        "ip.checksum.status",
        "frame.cap_len",
    ];
    let before = fields(&original, &names);
    let after = fields(&written, &names);
    assert_eq!(before.len(), after.len());
    let mut addresses: BTreeMap<IpAddr, IpAddr> = BTreeMap::new();
    let mut macs: BTreeSet<[u8; 6]> = BTreeSet::new();
    let mut kept = [0_u64; 2];
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before[..2], after[..2]);
        // Headers that are not understood are cut, and with them what they would have had.
        for field in 6..9 {
            assert!(
                before[field].starts_with(&after[field]),
                "{before:?} {after:?}"
            );
        }
        // Bad checksums are 0, and bad.
        assert!(before[9].starts_with(&after[9]), "{before:?} {after:?}");
        for field in [4, 5] {
            let [before, after] = [&before[field], &after[field]].map(|cell| cell.split(','));
            let parsed = before.zip(after).filter(|(_, after)| !after.is_empty());
            for (before, after) in parsed {
                let [before, after] = [before, after].map(|text| text.parse::<IpAddr>().unwrap());
                assert_eq!(*addresses.entry(before).or_insert(after), after);
            }
        }
        for mac in before[2..4].iter().filter(|mac| !mac.is_empty()) {
            for mac in mac.split(',') {
                let bytes = mac
                    .split(':')
                    .map(|byte| u8::from_str_radix(byte, 16).unwrap());
                macs.insert(bytes.collect::<Vec<u8>>().try_into().unwrap());
            }
        }
        for (sum, cells) in kept.iter_mut().zip([before, after]) {
            *sum += cells[10].parse::<u64>().unwrap();
        }
    }
    assert!(
        addresses.len() > 500 && macs.len() > 30,
        "{} {}",
        addresses.len(),
        macs.len()
    );
    assert!(kept[1] * 2 < kept[0], "{kept:?}");
    keep_prefixes(&addresses);
    // The addresses are those of the reference implementation under its key.
    let anonymizer = |address: [u8; 4]| {
        let key = strata_anonymize::Key::parse(KEY.as_bytes()).unwrap();
        strata_anonymize::Addresses::new(&key).ipv4(Ipv4Addr::from(address))
    };
    assert_eq!(
        anonymizer([128, 11, 68, 132]),
        Ipv4Addr::new(135, 242, 180, 132)
    );
    let printer: IpAddr = [10, 10, 10, 30].into();
    assert_eq!(
        addresses[&printer],
        IpAddr::from(anonymizer([10, 10, 10, 30]))
    );
    holds_nothing_of(&written, &addresses, &macs);
    let bytes = fs::read(&original).unwrap();
    assert!(memmem::find(&bytes, b"alices-printer").is_some());
}

#[test]
fn doubles_several_logs_and_pcap_are_anonymized_too() {
    let dir = tempfile::tempdir().unwrap();
    let (_, once, answer) = anonymized(dir.path());
    let packets = answer["packets"].as_u64().unwrap();
    let log = dir.path().join("log");
    let copy = dir.path().join("copy");
    ok(Command::new("cp").arg("-r").args([&log, &copy]));
    let again = dir.path().join("again.pcap");
    let mut command = strata();
    command
        .arg("export")
        .args([&log, &copy])
        .arg("-w")
        .arg(&again);
    let key = key(dir.path());
    let answer = ok(command.args(["--json", "--dedup", "1us", "--anonymize", &key]));
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert!(answer["duplicates"].as_u64().unwrap() >= packets);
    let again = again.to_str().unwrap();
    let addresses = |capture: &str| -> BTreeSet<Vec<String>> {
        fields(capture, &["ip.src", "ip.dst", "tcp.port"])
            .into_iter()
            .collect()
    };
    assert_eq!(addresses(again), addresses(&once));
}

#[test]
fn what_cannot_be_anonymized_is_refused_or_said() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mix = data_dir().join("labelled/mix-test/trace.pcap");
    ok(&mut record(mix, &log));
    let key = key(dir.path());
    let export = |output: &str, key: &str, more: &[&str]| {
        let mut command = strata();
        command.arg("export").arg(&log).arg("-w").arg(output);
        command.args(["--anonymize", key]).args(more);
        command
    };
    let out = dir.path().join("out.pcapng");
    let out = out.to_str().unwrap();
    for format in ["csv", "json", "ipfix", "flows-parquet", "packets-parquet"] {
        let said = refused(&mut export(out, &key, &["-F", format]));
        assert!(
            said.contains("--anonymize applies only to pcapng and pcap"),
            "{said}"
        );
    }
    let both = export(out, &key, &["--tls-keys", &key]).output().unwrap();
    assert_eq!(both.status.code(), Some(2));
    let short = dir.path().join("short");
    fs::write(&short, "0123").unwrap();
    for (file, why) in [
        (short.to_str().unwrap(), "is 4 bytes long, not the 32 bytes"),
        ("/dev/zero", "is 4096 bytes long"),
        ("missing.key", "missing.key: cannot read the key"),
    ] {
        let said = failed(&mut export(out, file, &[]));
        assert!(said.contains(why), "{said}");
        assert!(!Path::new(out).exists());
    }
    // A key that others can read is used, with the warning of other secrets.
    for (mode, is_private) in [(0o644, false), (0o604, false), (0o400, true), (0o600, true)] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let done = export(out, &key, &[]).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success(), "{said}");
        let warning = format!("{key}: others can read this secret (mode {mode:04o}): `chmod 600");
        assert_eq!(!said.contains(&warning), is_private, "{said}");
    }
    // The key is not overwritten.
    refused(&mut export(&key, &key, &["-F", "pcapng"]));
    assert!(fs::read_to_string(&key).unwrap().starts_with("1522"));
}
