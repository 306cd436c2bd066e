//! The program as a user runs it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::{data_dir, workspace_root};
use strata_wire::mix64;

use crate::common::program::{ok, record, strata};
use crate::common::recording::wait_for;
use crate::common::signal::signal;

fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

/// The message of a failing command, checked to be short and without a backtrace.
fn fails(command: &mut Command) -> String {
    let output = run(command);
    assert_eq!(output.status.code(), Some(1), "{command:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("strata: ") && !text.contains("panicked"),
        "{text}"
    );
    text
}

fn mix_test() -> PathBuf {
    data_dir().join("labelled/mix-test/trace.pcap")
}

fn info(log: &Path) -> Value {
    let text = ok(strata().args(["info", "--json"]).arg(log));
    serde_json::from_str(&text).unwrap()
}

/// Packets of a capture file according to tshark: time, lengths and comment.
fn tshark(file: &Path, filter: &str) -> Vec<String> {
    let mut command = Command::new("tshark");
    command
        .arg("-r")
        .arg(file)
        .args(["-Y", filter, "-T", "fields"]);
    for field in [
        "frame.time_epoch",
        "frame.len",
        "frame.cap_len",
        "frame.comment",
    ] {
        command.args(["-e", field]);
    }
    let output = command
        .output()
        .expect("tshark is installed (`make tools`)");
    assert!(output.status.success());
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Where nothing is dissected, the first 64 bytes are the header, before and after compaction.
#[test]
fn what_is_not_dissected_keeps_its_first_bytes_as_header() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // An unknown link type; LLDP in Ethernet, of which only the link header is known.
    let lens = [40_u32, 64, 65, 300];
    for link in [147_u32, 1] {
        let mut file = Vec::new();
        for field in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, link] {
            file.extend_from_slice(&u32::to_le_bytes(field));
        }
        let packets = lens.map(|len| {
            let mut packet = vec![0x02_u8; 12];
            packet.extend([0x88, 0xcc]);
            packet.resize(len as usize, 0xab);
            packet
        });
        for packet in &packets {
            let len = u32::try_from(packet.len()).unwrap();
            for field in [1, 0, len, len] {
                file.extend_from_slice(&field.to_le_bytes());
            }
            file.extend_from_slice(packet);
        }
        let (trace, log) = (at(&format!("{link}.pcap")), at(&format!("log{link}")));
        std::fs::write(&trace, file).unwrap();
        let config = at("headers.toml");
        std::fs::write(
            &config,
            "[modes.h]\nbenign = 'header'\nanomalous = 'header'\n",
        )
        .unwrap();
        ok(strata()
            .args(["record", "--mode", "h", "--config"])
            .arg(&config)
            .arg("-r")
            .arg(&trace)
            .arg("-o")
            .arg(&log));
        let kept: Vec<Vec<u8>> = packets
            .iter()
            .map(|p| p[..p.len().min(64)].to_vec())
            .collect();
        for compacted in [false, true] {
            if compacted {
                ok(strata().arg("compact").arg(&log));
            }
            let out = at("out.pcapng");
            ok(strata().arg("export").arg(&log).arg("-w").arg(&out));
            let mut capture = pcap::Capture::from_file(&out).unwrap();
            let mut back = Vec::new();
            while let Ok(packet) = capture.next_packet() {
                back.push(packet.data.to_vec());
            }
            assert_eq!(back, kept, "link type {link}, compacted: {compacted}");
        }
        let bytes: usize = kept.iter().map(Vec::len).sum();
        let text = ok(strata().arg("info").arg(&log));
        assert!(
            text.contains(&format!("header_fallback: 4 packets, {bytes} bytes")),
            "{text}"
        );
        let json = ok(strata().args(["info", "--json"]).arg(&log));
        assert!(json.contains("\"header_fallback\""), "{json}");
    }
}

/// A capture of Ethernet with these packets.
fn ethernet_capture(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for field in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, 1] {
        file.extend_from_slice(&u32::to_le_bytes(field));
    }
    for packet in packets {
        let len = u32::try_from(packet.len()).unwrap();
        for field in [1, 0, len, len] {
            file.extend_from_slice(&field.to_le_bytes());
        }
        file.extend_from_slice(packet);
    }
    file
}

