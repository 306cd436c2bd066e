//! The log at rest as a user sees it, and as other programs read it.
#![allow(clippy::print_stderr, reason = "says why it did not run")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use strata_store::{Disk as _, RealDisk};
use strata_testkit::{data_dir, workspace_root};

use crate::common::program::{failed, ok, record, strata};

/// A log of the test mix, compacted.
fn compacted(dir: &Path) -> PathBuf {
    let log = dir.join("log");
    let trace = data_dir().join("labelled/mix-test/trace.pcap");
    ok(&mut record(trace, &log));
    // Without a pause it would do nothing but look.
    let mut watch = strata();
    watch.arg("compact").arg(&log).args(["--every", "0s"]);
    assert_eq!(watch.status().unwrap().code(), Some(2));
    let text = ok(strata().arg("compact").arg(&log));
    assert!(
        text.contains("67,690 packets of 1 block file compacted"),
        "{text}"
    );
    log
}

/// Every file below a directory with this suffix.
fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_str().unwrap().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn a_compacted_log_is_exported_described_verified_and_pruned() {
    let dir = tempfile::tempdir().unwrap();
    let log = compacted(dir.path());
    assert!(files(&log.join("blocks"), ".strata").is_empty());
    let info = ok(strata().arg("info").arg(&log));
    assert!(info.contains("67,690 packets are compacted"), "{info}");
    let verified = ok(strata().arg("verify").arg(&log));
    assert!(verified.contains("67,690 packets"), "{verified}");
    let verified = ok(strata().args(["verify", "--json"]).arg(&log));
    let verified: Value = serde_json::from_str(&verified).unwrap();
    assert_eq!(
        (&verified["packets"], &verified["damage"]),
        (&json!(67_690), &json!([]))
    );
    let out = dir.path().join("out.pcapng");
    let export = |filter: &str| {
        ok(strata()
            .arg("export")
            .arg(&log)
            .arg("-w")
            .arg(&out)
            .arg(filter));
        let read = Command::new("tcpdump")
            .arg("-r")
            .arg(&out)
            .arg("-nn")
            .output()
            .unwrap();
        String::from_utf8_lossy(&read.stdout).lines().count()
    };
    let trace = data_dir().join("labelled/mix-test/trace.pcap");
    for filter in ["tcp port 443", "udp port 53"] {
        let read = Command::new("tcpdump")
            .arg("-r")
            .arg(&trace)
            .arg("-nn")
            .arg(filter)
            .output();
        let expected = String::from_utf8_lossy(&read.unwrap().stdout)
            .lines()
            .count();
        assert!(expected > 100);
        assert_eq!(export(filter), expected, "{filter}");
    }
    let would = ok(strata()
        .args(["prune", "--keep", "1d", "--dry-run"])
        .arg(&log));
    assert!(would.contains("would delete 2 parts"), "{would}");
    let would = ok(strata()
        .args(["prune", "--keep", "1d", "--dry-run", "--json"])
        .arg(&log));
    let would: Value = serde_json::from_str(&would).unwrap();
    let found = [&would["parts"], &would["packets"], &would["needs_yes"]];
    assert_eq!(found, [&json!(2), &json!(67_690), &json!(true)]);
    let done = ok(strata()
        .args(["prune", "--keep", "1d", "--keep-class", "anomalous:36500d"])
        .arg("--yes")
        .arg(&log));
    assert!(done.contains("deleted 1 part "), "{done}");
    assert_eq!(files(&log.join("packets"), ".parquet").len(), 1);
    ok(strata().arg("verify").arg(&log));
    let refused = failed(strata().args(["prune", "--keep", "1d"]).arg(&log));
    assert!(refused.contains("--yes"), "it may be the clock: {refused}");
    let done = ok(strata().args(["prune", "--keep", "1d", "--yes"]).arg(&log));
    assert!(done.contains("deleted 1 part "), "the newest too: {done}");
    assert_eq!(files(&log, ".parquet"), [] as [PathBuf; 0]);
    let info = ok(strata().arg("info").arg(&log));
    let closes = "logged 67,690 packets = 0 in the log + 67,690 deleted\n";
    assert!(info.contains(closes), "{info}");
    let json = ok(strata().args(["info", "--json"]).arg(&log));
    let json: Value = serde_json::from_str(&json).unwrap();
    let deleted = json[0]["deleted"].as_array().unwrap().iter();
    let deleted = deleted.map(|row| {
        assert_eq!((&row["for"], &row["by"]), (&json!("age"), &json!("prune")));
        row["packets"].as_u64().unwrap()
    });
    assert_eq!(deleted.sum::<u64>(), 67_690);
    assert_eq!(json[0]["unaccounted_packets"], 0);
    let unclear = strata().arg("prune").arg(&log).output().unwrap();
    assert_eq!(unclear.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unclear.stderr).contains("--max-size"));
    assert!(failed(strata().args(["prune", "--keep", "30"]).arg(&log)).contains("'30'"));
}

