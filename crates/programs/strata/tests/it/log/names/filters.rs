//! Names of networks in filters, against a count over tshark's fields.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;

use strata_testkit::data_dir;

use super::{OWNERS, Owner, database, log_of_mix, top};
use crate::common::program::{failed, ok, record, refused, strata};

/// The addresses of a packet's outermost header, where it is right after the link layer: source and destination.
type Ends = Option<[IpAddr; 2]>;

/// Of each packet of a capture, by tshark.
fn ends(trace: &Path) -> Vec<Ends> {
    let fields = [
        "eth.type",
        "ip.src",
        "ip.dst",
        "ipv6.src",
        "ipv6.dst",
        "arp.src.proto_ipv4",
        "arp.dst.proto_ipv4",
    ];
    let mut tshark = Command::new("tshark");
    tshark
        .arg("-r")
        .arg(trace)
        .args(["-T", "fields", "-E", "occurrence=f"]);
    let text = ok(tshark.args(fields.iter().flat_map(|field| ["-e", field])));
    let ends = |line: &str| {
        let cells: Vec<&str> = line.split('\t').collect();
        let at = match cells[0] {
            "0x0800" => 1,
            "0x86dd" => 3,
            "0x0806" => 5,
            _ => return None,
        };
        Some([cells[at].parse().ok()?, cells[at + 1].parse().ok()?])
    };
    text.lines().map(ends).collect()
}

/// A network that has an address, one bit after the other.
fn is_in(address: IpAddr, network: &str) -> bool {
    let (base, length) = network.split_once('/').unwrap();
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (32, u128::from(address.to_bits()) << 96),
        IpAddr::V6(address) => (128, address.to_bits()),
    };
    let ((size, one), (other_size, other)) = (bits(address), bits(base.parse().unwrap()));
    let length: u32 = length.parse().unwrap();
    size == other_size && (0..length).all(|bit| (one ^ other) >> (127 - bit) & 1 == 0)
}

fn in_any(address: IpAddr, networks: &[&str]) -> bool {
    networks.iter().any(|network| is_in(address, network))
}

