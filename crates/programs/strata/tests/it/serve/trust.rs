//! Who is let in, and who may do what.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use rustls::{ClientConnection, StreamOwned};
use serde_json::{Value, json};
use strata_testkit::Certificates;

use super::http::{Serving, quoted};
use super::logs::capture;
use crate::common::program::{ok, record, strata};

const LOOK: &str = "look-0123456789abcdef";
const PAYLOAD: &str = "payload-0123456789abcdef";
const CHANGE: &str = "change-0123456789abcdef";

#[test]
fn names_that_resolve_to_this_machine_are_not_this_page() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(capture(), &log));
    let serving = Serving::start(&[&log], &[]);
    let port = serving.address.rsplit(':').next().unwrap().to_owned();
    for host in ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"] {
        let host = format!("Host: {host}:{port}");
        assert_eq!(
            serving.send("GET", "/api/v1/session", &[&host], b"").status,
            200,
            "{host}"
        );
    }
    for host in [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost",
        "",
        "127.0.0.1:1",
    ] {
        let own = format!("Host: {host}");
        for path in ["/api/v1/session", "/"] {
            let answer = serving.send("GET", path, &[&own], b"");
            assert_eq!(answer.status, 421, "{host}");
            assert_eq!(answer.json()["code"], "host");
        }
    }
}

#[test]
fn other_pages_change_nothing_and_answers_are_locked_down() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(capture(), &log));
    let serving = Serving::start(&[&log], &[]);
    let body = br#"{"match": "tcp", "action": "drop"}"#;
    let own = format!("Origin: http://{}", serving.address);
    for head in [
        vec![],
        vec![own.as_str()],
        vec!["X-Strata: 1", "Origin: http://evil.example"],
        vec!["X-Strata: 1", "Origin: null"],
        vec!["X-Strata: 1", "Sec-Fetch-Site: cross-site"],
    ] {
        let answer = serving.send("POST", "/api/v1/policies/check", &head, body);
        assert_eq!(answer.status, 403, "{head:?}");
        assert_eq!(answer.json()["code"], "csrf");
    }
    let head = ["Sec-Fetch-Site: cross-site"];
    assert_eq!(serving.send("GET", "/api/v1/logs", &head, b"").status, 403);
    let checked = serving.send(
        "POST",
        "/api/v1/policies/check",
        &["X-Strata: 1", &own],
        body,
    );
    assert_eq!(checked.status, 200);
    for path in ["/", "/api/v1/session", "/api/v1/none", "/none.js"] {
        let answer = serving.send("GET", path, &[], b"");
        for said in [
            "content-security-policy: default-src 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "x-frame-options: deny",
            "cross-origin-resource-policy: same-origin",
            "cache-control: no-",
        ] {
            assert!(
                answer.head.contains(said),
                "{path}: {said}: {}",
                answer.head
            );
        }
        assert!(!answer.head.contains("access-control"), "{}", answer.head);
    }
}

/// A log and a file of tokens, one for each role.
fn guarded() -> (tempfile::TempDir, PathBuf, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(capture(), &log));
    let file = dir.path().join("tokens");
    let tokens = format!("look {LOOK}\npayload {PAYLOAD}\n# all\n{CHANGE}\n");
    fs::write(&file, tokens).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let socket = dir.path().join("none.sock").display().to_string();
    let file = file.display().to_string();
    let more = ["--token-file", &file, "--socket", &socket].map(str::to_owned);
    (dir, log, more.into())
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

const MODE: &[u8] = br#"{"mode": "log-all"}"#;