#[test]
fn what_is_too_old_is_deleted_from_block_files_too_and_a_misspelt_class_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let trace = data_dir().join("labelled/mix-test/trace.pcap");
    ok(&mut record(trace, &log));
    let prune = |args: &[&str]| {
        let output = strata().arg("prune").args(args).arg(&log).output().unwrap();
        assert!(output.status.success());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    };
    let (done, warning) = prune(&["--keep-class", "benighn:1d"]);
    assert!(done.contains("0 block files"), "{done}");
    assert!(
        warning.contains("'benighn'") && warning.contains("benign"),
        "{warning}"
    );
    let (done, warning) = prune(&["--keep", "1d", "--dry-run"]);
    assert!(
        done.contains("would delete 0 parts and 1 block file,"),
        "{done}"
    );
    assert!(warning.contains("--yes"), "{warning}");
    assert!(!files(&log.join("blocks"), ".strata").is_empty());
    let (done, _) = prune(&["--keep", "1d", "--yes"]);
    assert!(done.contains("1 block file, 67,690 packets"), "{done}");
    assert!(files(&log.join("blocks"), ".strata").is_empty());
    assert!(files(&log.join("blocks"), ".index").is_empty());
    ok(strata().arg("verify").arg(&log));
    assert!(ok(strata().arg("info").arg(&log)).contains("recording 1, closed"));
}

/// A `strata compact --every`, of which what it says is read.
struct Watch {
    child: Child,
    said: BufReader<ChildStderr>,
    text: String,
}

