//! Requests whose place or length can be read in two ways (RFC 9112, sections 3.2 and 6): what a proxy
//! before the page takes for one request must not be another one here.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::http::Serving;
use super::logs::capture;
use crate::common::program::{ok, record};

/// Everything that is answered to these bytes, and to a request after them that ends the connection:
/// 404, unless the server has ended it before.
fn answered(serving: &Serving, request: &str) -> String {
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let own = &serving.address;
    let last = format!("GET /api/v1/none HTTP/1.1\r\nHost: {own}\r\nConnection: close\r\n\r\n");
    // It may end the connection while more is on its way.
    let _ = stream.write_all(format!("{request}{last}").as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn statuses(answer: &str) -> Vec<u16> {
    let heads = answer.match_indices("HTTP/1.");
    let status = |(at, _): (usize, &str)| answer.get(at + 9..at + 12)?.parse().ok();
    heads.filter_map(status).collect()
}

fn served() -> (tempfile::TempDir, Serving) {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(capture(), &log));
    let serving = Serving::start(&[&log], &[]);
    (dir, serving)
}

#[test]
fn a_request_names_one_place() {
    let (_dir, serving) = served();
    let own = serving.address.clone();
    let port = own.rsplit(':').next().unwrap();
    let path = "/api/v1/session";
    for (request, status) in [
        (format!("GET {path} HTTP/1.1\r\nHost: {own}"), 200),
        (format!("GET {path} HTTP/1.1\r\nhOsT:\t{own} "), 200),
        (
            format!("GET http://{own}{path} HTTP/1.1\r\nHost: {own}"),
            200,
        ),
        (
            format!("GET http://LOCALHOST:{port}{path} HTTP/1.1\r\nHost: localhost:{port}"),
            200,
        ),
        (format!("GET http://{own}{path} HTTP/1.0"), 200),
        // None, and several, also the same one twice.
        (format!("GET {path} HTTP/1.1"), 400),
        (format!("GET {path} HTTP/1.0"), 421),
        (
            format!("GET {path} HTTP/1.1\r\nHost: {own}\r\nHost: {own}"),
            400,
        ),
        (
            format!("GET {path} HTTP/1.1\r\nHost: {own}\r\nHost: evil.example"),
            400,
        ),
        (
            format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\nX-A: b\r\nHost: {own}"),
            400,
        ),
        (
            format!("GET {path} HTTP/1.0\r\nHost: {own}\r\nHost: {own}"),
            400,
        ),
        // No host.
        (
            format!("GET {path} HTTP/1.1\r\nHost: {own}, evil.example"),
            400,
        ),
        (
            format!("GET {path} HTTP/1.1\r\nHost: evil.example@{own}"),
            400,
        ),
        (format!("GET {path} HTTP/1.1\r\nHost: http://{own}/"), 400),
        (format!("GET {path} HTTP/1.1\r\nHost: [::1"), 400),
        (format!("GET {path} HTTP/1.1\r\nHost: \u{e9}"), 400),
        (format!("GET {path} HTTP/1.1\r\nHost : {own}"), 400),
        (format!("GET {path} HTTP/1.1\r\n Host: {own}"), 400),
        // The target names one that differs from the header's, or both do.
        (
            format!("GET http://evil.example{path} HTTP/1.1\r\nHost: {own}"),
            400,
        ),
        (
            format!("GET http://{own}{path} HTTP/1.1\r\nHost: evil.example"),
            400,
        ),
        (
            format!("GET http://evil.example{path} HTTP/1.1\r\nHost: evil.example"),
            421,
        ),
        (format!("GET http://evil.example{path} HTTP/1.0"), 421),
        (
            format!("GET http://user@{own}{path} HTTP/1.1\r\nHost: user@{own}"),
            400,
        ),
        (
            format!("GET ftp://{own}{path} HTTP/1.1\r\nHost: {own}"),
            400,
        ),
        (
            format!("CONNECT evil.example:80 HTTP/1.1\r\nHost: {own}"),
            400,
        ),
        (format!("GET {path} HTTP/1.1\r\nHost: evil.example"), 421),
        (format!("GET {path} HTTP/1.1\r\nHost:"), 421),
    ] {
        let answer = answered(&serving, &format!("{request}\r\n\r\n"));
        let goes_on = status != 400 && request.contains("HTTP/1.1");
        let expected = if goes_on {
            vec![status, 404]
        } else {
            vec![status]
        };
        assert_eq!(statuses(&answer), expected, "{request}: {answer}");
    }
    // What comes behind such a request is not answered, and that is reported.
    let torn = format!("GET {path} HTTP/1.1\r\nHost: {own}\r\nHost: {own}\r\n\r\n");
    let answer = answered(&serving, &torn).to_lowercase();
    assert!(answer.contains("connection: close"), "{answer}");
}

#[test]
fn a_request_has_one_length() {
    let (_dir, serving) = served();
    let own = serving.address.clone();
    let body = r#"{"match": "tcp", "action": "drop"}"#;
    let length = body.len();
    let post = |head: &str, body: &str| {
        let start = "POST /api/v1/policies/check HTTP/1.1";
        let request = format!("{start}\r\nHost: {own}\r\nX-Strata: 1\r\n{head}\r\n\r\n{body}");
        (answered(&serving, &request), request)
    };
    let chunked = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
    let chunked = chunked.as_str();
    for head in [
        format!("Content-Length: {length}"),
        format!("Content-Length: {length}\r\nContent-Length: {length}"),
    ] {
        let (answer, request) = post(&head, body);
        assert_eq!(statuses(&answer), [200, 404], "{request}: {answer}");
    }
    let (answer, request) = post("Transfer-Encoding: chunked", chunked);
    assert_eq!(statuses(&answer), [200, 404], "{request}: {answer}");
    // Both: the coding counts, and nothing is read behind it.
    for head in [
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {length}"),
        String::from("Transfer-Encoding: chunked\r\nContent-Length: 0"),
    ] {
        let (answer, request) = post(&head, chunked);
        assert_eq!(statuses(&answer), [200], "{request}: {answer}");
    }
    for (head, body, statuses_of) in [
        (
            format!("Content-Length: {length}\r\nContent-Length: 5"),
            body,
            [400],
        ),
        (format!("Content-Length: {length}, {length}"), body, [400]),
        (format!("Content-Length: +{length}"), body, [400]),
        (format!("Content-Length: 0x{length:x}"), body, [400]),
        (
            String::from("Content-Length: 18446744073709551616"),
            body,
            [400],
        ),
        (format!("Content-Length : {length}"), body, [400]),
        (format!("X-A: b\r\n Content-Length: {length}"), body, [400]),
        (String::from("Transfer-Encoding: identity"), chunked, [400]),
        (
            String::from("Transfer-Encoding: chunked, identity"),
            chunked,
            [400],
        ),
        (
            String::from("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"),
            chunked,
            [400],
        ),
        (String::from("Transfer-Encoding : chunked"), chunked, [400]),
        (String::from("Transfer-Encoding: xchunked"), chunked, [400]),
        (
            String::from("Transfer-Encoding: gzip, chunked"),
            chunked,
            [501],
        ),
        (
            String::from("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
            chunked,
            [501],
        ),
    ] {
        let (answer, request) = post(&head, body);
        let first = statuses(&answer).first().copied();
        assert_eq!(first, statuses_of.first().copied(), "{request}: {answer}");
        // Where the length is certain, the next request is too.
        let is_alone = statuses(&answer).len() == 1;
        assert!(is_alone || first == Some(501), "{request}: {answer}");
    }
    // Sizes of chunks that others read in another way end the connection.
    for chunks in [
        format!("+{length:x}\r\n{body}\r\n0\r\n\r\n"),
        format!("0x{length:x}\r\n{body}\r\n0\r\n\r\n"),
        format!("10000000000000000{length:x}\r\n{body}\r\n0\r\n\r\n"),
        format!("{length:x}\r\n{body}X0\r\n\r\n"),
    ] {
        let (answer, request) = post("Transfer-Encoding: chunked", &chunks);
        let statuses = statuses(&answer);
        let is_refused = !statuses.contains(&200) && !statuses.contains(&404);
        assert!(is_refused, "{request}: {answer}");
    }
    // In HTTP/1.0 there is no such coding.
    let old = format!(
        "POST /api/v1/policies/check HTTP/1.0\r\nHost: {own}\r\nX-Strata: 1\r\nTransfer-Encoding: \
         chunked\r\n\r\n{chunked}"
    );
    let answer = answered(&serving, &old);
    assert_eq!(statuses(&answer), [400], "{answer}");
}
