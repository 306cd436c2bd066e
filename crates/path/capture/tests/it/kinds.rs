//! Kinds of files: versions, byte orders, blocks, limits, and what is refused.

use std::slice;

use strata_capture::{
    CaptureError, Input, InputOptions, PcapNgWriter, PcapWriter, WarningKind, WriteError,
};
use strata_wire::pcapng::{block_type, options};
use strata_wire::{Interface, LinkType, Meta};

use crate::common::{Item, file, format_files, packet, pcap_of, pcapng_of, read};

#[test]
fn other_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (bytes, word) in [
        (&b""[..], "empty"),
        (b"snoop\0\0\0\0\0\0\x02", "snoop"),
        (b"GMBU\x00\x02", "Network Monitor"),
        (b"\x02\x21\x4c\x18", "lz4 file of the legacy format"),
        (b"hello", "68 65 6c 6c 6f"),
        (b"\xa1", "a1"),
    ] {
        let error = read(&file(&folder, "other", bytes)).error.unwrap();
        let text = error.to_string();
        assert!(text.contains(word) && text.contains("byte 0"), "{text}");
    }
    let missing = read(&folder.path().join("missing")).error.unwrap();
    assert!(matches!(missing, CaptureError::Open { .. }), "{missing}");
    let none = Input::open(&[], &InputOptions::default()).unwrap_err();
    assert!(matches!(none, CaptureError::NoInput));
    let directory = read(folder.path()).error.unwrap();
    assert!(directory.to_string().contains("directory"), "{directory}");
}

/// The generator's custom options lack the enterprise number: text is in its place, and is swapped
/// with the byte order.
fn turn_back(item: &mut Item) {
    let bytes = match item {
        Item::Packet(packet) => &mut packet.options,
        Item::Meta(Meta::Section { options }) => options,
        Item::Meta(Meta::Interface { interface, .. }) => &mut interface.options,
        // A custom block's options are in the part that only its owner understands.
        Item::Meta(Meta::Block {
            block_type: block_type::CUSTOM,
            body,
            ..
        }) => return body.truncate(4),
        Item::Meta(Meta::Block { body, .. }) => body,
    };
    for (turned, text) in [
        (b"af ake string", b"a fake string"),
        (b"emos fake byt", b"some fake byt"),
    ] {
        let mut at = 0;
        while let Some(found) = bytes[at..]
            .windows(turned.len())
            .position(|part| part == turned)
        {
            at += found;
            bytes[at..at + text.len()].copy_from_slice(text);
        }
    }
}

/// The generator writes each test in both byte orders: the content is the same.
#[test]
fn byte_orders_agree() {
    let mut pairs = 0;
    for (name, big) in format_files() {
        let Some(stem) = name.strip_prefix("pcapng-test-generator/be_") else {
            continue;
        };
        let little = big.with_file_name(format!("le_{stem}"));
        let (mut a, mut b) = (read(&big), read(&little));
        a.items.iter_mut().for_each(turn_back);
        b.items.iter_mut().for_each(turn_back);
        assert_eq!(a.items, b.items, "{name}");
        assert_eq!(a.warnings.len(), b.warnings.len(), "{name}");
        assert!(a.error.is_none() && b.error.is_none());
        pairs += 1;
    }
    assert_eq!(pairs, 24);
}

/// A pcap header and one record, field by field, in either order.
fn hand_made(
    big: bool,
    magic: u32,
    version: (u16, u16),
    link: u32,
    record: &[u32],
    rest: &[u8],
) -> Vec<u8> {
    let word = |value: u32| {
        if big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    };
    let half = |value: u16| {
        if big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    };
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&word(magic));
    bytes.extend_from_slice(&half(version.0));
    bytes.extend_from_slice(&half(version.1));
    for value in [0, 0, 4, link].iter().chain(record) {
        bytes.extend_from_slice(&word(*value));
    }
    bytes.extend_from_slice(rest);
    bytes
}

