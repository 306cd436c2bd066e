//! Names of networks: as libpcap decides with all their networks, and nothing that tcpdump understands.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use strata_filter::{Filter, FlowFacts, Naming, NetworkNames, NetworkSet};
use strata_wire::LinkType;

use crate::support::bpf::Machine;
use crate::support::{LINKS, Oracle, Random, link_type, packets};

/// Networks by what a filter says.
#[derive(Default)]
struct Names(BTreeMap<String, Arc<NetworkSet>>);

impl Names {
    fn add(&mut self, name: &str, networks: &[(IpAddr, u8)]) {
        self.0.insert(name.to_owned(), Arc::new(set(networks)));
    }
}

impl NetworkNames for Names {
    fn networks(&self, naming: Naming, name: &str) -> Result<Arc<NetworkSet>, String> {
        let found = self.0.get(&format!("{} {name}", naming.word()));
        found
            .cloned()
            .ok_or_else(|| format!("'{name}' is not known"))
    }
}

/// First and last address of each network.
fn set(networks: &[(IpAddr, u8)]) -> NetworkSet {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for (address, prefix) in networks {
        match address {
            IpAddr::V4(address) => {
                let host = u32::MAX.checked_shr((*prefix).into()).unwrap_or(0);
                v4.push([address.to_bits() & !host, address.to_bits() | host]);
            }
            IpAddr::V6(address) => {
                let host = u128::MAX.checked_shr((*prefix).into()).unwrap_or(0);
                v6.push([address.to_bits() & !host, address.to_bits() | host]);
            }
        }
    }
    NetworkSet::new(v4, v6)
}

/// What may be addresses of a packet: after what looks like the start of a header.
fn addresses(packet: &[u8]) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for (at, byte) in packet.iter().enumerate() {
        let bytes = |from: usize| packet.get(at + from..);
        if *byte == 0x45 {
            let ends = [bytes(12), bytes(16)].map(|rest| rest?.first_chunk::<4>());
            found.extend(ends.into_iter().flatten().map(|one| IpAddr::from(*one)));
        }
        if *byte == 0x60 {
            let ends = [bytes(8), bytes(24)].map(|rest| rest?.first_chunk::<16>());
            found.extend(ends.into_iter().flatten().map(|one| IpAddr::from(*one)));
        }
    }
    found
}

/// A network as libpcap takes it: no bit of the host is set.
fn written((address, prefix): &(IpAddr, u8)) -> String {
    match address {
        IpAddr::V4(address) => {
            let mask = !u32::MAX.checked_shr((*prefix).into()).unwrap_or(0);
            format!(
                "net {}/{prefix}",
                Ipv4Addr::from_bits(address.to_bits() & mask)
            )
        }
        IpAddr::V6(address) => {
            let mask = !u128::MAX.checked_shr((*prefix).into()).unwrap_or(0);
            format!(
                "net {}/{prefix}",
                Ipv6Addr::from_bits(address.to_bits() & mask)
            )
        }
    }
}

fn joined(side: &str, networks: &[(IpAddr, u8)]) -> String {
    let all = networks
        .iter()
        .map(|network| format!("{side}{}", written(network)));
    format!("({})", all.collect::<Vec<_>>().join(" or "))
}

