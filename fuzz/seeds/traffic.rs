//! What captures, logs and senders of packets have: frames, sections of files, names, block files.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use strata_blocks::{BlockHeader, HEADER_LEN};
use strata_fuzz::{capture, link_index};
use strata_wire::ipv4;
use strata_wire::tunnel::{TunnelKind, Tunnels};

use super::{BYTES_MAX, PACKETS_MAX, seed};

/// Tunnels, pseudo-wires, transports and quoted packets that captures have too few of.
pub(crate) fn of_what_is_carried(corpus: &Path) -> io::Result<()> {
    let ip = |number: u8, rest: &[u8]| {
        let mut out = Vec::new();
        let repr = ipv4::Repr {
            source: 0x0a00_0001,
            destination: 0x0a00_0002,
            protocol: number,
            tos: 0,
            ttl: 64,
            identification: 1,
            fragment_offset: 0,
            more_fragments: false,
            payload_len: u16::try_from(rest.len()).expect("short"),
        };
        repr.emit(&mut out);
        [out, rest.to_vec()].concat()
    };
    let six = [
        &[0x60, 0, 0, 0, 0, 8, 17, 64][..],
        &[0x20; 32],
        &[0, 1, 0, 2, 0, 8, 0, 0],
    ]
    .concat();
    let tcp = [&[0, 1, 0, 2][..], &[0; 8], &[0x50, 2, 1, 0, 0, 0, 0, 0]].concat();
    let inner = ip(6, &tcp);
    let framed = |kind: u16, rest: &[u8]| [&[2; 12][..], &kind.to_be_bytes(), rest].concat();
    let frame = framed(0x0800, &inner);
    let nsh = [&[0x0f, 0xc2, 2, 3, 0, 0, 1, 255][..], &frame].concat();
    let error = |kind: u8, quoted: &[u8]| [&[kind, 0, 0, 0, 0, 0, 0, 0][..], quoted].concat();
    let iii = |last: [u8; 2], rest: &[u8]| {
        [
            &[0x10, 0, 0x22, 0xeb, 0, 0, 0, 1, 0x20][..],
            &[0; 9],
            &last,
            rest,
        ]
        .concat()
    };
    let mut packets = vec![
        framed(0x8847, &[&[0, 1, 1, 64][..], &frame].concat()),
        framed(0x8847, &[&[0, 1, 1, 64, 0, 0, 0, 0][..], &frame].concat()),
        framed(0x8847, &[&[0, 1, 1, 64][..], &six].concat()),
        framed(0x894f, &nsh),
        framed(0x0800, &ip(47, &iii([0, 0], &frame))),
        framed(
            0x0800,
            &ip(47, &iii([8, 1], &[&[0; 8][..], &inner].concat())),
        ),
        framed(
            0x0800,
            &ip(33, &[&[0, 1, 0, 2, 5, 0, 0, 0, 1][..], &[0; 20]].concat()),
        ),
        framed(0x0800, &ip(136, &[0, 1, 0, 2, 0, 8, 0, 0])),
        framed(0x0800, &ip(1, &error(3, &inner))),
        framed(
            0x86dd,
            &[
                &[0x60, 0, 0, 0, 0, 56, 58, 64][..],
                &[0x20; 32],
                &error(1, &six),
            ]
            .concat(),
        ),
    ];
    for (port, kind) in Tunnels::default().iter() {
        let payload = match kind {
            TunnelKind::Vxlan => [&[8, 0, 0, 0, 0, 0, 1, 0][..], &frame].concat(),
            TunnelKind::VxlanGpe => [&[12, 0, 0, 4, 0, 0, 1, 0][..], &nsh].concat(),
            TunnelKind::Geneve => [&[1, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0][..], &inner].concat(),
            TunnelKind::GtpU => [
                &[0x34, 255, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x85, 1, 0, 0, 0][..],
                &inner,
            ]
            .concat(),
            TunnelKind::GreUdp => [&[0x20, 0, 8, 0, 0, 0, 0, 1][..], &inner].concat(),
            TunnelKind::MplsUdp => [&[0, 1, 1, 64][..], &inner].concat(),
            TunnelKind::Teredo => [&[0, 1, 0, 0][..], &[0; 9], &[0; 8], &six].concat(),
        };
        let len = u16::try_from(payload.len()).expect("short") + 8;
        let udp = [
            &[0, 9][..],
            &port.to_be_bytes(),
            &len.to_be_bytes(),
            &[0, 0],
            &payload,
        ]
        .concat();
        packets.push(framed(0x0800, &ip(17, &udp)));
    }
    for packet in packets {
        seed(corpus, "dissect", &[&[0, 0x40, 0], &packet[..]].concat())?;
    }
    Ok(())
}