/// TCP from 10.9.0.1:1234 to 10.9.0.2:80 in VXLAN to this port, in Ethernet: 104 bytes of headers.
fn in_vxlan(port: u16) -> Vec<u8> {
    let ip = |source: u32, destination: u32, number: u8, rest: &[u8]| {
        let mut out = [vec![2; 12], vec![8, 0]].concat();
        let repr = strata_wire::ipv4::Repr {
            source,
            destination,
            protocol: number,
            tos: 0,
            ttl: 64,
            identification: 1,
            fragment_offset: 0,
            more_fragments: false,
            payload_len: u16::try_from(rest.len()).unwrap(),
        };
        repr.emit(&mut out);
        [out, rest.to_vec()].concat()
    };
    let tcp = [
        0x04, 0xd2, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x18, 1, 0, 0, 0, 0, 0,
    ];
    let inner = ip(
        0x0a09_0001,
        0x0a09_0002,
        6,
        &[&tcp[..], &[b'x'; 100]].concat(),
    );
    let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &inner].concat();
    let mut udp = vec![0xc0, 0];
    udp.extend(port.to_be_bytes());
    udp.extend(u16::try_from(vxlan.len() + 8).unwrap().to_be_bytes());
    udp.extend([0, 0]);
    ip(0xc000_0201, 0xc000_0202, 17, &[udp, vxlan].concat())
}

/// An option or the configuration gives the UDP ports of tunnels, which the log knows after that: flows
/// are those inside, before and after compaction, without giving them again.
#[test]
fn tunnels_are_looked_into_on_the_ports_that_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(
        at("in.pcap"),
        ethernet_capture(&[in_vxlan(8473), in_vxlan(4789)]),
    )
    .unwrap();
    std::fs::write(at("list.toml"), "[tunnels]\nvxlan = [8473]\n").unwrap();
    let list = at("list.toml").display().to_string();
    let cases: [(&str, &[&str], [usize; 2]); 3] = [
        ("usual", &[], [42, 104]),
        ("added", &["--tunnel-port", "vxlan=8473"], [104, 104]),
        ("listed", &["--config", &list], [104, 42]),
    ];
    for (name, options, lens) in cases {
        let log = at(name);
        ok(strata()
            .args(["record", "--default", "header", "--detail", "none", "-r"])
            .arg(at("in.pcap"))
            .arg("-o")
            .arg(&log)
            .args(options));
        let manifest = std::fs::read_to_string(log.join("manifest.json")).unwrap();
        assert_eq!(manifest.contains("8473"), name != "usual", "{manifest}");
        for compacted in [false, true] {
            if compacted {
                ok(strata().arg("compact").arg(&log));
            }
            let out = at("out.pcapng");
            ok(strata().arg("export").arg(&log).arg("-w").arg(&out));
            let mut capture = pcap::Capture::from_file(&out).unwrap();
            let mut kept = Vec::new();
            while let Ok(packet) = capture.next_packet() {
                kept.push(packet.data.len());
            }
            assert_eq!(kept, lens, "{name}, compacted: {compacted}");
            let flows = at("flows.csv");
            ok(strata().arg("export").arg(&log).arg("-w").arg(&flows));
            let flows = std::fs::read_to_string(&flows).unwrap();
            let (inner, outer) = (flows.contains("10.9.0.1"), flows.contains(",192.0.2.1,"));
            assert_eq!(
                (inner, outer),
                (true, lens.contains(&42)),
                "{name}: {flows}"
            );
        }
    }
    for (option, said) in [
        ("vxlan", "--tunnel-port: 'vxlan': write NAME=PORT"),
        ("gre=1", "--tunnel-port: 'gre' is not a tunnel in UDP"),
    ] {
        let mut command = strata();
        command.args(["record", "--tunnel-port", option, "-r"]);
        let output = run(command.arg(at("in.pcap")).arg("-o").arg(at("none")));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(said), "{text}");
        assert!(!at("none").exists());
    }
}