#[test]
fn kinds_of_pcap() {
    let folder = tempfile::tempdir().unwrap();
    for big in [false, true] {
        let one = |magic, version, link, record: &[u32], rest: &[u8]| {
            let bytes = hand_made(big, magic, version, link, record, rest);
            let reading = read(&file(&folder, "made", &bytes));
            assert!(reading.error.is_none() && reading.warnings.is_empty());
            let interface = reading.interfaces()[0].clone();
            (interface, reading.packets().next().unwrap().clone())
        };
        // Longer than the snapshot length: kept.
        let record = [u32::MAX, 999_999, 6, 60];
        let (interface, found) = one(0xa1b2_c3d4, (2, 4), 0x2400_0001, &record, b"abcdef");
        assert_eq!(found.ts_ns, 4_294_967_295_999_999_000);
        assert_eq!((found.wire_len, &found.data[..]), (60, &b"abcdef"[..]));
        assert_eq!((interface.link, interface.snaplen), (LinkType::ETHERNET, 4));
        assert_eq!(interface.fcs_bits(), Some(32));
        let (_, found) = one(0xa1b2_3c4d, (2, 4), 1, &[1, 7, 6, 60], b"abcdef");
        assert_eq!(found.ts_ns, 1_000_000_007);
        // Kuznetzov's: 8 more bytes.
        let (_, found) = one(0xa1b2_cd34, (2, 4), 1, &[1, 7, 2, 60, 9, 9], b"ab");
        assert_eq!((found.ts_ns, &found.data[..]), (1_000_007_000, &b"ab"[..]));
        // Old versions: lengths swapped, or either way.
        for version in [(2, 2), (543, 0)] {
            let (_, found) = one(0xa1b2_c3d4, version, 1, &[1, 7, 60, 2], b"ab");
            assert_eq!((found.wire_len, &found.data[..]), (60, &b"ab"[..]));
        }
        for lengths in [[60, 2], [2, 60]] {
            let record = [1, 7, lengths[0], lengths[1]];
            let (_, found) = one(0xa1b2_c3d4, (2, 3), 1, &record, b"ab");
            assert_eq!((found.wire_len, &found.data[..]), (60, &b"ab"[..]));
        }
    }
}

/// One block of a little-endian file, with lengths that include the padding.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    let total = u32::try_from(12 + body.len().next_multiple_of(4)).unwrap();
    bytes.extend_from_slice(&total.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes.resize(total as usize - 4, 0);
    bytes.extend_from_slice(&total.to_le_bytes());
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn kinds_of_pcapng_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let mut interface = words(&[1, 0]);
    // if_tsresol 2^-10, if_tsoffset 5 s.
    options::push(&mut interface, 9, &[0x8a]).unwrap();
    options::push(&mut interface, 14, &5i64.to_le_bytes()).unwrap();
    options::push(&mut interface, 2, b"eth7\0").unwrap();
    let mut enhanced = words(&[0, 0, 512, 4, 64]);
    enhanced.extend_from_slice(b"wxyz");
    options::push_comment(&mut enhanced, "hi").unwrap();
    let mut broken = enhanced.clone();
    broken.extend_from_slice(&[1, 0, 99, 0]);
    let mut obsolete = words(&[0x0007_0000, 0, 1024, 3, 3]);
    obsolete.extend_from_slice(b"abc\0");
    let mut simple = words(&[5]);
    simple.extend_from_slice(b"hello");
    let mut statistics = words(&[0, 0, 2048]);
    options::push(&mut statistics, 2, &words(&[0, 1024])).unwrap();
    let mut bytes = [
        block(0x0A0D_0D0A, &words(&[0x1A2B_3C4D, 1, 7, 0])),
        block(1, &interface),
        block(6, &enhanced),
        block(6, &broken),
        block(2, &obsolete),
        block(3, &simple),
        block(5, &statistics),
        block(0x8000_0001, b"mine"),
        block(0x4000_0BAD, b"private!"),
        block(4, &[1, 0, 9, 0]),
    ]
    .concat();
    // Total lengths that do not count the padding.
    let at = bytes.len();
    let mut short = words(&[0, 0, 1024, 3, 3]);
    short.extend_from_slice(b"end");
    bytes.extend_from_slice(&block(6, &short));
    bytes[at + 4] -= 1;
    let end = bytes.len();
    bytes[end - 4] -= 1;

    let reading = read(&file(&folder, "made", &bytes));
    assert!(reading.error.is_none(), "{:?}", reading.error);
    assert_eq!(reading.interfaces()[0].name(), Some("eth7"));
    let packets: Vec<_> = reading.packets().collect();
    assert_eq!(packets.len(), 5);
    assert_eq!(packets[0].ts_ns, 5_500_000_000);
    for one in &packets[..2] {
        assert_eq!(options::comments(&one.options).collect::<Vec<_>>(), ["hi"]);
        assert_eq!((one.wire_len, &one.data[..]), (64, &b"wxyz"[..]));
    }
    assert_eq!(
        (packets[2].ts_ns, &packets[2].data[..]),
        (6_000_000_000, &b"abc"[..])
    );
    assert_eq!(
        options::find(&packets[2].options, 4),
        Some(&7u64.to_le_bytes()[..])
    );
    assert_eq!(
        (packets[3].has_timestamp, &packets[3].data[..]),
        (false, &b"hello"[..])
    );
    assert_eq!(
        (packets[4].ts_ns, &packets[4].data[..]),
        (6_000_000_000, &b"end"[..])
    );
    let body = reading.metas().find_map(|meta| match meta {
        Meta::Block {
            block_type: 5,
            interface: Some(0),
            body,
        } => Some(body),
        _ => None,
    });
    let body = body.expect("statistics are delivered");
    let seven = words(&[1, 2_705_032_704]);
    assert_eq!(body[4..12], seven);
    let six = words(&[1, 1_705_032_704]);
    assert_eq!(options::find(&body[12..], 2), Some(&six[..]));
    let kinds: Vec<_> = reading
        .warnings
        .iter()
        .map(|warning| warning.kind)
        .collect();
    assert_eq!(
        kinds,
        [
            WarningKind::Options,
            WarningKind::UnknownBlock(0x8000_0001),
            WarningKind::Block,
        ]
    );
}

