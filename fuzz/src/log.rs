//! Bytes as the block file of a log.

use std::sync::Arc;

use strata_store::{BlockFile, Disk, Log, MANIFEST_NAME, Manifest, Recording, State};
use strata_testkit_disk::SimDisk;

const FILE: &str = "blocks/1-0-0.blk";
/// What compaction reads of a model: which classes are evidence. Without that, it leaves a recording alone.
const MODEL: &[u8] =
    br#"{"classes": [{"name": "benign", "anomalous": false}, {"name": "anomalous", "anomalous": true}]}"#;

/// A log of one recording, number 1, with this file; one that came through a relay if
/// it has a `session`, one with promoted packets if it may `look_back`.
///
/// # Panics
///
/// Never: a virtual disk does not fail, and the manifest is good.
#[must_use]
pub fn log_of(
    file: &[u8],
    hash_seed: [u64; 2],
    sealed: bool,
    session: Option<&str>,
    look_back: bool,
) -> Log {
    let entry = BlockFile {
        name: FILE.into(),
        worker: 0,
        sealed,
        bytes: file.len() as u64,
        blocks: 0,
        packets: 0,
    };
    let recording = Recording {
        id: 1,
        state: if sealed {
            State::Closed
        } else {
            State::Running
        },
        program: "fuzz".into(),
        started_ns: 0,
        ended_ns: None,
        inputs: Vec::new(),
        filter: String::new(),
        mode: String::new(),
        model: String::new(),
        model_file: "models/0.json".into(),
        model_crc: 0,
        shadow: None,
        classes: vec!["benign".into()],
        hash_seed,
        files: vec![entry],
        ledger: None,
        warnings: Vec::new(),
        detail: None,
        session: session.map(str::to_owned),
        overwritten: Vec::new(),
        look_back,
        flow_table: None,
        live: false,
        tunnels: std::collections::BTreeMap::new(),
    };
    let manifest = Manifest {
        recordings: vec![recording],
        ..Manifest::default()
    };
    let disk = SimDisk::new();
    for (name, content) in [
        (MANIFEST_NAME, &manifest.to_json()[..]),
        ("models/0.json", MODEL),
        (FILE, file),
    ] {
        disk.replace(name, content).expect("a virtual disk");
    }
    Log::on(Arc::new(disk)).expect("the manifest is good")
}