#[test]
fn what_is_recorded_is_reported_weighed_and_exported() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let text = ok(&mut record(mix_test(), &log));
    assert!(text.contains("seen 67690 = filtered 0"), "{text}");
    let report = info(&log);
    let recording = &report[0];
    let weighed: u64 = std::fs::read_dir(log.join("blocks"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|e| e == "strata" || e == "index")
        })
        .map(|path| path.metadata().unwrap().len())
        .sum();
    assert_eq!(
        recording["stored_bytes"], weighed,
        "info says what the files weigh"
    );
    assert_eq!(recording["captured_bytes"], 19_270_570);
    assert!(weighed < 19_270_570 * 7 / 10, "{weighed} bytes");
    let text = ok(strata().arg("info").arg(&log));
    assert!(
        text.contains(&format!("{} of 19,270,570 bytes", grouped(weighed))),
        "{text}"
    );

    // Header-only packets keep their original length, and every packet says why.
    let out = dir.path().join("out.pcapng");
    ok(strata()
        .arg("export")
        .arg(&log)
        .arg("-w")
        .arg(&out)
        .arg("tcp"));
    let cut = tshark(&out, "frame.comment contains \"granularity=header\"");
    let whole = tshark(&out, "frame.comment contains \"granularity=full\"");
    assert!(cut.len() > 1_000 && whole.len() > 1_000);
    assert_eq!(cut.len() + whole.len(), tshark(&out, "tcp").len());
    assert!(
        cut[0].contains("class=benign") && cut[0].contains("reason=flow-trees:"),
        "{}",
        cut[0]
    );
    let lengths: Vec<&str> = cut[0].split('\t').collect();
    assert!(lengths[1].parse::<u32>().unwrap() >= lengths[2].parse::<u32>().unwrap());
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|g| std::str::from_utf8(g).unwrap())
        .collect();
    groups.join(",")
}

#[test]
fn standard_input_a_filter_in_words_and_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut command = strata();
    command
        .args(["record", "-r", "-", "-o"])
        .arg(&log)
        .args(["--mode", "log-all", "tcp", "port", "443"]);
    command.stdin(Stdio::from(std::fs::File::open(mix_test()).unwrap()));
    ok(&mut command);
    let report = info(&log);
    assert_eq!(report[0]["filter"], "tcp port 443");
    let mut export = strata();
    export
        .arg("export")
        .arg(&log)
        .args(["-F", "pcap", "-w", "-"]);
    let output = run(&mut export);
    assert!(output.status.success());
    let file = dir.path().join("out.pcap");
    std::fs::write(&file, &output.stdout).unwrap();
    let by_tcpdump = Command::new("tcpdump")
        .arg("-r")
        .arg(mix_test())
        .args(["-w", "-", "tcp", "port", "443"])
        .output()
        .expect("tcpdump is installed (`make tools`)");
    let reference = dir.path().join("reference.pcap");
    std::fs::write(&reference, &by_tcpdump.stdout).unwrap();
    let lines = |path| tshark(path, "frame");
    assert!(lines(&reference).len() > 1_000);
    // tcpdump writes microseconds: compare no further.
    for (ours, theirs) in lines(&file).iter().zip(&lines(&reference)) {
        let (ours, theirs): (Vec<_>, Vec<_>) =
            (ours.split('\t').collect(), theirs.split('\t').collect());
        assert_eq!(ours[0][..17], theirs[0][..17]);
        assert_eq!(ours[1..3], theirs[1..3]);
    }
    assert_eq!(lines(&file).len(), lines(&reference).len());
}

#[test]
fn a_second_recording_adds_to_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let sqli = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    for _ in 0..2 {
        ok(record(&sqli, &log).args(["--mode", "log-all"]));
    }
    assert_eq!(info(&log).as_array().unwrap().len(), 2);
    let out = dir.path().join("out.pcapng");
    ok(strata().arg("export").arg(&log).arg("-w").arg(&out));
    assert_eq!(tshark(&out, "frame").len(), 2 * 94);
}

#[test]
fn own_modes_and_several_modes_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("strata.toml");
    std::fs::write(
        &config,
        "[modes.tiny]\nbenign = \"drop\"\nanomalous = \"partial 16 1/2 flows\"\n\
         [modes.some]\nbenign = \"header 1/4\"\nanomalous = \"header\"\n",
    )
    .unwrap();
    let record = |modes: &[&str], name: &str| {
        let log = dir.path().join(name);
        let mut command = record(mix_test(), &log);
        command
            .arg("--config")
            .arg(&config)
            .args(["--hash-seed", "7"]);
        for mode in modes {
            command.args(["--mode", mode]);
        }
        ok(&mut command);
        let accounting = info(&log)[0]["accounting"].clone();
        let count = |name: &str| accounting[name][0].as_u64().unwrap();
        (count("discarded"), count("sampled_out"), count("logged"))
    };
    let (discarded, sampled_out, logged) = record(&["tiny"], "tiny");
    assert!(discarded > 0 && sampled_out > 0 && logged > 0);
    // Sampling repeats, whatever the fingerprint key.
    assert_eq!(record(&["tiny"], "again"), (discarded, sampled_out, logged));
    let (none, some_sampled, joined) = record(&["tiny", "some"], "joined");
    assert_eq!(none, 0, "what one mode samples is not discarded");
    assert!(some_sampled > 0 && joined > logged);
    assert_eq!(record(&["log-all", "log-minimum"], "all"), (0, 0, 67_690));
}