#[test]
#[allow(clippy::too_many_lines, reason = "a list of filters and their counts")]
fn filters_by_names_select_what_tshark_counts() {
    let dir = tempfile::tempdir().unwrap();
    let log = log_of_mix(dir.path());
    let packets = ends(&data_dir().join("labelled/mix-test/trace.pcap"));
    let (names, one, other) = (
        dir.path().join("networks"),
        dir.path().join("one.mmdb"),
        dir.path().join("other.mmdb"),
    );
    fs::write(
        &names,
        "10.10.10.0/24 lab\n10.10.10.30 printer own\n192.168.0.0/16 home own\nfe80::/10 links lab\n",
    )
    .unwrap();
    fs::write(&one, database::of(OWNERS)).unwrap();
    // What another database says before counts: of 10.0.0.0/8.
    let more: &[Owner] = &[("8.0.0.0", 5, "BB", 64_502, "Around")];
    fs::write(&other, database::of(more)).unwrap();
    let files = [
        "--names",
        names.to_str().unwrap(),
        "--mmdb",
        one.to_str().unwrap(),
        "--mmdb",
        other.to_str().unwrap(),
    ];
    // Networks of each name, and those that are not of it though they are within.
    let lab: &[&str] = &["10.10.10.0/24", "fe80::/10"];
    let own: &[&str] = &["10.10.10.30/32", "192.168.0.0/16"];
    let inside: &[&str] = &["10.0.0.0/8"];
    let a: &[&str] = &["10.0.0.0/8", "192.168.0.0/16"];
    let is_b = |end| is_in(end, "8.0.0.0/5") && !is_in(end, "10.0.0.0/8");
    let is_links = |end| is_in(end, "fe80::/10");
    type Matches<'a> = &'a dyn Fn(IpAddr, IpAddr) -> bool;
    let rows: [(&str, Matches<'_>); 12] = [
        ("tag lab", &|s, d| in_any(s, lab) || in_any(d, lab)),
        ("src tag lab", &|s, _| in_any(s, lab)),
        ("dst tag printer", &|_, d| is_in(d, "10.10.10.30/32")),
        ("src and dst tag own", &|s, d| {
            in_any(s, own) && in_any(d, own)
        }),
        ("asn 64500", &|s, d| in_any(s, inside) || in_any(d, inside)),
        ("asn AS4200000000", &|s, d| is_links(s) || is_links(d)),
        ("country GB", &|s, d| {
            is_in(s, "162.13.0.0/16") || is_in(d, "162.13.0.0/16")
        }),
        ("src country aa and not dst country AA", &|s, d| {
            in_any(s, a) && !in_any(d, a)
        }),
        ("country BB", &|s, d| is_b(s) || is_b(d)),
        ("dst country BB or tag lab", &|s, d| {
            is_b(d) || in_any(s, lab) || in_any(d, lab)
        }),
        ("tag lab and not tag own", &|s, d| {
            (in_any(s, lab) || in_any(d, lab)) && !(in_any(s, own) || in_any(d, own))
        }),
        ("host 10.10.10.30 and dst asn 3269", &|s, d| {
            is_in(s, "10.10.10.30/32") && is_in(d, "95.0.0.0/8")
        }),
    ];
    let exported = |filter: &str| -> u64 {
        let mut export = strata();
        export
            .args(["export", "--json", "--quiet"])
            .arg(&log)
            .args(files);
        export.arg("-w").arg(dir.path().join("out.pcapng"));
        let answer: serde_json::Value = serde_json::from_str(&ok(export.arg(filter))).unwrap();
        answer["packets"].as_u64().unwrap()
    };
    for is_compacted in [false, true] {
        if is_compacted {
            ok(strata().arg("compact").arg(&log));
        }
        let mut counts = BTreeSet::new();
        for (filter, matches) in rows {
            let expected = packets.iter().flatten().filter(|[s, d]| matches(*s, *d));
            let expected = u64::try_from(expected.count()).unwrap();
            let counted = top(&log, &[&files[..], &[filter]].concat());
            assert_eq!(counted["total"]["packets"], expected, "{filter}");
            assert_eq!(exported(filter), expected, "{filter}");
            counts.insert(expected);
        }
        assert!(counts.len() >= 6, "{counts:?}");
    }
    // What is not IP, and has no address, is in no network.
    let all = top(&log, &[])["total"]["packets"].as_u64().unwrap();
    let none = top(&log, &[&files[..], &["not tag lab"]].concat());
    let lab = packets
        .iter()
        .flatten()
        .filter(|[s, d]| in_any(*s, lab) || in_any(*d, lab));
    assert_eq!(
        none["total"]["packets"],
        all - u64::try_from(lab.count()).unwrap()
    );
    // The same by other commands.
    let lines = |command: &[&str], filter: &str| {
        let mut strata = strata();
        strata.args(command).arg(&log).args(files);
        ok(strata.arg(filter))
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let as_networks = "net 162.13.0.0/16";
    assert_eq!(
        lines(&["read", "--json"], "country GB"),
        lines(&["read", "--json"], as_networks)
    );
    let ask = |filter: &str, source: &[&str]| {
        let mut strata = strata();
        strata.arg("ask").args(source).args(files);
        strata.arg("--skip-incomplete");
        ok(strata.args(["packet-counts-per-source", filter]))
    };
    let trace = data_dir().join("labelled/mix-test/trace.pcap");
    for source in [
        &[log.to_str().unwrap()][..],
        &["-r", trace.to_str().unwrap()],
    ] {
        assert_eq!(
            ask("asn 64500 and tcp", source),
            ask("net 10.0.0.0/8 and tcp", source)
        );
    }
}

#[test]
fn names_that_no_file_has_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = log_of_mix(dir.path());
    let (names, mmdb) = (dir.path().join("networks"), dir.path().join("one.mmdb"));
    fs::write(&names, "10.0.0.0/8 Site\n").unwrap();
    fs::write(&mmdb, database::of(OWNERS)).unwrap();
    let (names, mmdb) = (names.to_str().unwrap(), mmdb.to_str().unwrap());
    let out = dir.path().join("out.pcapng");
    let commands: [&[&str]; 4] = [
        &["read"],
        &["top"],
        &["export", "-w", out.to_str().unwrap()],
        &["grep", "--literal", "x"],
    ];
    for command in commands {
        for (options, filter, why) in [
            (&["--mmdb", mmdb][..], "tag site", "give --names FILE"),
            (&[], "tag site", "give --names FILE"),
            (&[], "asn 64500", "give --mmdb FILE"),
            (&["--names", names], "country AA", "give --mmdb FILE"),
            (
                &["--names", names],
                "tag site",
                "no network has the name 'site' in ",
            ),
            (&["--names", names], "tag site", "; there is 'Site'"),
            (
                &["--mmdb", mmdb],
                "asn 64999",
                "no network of 'asn 64999' is in ",
            ),
            (
                &["--mmdb", mmdb],
                "country Germany",
                "a code of two letters",
            ),
        ] {
            let mut strata = strata();
            strata
                .arg(command[0])
                .arg(&log)
                .args(&command[1..])
                .args(options);
            let said = failed(strata.arg(filter));
            assert!(said.contains(why), "{command:?} {filter}: {said}");
        }
    }
    // Where packets are recorded, and in policies, no names are known.
    let trace = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    let output = record(&trace, dir.path().join("new"))
        .arg("tag site")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("only where logs are read"),
        "{said}"
    );
    // Without a value after it, the word is what it is to tcpdump: the name of a host.
    for filter in ["host tag", "src asn"] {
        let said = failed(
            strata()
                .arg("read")
                .arg(&log)
                .args(["--names", names])
                .arg(filter),
        );
        assert!(!said.contains("--names"), "{said}");
    }
    // A damaged database: an answer or an error, never a panic.
    let whole = fs::read(mmdb).unwrap();
    for at in (0..whole.len()).step_by(97) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        fs::write(dir.path().join("damaged.mmdb"), damaged).unwrap();
        let mut top = strata();
        top.arg("top")
            .arg(&log)
            .arg("--mmdb")
            .arg(dir.path().join("damaged.mmdb"));
        let output = top.args(["-n", "1", "country AA"]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let is_answer = output.status.success();
        assert!(is_answer || said.contains("damaged.mmdb"), "{at}: {said}");
        assert!(!said.contains("panicked"), "{at}: {said}");
    }
}

