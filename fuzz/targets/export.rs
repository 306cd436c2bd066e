//! Any bytes as exported headers, packets and announcements, and any bytes exported as headers and as
//! packets.
//!
//! Input: which; then a datagram, as it is or with its start put right; or headers, each after its
//! length, changes of time and length on the wire.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strata_exporter::{
    Announcement, Datagram, HEADER_LEN, Header, HeaderReader, HeaderWriter, Label, PacketReader,
    PacketWriter, Sequence, Source,
};
use strata_fuzz::{Bounded, Chooser};
use strata_wire::LinkType;

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

/// A header, kept.
#[derive(PartialEq, Debug)]
struct Kept {
    ts_ns: u64,
    wire_len: u32,
    label: Label,
    bytes: Vec<u8>,
}

fuzz_target!(|bytes: &[u8]| {
    let mut choose = Chooser::new(bytes);
    let kind = choose.u8() % 3;
    let link = LinkType([1, 1, 101, 113][usize::from(choose.u8() % 4)]);
    let (headers, room) = if kind == 2 {
        (given(&mut choose), 128 + usize::from(choose.u8()) * 8)
    } else {
        (read(choose.rest(), kind == 1), 2000)
    };
    written_and_read(link, &headers, room);
    packets_written_and_read(link, &headers, room);
});

/// Headers as the input says.
fn given(choose: &mut Chooser<'_>) -> Vec<Kept> {
    let (mut headers, mut ts_ns) = (Vec::<Kept>::new(), 0_u64);
    while !choose.is_empty() {
        let what = choose.u8();
        let mut bytes = match headers.last() {
            // As the last one, changed at a place.
            Some(last) if what & 1 != 0 => last.bytes.clone(),
            _ => {
                let len = usize::from(choose.u8());
                choose.take(len).to_vec()
            }
        };
        let at = usize::from(choose.u8());
        if let Some(byte) = bytes.get_mut(at) {
            *byte = choose.u8();
        }
        ts_ns = ts_ns.wrapping_add(match what >> 1 & 3 {
            0 => choose.u8().into(),
            1 => u64::from(choose.u16()) * 1000,
            2 => 1,
            _ => choose.u64(),
        });
        let wire_len = if what & 8 != 0 {
            choose.u32()
        } else {
            bytes.len() as u32
        };
        let mut label = Label::default();
        if what & 16 != 0 {
            label.policy = choose.u8().into();
        }
        headers.push(Kept {
            ts_ns,
            wire_len,
            label,
            bytes,
        });
    }
    headers
}

/// Headers of a datagram, as far as it can be read.
fn read(bytes: &[u8], is_mended: bool) -> Vec<Kept> {
    let mut bytes = bytes.to_vec();
    if is_mended && bytes.len() >= HEADER_LEN {
        bytes[..4].copy_from_slice(b"SX\x01\x01");
        bytes[4] |= 1;
        bytes[7] &= 0x5f;
        bytes[13] = 0;
    }
    others(&bytes, is_mended);
    let mut headers = Vec::new();
    let read = HeaderReader::new().read(&bytes, |_, header| headers.push(kept(header)));
    match read {
        Ok(datagram) => assert_eq!(headers.len(), usize::from(datagram.packets)),
        Err(error) => assert!(error.offset <= error.len),
    }
    headers
}

/// The same bytes as the other kinds of datagrams, several times as if from different sources.
fn others(bytes: &[u8], is_mended: bool) {
    let mut bytes = bytes.to_vec();
    let mut reader = PacketReader::new();
    for session in 0..3 {
        if is_mended && bytes.len() >= HEADER_LEN {
            (bytes[3], bytes[8]) = (2, session);
        }
        if let Err(error) = reader.read(&bytes, |_, packet| {
            assert!(packet.bytes.len() <= bytes.len())
        }) {
            assert!(error.offset <= error.len);
        }
    }
    if is_mended && bytes.len() >= HEADER_LEN {
        bytes[3] = 3;
    }
    match Announcement::read(&bytes) {
        Ok(read) => assert_eq!(Announcement::read(&read.datagram()), Ok(read)),
        Err(error) => assert!(error.offset <= error.len),
    }
}

/// As [`written_and_read`], for packets.
fn packets_written_and_read(link: LinkType, packets: &[Kept], room: usize) {
    let source = Source {
        identity: 1,
        session: 1,
    };
    let mut writer = PacketWriter::new(source, link, room);
    let (mut reader, mut next) = (PacketReader::new(), packets.iter());
    let mut read = |datagram: &[u8]| {
        assert!(datagram.len() <= room);
        let done = reader.read(datagram, |_, packet| {
            assert_eq!(Some(&kept(packet)), next.next());
        });
        done.expect("it was written");
    };
    for packet in packets {
        let header = Header {
            ts_ns: packet.ts_ns,
            wire_len: packet.wire_len,
            bytes: &packet.bytes,
            label: packet.label,
        };
        writer.put(&header, &mut read);
    }
    writer.end(&mut read);
    assert!(next.next().is_none());
}

fn kept(header: &Header<'_>) -> Kept {
    Kept {
        ts_ns: header.ts_ns,
        wire_len: header.wire_len,
        label: header.label,
        bytes: header.bytes.to_vec(),
    }
}

/// What is written is read again, but for what does not fit.
fn written_and_read(link: LinkType, headers: &[Kept], room: usize) {
    let source = Source {
        identity: 1,
        session: 1,
    };
    let mut writer = HeaderWriter::new(source, link, room);
    let (mut datagrams, mut fitting) = (Vec::new(), Vec::new());
    for kept in headers {
        let header = Header {
            ts_ns: kept.ts_ns,
            wire_len: kept.wire_len,
            bytes: &kept.bytes,
            label: kept.label,
        };
        if writer
            .put(&header, |bytes| datagrams.push(bytes.to_vec()))
            .is_ok()
        {
            fitting.push(kept);
        }
    }
    writer.end(|bytes| datagrams.push(bytes.to_vec()));
    let (mut reader, mut sequence) = (HeaderReader::new(), Sequence::default());
    let mut next = fitting.into_iter();
    for datagram in &datagrams {
        assert!(datagram.len() <= room);
        assert!(sequence.accept(&Datagram::read(datagram).expect("it was written")));
        let read = reader.read(datagram, |_, header| {
            assert_eq!(Some(&kept(header)), next.next());
        });
        read.expect("it was written");
    }
    assert!(next.next().is_none());
    let counters = sequence.counters();
    // What does not fit is numbered too, and the last datagram says how many there were.
    let told = counters.before + counters.packets + counters.lost;
    assert_eq!(told, headers.len() as u64);
}
