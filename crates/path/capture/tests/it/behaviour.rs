//! Compression, truncation, damage, merging.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use strata_capture::{CaptureError, Input, InputOptions, Next, WarningKind};
use strata_wire::Meta;

use crate::common::{
    Item, Packet, data_dir, file, format_files, packet, pcap_of, pcapng_of, read, read_all,
    some_packets,
};

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    // As the zstd program does: damage is found even if it still decodes.
    encoder.include_checksum(true).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// What `xz`, `bzip2` or `lz4` makes of bytes, in small blocks: of one that is cut, bzip2 and lz4 can read nothing.
pub(crate) fn packed_by(program: &str, bytes: &[u8]) -> Vec<u8> {
    let options: &[&str] = match program {
        // In blocks of 64 KiB.
        "lz4" => &["-q", "-1", "-B4"],
        _ => &["-1"],
    };
    packed_with(program, options, bytes)
}

fn packed_with(program: &str, options: &[&str], bytes: &[u8]) -> Vec<u8> {
    let mut command = Command::new(program);
    let mut child = command
        .arg("-c")
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{program}");
    output.stdout
}

#[test]
fn compressed_files_read_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for (name, path) in format_files().into_iter().step_by(25) {
        let plain = read(&path);
        let bytes = fs::read(&path).unwrap();
        let (a, b) = bytes.split_at(bytes.len() / 2);
        for (kind, compressed) in [
            ("gzip", gzip(&bytes)),
            ("gzip members", [gzip(a), gzip(b)].concat()),
            ("zstd", zstd(&bytes)),
            ("zstd frames", [zstd(a), zstd(b)].concat()),
            ("xz", packed_by("xz", &bytes)),
            (
                "xz streams",
                [packed_by("xz", a), packed_by("xz", b)].concat(),
            ),
            ("bzip2", packed_by("bzip2", &bytes)),
            (
                "bzip2 streams",
                [packed_by("bzip2", a), packed_by("bzip2", b)].concat(),
            ),
            ("lz4", packed_by("lz4", &bytes)),
            (
                "lz4 frames",
                [packed_by("lz4", a), packed_by("lz4", b)].concat(),
            ),
        ] {
            let unpacked = read(&file(&folder, "compressed", &compressed));
            assert_eq!(plain.items, unpacked.items, "{name}, {kind}");
            assert_eq!(
                plain.warnings.len(),
                unpacked.warnings.len(),
                "{name}, {kind}"
            );
            let place = plain.error.as_ref().and_then(CaptureError::place);
            let other = unpacked.error.as_ref().and_then(CaptureError::place);
            assert_eq!(
                place.map(|place| place.offset),
                other.map(|place| place.offset)
            );
            assert!(other.is_none_or(|place| place.compressed));
        }
    }
}

/// A file cut anywhere gives its packets before the cut and a warning there.
#[test]
fn truncation_at_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    let packets = some_packets(6);
    for (bytes, header, overhead) in [(pcap_of(&packets), 24, 16), (pcapng_of(&packets), 28, 32)] {
        let whole = read(&file(&folder, "whole", &bytes));
        for len in 0..bytes.len() {
            let cut = read(&file(&folder, "cut", &bytes[..len]));
            if len < header {
                let error = cut.error.expect("a header that is cut is refused");
                assert_eq!(error.place().unwrap().offset, 0, "{error}");
                if len == 0 {
                    assert!(matches!(error, CaptureError::Empty { .. }));
                }
                continue;
            }
            assert!(cut.error.is_none(), "{len}: {:?}", cut.error);
            assert_eq!(cut.items, whole.items[..cut.items.len()], "{len}");
            // What was read ends at the warning, or at the end.
            let mut offset = u64::try_from(header).unwrap();
            for item in &cut.items {
                offset += match item {
                    Item::Packet(one) if overhead == 16 => 16 + one.data.len() as u64,
                    Item::Packet(one) => 32 + one.data.len().next_multiple_of(4) as u64,
                    Item::Meta(Meta::Interface { .. }) if overhead == 32 => 32,
                    Item::Meta(_) => 0,
                };
            }
            let warnings: Vec<_> = cut
                .warnings
                .iter()
                .map(|one| (one.kind, one.place.offset))
                .collect();
            if offset == len as u64 {
                assert_eq!(warnings, [], "{len}");
            } else {
                assert_eq!(warnings, [(WarningKind::Truncated, offset)], "{len}");
            }
        }
    }
}