#[test]
fn each_role_is_refused_what_it_may_not() {
    let (_dir, log, more) = guarded();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let serving = Serving::start(&[&log], &more);
    for wrong in ["", "x", "look-0123456789abcde", "look-0123456789abcdef0"] {
        let answer = serving.send("GET", "/api/v1/logs", &[&bearer(wrong)], b"");
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (401, &json!("login"))
        );
    }
    let download = |format: &str| format!("/api/v1/logs/0/export?format={format}");
    // 502: it may, and nothing listens there.
    for (token, downloads, changes) in [(LOOK, 403, 403), (PAYLOAD, 200, 403), (CHANGE, 200, 502)] {
        let who = bearer(token);
        let get = |path: &str| serving.send("GET", path, &[&who], b"");
        assert_eq!(get("/api/v1/logs").status, 200);
        // The table of flows has URIs, answers of DNS and more of payload.
        for format in ["pcapng", "csv", "json", "flows-parquet"] {
            let answer = get(&download(format));
            assert_eq!(answer.status, downloads, "{token} {format}");
            let has_payload = answer.body.windows(8).any(|at| at == b"http_uri");
            assert_eq!(
                has_payload,
                downloads == 200 && format != "pcapng",
                "{token} {format}"
            );
        }
        assert_eq!(get(&download("packets-parquet")).status, 200, "{token}");
        let head = [who.as_str(), "X-Strata: 1"];
        let answer = serving.send("PUT", "/api/v1/recorders/0/mode", &head, MODE);
        let said = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, changes, "{token}: {said}");
        let asked = br#"{"language": "marple", "log": "0", "text": "x"}"#;
        let answer = serving.send("POST", "/api/v1/ask", &head, asked);
        assert_eq!(answer.status == 403, token == LOOK);
    }
    let read_only = Serving::start(&[&log], &[&more[..], &["--read-only"]].concat());
    let head = [&*bearer(CHANGE), "X-Strata: 1"];
    let answer = read_only.send("PUT", "/api/v1/recorders/0/mode", &head, MODE);
    assert_eq!(
        (answer.status, &answer.json()["code"]),
        (403, &json!("read_only"))
    );
}

/// Many filters that compare a byte of payload with a value would tell the byte.
#[test]
fn filters_of_payload_need_the_role_that_sees_it() {
    let (_dir, log, more) = guarded();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let serving = Serving::start(&[&log], &more);
    let of_payload = "tcp[((tcp[12] & 0xf0) >> 2)] > 71";
    for (token, may) in [(LOOK, false), (PAYLOAD, true)] {
        let head = [&*bearer(token)];
        for path in [
            "search?",
            "series?",
            "reasons?",
            "export?format=packets-parquet&",
        ] {
            let status = |filter: &str| {
                let path = format!("/api/v1/logs/0/{path}filter={}", quoted(filter));
                serving.send("GET", &path, &head, b"").status
            };
            assert_eq!(status("tcp[13] & 2 != 0"), 200, "{token} {path}");
            assert_eq!(status(of_payload) == 200, may, "{token} {path}");
        }
    }
    let audit = serving
        .send("GET", "/api/v1/audit", &[&bearer(CHANGE)], b"")
        .json();
    let searched = |entry: &&Value| {
        let what = entry["what"].as_str().unwrap();
        what.starts_with("searched payload") && what.contains(of_payload)
    };
    assert_eq!(audit.as_array().unwrap().iter().filter(searched).count(), 4);
}

/// The number of a search is easy to guess, and its flows are those that a filter of payload selected.
#[test]
fn results_of_a_search_are_only_for_the_user_who_searched() {
    let (_dir, log, more) = guarded();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let serving = Serving::start(&[&log], &more);
    let of_payload = quoted("tcp[((tcp[12] & 0xf0) >> 2)] > 71");
    for (owner, filter) in [(PAYLOAD, &*of_payload), (LOOK, "tcp"), (CHANGE, "")] {
        let path = format!("/api/v1/logs/0/search?filter={filter}");
        let found = serving.send("GET", &path, &[&bearer(owner)], b"").lines();
        let done = found.last().unwrap();
        assert_eq!(done["event"], "done", "{done}");
        let search = done["search"].as_str().unwrap();
        let path = format!("/api/v1/searches/{search}/flows");
        for token in [LOOK, PAYLOAD, CHANGE] {
            let answer = serving.send("GET", &path, &[&bearer(token)], b"");
            let status = if token == owner { 200 } else { 404 };
            assert_eq!(answer.status, status, "{owner} {token}");
            if token != owner {
                assert_eq!(answer.json()["code"], "expired");
            }
        }
    }
}