/// Writes a file into a pipe in pieces of all sizes, with pauses, as a busy machine might.
fn trickle(file: &[u8], mut to: impl Write) {
    let (mut rest, mut turn) = (file, 0_u64);
    while !rest.is_empty() {
        turn += 1;
        let random = mix64(turn);
        let sizes = [1, 7, 100, 4_096, 70_000, 300_000];
        let size = sizes[usize::try_from(random % 6).unwrap()].min(rest.len());
        let (piece, after) = rest.split_at(size);
        to.write_all(piece).unwrap();
        rest = after;
        if random.is_multiple_of(50) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Longest load on the CPUs.
const LOAD_MAX: Duration = Duration::from_secs(120);

/// What is kept of an input depends on it, the model and the key of flows alone: not on how fast it is
/// read, on who else uses the CPUs, or on how often it is recorded. A recording without a given key
/// reports its key, which gives the same again.
#[test]
fn an_input_gives_the_same_log_whatever_the_load() {
    let dir = tempfile::tempdir().unwrap();
    let blocks = |log: &str| {
        let files = std::fs::read_dir(dir.path().join(log).join("blocks")).unwrap();
        let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|of| of == "strata"));
        paths.sort();
        let read = paths.iter().map(|path| std::fs::read(path).unwrap());
        read.collect::<Vec<_>>()
    };
    let capture = std::fs::File::open(mix_test()).unwrap();
    let first = run(record("-", dir.path().join("first")).stdin(capture));
    assert!(first.status.success());
    let said = String::from_utf8(first.stderr).unwrap();
    let seed = said
        .split("--hash-seed ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    let seed = seed.unwrap_or_else(|| panic!("{said}"));
    let trace = std::fs::read(mix_test()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // If the recording cannot be started, the test has to end too.
                let began = Instant::now();
                while !stop.load(Ordering::Relaxed) && began.elapsed() < LOAD_MAX {
                    std::hint::spin_loop();
                }
            });
        }
        let mut child = record("-", dir.path().join("slow"))
            .args(["--hash-seed", seed])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        trickle(&trace, child.stdin.take().unwrap());
        let ended = child.wait().unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(ended.success());
    });
    assert!(blocks("first") == blocks("slow"), "--hash-seed {seed}");
    // A file that has a name is read twice, and may be kept otherwise, but always in the same way.
    for log in ["named", "again"] {
        let mut child = record(mix_test(), dir.path().join(log));
        assert!(run(child.args(["--hash-seed", seed])).status.success());
    }
    assert!(blocks("named") == blocks("again"), "--hash-seed {seed}");
}

#[test]
fn the_sampling_seed_chooses_the_sample_and_the_hash_seed_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let sample = |name: &str, hash_seed: &str, sampling_seed: &str| {
        let log = dir.path().join(name);
        let mut command = record(mix_test(), &log);
        command.args([
            "--mode",
            "log-sampled",
            "--hash-seed",
            hash_seed,
            "--detail",
            "none",
        ]);
        ok(command.args(["--sampling-seed", sampling_seed, "udp"]));
        let export = run(strata()
            .arg("export")
            .arg(&log)
            .args(["-F", "pcap", "-w", "-"]));
        export.stdout
    };
    let first = sample("a", "1", "0");
    assert!(first == sample("b", "2", "0"), "the sample repeats");
    assert!(
        first != sample("c", "1", "5"),
        "another seed draws another sample"
    );
}

#[test]
fn failures_are_reported_without_a_reader_of_the_summary() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(mix_test()).unwrap();
    bytes[500_000..500_400].fill(0xff);
    let bad = dir.path().join("bad.pcap");
    std::fs::write(&bad, &bytes).unwrap();
    let log = dir.path().join("log");
    let mut command = record(&bad, &log);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("damaged here"));
    assert!(
        info(&log)[0]["warnings"]
            .to_string()
            .contains("ended early")
    );
}

