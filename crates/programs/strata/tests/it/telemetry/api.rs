//! The HTTP API of a telemetry collector as programs use it: curl asks what `strata telemetry` asks,
//! and gets immediate reports as they come.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::program::{ok, strata};
use crate::common::signal::signal;
use crate::common::telemetry::{
    IMMEDIATE, PATIENCE, Process, event, listens, next, number, one, telemetry,
};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

struct Collector {
    process: Process,
    store: PathBuf,
    socket: PathBuf,
    listen: SocketAddr,
}

impl Collector {
    fn start(dir: &Path, options: &[&str]) -> Self {
        let (store, socket) = (dir.join("store"), dir.join("api.sock"));
        let mut command = strata();
        command.args(["telemetry", "run", "--store-memory", "4MiB", "-o"]);
        command.arg(&store).arg("--socket").arg(&socket);
        command.args(["--listen", "127.0.0.1:0"]).args(options);
        Self::with(&mut command, store, socket)
    }

    /// One whose translator is elsewhere.
    fn collecting(dir: &Path) -> Self {
        let (store, socket) = (dir.join("store"), dir.join("api.sock"));
        let mut command = strata();
        command.args(["telemetry", "collect", "--listen", "127.0.0.1:0", "-o"]);
        command.arg(&store).arg("--socket").arg(&socket);
        Self::with(&mut command, store, socket)
    }

    fn with(command: &mut Command, store: PathBuf, socket: PathBuf) -> Self {
        Self {
            process: Process::start(command),
            listen: listens(&store).parse().unwrap(),
            store,
            socket,
        }
    }

    /// The page of metrics.
    fn metrics(&self, accept: &str) -> String {
        let mut curl = Command::new("curl");
        curl.args(["-sSf", "-H", accept, "--unix-socket"]);
        ok(curl.arg(&self.socket).arg("http://strata/metrics"))
    }

    /// The status and the answer of a request.
    fn asked(&self, page: &str, params: &[&str]) -> (u32, Value) {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-G", "-w", "\n%{http_code}", "--unix-socket"]);
        curl.arg(&self.socket);
        for param in params {
            curl.args(["--data-urlencode", param]);
        }
        let said = ok(curl.arg(format!("http://strata/api/v1/{page}")));
        let (answer, code) = said.rsplit_once('\n').unwrap();
        let value = serde_json::from_str(answer);
        (
            code.parse().unwrap(),
            value.unwrap_or_else(|_| panic!("{said}")),
        )
    }

