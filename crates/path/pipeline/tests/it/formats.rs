//! The whole data path, on every capture available: what goes in comes out again.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strata_capture::{Input, InputOptions, Next};
use strata_classify::Model;
use strata_filter::Filter;
use strata_pipeline::{DataPath, Dedup, Parts, RunError, Worker, WorkerOptions, run};
use strata_policy::Mode;
use strata_query::{ExportOptions, FileFormat, Find, export};
use strata_store::{About, Disk, Log, Recorder, RecorderOptions, Select};
use strata_testkit::{data_dir, format_captures, workspace_root};
use strata_testkit_disk::SimDisk;
use strata_wire::pcapng::options;
use strata_wire::{AddressFamily, Ledger, LinkType, Meta, TunnelKey};

/// What is compared of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) ts_ns: u64,
    pub(super) wire_len: u32,
    pub(super) link: LinkType,
    pub(super) data: Vec<u8>,
    options: Vec<u8>,
}

/// Everything a capture holds, as far as it can be read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Capture {
    pub(super) packets: Vec<Packet>,
    /// Name resolution, secrets, statistics: type, interface's link type, body.
    blocks: Vec<(u32, Option<LinkType>, Vec<u8>)>,
    /// Link type, snap length and options of each interface.
    interfaces: Vec<(LinkType, u32, Vec<u8>)>,
    comments: Vec<String>,
}

pub(super) fn read(path: &Path) -> Option<Capture> {
    let mut input = Input::open(&[path.to_path_buf()], &InputOptions::default()).ok()?;
    let mut capture = Capture::default();
    loop {
        match input.advance() {
            Ok(Next::End) | Err(_) => return Some(capture),
            Ok(Next::Meta(Meta::Interface { interface, .. })) => {
                capture
                    .interfaces
                    .push((interface.link, interface.snaplen, interface.options));
            }
            Ok(Next::Meta(Meta::Section { options: list })) => {
                capture
                    .comments
                    .extend(options::comments(&list).map(str::to_owned));
            }
            Ok(Next::Meta(Meta::Block {
                block_type,
                interface,
                body,
            })) => {
                let link = interface.map(|id| capture.interfaces[usize::from(id)].0);
                // The interface's number is the file's own.
                let body = if link.is_some() {
                    body[4..].to_vec()
                } else {
                    body
                };
                capture.blocks.push((block_type, link, body));
            }
            Ok(Next::Packets) => {
                for packet in input.batch() {
                    capture.packets.push(Packet {
                        ts_ns: packet.ts_ns,
                        wire_len: packet.wire_len,
                        link: capture.interfaces[usize::from(packet.interface)].0,
                        data: packet.data.to_vec(),
                        options: packet.options.to_vec(),
                    });
                }
            }
        }
    }
}

pub(super) fn model() -> Model {
    let json = std::fs::read(workspace_root().join("models/default.json")).unwrap();
    Model::from_json(&json).unwrap()
}

pub(super) struct Recorded {
    pub(super) log: Log,
    pub(super) ledger: Ledger,
}

/// Records a capture into a log in memory; `None` if it is refused at once.
fn record(path: &Path, model: &Model, mode: &str, filter: Option<&str>) -> Option<Recorded> {
    let filter = filter.map(|text| Filter::parse(text).unwrap());
    let files = [path.to_path_buf()];
    record_on(DataPath::best(), &files, model, mode, (filter, None))
}