#[test]
fn mistakes_are_answered_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let record = |extra: &[&str]| {
        let mut command = strata();
        command.arg("record").arg("-o").arg(&log).args(extra);
        command
    };
    let sqli = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    let sqli = sqli.to_str().unwrap();
    let text = fails(&mut record(&["-r", "/nonexistent.pcap"]));
    assert!(text.contains("/nonexistent.pcap"), "{text}");
    assert!(!log.exists(), "a mistyped name leaves no log behind");
    let text = fails(&mut record(&["-r", sqli, "tcp", "prot", "443"]));
    assert!(
        text.contains("tcp prot 443") && text.contains('^'),
        "{text}"
    );
    let text = fails(&mut record(&["-r", sqli, "--mode", "everything"]));
    assert!(text.contains("log-all"), "{text}");
    let bad = dir.path().join("bad.json");
    std::fs::write(&bad, "{\"format\": 3}").unwrap();
    let text = fails(&mut record(&["-r", sqli, "-m", bad.to_str().unwrap()]));
    assert!(
        text.contains("bad.json") && text.contains("line 1"),
        "{text}"
    );
    let text = fails(&mut record(&["-r", bad.to_str().unwrap()]));
    assert!(
        text.contains("bad.json") && text.contains("pcapng"),
        "{text}"
    );
    std::fs::write(&bad, "[modes.a]\nbenign = \"all\"\nanomalous = \"full\"\n").unwrap();
    let text = fails(&mut record(&[
        "-r",
        sqli,
        "--mode",
        "a",
        "--config",
        bad.to_str().unwrap(),
    ]));
    assert!(text.contains("'all' is not a granularity"), "{text}");
    let text = fails(
        strata()
            .arg("record")
            .args(["-r", sqli, "-o"])
            .arg(dir.path()),
    );
    assert!(text.contains("neither a Strata log"), "{text}");
    let text = fails(strata().arg("info").arg(dir.path()));
    assert!(text.contains("no log here"), "{text}");
    ok(&mut record(&["-r", sqli]));
    let text = fails(
        strata()
            .arg("export")
            .arg(&log)
            .args(["-w", "-", "--from", "noon"]),
    );
    assert!(text.contains("'noon' is not a time"), "{text}");
    let text = fails(strata().arg("info").arg(dir.path().join("none")));
    assert!(text.contains("manifest.json"), "{text}");
}

#[test]
fn a_damaged_block_is_named_and_the_rest_is_exported() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut command = record(mix_test(), &log);
    ok(command.args(["--mode", "log-all", "--block-size", "256KiB"]));
    let file = log.join("blocks/r0001-w00-000000.strata");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(&file, &bytes).unwrap();
    let out = dir.path().join("out.pcapng");
    let text = fails(strata().arg("export").arg(&log).arg("-w").arg(&out));
    assert!(
        text.contains("r0001-w00-000000.strata: damaged at offset"),
        "{text}"
    );
    let left = tshark(&out, "frame").len();
    assert!((60_000..67_690).contains(&left), "{left} packets");
}

#[test]
fn a_truncated_capture_is_recorded_up_to_its_end_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let whole = std::fs::read(mix_test()).unwrap();
    let cut = dir.path().join("cut.pcap");
    std::fs::write(&cut, &whole[..1_000_000]).unwrap();
    let log = dir.path().join("log");
    let output = run(&mut record(&cut, &log));
    assert!(output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("warning") && stderr.contains("cut.pcap"),
        "{stderr}"
    );
    assert!(
        info(&log)[0]["warnings"][0]
            .as_str()
            .unwrap()
            .contains("cut.pcap")
    );
}

/// One interface, whose times are microseconds, and a packet of 60 bytes at each of these.
fn pcapng_at(times_us: &[u64]) -> Vec<u8> {
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let mut bytes = words(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, !0, !0, 28, 1, 20, 1, 0, 20]);
    for time in times_us {
        let [low, high] = [time & u64::from(u32::MAX), time >> 32];
        let [low, high] = [low, high].map(|half| u32::try_from(half).unwrap());
        bytes.extend(words(&[6, 92, 0, high, low, 60, 60]));
        bytes.extend([0; 60]);
        bytes.extend(words(&[92]));
    }
    bytes
}

