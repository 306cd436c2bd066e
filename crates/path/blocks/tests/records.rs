//! Whatever is recorded of packets comes back, in compact and in full records, and packets in
//! columns are recorded as one by one.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use proptest::prelude::*;
use strata_blocks::{
    BlockBuilder, Definitions, FORM, HEADER_LEN, PacketRecord, PacketRun, Promotion, RawRecord,
    Record, RecordPlace, Records, RelayedHeader, Summary, Trees, assemble,
};
use strata_wire::segment::{BlockWriter, Layout, PacketInfo};
use strata_wire::wide::{GROUP, GROUPS, Simd, WIDE};
use strata_wire::{AddressFamily, FlowHasher, Interface, KeepKind, LinkType, mix64};

const BLOCK_BYTES: usize = 256 << 10;
/// 2023-11-14.
const BEGUN_NS: u64 = 1_700_000_000_000_000_000;

/// A packet of which every field is known.
#[derive(Clone, Debug)]
struct Packet {
    record: PacketRecord<'static>,
    data: Vec<u8>,
    options: Vec<u8>,
    class: u8,
}

impl Packet {
    fn record(&self) -> PacketRecord<'_> {
        PacketRecord {
            data: &self.data,
            options: &self.options,
            ..self.record
        }
    }
}

/// Mostly usual packets; and each way to be unusual.
fn packet() -> impl Strategy<Value = Packet> {
    let len = prop_oneof![8 => 0..1_600_u32, 1 => 65_500..65_600_u32];
    let gap = prop_oneof![20 => 0..2_000_i64, 1 => -2_000_000_000..10_000_000_000_i64];
    let wire = prop_oneof![6 => Just(0), 1 => -9..1_500_i64, 1 => Just(1 << 17)];
    let header = prop_oneof![8 => 14..120_u16, 1 => 250..260_u16, 1 => any::<u16>()];
    let interface = prop_oneof![9 => 0..3_u16, 1 => 254..258_u16];
    let seq = prop_oneof![19 => Just(0_u64), 1 => 1..1_u64 << 31];
    let options = prop_oneof![9 => Just(Vec::new()), 1 => prop::collection::vec(any::<u8>(), 4..9)];
    let kept = prop_oneof![6 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)];
    (
        (len, gap, wire, header, interface),
        (
            seq,
            options,
            kept,
            0..4_u8,
            any::<u16>(),
            prop::bool::weighted(0.95),
        ),
    )
        .prop_map(
            |(
                (len, gap, wire, header_len, interface),
                (seq, options, kept, code, verdict, timed),
            )| {
                let keep = KeepKind::of_flags(code);
                let usual = match keep {
                    KeepKind::Full => len,
                    KeepKind::Header => len.min(header_len.into()),
                    KeepKind::Nothing | KeepKind::Partial => 0,
                };
                let kept = kept.map_or(usual as usize, |index| index.index(len as usize + 1));
                let wire_len = u32::try_from((i64::from(len) + wire).max(0)).unwrap();
                Packet {
                    record: PacketRecord {
                        ts_ns: u64::try_from(gap + 2_000_000_000).unwrap(),
                        seq,
                        wire_len,
                        captured_len: len,
                        header_len,
                        interface,
                        verdict,
                        keep,
                        has_timestamp: timed,
                        data: &[],
                        options: &[],
                    },
                    data: (0..kept as u64)
                        .map(|n| mix64(n).to_le_bytes()[0])
                        .collect(),
                    options,
                    class: code,
                }
            },
        )
}

/// Times and sequence numbers that follow from gaps.
fn packets() -> impl Strategy<Value = Vec<Packet>> {
    prop::collection::vec(packet(), 1..60).prop_map(|mut packets| {
        let (mut ts_ns, mut seq) = (BEGUN_NS, 7);
        for packet in &mut packets {
            ts_ns = ts_ns + packet.record.ts_ns - 2_000_000_000;
            seq += packet.record.seq;
            (packet.record.ts_ns, packet.record.seq) = (ts_ns, seq);
            seq += 1;
        }
        packets
    })
}

fn push(block: &mut BlockBuilder, packet: &Packet) {
    block.grow(64 + packet.data.len() + packet.options.len());
    block.push_packet(&packet.record(), packet.class);
}

