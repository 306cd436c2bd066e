//! Headers come out as they went in: every one of a datagram that arrived, whatever else is lost.

use proptest::prelude::*;
use strata_exporter::{Datagram, HeaderReader, HeaderWriter, LEN_USUAL, Label, Sequence, TooLong};
use strata_testkit::sim::{Rng, seeds};
use strata_wire::LinkType;

use crate::common::{
    Kept, SOURCE, captured, compressed, decompressed, generated, in_trains, paper,
};

/// UDP over IPv4 in Ethernet's 1,500 bytes.
const ROOM: usize = 1472;

/// Every capture, with up to 20 % of the datagrams lost.
#[test]
fn every_header_of_every_capture_is_exact_whatever_is_lost() {
    let mut captures = strata_testkit::format_captures();
    captures.extend(strata_testkit::labelled_captures());
    let (mut rng, mut packets, mut lost, mut late) = (Rng::new(20), 0, 0, 0);
    for path in &captures {
        for (link, headers) in captured(path).into_iter().flatten() {
            // Long headers are rare, and need a larger datagram.
            let room = [256, ROOM, LEN_USUAL, 9000][exact_index(rng.below(4))];
            let datagrams = compressed(link, &headers, room);
            assert!(datagrams.iter().all(|datagram| datagram.len() <= room));
            let percent = rng.below(21);
            let mut arrived: Vec<_> = datagrams
                .iter()
                .filter(|_| rng.below(100) >= percent)
                .collect();
            // The network overtakes now and then.
            for index in 1..arrived.len() {
                if rng.below(10) == 0 {
                    arrived.swap(index - 1, index);
                }
            }
            let mut sequence = Sequence::default();
            for bytes in &arrived {
                assert!(sequence.accept(&Datagram::read(bytes).unwrap()));
                assert!(
                    !sequence.accept(&Datagram::read(bytes).unwrap()),
                    "a repetition"
                );
            }
            let found = decompressed(arrived.iter().copied());
            for (&number, header) in &found {
                let index = usize::try_from(number).unwrap();
                assert_eq!(
                    *header,
                    headers[index],
                    "{} packet {number}",
                    path.display()
                );
            }
            let counters = sequence.counters();
            assert_eq!(counters.packets, found.len() as u64);
            assert_eq!(
                counters.before + counters.packets + counters.lost,
                sequence.numbered(),
            );
            if percent == 0 && room == 9000 {
                assert_eq!(found.len(), headers.len(), "{}", path.display());
            }
            packets += counters.packets;
            lost += counters.lost;
            late += counters.late;
        }
    }
    assert!(
        packets > 100_000 && lost > 5_000 && late > 50,
        "{packets} {lost} {late}"
    );
}

fn exact_index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