/// As [`record`], several captures, with these instructions, and without duplicates if that is asked for.
pub(super) fn record_on(
    path: DataPath,
    files: &[PathBuf],
    model: &Model,
    mode: &str,
    (filter, dedup): (Option<Filter>, Option<Dedup>),
) -> Option<Recorded> {
    let mut input = Input::open(files, &InputOptions::default()).ok()?;
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let hash_seed = [1, 2];
    let about = About {
        hash_seed,
        model_json: model.to_json().into_bytes(),
        ..About::default()
    };
    let options = RecorderOptions {
        block_bytes: 64 << 10,
        ..RecorderOptions::default()
    };
    let (recorder, sink) = Recorder::start(Arc::clone(&disk), options, &about).unwrap();
    let options = WorkerOptions {
        modes: vec![Mode::by_name(mode, &BTreeMap::new()).unwrap()],
        filter,
        dedup,
        tunnel_key: TunnelKey::Inner,
        hash_seed,
        sampling_seed: 0,
    };
    let parts = Parts {
        path,
        ..Parts::new(options, sink)
    };
    let mut worker = Worker::new(model, parts).unwrap();
    match run(&mut input, &mut worker, |_| ControlFlow::Continue(())) {
        Ok(()) | Err(RunError::Capture(_)) => {}
        Err(error) => panic!("{files:?}: {error}"),
    }
    let ledger = worker.ledger();
    drop(worker);
    recorder.finish(&ledger, Vec::new()).unwrap();
    ledger.check().unwrap();
    assert_eq!(ledger.in_flight.packets, 0, "nothing is in flight at rest");
    let log = Log::on(disk).unwrap();
    Some(Recorded { log, ledger })
}

/// A file in memory with a path, gone when the value is dropped.
pub(super) fn exported(log: &Log, options: ExportOptions<'_>) -> (tempfile::NamedTempFile, u64) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let done = export(
        log,
        &mut file,
        FileFormat::PcapNg,
        &Find::default(),
        options,
    )
    .unwrap();
    assert!(done.damage.is_empty(), "{:?}", done.damage);
    (file, done.packets)
}

pub(super) fn captures() -> Vec<PathBuf> {
    let mut all = format_captures();
    for name in ["mix-test", "cic2017-sqli", "westermo-right"] {
        all.push(data_dir().join("labelled").join(name).join("trace.pcap"));
    }
    all
}

/// By our reader, and by libpcap where it can read both.
#[test]
fn log_all_gives_every_capture_back() {
    let model = model();
    let (mut files, mut packets) = (0, 0);
    let (mut files_of_libpcap, mut packets_of_libpcap) = (0, 0);
    for path in captures() {
        let Some(original) = read(&path) else {
            continue;
        };
        let recorded = record(&path, &model, "log-all", None).unwrap();
        let (file, count) = exported(&recorded.log, ExportOptions::default());
        let back = read(file.path()).unwrap();
        assert_eq!(count, original.packets.len() as u64, "{}", path.display());
        assert_eq!(recorded.ledger.logged.packets, count);
        for (n, (one, two)) in original.packets.iter().zip(&back.packets).enumerate() {
            assert_eq!(one, two, "{} packet {}", path.display(), n + 1);
        }
        assert_eq!(back, original, "{}", path.display());
        files += 1;
        packets += count;
        if let Some(compared) = libpcap_reads_the_same(&path, file.path()) {
            files_of_libpcap += 1;
            packets_of_libpcap += compared;
        }
    }
    assert!(
        files > 1_800 && packets > 130_000,
        "{files} files, {packets} packets"
    );
    assert!(
        files_of_libpcap > 1_700 && packets_of_libpcap > 130_000,
        "libpcap: {files_of_libpcap} files, {packets_of_libpcap} packets"
    );
}