/// A relay's memory, in which some messages did not arrive.
struct Sent {
    memory: Vec<u8>,
    header: RelayedHeader,
    /// Packets of which every message arrived, by sequence number.
    whole: Vec<u64>,
}

/// Sends the packets of a block as a switch does; the messages that `is_lost` do not arrive.
fn sent(block: &BlockBuilder, layout: Layout, is_lost: impl Fn(usize) -> bool) -> Sent {
    const KEY: u32 = 77;
    let mut writer = BlockWriter::new(KEY, layout, 256, 8 << 20);
    writer.begin(5);
    let mut memory = vec![0; 8 << 20];
    let mut messages = 0;
    // Returns how many messages were posted.
    let mut arrives = |at: usize, message: &[u8]| -> usize {
        if !is_lost(messages) {
            memory[at..at + message.len()].copy_from_slice(message);
        }
        messages += 1;
        messages
    };
    let mut spans = Vec::new();
    let (mut begun, mut full) = (0, Vec::new());
    let (first_seq, next_seq) = block.sequence_range();
    let mut records = Records::new(block.body(), first_seq);
    loop {
        let compact = records.compact();
        let mut after = records.clone();
        let packet = match after.next_raw() {
            None => break,
            Some(record) => match record.unwrap() {
                RawRecord::Packet(packet) => packet,
                RawRecord::Other { .. } => {
                    assert_eq!(compact, None);
                    records = after;
                    continue;
                }
            },
        };
        full.clear();
        if let Some(compact) = compact {
            // It says what the record says.
            assert_eq!((compact.seq, compact.ts_ns), (packet.seq, packet.ts_ns));
            assert_eq!(
                (compact.flags & 7, compact.verdict),
                (packet.flags(), packet.verdict)
            );
            let lengths =
                [compact.wire_len, compact.captured_len, compact.kept_len].map(usize::from);
            let expected = [
                packet.wire_len as usize,
                packet.captured_len as usize,
                packet.data.len(),
            ];
            assert_eq!(lengths, expected);
            records.pass(&compact);
            assert_eq!(records.place(), after.place());
            full.extend_from_slice(compact.bytes);
        } else {
            packet.emit(&mut full);
            records = after;
        }
        let info = PacketInfo {
            seq: packet.seq,
            ts_ns: packet.ts_ns,
            class: 2,
            flags: packet.flags(),
        };
        let mut posted = begun;
        writer.push(&info, &full, &mut |at, message| {
            posted = arrives(at, message);
        });
        // The last of them may be the message being gathered.
        spans.push((packet.seq, begun..=posted));
        begun = posted;
    }
    writer.flush(&mut |at, message| {
        arrives(at, message);
    });
    let arrived = |span: &std::ops::RangeInclusive<usize>| !span.clone().any(&is_lost);
    let whole = spans.iter().filter(|(_, span)| arrived(span));
    Sent {
        whole: whole.map(|(seq, _)| *seq).collect(),
        header: RelayedHeader {
            block_number: 5,
            used: u32::try_from(writer.used()).unwrap(),
            key: KEY,
            first_seq,
            next_seq,
            packets: spans.len() as u64,
            segments: writer.segments(),
            ..RelayedHeader::default()
        },
        memory,
    }
}