impl Watch {
    fn start(log: &Path) -> Self {
        let mut command = strata();
        command.arg("compact").arg(log).args(["--every", "1s"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        Self {
            child,
            said,
            text: String::new(),
        }
    }

    /// Waits until it says this.
    fn says(&mut self, what: &str) {
        loop {
            let mut line = String::new();
            let read = self.said.read_line(&mut line).unwrap();
            assert!(read > 0, "it has ended without '{what}': {}", self.text);
            self.text += &line;
            if line.contains(what) {
                return;
            }
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, signal).unwrap();
    }

    /// Interrupts it; returns all of its output.
    fn end(mut self) -> String {
        self.signal(rustix::process::Signal::INT);
        self.said.read_to_string(&mut self.text).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{}", self.text);
        self.text
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// It waits for the log, and for other processes that compact or prune; it reports each once.
#[test]
fn a_watch_goes_on_whatever_is_in_its_way() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut watch = Watch::start(&log);
    watch.says("waiting for the log");
    let trace = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    ok(&mut record(&trace, &log));
    let is_compacted = || files(&log.join("blocks"), ".strata").is_empty();
    until("it is compacted", is_compacted);
    // As another compaction or pruning holds it.
    let disk = RealDisk::at(&log);
    let held = loop {
        // It is free between two turns.
        if let Some(held) = disk.lock_for_compacting().unwrap() {
            break held;
        }
    };
    ok(&mut record(&trace, &log));
    watch.says("another process is compacting or pruning this log");
    assert!(!is_compacted());
    drop(held);
    watch.says("compaction works again");
    until("it is compacted again", is_compacted);
    // What cannot be read now, as a disk with an error.
    let manifest = log.join("manifest.json");
    let away = dir.path().join("away");
    std::fs::rename(&manifest, &away).unwrap();
    watch.says("not compacted");
    std::fs::rename(&away, &manifest).unwrap();
    watch.says("compaction works again");
    let text = watch.end();
    assert_eq!(text.matches("waiting for the log").count(), 1, "{text}");
    assert_eq!(text.matches("another process is").count(), 1, "{text}");
}

/// There is nothing to wait for: no recording makes the manifest of these files again.
#[test]
fn a_watch_ends_if_the_manifest_of_the_log_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let trace = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    ok(&mut record(&trace, &log));
    std::fs::remove_file(log.join("manifest.json")).unwrap();
    let mut watch = strata();
    watch.arg("compact").arg(&log).args(["--every", "1s"]);
    let output = watch.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("manifest.json of this log is missing"),
        "{said}"
    );
}

/// Ctrl-C ends compaction at once, with status 130, and the log is as before.
#[test]
fn compaction_that_is_interrupted_ends_at_once_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let trace = data_dir().join("labelled/mix-test/trace.pcap");
    ok(record(trace, &log).args(["--mode", "log-all"]));
    let compact = || {
        let mut command = strata();
        command.arg("compact").arg(&log);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut child = compact();
    let staging = log.join("staging");
    until("it writes parts", || {
        staging.exists() && !files(&staging, ".packets").is_empty()
    });
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    // Its only block file was not compacted to the end.
    assert_eq!(files(&staging, ""), [] as [PathBuf; 0]);
    assert_eq!(files(&log.join("blocks"), ".strata").len(), 1);
    let verified = ok(strata().arg("verify").arg(&log));
    assert!(verified.contains("67,690 packets"), "{verified}");
    assert!(compact().wait().unwrap().success());
    ok(strata().arg("verify").arg(&log));
}

#[test]
fn a_flipped_byte_in_an_index_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let trace = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    ok(&mut record(trace, &log));
    let index = files(&log.join("blocks"), ".index").remove(0);
    let mut bytes = std::fs::read(&index).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 4;
    std::fs::write(&index, &bytes).unwrap();
    let text = failed(strata().arg("verify").arg(&log));
    assert!(
        text.contains(".index") && text.contains("nothing is lost"),
        "{text}"
    );
}

#[test]
fn a_flipped_byte_in_a_parquet_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let log = compacted(dir.path());
    let file = files(&log.join("packets"), ".parquet").remove(0);
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 4;
    std::fs::write(&file, &bytes).unwrap();
    let text = failed(strata().arg("verify").arg(&log));
    let piece = at / 65_536 * 65_536;
    assert!(
        text.contains(file.to_str().unwrap()) && text.contains(&format!("offset {piece}")),
        "{text}"
    );
}

#[test]
fn tshark_reads_the_payload_as_it_is() {
    // Only the table tells how many packets were kept beyond their headers.
    let Some(python) = python() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = compacted(dir.path());
    let payload = files(&log.join("payload"), ".pcapng.gz");
    assert!(!payload.is_empty());
    let mut packets = 0;
    for file in &payload {
        let text = ok(Command::new("tshark").arg("-r").arg(file).args([
            "-T",
            "fields",
            "-e",
            "frame.len",
        ]));
        packets += text.lines().count();
    }
    let kept = packets_with_payload(&python, &log);
    assert!(kept > 100, "{kept}");
    assert_eq!(
        packets, kept,
        "every packet that was kept beyond its headers"
    );
}

