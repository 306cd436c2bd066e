//! Records captures into logs in memory, and reads exports back.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strata_archive::{Identities, compact, encrypt_to};
use strata_blocks::{PacketRecord, Trees};
use strata_capture::{Input, InputOptions, Next, PacketRef, PcapNgWriter};
use strata_classify::Model;
use strata_pipeline::{Parts, RunError, Worker, WorkerOptions, run};
use strata_policy::Mode;
use strata_query::{ExportOptions, FileFormat, Find};
use strata_store::{About, Disk, Log, Recorder, RecorderOptions};
use strata_testkit::{data_dir, workspace_root};
use strata_testkit_disk::{SimDisk, small};
use strata_wire::dissect::dissect;
use strata_wire::{Context, FlowShare, Interface, Keep, Ledger, LinkType, Meta, TunnelKey, mix64};

/// Time, link type, length on the wire, bytes, options.
pub(crate) type Packet = (u64, u16, u32, Vec<u8>, Vec<u8>);

/// The content of a capture file: packets in order, and all else in any order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Capture {
    pub(crate) packets: Vec<Packet>,
    pub(crate) metas: Vec<String>,
}

/// Reads a capture file.
pub(crate) fn read(path: &Path) -> Capture {
    let mut input = Input::open(&[path.to_path_buf()], &InputOptions::default()).unwrap();
    let mut capture = Capture::default();
    let mut links = Vec::new();
    loop {
        match input.advance() {
            Ok(Next::End) => break,
            Err(error) => panic!("{error}"),
            Ok(Next::Meta(meta)) => {
                if let Meta::Interface { interface, .. } = &meta {
                    links.push(interface.link.0);
                }
                capture.metas.push(format!("{meta:?}"));
            }
            Ok(Next::Packets) => {
                for packet in input.batch() {
                    capture.packets.push((
                        packet.ts_ns,
                        links[usize::from(packet.interface)],
                        packet.wire_len,
                        packet.data.to_vec(),
                        packet.options.to_vec(),
                    ));
                }
            }
        }
    }
    capture.metas.sort();
    capture
}

/// Flows of [`interleaved`].
pub(crate) const INTERLEAVED_FLOWS: u64 = 3_000;
/// Its packets: enough for 36 members of the payload file.
pub(crate) const INTERLEAVED_PACKETS: u64 = 26_000;