#[test]
fn names_match_what_libpcap_matches_with_all_networks() {
    let packets = packets();
    let mut random = Random(0x7a6_0001);
    let (mut compared, mut matched, mut cut) = (0_u64, 0_u64, 0_u64);
    for dlt in LINKS {
        let Some(packets) = packets.get(&dlt) else {
            continue;
        };
        let seen: Vec<IpAddr> = packets
            .iter()
            .flat_map(|packet| addresses(packet))
            .collect();
        if seen.is_empty() {
            continue;
        }
        let oracle = Oracle::new(dlt);
        for round in 0..12 {
            let count = 1 + random.below(12);
            let networks: Vec<(IpAddr, u8)> = (0..count)
                .map(|_| {
                    let address = seen[random.below(seen.len())];
                    let bits = if address.is_ipv4() { 32 } else { 128 };
                    let prefix = bits - random.below(bits * 3 / 4);
                    (address, u8::try_from(prefix).unwrap())
                })
                .collect();
            let mut names = Names::default();
            names.add("tag x", &networks);
            let [either, source, destination] =
                ["", "src ", "dst "].map(|side| joined(side, &networks));
            for (ours, theirs) in [
                ("tag x", either.clone()),
                ("src tag x", source.clone()),
                ("dst tag x", destination.clone()),
                ("src or dst tag x", either.clone()),
                ("src and dst tag x", format!("{source} and {destination}")),
                ("not tag x", format!("not {either}")),
                ("tcp and not src tag x", format!("tcp and not {source}")),
                ("udp or tag x", format!("udp or {either}")),
                ("vlan and tag x", format!("vlan and {either}")),
                ("mpls and dst tag x", format!("mpls and {destination}")),
            ] {
                let filter = Filter::parse_with(ours, &names).unwrap();
                let program = match (
                    filter.compile(link_type(dlt)),
                    oracle.compile(&theirs, false),
                ) {
                    (Ok(here), Ok(there)) => (here, Machine::new(&there)),
                    (Err(_), Err(_)) => continue,
                    (Err(error), Ok(_)) => panic!("link {dlt}: {ours}: only we refuse: {error}"),
                    // Packets of `-i any` keep their tags here.
                    (Ok(_), Err(error)) => {
                        assert!(error.contains("VLAN"), "link {dlt}: {theirs}: {error}");
                        continue;
                    }
                };
                for packet in packets {
                    let len = u32::try_from(packet.len()).unwrap();
                    let here = program.0.test(packet, len);
                    let there = program.1.matches(packet, len);
                    // libpcap compares the first part of an IPv6 address of which the rest was not captured.
                    if here.is_none() && there && networks.iter().any(|(one, _)| one.is_ipv6()) {
                        cut += 1;
                        continue;
                    }
                    let here = here == Some(true);
                    assert_eq!(
                        here, there,
                        "link {dlt}, round {round}: {ours}: {theirs}: {packet:02x?}"
                    );
                    compared += 1;
                    matched += u64::from(here);
                }
            }
        }
    }
    assert!(
        compared > 500_000 && matched > 50_000 && cut < compared / 1_000,
        "{compared} {matched} {cut}"
    );
}