#[test]
fn a_payload_file_that_is_lost_takes_no_packets_that_were_kept_as_headers() {
    let dir = tempfile::tempdir().unwrap();
    let log = compacted(dir.path());
    let out = dir.path().join("out.pcapng");
    let lengths = || {
        let shown = ["-T", "fields", "-e", "frame.len", "-e", "frame.cap_len"];
        let mut lengths: Vec<(u32, u32)> = Vec::new();
        for line in ok(Command::new("tshark").arg("-r").arg(&out).args(shown)).lines() {
            let (wire, kept) = line.split_once('\t').unwrap();
            lengths.push((wire.parse().unwrap(), kept.parse().unwrap()));
        }
        lengths
    };
    let export = || {
        let mut export = strata();
        export.arg("export").arg(&log).arg("-w").arg(&out);
        export
    };
    ok(&mut export());
    let whole = lengths();
    let payload = &files(&log.join("payload"), ".pcapng.gz")[0];
    let mut bytes = std::fs::read(payload).unwrap();
    for is_gone in [false, true] {
        std::fs::remove_file(payload).unwrap();
        if !is_gone {
            let middle = bytes.len() / 2;
            bytes[middle..middle + 64].fill(0xa5);
            std::fs::write(payload, &bytes).unwrap();
        }
        let _ = std::fs::remove_file(&out);
        let said = failed(&mut export());
        let left = lengths();
        assert!(!left.is_empty() && left.len() < whole.len(), "{said}");
        let mut all = whole.iter();
        assert!(left.iter().all(|one| all.any(|other| other == one)));
        if is_gone {
            let counts = said.lines().filter_map(|line| {
                let (before, _) = line.split_once(" packets cannot be read")?;
                before.rsplit(' ').next()?.parse::<usize>().ok()
            });
            assert_eq!(counts.sum::<usize>(), whole.len() - left.len(), "{said}");
        }
    }
}

/// Packets kept beyond their headers, according to the table.
fn packets_with_payload(python: &Path, log: &Path) -> usize {
    let script = "import strata.log, sys; print(strata.log.connect(sys.argv[1]).sql(\
                  'SELECT count(payload_offset) FROM packets').fetchall()[0][0])";
    let text = ok(python_command(python).args(["-c", script]).arg(log));
    text.trim().parse().unwrap()
}

/// The Python with DuckDB and pyarrow that `make python` installs.
fn python() -> Option<PathBuf> {
    let python = workspace_root().join("python/.venv/bin/python");
    if python.exists() {
        return Some(python);
    }
    let why = "python/.venv is missing: run `make python`";
    assert!(std::env::var_os("CI").is_none(), "{why}");
    eprintln!("not run: {why}");
    None
}

fn python_command(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.env("PYTHONPATH", workspace_root().join("python"));
    command
}

#[test]
fn duckdb_and_pyarrow_read_the_tables_as_they_are() {
    let Some(python) = python() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = compacted(dir.path());
    let script = r#"
import sys
import duckdb, pyarrow.parquet
import strata.log

log = sys.argv[1]
one = lambda sql: duckdb.sql(sql).fetchall()[0][0]
assert one(f"SELECT count(*) FROM '{log}/packets/**/*.parquet'") == 67690
assert one(f"SELECT sum(wire_bytes) FROM '{log}/packets/**/*.parquet'") == 19270570
assert one(f"SELECT sum(packets + reverse_packets) FROM '{log}/flows/**/*.parquet'") == 67690
joined = f"""SELECT count(*) FROM '{log}/packets/**/*.parquet' p
    JOIN '{log}/flows/**/*.parquet' f USING (flow_id) WHERE p.src IN (f.src, f.dst)"""
assert one(joined) > 67000
assert one(f"SELECT count(DISTINCT retention) FROM '{log}/flows/**/*.parquet'") == 2
table = pyarrow.parquet.read_table(f"{log}/packets")
assert table.num_rows == 67690
# What Spark takes for the years that they are: microseconds.
kind = lambda name: str(table.schema.field(name).type)
assert (kind("time"), kind("time_ns")) == ("timestamp[us, tz=UTC]", "int16"), (kind("time"), kind("time_ns"))
assert pyarrow.parquet.read_table(f"{log}/flows").num_rows > 100
# Pages have checksums of their own, for readers that check them.
import glob, io
file = sorted(glob.glob(f"{log}/packets/**/*.parquet", recursive=True))[0]
content = bytearray(open(file, "rb").read())
read = lambda: pyarrow.parquet.read_table(io.BytesIO(bytes(content)), page_checksum_verification=True)
assert read().num_rows > 100
column = pyarrow.parquet.ParquetFile(file).metadata.row_group(0).column(0)
content[column.data_page_offset + 100] ^= 4
try:
    read()
    raise SystemExit("a damaged page was read")
except OSError as error:
    assert "CRC" in str(error), error
names = strata.log.connect(log).sql("SELECT count(tls_server_name) + count(dns_name) FROM flows")
assert names.fetchall()[0][0] > 0
print("read")
"#;
    let text = ok(python_command(&python).args(["-c", script]).arg(&log));
    assert_eq!(text, "read\n");
}

