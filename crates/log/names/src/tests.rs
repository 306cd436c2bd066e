use proptest::prelude::*;

use super::*;

fn look(names: &mut Names, is_tcp: bool, port: u16, bytes: &[u8]) {
    let ports = [5_000, port];
    let payload = Payload {
        flow: 0,
        is_tcp,
        ports,
        direction: 0,
        sequence: 0,
        bytes,
    };
    names.look(&mut Begun::default(), &payload);
}

/// A payload of a TLS connection.
fn tls(flow: u32, sequence: u32, bytes: &[u8]) -> Payload<'_> {
    Payload {
        flow,
        is_tcp: true,
        ports: [5_000, 443],
        direction: 0,
        sequence,
        bytes,
    }
}

/// What a length of two bytes precedes.
fn long(bytes: &[u8]) -> Vec<u8> {
    let len = u16::try_from(bytes.len()).unwrap();
    [&len.to_be_bytes(), bytes].concat()
}

fn words(words: &[u16]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The client hello of the example in JA4's description, with the values of GREASE that the browser adds, as one record.
fn example() -> Vec<u8> {
    let ciphers = [
        0x3a3a, 0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013,
        0xc014, 0x009c, 0x009d, 0x002f, 0x0035,
    ];
    let types = [
        0x4a4a, 0x001b, 0x0000, 0x0033, 0x0010, 0x4469, 0x0017, 0x002d, 0x000d, 0x0005, 0x0023,
        0x0012, 0x002b, 0xff01, 0x000b, 0x000a, 0x0015,
    ];
    let signatures = [
        0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601,
    ];
    let extensions = types.map(|kind: u16| {
        let data = match kind {
            0x0000 => long(&[&[0][..], &long(b"www.example.org")].concat()),
            0x000d => long(&words(&signatures)),
            0x0010 => long(b"\x02h2\x08http/1.1"),
            0x002b => [&[6][..], &words(&[0x2a2a, 0x0304, 0x0303])].concat(),
            _ => Vec::new(),
        };
        [kind.to_be_bytes().to_vec(), long(&data)].concat()
    });
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &long(&words(&ciphers)),
        &[1, 0],
        &long(&extensions.concat()),
    ]
    .concat();
    let message = [&[1, 0][..], &long(&body)].concat();
    [&[0x16, 3, 1][..], &long(&message)].concat()
}

/// Source: FoxIO, `technical_details/JA4.md`, section Example.
const EXAMPLE: &str = "t13d1516h2_8daaf6152771_e5627efa2ab1";

#[test]
fn names_are_found() {
    let mut names = Names::default();
    let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03www\x07example\x03org\x00\x00\x01\x00\x01";
    look(&mut names, false, 53, query);
    assert_eq!(names.dns.as_deref(), Some("www.example.org"));
    let request = b"GET / HTTP/1.1\r\nAccept: */*\r\nhOST: example.org:8080\r\n\r\n";
    look(&mut names, true, 80, request);
    assert_eq!(names.http.as_deref(), Some("example.org:8080"));
    assert_eq!(names.server, None);
    // Of a client hello that was not kept whole, the name is still found.
    let hello = example();
    look(&mut names, true, 443, &hello[..hello.len() - 9]);
    assert_eq!(names.server.as_deref(), Some("www.example.org"));
    assert_eq!((names.ja3, names.ja4), (None, None));
}

#[test]
fn the_published_example_has_its_fingerprint() {
    let mut names = Names::default();
    look(&mut names, true, 443, &example());
    assert_eq!(names.ja4.as_deref(), Some(EXAMPLE));
    // The digest of "771,4865-...-53,27-0-51-16-17513-23-45-13-5-35-18-43-65281-11-10-21,,".
    assert_eq!(names.ja3.map(|ja3| ja3.len()), Some(32));
}

