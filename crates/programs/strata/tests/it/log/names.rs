//! Names, countries and autonomous systems of addresses in `strata top`, `read` and `grep`, compared with
//! libmaxminddb and, for names in DNS answers, with tshark.

mod configured;
mod filters;
mod page;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use strata_testkit::data_dir;

use crate::common::program::{failed, ok, record, refused, strata};

/// A network, its country, and the number and name of its autonomous system.
type Owner = (&'static str, u32, &'static str, u32, &'static str);

const OWNERS: &[Owner] = &[
    ("10.0.0.0", 8, "AA", 64_500, "Inside"),
    ("192.168.0.0", 16, "AA", 64_501, "Office"),
    (
        "162.13.0.0",
        16,
        "GB",
        15_395,
        "A name of more than thirty letters",
    ),
    ("95.0.0.0", 8, "IT", 3_269, "Example of Italy"),
    ("fe80::", 10, "ZZ", 4_200_000_000, "Links"),
];

/// A database as the specification of the MaxMind DB format, version 2.0, describes it.
mod database {
    use std::net::IpAddr;

    use super::Owner;

    enum To {
        Node(usize),
        Data(usize),
    }

    fn text(text: &str) -> Vec<u8> {
        let len = u8::try_from(text.len()).unwrap();
        let mut bytes = match len {
            0..29 => vec![0x40 | len],
            _ => vec![0x40 | 29, len - 29],
        };
        bytes.extend(text.as_bytes());
        bytes
    }

    fn number32(number: u32) -> Vec<u8> {
        [&[0xc4][..], &number.to_be_bytes()].concat()
    }

    fn number16(number: u16) -> Vec<u8> {
        [&[0xa2][..], &number.to_be_bytes()].concat()
    }

    fn number64(number: u64) -> Vec<u8> {
        [&[0x08, 2][..], &number.to_be_bytes()].concat()
    }

    fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = vec![0xe0 | u8::try_from(entries.len()).unwrap()];
        for (key, value) in entries {
            bytes.extend(text(key));
            bytes.extend(value);
        }
        bytes
    }

    fn record((_, _, country, number, name): &Owner) -> Vec<u8> {
        map(&[
            ("country", map(&[("iso_code", text(country))])),
            ("autonomous_system_number", number32(*number)),
            ("autonomous_system_organization", text(name)),
        ])
    }

    pub(super) fn of(owners: &[Owner]) -> Vec<u8> {
        let mut nodes: Vec<[Option<To>; 2]> = vec![[None, None]];
        let mut data = Vec::new();
        for owner in owners {
            let (bits, length) = match owner.0.parse().unwrap() {
                IpAddr::V4(address) => (u128::from(address.to_bits()), 96 + owner.1),
                IpAddr::V6(address) => (address.to_bits(), owner.1),
            };
            let mut at = 0;
            for bit in 0..length - 1 {
                let side = usize::from(bits >> (127 - bit) & 1 == 1);
                at = match nodes[at][side] {
                    Some(To::Node(next)) => next,
                    Some(To::Data(_)) => panic!("networks overlap"),
                    None => {
                        nodes.push([None, None]);
                        let next = nodes.len() - 1;
                        nodes[at][side] = Some(To::Node(next));
                        next
                    }
                };
            }
            let side = usize::from(bits >> (128 - length) & 1 == 1);
            nodes[at][side] = Some(To::Data(data.len()));
            data.extend(record(owner));
        }
        let count = nodes.len();
        let mut bytes = Vec::new();
        for to in nodes.iter().flatten() {
            let value = match to {
                None => count,
                Some(To::Node(next)) => *next,
                Some(To::Data(offset)) => count + 16 + offset,
            };
            bytes.extend(&u32::try_from(value).unwrap().to_be_bytes()[1..]);
        }
        bytes.extend([0; 16]);
        bytes.extend(data);
        bytes.extend(b"\xab\xcd\xefMaxMind.com");
        bytes.extend(map(&[
            ("binary_format_major_version", number16(2)),
            ("binary_format_minor_version", number16(0)),
            ("build_epoch", number64(1_700_000_000)),
            ("database_type", text("Example-City-ASN")),
            ("description", map(&[("en", text("Example"))])),
            ("ip_version", number16(6)),
            ("languages", [vec![1, 4], text("en")].concat()),
            ("node_count", number32(u32::try_from(count).unwrap())),
            ("record_size", number16(24)),
        ]));
        bytes
    }
}