#[test]
fn flows_come_as_csv_json_and_ipfix_from_both_tiers() {
    let dir = tempfile::tempdir().unwrap();
    let log = compacted(dir.path());
    let sqli = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    // A second recording that stays in block files.
    ok(&mut record(&sqli, &log));
    let export = |format: &str| {
        let file = dir.path().join(format);
        ok(strata()
            .args(["export", "-F", format])
            .arg(&log)
            .arg("-w")
            .arg(&file));
        file
    };
    let csv = std::fs::read_to_string(export("csv")).unwrap();
    let rows = csv.lines().count() - 1;
    let names: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    assert!(names.contains(&"community_id") && !names.contains(&"first_row"));
    let json = std::fs::read_to_string(export("json")).unwrap();
    assert_eq!(json.lines().count(), rows);
    let (mut packets, mut ip_bytes) = (0, 0);
    for line in json.lines() {
        let flow: Value = serde_json::from_str(line).unwrap();
        packets += flow["packets"].as_u64().unwrap() + flow["reverse_packets"].as_u64().unwrap();
        if flow.get("protocol").is_some() {
            ip_bytes += flow["ip_bytes"].as_u64().unwrap();
            ip_bytes += flow["reverse_ip_bytes"].as_u64().unwrap();
        } else {
            assert!(flow.get("ip_bytes").is_none(), "{line}");
        }
        assert!(matches!(flow["end_reason"].as_u64(), Some(1..=4)), "{line}");
    }
    assert_eq!(packets, 67_690 + 94);
    let trace = data_dir().join("labelled/mix-test/trace.pcap");
    let by_tshark = [trace, sqli].map(|of| ip_bytes_by_tshark(&of));
    assert_eq!(ip_bytes, by_tshark.iter().sum::<u64>());
    let ipfix = export("ipfix");
    let sum = |field: &str| -> u64 {
        let mut tshark = Command::new("tshark");
        tshark.arg("-r").arg(&ipfix);
        let text = ok(tshark.args(["-T", "fields", "-e", field, "-e", "_ws.malformed"]));
        assert!(!text.contains("Malformed"), "{text}");
        let fields = text.split([',', '\n', '\t']);
        fields
            .filter_map(|field| field.trim().parse::<u64>().ok())
            .sum()
    };
    assert_eq!(sum("cflow.packets"), packets, "also of what is not IP");
    assert_eq!(sum("cflow.octets"), ip_bytes);
}

/// Bytes of the innermost IP packets of a capture, by tshark; but not of those that ICMP quotes.
fn ip_bytes_by_tshark(trace: &Path) -> u64 {
    let mut tshark = Command::new("tshark");
    tshark
        .arg("-r")
        .arg(trace)
        .args(["-T", "fields", "-E", "separator=;"]);
    let fields = ["ip.len", "ipv6.plen", "frame.protocols"];
    let text = ok(tshark.args(fields.iter().flat_map(|field| ["-e", field])));
    let packet = |line: &str| {
        let fields: Vec<&str> = line.split(';').collect();
        let lengths = |of: &str| of.split(',').filter_map(|len| len.parse().ok()).collect();
        let [mut v4, mut v6]: [Vec<u64>; 2] = [lengths(fields[0]), lengths(fields[1])];
        let layers = fields[2].split(':');
        let layers = layers.take_while(|layer| !layer.starts_with("icmp"));
        let ip = layers.filter_map(|layer| match layer {
            "ip" => Some(v4.remove(0)),
            "ipv6" => Some(v6.remove(0) + 40),
            _ => None,
        });
        ip.last().unwrap_or(0)
    };
    text.lines().map(packet).sum()
}