/// The number of packets that libpcap finds alike in a capture and its export; `None` if it reads only one of them: of
/// several link types, or with interfaces that it does not take.
fn libpcap_reads_the_same(path: &Path, export: &Path) -> Option<u64> {
    let open = |path: &Path| pcap::Capture::from_file_with_precision(path, pcap::Precision::Nano);
    let (mut original, mut back) = (open(path).ok()?, open(export).ok()?);
    assert_eq!(
        original.get_datalink(),
        back.get_datalink(),
        "{}",
        path.display()
    );
    let mut n = 0_u64;
    while let (Ok(one), Ok(two)) = (original.next_packet(), back.next_packet()) {
        n += 1;
        let name = || format!("{} packet {n}", path.display());
        // libpcap has signed 32-bit seconds and does not carry fractions above a second over;
        // compare what both can express.
        let time = |p: &pcap::Packet<'_>| {
            i128::from(p.header.ts.tv_sec) * 1_000_000_000 + i128::from(p.header.ts.tv_usec)
        };
        let plain =
            (0..1_000_000_000).contains(&one.header.ts.tv_usec) && one.header.ts.tv_sec >= 0;
        if plain {
            assert_eq!(time(&one), time(&two), "{}", name());
        }
        assert_eq!(one.header.len, two.header.len, "{}", name());
        // libpcap cuts at the file's snap length, and both files say the same.
        assert_eq!(one.data, two.data, "{}", name());
    }
    Some(n)
}