#[test]
fn a_compressed_file_that_ends_early() {
    let folder = tempfile::tempdir().unwrap();
    let packets: Vec<_> = (0..3000u64)
        .map(|index| {
            // Decompressors read 64 KiB of xz at a time.
            let numbers = (0..20).map(|number| index * 20 + number);
            let noise =
                numbers.flat_map(|one| one.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
            let noise: Vec<u8> = noise.collect();
            packet(index, 0, &noise)
        })
        .collect();
    let bytes = pcap_of(&packets);
    let [xz, bzip2, lz4] = ["xz", "bzip2", "lz4"].map(|program| packed_by(program, &bytes));
    for whole in [gzip(&bytes), zstd(&bytes), xz, bzip2, lz4] {
        for part in [whole.len() / 2, whole.len() - 1] {
            let cut = read(&file(&folder, "cut", &whole[..part]));
            assert!(cut.error.is_none(), "{:?}", cut.error);
            let kinds: Vec<_> = cut.warnings.iter().map(|one| one.kind).collect();
            assert_eq!(kinds, [WarningKind::CompressionTruncated]);
            assert!(cut.warnings[0].place.compressed);
            assert!(cut.packets().eq(&packets[..cut.packets().count()]));
        }
        let mut damaged = whole.clone();
        let middle = damaged.len() / 2;
        damaged[middle..middle + 64].fill(0xff);
        let error = read(&file(&folder, "damaged", &damaged)).error.unwrap();
        let text = error.to_string();
        assert!(text.contains("of the decompressed data"), "{text}");
    }
}

/// Of an xz file that ends early, as many packets are read as `xz` itself can decompress, but for the one
/// that the last few bytes may end: a decoder looks some bytes ahead.
#[test]
fn an_xz_file_that_ends_early_gives_what_xz_gives() {
    let folder = tempfile::tempdir().unwrap();
    let packets: Vec<_> = (0..3000_u64)
        .map(|index| {
            // It compresses, but not well: uncompressed chunks have no state to wait for.
            let numbers = (0..20).map(|number| index * 20 + number);
            let noise =
                numbers.flat_map(|one| one.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
            let noise: Vec<u8> = noise.map(|byte| byte & 0x0f).collect();
            packet(index, 0, &noise)
        })
        .collect();
    let whole = packed_by("xz", &pcap_of(&packets));
    for part in [whole.len() / 4, whole.len() / 2, whole.len() - 100] {
        let path = file(&folder, "cut.xz", &whole[..part]);
        let unpacked = Command::new("xz").arg("-dc").arg(&path).output().unwrap();
        let most = read(&file(&folder, "unpacked", &unpacked.stdout));
        let cut = read(&path);
        assert!(cut.error.is_none(), "{:?}", cut.error);
        let kinds: Vec<_> = cut.warnings.iter().map(|one| one.kind).collect();
        assert_eq!(kinds, [WarningKind::CompressionTruncated]);
        let (count, most) = (cut.packets().count(), most.packets().count());
        assert!(most > 500 && count + 1 >= most, "{part}: {count} of {most}");
        assert!(cut.packets().eq(&packets[..count]));
    }
}

/// A header of a block of xz that asks for a dictionary of 4 GiB is refused before it is allocated.
#[test]
fn an_xz_stream_that_needs_too_much_memory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = packed_by("xz", &pcap_of(&some_packets(6)));
    // After the stream's header: size, flags, filter, size of properties, the dictionary's size.
    let [header_at, size_at] = [12, 16];
    assert_eq!(bytes[header_at + 2..size_at], [0x21, 1]);
    bytes[size_at] = 40;
    let header_len = (usize::from(bytes[header_at]) + 1) * 4;
    let sum_at = header_at + header_len - 4;
    let sum = crc32fast::hash(&bytes[header_at..sum_at]);
    bytes[sum_at..sum_at + 4].copy_from_slice(&sum.to_le_bytes());
    let error = read(&file(&folder, "large.xz", &bytes)).error.unwrap();
    assert!(
        error.to_string().contains("more than 256 MiB of memory"),
        "{error}"
    );
}

/// Blocks of all sizes, which refer to earlier ones or not, with and without checksums; and frames that are skipped.
#[test]
fn all_frames_of_lz4_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let packets: Vec<_> = (0..3000_u64)
        .map(|index| {
            // Half of it compresses, and repeats what is far away.
            let noise = (index % 400).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            packet(
                index,
                0,
                &[[0; 100], [noise.to_le_bytes()[3]; 100]].concat(),
            )
        })
        .collect();
    let bytes = pcap_of(&packets);
    for options in [
        &["-1"][..],
        &["-9", "-B4", "-BD"],
        &["-1", "-B5", "-BX"],
        &["-1", "-B6", "--no-frame-crc"],
        &["-12", "-B4", "-BD", "-BX", "--content-size"],
        &["--fast=1000", "-B7"],
    ] {
        let packed = packed_with("lz4", &[&["-q"], options].concat(), &bytes);
        let reading = read(&file(&folder, "whole.lz4", &packed));
        assert!(reading.error.is_none(), "{options:?}: {:?}", reading.error);
        assert!(reading.packets().eq(&packets), "{options:?}");
        let skipped = [&0x184d_2a53_u32.to_le_bytes()[..], &[3, 0, 0, 0], b"any"].concat();
        let both = [&packed[..], &skipped, &packed_with("lz4", options, b"")].concat();
        let reading = read(&file(&folder, "skipped.lz4", &both));
        assert!(reading.error.is_none() && reading.warnings.is_empty());
        assert!(reading.packets().eq(&packets), "{options:?}");
        // Where only a checksum tells of the damage.
        if !options.contains(&"--no-frame-crc") {
            let mut damaged = packed.clone();
            let last = damaged.len() - 1;
            damaged[last] ^= 1;
            let reading = read(&file(&folder, "damaged.lz4", &damaged));
            let error = reading.error.unwrap().to_string();
            let place = format!("byte {} of the decompressed data", bytes.len());
            assert!(
                error.contains("damaged.lz4") && error.contains(&place),
                "{error}"
            );
        }
    }
}