/// Out of a log, compacted or not, times that it cannot hold come as the file has them.
#[test]
fn times_after_the_year_2554_come_out_as_they_went_in() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    const FAR: u64 = 18_446_744_073_709_500_000;
    let times = [1_700_000_000_000_000, FAR, FAR + 3, FAR - 2, FAR + 40];
    std::fs::write(at("far.pcapng"), pcapng_at(&times)).unwrap();
    let mut command = record(at("far.pcapng"), at("log"));
    let output = run(command.args(["--mode", "log-all"]));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && said.contains("4 times in this file"),
        "{said}"
    );
    let times = |file: &Path| {
        let of = |line: String| {
            let (time, _) = line.split_once('\t').unwrap();
            // Of six digits or nine.
            time.trim_end_matches('0').to_owned()
        };
        let mut times: Vec<String> = tshark(file, "frame").into_iter().map(of).collect();
        times.sort_unstable();
        times
    };
    for compacted in [false, true] {
        if compacted {
            ok(strata().arg("compact").arg(at("log")));
        }
        ok(strata()
            .arg("export")
            .arg(at("log"))
            .arg("-w")
            .arg(at("out.pcapng")));
        assert_eq!(
            times(&at("out.pcapng")),
            times(&at("far.pcapng")),
            "{compacted}"
        );
        ok(strata().arg("verify").arg(at("log")));
        // The times of the log are others: all that shows them says so.
        let read = run(strata().arg("read").arg(at("log")));
        let said = String::from_utf8(read.stderr).unwrap();
        assert!(
            said.contains("after the year 2554: they are selected"),
            "{said}"
        );
        let info = run(strata().arg("info").arg(at("log")));
        let info = String::from_utf8(info.stdout).unwrap();
        let mut lines = info.lines();
        assert!(
            lines.any(|line| line.starts_with("warning: ") && line.contains("after the year 2554")),
            "{info}"
        );
    }
    let told = fails(
        strata()
            .arg("export")
            .arg(at("log"))
            .arg("-w")
            .arg(at("out.pcap")),
    );
    assert!(told.contains("write pcapng"), "{told}");
    let told = fails(
        strata()
            .arg("read")
            .arg(at("log"))
            .args(["--from", "1938-01-01 00:00"]),
    );
    assert!(
        told.contains("'1938-01-01 00:00' is before 1970") && !told.contains("integral"),
        "{told}"
    );
}

/// The packets of the others, and of the damaged ones up to their damage, are recorded, and all that is
/// damaged is named.
#[test]
fn of_several_captures_damaged_ones_end_alone() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let whole = pcapng_at(&[1, 2, 3, 4, 5]);
    let damaged = [&whole[..], &[0xff; 40]].concat();
    for (name, bytes) in [("one", &damaged), ("two", &whole), ("three", &damaged)] {
        std::fs::write(at(name), bytes).unwrap();
    }
    let mut command = record(at("one"), at("log"));
    let told = fails(
        command
            .arg("-r")
            .arg(at("two"))
            .arg("-r")
            .arg(at("three"))
            .args(["--mode", "log-all"]),
    );
    for name in ["one, byte 508", "three, byte 508"] {
        assert!(told.contains(name), "{told}");
    }
    assert!(!told.contains("two, byte"), "{told}");
    ok(strata()
        .arg("export")
        .arg(at("log"))
        .arg("-w")
        .arg(at("out.pcapng")));
    assert_eq!(tshark(&at("out.pcapng"), "frame").len(), 15);
}

