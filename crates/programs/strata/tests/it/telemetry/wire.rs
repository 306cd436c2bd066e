//! `strata telemetry run --collector` and `strata telemetry collect`: two processes, in a network
//! namespace each, do what one does, and go on when either is killed.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::link::{COLLECTOR, Link};
use crate::common::program::{failed, ok, strata};
use crate::common::telemetry::{
    PATIENCE, Process, listens, number, status, telemetry, wait_status,
};

fn secret(dir: &Path) -> String {
    let path = dir.join("secret");
    fs::write(&path, "a secret of some length").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn collect(link: &Link, store: &Path, port: u16, secret: &str) -> Process {
    let listen = format!("{COLLECTOR}:{port}");
    let mut command = link.strata(1);
    command.args(["telemetry", "collect", "--listen", &listen]);
    command.args(["--secret-file", secret, "-o"]).arg(store);
    Process::start(&mut command)
}

/// A collector on this machine, on a port of its own.
struct Collecting {
    process: Process,
    address: String,
}

impl Collecting {
    fn start(store: &Path) -> Self {
        let mut command = strata();
        command.args(["telemetry", "collect", "--listen", "127.0.0.1:0", "-o"]);
        let process = Process::start(command.arg(store));
        let address = listens(store);
        Self { process, address }
    }

    /// What it answers to a translator that is going to write this store: lines of JSON, by
    /// docs/formats/dta.md.
    fn begin(&self, manifest: &str) -> Value {
        let mut talk = self.talk();
        let store = talk.prove();
        assert!(store["store"].is_object(), "{store}");
        let pair = json!({ "manifest": manifest, "qpn": 9, "psn": 1, "port": 9, "mtu": 1024 });
        talk.say(&json!({ "begin": pair }))
    }

    /// What it answers to a translator that has said who it is.
    fn prove(&self) -> Value {
        self.talk().prove()
    }

    fn talk(&self) -> Talk {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let answers = BufReader::new(stream.try_clone().unwrap());
        Talk { stream, answers }
    }
}

/// A connection to a collector.
struct Talk {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Talk {
    fn say(&mut self, message: &Value) -> Value {
        writeln!(self.stream, "{message}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"))
    }

    fn prove(&mut self) -> Value {
        let hello = json!({ "version": 5, "instance": 7, "nonce": [1, 2], "secret": false });
        let challenge = self.say(&json!({ "hello": hello }));
        assert_eq!(challenge["challenge"]["version"], 5, "{challenge}");
        self.say(&json!({ "proof": "" }))
    }
}

fn run(link: &Link, counters: &Path, options: &[&str]) -> Process {
    let mut command = link.strata(0);
    command.args(["telemetry", "run", "-o"]).arg(counters);
    command.args(options);
    Process::start(&mut command)
}

/// Sends reports of all kinds to the translator, the same ones for the same seed; how many.
fn generate(link: &Link, seed: &str, port: u16) -> u64 {
    generate_reports(link, seed, port, "20k")
}

fn generate_reports(link: &Link, seed: &str, port: u16, reports: &str) -> u64 {
    let to = format!("127.0.0.1:{port}");
    let mut command = link.strata(0);
    command.args(["telemetry", "generate", "--send-to", &to, "--seed", seed]);
    let said = ok(command.args(["--rate", "20k", "--reports", reports]));
    let (count, _) = said.split_once(" reports").unwrap();
    count.replace(',', "").parse().unwrap()
}

/// Every report is counted, and as long as no connection broke, all are in memory.
fn wait_all(counters: &Path, reports: u64) -> Value {
    wait_status(counters, |status| {
        let totals = &status["totals"];
        let superseded = number(&totals["superseded"]);
        let ended = number(&totals["confirmed"]) + number(&totals["lost"]) + superseded;
        number(&totals["reports"]) == reports && number(&totals["accepted"]) == ended
    })
}

fn dropped(status: &Value) -> u64 {
    number(&status["totals"]["dropped_without_collector"])
}

/// Keys that a store has counted, and the count below which others may be missing, if that is known.
fn top(store: &Path, count: &str) -> (Vec<(u64, String)>, Option<u64>) {
    let text = ok(&mut telemetry(store, &["top", "-n", count, "--json"]));
    let top: Value = serde_json::from_str(&text).unwrap();
    let row = |row: &Value| {
        (
            number(&row["count"]),
            row["key"].as_str().unwrap().to_owned(),
        )
    };
    let keys = top["keys"].as_array().unwrap().iter().map(row);
    (keys.collect(), top["missing_below"].as_u64())
}

/// What a store answers of its lists and of these keys.
fn answers(store: &Path, keys: &[String]) -> Vec<String> {
    let mut all = Vec::new();
    for list in 0..64 {
        let list = list.to_string();
        all.push(ok(&mut telemetry(store, &["list", &list, "--json"])));
    }
    for key in keys {
        let output = telemetry(store, &["get", key]).output().unwrap();
        all.push(String::from_utf8(output.stdout).unwrap());
    }
    all
}

/// The number in the last entry of a list, which begins with it in 8 bytes.
fn last_number(entries: &str) -> Option<u64> {
    let entry: Value = serde_json::from_str(entries.lines().last()?).unwrap();
    let digits = entry["bytes"].as_str().unwrap().strip_prefix("0x").unwrap();
    Some(u64::from_str_radix(&digits[..16], 16).unwrap())
}

const LAYOUT: [&str; 4] = ["--store-memory", "8MiB", "--lists", "64"];

#[test]
fn two_processes_do_what_one_does() {
    let dir = TempDir::new().unwrap();
    let link = Link::new("two");
    let secret = secret(dir.path());
    let path = |name: &str| dir.path().join(name);
    let collector = collect(&link, &path("store"), 4791, &secret);
    let proved = ["--collector", COLLECTOR, "--secret-file", &secret];
    let options = [&proved[..], &LAYOUT, &["--listen", "127.0.0.1:4001"]].concat();
    let translator = run(&link, &path("counters"), &options);
    // The same seed of the hash, so that keys share the same places.
    let here = path("here");
    fs::create_dir(&here).unwrap();
    fs::copy(
        path("store").join("telemetry.json"),
        here.join("telemetry.json"),
    )
    .unwrap();
    fs::write(here.join("memory"), vec![0; 8 << 20]).unwrap();
    let one = run(&link, &here, &["--listen", "127.0.0.1:4002"]);

    let sent = generate(&link, "1", 4001);
    assert_eq!(generate(&link, "1", 4002), sent);
    let counted = wait_all(&path("counters"), sent);
    wait_status(&here, |status| number(&status["totals"]["reports"]) == sent);
    assert_eq!(number(&counted["totals"]["lost"]), 0);
    assert_eq!(dropped(&counted), 0);
    let said = translator.end();
    assert!(said.contains("0 lost with a connection"), "{said}");
    one.end();
    let (counted, below) = top(&path("store"), "1024");
    // That store was not made by this version, which would say which keys may be missing.
    let text = ok(&mut telemetry(&here, &["top", "-n", "1024"]));
    assert!(text.contains("an earlier version"), "{text}");
    let large = |mut keys: Vec<(u64, String)>| {
        keys.retain(|(count, _)| *count >= below.unwrap());
        keys.sort_unstable();
        keys
    };
    let counted = large(counted);
    assert_eq!(counted, large(top(&here, "1024").0));
    let keys: Vec<String> = counted.iter().map(|(_, key)| key.clone()).collect();
    assert!(keys.len() > 50, "{counted:?}");
    assert_eq!(answers(&path("store"), &keys), answers(&here, &keys));

    // Each says what it has counted; the translator's directory is no store.
    let said = ok(&mut telemetry(&path("counters"), &["status"]));
    assert!(
        said.contains("collector") && said.contains("acknowledged"),
        "{said}"
    );
    let said = failed(&mut telemetry(&path("counters"), &["get", "10.0.0.1"]));
    assert!(
        said.contains("is with its") || said.contains("collectors"),
        "{said}"
    );
    let status = wait_status(&path("store"), |status| status["translator"].is_null());
    assert_eq!(number(&status["requests"]["refused"]), 0);
    assert!(number(&status["requests"]["executed"]) > 0);
    for (dir, metric) in [
        ("counters", "confirmed_reports"),
        ("store", "rdma_requests"),
    ] {
        let page = ok(&mut telemetry(&path(dir), &["status", "--metrics"]));
        assert!(page.contains(metric), "{page}");
    }
    collector.end();
}

#[test]
fn either_may_be_killed_and_it_goes_on() {
    let dir = TempDir::new().unwrap();
    let link = Link::new("kill");
    let secret = secret(dir.path());
    let path = |name: &str| dir.path().join(name);
    let first = collect(&link, &path("first"), 4791, &secret);
    let second = collect(&link, &path("second"), 4792, &secret);
    let of_second = format!("{COLLECTOR}:4792");
    let both = ["--collector", COLLECTOR, "--collector", &of_second];
    let proved = ["--secret-file", &secret, "--listen", "127.0.0.1:4001"];
    let options = [&both[..], &proved, &LAYOUT].concat();
    let translator = run(&link, &path("counters"), &options);
    let sent = generate(&link, "1", 4001);
    let counted = wait_all(&path("counters"), sent);
    assert_eq!(
        (dropped(&counted), number(&counted["totals"]["lost"])),
        (0, 0)
    );

    // One collector gone costs its share, which is counted.
    second.kill();
    let is_there = |status: &Value, n: usize| status["collectors"][n]["connected"] == true;
    wait_status(&path("counters"), |status| !is_there(status, 1));
    let sent = sent + generate(&link, "2", 4001);
    let counted = wait_status(&path("counters"), |status| {
        number(&status["totals"]["reports"]) == sent
    });
    let share = dropped(&counted);
    assert!((5_000..15_000).contains(&share), "{share} of {sent}");

    // It comes back, to the store that it had.
    let second = collect(&link, &path("second"), 4792, &secret);
    wait_status(&path("counters"), |status| is_there(status, 1));
    let sent = sent + generate(&link, "3", 4001);
    let counted = wait_status(&path("counters"), |status| {
        let totals = &status["totals"];
        number(&totals["reports"]) == sent && number(&status["append"]["held"]) == 0
    });
    assert_eq!(dropped(&counted), share);
    assert_eq!(number(&counted["collectors"][1]["connections"]), 2);

    // Another translator takes the stores over when this one is killed.
    translator.kill();
    let options = [&both[..], &proved].concat();
    let translator = run(&link, &path("other"), &options);
    let sent = generate_reports(&link, "4", 4001, "40k");
    let counted = wait_all(&path("other"), sent);
    assert_eq!(
        (dropped(&counted), number(&counted["totals"]["lost"])),
        (0, 0)
    );
    // Lists have gone on after what was there before, so its last entries are found: each holds the
    // number of its report, and only this translator had more than 20,000.
    let lists = (0..64).map(|list: u32| {
        let list = list.to_string();
        ok(&mut telemetry(&path("first"), &["list", &list, "--json"]))
    });
    let last: Vec<u64> = lists.filter_map(|text| last_number(&text)).collect();
    assert!(
        last.len() >= 2 && last.iter().all(|&n| n > 39_000),
        "{last:?}"
    );
    translator.end();
    first.end();
    second.end();
}

/// A store is that of one place among the collectors: with others, or in another order, keys and lists
/// would be looked for where they are not.
#[test]
fn collectors_in_another_order_or_number_are_refused() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    let here = |name: &str| Collecting::start(&path(name));
    let (first, second, third) = (here("first"), here("second"), here("third"));
    let translate = |addresses: &[&str], counters: &str| {
        let mut command = strata();
        command.args(["telemetry", "run", "--listen", "127.0.0.1:0", "-o"]);
        command.arg(path(counters)).args(LAYOUT);
        for address in addresses {
            command.args(["--collector", address]);
        }
        command
    };
    let [a, b, c] = [&first, &second, &third].map(|one| &*one.address);
    let translator = Process::start(&mut translate(&[a, b], "counters"));
    let reports = status(&path("counters"))["listen"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut generate = strata();
    generate.args([
        "telemetry",
        "generate",
        "--send-to",
        &reports,
        "--rate",
        "5k",
    ]);
    ok(generate.args(["--reports", "5k", "--seed", "7"]));
    wait_all(&path("counters"), 5_000);
    translator.end();

    for (others, place, wanted) in [
        (&[b, a][..], "2 of 2", "1 of 2"),
        (&[a], "1 of 2", "1 of 1"),
        (&[b], "2 of 2", "1 of 1"),
        (&[a, b, c], "1 of 2", "1 of 3"),
        (&[c, b, a], "2 of 2", "2 of 3"),
    ] {
        let said = failed(&mut translate(others, "other"));
        for part in [
            format!("is that of collector {place}"),
            format!("as collector {wanted}"),
            "in the same order as before".to_owned(),
        ] {
            assert!(said.contains(&part), "{others:?}: {said}");
        }
    }
    // In the same order as before, and with another collector in the place of one whose machine is gone.
    for again in [[a, b], [c, b]] {
        Process::start(&mut translate(&again, "other")).end();
    }
    let shares = ["first", "second", "third"].map(|name| {
        let status = wait_status(&path(name), |status| status["share"].is_object());
        status["share"].clone()
    });
    let [one, other] = [0, 1].map(|n| json!({ "collector": n, "of": 2 }));
    assert_eq!(shares, [one.clone(), other, one]);

    // A collector without an earlier request of the translator says it too, with any connection.
    let manifest = fs::read_to_string(path("second").join("telemetry.json")).unwrap();
    let of_three = manifest.replace("\"of\": 2", "\"of\": 3");
    assert_ne!(manifest, of_three);
    let said = second.begin(&of_three);
    let refused = said["refused"].as_str().unwrap_or_else(|| panic!("{said}"));
    assert!(
        refused.contains("2 of 2") && refused.contains("2 of 3"),
        "{refused}"
    );
    // The translator of a single machine does not write a share either, and queries say where a key is.
    second.process.end();
    let mut run = strata();
    run.args(["telemetry", "run", "--listen", "127.0.0.1:0", "-o"]);
    let said = failed(run.arg(path("second")));
    assert!(said.contains("is the store of collector 2 of 2"), "{said}");
    let asked = (1..=20).map(|host| {
        let key = format!("192.0.2.{host}");
        let said = |store| failed(&mut telemetry(&path(store), &["get", &key]));
        let elsewhere = |store| said(store).contains("it is at collector");
        (elsewhere("first"), elsewhere("second"))
    });
    let asked: Vec<_> = asked.collect();
    let of_one = asked.iter().all(|(first, second)| first != second);
    assert!(of_one && asked.iter().any(|(first, _)| *first), "{asked:?}");
    let said = ok(&mut telemetry(&path("second"), &["status"]));
    assert!(said.contains("2 of 2"), "{said}");
}

#[test]
fn what_cannot_work_is_refused_and_says_why() {
    let dir = TempDir::new().unwrap();
    let link = Link::new("no");
    let secret = secret(dir.path());
    let path = |name: &str| dir.path().join(name);
    let refused = |end: usize, options: &[&str]| {
        let mut command = link.strata(end);
        let output = command.arg("telemetry").args(options).output().unwrap();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains("strata: ") && !said.contains("panicked"),
            "{said}"
        );
        said
    };
    let counters = path("counters");
    let counters = counters.to_str().unwrap();
    let run_to = ["run", "-o", counters, "--listen", "127.0.0.1:0"];
    let to = [&run_to[..], &["--collector", COLLECTOR]].concat();
    let to_proved = [&to[..], &["--secret-file", &secret]].concat();
    let says = |text: &str, part: &str| assert!(text.contains(part), "{text}");

    says(&refused(0, &to), "is not authenticated as your collector");
    let twice = [&to_proved[..], &["--collector", COLLECTOR]].concat();
    says(&refused(0, &twice), "is given twice");
    says(
        &refused(0, &to_proved),
        "is `strata telemetry collect` running there?",
    );
    let open = ["collect", "-o", counters, "--listen", COLLECTOR];
    says(&refused(1, &open), "other machines can reach this address");

    let collector = collect(&link, &path("store"), 4791, &secret);
    let insecure = [&to[..], &["--insecure"]].concat();
    says(
        &refused(0, &insecure),
        "the collector requires a secret: give --secret-file",
    );
    let wrong = path("wrong");
    fs::write(&wrong, "another secret of some length").unwrap();
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o600)).unwrap();
    let wrong = [&to[..], &["--secret-file", wrong.to_str().unwrap()]].concat();
    says(&refused(0, &wrong), "does not know the secret");
    let large = [&to_proved[..], &["--store-memory", "2GiB"]].concat();
    says(&refused(0, &large), "bytes of memory");
    let fading = [&to_proved[..], &["--reset-counters", "1h"]].concat();
    says(
        &refused(0, &fading),
        "give them to `strata telemetry collect`",
    );

    // Strangers that send something else, or nothing, are counted and in no one's way.
    let script = format!(
        "import socket,time\n\
         all = [socket.create_connection(('{COLLECTOR}', 4791)) for _ in range(40)]\n\
         for one in all[:20]:\n    one.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n')\n\
         print('there', flush=True)\n\
         time.sleep(60)\n"
    );
    let mut strangers = Command::new("ip")
        .args(["netns", "exec", &link.names[0], "python3", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 5];
    strangers
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut said)
        .unwrap();
    let options = [
        &["--collector", COLLECTOR, "--secret-file", &secret][..],
        &LAYOUT,
    ]
    .concat();
    let translator = run(&link, &path("one"), &options);
    // Another translator has to wait, and learns who writes.
    let second = refused(0, &to_proved);
    says(&second, "writes its store");
    // With parameters other than those of the store.
    translator.end();
    let other = [&to_proved[..], &["--store-memory", "16MiB"]].concat();
    says(
        &refused(0, &other),
        "this store was made with --store-memory",
    );
    strangers.kill().unwrap();
    strangers.wait().unwrap();
    let status = wait_status(&path("store"), |status| {
        number(&status["connections_refused"]) > 20
    });
    assert_eq!(number(&status["connections"]), 1);
    collector.end();
}