/// A file that ends between two blocks is no whole one.
#[test]
fn an_lz4_file_that_ends_after_a_block_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let packets = some_packets(600);
    let packed = packed_with("lz4", &["-1", "-B4", "--no-frame-crc"], &pcap_of(&packets));
    // The end mark.
    let (whole, end) = packed.split_at(packed.len() - 4);
    assert_eq!(end, [0; 4]);
    let reading = read(&file(&folder, "cut.lz4", whole));
    assert!(reading.error.is_none() && reading.packets().eq(&packets));
    let kinds: Vec<_> = reading.warnings.iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [WarningKind::CompressionTruncated]);
    let mut of_dictionary = packed;
    of_dictionary[4] |= 1;
    let error = read(&file(&folder, "dictionary.lz4", &of_dictionary))
        .error
        .unwrap();
    assert!(error.to_string().contains("needs a dictionary"), "{error}");
}

#[test]
fn damage_in_the_middle_comes_after_the_packets_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let packets = some_packets(600);
    let mut bytes = pcap_of(&packets[..300]);
    let at = bytes.len();
    bytes.extend_from_slice(&[0xff; 40]);
    let reading = read(&file(&folder, "damaged.pcap", &bytes));
    assert!(reading.packets().eq(&packets[..300]));
    let error = reading.error.unwrap();
    assert_eq!(error.place().unwrap().offset, at as u64);
    assert!(matches!(error, CaptureError::Damaged { .. }));

    let bytes = pcapng_of(&packets);
    let whole = read(&file(&folder, "whole.pcapng", &bytes));
    // The trailing length of a block in the middle.
    let prefix = pcapng_of(&packets[..300]).len();
    let mut damaged = bytes.clone();
    damaged[prefix - 4] ^= 1;
    let reading = read(&file(&folder, "damaged.pcapng", &damaged));
    assert_eq!(reading.items, whole.items[..reading.items.len()]);
    assert_eq!(reading.packets().count(), 299);
    let offset = pcapng_of(&packets[..299]).len();
    assert_eq!(
        reading.error.unwrap().place().unwrap().offset,
        offset as u64
    );
}

