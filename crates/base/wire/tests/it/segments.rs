//! Packets through blocks, compared with a twin that remembers what was posted.

use std::collections::BTreeMap;

use proptest::prelude::*;
use strata_wire::segment::{Assembly, BlockWriter, Layout, PacketInfo, Segments};

const KEY: u32 = 0x1357_9bdf;
const BLOCK_BYTES: usize = 64 << 10;

fn layouts() -> impl Strategy<Value = (Layout, usize)> {
    prop_oneof![
        proptest::sample::select(vec![256, 512, 1024, 2048, 4096])
            .prop_map(|mtu| (Layout::Mtu, mtu)),
        Just((Layout::PowersOfTwo, 1024)),
    ]
}

fn packets() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let len = prop_oneof![0_usize..200, 0_usize..9000, Just(1500_usize)];
    let packet = (len, any::<u8>()).prop_map(|(len, seed)| {
        // Content that looks like headers of the same block, and must be skipped.
        (0..len)
            .map(|at| if at % 8 == 4 { 5 } else { seed & 3 })
            .collect()
    });
    proptest::collection::vec(packet, 1..40)
}

fn info(seq: usize) -> PacketInfo {
    PacketInfo {
        seq: seq as u64 + 1000,
        ts_ns: seq as u64 * 7,
        class: u8::try_from(seq % 7).unwrap(),
        flags: 3,
    }
}

/// The messages for as many packets as fit in one block, and those packets.
fn written(
    layout: Layout,
    mtu: usize,
    packets: &[Vec<u8>],
    block: u64,
) -> (Vec<(usize, Vec<u8>)>, usize) {
    let mut writer = BlockWriter::new(KEY, layout, mtu, BLOCK_BYTES);
    writer.begin(block);
    let mut messages = Vec::new();
    let mut post = |at: usize, bytes: &[u8]| messages.push((at, bytes.to_vec()));
    let mut count = 0;
    for packet in packets {
        if !writer.fits(packet.len()) {
            break;
        }
        let before = writer.used();
        writer.push(&info(count), packet, &mut post);
        assert!(writer.used() - before <= writer.stored_len_max(packet.len()));
        count += 1;
    }
    writer.flush(&mut post);
    for (at, message) in &messages {
        assert!(message.len() <= mtu && at + message.len() <= BLOCK_BYTES);
    }
    (messages, count)
}

fn content(packet: strata_wire::segment::Packet<'_, '_>) -> Vec<u8> {
    packet.parts().flatten().copied().collect()
}

proptest! {
    #[test]
    fn whatever_arrives_whole_is_found_and_nothing_else(
        (layout, mtu) in layouts(),
        packets in packets(),
        earlier in packets(),
        fates in proptest::collection::vec(0_u8..10, 2000),
    ) {
        // The memory has been filled before, with the block two fillings ago.
        let mut memory = vec![0; BLOCK_BYTES];
        for (at, message) in written(layout, mtu, &earlier, 3).0 {
            memory[at..at + message.len()].copy_from_slice(&message);
        }
        let (messages, count) = written(layout, mtu, &packets, 5);
        let mut arrived: BTreeMap<u64, Vec<u16>> = BTreeMap::new();
        let mut whole = BTreeMap::new();
        for (number, (at, message)) in messages.iter().enumerate() {
            if fates[number % fates.len()] == 0 {
                continue;
            }
            memory[*at..at + message.len()].copy_from_slice(message);
            // The twin: what this message alone holds at its place.
            let mut alone = vec![0; *at];
            alone.extend_from_slice(message);
            for (_, segment) in Segments::new(&alone, KEY, 5) {
                let header = segment.header;
                arrived.entry(header.seq).or_default().push(header.index);
                if arrived[&header.seq].len() == usize::from(header.total) {
                    let index = usize::try_from(header.seq - 1000).unwrap();
                    whole.insert(header.seq, packets[index].clone());
                }
            }
        }
        let assembly = Assembly::of(&memory, KEY, 5);
        let mut found = BTreeMap::new();
        for packet in assembly.packets() {
            let seq = packet.header().seq;
            let index = usize::try_from(seq - 1000).unwrap();
            prop_assert!(index < count);
            prop_assert!(packets[index].starts_with(&content(packet)));
            prop_assert_eq!(
                packet.missing(),
                usize::from(packet.header().total) - arrived[&seq].len()
            );
            let expected = info(index);
            prop_assert_eq!(packet.header().ts_ns, expected.ts_ns);
            prop_assert_eq!(packet.header().class, expected.class);
            if packet.is_whole() {
                found.insert(seq, content(packet));
            }
        }
        prop_assert_eq!(found, whole);
        prop_assert_eq!(assembly.packets().count(), arrived.len());
    }

    #[test]
    fn messages_hold_nothing_of_earlier_ones(
        (layout, mtu) in layouts(),
        packets in packets(),
        earlier in packets(),
    ) {
        let mut writer = BlockWriter::new(KEY, layout, mtu, BLOCK_BYTES);
        let mut messages = Vec::new();
        for (block, packets) in [(3, &earlier), (5, &packets)] {
            messages.clear();
            writer.begin(block);
            let mut post = |at: usize, bytes: &[u8]| messages.push((at, bytes.to_vec()));
            for (seq, packet) in packets.iter().enumerate() {
                if !writer.fits(packet.len()) {
                    break;
                }
                // As a switch does: most packets fit in the message being gathered.
                if writer.takes_whole(packet.len()) {
                    if writer.push_whole(&info(seq), packet) {
                        writer.flush(&mut post);
                    }
                } else {
                    writer.push(&info(seq), packet, &mut post);
                }
            }
            writer.flush(&mut post);
        }
        prop_assert_eq!(messages, written(layout, mtu, &packets, 5).0);
    }

    #[test]
    fn any_memory_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
        // Nothing in it was written with the key; the chance is 2^-32 per place.
        prop_assert_eq!(Assembly::of(&bytes, KEY, 5).segments(), 0);
    }
}

#[test]
fn powers_of_two_are_those_of_the_paper() {
    // TitanLog §V-B: 1480 bytes are eleven segments of 128, one of 64, one of 8.
    let (messages, _) = written(Layout::PowersOfTwo, 1024, &[vec![7; 1480]], 1);
    let lens: Vec<usize> = messages.iter().map(|(_, m)| m.len() - 32).collect();
    let mut expected = vec![128; 11];
    expected.extend([64, 8]);
    assert_eq!(lens, expected);
}

#[test]
fn messages_of_a_full_stream_have_one_length() {
    let packets: Vec<Vec<u8>> = (0..60).map(|n| vec![1; 40 + n * 11]).collect();
    let (messages, count) = written(Layout::Mtu, 1024, &packets, 1);
    assert_eq!(count, 60);
    let (last, others) = messages.split_last().unwrap();
    assert!(others.iter().all(|(_, message)| message.len() == 1024));
    assert!(last.1.len() <= 1024);
}