/// Ctrl-C: what was read is recorded, the log closed and the summary printed.
#[test]
fn interrupted_the_log_is_closed_properly() {
    let dir = tempfile::tempdir().unwrap();
    let (log, socket) = (dir.path().join("log"), dir.path().join("socket"));
    let whole = std::fs::read(mix_test()).unwrap();
    let mut command = strata();
    command.args(["record", "-r", "-", "-o"]).arg(&log);
    command.arg("--socket").arg(&socket);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.stderr(Stdio::null()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(&whole[..3_000_000]).unwrap();
    wait_for(&socket, "most of it is read", |status| {
        let ends = status["packets"].as_array().into_iter().flatten();
        ends.filter_map(|end| end["packets"].as_u64()).sum::<u64>() >= 5_000
    });
    signal(&child, "INT");
    // The pipe stays open but nothing more arrives.
    let output = child.wait_with_output().unwrap();
    drop(pipe);
    assert!(output.status.success(), "{:?}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("in_flight 0"), "{text}");
    let report = info(&log);
    assert_eq!(report[0]["state"], "closed");
    assert!(report[0]["warnings"].to_string().contains("interrupted"));
    let seen = report[0]["accounting"]["seen"][0].as_u64().unwrap();
    assert!((5_000..20_000).contains(&seen), "{seen} packets");
}

/// Ctrl-C while a pipe waits: all that has arrived is recorded, whether the pipe has a name or not, and whether what
/// comes by it is compressed or not.
#[test]
fn what_has_arrived_by_a_pipe_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let whole = std::fs::read(mix_test()).unwrap();
    // The first 100 packets, by the lengths in their headers.
    let end = (0..100).fold(24_usize, |at, _| {
        let len = u32::from_le_bytes(whole[at + 8..at + 12].try_into().unwrap());
        at + 16 + len as usize
    });
    let plain = &whole[..end];
    let file = dir.path().join("first.pcap");
    std::fs::write(&file, plain).unwrap();
    let packed = Command::new("gzip").arg("-c").arg(&file).output().unwrap();
    let packed = packed.stdout;
    // A stream that is not over: as many packets as a file that ends there has.
    let cut = &packed[..packed.len() / 2];
    let file = dir.path().join("cut.pcap.gz");
    std::fs::write(&file, cut).unwrap();
    let log = dir.path().join("cut");
    ok(&mut record(&file, &log));
    let of_cut = info(&log)[0]["accounting"]["seen"][0].as_u64().unwrap();
    assert!((1..100).contains(&of_cut), "{of_cut}");
    for (index, (is_named, sent, seen)) in [
        (true, plain, 100),
        (true, packed.as_slice(), 100),
        (false, packed.as_slice(), 100),
        (true, cut, of_cut),
        (false, cut, of_cut),
    ]
    .into_iter()
    .enumerate()
    {
        let at = |name: &str| dir.path().join(format!("{index}.{name}"));
        let (log, socket, fifo) = (at("log"), at("socket"), at("fifo"));
        let input = match is_named {
            true => fifo.to_str().unwrap(),
            false => "-",
        };
        let mut command = record(input, &log);
        command.args(["--mode", "log-all", "--socket"]).arg(&socket);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut pipe: Box<dyn Write>;
        let mut child = if is_named {
            ok(Command::new("mkfifo").arg(&fifo));
            let child = command.stderr(Stdio::null()).spawn().unwrap();
            // For both, so that opening it waits for no reader.
            let opened = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(&fifo);
            pipe = Box::new(opened.unwrap());
            child
        } else {
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            pipe = Box::new(child.stdin.take().unwrap());
            child
        };
        pipe.write_all(sent).unwrap();
        // What a whole stream has is there before more comes.
        let least = if seen == 100 { 100 } else { 1 };
        wait_for(&socket, "what has arrived is read", |status| {
            let ends = status["packets"].as_array().into_iter().flatten();
            ends.filter_map(|end| end["packets"].as_u64()).sum::<u64>() >= least
        });
        signal(&child, "INT");
        // The pipe stays open.
        let ended = child.wait().unwrap();
        drop(pipe);
        assert!(ended.success(), "{index}: {ended}");
        let report = info(&log);
        assert_eq!(report[0]["accounting"]["seen"][0], seen, "{index}");
        assert_eq!(report[0]["in_log"]["packets"], seen, "{index}");
        let warnings = report[0]["warnings"].to_string();
        assert!(warnings.contains("may have more packets"), "{warnings}");
    }
}

/// An input that has sent nothing yet does not hold up Ctrl-C.
#[test]
fn interrupted_before_the_first_packet_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    for input in ["-", fifo.to_str().unwrap()] {
        let (log, socket) = (dir.path().join("log"), dir.path().join("socket"));
        let mut command = strata();
        command.args(["record", "-r", input, "-o"]).arg(&log);
        command.arg("--socket").arg(&socket);
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        let pipe = child.stdin.take();
        wait_for(&socket, "it listens", |_| true);
        signal(&child, "INT");
        let output = child.wait_with_output().unwrap();
        drop(pipe);
        assert_eq!(output.status.code(), Some(1), "{input}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            text.contains("interrupted before the first packet"),
            "{text}"
        );
        assert!(!log.exists(), "{input}");
    }
}