/// A capture of UDP packets of 700 incompressible bytes, one flow after another, this many ns apart.
pub(crate) fn interleaved(dir: &Path, gap_ns: u64) -> PathBuf {
    let path = dir.join("interleaved.pcapng");
    let file = BufWriter::new(File::create(&path).unwrap());
    let mut writer = PcapNgWriter::new(file, &[]).unwrap();
    let interface = Interface::new(LinkType::ETHERNET, 0);
    writer.interface(0, &interface).unwrap();
    for n in 0..INTERLEAVED_PACKETS {
        let flow = u16::try_from(n % INTERLEAVED_FLOWS).unwrap();
        let mut data = vec![0; 14];
        data[12] = 8;
        data.extend([
            0x45, 0, 0x02, 0xae, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        data.extend((1_024 + flow).to_be_bytes());
        data.extend([0, 53, 0x02, 0x9a, 0, 0]);
        let words = (0..83).flat_map(|word| mix64(n * 100 + word).to_le_bytes());
        data.extend(words.take(700 - data.len()));
        data.resize(700, 0);
        let packet = PacketRef {
            ts_ns: 1_700_000_000_000_000_000 + n * gap_ns,
            interface: 0,
            wire_len: 700,
            data: &data,
            options: &[],
            has_timestamp: true,
        };
        writer.packet(&packet).unwrap();
    }
    path
}

/// The default model.
pub(crate) fn model() -> Model {
    let json = std::fs::read(workspace_root().join("models/default.json")).unwrap();
    Model::from_json(&json).unwrap()
}

/// Records captures, one recording each, into the log on `disk`; false if one is refused at once.
pub(crate) fn record(
    disk: &Arc<dyn Disk>,
    path: &Path,
    model: &Model,
    mode: &str,
    rotate: u64,
) -> bool {
    let Ok(mut input) = Input::open(&[path.to_path_buf()], &InputOptions::default()) else {
        return false;
    };
    let hash_seed = [1, 2];
    let about = About {
        hash_seed,
        mode: mode.into(),
        model_json: model.to_json().into_bytes(),
        classes: model.class_names(),
        ..About::default()
    };
    let options = RecorderOptions {
        block_bytes: 64 << 10,
        rotate_bytes: rotate,
        ..RecorderOptions::default()
    };
    let (recorder, sink) = Recorder::start(Arc::clone(disk), options, &about).unwrap();
    let options = WorkerOptions {
        modes: vec![Mode::by_name(mode, &BTreeMap::new()).unwrap()],
        filter: None,
        dedup: None,
        tunnel_key: TunnelKey::Inner,
        hash_seed,
        sampling_seed: 0,
    };
    let mut worker = Worker::new(model, Parts::new(options, sink)).unwrap();
    match run(&mut input, &mut worker, |_| ControlFlow::Continue(())) {
        Ok(()) | Err(RunError::Capture(_)) => {}
        Err(error) => panic!("{}: {error}", path.display()),
    }
    let ledger = worker.ledger();
    drop(worker);
    recorder.finish(&ledger, Vec::new()).unwrap();
    true
}

/// A log of two recordings, compacted, encrypted if there is a key.
pub(crate) fn compacted(key: Option<&Identities>) -> SimDisk {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let path = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    for mode in ["default", "log-all"] {
        assert!(record(&disk, &path, &model(), mode, 60_000));
    }
    if let Some(key) = key {
        encrypt_to(&disk, &key.recipients()).unwrap();
    }
    compact(&disk, |_| ()).unwrap();
    sim
}

/// Records the headers of a capture; a policy protects what matches `protected`.
pub(crate) fn record_protected(disk: &Arc<dyn Disk>, path: &Path, protected: &str) {
    record_headers(disk, path, &[protected], |_| None);
}

/// Records the headers of a capture, with filters of protecting policies, and each packet's share
/// of flows.
pub(crate) fn record_headers(
    disk: &Arc<dyn Disk>,
    path: &Path,
    protected: &[&str],
    share_of: impl Fn(u64) -> Option<FlowShare>,
) {
    let about = small::about();
    let context = Context {
        classes: about.classes.clone(),
        protected: protected.iter().map(|&text| text.to_owned()).collect(),
        ..Context::default()
    };
    let options = RecorderOptions::default();
    let (recorder, mut sink) = Recorder::start(Arc::clone(disk), options, &about).unwrap();
    let mut block = sink.take().unwrap();
    block.define_context(&serde_json::to_vec(&context).unwrap());
    block.define_verdict(0, 0, Trees::Packet, 0, &[0]);
    for (seq, packet) in (0..).zip(read(path).packets) {
        let (ts_ns, link, wire_len, bytes, _) = packet;
        let link = LinkType(link);
        if block.needs_interface(0) {
            block.define_interface(0, &Interface::new(link, 0));
        }
        if let Some(share) = share_of(seq) {
            block.define_flow_share(share);
        }
        let headers = dissect(link, &bytes, TunnelKey::Inner);
        let data = &bytes[..headers.header_len as usize];
        if block.room() < 4_096 {
            block.grow(4 << 20);
        }
        let packet = PacketRecord {
            ts_ns,
            seq,
            wire_len,
            captured_len: u32::try_from(bytes.len()).unwrap(),
            header_len: u16::try_from(data.len()).unwrap(),
            interface: 0,
            verdict: 0,
            keep: Keep::Header.kind(),
            has_timestamp: true,
            data,
            options: &[],
        };
        block.push_packet(&packet, 0);
    }
    sink.submit(block).unwrap();
    while sink.wait().unwrap().is_some() {}
    drop(sink);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
}

/// Exports what is wanted and reads it back.
pub(crate) fn exported(log: &Log, find: &Find<'_>) -> (Capture, u64) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let options = ExportOptions {
        select: find.select(),
        matches: find.filter.map(|filter| {
            let mut programs = BTreeMap::new();
            let matches = move |link: LinkType, data: &[u8], len| {
                let program = programs
                    .entry(link.0)
                    .or_insert_with(|| filter.compile(link));
                program
                    .as_ref()
                    .is_ok_and(|program| program.matches(data, len))
            };
            Box::new(matches) as Box<dyn FnMut(LinkType, &[u8], u32) -> bool>
        }),
        comments: true,
        ..ExportOptions::default()
    };
    let done = strata_query::export(log, &mut file, FileFormat::PcapNg, find, options).unwrap();
    assert!(done.damage.is_empty(), "{:?}", done.damage);
    let capture = read(file.path());
    assert_eq!(capture.packets.len() as u64, done.packets);
    (capture, done.examined)
}