fn log_of_mix(dir: &Path) -> PathBuf {
    let log = dir.join("log");
    let mix = data_dir().join("labelled/mix-test/trace.pcap");
    ok(&mut record(mix, &log));
    log
}

fn top(log: &Path, arguments: &[&str]) -> Value {
    let mut command = strata();
    command.args(["top", "--json", "-n", "1000000"]).arg(log);
    serde_json::from_str(&ok(command.args(arguments))).unwrap()
}

/// What Wireshark's helper, which uses libmaxminddb, finds for addresses.
fn resolved(database: &Path, addresses: &[IpAddr]) -> BTreeMap<IpAddr, BTreeMap<String, String>> {
    let mut command = Command::new("mmdbresolve");
    command
        .arg("-f")
        .arg(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines: String = addresses
        .iter()
        .map(|address| format!("{address}\n"))
        .collect();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut found: BTreeMap<IpAddr, BTreeMap<String, String>> = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        let inner = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'));
        // It also has a line `[init]`.
        if let Some(address) = inner.and_then(|inner| inner.parse::<IpAddr>().ok()) {
            found.entry(address).or_default();
            current = Some(address);
        } else if let Some((name, value)) = line.split_once(": ")
            && let Some(address) = current
        {
            let values = found.get_mut(&address).unwrap();
            values.insert(name.to_owned(), value.to_owned());
        }
    }
    found
}

#[test]
fn countries_and_systems_are_those_of_libmaxminddb() {
    let dir = tempfile::tempdir().unwrap();
    let log = log_of_mix(dir.path());
    let file = dir.path().join("example.mmdb");
    fs::write(&file, database::of(OWNERS)).unwrap();
    let mmdb = file.to_str().unwrap();
    // The counts by pair of hosts are compared with tshark's elsewhere.
    let pairs = top(&log, &["--by", "pair"]);
    let pairs = pairs["largest"].as_array().unwrap().iter();
    let pairs: Vec<(Vec<Option<IpAddr>>, u64)> = pairs
        .map(|row| {
            let ends = row["pair"].as_str().unwrap().split(" - ");
            let ends = ends.map(|end| end.parse().ok());
            (ends.collect(), row["packets"].as_u64().unwrap())
        })
        .collect();
    let mut addresses: Vec<IpAddr> = pairs
        .iter()
        .flat_map(|(ends, _)| ends)
        .flatten()
        .copied()
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    let known = resolved(&file, &addresses);
    assert_eq!(known.len(), addresses.len());
    let of = |by: &str, end: &Option<IpAddr>| -> String {
        let Some(address) = end else {
            return "not IP".into();
        };
        let known = &known[address];
        let value = |name: &str| known.get(name).cloned();
        let found = match by {
            "country" => value("country.iso_code"),
            _ => value("autonomous_system_number")
                .map(|number| format!("AS{number} {}", known["autonomous_system_organization"])),
        };
        found.unwrap_or_else(|| "unknown".into())
    };
    for (by, least) in [("country", 5), ("as", 6)] {
        let mut expected: BTreeMap<String, u64> = BTreeMap::new();
        for (ends, packets) in &pairs {
            // A MAC address, or what could not be dissected, is one "end" or two.
            if ends.len() != 2 {
                *expected.entry("not dissected".into()).or_default() += packets;
                continue;
            }
            let [one, other] = [of(by, &ends[0]), of(by, &ends[1])];
            if one != other {
                *expected.entry(other).or_default() += packets;
            }
            *expected.entry(one).or_default() += packets;
        }
        let answer = top(&log, &["--by", by, "--mmdb", mmdb]);
        let shown = answer["largest"].as_array().unwrap().iter();
        let shown: BTreeMap<String, u64> = shown
            .map(|row| {
                let name = row[by].as_str().unwrap().to_owned();
                (name, row["packets"].as_u64().unwrap())
            })
            .collect();
        assert_eq!(shown, expected);
        assert!(shown.len() >= least, "{shown:?}");
    }
    // One address, with all that is known of it.
    let names = dir.path().join("names");
    fs::write(&names, "10.10.10.0/24 lab\n10.10.10.30 printer\n").unwrap();
    let names = names.to_str().unwrap();
    let hosts = top(
        &log,
        &[
            "--mmdb",
            mmdb,
            "--names",
            names,
            "--by",
            "source",
            "host 10.10.10.30",
        ],
    );
    let rows = hosts["largest"].as_array().unwrap();
    let printer = rows
        .iter()
        .find(|row| row["source"] == "10.10.10.30")
        .unwrap();
    assert_eq!([&printer["name"], &printer["country"]], ["printer", "AA"]);
    assert_eq!(printer["as"], "AS64500 Inside");
    let text = ok(strata()
        .args(["top", "--by", "source", "--names", names, "--mmdb", mmdb])
        .arg(&log)
        .arg("src host 10.10.10.30"));
    assert!(
        text.contains("10.10.10.30 (printer, AA, AS64500 Inside)\n"),
        "{text}"
    );
    let networks = top(&log, &["--by", "network", "--names", names]);
    let networks = networks["largest"].as_array().unwrap();
    let is_there = |name: &str| networks.iter().any(|row| row["network"] == name);
    assert!(is_there("lab (10.10.10.0/24)") && is_there("printer") && is_there("unknown"));
}

