//! Queries a log with SQL, compacted or not.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

mod damage;
mod owners;
mod written;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use strata_archive::{Identities, Place, compact, encrypt_to, relocate};
use strata_capture::{Input, InputOptions};
use strata_classify::Model;
use strata_objects::ObjectDisk;
use strata_pipeline::{Parts, Worker, WorkerOptions, run};
use strata_policy::Mode;
use strata_store::{About, Disk, RealDisk, Recorder, RecorderOptions};
use strata_testkit::{data_dir, workspace_root};
use strata_wire::{Ledger, TunnelKey};

/// Records a capture as a recording of its own.
fn record(dir: &Path, capture: &str) {
    let (recorder, ledger) = unfinished(dir, capture, RecorderOptions::default());
    recorder.finish(&ledger, Vec::new()).unwrap();
}

/// A recording that has taken all packets of a capture, and has not ended.
fn unfinished(dir: &Path, capture: &str, options: RecorderOptions) -> (Recorder, Ledger) {
    let json = std::fs::read(workspace_root().join("models/default.json")).unwrap();
    let model = Model::from_json(&json).unwrap();
    let about = About {
        hash_seed: [1, 2],
        mode: "default".into(),
        model_json: json,
        classes: model.class_names(),
        ..About::default()
    };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::create_dir(dir).unwrap());
    let (recorder, sink) = Recorder::start(disk, options, &about).unwrap();
    let options = WorkerOptions {
        modes: vec![Mode::by_name("default", &BTreeMap::new()).unwrap()],
        filter: None,
        dedup: None,
        tunnel_key: TunnelKey::Inner,
        hash_seed: [1, 2],
        sampling_seed: 0,
    };
    let mut worker = Worker::new(&model, Parts::new(options, sink)).unwrap();
    let path = data_dir().join("labelled").join(capture).join("trace.pcap");
    let mut input = Input::open(&[path], &InputOptions::default()).unwrap();
    run(&mut input, &mut worker, |_| ControlFlow::Continue(())).unwrap();
    let ledger = worker.ledger();
    drop(worker);
    (recorder, ledger)
}

fn ran(log: &Path, sql: &str, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata-sql"));
    command.arg(log).arg(sql).args(options).output().unwrap()
}

fn query(log: &Path, sql: &str, options: &[&str]) -> String {
    let output = ran(log, sql, options);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{sql}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn both_tiers_are_seen_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&log, "mix-test");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::at(&log));
    let count = "SELECT count(*) AS n, sum(wire_bytes) AS bytes FROM packets";
    let csv = ["--format", "csv"];
    let hot = query(&log, count, &csv);
    assert_eq!(hot, "n,bytes\n67690,19270570\n");
    compact(&disk, |_| ()).unwrap();
    assert_eq!(query(&log, count, &csv), hot);
    // A second recording, not yet compacted.
    record(&log, "cic2017-sqli");
    let both = query(
        &log,
        "SELECT recording, count(*) AS n FROM packets GROUP BY 1 ORDER BY 1",
        &csv,
    );
    assert_eq!(both, "recording,n\n1,67690\n2,94\n");
    let joined = "SELECT count(*) AS n FROM packets JOIN flows USING (flow_id)";
    assert_eq!(query(&log, joined, &csv), "n\n67784\n");
    let sums = "SELECT sum(packets + reverse_packets) AS n, sum(rows) AS rows FROM flows";
    assert_eq!(query(&log, sums, &csv), "n,rows\n67784,67784\n");
    let top = query(
        &log,
        "SELECT dst, count(*), sum(wire_bytes) FROM packets WHERE class = 'anomalous' \
         GROUP BY dst ORDER BY 2 DESC LIMIT 20",
        &[],
    );
    assert!(top.lines().count() > 10, "{top}");
}