#[test]
fn the_audit_has_the_downloads_that_began_and_what_was_in_them() {
    let (_dir, log, more) = guarded();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let serving = Serving::start(&[&log], &more);
    let who = bearer(PAYLOAD);
    let get = |query: &str| {
        let path = format!("/api/v1/logs/{query}");
        serving.send("GET", &path, &[&who], b"").status
    };
    let of_payload = quoted("tcp[((tcp[12] & 0xf0) >> 2)] > 71");
    for (query, status) in [
        ("0/export?format=pcapng&class=none", 400),
        ("0/export?format=csv&reason=x", 400),
        ("9/export?format=json", 404),
        (
            &*format!("0/export?format=json&class=none&filter={of_payload}"),
            400,
        ),
        (&*format!("9/series?filter={of_payload}"), 404),
    ] {
        assert_eq!(get(query), status, "{query}");
    }
    assert_eq!(
        get("0/export?format=pcapng&from=1&to=2&granularity=full&filter=tcp"),
        200
    );
    assert_eq!(get("0/export?format=csv"), 200);
    let audit = serving.send("GET", "/api/v1/audit", &[&who], b"").json();
    let audit = audit.as_array().unwrap().iter().rev();
    let audit: Vec<&str> = audit.map(|event| event["what"].as_str().unwrap()).collect();
    let times = "from 1970-01-01T00:00:01.000000000Z, to 1970-01-01T00:00:02.000000000Z";
    let first = format!("downloaded pcapng: log 0, {times}, granularity full, filter 'tcp'");
    assert_eq!(audit, [&*first, "downloaded csv: log 0"]);
}

#[test]
fn a_role_that_may_not_look_at_payload_gets_headers() {
    let (_dir, log, more) = guarded();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let serving = Serving::start(&[&log], &more);
    for token in [LOOK, PAYLOAD, CHANGE] {
        let who = bearer(token);
        let get = |path: &str| serving.send("GET", path, &[&who], b"");
        let found = get("/api/v1/logs/0/search?filter=tcp").lines();
        let search = found.last().unwrap()["search"].as_str().unwrap().to_owned();
        let path = format!("/api/v1/searches/{search}/flows?sort=kept_bytes&order=desc&limit=1");
        let flow = get(&path).json()["rows"][0]["id"].clone();
        let path = format!(
            "/api/v1/logs/0/flows/{}/packets?limit=1000",
            flow.as_str().unwrap()
        );
        let packets = get(&path).json();
        let kept = |packet: &&Value| packet["kept_bytes"].as_u64().unwrap();
        let largest = packets["packets"]
            .as_array()
            .unwrap()
            .iter()
            .max_by_key(kept)
            .unwrap();
        let path = format!("/api/v1/logs/0/packets/{}", largest["id"].as_str().unwrap());
        let detail = get(&path).json();
        let shown = detail["bytes"].as_str().unwrap().len() as u64 / 2;
        let headers = detail["header_bytes"].as_u64().unwrap();
        assert!(headers < kept(&largest), "a packet with payload: {largest}");
        let may = if token == LOOK {
            headers
        } else {
            kept(&largest)
        };
        let is_hidden = json!(token == LOOK);
        assert_eq!(
            (shown, &detail["payload_hidden"]),
            (may, &is_hidden),
            "{token}"
        );
    }
}

#[test]
fn a_browser_logs_in_and_out() {
    let (_dir, log, more) = guarded();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let serving = Serving::start(&[&log], &more);
    let given = json!({"token": LOOK}).to_string();
    let answer = serving.send(
        "POST",
        "/api/v1/session",
        &["X-Strata: 1"],
        given.as_bytes(),
    );
    assert_eq!(answer.status, 200);
    let mut lines = answer.head.lines();
    let cookie = lines
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap();
    assert!(
        cookie.contains("httponly") && cookie.contains("samesite=strict"),
        "{cookie}"
    );
    let cookie = format!("Cookie: x=y; {}", cookie.split(';').next().unwrap());
    let session = || serving.send("GET", "/api/v1/session", &[&cookie], b"");
    assert_eq!(session().json()["roles"], json!(["look"]));
    let gone = serving.send("DELETE", "/api/v1/session", &[&cookie, "X-Strata: 1"], b"");
    assert_eq!(gone.status, 204);
    assert_eq!(session().status, 401);
}