/// Packets that are nearly plain: generated ones, changed.
#[test]
fn changed_headers_of_every_form_are_exact() {
    let plain = in_trains(&generated("cic-w3", 20_000), 3, 2000);
    seeds(40, |seed| {
        let mut rng = Rng::new(seed);
        let start = exact_index(rng.below(19_000));
        let link = [
            LinkType::ETHERNET,
            LinkType::RAW,
            LinkType::LINUX_SLL,
            LinkType(9999),
        ][exact_index(rng.below(4))];
        let mut headers: Vec<Kept> = plain[start..start + 1000].to_vec();
        for header in &mut headers {
            match link {
                LinkType::RAW => drop(header.bytes.drain(..14)),
                LinkType::LINUX_SLL => drop(header.bytes.splice(..12, [7; 14])),
                _ => {}
            }
            if rng.below(8) == 0 {
                let at = 12_usize.min(header.bytes.len());
                header.bytes.splice(at..at, [0x81, 0, 0, 5]);
            }
            for _ in 0..rng.below(3) * rng.below(3) {
                let at = exact_index(rng.below(header.bytes.len() as u64));
                header.bytes[at] = rng.bits().to_le_bytes()[0];
            }
            if rng.below(20) == 0 {
                let len = exact_index(rng.below(header.bytes.len() as u64 + 1));
                header.bytes.truncate(len);
            }
            match rng.below(30) {
                0 => header.ts_ns = rng.bits(),
                1 => header.ts_ns -= rng.below(1_000_000),
                2 => header.wire_len = u32::try_from(rng.below(1 << 32)).unwrap(),
                3 => {
                    header.label = Label {
                        policy: u16::try_from(rng.below(20)).unwrap(),
                        class: rng.bits().to_le_bytes()[0] & 3,
                        one_in: 10,
                    };
                }
                _ => {}
            }
        }
        let room = 128 + exact_index(rng.below(3000));
        let found = decompressed(&compressed(link, &headers, room));
        let too_long = headers.len() - found.len();
        assert!(room < 600 || too_long == 0, "{too_long} of {room}");
        for (number, header) in found {
            assert_eq!(header, headers[exact_index(number)], "packet {number}");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any bytes are a header.
    #[test]
    fn any_bytes_are_exact(
        headers in prop::collection::vec(
            (any::<u64>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..300)), 0..60),
        link in prop::sample::select(vec![0_u16, 1, 101, 105, 113, 276]),
    ) {
        let headers: Vec<Kept> = headers.into_iter().map(|(ts_ns, wire_len, bytes)| Kept {
            ts_ns, wire_len, bytes, label: Label::default(),
        }).collect();
        let found = decompressed(&compressed(LinkType(link), &headers, ROOM));
        prop_assert_eq!(found.into_values().collect::<Vec<_>>(), headers);
    }

    /// No datagram panics, and one that is changed gives headers or an error that says where.
    #[test]
    fn forged_datagrams_are_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        cut in any::<prop::sample::Index>(), is_cut in any::<bool>(), first in 0_usize..1000,
    ) {
        let headers = &FORGED[first..first + 200];
        for mut datagram in compressed(LinkType::ETHERNET, headers, ROOM) {
            for (at, value) in &changes {
                *at.get_mut(&mut datagram) = *value;
            }
            if is_cut {
                datagram.truncate(cut.index(datagram.len()));
            }
            let mut packets = 0;
            let read = HeaderReader::new().read(&datagram, |_, _| packets += 1);
            match read {
                Ok(read) => prop_assert_eq!(packets, u64::from(read.packets)),
                Err(error) => prop_assert!(error.offset <= error.len),
            }
        }
    }
}

static FORGED: std::sync::LazyLock<Vec<Kept>> =
    std::sync::LazyLock::new(|| generated("cic-w3", 1200));

/// More flows, addresses, starts of frames and labels than are remembered.
#[test]
fn tables_that_are_full_stay_exact() {
    let mut headers = generated("core-2015", 4_000);
    for (number, header) in headers.iter_mut().enumerate() {
        header.bytes[4] = u8::try_from(number % 40).unwrap();
        header.label.policy = u16::try_from(number / 3 % 50).unwrap();
    }
    let datagrams = compressed(LinkType::ETHERNET, &headers, 65_000);
    assert!(datagrams.len() < 6, "{} datagrams", datagrams.len());
    let found: Vec<Kept> = decompressed(&datagrams).into_values().collect();
    assert!(found == headers);
}

#[test]
fn a_header_that_fits_nowhere_is_refused_and_numbered() {
    let mut writer = HeaderWriter::new(SOURCE, LinkType::ETHERNET, 256);
    let mut headers = generated("cic-w3", 3);
    headers[1].bytes.resize(300, 1);
    let mut datagrams = Vec::new();
    for (number, header) in headers.iter().enumerate() {
        let put = writer.put(&header.header(), |bytes| datagrams.push(bytes.to_vec()));
        let expected = if number == 1 {
            Err(TooLong {
                len: 300,
                room: 256,
            })
        } else {
            Ok(())
        };
        assert_eq!(put, expected);
    }
    writer.skip(5, |bytes| datagrams.push(bytes.to_vec()));
    writer.end(|bytes| datagrams.push(bytes.to_vec()));
    let mut sequence = Sequence::default();
    for datagram in &datagrams {
        assert!(sequence.accept(&Datagram::read(datagram).unwrap()));
    }
    let counters = sequence.counters();
    assert_eq!(
        (counters.packets, counters.lost, counters.lost_datagrams),
        (2, 6, 0)
    );
    assert_eq!(
        decompressed(&datagrams).into_keys().collect::<Vec<_>>(),
        [0, 2]
    );
}

/// Packets of a datagram, beside the paper's algorithm.
#[test]
fn w3_takes_few_datagrams() {
    const PACKETS: usize = 100_000;
    let w3 = generated("cic-w3", PACKETS);
    for (headers, bar) in [(&w3, 45), (&in_trains(&w3, 3, 8 * 32_768), 60)] {
        let (_, of_paper) = paper::compressed(headers, ROOM);
        let datagrams = compressed(LinkType::ETHERNET, headers, ROOM);
        // Those of one length leave with one message: all but the last two, which were not full.
        let full = datagrams.iter().filter(|one| one.len() == ROOM).count();
        assert!(full * 100 > datagrams.len() * 99, "{full} are full");
        let ours = datagrams.len();
        let ratio = PACKETS as f64 / ours as f64;
        println!(
            "{ratio:.1}:1, the paper's {:.1}:1",
            PACKETS as f64 / of_paper as f64
        );
        assert!(PACKETS >= bar * ours, "{ratio}:1");
        assert!(
            13 * ours <= 10 * of_paper,
            "{ours} and {of_paper} datagrams"
        );
    }
}

/// The peer loses nothing either.
#[test]
fn the_papers_algorithm_is_exact_if_nothing_is_lost() {
    let headers = in_trains(&generated("cic-w3", 5_000), 3, 1000);
    let (bytes, _) = paper::compressed(&headers, ROOM);
    let (mut state, mut rest) = (paper::State::new(), &bytes[..]);
    for header in &headers {
        let (bytes, ts_ns, after) = state.decompress(rest);
        assert_eq!((&bytes, ts_ns), (&header.bytes, header.ts_ns));
        rest = after;
    }
    assert!(rest.is_empty());
}

/// What docs/formats/export.md shows, and what must not change without another version.
#[test]
fn golden_datagrams() {
    use std::fmt::Write;
    let mut text = String::new();
    let mut w3 = generated("cic-w3", 6);
    // A packet of the first one's flow, and something that is not IP.
    let mut next = w3[0].clone();
    next.ts_ns = w3[5].ts_ns + 1000;
    let mut arp = w3[0].clone();
    arp.bytes = [
        &[0xff; 6][..],
        &[2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
    ]
    .concat();
    arp.wire_len = 60;
    arp.ts_ns = next.ts_ns - 1;
    w3.extend([next, arp]);
    for header in &w3 {
        let bytes = hex(&header.bytes);
        writeln!(
            text,
            "packet at {} of {} bytes: {bytes}",
            header.ts_ns, header.wire_len
        )
        .unwrap();
    }
    for datagram in compressed(LinkType::ETHERNET, &w3, 256) {
        writeln!(text, "datagram: {}", hex(&datagram)).unwrap();
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/headers.txt");
    strata_testkit::check_golden(&path, &text);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