/// The definitions of the interfaces of these packets.
fn interfaces(packets: &[Packet]) -> Definitions {
    let mut block = BlockBuilder::new(BLOCK_BYTES);
    for packet in packets {
        block.define_interface(
            packet.record.interface,
            &Interface::new(LinkType(1), 65_535),
        );
    }
    let mut definitions = Definitions::default();
    definitions.read(block.body());
    definitions
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn packets_come_back_from_segments_of_which_some_are_lost(
        packets in packets(),
        powers in any::<bool>(),
        fates in prop::collection::vec(0_u8..12, 500),
        loses in any::<bool>(),
    ) {
        let mut block = BlockBuilder::new(BLOCK_BYTES);
        block.reset(packets[0].record.seq);
        for packet in &packets {
            push(&mut block, packet);
        }
        let layout = if powers { Layout::PowersOfTwo } else { Layout::Mtu };
        let sent = sent(&block, layout, |message| loses && fates[message % fates.len()] == 0);
        let segments = &sent.memory[..sent.header.used as usize];
        // Without an interface, nothing can say what a packet is: it is left out, and counted.
        let nothing = assemble(&sent.header, segments, &Definitions::default());
        prop_assert_eq!(nothing.header.packets, 0);
        prop_assert!(nothing.undefined as usize >= sent.whole.len());
        let assembled = assemble(&sent.header, segments, &interfaces(&packets));
        prop_assert_eq!(assembled.undefined, assembled.header.packets, "without verdict and context");
        let (mut whole, mut incomplete) = (Vec::new(), 0);
        for record in Records::new(&assembled.body, assembled.header.first_seq) {
            let found = match record {
                Ok(Record::Packet(found)) => found,
                Ok(Record::Meta(_)) => continue,
                other => panic!("{other:?}"),
            };
            let of = |packet: &&Packet| packet.record.seq == found.seq;
            let packet = packets.iter().find(of).unwrap().record();
            if found.options != packet.options {
                prop_assert!(String::from_utf8_lossy(found.options).contains("strata: incomplete"));
                prop_assert!(packet.data.starts_with(found.data));
                let PacketRecord { data, options, .. } = found;
                prop_assert_eq!(PacketRecord { data, options, ..packet }, found);
                incomplete += 1;
                continue;
            }
            prop_assert_eq!(&packet, &found);
            whole.push(found.seq);
        }
        prop_assert_eq!(incomplete, assembled.incomplete);
        prop_assert!(sent.whole.iter().all(|seq| whole.contains(seq)));
        prop_assert!(loses || whole.len() == packets.len());
    }

    #[test]
    fn every_field_of_every_packet_comes_back(packets in packets(), promoted in any::<u8>()) {
        let mut block = BlockBuilder::new(BLOCK_BYTES);
        block.reset(packets[0].record.seq);
        for (n, packet) in packets.iter().enumerate() {
            push(&mut block, packet);
            if n % 16 == usize::from(promoted % 16) {
                let packet = packet.record();
                let (seq, kept_len, wire_len) = (packet.seq, 1, packet.wire_len);
                let (class, keep, verdict) = (3, packet.keep, Some(packet.verdict));
                let data = &[9; 30];
                block.push_promotion(&Promotion { seq, class, keep, kept_len, wire_len, verdict, data });
            }
        }
        let first_seq = block.sequence_range().0;
        let mut place = RecordPlace::first(first_seq);
        for packet in &packets {
            // Each from the position after the one before, as a merge reads them.
            let mut records = Records::at(block.body(), place);
            prop_assert_eq!(records.next(), Some(Ok(Record::Packet(packet.record()))));
            place = records.into_place();
        }
        prop_assert_eq!(place.peek(block.body()), None);
        let mut raw = Records::new(block.body(), first_seq);
        let mut full = Vec::new();
        while let Some(record) = raw.next_raw() {
            let RawRecord::Packet(packet) = record.unwrap() else {
                unreachable!("there are only packets")
            };
            packet.emit(&mut full);
        }
        let expected = packets.iter().map(|packet| Ok(Record::Packet(packet.record())));
        prop_assert!(Records::new(&full, first_seq).eq(expected));
        let promotions = packets.len().saturating_sub(usize::from(promoted % 16)).div_ceil(16);
        prop_assert_eq!(Promotion::all(block.body()).count(), promotions);
        // Cut anywhere, what is whole is read, and no more.
        let cut = block.body().len() * usize::from(promoted) / 256;
        let whole = Records::new(&block.body()[..cut], first_seq).take_while(Result::is_ok);
        for (record, packet) in whole.zip(&packets) {
            prop_assert_eq!(record, Ok(Record::Packet(packet.record())));
        }
    }

    /// The naive twin of a run is one packet after the other.
    #[test]
    fn a_run_is_recorded_as_packet_by_packet(
        packets in prop::collection::vec(packet(), 1..=WIDE),
        calm in any::<bool>(),
        skipped in prop_oneof![Just([0; GROUPS]), any::<[u16; GROUPS]>()],
        room in prop_oneof![Just(BLOCK_BYTES), 0..BLOCK_BYTES],
    ) {
        let mut packets = packets;
        let recorded = skipped.map(|lanes| !lanes);
        let (mut ts_ns, mut seq) = (BEGUN_NS, 0);
        for (at, packet) in packets.iter_mut().enumerate() {
            let step = packet.record.ts_ns;
            ts_ns = if calm { ts_ns + step % 2_000 } else { ts_ns + step - 2_000_000_000 };
            packet.record.ts_ns = ts_ns;
            packet.record.seq = seq;
            seq += u64::from(is_in(&recorded, at));
            packet.record.interface = 1;
            packet.record.has_timestamp = true;
            packet.record.verdict %= 4 + u16::from(!calm) * 200;
            packet.options.clear();
            // A run has what was captured, not only what is kept.
            packet.data.resize(packet.record.captured_len as usize, 5);
        }
        for simd in Simd::available() {
            let (mut wide, mut naive) = (BlockBuilder::new(BLOCK_BYTES), BlockBuilder::new(BLOCK_BYTES));
            for block in [&mut wide, &mut naive] {
                begin(block, BLOCK_BYTES - room);
            }
            append(&mut wide, Some(simd), &packets, &recorded);
            append(&mut naive, None, &packets, &recorded);
            prop_assert!(wide.body() == naive.body());
            prop_assert_eq!(wide.counters(), naive.counters());
            prop_assert_eq!(wide.sequence_range(), naive.sequence_range());
            let sealed = wide.seal(1, 2, 3, [4, 5]).to_vec();
            prop_assert!(sealed == naive.seal(1, 2, 3, [4, 5]));
        }
    }
}