    fn wait_for(&self, page: &str, params: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let (code, answer) = self.asked(page, params);
            if code == 200 && wanted(&answer) {
                return answer;
            }
            assert!(start.elapsed() < PATIENCE, "{page} {params:?}: {answer}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What the command says of the same store.
    fn said(&self, query: &[&str]) -> Value {
        let mut command = strata();
        command.args(["telemetry", query[0]]).arg(&self.store);
        let said = ok(command.args(&query[1..]).arg("--json"));
        let is_list = query[0] == "list" && query.len() > 1;
        if is_list {
            let lines = said
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap());
            return lines.collect();
        }
        serde_json::from_str(&said).unwrap()
    }
}

const FLOW: [u8; 13] = [10, 0, 0, 1, 10, 0, 0, 2, 4, 0, 0, 80, 6];
const FLOW_TEXT: &str = "10.0.0.1:1024 > 10.0.0.2:80 tcp";
#[test]
fn the_api_answers_what_the_commands_answer() {
    let dir = TempDir::new().unwrap();
    let options = ["--generations", "2", "--generation-period", "366d"];
    let collector = Collector::start(dir.path(), &options);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let send = |bytes: &[u8]| {
        socket.send_to(bytes, collector.listen).unwrap();
    };
    for (hop, node) in [(0_u8, 7_u8), (1, 8)] {
        let card = [&FLOW[..], &[hop, 2, 0, 0, 0, node]].concat();
        send(&one(0x24, 0, u32::from(hop), [13, 4, 0], &card));
        let latency = [&[0, 0, 0, node][..], &FLOW, &[0, 0, 1, node]].concat();
        send(&one(0x21, 0, 2 + u32::from(hop), [17, 4, 2], &latency));
    }
    let add = [&[10, 0, 0, 1][..], &9_u64.to_be_bytes()].concat();
    send(&one(0x23, 0, 4, [4, 8, 2], &add));
    for value in 0..3 {
        send(&one(
            0x22,
            0,
            5 + u32::from(value),
            [0, 18, 0],
            &event(value),
        ));
    }
    let flow = format!("flow={FLOW_TEXT}");
    let path = collector.wait_for("telemetry/path", &[&flow], |path| path["latency"] == 527);
    assert_eq!(path, collector.said(&["path", FLOW_TEXT]));
    assert_eq!(path["hops"][1]["node"], 8);
    let flows = collector.wait_for("telemetry/flows", &["node=7"], |flows| flows["events"] == 3);
    assert_eq!(flows, collector.said(&["flows", "--node", "7"]));
    assert_eq!(flows["without_flow"], 3);
    assert!(
        path["begun_ns"].is_u64() && path["ended_ns"].is_null(),
        "{path}"
    );
    for key in ["10.0.0.1", "node 8 10.0.0.1:1024 - 10.0.0.2:80 tcp"] {
        let found = collector.wait_for("telemetry/get", &[&format!("key={key}")], |_| true);
        assert_eq!(found, collector.said(&["get", key]));
        assert_eq!(found["generations"].as_array().unwrap().len(), 1, "{found}");
    }
    let top = collector.wait_for("telemetry/top", &["number=5"], |top| {
        !top["keys"].as_array().unwrap().is_empty()
    });
    assert_eq!(top, collector.said(&["top"]));
    let listed = collector.wait_for("telemetry/list", &["name=congestion"], |listed| {
        listed.as_array().unwrap().len() == 3
    });
    assert_eq!(listed, collector.said(&["list", "congestion"]));
    let last = collector.asked("telemetry/list", &["name=0", "last=1"]);
    assert_eq!(
        last.1.as_array().unwrap()[..],
        listed.as_array().unwrap()[2..]
    );
    assert_eq!(
        collector.asked("telemetry/lists", &[]).1,
        collector.said(&["list"])
    );
    let status = collector.asked("telemetry/status", &[]).1;
    assert_eq!(status["running"], true);
}

#[test]
fn what_is_wrong_with_a_request_is_said_and_all_are_described() {
    let dir = TempDir::new().unwrap();
    let collector = Collector::start(dir.path(), &[]);
    for (page, params, code, said) in [
        ("get", &["key=10.0.0.300"][..], 400, "10.0.0.300"),
        ("get", &[], 400, "missing field `key`"),
        (
            "get",
            &["key=10.0.0.1", "agree=5"],
            400,
            "agree=5: write a number from 1 to 4",
        ),
        (
            "get",
            &["key=10.0.0.1", "redundancy=2", "agree=3"],
            400,
            "from 1 to 2",
        ),
        (
            "get",
            &["key=10.0.0.1", "copies=2"],
            400,
            "unknown field `copies`",
        ),
        (
            "get",
            &["key=10.0.0.99"],
            404,
            "the store has no data about 10.0.0.99",
        ),
        ("path", &["flow=10.0.0"], 400, "10.0.0"),
        (
            "path",
            &["flow=10.0.0.9:1 > 10.0.0.2:80 tcp"],
            404,
            "is not known",
        ),
        ("list", &["name=nothing"], 404, "there is no list nothing"),
        ("list", &["name=64"], 404, "a number below 64"),
        ("list", &["name=0", "last=10001"], 400, "from 1 to 10000"),
        ("top", &["number=0"], 400, "from 1 to 1024"),
        ("flow", &[], 404, "openapi.json"),
        ("flows", &["list=nothing"], 404, "there is no list nothing"),
        ("flows", &["list=9"], 404, "are not events"),
    ] {
        let (status, answer) = collector.asked(&format!("telemetry/{page}"), params);
        let error = answer["error"].as_str().unwrap();
        assert!(
            status == code && error.contains(said),
            "{page} {params:?}: {status} {answer}"
        );
    }
    let (_, described) = collector.asked("openapi.json", &[]);
    for page in ["status", "get", "path", "top", "lists", "list", "events"] {
        let page = format!("/api/v1/telemetry/{page}");
        assert!(described["paths"][&page]["get"].is_object(), "{page}");
    }
    let parameters = &described["paths"]["/api/v1/telemetry/get"]["get"]["parameters"];
    assert_eq!(parameters[0]["name"], "key");
}

#[test]
fn each_process_serves_metrics_of_what_it_counts() {
    let dir = TempDir::new().unwrap();
    let collector = Collector::start(dir.path(), &[]);
    let page = collector.metrics("Accept: */*");
    let said = ok(telemetry(&collector.store, &["status"]).arg("--metrics"));
    let names = |page: &str| -> Vec<String> {
        let lines = page.lines().filter(|line| line.starts_with("# TYPE"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(names(&page), names(&said));
    assert!(
        page.contains("strata_telemetry_reports_total{result=\"accepted\"} 0"),
        "{page}"
    );
    let open = collector.metrics("Accept: application/openmetrics-text");
    assert!(open.ends_with("# EOF\n"), "{open}");
}

/// The memory is where queries arrive: the API of a collector whose translator is elsewhere.
#[test]
fn a_collector_elsewhere_answers_what_the_commands_answer() {
    let dir = TempDir::new().unwrap();
    let collector = Collector::collecting(dir.path());
    for (page, params) in [("get", &["key=10.0.0.1"][..]), ("top", &[]), ("lists", &[])] {
        let (code, answer) = collector.asked(&format!("telemetry/{page}"), params);
        let error = answer["error"].as_str().unwrap();
        assert!(
            code == 503 && error.contains("there is no store yet"),
            "{page}: {answer}"
        );
    }
    let page = collector.metrics("Accept: */*");
    assert!(
        page.contains("strata_telemetry_translator_connections_total{} 0"),
        "{page}"
    );

    let counters = dir.path().join("counters");
    let table = dir.path().join("int.toml");
    let translate = |name: &str| {
        let report = "when = \"always\"\nprimitive = \"append\"\ndata = \"event\"\nlist = 0";
        let report = format!("extends = \"nothing\"\n[[report]]\nname = \"{name}\"\n{report}\n");
        fs::write(&table, report).unwrap();
        let mut command = strata();
        command.args(["telemetry", "run", "--listen", "127.0.0.1:0"]);
        command.args(["--store-memory", "4MiB", "--table"]);
        command.arg(&table).arg("--collector");
        command
            .arg(collector.listen.to_string())
            .arg("-o")
            .arg(&counters);
        Process::start(&mut command)
    };
    let translator = translate("before");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let reports = listens(&counters);
    let add = [&[10, 0, 0, 1][..], &9_u64.to_be_bytes()].concat();
    socket
        .send_to(&one(0x23, 0, 0, [4, 8, 2], &add), &reports)
        .unwrap();
    socket
        .send_to(&one(0x22, 0, 1, [0, 18, 0], &event(3)), &reports)
        .unwrap();
    let found = collector.wait_for("telemetry/get", &["key=10.0.0.1"], |_| true);
    assert_eq!(found["count"]["at_most"], 9);
    assert_eq!(found, collector.said(&["get", "10.0.0.1"]));
    let listed = collector.wait_for("telemetry/list", &["name=before"], |listed| {
        !listed.as_array().unwrap().is_empty()
    });
    assert_eq!(listed, collector.said(&["list", "before"]));
    // Another table has other names of lists, and they are known at once.
    translator.end();
    let translator = translate("after");
    assert_eq!(
        collector.asked("telemetry/list", &["name=after"]),
        (200, listed)
    );
    assert_eq!(collector.asked("telemetry/list", &["name=before"]).0, 404);
    collector.wait_for("telemetry/status", &[], |status| {
        status["connections"] == 2 && status["translator"].is_string()
    });
    translator.end();
}

#[test]
fn immediate_reports_reach_those_who_subscribe() {
    let dir = TempDir::new().unwrap();
    let collector = Collector::start(dir.path(), &["--lists", "8"]);
    let mut curl = Command::new("curl");
    curl.args(["-sSN", "--unix-socket"]).arg(&collector.socket);
    curl.arg("http://strata/api/v1/telemetry/events");
    let mut curl = curl.stdout(Stdio::piped()).spawn().unwrap();
    let mut stream = BufReader::new(curl.stdout.take().unwrap());
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert_eq!(line, ": alive\n", "from here on, no event is missed");

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let send = |bytes: &[u8]| {
        socket.send_to(bytes, collector.listen).unwrap();
    };
    // Not immediate, refused, and immediate.
    send(&one(0x22, 0, 0, [0, 18, 0], &event(1)));
    let unknown = [&[0, 0, 0, 99][..], &event(2)[4..]].concat();
    send(&one(0x22, IMMEDIATE, 1, [0, 18, 0], &unknown));
    send(&one(0x22, IMMEDIATE, 2, [0, 18, 0], &event(3)));
    send(&one(
        0x21,
        IMMEDIATE,
        3,
        [13, 4, 2],
        &[&FLOW[..], &[0, 0, 0, 5]].concat(),
    ));
    let (name, first) = next(&mut stream).unwrap();
    assert_eq!(
        (&*name, &first["kind"], &first["name"]),
        ("report", &"append".into(), &"congestion".into())
    );
    assert_eq!(
        (&first["entry"]["node"], &first["entry"]["value"]),
        (&7.into(), &3.into())
    );
    assert_eq!(first["reporter"], "127.0.0.1");
    assert!(first["time_ns"].as_u64().unwrap() > 1_700_000_000_000_000_000);
    let (_, second) = next(&mut stream).unwrap();
    assert_eq!(
        (&second["key"], &second["number"]),
        (&FLOW_TEXT.into(), &5.into())
    );
    // Of the published protocol, with a sequence number and without.
    send(&[1, 0x80, 2, 192, 0, 2, 1, 0, 0, 0, 6]);
    send(&[3, 9, 0x80, 2, 192, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 7]);
    let (_, third) = next(&mut stream).unwrap();
    assert_eq!(
        (&third["kind"], &third["number"]),
        (&"key-write".into(), &6.into())
    );
    let (_, fourth) = next(&mut stream).unwrap();
    assert_eq!(
        (&fourth["kind"], &fourth["added"]),
        (&"key-increment".into(), &7.into())
    );

    // A flood of them costs subscribers events, which are counted, and not the collector its reports.
    let sent = 20_000_u32;
    for n in 0..sent {
        send(&one(
            0x22,
            IMMEDIATE,
            4 + n,
            [0, 18, 0],
            &event(u8::try_from(n % 251).unwrap()),
        ));
        if n.is_multiple_of(64) {
            thread::yield_now();
        }
    }
    let status = collector.wait_for("telemetry/status", &[], |status| {
        let came = number(&status["totals"]["reports"]) + number(&status["socket_drops"]);
        came >= u64::from(sent) + 6
    });
    let events = &status["events"];
    let known = number(&events["pushed"]) + number(&events["lost"]);
    assert_eq!(
        known,
        number(&status["totals"]["accepted"]) - 1,
        "{status:#}"
    );
    // The list has gone round, and its last entries are those of all that are there.
    collector.wait_for(
        "telemetry/list",
        &["name=congestion", "last=100"],
        |listed| {
            let all = collector.said(&["list", "congestion"]);
            let (all, listed) = (all.as_array().unwrap(), listed.as_array().unwrap());
            assert!((100..15_000).contains(&all.len()), "{}", all.len());
            listed[..] == all[all.len() - 100..]
        },
    );
    // Each of them comes, or was counted.
    let (mut reports, mut lost) = (4_u64, 0);
    while reports < number(&events["pushed"]) {
        let (name, data) = next(&mut stream).unwrap();
        match &*name {
            "report" => reports += 1,
            _ => lost += number(&data["lost"]),
        }
    }
    assert!(lost <= number(&events["lost"]), "{events}");
    // The stream ends with the collector.
    signal(&collector.process.child, "INT");
    while next(&mut stream).is_some() {}
    curl.wait().unwrap();
}

#[test]
fn over_tcp_it_wants_a_token() {
    let dir = TempDir::new().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    // A port that is not in use.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let config = dir.path().join("strata.toml");
    let text = format!("[control]\nlisten = \"{address}\"\n");
    fs::write(&config, &text).unwrap();
    let config_text = config.to_str().unwrap();
    let mut open = strata();
    open.args([
        "telemetry",
        "run",
        "--listen",
        "127.0.0.1:0",
        "--config",
        config_text,
        "-o",
    ]);
    let output = open.arg(dir.path().join("store")).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && error.contains("control.token_file"),
        "{error}"
    );
    fs::write(&config, format!("{text}token_file = {token:?}\n")).unwrap();
    let collector = Collector::start(dir.path(), &["--config", config_text]);
    let code = |options: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}"])
            .args(options);
        ok(curl.arg(format!("http://{address}/api/v1/telemetry/status")))
    };
    assert_eq!(code(&[]), "401");
    assert_eq!(code(&["-H", "Authorization: Bearer wrong"]), "401");
    assert_eq!(
        code(&["-H", &format!("Authorization: Bearer {TOKEN}")]),
        "200"
    );
    drop(collector);
    // A configuration that has nothing for it.
    fs::write(&config, "mode = [\"default\"]\n").unwrap();
    let mut useless = strata();
    useless.args([
        "telemetry",
        "run",
        "--listen",
        "127.0.0.1:0",
        "--config",
        config_text,
        "-o",
    ]);
    let output = useless.arg(dir.path().join("store")).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && error.contains("control.listen"),
        "{error}"
    );
}
