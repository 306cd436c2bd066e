//! A compacted log with some bytes changed: opened, searched, exported, verified.
//!
//! Input: one byte that says which file of the log is changed, one whether it is cut, then
//! changes of 4 bytes: offset (24 bits), value.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use strata_archive::{ArchiveError, compact, verify};
use strata_blocks::{BlockBuilder, PacketRecord, Trees};
use strata_filter::Filter;
use strata_fuzz::{Bounded, Chooser, log_of};
use strata_query::{
    ExportOptions, FileFormat, Find, FlowRecord, RecordFormat, RecordWriter, export, flow_records,
};
use strata_store::{Disk, Log};
use strata_testkit_disk::SimDisk;
use strata_traffic::{Generator, GeneratorOptions, Profile, SPACE};
use strata_wire::dissect::dissect;
use strata_wire::{Context, FlowShare, Keep, LinkType, TunnelKey};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

const HASH_SEED: [u64; 2] = [1, 0];
const PACKETS: u64 = 400;

/// The files of a compacted log, by name.
static FILES: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let log = log_of(&blocks(), HASH_SEED, true, None, false);
    let disk = Arc::clone(log.disk());
    drop(log);
    let done = compact(&disk, |_| ()).expect("a good log");
    assert_eq!(done.packets, PACKETS, "{done:?}");
    let log = Log::on(Arc::clone(&disk)).expect("a good log");
    let parts = log.archive().parts.iter().flat_map(|part| &part.files);
    let names = parts.map(|file| file.name.clone());
    let names = names.chain(["archive.json".into(), "manifest.json".into()]);
    let read = |name: String| {
        let file = disk.open(&name, false).expect("a virtual disk");
        let mut bytes =
            vec![0; usize::try_from(file.size().expect("a virtual disk")).expect("short")];
        file.read_at(&mut bytes, 0).expect("a virtual disk");
        (name, bytes)
    };
    names.map(read).collect()
});

/// Generated packets, every third one whole.
fn blocks() -> Vec<u8> {
    let profile: Profile = "cic-w2".parse().expect("a profile");
    let mut generator = Generator::new(&profile, &GeneratorOptions::default());
    let mut frame = [0; SPACE];
    let mut block = BlockBuilder::new(1 << 20);
    let context = Context {
        mode: "default".into(),
        classes: vec!["benign".into(), "anomalous".into()],
        ..Context::default()
    };
    block.define_context(&serde_json::to_vec(&context).expect("plain"));
    block.define_interface(0, &strata_wire::Interface::new(LinkType::ETHERNET, 0));
    block.define_verdict(0, 0, Trees::Flow, 9, &[1]);
    block.define_verdict(1, 1, Trees::Flow, 65_535, &[2]);
    block.define_flow_share(FlowShare::of(0.5));
    for seq in 0..PACKETS {
        let packet = generator.packet_into(&mut frame);
        let data = &frame[..usize::from(packet.len)];
        let header_len = dissect(LinkType::ETHERNET, data, TunnelKey::Inner).header_len;
        let whole = seq % 3 == 0;
        let kept = if whole {
            data
        } else {
            &data[..header_len as usize]
        };
        let keep = if whole { Keep::Full } else { Keep::Header };
        let record = PacketRecord {
            ts_ns: packet.ts_ns,
            seq,
            wire_len: packet.len.into(),
            captured_len: packet.len.into(),
            header_len: u16::try_from(header_len).expect("short"),
            interface: 0,
            verdict: u16::from(packet.anomalous),
            keep: keep.kind(),
            has_timestamp: true,
            data: kept,
            options: &[],
        };
        block.push_packet(&record, u8::from(packet.anomalous));
    }
    block.seal(1, 0, 0, HASH_SEED).to_vec()
}

fuzz_target!(|bytes: &[u8]| {
    let mut choose = Chooser::new(bytes);
    let changed = usize::from(choose.u8()) % FILES.len();
    let cut = choose.u8() & 1 == 1;
    let mut content = FILES[changed].1.clone();
    while !choose.is_empty() {
        let change = choose.u32();
        let at = (change >> 8) as usize % content.len().max(1);
        if let Some(byte) = content.get_mut(at) {
            *byte = change.to_le_bytes()[0];
        }
        if cut && choose.is_empty() {
            content.truncate(at);
        }
    }
    let is_changed = content != FILES[changed].1;
    let disk = SimDisk::new();
    for (number, (name, original)) in FILES.iter().enumerate() {
        let content = if number == changed {
            &content
        } else {
            original
        };
        disk.replace(name, content).expect("a virtual disk");
    }
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let Ok(log) = Log::on(disk) else {
        assert!(is_changed, "a good log is opened");
        return;
    };
    look(&log, is_changed);
});

fn look(log: &Log, is_changed: bool) {
    let filter: Filter = "tcp and not port 80".parse().expect("a filter");
    for filter in [None, Some(&filter)] {
        let find = Find {
            filter,
            ..Find::default()
        };
        let options = ExportOptions {
            select: find.select(),
            matches: None,
            comments: true,
            ..ExportOptions::default()
        };
        match export(log, std::io::sink(), FileFormat::PcapNg, &find, options) {
            Ok(exported) => {
                let whole = exported.packets == PACKETS && exported.damage.is_empty();
                assert!(is_changed || filter.is_some() || whole, "{exported:?}");
            }
            Err(error) => assert!(is_changed && !error.to_string().is_empty(), "{error}"),
        }
    }
    let format = RecordFormat::Ipfix;
    let mut writer = RecordWriter::new(Vec::new(), format).expect("memory");
    for part in &log.archive().parts {
        let take = |record: &FlowRecord| -> Result<(), ArchiveError> {
            writer.write(record).expect("memory");
            Ok(())
        };
        let read = flow_records(log.disk().as_ref(), part, &Find::default(), take);
        assert!(is_changed || read.is_ok());
    }
    let verified = verify(log, None).expect("a virtual disk does not fail");
    // The model is not what the manifest says; nothing else may be wrong.
    assert!(
        is_changed || verified.damage.len() == 1,
        "{:?}",
        verified.damage
    );
}