#[test]
fn a_client_hello_may_come_in_parts() {
    let hello = example();
    for (sequence, at, found) in [
        (u32::MAX - 3, 10, true),
        (0, hello.len() - 1, true),
        (0, 1, false),
    ] {
        let mut begun = Begun::default();
        let mut names = Names::default();
        let mut send = |flow, sequence, bytes| {
            names.look(&mut begun, &tls(flow, sequence, bytes));
        };
        let (first, second) = hello.split_at(at);
        send(9, sequence, first);
        // Another packet, as of the server.
        send(9, 77, b"\x16\x03\x03");
        let next = sequence.wrapping_add(u32::try_from(at).unwrap());
        send(9, next, second);
        let ja4 = names.ja4.as_deref();
        assert_eq!(ja4, found.then_some(EXAMPLE), "{at}");
    }
}

#[test]
fn of_two_flows_that_share_a_place_the_later_one_is_read() {
    let hello = example();
    let (first, second) = hello.split_at(50);
    let mut begun = Begun::default();
    let mut send = |names: &mut Names, flow, sequence, bytes| {
        names.look(&mut begun, &tls(flow, sequence, bytes));
    };
    let (mut old, mut young) = (Names::default(), Names::default());
    send(&mut old, 5, 0, first);
    send(&mut young, 5 + 1_024, 0, first);
    send(&mut old, 5, 50, second);
    send(&mut young, 5 + 1_024, 50, second);
    assert_eq!(old.ja4, None);
    assert_eq!(young.ja4.as_deref(), Some(EXAMPLE));
}

/// An element of DER.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let len = u16::try_from(content.len()).unwrap().to_be_bytes();
    let len = match len {
        [0, short @ 0..=0x7f] => vec![short],
        [0, len] => vec![0x81, len],
        [high, low] => vec![0x82, high, low],
    };
    [&[tag], &len[..], content].concat()
}

/// A certificate of a subject with these common names, each with its tag, and of these names of hosts.
fn certificate(common: &[(u8, &[u8])], hosts: &[&[u8]]) -> Vec<u8> {
    let attribute = |oid: &[u8], tag, text: &[u8]| {
        let attribute = [der(6, oid), der(tag, text)].concat();
        der(0x31, &der(0x30, &attribute))
    };
    let organization = attribute(&[0x55, 4, 10], 0x0c, b"Org");
    let common = common
        .iter()
        .map(|(tag, text)| attribute(&[0x55, 4, 3], *tag, text));
    let subject: Vec<u8> = [organization.clone()]
        .into_iter()
        .chain(common)
        .flatten()
        .collect();
    let hosts: Vec<u8> = hosts.iter().flat_map(|host| der(0x82, host)).collect();
    let address = der(0x87, &[192, 0, 2, 1]);
    let hosts = der(4, &der(0x30, &[address, hosts].concat()));
    let critical = der(1, &[0xff]);
    let extensions = [
        der(
            0x30,
            &[
                der(6, &[0x55, 29, 15]),
                critical.clone(),
                der(4, &[3, 2, 5, 0xa0]),
            ]
            .concat(),
        ),
        der(0x30, &[der(6, &[0x55, 29, 17]), critical, hosts].concat()),
    ];
    let issuer = der(0x30, &attribute(&[0x55, 4, 3], 0x0c, b"Issuer"));
    let signed = [
        der(0xa0, &der(2, &[2])),
        der(2, &[9; 16]),
        der(0x30, &der(6, &[0x2a, 3])),
        issuer,
        der(0x30, &[]),
        der(0x30, &subject),
        der(0x30, &[0; 300]),
        der(0xa3, &der(0x30, &extensions.concat())),
    ];
    let rest = [der(0x30, &[]), der(3, &[0; 256])].concat();
    der(0x30, &[der(0x30, &signed.concat()), rest].concat())
}

fn len24(bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    [&len[1..], bytes].concat()
}

/// What a server sends: its hello and its certificate, the messages in records of at most this many bytes.
fn flight(certificate: &[u8], record_len: usize) -> Vec<u8> {
    let list = len24(&[len24(certificate), len24(b"issuer")].concat());
    let hello = [&[2][..], &len24(&[7; 70])].concat();
    let messages = [hello, [&[11][..], &len24(&list)].concat()].concat();
    let records = messages
        .chunks(record_len)
        .flat_map(|part| [&[0x16, 3, 3][..], &long(part)].concat());
    records.collect()
}