#[test]
fn a_proxy_is_trusted_from_its_address_only() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(capture(), &log));
    let header = ["--user-header", "X-User"];
    let trusted = Serving::start(
        &[&log],
        &[&["--trust-proxy", "127.0.0.0/8"], &header[..]].concat(),
    );
    let session =
        |serving: &Serving, head: &[&str]| serving.send("GET", "/api/v1/session", head, b"");
    assert_eq!(
        session(&trusted, &["X-User: alice"]).json()["user"],
        "alice"
    );
    assert_eq!(
        session(&trusted, &["X-User: alice"]).json()["roles"],
        json!(["look"])
    );
    for head in [&[][..], &["X-User:"], &["X-User: alice", "X-User: root"]] {
        assert_eq!(session(&trusted, head).status, 401, "{head:?}");
    }
    let other = Serving::start(
        &[&log],
        &[&["--trust-proxy", "192.0.2.0/24"], &header[..]].concat(),
    );
    assert_eq!(session(&other, &["X-User: alice"]).status, 401);
}

#[test]
fn what_would_let_anybody_in_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(capture(), &log));
    let refused = |arguments: &[&str], why: &str| {
        let output = strata()
            .arg("serve")
            .arg(&log)
            .args(arguments)
            .output()
            .unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(why) && !said.contains("panicked"), "{said}");
    };
    refused(&["--listen", "0.0.0.0:0"], "--token-file");
    refused(&["--listen", "nonsense"], "127.0.0.1:9470");
    refused(&["--trust-proxy", "127.0.0.0/8"], "--user-header");
    refused(
        &["--trust-proxy", "x", "--user-header", "x"],
        "192.0.2.0/24",
    );
    let file = dir.path().join("tokens");
    let named = file.to_str().unwrap();
    for (content, mode, why) in [
        (CHANGE, 0o644, "chmod 600"),
        ("short", 0o600, "openssl rand"),
        ("", 0o600, "no token"),
        ("root 0123456789abcdef", 0o600, "line 1"),
        ("look 0123456789abcdef alice", 0o600, "line 1: more than"),
        (
            "look 0123456789abcdef\n\nchange 0123456789abcdef",
            0o600,
            "line 3: this token has the role look",
        ),
    ] {
        fs::write(&file, content).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        refused(&["--token-file", named], why);
    }
}

#[test]
fn what_would_show_nothing_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let name = |name: &str| dir.path().join(name).display().to_string();
    let (log, none, file, empty, socket) = (
        name("log"),
        name("none"),
        name("file"),
        name("empty"),
        name("none.sock"),
    );
    ok(&mut record(capture(), &log));
    fs::write(&file, "").unwrap();
    fs::create_dir(&empty).unwrap();
    for (arguments, said) in [
        (&[none.as_str()][..], "this directory does not exist"),
        (&[&file], "a file, not the directory"),
        (&[&empty], "no log is in this directory"),
        (&[&log, &none], "this directory does not exist"),
        (&["--socket", &socket], "no recording listens there"),
        (&[&none, "--socket", &socket], "no recording listens there"),
        (&[], "LOG"),
    ] {
        let output = strata()
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
    // A recording that is still to come makes its log.
    let serving = Serving::start(&[log.as_ref(), none.as_ref()], &["--socket", &socket]);
    assert_eq!(serving.json("/api/v1/logs")[1]["state"], "unreadable");
    ok(&mut record(capture(), &none));
    assert_eq!(serving.json("/api/v1/logs")[1]["state"], "closed");
}