/// kill -9 while packets arrive through a pipe: what was written is readable, nothing else is, and
/// the loss is bounded by the checkpoint.
#[test]
fn killed_at_any_moment_the_log_reads_back() {
    let whole = std::fs::read(mix_test()).unwrap();
    // Where each packet ends, according to the pcap record headers.
    let mut ends = vec![24_usize];
    while let Some(header) = whole
        .get(ends[ends.len() - 1]..)
        .and_then(|rest| rest.get(..16))
    {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap());
        ends.push(ends[ends.len() - 1] + 16 + len as usize);
    }
    for round in 0..12_u64 {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut command = strata();
        command.args([
            "record",
            "-r",
            "-",
            "--mode",
            "log-all",
            "--block-size",
            "64KiB",
            "-o",
        ]);
        let child = command
            .arg(&log)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = child.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let fed = usize::try_from((round + 1) * 1_300_007).unwrap();
        pipe.write_all(&whole[..fed.min(whole.len())]).unwrap();
        // Two checkpoints are written while nothing arrives.
        std::thread::sleep(Duration::from_millis(if round % 3 == 0 { 0 } else { 350 }));
        child.kill().unwrap();
        child.wait().unwrap();
        drop(pipe);
        if !log.join("manifest.json").exists() {
            continue;
        }
        let report = info(&log);
        assert_eq!(report[0]["state"], "running");
        let out = dir.path().join("out.pcap");
        ok(strata()
            .arg("export")
            .arg(&log)
            .args(["-F", "pcap", "-w"])
            .arg(&out));
        let back = std::fs::read(&out).unwrap();
        // A nanosecond pcap like the input: after its header, an exact prefix of it.
        assert_eq!(back[24..], whole[24..back.len()], "round {round}");
        let kept = ends
            .iter()
            .position(|&end| end == back.len())
            .expect("whole packets only");
        let arrived = ends.partition_point(|&end| end <= fed) - 1;
        let lost = usize::try_from(report[0]["lost_packets"].as_u64().unwrap()).unwrap();
        assert!(
            kept + lost <= arrived,
            "round {round}: {kept} + {lost} of {arrived}"
        );
        if round % 3 != 0 {
            // The reader's window holds what is not yet a batch.
            assert!(
                kept + lost + 2_000 > arrived,
                "round {round}: {kept} + {lost} of {arrived}"
            );
            assert!(lost < 2_000, "round {round}: {lost} lost");
        }
    }
}

/// System calls are made per buffer and per block, never per packet.
#[test]
fn system_calls_do_not_grow_with_packets() {
    let folder = tempfile::tempdir().unwrap();
    let counts = folder.path().join("counts");
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-o"]).arg(&counts);
    command.arg(env!("CARGO_BIN_EXE_strata"));
    command.arg("record").arg("-r").arg(mix_test());
    command.arg("-o").arg(folder.path().join("log"));
    let text = ok(&mut command);
    let counts = std::fs::read_to_string(counts).unwrap();
    // % time, seconds, usecs/call, calls, ... total
    let total = counts.lines().find(|line| line.ends_with("total")).unwrap();
    let calls: u64 = total.split_whitespace().nth(3).unwrap().parse().unwrap();
    let seen = &info(&folder.path().join("log"))[0]["accounting"]["seen"];
    let packets = seen[0].as_u64().unwrap();
    assert!(packets > 20_000, "{text}");
    assert!(
        calls < packets / 10,
        "{calls} system calls, {packets} packets"
    );
}

/// A model that was chosen has its own threshold; the built-in one has a budget.
#[test]
fn without_a_model_a_tenth_of_the_payload_is_kept_unless_asked_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let (none, some) = (dir.path().join("none.toml"), dir.path().join("some.toml"));
    std::fs::write(&none, "detail = 'none'").unwrap();
    std::fs::write(&some, "detail = '5%'").unwrap();
    let model = workspace_root().join("models/default.json");
    let [none, some, model] = [&none, &some, &model].map(|path| path.to_str().unwrap());
    let cases: [(&[&str], Option<f64>); 8] = [
        (&[], Some(0.1)),
        (&["--mode", "log-partial"], Some(0.1)),
        (&["--detail", "none"], None),
        (&["--config", none], None),
        (&["-m", model], None),
        (&["-m", model, "--config", some], Some(0.05)),
        (&["--mode", "log-all"], None),
        (&["--mode", "default", "--mode", "log-all"], None),
    ];
    for (number, (arguments, share)) in cases.into_iter().enumerate() {
        let log = dir.path().join(number.to_string());
        let mut command = record(mix_test(), &log);
        let output = run(command.args(arguments));
        let said = String::from_utf8(output.stdout).unwrap();
        let detail = info(&log)[0]["detail"].clone();
        let Some(share) = share else {
            assert!(
                detail.is_null() && !said.contains("detail:"),
                "{arguments:?}"
            );
            continue;
        };
        assert!(
            said.contains("\ndetail: ") && said.contains("over budget"),
            "{said}"
        );
        let bytes = |name: &str| detail[name].as_f64().unwrap();
        let (offered, given) = (bytes("offered_bytes"), bytes("given_bytes"));
        assert!(
            given <= offered * share * 1.1 + 16_384.0,
            "{arguments:?}: {detail}"
        );
        // In log-partial, a packet with detail has 128 bytes of it.
        assert!(given > 0.0, "{arguments:?}: {detail}");
    }
}