/// Names that tshark has of each address, the last one asked for at the end.
fn asked(mix: &Path) -> BTreeMap<IpAddr, Vec<String>> {
    let fields = [
        "dns.count.queries",
        "dns.count.answers",
        "dns.qry.name",
        "dns.resp.name",
        "dns.resp.type",
        "dns.a",
        "dns.aaaa",
    ];
    let answers = "dns.flags.response == 1 && dns.flags.opcode == 0 && dns.flags.rcode == 0 && \
                   (udp.srcport == 53 || udp.srcport == 5353 || tcp.srcport == 53)";
    let mut command = Command::new("tshark");
    command
        .arg("-r")
        .arg(mix)
        .args(["-Y", answers, "-T", "fields"]);
    let output = command
        .args(fields.iter().flat_map(|field| ["-e", field]))
        .output()
        .unwrap();
    let mut names: BTreeMap<IpAddr, Vec<String>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let cells: Vec<&str> = line.split('\t').collect();
        let [queries, answers, query, owners, kinds, v4, v6] = cells[..] else {
            panic!("{line}");
        };
        let list = |text: &str| -> Vec<String> {
            let items = text.split(',').filter(|item| !item.is_empty());
            items.map(str::to_lowercase).collect()
        };
        let (mut v4, mut v6) = (list(v4).into_iter(), list(v6).into_iter());
        let answers = list(kinds).into_iter().take(answers.parse().unwrap());
        // tshark has the owners of SRV records elsewhere.
        let kinds: Vec<String> = answers.filter(|kind| kind != "33").collect();
        let has_aliases = kinds.iter().any(|kind| kind == "5");
        for (owner, kind) in list(owners).into_iter().zip(kinds) {
            let address = match kind.as_str() {
                "1" => v4.next().unwrap(),
                "28" => v6.next().unwrap(),
                _ => continue,
            };
            let name = match queries {
                "1" if has_aliases => query.to_lowercase(),
                _ => owner,
            };
            let known = names.entry(address.parse().unwrap()).or_default();
            known.retain(|other| *other != name);
            known.push(name);
        }
    }
    names
}