/// A disk that takes for ever to make a store, as far as can be seen: a pipe without a reader is in the place of
/// its description. Others are answered meanwhile.
#[test]
fn others_do_not_wait_for_the_disk_on_which_a_store_is_made() {
    let dir = TempDir::new().unwrap();
    let mut command = strata();
    command.args(["telemetry", "run", "--listen", "127.0.0.1:0", "-o"]);
    let model = dir.path().join("model");
    let model_run = Process::start(command.arg(&model).args(["--store-memory", "2MiB"]));
    model_run.end();
    let manifest = fs::read_to_string(model.join("telemetry.json")).unwrap();
    let mut manifest: Value = serde_json::from_str(&manifest).unwrap();
    manifest["share"] = json!({ "collector": 0, "of": 1 });
    let manifest = manifest.to_string();

    let store = dir.path().join("store");
    let collecting = Collecting::start(&store);
    let pipe = store.join("telemetry.json.new");
    ok(Command::new("mkfifo").arg(&pipe));
    let answer = thread::scope(|scope| {
        let begun = scope.spawn(|| collecting.begin(&manifest));
        let start = Instant::now();
        while !store.join("memory").exists() {
            assert!(start.elapsed() < PATIENCE, "no store is made");
            thread::sleep(Duration::from_millis(10));
        }
        // Another one is answered, and told who is in its way.
        let busy = collecting.prove();
        let text = busy["busy"].as_str().unwrap_or_default();
        assert!(
            text.contains("its store is being prepared for 127.0.0.1"),
            "{busy}"
        );
        // Now the disk goes on, and fails: a pipe cannot be synced.
        assert!(fs::read_to_string(&pipe).unwrap().contains("parameters"));
        begun.join().unwrap()
    });
    let text = answer["refused"].as_str().unwrap_or_default();
    assert!(text.contains("telemetry.json.new"), "{answer}");
    fs::remove_file(&pipe).unwrap();
    let welcome = collecting.begin(&manifest);
    assert!(welcome["welcome"].is_object(), "{welcome}");
    collecting.process.end();
}

/// A packet of a stranger reaches no memory: neither without a connection, nor with a guessed queue pair.
#[test]
fn packets_of_strangers_are_dropped_and_counted() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let mut command = strata();
    command.args(["telemetry", "collect", "--listen", "127.0.0.1:0", "-o"]);
    let collector = Process::start(command.arg(&store));
    let address = listens(&store);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for len in 1..=100 {
        socket.send_to(&vec![0x0a; len], &address).unwrap();
    }
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(&[b'x'; 10_000]).unwrap();
    let counted = wait_status(&store, |status| {
        number(&status["requests"]["bad_packets"]) == 100
            && number(&status["connections_refused"]) == 1
    });
    assert_eq!(number(&counted["requests"]["executed"]), 0);
    assert!(
        !store.join("memory").exists(),
        "no translator has asked for a store"
    );
    collector.end();
}