/// Steps of nodes of INT: what, which, by how much. The first is a node whose version changes near the
/// end of its numbers, which ended the collector.
pub(crate) fn of_int(corpus: &Path) -> io::Result<()> {
    let upgraded = [[0x0f, 0, 0xff, 0xff], [0, 1, 0, 0]];
    seed(corpus, "int", upgraded.as_flattened())?;
    let restarted = [
        [7, 1, 0, 0],
        [4, 1, 50, 0],
        [7, 1, 0, 0],
        [0, 1, 0, 0],
        [0xf0, 1, 0, 0],
    ];
    seed(corpus, "int", restarted.as_flattened())
}

/// Seeds of `pcap`, `pcapng` and `dissect`; returns packets of many kinds.
pub(crate) fn of_captures(files: &[PathBuf], corpus: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut packets = Vec::new();
    let mut kinds = HashSet::new();
    for path in files {
        let content = fs::read(path)?;
        if content.len() <= BYTES_MAX {
            let ng = content.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]);
            seed(corpus, if ng { "pcapng" } else { "pcap" }, &content)?;
        }
        let Some(reading) = capture::read(std::slice::from_ref(path), 1 << 16) else {
            continue;
        };
        let interfaces = reading.interfaces();
        for packet in reading.packets().take(PACKETS_MAX) {
            let link = link_index(interfaces[usize::from(packet.interface)].link);
            let data = &packet.data[..packet.data.len().min(512)];
            // Packets that begin alike teach little.
            if kinds.insert((link, data.len() / 16, data.get(12..48).map(<[u8]>::to_vec))) {
                seed(corpus, "dissect", &[&[link, 0x40, 0], data].concat())?;
                packets.push(data.to_vec());
            }
        }
    }
    of_sections(corpus)?;
    Ok(packets)
}

/// Payload that looks like heads of blocks and records whose lengths are at the ends of their range.
fn of_sections(corpus: &Path) -> io::Result<()> {
    for kinds in 0..4_u8 {
        for len in [0, 12, 1 << 24, u32::MAX - 3, u32::MAX] {
            let head = match kinds & 2 {
                0 => [0x6553_f100, 0, len, len],
                _ => [6, len, 0, 0x0006_0a24],
            };
            let head = head.map(|word: u32| match kinds & 1 {
                0 => word.to_le_bytes(),
                _ => word.to_be_bytes(),
            });
            seed(
                corpus,
                "pcapng_sections",
                &[&[kinds, 0, 0, 37], head.as_flattened()].concat(),
            )?;
        }
    }
    seed(corpus, "pcapng_sections", &[3, 0, 31, 7])
}