/// A pcap of Ethernet frames, 10 s after one another.
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (second, frame) in (1_700_000_000_u32..).step_by(10).zip(frames) {
        let len = u32::try_from(frame.len()).unwrap();
        for word in [second, 0, len, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

/// A fragment of a UDP datagram from 10.3.0.1:5300 to 10.3.0.2:53, in units of 8 bytes.
fn fragment(offset: u16, units: u16, more: bool) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((20 + units * 8).to_be_bytes());
    frame.extend([0, 7]);
    frame.extend((u16::from(more) << 13 | offset).to_be_bytes());
    frame.extend([64, 17, 0, 0, 10, 3, 0, 1, 10, 3, 0, 2]);
    let mut payload = vec![0; usize::from(units) * 8];
    if offset == 0 {
        payload[..4].copy_from_slice(&[5300_u16.to_be_bytes(), 53_u16.to_be_bytes()].concat());
    }
    frame.extend(payload);
    frame
}

/// The values of some columns of a CSV file, by row.
fn rows(csv: &str, columns: &[&str]) -> Vec<String> {
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let places = columns
        .iter()
        .map(|name| names.iter().position(|of| of == name).unwrap());
    let places: Vec<usize> = places.collect();
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let cells: Vec<&str> = places.iter().map(|place| cells[*place]).collect();
        cells.join(" ")
    };
    lines.map(row).collect()
}

/// What tshark takes for the datagram's Community ID is that of its flow.
#[test]
fn fragments_are_in_the_flow_of_their_first_one_and_end_it_as_others_do() {
    let dir = tempfile::tempdir().unwrap();
    let (log, trace) = (dir.path().join("log"), dir.path().join("trace.pcap"));
    let frames = [
        fragment(0, 125, true),
        fragment(125, 100, true),
        fragment(225, 5, false),
    ];
    std::fs::write(&trace, pcap(&frames)).unwrap();
    ok(&mut record(trace, &log));
    let export = |options: &[&str]| {
        let mut command = strata();
        ok(command
            .arg("export")
            .arg(&log)
            .args(["-F", "csv", "-w", "-"])
            .args(options))
    };
    let columns = [
        "src_port",
        "dst_port",
        "packets",
        "ip_bytes",
        "end_reason",
        "community_id",
    ];
    let id = "1:31b1z93VlVJYv5zZOpSEzwdKXjs=";
    for is_compacted in [false, true] {
        if is_compacted {
            ok(strata().arg("compact").arg(&log));
        }
        let whole = rows(&export(&[]), &columns);
        assert_eq!(whole, [format!("5300 53 3 1900 4 {id}")], "{is_compacted}");
        assert_eq!(rows(&export(&["udp"]), &columns), whole);
        // Later fragments have no ports.
        let first = [format!("5300 53 1 1020 4 {id}")];
        assert_eq!(rows(&export(&["udp port 53"]), &columns), first);
        assert!(rows(&export(&["udp port 54"]), &columns).is_empty());
        assert!(rows(&export(&["not udp"]), &columns).is_empty());
        let idle = rows(&export(&["--idle-timeout", "5s"]), &columns);
        let [one, two, three] = [(1020, 1), (820, 1), (60, 4)]
            .map(|(bytes, reason)| format!("5300 53 1 {bytes} {reason} {id}"));
        assert_eq!(idle, [one, two, three], "{is_compacted}");
        let active = rows(&export(&["--active-timeout", "10s"]), &columns);
        let [one, two] = [(2, 1840, 2), (1, 60, 4)]
            .map(|(packets, bytes, reason)| format!("5300 53 {packets} {bytes} {reason} {id}"));
        assert_eq!(active, [one, two], "{is_compacted}");
        // A later fragment has no ports that an export of packets could look for.
        let packets = |filter: &str| {
            let mut command = strata();
            command
                .arg("export")
                .arg(&log)
                .args(["-F", "pcap", "-w", "-", filter]);
            let bytes = command.output().unwrap().stdout;
            bytes.windows(12).filter(|some| **some == [2; 12]).count()
        };
        assert_eq!(
            [packets("port 53"), packets("not port 53"), packets("udp")],
            [1, 2, 3]
        );
    }
    for options in [
        &["-F", "pcap", "--idle-timeout", "5s"][..],
        &["-F", "csv", "--idle-timeout", "0s"],
    ] {
        let mut command = strata();
        let output = command
            .arg("export")
            .arg(&log)
            .args(["-w", "x"])
            .args(options)
            .output();
        assert_eq!(output.unwrap().status.code(), Some(2), "{options:?}");
    }
}