#[test]
fn large_packets_and_large_lies() {
    let folder = tempfile::tempdir().unwrap();
    let large = packet(1, 0, &vec![3; 256 << 10]);
    for bytes in [
        pcap_of(slice::from_ref(&large)),
        pcapng_of(slice::from_ref(&large)),
    ] {
        let reading = read(&file(&folder, "large", &bytes));
        assert!(reading.packets().eq([&large]), "{:?}", reading.error);
    }
    let larger = packet(1, 0, &vec![3; (256 << 10) + 1]);
    for bytes in [
        pcap_of(slice::from_ref(&larger)),
        pcapng_of(slice::from_ref(&larger)),
    ] {
        let error = read(&file(&folder, "larger", &bytes)).error.unwrap();
        assert!(
            error.to_string().contains("262145 captured bytes"),
            "{error}"
        );
    }
    // USBPCAP may have more.
    let mut writer = PcapWriter::new(Vec::new());
    writer
        .interface(0, &Interface::new(LinkType(249), 0))
        .unwrap();
    let huge = packet(1, 0, &vec![3; 20 << 20]);
    writer.packet(&huge.borrow()).unwrap();
    let reading = read(&file(&folder, "usb", &writer.finish().unwrap()));
    assert!(reading.packets().eq([&huge]), "{:?}", reading.error);
}

#[test]
fn writers_refuse_what_does_not_fit() {
    let mut pcap = PcapWriter::new(Vec::new());
    pcap.interface(0, &Interface::new(LinkType::ETHERNET, 0))
        .unwrap();
    let error = pcap
        .interface(1, &Interface::new(LinkType::RAW, 0))
        .unwrap_err();
    assert!(
        matches!(error, WriteError::SecondLinkType { .. }),
        "{error}"
    );
    let error = pcap.packet(&packet(0, 1, b"").borrow()).unwrap_err();
    assert!(matches!(error, WriteError::UnknownInterface(1)), "{error}");
    let error = pcap.packet(&packet(u64::MAX, 0, b"").borrow()).unwrap_err();
    assert!(matches!(error, WriteError::TooLate { .. }), "{error}");
    let mut ng = PcapNgWriter::new(Vec::new(), &[]).unwrap();
    let error = ng.packet(&packet(0, 0, b"").borrow()).unwrap_err();
    assert!(matches!(error, WriteError::UnknownInterface(0)), "{error}");
}

/// A section with an interface of these options.
fn section_with(options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut interface = words(&[1, 0]);
    for (code, value) in options {
        options::push(&mut interface, *code, value).unwrap();
    }
    let section = words(&[0x1A2B_3C4D, 1, u32::MAX, u32::MAX]);
    [block(0x0A0D_0D0A, &section), block(1, &interface)].concat()
}

fn packet_at(ticks: u64) -> Vec<u8> {
    let [low, high] = [ticks & u64::from(u32::MAX), ticks >> 32];
    let [low, high] = [low, high].map(|half| u32::try_from(half).unwrap());
    block(6, &words(&[0, high, low, 0, 0]))
}

#[test]
fn times_without_any_offset_are_counted_once() {
    let folder = tempfile::tempdir().unwrap();
    let far = packet_at(u64::from(u32::MAX) << 32);
    let bytes = [section_with(&[(9, &[0])]), far.clone(), far].concat();
    let reading = read(&file(&folder, "far", &bytes));
    assert!(reading.packets().all(|packet| packet.ts_ns == u64::MAX));
    let [warning] = &reading.warnings[..] else {
        panic!("{:?}", reading.warnings);
    };
    assert_eq!(
        (warning.kind, warning.count),
        (WarningKind::TimeOutOfRange, 2)
    );
    assert_eq!(warning.place.offset, 28 + 28);
    assert!(warning.to_string().contains("2 times"), "{warning}");
}