/// A row is the same in both tiers, except for references to other rows and places.
#[test]
fn rows_of_block_files_are_those_of_compacted_ones() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&log, "mix-test");
    let tables = [
        "SELECT * EXCEPT (flow_id, payload_offset, ip_options, tcp_options, link_header, \
         transport_header, header, packet_options) FROM packets ORDER BY time, time_ns, late_ns, tie",
        "SELECT count(DISTINCT ip_options) AS a, count(DISTINCT tcp_options) AS b, \
         count(DISTINCT header) AS c, count(DISTINCT link_header) AS d, \
         count(transport_header) AS e, count(packet_options) AS f FROM packets",
        "SELECT * EXCEPT (flow_id, row_group, first_row) FROM flows \
         ORDER BY first_time, first_time_ns, last_time, last_time_ns, community_id, src, dst, interface",
        "SELECT count(*), sum(wire_bytes / flow_share) FROM packets",
        "SELECT time, time_ns, src, dst, class FROM packets ORDER BY 1, 2, 3, 4, 5 LIMIT 5000",
        "SELECT src, packets, tcp_flags FROM flows ORDER BY 1, 2, 3 LIMIT 5000",
        "SELECT class, count(*) FROM packets WHERE src = '10.10.10.6' GROUP BY 1 ORDER BY 1",
        "SELECT count(*) FROM packets WHERE time < (SELECT max(time) FROM packets)",
    ];
    let csv = ["--format", "csv"];
    let before = tables.map(|sql| query(&log, sql, &csv));
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::at(&log));
    compact(&disk, |_| ()).unwrap();
    for (sql, before) in tables.iter().zip(before) {
        let after = query(&log, sql, &csv);
        let lines = before.lines().zip(after.lines()).enumerate();
        for (line, (before, after)) in lines {
            assert_eq!(before, after, "line {line} of {sql}");
        }
        assert_eq!(before.len(), after.len(), "{sql}");
    }
}

#[test]
fn what_is_encrypted_and_lies_elsewhere_is_asked_like_all_else() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&log, "mix-test");
    let own: Arc<dyn Disk> = Arc::new(RealDisk::at(&log));
    let disk: Arc<dyn Disk> = Arc::new(ObjectDisk::new(own));
    let sql = "SELECT packets.class, count(*) AS n, sum(packets.wire_bytes) FROM packets \
               JOIN flows USING (flow_id) WHERE packets.dst_port = 443 \
               AND packets.recording = 1 GROUP BY 1 ORDER BY 1";
    let csv = ["--format", "csv"];
    let hot = query(&log, sql, &csv);
    assert!(hot.lines().count() > 1, "{hot}");
    let key = Identities::generate();
    encrypt_to(&disk, &key.recipients()).unwrap();
    compact(&disk, |_| ()).unwrap();
    let cold = Place::elsewhere(&format!("file://{}/cold", dir.path().display())).unwrap();
    assert!(relocate(&disk, &cold, u64::MAX, |_| ()).unwrap().parts > 0);
    // And a recording that is neither compacted nor moved.
    record(&log, "cic2017-sqli");
    let file = dir.path().join("one.key");
    std::fs::write(&file, key.to_file()).unwrap();
    let with_key = [csv[0], csv[1], "--key", file.to_str().unwrap()];
    let count = "SELECT count(*) AS n, sum(wire_bytes) AS bytes FROM packets WHERE recording = 1";
    assert_eq!(query(&log, count, &with_key), "n,bytes\n67690,19270570\n");
    assert_eq!(query(&log, sql, &with_key), hot);
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata-sql"));
    let output = command.arg(&log).arg(count).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{stderr}");
    assert_eq!(stderr.matches("(--key").count(), 1, "{stderr}");
}

#[test]
fn packets_that_were_lost_are_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let options = RecorderOptions {
        block_bytes: 64 << 10,
        rotate_bytes: 256 << 10,
        ..RecorderOptions::default()
    };
    // As after a kill: it has not ended, and a file is gone.
    drop(unfinished(&log, "mix-test", options));
    let warning = |log: &Path| {
        let output = ran(log, "SELECT count(*) FROM packets", &[]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), stderr)
    };
    let files = std::fs::read_dir(log.join("blocks")).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|of| of == "strata"));
    files.sort();
    assert!(files.len() > 2, "{files:?}");
    std::fs::remove_file(&files[1]).unwrap();
    let (status, warned) = warning(&log);
    assert_eq!(status, Some(1), "{warned}");
    assert!(warned.contains("the file is missing"), "{warned}");
    assert!(
        warned.contains("packets before they were in a file"),
        "{warned}"
    );
    assert!(warned.contains("ended abruptly"), "{warned}");
    let whole = dir.path().join("whole");
    record(&whole, "cic2017-sqli");
    assert_eq!(warning(&whole), (Some(0), String::new()));
}

