//! Small logs, written block by block.

use std::sync::Arc;

use strata_blocks::{BlockBuilder, BlockSink, PacketRecord, Trees};
use strata_store::{About, Disk, Recorder, RecorderOptions};
use strata_wire::{Context, Interface, KeepKind, LinkType};

/// Definitions in each block that [`write()`] fills.
pub const DEFINITIONS: u64 = 3;

/// A recording with a model of one class, `benign`.
#[must_use]
pub fn about() -> About {
    About {
        hash_seed: [1, 2],
        model_json: br#"{"classes":[{"name":"benign","anomalous":false}]}"#.to_vec(),
        classes: vec!["benign".to_owned()],
        ..About::default()
    }
}

/// Starts a recording whose files hold one block each.
///
/// # Panics
///
/// If the log cannot be written.
#[must_use]
pub fn start(
    disk: &Arc<dyn Disk>,
    about: &About,
    block_bytes: usize,
    workers: u16,
) -> (Recorder, Vec<BlockSink>) {
    let options = RecorderOptions {
        block_bytes,
        rotate_bytes: 1,
        ..RecorderOptions::default()
    };
    let started = Recorder::start_workers(Arc::clone(disk), options, about, workers);
    started.expect("the log can be written")
}

/// Writes a block with what packets of verdict 0 and interface 0 refer to, and what `fill` adds; on
/// disk on return.
///
/// # Panics
///
/// If the writer is gone.
pub fn write(sink: &mut BlockSink, fill: impl FnOnce(&mut BlockBuilder)) {
    let mut block = loop {
        match sink.take() {
            Some(block) => break block,
            None => drop(sink.wait().expect("there is a writer")),
        }
    };
    let context = serde_json::to_vec(&Context::default()).expect("a context is JSON");
    block.define_context(&context);
    block.define_verdict(0, 0, Trees::Packet, 0, &[0]);
    block.define_interface(0, &Interface::new(LinkType::ETHERNET, 0));
    fill(&mut block);
    sink.submit(block).expect("there is a writer");
    while sink.wait().expect("there is a writer").is_some() {}
}

/// An Ethernet frame of 60 bytes, of which the headers are kept.
#[must_use]
pub fn packet(seq: u64, ts_ns: u64) -> PacketRecord<'static> {
    PacketRecord {
        ts_ns,
        seq,
        wire_len: 60,
        captured_len: 60,
        header_len: 14,
        interface: 0,
        verdict: 0,
        keep: KeepKind::Header,
        has_timestamp: true,
        data: &[7; 14],
        options: &[],
    }
}