/// Defines what the packets of a run refer to, but for some verdicts, and fills the block in part.
fn begin(block: &mut BlockBuilder, fill: usize) {
    block.define_context(b"{}");
    block.define_interface(1, &Interface::new(LinkType::ETHERNET, 0));
    for id in 0..4 {
        block.define_verdict(id, 0, Trees::None, 0, &[]);
    }
    block.refer_to(1);
    let fill = fill.min(block.room() - 64);
    block.push_definitions(&filler(fill));
}

/// A record of a context of `bytes` bytes.
fn filler(bytes: usize) -> Vec<u8> {
    let mut record = vec![7, 0, 0, 0];
    record.extend_from_slice(&u32::try_from(bytes).unwrap().to_le_bytes());
    record.resize(8 + bytes, b' ');
    record
}

const RESERVE: usize = 100;

fn define(block: &mut BlockBuilder, verdict: u16) {
    block.define_verdict(verdict, 0, Trees::None, 0, &[1, 2, 3]);
}

fn is_in(set: &[u16; GROUPS], at: usize) -> bool {
    set[at / GROUP] >> (at % GROUP) & 1 != 0
}

/// Appends packets as a worker does, in runs or one by one, until the block is full.
fn append(
    block: &mut BlockBuilder,
    simd: Option<Simd>,
    packets: &[Packet],
    recorded: &[u16; GROUPS],
) {
    let mut data: [&[u8]; WIDE] = [&[]; WIDE];
    for (to, packet) in data.iter_mut().zip(packets) {
        *to = &packet.data;
    }
    let column = |of: &dyn Fn(&Packet) -> u32| {
        let mut column = [u32::MAX; WIDE];
        for (to, packet) in column.iter_mut().zip(packets) {
            *to = of(packet);
        }
        column
    };
    let kept = |packet: &Packet| {
        let all = packet.record.captured_len;
        match packet.record.keep {
            KeepKind::Nothing => 0,
            KeepKind::Header => all.min(packet.record.header_len.into()),
            KeepKind::Partial => all.min(u32::from(packet.record.header_len) + 20),
            KeepKind::Full => all,
        }
    };
    let mut ts_ns = [0; WIDE];
    let mut verdicts = [0; WIDE];
    for (n, packet) in packets.iter().enumerate() {
        (ts_ns[n], verdicts[n]) = (packet.record.ts_ns, packet.record.verdict);
    }
    let times = packets.iter().map(|packet| packet.record.ts_ns);
    let kinds = column(&|p| u32::from(p.class) | u32::from(p.record.keep.code()) << 8);
    let run = PacketRun {
        interface: 1,
        count: packets.len(),
        data: &data,
        ts_ns: &ts_ns,
        ascends: times.is_sorted(),
        wire_len: &column(&|p| p.record.wire_len),
        captured_len: &column(&|p| p.record.captured_len),
        header_len: &column(&|p| p.record.header_len.into()),
        kept_len: &column(&kept),
        verdicts: &verdicts,
        kinds: &kinds,
        recorded,
    };
    let mut at = 0;
    while at < packets.len() {
        if let Some(simd) = simd {
            let seq = packets[at].record.seq;
            let (stopped, count) = block.push_run(simd, &run, (at, seq), RESERVE, define);
            let lanes = (at..stopped).filter(|&at| is_in(recorded, at));
            assert_eq!(count, lanes.count() as u64);
            at = stopped;
        } else if !is_in(recorded, at) {
            at += 1;
            continue;
        }
        let Some(packet) = packets.get(at) else {
            return;
        };
        assert!(is_in(recorded, at), "stops at one that is recorded");
        let kept = kept(packet) as usize;
        if block.room() < 32 + kept + 8 + RESERVE {
            return;
        }
        if block.needs_verdict(packet.record.verdict) {
            define(block, packet.record.verdict);
        }
        let record = PacketRecord {
            data: &packet.data[..kept],
            ..packet.record
        };
        block.push_packet(&record, packet.class);
        at += 1;
    }
}