#[test]
fn results_come_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&log, "cic2017-sqli");
    let sql = "SELECT src, dst_port FROM packets ORDER BY time, time_ns LIMIT 3";
    let json = query(&log, sql, &["--format", "json"]);
    assert_eq!(
        json.lines()
            .filter(|line| line.contains("\"src\":\""))
            .count(),
        3,
        "{json}"
    );
    for (format, magic) in [("parquet", &b"PAR1"[..]), ("arrow", &[0xff; 4])] {
        let file = dir.path().join(format);
        let name = file.to_str().unwrap();
        query(&log, sql, &["--format", format, "-w", name]);
        let bytes = std::fs::read(&file).unwrap();
        assert!(bytes.starts_with(magic), "{format}");
    }
}

#[test]
fn mistakes_are_told_in_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&log, "cic2017-sqli");
    for (log, sql, expected) in [
        (log.as_path(), "SELECT nothing FROM packets", "nothing"),
        (dir.path(), "SELECT 1", "no log here"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strata-sql"));
        let output = command.arg(log).arg(sql).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains(expected),
            "{stderr}"
        );
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

/// Users who may ask must not thereby write files, read others than the log's or lift limits.
#[test]
fn a_statement_only_reads_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&log, "cic2017-sqli");
    let secret = dir.path().join("secret.csv");
    std::fs::write(&secret, "a,b\n1,2\n").unwrap();
    let copied = dir.path().join("copied.csv");
    let (from, to) = (secret.display(), copied.display());
    for sql in [
        format!("COPY (SELECT 1) TO '{to}'"),
        format!("EXPLAIN ANALYZE COPY (SELECT 1) TO '{to}'"),
        format!("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{from}'"),
        format!("SELECT * FROM '{from}'"),
        format!("SELECT 1; COPY (SELECT 1) TO '{to}'"),
        String::from("CREATE TABLE t AS SELECT * FROM packets"),
        String::from("DROP TABLE packets"),
        String::from("INSERT INTO packets SELECT * FROM packets"),
        String::from("SET datafusion.runtime.memory_limit = '100G'"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strata-sql"));
        let output = command.arg(&log).arg(&sql).output().unwrap();
        assert!(!output.status.success(), "{sql}");
        assert!(output.stdout.is_empty(), "{sql}: {output:?}");
        assert!(!copied.exists(), "{sql}");
    }
    for sql in [
        "SHOW TABLES",
        "DESCRIBE packets",
        "EXPLAIN SELECT * FROM flows",
    ] {
        assert!(!query(&log, sql, &[]).is_empty());
    }
}

#[test]
fn memory_of_a_query_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&log, "cic2017-sqli");
    let sql = "SELECT array_agg(a.value + b.value) FROM generate_series(1, 20000) a \
               CROSS JOIN generate_series(1, 2000) b";
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata-sql"));
    command.arg("--sort-memory=16MiB").arg(&log).arg(sql);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(stderr.contains("--sort-memory"), "{stderr}");
    assert!(!stderr.contains("datafusion"), "{stderr}");
}

/// What an expression makes is not of the memory for sorting, and this one makes 5 GB.
#[test]
fn a_query_of_the_page_has_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&log, "mix-test");
    let sql = "select sum(length(x)) from (select repeat(src, 60000) as x from packets limit 8000)";
    let output = ran(&log, sql, &["--typed", "--sort-memory=64MiB"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("memory allocation of "), "{said}");
    let few = "select sum(length(x)) from (select repeat(src, 60) as x from packets limit 8000)";
    let output = ran(&log, few, &["--typed", "--sort-memory=64MiB"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