/// A pcap of IPv4 headers.
fn pcap(pairs: &[[Ipv4Addr; 2]]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101] {
        file.extend(word.to_le_bytes());
    }
    for [source, destination] in pairs {
        for word in [1_700_000_000_u32, 0, 20, 20] {
            file.extend(word.to_le_bytes());
        }
        file.extend([0x45, 0, 0, 20, 0, 0, 0, 0, 64, 253, 0, 0]);
        file.extend(source.octets());
        file.extend(destination.octets());
    }
    file
}

/// As many networks as a large autonomous system has.
#[test]
fn a_system_of_thousands_of_networks_is_found() {
    let dir = tempfile::tempdir().unwrap();
    // Of the 16,384 networks of 100.64.0.0/10, each third is of the system, and each fifth of another.
    let text = |number: u32| Ipv4Addr::from_bits(0x6440_0000 | number << 8);
    let is_it = |number: u32| number.is_multiple_of(3);
    let owners: Vec<Owner> = (0..16_384)
        .filter(|number| is_it(*number) || number.is_multiple_of(5))
        .map(|number| {
            let network: &'static str = text(number).to_string().leak();
            let system = if is_it(number) { 64_999 } else { 64_998 };
            (network, 24, "AA", system, "Large")
        })
        .collect();
    assert!(owners.iter().filter(|owner| owner.3 == 64_999).count() > 5_000);
    let mmdb = dir.path().join("large.mmdb");
    fs::write(&mmdb, database::of(&owners)).unwrap();
    let address =
        |number: u32| Ipv4Addr::from_bits(text(number % 16_384).to_bits() | (number % 251));
    let pairs: Vec<[Ipv4Addr; 2]> = (0..4_000)
        .map(|n: u32| {
            [
                address(n.wrapping_mul(7_919)),
                address(n.wrapping_mul(104_729) / 3),
            ]
        })
        .collect();
    let trace = dir.path().join("trace.pcap");
    fs::write(&trace, pcap(&pairs)).unwrap();
    let log = dir.path().join("log");
    ok(&mut record(&trace, &log));
    let of_it = |end: &Ipv4Addr| is_it((end.to_bits() >> 8) & 0x3fff);
    let expected = pairs.iter().filter(|pair| pair.iter().any(of_it)).count();
    let counted = top(&log, &["--mmdb", mmdb.to_str().unwrap(), "asn 64999"]);
    assert_eq!(counted["total"]["packets"], expected);
    assert!((1_000..3_000).contains(&expected), "{expected}");
}

/// Where no filter could use names, they are refused, not ignored.
#[test]
fn names_are_refused_where_there_is_no_filter() {
    let dir = tempfile::tempdir().unwrap();
    let names = dir.path().join("networks");
    fs::write(&names, "10.0.0.0/8 site\n").unwrap();
    let asked: [(&[&str], &str); 5] = [
        (
            &["--running", "packet-counts-per-source"],
            "running recording takes no filter",
        ),
        (
            &["--vectors", "-", "packet-counts-per-source"],
            "--vectors takes no filter",
        ),
        (&["--list"], "--list takes no filter"),
        (
            &["--running", "--installed"],
            "running recording takes no filter",
        ),
        (
            &["--running", "--remove", "x"],
            "running recording takes no filter",
        ),
    ];
    for (words, why) in asked {
        for option in ["--names", "--mmdb"] {
            let said = refused(strata().arg("ask").args(words).arg(option).arg(&names));
            assert!(
                said.contains(option) && said.contains(why),
                "{words:?}: {said}"
            );
        }
    }
}
