//! Captures from standard input.
//!
//! A binary of its own: it starts itself again, with a pipe as its standard input.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[allow(dead_code, reason = "`it` uses the rest")]
#[path = "it/common/mod.rs"]
mod common;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use strata_capture::{CaptureError, Input, InputOptions};

use common::{data_dir, read};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Not a test of its own: the other end of the next one's pipe.
#[test]
fn child_reads_standard_input() {
    if std::env::var_os("STRATA_TEST_CHILD").is_none() {
        return;
    }
    let reading = read(Path::new("-"));
    assert!(reading.error.is_none());
    let bytes: usize = reading.packets().map(|packet| packet.data.len()).sum();
    println!("child {} {bytes}", reading.packets().count());
}

#[test]
fn standard_input_is_a_pipe() {
    let path = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    let plain = read(&path);
    let expected: usize = plain.packets().map(|packet| packet.data.len()).sum();
    let bytes = fs::read(&path).unwrap();
    for bytes in [bytes.clone(), gzip(&bytes)] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_reads_standard_input", "--nocapture"])
            .env("STRATA_TEST_CHILD", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = child.stdin.take().unwrap();
        // In pieces that match no boundary.
        for piece in bytes.chunks(977) {
            pipe.write_all(piece).unwrap();
        }
        drop(pipe);
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let line = format!("child {} {expected}", plain.packets().count());
        assert!(text.contains(&line), "{text}");
    }
    let twice = ["-".into(), "-".into()];
    let error = Input::open(&twice, &InputOptions::default()).unwrap_err();
    assert!(matches!(error, CaptureError::StandardInputTwice));
}