fn names_of(common: &[(u8, &[u8])], hosts: &[&[u8]]) -> Option<String> {
    let mut names = Names::default();
    look(
        &mut names,
        true,
        443,
        &flight(&certificate(common, hosts), 9_999),
    );
    names.certificate.map(String::from)
}

#[test]
fn a_certificate_has_common_names_and_those_of_hosts() {
    let of = |common: &[(u8, &[u8])], hosts: &[&[u8]]| names_of(common, hosts);
    let hosts = [&b"example.org"[..], b"*.example.org", b"www.example.org"];
    assert_eq!(
        of(&[(0x13, b"www.example.org")], &hosts).as_deref(),
        Some(r#"["www.example.org","example.org","*.example.org"]"#)
    );
    assert_eq!(
        of(
            &[
                (0x0c, "Bücher \"A\\B\"\n".as_bytes()),
                (0x1e, &[0, b'o', 0x20, 0xac])
            ],
            &[b"a b\x7f"]
        )
        .as_deref(),
        Some(r#"["Bücher \"A\\B\".","o€","a.b."]"#)
    );
    assert_eq!(of(&[(0x14, b"\xe9")], &[]).as_deref(), Some(r#"["é"]"#));
    assert_eq!(of(&[(0x03, b"bits"), (0x0c, b"")], &[]), None);
    // What is too long or too much is left out.
    let long = [b'x'; 256];
    assert_eq!(
        of(&[(0x0c, &long)], &[&long[1..], b"y"]).map(|all| all.len()),
        Some(2 + 257 + 4)
    );
    let many: Vec<[u8; 1]> = (b'a'..=b'z').map(|letter| [letter]).collect();
    let many: Vec<&[u8]> = many.iter().map(|name| &name[..]).collect();
    assert_eq!(of(&[], &many).map(|all| all.len()), Some(2 + 16 * 3 + 15));
    let large: Vec<[u8; 255]> = (b'a'..=b'p').map(|letter| [letter; 255]).collect();
    let large: Vec<&[u8]> = large.iter().map(|name| &name[..]).collect();
    assert_eq!(of(&[], &large).map(|all| all.len()), Some(2 + 8 * 257 + 7));
}

#[test]
fn a_certificate_may_come_in_parts() {
    let hosts: Vec<Vec<u8>> = (0..400)
        .map(|n| format!("host-{n}.example").into_bytes())
        .collect();
    let hosts: Vec<&[u8]> = hosts.iter().map(Vec::as_slice).collect();
    let certificate = certificate(&[(0x0c, b"name")], &hosts);
    let (hello, expected) = (example(), names_of(&[(0x0c, b"name")], &hosts));
    assert!(certificate.len() > 7_000 && expected.is_some());
    for (record_len, segment_len) in [(9_999, 1_460), (100, 1_460), (16_384, 400), (100, 2_000)] {
        let (mut begun, mut names) = (Begun::default(), Names::default());
        // The client's hello is not whole, and its certificate is not the server's.
        names.look(&mut begun, &tls(3, 77, &hello[..40]));
        let flight = flight(&certificate, record_len);
        let mut sequence = u32::MAX - 500;
        for (number, segment) in flight.chunks(segment_len).enumerate() {
            names.look(&mut begun, &tls(3, sequence, segment));
            if number % 8 == 2 {
                names.look(
                    &mut begun,
                    &tls(3, 117, b"\x16\x03\x03\x00\x09\x0b\x00\x00\x05"),
                );
                // Sent again.
                names.look(&mut begun, &tls(3, sequence, segment));
            }
            sequence = sequence.wrapping_add(u32::try_from(segment.len()).unwrap());
        }
        assert_eq!(
            names.certificate.as_deref(),
            expected.as_deref(),
            "{record_len} {segment_len}"
        );
    }
    // Sent again with more, and with a hole.
    let flight = flight(&certificate, 9_999);
    let again: [&[(usize, usize)]; 2] = [&[(0, 100), (50, 9_000)], &[(0, 100), (101, 9_000)]];
    for (parts, found) in again.iter().zip([true, false]) {
        let (mut begun, mut names) = (Begun::default(), Names::default());
        for &(from, to) in *parts {
            let part = &flight[from..to.min(flight.len())];
            names.look(&mut begun, &tls(3, u32::try_from(from).unwrap(), part));
        }
        assert_eq!(names.certificate.is_some(), found);
    }
}

#[test]
fn what_is_encrypted_or_of_a_client_has_no_certificate() {
    let certificate = certificate(&[(0x0c, b"name")], &[]);
    let whole = flight(&certificate, 9_999);
    let hello = [
        &[0x16, 3, 3][..],
        &long(&[&[2][..], &len24(&[7; 70])].concat()),
    ]
    .concat();
    let list = len24(&len24(&certificate));
    let alone = [
        &[0x16, 3, 3][..],
        &long(&[&[11][..], &len24(&list)].concat()),
    ]
    .concat();
    let changed = b"\x14\x03\x03\x00\x01\x01";
    for (bytes, found) in [
        (whole.clone(), true),
        ([&hello[..], &alone].concat(), true),
        // A warning comes first.
        ([b"\x15\x03\x03\x00\x02\x01\x70", &whole[..]].concat(), true),
        (alone.clone(), false),
        ([&hello[..], changed, &alone].concat(), false),
        ([&hello[..], &hello, &alone].concat(), false),
        (whole[..whole.len() / 2].to_vec(), false),
    ] {
        let mut names = Names::default();
        look(&mut names, true, 443, &bytes);
        assert_eq!(names.certificate.is_some(), found);
    }
    let mut names = Names::default();
    look(&mut names, false, 443, &whole);
    assert_eq!(names, Names::default());
}

proptest! {
    #[test]
    fn a_changed_certificate_is_read(
        at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(),
        hosts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..4),
        common in prop::collection::vec(any::<u8>(), 0..9), kind in any::<u8>(),
    ) {
        let hosts: Vec<&[u8]> = hosts.iter().map(Vec::as_slice).collect();
        let certificate = certificate(&[(kind, &common)], &hosts);
        let mut flight = flight(&certificate, 200);
        let (at, cut) = (at.index(flight.len()), cut.index(flight.len()));
        flight[at] = byte;
        let (mut begun, mut names) = (Begun::default(), Names::default());
        let (first, second) = flight.split_at(cut);
        names.look(&mut begun, &tls(1, 0, first));
        names.look(&mut begun, &tls(1, u32::try_from(cut).unwrap(), second));
        let list = names.certificate.unwrap_or_else(|| "[\"\"]".into());
        prop_assert!(list.starts_with("[\"") && list.ends_with("\"]"));
        prop_assert!(list.len() < 9_000 && !list.contains(char::is_control));
    }

    #[test]
    fn any_bytes_are_looked_into(
        start in prop::sample::select(vec![
            &b"\x16\x03\x01\x00\x60\x01\x00\x00\x50"[..], b"\x16\xfe\xfd", b"\xc3\0\0\0\x01\x08",
            b"GET / HTTP/1.1\nHost:", b"\0\0\0\0\0\x01",
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..160), port in prop::sample::select(vec![53_u16, 80]),
        is_tcp in any::<bool>(),
    ) {
        let bytes = [start, &rest].concat();
        let mut names = Names::default();
        look(&mut names, is_tcp, port, &bytes);
        for name in [names.dns, names.server, names.http, names.ja3, names.ja4].into_iter().flatten() {
            prop_assert!(name.len() <= NAME_MAX && name.is_ascii());
        }
    }

    #[test]
    fn a_changed_client_hello_is_read(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let mut hello = example();
        let (at, cut) = (at.index(hello.len()), cut.index(hello.len()));
        hello[at] = byte;
        let mut names = Names::default();
        look(&mut names, true, 443, &hello);
        let whole = names.ja4.is_some();
        look(&mut names, true, 443, &hello[cut..]);
        prop_assert!(names.ja3.is_some() == names.ja4.is_some());
        prop_assert!(!whole || names.ja4.is_some_and(|ja4| ja4.len() == 36 && ja4.is_ascii()));
    }
}