#[test]
fn names_that_were_asked_for_are_those_of_tshark() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mix = data_dir().join("labelled/mix-test/trace.pcap");
    ok(record(&mix, &log).args(["--mode", "log-all"]));
    let asked = asked(&mix);
    let answer = top(&log, &["--by", "host", "--dns-names"]);
    let hosts = answer["largest"].as_array().unwrap();
    let mut named = 0;
    for row in hosts {
        let Ok(address) = row["host"].as_str().unwrap().parse::<IpAddr>() else {
            continue;
        };
        let expected = asked.get(&address).map(|names| {
            let last = names.last().unwrap();
            match names.len() {
                1 => last.clone(),
                others @ 2..=5 => format!("{last} +{}", others - 1),
                _ => format!("{last} +4 or more"),
            }
        });
        assert_eq!(row["name"].as_str(), expected.as_deref(), "{address}");
        named += usize::from(expected.is_some());
    }
    assert!(named > 200, "{named}");
    // One of them, by all commands, with another name from a file.
    let (address, names) = asked
        .iter()
        .find(|(address, names)| {
            let found = || top(&log, &[&format!("host {address}")])["total"]["packets"] != 0;
            names.len() == 1 && found()
        })
        .unwrap();
    let filter = format!("host {address}");
    let read = |arguments: &[&str]| {
        let mut command = strata();
        command
            .arg("read")
            .arg(&log)
            .args(["-c", "1"])
            .args(arguments);
        ok(command.arg(&filter))
    };
    let is_named = |text: &str, name: &str| {
        ["src", "dst"]
            .iter()
            .any(|end| text.contains(&format!(" {end}_name={name}")))
    };
    let text = read(&["--dns-names"]);
    assert!(is_named(&text, &names[0]), "{text}");
    let file = dir.path().join("names");
    fs::write(&file, format!("{address} other\n")).unwrap();
    let file = file.to_str().unwrap();
    let text = read(&["--dns-names", "--names", file]);
    assert!(is_named(&text, "other"), "{text}");
    let object: Value = serde_json::from_str(&read(&["--json", "--names", file])).unwrap();
    let ends = ["src", "dst"].map(|end| &object[format!("{end}_name")]);
    assert!(ends.iter().any(|name| **name == "other"), "{object}");
    assert!(!read(&[]).contains("_name="));
    let mut grep = strata();
    grep.arg("grep")
        .arg(&log)
        .args(["--dns-names", "-c", "1", "(?s).", &filter]);
    let text = ok(&mut grep);
    assert!(is_named(&text, &names[0]), "{text}");
    // Where less payload was kept, it is said for how many answers.
    let bare = dir.path().join("bare");
    ok(record(&mix, &bare).args(["--mode", "log-minimum"]));
    let output = strata()
        .arg("top")
        .arg(&bare)
        .arg("--dns-names")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let cut = said
        .split(" DNS answers, ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    assert!(cut.unwrap().parse::<u32>().unwrap() > 100, "{said}");
}

#[test]
fn files_that_are_no_names_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = log_of_mix(dir.path());
    let file = dir.path().join("damaged.mmdb");
    let whole = database::of(OWNERS);
    let run = |arguments: &[&str]| {
        let mut command = strata();
        command.arg("top").arg(&log).args(arguments);
        command
    };
    for (by, option) in [
        ("country", "--mmdb"),
        ("as", "--mmdb"),
        ("network", "--names"),
    ] {
        let said = refused(&mut run(&["--by", by]));
        let says = |text: &str| assert!(said.contains(text), "{said}");
        says(&format!("--by {by}"));
        says(&format!("{option} FILE"));
    }
    let mmdb = file.to_str().unwrap();
    fs::write(&file, "no database").unwrap();
    let said = failed(&mut run(&["--by", "as", "--mmdb", mmdb]));
    assert!(
        said.contains("not a database in MaxMind's format"),
        "{said}"
    );
    // Any byte wrong, anywhere: an answer or an error, never a panic.
    for at in (0..whole.len()).step_by(101) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        fs::write(&file, damaged).unwrap();
        let output = run(&["--by", "country", "--mmdb", mmdb, "-n", "3"])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let is_answer = output.status.success();
        assert!(is_answer || said.contains("damaged.mmdb"), "{at}: {said}");
        assert!(!said.contains("panicked"), "{at}: {said}");
    }
}