#[test]
fn headers_are_exact_prefixes_and_the_accounts_balance_in_every_mode() {
    let model = model();
    for (mode, ..) in Mode::BUILT_IN {
        for path in captures().iter().rev().step_by(6) {
            let Some(original) = read(path) else {
                continue;
            };
            let recorded = record(path, &model, mode, None).unwrap();
            let (file, count) = exported(&recorded.log, ExportOptions::default());
            let back = read(file.path()).unwrap();
            let ledger = recorded.ledger;
            assert_eq!(ledger.seen.packets, original.packets.len() as u64);
            assert_eq!(ledger.logged.packets, count);
            let kept: usize = back.packets.iter().map(|p| p.data.len()).sum();
            assert_eq!(ledger.logged.bytes, kept as u64);
            let mut originals = original.packets.iter();
            for packet in &back.packets {
                // Sampling skips packets; the order stays.
                let whole = originals.find(|o| {
                    o.ts_ns == packet.ts_ns
                        && o.wire_len == packet.wire_len
                        && o.data.starts_with(&packet.data)
                });
                assert!(
                    whole.is_some(),
                    "{} in {mode}: an unknown packet",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn filters_when_recording_and_when_exporting_agree() {
    let model = model();
    let expressions = [
        "tcp",
        "udp port 53",
        "ip6",
        "not ip",
        "vlan",
        "less 80",
        "host 10.0.0.1",
    ];
    let mut matched = 0;
    for path in captures().iter().rev().step_by(12) {
        let Some(whole) = record(path, &model, "log-all", None) else {
            continue;
        };
        for expression in expressions {
            let filtered = record(path, &model, "log-all", Some(expression)).unwrap();
            let (at_record, count) = exported(&filtered.log, ExportOptions::default());
            let filter = Filter::parse(expression).unwrap();
            let matches = |link, data: &[u8], len| {
                filter
                    .compile(link)
                    .is_ok_and(|program| program.matches(data, len))
            };
            let options = ExportOptions {
                matches: Some(Box::new(matches)),
                ..ExportOptions::default()
            };
            let (at_export, again) = exported(&whole.log, options);
            assert_eq!(count, again, "{} '{expression}'", path.display());
            let one = read(at_record.path()).unwrap();
            let two = read(at_export.path()).unwrap();
            assert_eq!(
                one.packets,
                two.packets,
                "{} '{expression}'",
                path.display()
            );
            let ledger = filtered.ledger;
            assert_eq!(ledger.seen.packets, ledger.filtered.packets + count);
            matched += count;
        }
    }
    assert!(matched > 5_000, "{matched}");
}

/// A search by host reads only blocks whose summary may hold it, and misses nothing.
#[test]
fn block_summaries_never_hide_a_packet() {
    let model = model();
    let (mut searches, mut skipped) = (0, 0);
    for path in captures().iter().rev().step_by(3) {
        let Some(recorded) = record(path, &model, "log-all", None) else {
            continue;
        };
        let Some(original) = read(path) else {
            continue;
        };
        let of = |ip: &std::net::IpAddr| match ip {
            std::net::IpAddr::V4(v4) => (AddressFamily::Ipv4, v4.to_bits().into()),
            std::net::IpAddr::V6(v6) => (AddressFamily::Ipv6, v6.to_bits()),
        };
        for address in addresses(&original).into_iter().take(12) {
            let filter = Filter::parse(&format!("host {address}")).unwrap();
            let search = |select: Select| {
                let matches = |link, data: &[u8], len| {
                    filter
                        .compile(link)
                        .is_ok_and(|program| program.matches(data, len))
                };
                let options = ExportOptions {
                    select,
                    matches: Some(Box::new(matches)),
                    comments: false,
                    ..ExportOptions::default()
                };
                let mut sink = Vec::new();
                export(
                    &recorded.log,
                    &mut sink,
                    FileFormat::PcapNg,
                    &Find::default(),
                    options,
                )
                .unwrap()
            };
            let by_summary = search(Select {
                addresses: vec![vec![of(&address)]],
                ..Select::default()
            });
            let by_scan = search(Select::default());
            assert_eq!(
                by_summary.packets,
                by_scan.packets,
                "{} {address}",
                path.display()
            );
            searches += 1;
            skipped += u64::from(by_summary.examined < by_scan.examined);
        }
    }
    assert!(
        searches > 1_000 && skipped > 10,
        "{searches} searches, {skipped} skipped blocks"
    );
}

/// Addresses where IPv4 and IPv6 headers usually have them.
fn addresses(capture: &Capture) -> Vec<std::net::IpAddr> {
    let mut found = Vec::new();
    for packet in &capture.packets {
        for start in [0, 4, 14, 16, 18, 20, 50] {
            let Some(bytes) = packet.data.get(start..) else {
                continue;
            };
            let address = match bytes.first().map(|b| b >> 4) {
                Some(4) => bytes
                    .get(12..16)
                    .map(|b| std::net::IpAddr::from(<[u8; 4]>::try_from(b).unwrap())),
                Some(6) => bytes
                    .get(8..24)
                    .map(|b| std::net::IpAddr::from(<[u8; 16]>::try_from(b).unwrap())),
                _ => None,
            };
            if let Some(address) = address
                && !found.contains(&address)
            {
                found.push(address);
            }
        }
        if found.len() > 40 {
            break;
        }
    }
    found
}

/// Definitions of any size next to packets of any size, in blocks that are nearly full or too small
/// for either.
#[test]
fn large_definitions_never_take_a_packets_room() {
    use strata_capture::{PacketRef, PcapNgWriter};
    use strata_wire::Interface;
    use strata_wire::mix64;
    let model = model();
    let below = |n: u64, max: u64| usize::try_from(mix64(n) % max).unwrap();
    for round in 0..24 {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = PcapNgWriter::new(&mut file, &[]).unwrap();
        for id in 0..3_u16 {
            let mut interface = Interface::new(LinkType::ETHERNET, 0);
            let comment = "x".repeat(below(round * 10 + u64::from(id), 60_000));
            options::push_comment(&mut interface.options, &comment).unwrap();
            writer.interface(id, &interface).unwrap();
        }
        for n in 0..400_u64 {
            let data = vec![n.to_le_bytes()[0]; below(round * 1_000 + n, 20_000)];
            let packet = PacketRef {
                ts_ns: n,
                interface: u16::try_from(mix64(n) % 3).unwrap(),
                wire_len: u32::try_from(data.len()).unwrap(),
                data: &data,
                options: &[],
                has_timestamp: true,
            };
            writer.packet(&packet).unwrap();
        }
        writer.finish().unwrap();
        let recorded = record(file.path(), &model, "log-all", None).unwrap();
        let (back, _) = exported(&recorded.log, ExportOptions::default());
        assert_eq!(read(back.path()), read(file.path()), "round {round}");
    }
}
