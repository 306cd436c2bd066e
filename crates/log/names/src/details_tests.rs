use proptest::prelude::*;

use super::*;

/// What is found in payloads of a flow on this port, of alternate directions.
fn found(is_tcp: bool, port: u16, payloads: &[&[u8]]) -> Names {
    let (mut names, mut begun) = (Names::default(), Begun::default());
    for (direction, bytes) in payloads.iter().enumerate() {
        let payload = Payload {
            flow: 0,
            is_tcp,
            ports: [5_000, port],
            direction: direction & 1,
            sequence: 0,
            bytes,
        };
        names.look(&mut begun, &payload);
    }
    names
}

fn details(is_tcp: bool, port: u16, payloads: &[&[u8]]) -> Details {
    *found(is_tcp, port, payloads).details.unwrap_or_default()
}

/// A DNS message with a question for AAAA of `example.org`, and these records after it.
fn dns(flags: u16, records: &[Vec<u8>]) -> Vec<u8> {
    let answers = u16::try_from(records.len()).unwrap();
    let words = [0x1234, flags, 1, answers, 0, 0].map(u16::to_be_bytes);
    let question = b"\x07example\x03org\x00\x00\x1c\x00\x01";
    [&words.concat(), &question[..], &records.concat()].concat()
}

/// A record whose name is the question's.
fn record(kind: u16, data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(data.len()).unwrap().to_be_bytes();
    let kind = kind.to_be_bytes();
    [b"\xc0\x0c", &kind[..], b"\x00\x01\0\0\0\x3c", &len, data].concat()
}

