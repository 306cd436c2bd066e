use proptest::prelude::*;

use super::*;

fn look(names: &mut Names, is_tcp: bool, port: u16, bytes: &[u8]) {
    let ports = [5_000, port];
    let payload = Payload {
        flow: 0,
        is_tcp,
        ports,
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

proptest! {
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
