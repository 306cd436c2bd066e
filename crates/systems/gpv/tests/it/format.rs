//! Vectors as bytes: golden vectors, round trips, and invalid bytes.

use proptest::prelude::*;
use strata_gpv::format::datagram::{Datagram, DatagramWriter, LEN_MAX, LEN_USUAL};
use strata_gpv::format::{NotCarried, paper};
use strata_gpv::{Basic, Column, Columns, Full, Grouped, Key, Reason, Sequenced, Tuple, Vector};
use strata_wire::{AddressFamily, Endpoint};

fn key(family: AddressFamily, source: u128, destination: u128, ingress: u16) -> Key {
    let end = |address, port| Endpoint { address, port };
    Key::new(
        family,
        6,
        end(source, 443),
        end(destination, 50_000),
        ingress,
    )
}

fn vector<'a, T>(key: Key, tuples: &'a [T], split: usize) -> Vector<'a, T> {
    let (narrow, wide) = tuples.split_at(split.min(tuples.len()));
    Vector {
        key,
        start_ns: 0x0102_0304_0506_0708,
        pieces: [narrow, wide],
        reason: Reason::Collision,
        saturated: false,
        slot: 0x0a0b_0c0d,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Written by hand from section 6.2: 192 bits, then 20 + 11 + 1 bits a tuple.
#[test]
fn golden_vector_of_the_paper() {
    let key = key(AddressFamily::Ipv4, 0x0a00_0001, 0xc0a8_0102, 9);
    // 1 us, 64 bytes; 0xfffff us, 2,047 bytes or more, high queue.
    let tuples = [Basic(1 << 12 | 64 << 1), Basic(u32::MAX)];
    let mut out = Vec::new();
    paper::emit(&vector(key, &tuples, 1), &mut out).unwrap();
    let five_tuple = "0a000001c0a8010201bbc35006";
    assert_eq!(
        hex(&out),
        format!("{five_tuple}0900020102030405060708{}", "00001080ffffffff")
    );

    let tuples = tuples.map(|basic| Sequenced {
        basic,
        tcp_seq: 0xdead_beef,
    });
    out.clear();
    paper::emit(&vector(key, &tuples, 2), &mut out).unwrap();
    let sequenced = "00001080deadbeefffffffffdeadbeef";
    assert_eq!(
        hex(&out),
        format!("{five_tuple}0900020102030405060708{sequenced}")
    );
}

/// Written by hand from docs/formats/gpv.md.
#[test]
fn golden_datagram() {
    let columns = Columns::of(&[Column::Time, Column::Size, Column::TcpFlags]);
    let mut writer = DatagramWriter::new(0x1122_3344, columns, LEN_USUAL);
    let tuple = |delta_ns, size, tcp_flags| Full {
        delta_ns,
        size,
        tcp_flags,
        ..Full::default()
    };
    let tuples = [tuple(0, 60, 2), tuple(0x1234_5678, 1500, 16)];
    let key = key(AddressFamily::Ipv4, 0x0a00_0001, 0xc0a8_0102, 0x0304);
    let mut sent = Vec::new();
    writer
        .put(&vector(key, &tuples, 1), |_| panic!("not full"))
        .unwrap();
    writer.finish(|bytes| sent.push(hex(bytes)));
    let header = "53475056" /* SGPV */
        .to_owned()
        + "02"
        + "00"
        + "2300"
        + "44332211"
        + "4600"
        + "0100"
        + "0000000000000000";
    let vector = "0807060504030201".to_owned()
        + "0d0c0b0a"
        + "0200"
        + "0403"
        + "bb01"
        + "50c3"
        + "06"
        + "04"
        + "01"
        + "00"
        + "0a000001"
        + "c0a80102";
    let body = "0000000078563412".to_owned() + "3c00dc05" + "0210";
    assert_eq!(sent, [header + &vector + &body]);
}

#[test]
fn what_a_format_does_not_carry_is_refused() {
    let mut out = Vec::new();
    let tuples = [Basic(0)];
    let v6 = vector(key(AddressFamily::Ipv6, 1, 2, 0), &tuples, 1);
    assert_eq!(paper::emit(&v6, &mut out), Err(NotCarried::Family));
    let far = vector(key(AddressFamily::Ipv4, 1, 2, 256), &tuples, 1);
    assert_eq!(paper::emit(&far, &mut out), Err(NotCarried::Ingress(256)));
    let empty = vector::<Basic>(key(AddressFamily::Ipv4, 1, 2, 0), &[], 0);
    assert_eq!(paper::emit(&empty, &mut out), Err(NotCarried::Count(0)));
    assert!(out.is_empty());
}

/// A vector that fits into no datagram leaves a gap in the numbers; its neighbours arrive.
#[test]
fn a_vector_that_does_not_fit_is_a_gap() {
    let key = key(AddressFamily::Ipv6, 1, 2, 0);
    let (small, large) = ([Full::default(); 2], [Full::default(); 100]);
    let mut writer = DatagramWriter::new(1, Columns::ALL, 400);
    let mut sent: Vec<Vec<u8>> = Vec::new();
    for tuples in [&small[..], &large, &small] {
        let fits = writer.put(&vector(key, tuples, 0), |bytes| sent.push(bytes.to_vec()));
        assert_eq!(fits.is_ok(), tuples.len() == 2);
    }
    writer.finish(|bytes| sent.push(bytes.to_vec()));
    let firsts: Vec<u64> = sent
        .iter()
        .map(|bytes| Datagram::new_checked(bytes).unwrap().first_seq)
        .collect();
    assert_eq!(firsts, [0, 2]);
    assert_eq!(writer.next_seq(), 3);
}

#[test]
fn a_datagram_that_lies_says_where() {
    let mut writer = DatagramWriter::new(1, Columns::ALL, LEN_USUAL);
    let tuples = [Full::default(); 3];
    let key = key(AddressFamily::Ipv4, 1, 2, 0);
    let mut good = Vec::new();
    writer.put(&vector(key, &tuples, 3), |_| ()).unwrap();
    writer.finish(|bytes| good = bytes.to_vec());
    for (at, value, offset) in [
        (0, 0, 0),
        (4, 1, 4),
        (5, 1, 5),
        (6, 0, 6),
        (7, 0xff, 6),
        (12, 0, 12),
        (36, 0, 36),
        (45, 9, 45),
        (46, 5, 46),
        (47, 2, 47),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        let read = Datagram::new_checked(&bytes)
            .and_then(|datagram| datagram.for_each(&mut Vec::new(), |_| ()));
        assert_eq!(read.unwrap_err().offset, offset, "byte {at} as {value}");
    }
}

fn full() -> impl Strategy<Value = Full> {
    (
        any::<[u32; 4]>(),
        any::<[u16; 3]>(),
        any::<[u8; 3]>(),
        0..2_u8,
    )
        .prop_map(|(w, h, b, q)| Full {
            delta_ns: w[0],
            tcp_seq: w[1],
            tcp_ack: w[2],
            queue_depth: w[3],
            size: h[0],
            payload_len: h[1],
            tcp_window: h[2],
            tcp_flags: b[0],
            ecn: b[1],
            class: b[2],
            high_queue: q,
        })
}

proptest! {
    #[test]
    fn the_papers_format_round_trips(
        words in prop::collection::vec(any::<(u32, u32)>(), 1..60), split in 0..60_usize,
        a: u32, b: u32, ingress in 0..256_u16,
    ) {
        let key = key(AddressFamily::Ipv4, u128::from(a), u128::from(b), ingress);
        let tuples: Vec<Sequenced> = words
            .iter()
            .map(|&(word, tcp_seq)| Sequenced { basic: Basic(word), tcp_seq })
            .collect();
        let mut bytes = Vec::new();
        paper::emit(&vector(key, &tuples, split), &mut bytes).unwrap();
        prop_assert_eq!(bytes.len() * 8, 192 + 64 * words.len());
        bytes.push(0);
        let mut read = Vec::new();
        let (back, len) = paper::parse::<Sequenced>(&bytes, &mut read).unwrap();
        prop_assert_eq!(len, bytes.len() - 1);
        prop_assert_eq!((back.key, back.start_ns), (key, 0x0102_0304_0506_0708));
        prop_assert_eq!(back.pieces[0], &tuples[..]);
        // Cut anywhere it is an error, not a shorter vector.
        for cut in 0..len {
            prop_assert!(paper::parse::<Sequenced>(&bytes[..cut], &mut read).is_err());
        }
    }

    #[test]
    fn datagrams_round_trip_and_keep_their_numbers(
        vectors in prop::collection::vec(
            (prop::collection::vec(full(), 1..33), any::<(u128, u128, u16)>(), 0..3, 0..40_usize),
            1..30,
        ),
        columns in any::<u16>(), room in 2000..LEN_MAX,
    ) {
        let columns = Columns(columns & Columns::ALL.0 | 1);
        let mut writer = DatagramWriter::new(7, columns, room);
        let mut sent: Vec<Vec<u8>> = Vec::new();
        let mut wanted = Vec::new();
        for (tuples, (a, b, ingress), family, split) in &vectors {
            let (family, bits) = match family {
                0 => (AddressFamily::Mac, 48),
                1 => (AddressFamily::Ipv4, 32),
                _ => (AddressFamily::Ipv6, 128),
            };
            let key = key(family, a >> (128 - bits), b >> (128 - bits), *ingress);
            writer.put(&vector(key, tuples, *split), |bytes| sent.push(bytes.to_vec())).unwrap();
            let chosen: Vec<Vec<u32>> = tuples
                .iter()
                .map(|t| Column::ALL.map(|c| if columns.has(c) { t.get(c) } else { 0 }).to_vec())
                .collect();
            wanted.push((key, chosen));
        }
        writer.finish(|bytes| sent.push(bytes.to_vec()));
        let (mut read, mut next_seq, mut got) = (Vec::new(), 0, Vec::new());
        for bytes in &sent {
            prop_assert!(bytes.len() <= room);
            let datagram = Datagram::new_checked(bytes).unwrap();
            prop_assert_eq!((datagram.cache, datagram.first_seq), (7, next_seq));
            datagram.for_each(&mut read, |vector| {
                next_seq += 1;
                assert_eq!((vector.slot, vector.reason), (0x0a0b_0c0d, Reason::Collision));
                assert_eq!(vector.count(), vector.tuples().count());
                let values = vector.tuples().map(|t| Column::ALL.map(|c| t.get(c)).to_vec());
                got.push((vector.key, values.collect::<Vec<_>>()));
            }).unwrap();
        }
        prop_assert_eq!(got, wanted);
    }

    /// Any bytes are read or refused; nothing panics.
    #[test]
    fn any_bytes_are_read_or_refused(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300), vectors in 0..4_u8,
    ) {
        let _ = paper::parse::<Basic>(&bytes, &mut Vec::new());
        let _ = paper::parse::<Sequenced>(&bytes, &mut Vec::new());
        if bytes.len() >= 24 {
            bytes[..6].copy_from_slice(b"SGPV\x02\x00");
            bytes[6] |= 1;
            bytes[7] &= 7;
            let [low, high] = u16::try_from(bytes.len()).unwrap().to_le_bytes();
            bytes[12..16].copy_from_slice(&[low, high, vectors, 0]);
            let datagram = Datagram::new_checked(&bytes);
            let _ = datagram.map(|datagram| datagram.for_each(&mut Vec::new(), |_| ()));
        }
    }
}