/// Words that mean something here are a syntax error there; what is none there means the same here.
#[test]
fn nothing_that_tcpdump_understands_means_a_name() {
    let mut names = Names::default();
    let network = [("10.0.0.0".parse().unwrap(), 8)];
    for name in [
        "tag dmz",
        "tag tcp",
        "tag 10",
        "tag web-1",
        "tag a/b",
        "asn 64500",
        "country DE",
        "country TR",
    ] {
        names.add(name, &network);
    }
    let oracle = Oracle::new(1);
    let rows = [
        ("tag dmz", "tag dmz"),
        ("src tag dmz", "src tag dmz"),
        ("tag tcp", "tag \\tcp"),
        ("tag 10", "tag 10"),
        ("tag web-1 and tcp", "tag \\web-1 and tcp"),
        ("tag \\a/b", "tag \\a/b"),
        ("asn 64500 or udp", "asn 64500 or udp"),
        ("dst asn AS64500", "dst asn 64500"),
        ("not country de", "not country DE"),
        ("(country tr)", "country TR"),
        ("src and dst country DE", "src and dst country DE"),
        ("host 10.0.0.9 or tag dmz", "host 10.0.0.9 or tag dmz"),
    ];
    for (text, shown) in rows {
        // The word may be the name of a host there: even then no value follows it.
        let mut there = text.to_owned();
        for word in ["tag ", "asn ", "country "] {
            there = there.replace(word, "10.0.0.1 ");
        }
        let error = oracle.compile(&there, false).map(|_| ()).unwrap_err();
        assert!(error.contains("syntax error"), "{there}: {error}");
        assert!(oracle.compile(text, false).is_err(), "{text}");
        let filter = Filter::parse_with(text, &names).unwrap();
        let again = Filter::parse_with(&filter.to_string(), &names).unwrap();
        assert_eq!(filter, again, "{text}");
        let shown = Filter::parse_with(shown, &names).unwrap();
        assert_eq!(filter, shown, "{text}");
        // Where no names are known, it is said for which word.
        let error = Filter::parse(text).unwrap_err();
        assert!(error.message().contains("--names"), "{text}: {error}");
    }
    // Names of hosts, as there; they are not resolved here.
    for text in [
        "tag",
        "host tag",
        "src tag",
        "host tag or tcp",
        "not asn",
        "country and tcp",
        "net country",
    ] {
        let error = Filter::parse_with(text, &names).unwrap_err().to_string();
        assert_eq!(
            error,
            Filter::parse(text).unwrap_err().to_string(),
            "{text}"
        );
        assert!(!error.contains("--names"), "{error}");
    }
    for (text, why) in [
        ("tag lab", "'lab' is not known"),
        ("asn 4294967296", "does not fit in 32 bits"),
        ("asn 0x10", "up to 4294967295"),
        ("country Germany", "a code of two letters"),
        ("ip src tag dmz", "no protocol may precede 'tag'"),
        ("wlan addr1 tag dmz", "no protocol may precede 'tag'"),
        ("host (tag dmz)", "expected a value after 'host'"),
    ] {
        let error = Filter::parse_with(text, &names).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

/// As many networks as a large autonomous system has take no more steps than one, and an index knows few addresses.
#[test]
fn many_networks_are_one_step() {
    let mut random = Random(64_500);
    let networks: Vec<(IpAddr, u8)> = (0..5_000)
        .map(|_| {
            let bits = u32::try_from(random.next() >> 32).unwrap();
            (Ipv4Addr::from_bits(bits).into(), 24)
        })
        .collect();
    let mut names = Names::default();
    names.add("asn 64500", &networks);
    names.add("asn 64501", &networks[..1]);
    names.add(
        "tag hosts",
        &[
            ("10.0.0.4".parse().unwrap(), 31),
            ("::1".parse().unwrap(), 128),
        ],
    );
    let steps = |text: &str| {
        let filter = Filter::parse_with(text, &names).unwrap();
        filter.compile(LinkType::ETHERNET).unwrap().step_count()
    };
    assert_eq!(steps("asn 64500 and tcp"), steps("asn 64501 and tcp"));
    assert!(steps("asn 64500") < 20, "{}", steps("asn 64500"));
    let many = Filter::parse_with("asn 64500", &names).unwrap();
    let plain = Filter::parse(&joined("", &networks)).unwrap();
    let plain = plain.compile(LinkType::RAW).unwrap();
    let program = many.compile(LinkType::RAW).unwrap();
    let mut matched = 0;
    for _ in 0..2_000 {
        let mut packet = [0_u8; 20];
        packet[0] = 0x45;
        for byte in &mut packet[12..] {
            *byte = u8::try_from(random.next() >> 56).unwrap();
        }
        if random.next() & 1 == 0 {
            let (IpAddr::V4(address), _) = networks[random.below(5_000)] else {
                unreachable!()
            };
            packet[16..].copy_from_slice(&address.octets());
        }
        let is_in = program.matches(&packet, 20);
        assert_eq!(is_in, plain.matches(&packet, 20));
        let [a, b] = [12, 16].map(|at| IpAddr::from(*packet[at..].first_chunk::<4>().unwrap()));
        let facts = FlowFacts {
            addresses: Some([a, b]),
            ports: [0, 0],
            protocol: 0,
        };
        assert_eq!(many.may_match(&facts), is_in);
        matched += u32::from(is_in);
    }
    assert!(matched > 900, "{matched}");
    assert!(many.host_bounds().is_empty());
    let few = Filter::parse_with("src tag hosts", &names).unwrap();
    let few = few.host_bounds();
    let expected = ["10.0.0.4", "10.0.0.5", "::1"].map(|text| text.parse::<IpAddr>().unwrap());
    assert_eq!(few, [expected]);
}