/// The answer to a request over TLS, from a client with this certificate; or why there is no
/// answer.
fn over_tls(
    serving: &Serving,
    certificates: &Certificates,
    name: Option<&str>,
    head: &str,
) -> std::io::Result<String> {
    let [_, _, authority] = certificates.of("relay");
    let config = match name {
        Some(name) => {
            let [certificate, key, _] = certificates.of(name);
            strata_auth::tls::client(&certificate, &key, &authority)
        }
        None => strata_auth::authority::agent(&fs::read_to_string(authority)?, None),
    };
    let server = "127.0.0.1".try_into().unwrap();
    let connection = ClientConnection::new(config.unwrap(), server).unwrap();
    let stream = TcpStream::connect(&serving.address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut stream = StreamOwned::new(connection, stream);
    let address = &serving.address;
    write!(stream, "{head} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        // The end of an answer is that of its connection.
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error),
        _ => {}
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn certificates_let_in_by_tls_alone() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::make(dir.path(), "127.0.0.1");
    let [certificate, key, authority] = certificates
        .of("relay")
        .map(|path| path.display().to_string());
    let log = dir.path().join("log");
    ok(&mut record(capture(), &log));
    let tls = [
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
        "--tls-ca",
        &authority,
    ];
    let serving = Serving::start(&[&log], &tls);
    let friend = |head: &str| over_tls(&serving, &certificates, Some("switch"), head).unwrap();
    let session = friend("GET /api/v1/session");
    assert!(session.contains("\"roles\":[\"look\"]"), "{session}");
    assert!(session.contains("\"user\":\"certificate "), "{session}");
    let export = friend("GET /api/v1/logs/0/export?format=pcapng");
    assert!(
        export.starts_with("HTTP/1.0 403") || export.starts_with("HTTP/1.1 403"),
        "{export}"
    );
    for name in [Some("stranger"), None] {
        let answer = over_tls(&serving, &certificates, name, "GET /");
        let nothing = answer.as_ref().map_or(true, String::is_empty);
        assert!(nothing, "{name:?}: {answer:?}");
    }
    let audit = friend("GET /api/v1/audit");
    assert_eq!(
        audit.matches("could not log in: TLS: ").count(),
        2,
        "{audit}"
    );
    // Who speaks no TLS gets nothing.
    let mut plain = TcpStream::connect(&serving.address).unwrap();
    plain.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // With a role.
    let serving = Serving::start(&[&log], &[&tls[..], &["--tls-role", "change"]].concat());
    let session = over_tls(
        &serving,
        &certificates,
        Some("switch"),
        "GET /api/v1/session",
    )
    .unwrap();
    assert!(session.contains("\"change\"]"), "{session}");
}

/// The paths and methods of the contract, as it is written.
fn contract() -> Vec<(String, String)> {
    let file = strata_testkit::workspace_root().join("crates/run/serve/openapi.yaml");
    let text = fs::read_to_string(file).unwrap();
    let (mut path, mut all) = (String::new(), Vec::new());
    for line in text.lines() {
        if let Some(named) = line.strip_prefix("  /api/") {
            path = format!("/api/{}", named.trim_end_matches(':'));
        }
        let method = line
            .strip_prefix("    ")
            .and_then(|rest| rest.strip_suffix(':'));
        if let Some(method @ ("get" | "post" | "put" | "delete")) = method {
            all.push((method.to_uppercase(), path.clone()));
        }
    }
    all
}

#[test]
fn every_path_of_the_contract_is_served_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(capture(), &log));
    let socket = dir.path().join("none.sock");
    let serving = Serving::start(&[&log], &["--socket", socket.to_str().unwrap()]);
    let contract = contract();
    assert!(contract.len() > 25, "{contract:?}");
    for (method, path) in contract {
        // It has no end.
        if path.ends_with("/live") {
            continue;
        }
        let real = path
            .replace("{log}", "0")
            .replace("{recorder}", "0")
            .replace("{search}", "1");
        let real = real
            .replace("{event}", "x")
            .replace("{policy}", "1")
            .replace("{packet}", "x");
        let real = real.replace("{flow}", "6_10.0.0.1_1_10.0.0.2_2");
        let answer = serving.send(&method, &real, &["X-Strata: 1"], b"");
        let said = String::from_utf8_lossy(&answer.body);
        assert!(
            answer.status != 405 && !said.contains("there is no /api"),
            "{method} {real}: {said}"
        );
    }
    for (method, path) in [
        ("PATCH", "/api/v1/logs"),
        ("PUT", "/api/v1/session"),
        ("DELETE", "/api/v1/logs"),
    ] {
        assert_eq!(
            serving.send(method, path, &["X-Strata: 1"], b"").status,
            405,
            "{method} {path}"
        );
    }
    for path in ["/api/v1", "/api/v1/", "/api/v1/none", "/api/v2/logs"] {
        assert_eq!(serving.send("GET", path, &[], b"").status, 404, "{path}");
    }
}