/// A start time from which a packet's time would overflow is no time: adding them would panic.
#[test]
fn start_times_past_63_bits_are_refused() {
    let tuples = [Full {
        delta_ns: u32::MAX,
        ..Full::default()
    }];
    let mut vector = Vector {
        key: Key::new(
            AddressFamily::Ipv4,
            6,
            Endpoint::default(),
            Endpoint::default(),
            1,
        ),
        start_ns: u64::MAX,
        pieces: [&tuples, &[]],
        reason: Reason::Full,
        saturated: false,
        slot: 0,
    };
    let read = |vector: &Vector<'_, Full>| {
        let (mut writer, mut sent) = (DatagramWriter::new(1, Columns::ALL, 1452), Vec::new());
        writer.put(vector, |_| ()).unwrap();
        writer.finish(|bytes| sent = bytes.to_vec());
        let datagram = Datagram::new_checked(&sent).unwrap();
        let mut times = Vec::new();
        let result = datagram.for_each(&mut Vec::new(), |vector| times.extend(vector.times_ns()));
        result.map(|()| times)
    };
    // Queries and columns of times have signed numbers.
    let latest_ns = i64::MAX.cast_unsigned();
    for start_ns in [u64::MAX, 1 << 63, latest_ns - u64::from(u32::MAX) + 1] {
        vector.start_ns = start_ns;
        assert_eq!(read(&vector).unwrap_err().offset, 24);
    }
    vector.start_ns = latest_ns - u64::from(u32::MAX);
    assert_eq!(read(&vector), Ok(vec![latest_ns]));

    let mut bytes = vec![0; 28];
    bytes[15] = 1;
    for start_ns in [u64::MAX, 1 << 63] {
        bytes[16..24].copy_from_slice(&start_ns.to_be_bytes());
        let error = paper::parse::<Basic>(&bytes, &mut Vec::new()).unwrap_err();
        assert_eq!(error.offset, 16);
    }
    bytes[16..24].copy_from_slice(&(1_u64 << 62).to_be_bytes());
    assert!(paper::parse::<Basic>(&bytes, &mut Vec::new()).is_ok());
}