#[test]
fn an_encrypted_log_is_read_with_its_key_and_by_age() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let trace = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    ok(&mut record(trace, &log));
    let export = |key: Option<&Path>| {
        let mut command = strata();
        command.args(["export", "-w", "-"]).arg(&log);
        if let Some(key) = key {
            command.arg("--key").arg(key);
        }
        command
    };
    let bytes = |mut command: Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}");
        output.stdout
    };
    let before = bytes(export(None));
    let [one, two] = ["one.key", "two.key"].map(|name| dir.path().join(name));
    let public = ok(strata().args(["key", "new"]).arg(&one));
    let public = public.trim();
    assert!(public.starts_with("age1"));
    let mode = std::fs::metadata(&one).unwrap().permissions();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777,
        0o600
    );
    assert!(failed(strata().args(["key", "new"]).arg(&one)).contains("one.key"));
    ok(strata().args(["key", "new"]).arg(&two));

    let compact = |to: &str| {
        let mut command = strata();
        command.arg("compact").arg(&log).args(["--encrypt-to", to]);
        command
    };
    let typo = public.replace("age1", "age1q");
    assert!(failed(&mut compact(&typo)).contains(&typo));
    assert!(failed(&mut compact("nowhere.key")).contains("nowhere.key"));
    assert!(ok(&mut compact(public)).contains("94 packets"));
    let info = ok(strata().arg("info").arg(&log));
    assert!(info.contains(&format!("94 packets are compacted, encrypted to {public}")));
    assert!(ok(strata().arg("verify").arg(&log)).contains("with --key"));
    let refused = failed(&mut export(None));
    assert!(
        refused.contains(public) && refused.contains("STRATA_KEY"),
        "{refused}"
    );
    assert_eq!(bytes(export(Some(&one))), before);
    opens_with_age(&log, &one, dir.path());

    let rotated = ok(strata()
        .args(["key", "rotate"])
        .arg(&log)
        .arg("--old")
        .arg(&one)
        .arg("--new")
        .arg(&two));
    assert!(rotated.contains("parts are encrypted to age1"), "{rotated}");
    assert!(failed(&mut export(Some(&one))).contains(public));
    assert_eq!(bytes(export(Some(&two))), before);
    let verified = ok(strata().arg("verify").arg(&log).env("STRATA_KEY", &two));
    assert!(!verified.contains("--key"), "{verified}");
}

/// By hand, as docs/formats/archive.md explains.
fn opens_with_age(log: &Path, key: &Path, dir: &Path) {
    let version = Command::new("age").arg("--version").output();
    if version.is_err() {
        let why = "age is not installed: run `make tools`";
        assert!(std::env::var_os("CI").is_none(), "{why}");
        eprintln!("not run: {why}");
        return;
    }
    let archive = std::fs::read(log.join("archive.json")).unwrap();
    let archive: Value = serde_json::from_slice(&archive).unwrap();
    let wrapped = dir.join("part.key.age");
    let text = archive["parts"][0]["key"]["wrapped"].as_str().unwrap();
    std::fs::write(&wrapped, text).unwrap();
    let part_key = dir.join("part.key");
    let age = |key: &Path, file: &Path, output: &Path| {
        let mut command = Command::new("age");
        command.arg("-d").arg("-i").arg(key).arg("-o").arg(output);
        ok(command.arg(file));
        std::fs::read(output).unwrap()
    };
    age(key, &wrapped, &part_key);
    let name = archive["parts"][0]["files"][0]["name"].as_str().unwrap();
    let table = age(&part_key, &log.join(name), &dir.join("table.parquet"));
    assert!(table.starts_with(b"PAR1") && table.ends_with(b"PAR1"));
}

