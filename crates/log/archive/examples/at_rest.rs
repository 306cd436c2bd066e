//! Records a generated trace with its true labels as classes (attacks kept whole, all else as
//! headers), compacts a log as `strata compact` does, and shows the size of a compacted one by kind of
//! file and by column. All print JSON. To see where compaction spends its time, build with
//! `--profile profiling`.
//!
//! `cargo run --release -p strata-archive --example at_rest -- record DIR cic-w2 2000000`
//! `cargo run --release -p strata-archive --example at_rest -- compact DIR`
//! `cargo run --release -p strata-archive --example at_rest -- weigh DIR`
#![allow(clippy::print_stdout, reason = "it prints what it measures")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use strata_blocks::{BlockBuilder, BlockSink, PACKET_HEADER_LEN, PacketRecord, Trees};
use strata_store::{About, Disk, FileKind, Log, RealDisk, Recorder, RecorderOptions};
use strata_traffic::{Generator, GeneratorOptions, Profile, SPACE};
use strata_wire::{
    Context, FlowHasher, Interface, Keep, Ledger, LinkType, Plain, TunnelKey, dissect::dissect,
};

const CLASSES: [&str; 2] = ["benign", "anomalous"];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let report = match arguments.as_slice() {
        ["record", dir, profile, packets] => {
            let disk: Arc<dyn Disk> = Arc::new(RealDisk::create_dir(Path::new(dir))?);
            let captured_bytes = record(&disk, &profile.parse()?, packets.parse()?)?;
            serde_json::json!({ "captured_bytes": captured_bytes })
        }
        ["compact", dir] => {
            let disk: Arc<dyn Disk> = Arc::new(RealDisk::create_dir(Path::new(dir))?);
            let done = strata_archive::compact(&disk, |_| ())?;
            serde_json::json!({ "packets": done.packets, "bytes": done.bytes_after })
        }
        ["weigh", dir] => weigh(Path::new(dir))?,
        _ => {
            return Err(
                "at_rest record DIR PROFILE PACKETS, at_rest compact DIR or at_rest weigh DIR"
                    .into(),
            );
        }
    };
    println!("{report}");
    Ok(())
}

/// Bytes of a compacted log.
fn weigh(dir: &Path) -> Result<serde_json::Value, Box<dyn Error>> {
    let log = Log::open(dir)?;
    let mut files: BTreeMap<&str, u64> = BTreeMap::new();
    let mut columns: BTreeMap<&str, Vec<(String, i64)>> = BTreeMap::new();
    let mut packets = 0;
    for part in &log.archive().parts {
        packets += part.packets;
        for file in &part.files {
            *files.entry(file.kind.dir()).or_default() += file.bytes;
            if matches!(file.kind, FileKind::Packets | FileKind::Flows) {
                let columns = columns.entry(file.kind.dir()).or_default();
                add_columns(&dir.join(&file.name), columns)?;
            }
        }
    }
    let bytes = files.values().sum::<u64>();
    Ok(serde_json::json!({
        "packets": packets,
        "bytes": bytes,
        "files": files,
        "columns": columns,
    }))
}

/// Records a generated trace into the log, by its labels; returns the bytes captured.
fn record(disk: &Arc<dyn Disk>, profile: &Profile, packets: u64) -> Result<u64, Box<dyn Error>> {
    let classes = CLASSES.map(str::to_owned).to_vec();
    let model = r#"{"classes":[{"name":"benign","anomalous":false},{"name":"anomalous","anomalous":true}]}"#;
    let about = About {
        hash_seed: [1, 2],
        mode: "default".into(),
        model: "true-labels".into(),
        model_json: model.into(),
        classes: classes.clone(),
        ..About::default()
    };
    let context = Context {
        mode: "default".into(),
        model: "true-labels".into(),
        classes,
        granularities: vec!["header".into(), "full".into()],
        ..Context::default()
    };
    let context = serde_json::to_vec(&context)?;
    let hasher = FlowHasher::new(about.hash_seed);
    let (recorder, mut sink) =
        Recorder::start(Arc::clone(disk), RecorderOptions::default(), &about)?;
    let mut generator = Generator::new(profile, &GeneratorOptions::default());
    let mut frame = [0; SPACE];
    let mut block = free(&mut sink)?;
    let mut captured_bytes = 0;
    for seq in 0..packets {
        let packet = generator.packet_into(&mut frame);
        let data = &frame[..usize::from(packet.len)];
        let headers = dissect(LinkType::ETHERNET, data, TunnelKey::Inner);
        let header_len = headers.header_len as usize;
        let class = u8::from(packet.anomalous);
        let kept = if packet.anomalous {
            data
        } else {
            &data[..header_len]
        };
        captured_bytes += data.len() as u64;
        if block.room() < PACKET_HEADER_LEN + kept.len() + 4_096 {
            sink.submit(block)?;
            block = free(&mut sink)?;
            block.reset(seq);
        }
        if block.needs_context() {
            block.define_context(&context);
        }
        if block.needs_interface(0) {
            block.define_interface(0, &Interface::new(LinkType::ETHERNET, 0));
        }
        let verdict = u16::from(class);
        if block.needs_verdict(verdict) {
            block.define_verdict(
                verdict,
                class,
                Trees::Flow,
                u16::MAX * u16::from(class),
                &[verdict],
            );
        }
        match Plain::read(data) {
            Some(plain) => {
                block.note_plain(plain.flow(&hasher).0, [plain.source, plain.destination]);
            }
            None => {
                let fingerprint = hasher.flow(&headers.key.unwrap_or_default());
                block.note_headers(&headers, fingerprint, &hasher);
            }
        }
        let len = u32::from(packet.len);
        let keep = if packet.anomalous {
            Keep::Full
        } else {
            Keep::Header
        };
        let record = PacketRecord {
            ts_ns: packet.ts_ns,
            seq,
            wire_len: len,
            captured_len: len,
            header_len: u16::try_from(header_len)?,
            interface: 0,
            verdict,
            keep: keep.kind(),
            has_timestamp: true,
            data: kept,
            options: &[],
        };
        block.push_packet(&record, class);
    }
    sink.submit(block)?;
    while sink.wait()?.is_some() {}
    drop(sink);
    recorder.finish(&Ledger::default(), Vec::new())?;
    Ok(captured_bytes)
}

/// A free block, after waiting if need be.
fn free(sink: &mut BlockSink) -> Result<Box<BlockBuilder>, Box<dyn Error>> {
    loop {
        if let Some(block) = sink.take() {
            return Ok(block);
        }
        sink.wait()?.ok_or("no block comes back")?;
    }
}

/// Adds the compressed size of each column of a Parquet file.
fn add_columns(path: &Path, columns: &mut Vec<(String, i64)>) -> Result<(), Box<dyn Error>> {
    let reader = SerializedFileReader::new(std::fs::File::open(path)?)?;
    for group in reader.metadata().row_groups() {
        for (index, column) in group.columns().iter().enumerate() {
            if columns.len() <= index {
                columns.push((column.column_descr().name().to_owned(), 0));
            }
            columns[index].1 += column.compressed_size();
        }
    }
    Ok(())
}