/// What passes between switch and relay: a write, its answer, packets in a block, a
/// message of each kind.
pub(crate) fn of_the_wire(packets: &[Vec<u8>], corpus: &Path) -> io::Result<()> {
    let mut datagrams = vec![0x70, 0];
    for code in [
        0x0a, 0x06, 0x07, 0x08, 0x13, 0x14, 0x0c, 0x11, 0x12, 0x04_u8,
    ] {
        let mut datagram = [0_u8; 300];
        datagram[0] = code;
        datagrams.extend_from_slice(&[44, 1, 0x1f]);
        datagrams.extend_from_slice(&datagram);
    }
    seed(corpus, "roce", &datagrams)?;
    for layout in [0_u8, 1, 2] {
        let mut block = vec![layout, 0, 7, 0, 0, 0, 3, 0];
        for packet in packets.iter().take(8) {
            let len = u16::try_from(packet.len()).unwrap_or(0);
            block.extend_from_slice(&len.to_le_bytes());
            block.extend_from_slice(packet);
        }
        block.extend_from_slice(&[0, 0, 40, 0, 4]);
        seed(corpus, "segments", &block)?;
    }
    let mut messages = Vec::new();
    for (kind, body) in [
        (3, &b"full"[..]),
        (4, &[1, 0, 0, 0, 0, 0, 0, 0]),
        (5, &[1; 48]),
        (6, &[2; 8]),
        (7, &[3; 24]),
        (8, br#"{"accounting":null,"warnings":["w"]}"#),
        (9, &[]),
    ] {
        messages.extend_from_slice(&[kind, u8::try_from(body.len()).unwrap_or(0), 0]);
        messages.extend_from_slice(body);
    }
    seed(corpus, "control", &messages)
}

/// Seeds of `names`: a query, a request, the beginnings of client hellos, and a server's certificate.
pub(crate) fn of_names(corpus: &Path) -> io::Result<()> {
    let hello: &[u8] =
        b"\x16\x03\x01\x00\x43\x01\x00\x00\x3f\x03\x03abcdefghijklmnopqrstuvwxyz012345\x00\x00\x04\
        \x13\x01\xc0\x2b\x01\x00\x00\x12\x00\x00\x00\x0e\x00\x0c\x00\x00\x09localhost";
    let datagram = b"\x16\xfe\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0c\x01\x00\x00\x00";
    let initial =
        b"\xc3\x00\x00\x00\x01\x08abcdefgh\x00\x00\x40\x20abcdefghijklmnopqrstuvwxyz012345";
    let query =
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03www\x07example\x00\x00\x01\x00\x01";
    let server = of_server();
    let payloads: [(u8, u16, &[u8]); 6] = [
        (1, 443, hello),
        (1, 443, &server),
        (0, 443, datagram),
        (0, 443, initial),
        (0, 53, query),
        (1, 80, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ];
    for (is_tcp, port, bytes) in payloads {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        for parts in [&[bytes][..], &[first, second]] {
            let mut input = [&[is_tcp][..], &port.to_le_bytes()].concat();
            for part in parts {
                let len = u16::try_from(part.len()).map_err(io::Error::other)?;
                input.extend_from_slice(&len.to_le_bytes());
                input.extend_from_slice(part);
            }
            seed(corpus, "names", &input)?;
        }
    }
    Ok(())
}

/// A server hello, and a certificate of `a`, `b.c` and 192.0.2.1, each shorter than 128 bytes.
fn of_server() -> Vec<u8> {
    let within = |head: &[u8], content: &[u8]| {
        let len = u8::try_from(content.len()).expect("a short message");
        [head, &[len], content].concat()
    };
    let name = within(&[0x30], b"\x06\x03\x55\x04\x03\x0c\x01a");
    let name = within(&[0x30], &within(&[0x31], &name));
    let hosts = within(&[0x30], b"\x82\x03b.c\x87\x04\xc0\x00\x02\x01");
    let extension = [&b"\x06\x03\x55\x1d\x11"[..], &within(&[4], &hosts)].concat();
    let extensions = within(&[0xa3], &within(&[0x30], &within(&[0x30], &extension)));
    let before = b"\xa0\x03\x02\x01\x02\x02\x01\x07\x30\x00";
    let signed = [
        before,
        &name[..],
        b"\x30\x00",
        &name,
        b"\x30\x00",
        &extensions,
    ]
    .concat();
    let certificate = within(&[0x30], &within(&[0x30], &signed));
    let list = within(&[0, 0], &within(&[0, 0], &certificate));
    let messages = [
        &b"\x02\x00\x00\x04\x03\x03ab"[..],
        &within(&[11, 0, 0], &list),
    ]
    .concat();
    within(&[0x16, 3, 3, 0], &messages)
}

/// A block file as it is, and its first block's records by themselves.
pub(crate) fn of_block_file(content: &[u8], corpus: &Path) -> io::Result<()> {
    if content.len() > 4 * BYTES_MAX {
        return Ok(());
    }
    for choices in [[0, 1], [1, 4], [1, 11]] {
        let [layout, flags] = choices;
        let prefix = [layout, flags, 0, 0, 0, 0, 0, 0];
        seed(corpus, "block", &[&prefix, content].concat())?;
    }
    let Some(Ok(header)) = content.first_chunk::<HEADER_LEN>().map(BlockHeader::parse) else {
        return Ok(());
    };
    let records = &content[HEADER_LEN..HEADER_LEN + header.body_len as usize];
    let len = u16::try_from(records.len())
        .unwrap_or(u16::MAX)
        .to_le_bytes();
    for flags in [5, 7] {
        let prefix = [2, flags, 0, 0, 0, 0, 0, 0, len[0], len[1]];
        seed(corpus, "block", &[&prefix[..], records].concat())?;
    }
    Ok(())
}