#[test]
fn a_block_file_that_is_a_link_is_not_compacted() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let trace = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    ok(&mut record(trace, &log));
    let file = files(&log.join("blocks"), ".strata").remove(0);
    let target = dir.path().join("target.strata");
    std::fs::rename(&file, &target).unwrap();
    std::os::unix::fs::symlink(&target, &file).unwrap();
    for command in [&["compact"][..], &["prune", "--keep", "1d", "--yes"]] {
        let text = failed(strata().args(command).arg(&log));
        let named = format!("{}: this is a symbolic link", file.display());
        assert!(text.contains(&named), "{text}");
    }
    assert!(file.is_symlink() && target.exists());
    assert!(ok(strata().arg("verify").arg(&log)).contains("94 packets"));
    std::fs::rename(&target, &file).unwrap();
    ok(strata().arg("compact").arg(&log));
}

#[test]
fn a_log_that_has_lost_its_manifest_is_no_other_directory() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let trace = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    ok(&mut record(trace, &log));
    let lost = |what: &str| {
        for command in ["read", "info", "verify", "compact"] {
            let text = failed(strata().arg(command).arg(&log));
            assert!(
                text.contains("manifest.json of this log is missing")
                    && text.contains("restore it from a copy"),
                "{what}: {command}: {text}"
            );
        }
    };
    let (manifest, copy) = (log.join("manifest.json"), dir.path().join("copy"));
    std::fs::rename(&manifest, &copy).unwrap();
    lost("block files");
    std::fs::rename(&copy, &manifest).unwrap();
    ok(strata().arg("compact").arg(&log));
    std::fs::rename(&manifest, &copy).unwrap();
    lost("compacted files");
}

#[test]
fn who_may_not_change_a_log_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let trace = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    ok(&mut record(trace, &log));
    let open = |path: &Path, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).unwrap();
    };
    for file in files(&log, "") {
        open(&file, 0o444);
    }
    for path in [&log.join("blocks"), &log.join("models"), &log] {
        open(path, 0o555);
    }
    open(dir.path(), 0o755);
    let move_to = format!("file://{}/moved", dir.path().display());
    for words in [
        &["compact"][..],
        &["prune", "--max-size", "1K"],
        &["move", &move_to],
    ] {
        let mut command = strata();
        command.arg(words[0]).arg(&log).args(&words[1..]);
        if rustix::process::geteuid().is_root() {
            command.uid(65_534).gid(65_534);
        }
        let text = failed(&mut command);
        let said = format!(
            "{}: cannot lock: Permission denied",
            log.join("compaction").display()
        );
        assert!(
            text.contains(&said) && text.contains("as the owner of the log"),
            "{words:?}: {text}"
        );
    }
    open(&log, 0o755);
}

/// Bytes of all files of a log, as find(1) sees them.
fn bytes_on_disk(log: &Path) -> u64 {
    let sizes = ok(Command::new("find")
        .arg(log)
        .args(["-type", "f", "-printf", "%s\n"]));
    sizes.lines().map(|size| size.parse::<u64>().unwrap()).sum()
}

#[test]
fn the_size_of_a_log_is_what_is_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let log = compacted(dir.path());
    let prune = |options: &[&str]| {
        let output = strata().arg("prune").arg(&log).args(options).output();
        let output = output.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        (String::from_utf8(output.stdout).unwrap(), said)
    };
    let all = bytes_on_disk(&log).to_string();
    let (text, said) = prune(&["--max-size", &all]);
    assert!(text.contains("deleted 0 parts and 0 block files"), "{text}");
    assert!(
        text.contains("of it in files that are never deleted"),
        "{text}"
    );
    assert!(!said.contains("--max-size"), "{said}");
    // Less than the model and the manifests have.
    let (json, said) = prune(&["--max-size", "100k", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["bytes_left"], bytes_on_disk(&log));
    assert_eq!(json["still_too_large"], true);
    let model = files(&log.join("models"), ".json");
    let model = std::fs::metadata(&model[0]).unwrap().len();
    let fixed = json["fixed_bytes"].as_u64().unwrap();
    assert!(fixed > model && model > 100_000, "{json}");
    assert!(
        said.contains("larger than --max-size") && said.contains("in files that are never deleted"),
        "{said}"
    );
}