/// The order that merging guarantees, spelled out.
fn merged(inputs: &[Vec<Packet>]) -> Vec<Packet> {
    let mut next = vec![0; inputs.len()];
    let mut out = Vec::new();
    loop {
        let heads = inputs.iter().zip(&next).enumerate();
        let heads = heads.filter_map(|(index, (input, &at))| Some((input.get(at)?.ts_ns, index)));
        let Some((_, index)) = heads.min() else {
            return out;
        };
        let found = &inputs[index][next[index]];
        next[index] += 1;
        out.push(found.clone());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn merging_keeps_the_promised_order(
        times in prop::collection::vec(prop::collection::vec(0u64..50, 0..700), 1..6),
        ng in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut inputs = Vec::new();
        let mut paths = Vec::new();
        for (index, times) in times.iter().enumerate() {
            let mut packets: Vec<_> = times
                .iter()
                .enumerate()
                .map(|(at, &ts)| packet(ts, 0, format!("{index} {at}").as_bytes()))
                .collect();
            let bytes = if ng { pcapng_of(&packets) } else { pcap_of(&packets) };
            paths.push(file(&folder, &format!("{index}"), &bytes));
            // Interfaces are numbered in the order in which the inputs deliver them.
            for packet in &mut packets {
                packet.interface = u16::try_from(index).unwrap();
            }
            inputs.push(packets);
        }
        let mut options = InputOptions::default();
        options.window_bytes = 4096;
        let reading = read_all(&paths, &options);
        prop_assert!(reading.error.is_none());
        let all: Vec<_> = reading.packets().cloned().collect();
        prop_assert_eq!(all, merged(&inputs));
    }

    /// Random bytes after each kind of file start, and a real file with some bytes changed: an end
    /// or an error, never a panic.
    #[test]
    fn random_bytes_never_panic(
        start in 0..6usize,
        noise in prop::collection::vec(any::<u8>(), 0..2000),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        let packets = some_packets(20);
        let mut bytes = match start {
            0 => Vec::new(),
            1 => pcap_of(&[]),
            2 => pcapng_of(&[]),
            3 => pcap_of(&packets),
            4 => fs::read(data_dir().join("formats/pcapng-test-generator/be_test102.pcapng")).unwrap(),
            _ => fs::read(data_dir().join("formats/pcapng-test-generator/le_test202.pcapng")).unwrap(),
        };
        for (index, byte) in changes {
            if !bytes.is_empty() {
                let at = index.index(bytes.len());
                bytes[at] = byte;
            }
        }
        bytes.extend_from_slice(&noise);
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder, "noise", &bytes);
        let reading = read(&path);
        let mut small = InputOptions::default();
        small.window_bytes = 0;
        let again = read_all(std::slice::from_ref(&path), &small);
        prop_assert_eq!(&reading.items, &again.items);
        small.read_ahead = true;
        let ahead = read_all(&[path], &small);
        prop_assert_eq!(reading.items, ahead.items);
    }
}

/// Bytes that look like headers of records around the same time, well-formed or not.
fn fake_headers(numbers: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &number in numbers {
        let len = match number % 4 {
            0 => 0,
            1 => number >> 20,
            2 => 262_144,
            _ => number,
        };
        let seconds = 1_700_000_000 + number % 300;
        for field in [seconds, number % 1_000_000, len, len] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        for field in [6, len, 0, 0x0006_0a24, number, len, len] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.truncate(bytes.len() - (number % 5) as usize);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Files of several windows whose payload looks like records, some damaged: read ahead, with
    /// headers fetched by several walkers, they are what they are read in place.
    #[test]
    fn payload_that_looks_like_headers_changes_nothing(
        numbers in prop::collection::vec(any::<u32>(), 1..60),
        lens in prop::collection::vec(0..3_000_usize, 400..900),
        is_pcapng: bool,
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let fake = fake_headers(&numbers);
        let packets: Vec<Packet> = (0_u64..)
            .zip(&lens)
            .map(|(index, &len)| {
                let data: Vec<u8> = fake.iter().cycle().skip(len % 50).take(len).copied().collect();
                packet(1_700_000_000_000_000_000 + index * 1_000_000, 0, &data)
            })
            .collect();
        let mut bytes = if is_pcapng { pcapng_of(&packets) } else { pcap_of(&packets) };
        if let Some((at, byte)) = damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder, "hostile", &bytes);
        let reading = read(&path);
        for (window_bytes, viewed_bytes_min) in [(256 << 10, u64::MAX), (1 << 20, u64::MAX), (256 << 10, 0)] {
            let mut options = InputOptions::default();
            (options.window_bytes, options.read_ahead) = (window_bytes, true);
            options.viewed_bytes_min = viewed_bytes_min;
            let ahead = read_all(std::slice::from_ref(&path), &options);
            prop_assert!(reading.items == ahead.items);
            prop_assert_eq!(&reading.warnings, &ahead.warnings);
            let text = |reading: &crate::common::Reading| reading.error.as_ref().map(ToString::to_string);
            prop_assert_eq!(text(&reading), text(&ahead));
        }
    }
}

