//! A recording of capture files from a spec, without a command line.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use strata_classify::Model;
use strata_record::{
    Closed, DestinationSpec, InputSpec, LogSpec, ModelSpec, RecordError, RecordSpec, SteeringSpec,
    check,
};
use strata_role::{Notice, RoleError, Tell, start};
use strata_store::{DiskChoice, Log, RecorderOptions};
use strata_testkit::{data_dir, workspace_root};
use strata_wire::TunnelKey;

/// Longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn trace() -> PathBuf {
    data_dir().join("labelled/mix-test/trace.pcap")
}

fn spec(input: PathBuf, dir: &Path) -> RecordSpec {
    let json = fs::read(workspace_root().join("models/default.json")).unwrap();
    RecordSpec {
        input: InputSpec::Files(vec![input]),
        destination: DestinationSpec::Log(Box::new(LogSpec {
            dir: dir.to_owned(),
            recorder: RecorderOptions::default(),
            disk: DiskChoice::Auto,
            bytes_max: None,
            group: None,
        })),
        filter: None,
        stream: None,
        filter_text: String::new(),
        dedup: None,
        model: ModelSpec {
            model: Model::from_json(&json).unwrap(),
            json,
            is_built_in: true,
        },
        shadow: None,
        modes: vec![String::from("log-all")],
        detail: strata_record::DetailSpec::default(),
        triggers: strata_record::TriggerSpec::default(),
        mirror_to: None,
        report_to: None,
        flows_to: None,
        memory_max: None,
        steering: SteeringSpec::default(),
        tunnel_key: TunnelKey::Inner,
        hash_seed: [1, 2],
        sampling_seed: 0,
        packets_max: None,
    }
}

/// A receiver of notices, and the list it collects them in.
fn listen() -> (Tell, Arc<Mutex<Vec<String>>>) {
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let collected = Arc::clone(&told);
    let tell = move |notice: &Notice| collected.lock().unwrap().push(notice.to_string());
    (Arc::new(tell), told)
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "waited for: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_spec_becomes_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let (tell, told) = listen();
    let handle = start(spec(trace(), &log), Arc::default(), tell).unwrap();
    let outcome = handle.wait().unwrap();
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    let capture = pcap_packets(&trace());
    assert_eq!(outcome.counts.ledger.seen.packets, capture);
    assert_eq!(outcome.counts.ledger.logged.packets, capture);
    let Some(Closed::Log { dir, recording }) = outcome.closed else {
        panic!("not a log: {:?}", outcome.closed);
    };
    assert_eq!((dir.as_path(), recording), (log.as_path(), 1));
    let recordings = Log::open(&log).unwrap();
    assert!(!recordings.is_being_written());
    let told = told.lock().unwrap();
    assert!(
        told.iter().any(|line| line.contains("no model given")),
        "{told:?}"
    );
}

/// How many packets a pcap file has, according to its record headers.
fn pcap_packets(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap();
    let (mut at, mut packets) = (24, 0);
    while at < bytes.len() {
        let len = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap());
        at += 16 + len as usize;
        packets += 1;
    }
    packets
}

/// A recording of a long input continues until told to stop.
#[test]
fn a_running_recording_can_be_asked_steered_and_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let policies = dir.path().join("strata.toml");
    fs::write(
        &policies,
        "[[policy]]\nmatch = \"tcp\"\naction = \"full\"\n",
    )
    .unwrap();
    let mut spec = spec(trace(), &log);
    spec.steering.config = Some(policies.clone());
    spec.input = InputSpec::Files(vec![trace(); 200]);
    let (tell, _) = listen();
    let handle = start(spec, Arc::default(), tell).unwrap();
    until("packets", || {
        handle.running().counts().ledger.seen.packets > 0
    });
    assert_eq!(handle.running().status().policies, 1);

    fs::write(
        &policies,
        "[[policy]]\nmatch = \"tcp\"\naction = \"whole\"\n",
    )
    .unwrap();
    let error = format!("{:#}", handle.running().reload().unwrap_err());
    assert!(error.contains("strata.toml: policy 1"), "{error}");
    assert_eq!(handle.running().status().policies, 1);
    fs::write(&policies, "mode = [\"log-minimum\"]\n").unwrap();
    handle.running().reload().unwrap();
    assert_eq!(handle.running().status().policies, 0);

    handle.stop();
    until("the end", || handle.wait_timeout(Duration::from_millis(10)));
    let outcome = handle.wait().unwrap();
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    assert!(outcome.counts.ledger.seen.packets > 0);
    assert!(!Log::open(&log).unwrap().is_being_written());
}

#[test]
fn what_cannot_start_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let (tell, _) = listen();
    let missing = dir.path().join("missing.pcap");
    let error = start(
        spec(missing.clone(), &log),
        Arc::default(),
        Arc::clone(&tell),
    );
    let error = format!("{:#}", error.err().unwrap());
    assert!(error.contains("missing.pcap"), "{error}");
    assert!(check(spec(missing, &log), &tell).is_err());
    check(spec(trace(), &log), &tell).unwrap();
    let mut unknown = spec(trace(), &log);
    unknown.modes = vec![String::from("log-nothing")];
    let error = format!("{:#}", start(unknown, Arc::default(), tell).err().unwrap());
    assert!(error.contains("unknown mode 'log-nothing'"), "{error}");
    assert!(!log.exists());
}

#[test]
fn who_drops_a_recording_ends_it_properly() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut spec = spec(trace(), &log);
    spec.input = InputSpec::Files(vec![trace(); 200]);
    let (tell, _) = listen();
    let handle = start(spec, Arc::default(), tell).unwrap();
    until("packets", || {
        handle.running().counts().ledger.seen.packets > 0
    });
    drop(handle);
    assert!(!Log::open(&log).unwrap().is_being_written());
}

/// A caller can tell what is wrong without reading the message.
#[test]
fn errors_are_typed() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let fails = |spec: RecordSpec| {
        let (tell, _) = listen();
        let error = start(spec, Arc::default(), tell).err().unwrap();
        assert!(!log.exists(), "{error}");
        error
    };
    let error = fails(spec(dir.path().join("nosuch.pcap"), &log));
    assert!(matches!(error, RecordError::Input(_)), "{error:?}");
    let error = fails(RecordSpec {
        modes: vec![String::from("nosuch")],
        ..spec(trace(), &log)
    });
    assert!(matches!(error, RecordError::Mode(_)), "{error:?}");
    let error = fails(RecordSpec {
        mirror_to: Some(String::from("nosuch0")),
        ..spec(trace(), &log)
    });
    let RecordError::Role(RoleError::At { what, source }) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(what, "--mirror-to");
    let own = source.find::<RecordError>();
    assert!(matches!(own, Some(RecordError::Send(_))), "{error:?}");
}