#[test]
fn dns_has_type_code_and_addresses() {
    let query = dns(0x0100, &[]);
    let alias = record(5, b"\x01a\xc0\x0c");
    let answers = [
        alias,
        record(
            28,
            &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        ),
        record(1, &[192, 0, 2, 1]),
        // Too long for an address.
        record(1, &[192, 0, 2, 1, 9]),
    ];
    let response = dns(0x8180, &answers);
    let refused = dns(0x8183, &[]);
    for is_tcp in [false, true] {
        let framed = |message: &[u8]| match is_tcp {
            true => [b"\0\0", message].concat(),
            false => message.to_vec(),
        };
        let [query, response, refused] = [&query, &response, &refused].map(|one| framed(one));
        let names = found(is_tcp, 53, &[&query, &response, &refused]);
        assert_eq!(names.dns.as_deref(), Some("example.org"));
        let details = names.details.unwrap();
        assert_eq!(details.dns_query_type, Some(28));
        assert_eq!(details.dns_response_code, Some(0));
        let answers = Some(r#"["2001:db8::1","192.0.2.1"]"#);
        assert_eq!(details.dns_answers.as_deref(), answers);
        let details = self::details(is_tcp, 53, &[&refused, &response]);
        assert_eq!(details.dns_response_code, Some(3));
        assert_eq!(details.dns_answers, None);
    }
}

#[test]
fn answers_are_bounded_and_may_be_cut() {
    let records = vec![record(1, &[255, 255, 255, 255]); 60_000];
    let response = dns(0x8180, &records[..4_000]);
    let list = details(false, 53, &[&response]).dns_answers.unwrap();
    assert_eq!(list.matches("255.255.255.255").count(), 16);
    // Records that refer to themselves, or end early.
    let mut looped = dns(0x8180, &[record(1, &[1, 2, 3, 4])]);
    let at = looped.len() - 16;
    looped[at..at + 2].copy_from_slice(&[0xc0, u8::try_from(at).unwrap()]);
    let list = details(false, 53, &[&looped]).dns_answers;
    assert_eq!(list.as_deref(), Some(r#"["1.2.3.4"]"#));
    let whole = dns(0x8180, &records[..2]);
    let list = details(false, 53, &[&whole[..whole.len() - 1]]).dns_answers;
    assert_eq!(list.as_deref(), Some(r#"["255.255.255.255"]"#));
}

#[test]
fn a_dns_name_is_found_after_any_number_of_messages_without_one() {
    // Header alone: no question.
    let nameless = [0x1234_u16, 0x8180, 0, 0, 0, 0]
        .map(u16::to_be_bytes)
        .concat();
    let query = dns(0x0100, &[]);
    let mut payloads = vec![&nameless[..]; 100];
    payloads.push(&query);
    let names = found(false, 53, &payloads);
    assert_eq!(names.dns.as_deref(), Some("example.org"));
    assert_eq!(names.details.unwrap().dns_query_type, Some(28));
}

#[test]
fn http_may_have_several_spaces_and_a_long_method() {
    let names = found(
        true,
        80,
        &[b"GET  /x  HTTP/1.1\r\nHost: example.org\r\n\r\n"],
    );
    assert_eq!(names.http.as_deref(), Some("example.org"));
    let details = names.details.unwrap();
    assert_eq!(details.http_method.as_deref(), Some("GET"));
    assert_eq!(details.http_uri.as_deref(), Some("/x"));
    let of_long = [
        &[b'M'; 33][..],
        b" /y HTTP/1.1\r\nHost: example.org\r\n\r\n",
    ]
    .concat();
    let names = found(true, 80, &[&of_long, b"GET /z HTTP/1.1\r\n\r\n"]);
    assert_eq!(names.http.as_deref(), Some("example.org"));
    let details = names.details.unwrap();
    assert_eq!(details.http_method, None);
    assert_eq!(details.http_uri.as_deref(), Some("/y"));
}

#[test]
fn http_has_the_first_request_and_response() {
    let request = b"POST /a?b=c%20d HTTP/1.1\r\nHost: example.org\r\nuser-agent:  Agent/1 (x; y)\r\n\r\nUser-Agent: no";
    let details = details(
        true,
        8_080,
        &[
            request,
            b"HTTP/1.1 404 Not Found\r\n",
            b"GET /second HTTP/1.1\r\nUser-Agent: second\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n",
        ],
    );
    assert_eq!(details.http_method.as_deref(), Some("POST"));
    assert_eq!(details.http_uri.as_deref(), Some("/a?b=c%20d"));
    assert_eq!(details.http_user_agent.as_deref(), Some("Agent/1 (x; y)"));
    assert_eq!(details.http_status, Some(404));
}

#[test]
fn what_is_no_request_or_response_is_not_read() {
    for bytes in [
        &b"GET"[..],
        b"GET / HTTP",
        b"GeT / HTTP/1.1\r\n",
        b"GET  HTTP/1.1\r\n",
        b"A B C D HTTP/1.1".get(..1).unwrap(),
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1 0x0 OK",
        b"HTTP/2 200 OK",
        b"SSH-2.0-without-an-end",
    ] {
        let names = found(true, 80, &[bytes]);
        assert_eq!(names, Names::default(), "{}", bytes.escape_ascii());
    }
    // A long target is cut, and what cannot be printed is replaced.
    let uri = [b"/\x1b[2J\xff", &vec![b'a'; 2_000][..]].concat();
    let request = [b"GET ", &uri[..], b" HTTP/1.1\r\n"].concat();
    let found = details(true, 80, &[&request]).http_uri.unwrap();
    assert_eq!((found.len(), &found[..7]), (1_024, "/.[2J.a"));
    // The field may go on in another packet.
    let cut = b"GET / HTTP/1.0\r\nUser-Agent: begin";
    assert_eq!(details(true, 80, &[cut]).http_user_agent, None);
}

#[test]
fn ssh_has_a_version_of_each_side() {
    let payloads: [&[u8]; 4] = [
        b"SSH-2.0-client_1 a comment\r\n",
        b"SSH-2.0-server\n\0\0",
        b"SSH-2.0-again\r\n",
        b"SSH-2.0-again\r\n",
    ];
    let [one, other] = details(true, 2_222, &payloads).ssh_version;
    assert_eq!(one.as_deref(), Some("SSH-2.0-client_1 a comment"));
    assert_eq!(other.as_deref(), Some("SSH-2.0-server"));
    let long = [b"SSH-2.0-", &[b'x'; 300][..], b"\r\n"].concat();
    assert_eq!(found(true, 22, &[&long]), Names::default());
}

#[test]
fn modbus_has_a_set_of_functions() {
    let message = |function: u8, len: u8| {
        let mut message = vec![0, 1, 0, 0, 0, len, 9, function];
        message.resize(6 + usize::from(len), 0);
        message
    };
    let first = [message(3, 6), message(16, 11)].concat();
    let refused = message(0x80 | 43, 3);
    let invalid = [message(0, 6), message(1, 1)].concat();
    let cut = &message(4, 200)[..8];
    let functions = details(true, 502, &[&first, &refused, &invalid, cut]).modbus_functions;
    assert_eq!(functions.list().as_deref(), Some("[3,4,16,43]"));
    // As many as a payload has.
    let many = [message(3, 2).repeat(1_000), message(5, 2)].concat();
    let functions = details(true, 502, &[&many]).modbus_functions;
    assert_eq!(functions.list().as_deref(), Some("[3,5]"));
    assert_eq!(found(true, 503, &[&first]), Names::default());
    // With another protocol's number.
    assert_eq!(
        found(true, 502, &[b"\0\x01\0\x01\0\x06\x09\x03"]),
        Names::default()
    );
}

/// A message of SMB 2 with the header before its body, and where the next one begins.
fn smb(command: u8, flags: u8, next: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![
        0xfe, b'S', b'M', b'B', 64, 0, 0, 0, 0, 0, 0, 0, command, 0, 0, 0, flags,
    ];
    message.resize(20, 0);
    message.push(next);
    message.resize(64, 0);
    message.extend_from_slice(body);
    message
}

fn netbios(messages: &[u8]) -> Vec<u8> {
    let len = u32::try_from(messages.len()).unwrap().to_be_bytes();
    [&len[..], messages].concat()
}

/// A request to connect to a share.
fn connect(path: &str) -> Vec<u8> {
    let path: Vec<u8> = path.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let len = u8::try_from(path.len()).unwrap();
    [&[9, 0, 0, 0, 72, 0, len, 0], &path[..]].concat()
}

#[test]
fn smb_has_the_last_dialect_and_all_shares() {
    let wildcard = netbios(&smb(0, 1, 0, &[65, 0, 1, 0, 0xff, 2]));
    let chosen = netbios(&smb(0, 1, 0, &[65, 0, 1, 0, 0x11, 3]));
    let asked = netbios(&smb(0, 0, 0, &[36, 0, 5, 0, 2, 2]));
    let mut first = smb(3, 0, 0, &connect(r"\\host\IPC$"));
    first.resize(first.len().next_multiple_of(8), 0);
    first[20] = u8::try_from(first.len()).unwrap();
    let second = smb(3, 0, 0, &connect("\\\\host\\\"\u{1b}ä"));
    let both = netbios(&[first, second].concat());
    let cut = &netbios(&smb(3, 0, 0, &connect("cut")))[..70];
    let payloads = [&wildcard[..], &asked, &chosen, &both, &both, cut];
    let details = details(true, 445, &payloads);
    assert_eq!(details.smb_dialect, Some(0x0311));
    let list = r#"["\\\\host\\IPC$","\\\\host\\\".ä"]"#;
    assert_eq!(details.smb_shares.list().as_deref(), Some(list));
    assert_eq!(found(true, 446, &[&chosen]), Names::default());
    let mut endless = smb(0, 1, 0, &[65, 0, 1, 0, 0x11, 3]);
    endless[20] = 1;
    assert_eq!(
        self::details(true, 139, &[&netbios(&endless)]).smb_dialect,
        Some(0x0311)
    );
    for (dialect, text) in [
        (0x0202, "2.0.2"),
        (0x0210, "2.1"),
        (0x0300, "3.0"),
        (0x0302, "3.0.2"),
        (0x0311, "3.1.1"),
        (0x02ff, "2.???"),
    ] {
        assert_eq!(dialect_text(dialect), text);
    }
}

#[test]
fn servers_of_tls_and_dtls_have_version_and_cipher() {
    let hello = |version: [u8; 2], extensions: &[u8]| {
        let mut hello = version.to_vec();
        hello.extend([7; 32]);
        hello.extend([0, 0x13, 1, 0]);
        if !extensions.is_empty() {
            hello.extend([0, u8::try_from(extensions.len()).unwrap()]);
            hello.extend_from_slice(extensions);
        }
        hello
    };
    let tls = |hello: &[u8]| {
        let len = u8::try_from(hello.len()).unwrap();
        [&[0x16, 3, 3, 0, len + 4, 2, 0, 0, len], hello].concat()
    };
    for (hello, text) in [
        (hello([3, 3], &[0, 43, 0, 2, 3, 4]), "TLS 1.3"),
        (hello([3, 3], &[0, 23, 0, 0]), "TLS 1.2"),
        (hello([3, 1], &[]), "TLS 1.0"),
        (hello([3, 0], &[]), "SSL 3.0"),
        (hello([9, 9], &[]), "0x0909"),
    ] {
        let chosen = found(true, 443, &[&tls(&hello)]).chosen.unwrap();
        assert_eq!(
            (chosen.version_text().as_str(), chosen.cipher),
            (text, 0x1301)
        );
        let cut = &tls(&hello)[..hello.len() + 8];
        assert_eq!(found(true, 443, &[cut]).chosen, None);
    }
    let hello = hello([0xfe, 0xfd], &[]);
    let len = u8::try_from(hello.len()).unwrap();
    let record = [
        &[0x16, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, len + 12][..],
        &[2, 0, 0, len, 0, 0, 0, 0, 0, 0, 0, len],
        &hello,
    ];
    let chosen = found(false, 4_433, &[&record.concat()]).chosen.unwrap();
    assert_eq!(
        (chosen.version_text().as_str(), chosen.cipher),
        ("DTLS 1.2", 0x1301)
    );
}

proptest! {
    #[test]
    fn any_bytes_give_bounded_texts(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        port in prop_oneof![Just(53), Just(502), Just(80), Just(445)],
        begin in prop_oneof![
            Just(&b""[..]), Just(&b"GET "[..]), Just(&b"HTTP/1.1 "[..]), Just(&b"SSH-"[..]),
            Just(&b"\0\0\x81\x80\0\x01\0\xff\0\0\0\0"[..]),
            Just(&b"\0\0\x01\0\xfeSMB@\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0"[..]),
        ],
        is_tcp in any::<bool>(),
    ) {
        let bytes = [begin, &bytes].concat();
        let details = details(is_tcp, port, &[&bytes, &bytes]);
        let texts = [details.dns_answers, details.http_method, details.http_uri];
        let others = [details.http_user_agent].into_iter().chain(details.ssh_version);
        for text in texts.into_iter().chain(others).flatten() {
            prop_assert!(text.len() <= 1_024 && !text.contains(|c: char| c != ' ' && !c.is_ascii_graphic()));
        }
    }
}