/// What tshark says is the time of each packet.
fn times_by_tshark(path: &std::path::Path) -> Vec<String> {
    let mut command = std::process::Command::new("tshark");
    let command = command.args(["-n", "-T", "fields", "-e", "frame.time_epoch", "-r"]);
    let output = command.arg(path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Times before 1970 and after 2554 keep order and distances, and an export has them as the file has.
#[test]
fn times_out_of_range_come_back() {
    let folder = tempfile::tempdir().unwrap();
    const FAR: u64 = 18_446_744_073_709_551_000;
    let of_ticks = |ticks: &[u64]| ticks.iter().flat_map(|&ticks| packet_at(ticks)).collect();
    let back: Vec<u8> = of_ticks(&[500_000_001, 0, 10, 2_000_000_000_000_000, 499_999_999]);
    let bytes = [
        // Microseconds, taken for what were nanoseconds, and some in order between.
        section_with(&[(2, b"eth0")]),
        of_ticks(&[1_700_000_000_000_000, FAR, FAR + 1, FAR - 7, 5, FAR + 600]),
        // From the year 1000 on: in the file a positive number.
        section_with(&[(9, &[6]), (14, &(-30_610_224_000_i64).to_le_bytes())]),
        back,
    ]
    .concat();
    let original = file(&folder, "far", &bytes);
    let reading = read(&original);
    assert!(reading.error.is_none(), "{:?}", reading.error);
    let kinds = |reading: &crate::common::Reading| {
        let each = reading.warnings.iter();
        each.map(|warning| (warning.kind, warning.count))
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(&reading), [(WarningKind::TimeShifted, 9)]);
    let packets: Vec<_> = reading.packets().collect();
    let since = |at: usize, other: usize| {
        let (at, other) = (packets[at].ts_ns, packets[other].ts_ns);
        i128::from(at) - i128::from(other)
    };
    assert_eq!(
        [since(2, 1), since(3, 1), since(5, 1)],
        [1_000, -7_000, 600_000]
    );
    assert_eq!(
        [since(7, 6), since(8, 6)],
        [-500_000_001_000, -499_999_991_000]
    );
    let names: Vec<_> = reading.interfaces().iter().map(|one| one.name()).collect();
    assert_eq!(names[..2], [Some("eth0"); 2]);

    let mut exported = original.clone();
    let mut before = reading;
    for round in 0..2 {
        let mut writer = PcapNgWriter::new(Vec::new(), &[]).unwrap();
        for item in &before.items {
            match item {
                Item::Packet(packet) => writer.packet(&packet.borrow()).unwrap(),
                Item::Meta(meta) => writer.meta(meta).unwrap(),
            }
        }
        exported = file(
            &folder,
            &format!("export-{round}"),
            &writer.finish().unwrap(),
        );
        let again = read(&exported);
        assert_eq!((kinds(&again), again.error.is_none()), (Vec::new(), true));
        assert!(again.packets().eq(before.packets()));
        assert_eq!(again.interfaces(), before.interfaces());
        before = again;
    }
    let (theirs, ours) = (times_by_tshark(&original), times_by_tshark(&exported));
    assert_eq!(theirs.len(), 11);
    assert_eq!(
        theirs
            .iter()
            .map(|time| time.trim_end_matches('0'))
            .collect::<Vec<_>>(),
        ours.iter()
            .map(|time| time.trim_end_matches('0'))
            .collect::<Vec<_>>(),
    );

    // pcap has no offset, and says so.
    let mut pcap = PcapWriter::new(Vec::new());
    for (id, interface) in (0..).zip(before.interfaces()) {
        pcap.interface(id, interface).unwrap();
    }
    let written = before.packets().map(|packet| pcap.packet(&packet.borrow()));
    let refused = written.filter(|done| matches!(done, Err(WriteError::ShiftedTimes(_))));
    assert_eq!(refused.count(), 9);
}

#[test]
fn interfaces_have_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = block(0x0A0D_0D0A, &words(&[0x1A2B_3C4D, 1, u32::MAX, u32::MAX]));
    let start = bytes.len() as u64;
    for _ in 0..65_536 {
        bytes.extend_from_slice(&block(1, &words(&[1, 0])));
    }
    let reading = read(&file(&folder, "many", &bytes));
    assert_eq!(reading.interfaces().len(), 65_535);
    let error = reading.error.unwrap();
    assert!(
        matches!(error, CaptureError::TooManyInterfaces { .. }),
        "{error}"
    );
    assert_eq!(error.place().unwrap().offset, start + 65_535 * 20);
}

#[test]
fn threads_may_share() {
    fn check<T: Send + Sync>() {}
    check::<Input>();
    check::<strata_capture::Batch<'_>>();
    check::<CaptureError>();
}