/// Packets larger than a window, one after another, read ahead.
#[test]
fn large_packets_are_read_ahead_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut packets = some_packets(40);
    for (index, packet) in packets.iter_mut().enumerate() {
        let len = [60, 250_000, 100_000][index % 3];
        packet.data = (0..len)
            .map(|n| u8::try_from((n * 7 + index) % 256).unwrap())
            .collect();
        packet.wire_len = u32::try_from(len).unwrap();
    }
    let path = file(&folder, "large", &pcap_of(&packets));
    for window_bytes in [0, 64 << 10] {
        let mut options = InputOptions::default();
        options.window_bytes = window_bytes;
        options.read_ahead = true;
        let reading = read_all(std::slice::from_ref(&path), &options);
        assert!(reading.error.is_none());
        let all: Vec<_> = reading.packets().cloned().collect();
        assert_eq!(all.len(), 40);
        assert!(all.iter().zip(&packets).all(|(a, b)| a.data == b.data));
    }
}

/// When some of several inputs are damaged, the others are read to their ends, and then each damage
/// is an error.
#[test]
fn an_error_ends_only_its_input() {
    let folder = tempfile::tempdir().unwrap();
    let packets = some_packets(1_000);
    let mut broken = pcap_of(&packets[..3]);
    broken.extend_from_slice(&[0xff; 40]);
    let paths = [
        file(&folder, "broken-1", &broken),
        file(&folder, "sound", &pcap_of(&packets)),
        file(&folder, "broken-2", &broken),
    ];
    let mut input = Input::open(&paths, &InputOptions::default()).unwrap();
    let (mut count, mut errors) = (0, Vec::new());
    loop {
        match input.advance() {
            Ok(Next::Packets) => {
                assert_eq!(errors.len(), 0);
                count += input.batch().len();
            }
            Ok(Next::Meta(_)) => {}
            Ok(Next::End) => break,
            Err(error) => errors.push(error.to_string()),
        }
    }
    assert_eq!((count, errors.len()), (1_006, 2));
    assert!(errors[0].contains("broken-1") && errors[1].contains("broken-2"));
}

/// Found by fuzzing: a decoder that hit damage forgot what it had decoded in the same call, and
/// with it up to a window of packets.
#[test]
fn damage_in_a_compressed_file_costs_no_packet_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let packets = some_packets(1000);
    let bytes = pcap_of(&packets);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let (intact, rest) = bytes.split_at(bytes.len() / 2);
    encoder.write_all(intact).unwrap();
    encoder.flush().unwrap();
    let at = encoder.get_ref().len();
    encoder.write_all(rest).unwrap();
    let mut damaged = encoder.finish().unwrap();
    damaged[at..at + 20].fill(0x07);
    let reading = read(&file(&folder, "damaged.pcap.gz", &damaged));
    assert!(reading.error.is_some());
    let count = reading.packets().count();
    // Less than one piece of the decompressor's output: 512 bytes.
    let lost: usize = packets[count..500].iter().map(|p| 16 + p.data.len()).sum();
    assert!(lost <= 512, "{count} of 500 packets");
    assert!(reading.packets().eq(&packets[..count]));
}