#[test]
fn a_usual_packet_costs_12_bytes_and_one_of_another_length_16() {
    let mut block = BlockBuilder::new(BLOCK_BYTES);
    let packet = PacketRecord {
        ts_ns: BEGUN_NS,
        seq: 0,
        wire_len: 60,
        captured_len: 60,
        header_len: 54,
        interface: 0,
        verdict: 9,
        keep: KeepKind::Header,
        has_timestamp: true,
        data: &[1; 54],
        options: &[],
    };
    let mut lens = Vec::new();
    for (seq, wire_len) in [(0, 60), (1, 60), (2, 1_500), (3, 70_000), (4, 60)] {
        let before = block.body().len();
        block.push_packet(
            &PacketRecord {
                seq,
                wire_len,
                ..packet
            },
            0,
        );
        lens.push(block.body().len() - before - 54);
    }
    // The first one has a time before it.
    assert_eq!(lens, [16 + 12, 12, 16, 32, 12]);
}

/// All that was noted is found again, block after block in the same memory.
#[test]
fn a_summary_holds_every_flow_and_address_of_its_block() {
    let seed = [4, 5];
    let hasher = FlowHasher::new(seed);
    let mut block = BlockBuilder::new(BLOCK_BYTES);
    for filling in 0..4_u64 {
        block.reset(0);
        // The same flows in the second filling, with repetitions that are far apart.
        let flows = (0..4_000).map(|n| mix64(((filling / 2) << 32) + n % 2_500));
        let noted: Vec<(u64, [u32; 2])> = flows
            .map(|flow| {
                let ends = flow.to_le_bytes();
                let end = |n: usize| u32::from_le_bytes([ends[n], ends[n + 1], 0, 10]);
                (flow, [end(0), end(4)])
            })
            .collect();
        for (flow, ends) in &noted {
            block.note_plain(*flow, *ends);
        }
        block.note(mix64(77));
        let bytes = block.seal(1, 0, filling, seed);
        let header = strata_blocks::BlockHeader::parse(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!(header.form, FORM);
        let at = HEADER_LEN + header.body_len as usize;
        let summary = Summary::parse(&bytes[at..at + header.summary_len as usize]).unwrap();
        for (flow, ends) in noted {
            assert!(summary.may_hold(flow));
            for end in ends {
                assert!(summary.may_hold(hasher.address(AddressFamily::Ipv4, end.into())));
            }
        }
        assert!(summary.may_hold(mix64(77)));
        let wrong = (0..10_000_u64)
            .filter(|n| summary.may_hold(mix64(n + (1 << 50))))
            .count();
        assert!(wrong < 200, "{wrong} of 10,000");
        // Some 7,500 keys of 12 bits.
        assert!(
            (8_000..14_000).contains(&header.summary_len),
            "{}",
            header.summary_len
        );
    }
}

#[test]
fn a_compact_packet_before_any_time_is_an_error() {
    let body = [10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    let bad = Records::new(&body, 0).next().unwrap().unwrap_err();
    assert_eq!(
        (bad.at, bad.problem),
        (0, "a compact packet without a time before it")
    );
}
