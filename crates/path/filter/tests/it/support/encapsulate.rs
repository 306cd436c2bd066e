//! Real packets inside encapsulations that are rare in the captures.

/// Ethernet frames made from some of `frames`.
pub(crate) fn ethernet(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut made = Vec::new();
    let inner = frames
        .iter()
        .filter(|frame| matches!(frame.get(12..14), Some([0x08, 0x00 | 0x06] | [0x86, 0xdd])));
    for frame in inner.step_by(40) {
        let (addresses, rest) = frame.split_at(12);
        let (kind, network) = rest.split_at(2);
        let with = |parts: &[&[u8]]| [addresses, &parts.concat(), network].concat();
        let vlan = |id: u8| [0x81, 0x00, 0x00, id];
        // IEEE 802.1Q.
        made.push(with(&[&vlan(1), kind]));
        made.push(with(&[&vlan(5), kind]));
        made.push(with(&[&[0x88, 0xa8, 0x20, 1], &vlan(100), kind]));
        made.push(with(&[&[0x91, 0x00, 0x00, 6], kind]));
        // RFC 3032: label, bottom of stack, time to live.
        let label = |label: u32, bottom: u32| (label << 12 | bottom << 8 | 64).to_be_bytes();
        let mpls = [0x88, 0x47];
        made.push(with(&[&mpls, &label(16, 1)]));
        made.push(with(&[&mpls, &label(100_000, 1)]));
        made.push(with(&[&mpls, &label(16, 0), &label(17, 1)]));
        made.push(with(&[&mpls, &label(16, 0), &label(17, 0), &label(18, 1)]));
        made.push(with(&[&vlan(1), &mpls, &label(16, 1)]));
        // RFC 2516: version, code, session, length, PPP protocol.
        let pppoe = |session: u8, protocol: [u8; 2]| {
            [&[0x88, 0x64, 0x11, 0, 0, session, 0, 64][..], &protocol].concat()
        };
        let protocol = match kind {
            [0x08, 0x00] => [0x00, 0x21],
            [0x86, 0xdd] => [0x00, 0x57],
            _ => [0xc0, 0x21],
        };
        made.push(with(&[&pppoe(1, protocol)]));
        made.push(with(&[&pppoe(0x11, protocol)]));
        made.push(with(&[&vlan(1), &pppoe(1, protocol)]));
        made.push(with(&[&pppoe(1, [0x02, 0x81]), &label(16, 1)]));
        made.push(with(&[&[0x88, 0x63, 0x11, 9, 0, 0, 0, 0]]));
        made.push(with(&[&vlan(1), &[0x88, 0x63, 0x11, 9, 0, 0, 0, 0]]));
        for protocol in [0x23, 0x27, 0x29, 0x2b, 0x31] {
            made.push(with(&[&pppoe(1, [0, protocol])]));
        }
        for inner in geneve_payloads(frame, kind, network) {
            made.push([addresses, &[0x08, 0x00], &inner].concat());
            made.push([addresses, &vlan(1), &[0x08, 0x00], &inner].concat());
            made.push([addresses, &mpls, &label(16, 1), &inner].concat());
        }
    }
    made.extend(llc(&frames[0]));
    made
}

/// Packets of `frames` after the headers of serial lines, by libpcap's link type: PPP, Cisco HDLC,
/// frame relay.
pub(crate) fn serial(frames: &[Vec<u8>]) -> Vec<(i32, Vec<Vec<u8>>)> {
    let mut made: Vec<(i32, Vec<Vec<u8>>)> = [9, 50, 51, 104, 107].map(|dlt| (dlt, vec![])).into();
    let mut push = |index: usize, header: &[u8], rest: &[u8]| {
        made[index].1.push([header, rest].concat());
    };
    let networks = frames.iter().filter_map(|frame| {
        let (kind, network) = (frame.get(12..14)?, frame.get(14..)?);
        matches!(kind, [0x08, 0x00 | 0x06] | [0x86, 0xdd]).then_some((kind, network))
    });
    for (kind, network) in networks.step_by(40) {
        let (ppp, nlpid) = match kind {
            [0x08, 0x00] => ([0x00, 0x21], 0xcc),
            [0x86, 0xdd] => ([0x00, 0x57], 0x8e),
            _ => ([0xc0, 0x21], 0x80),
        };
        let framed = [&[0xff, 3][..], &ppp].concat();
        let cisco = [&[0x0f, 0][..], kind].concat();
        push(0, &framed, network);
        push(0, &ppp, network);
        push(0, &ppp[1..], network);
        push(0, &[0xff, 3, 2, 0x81, 0, 1, 1, 64], network);
        push(0, &[0xff, 3, 2, 0x81, 0, 1, 0, 64, 0, 1, 1, 64], network);
        push(1, &framed, network);
        push(1, &cisco, network);
        push(2, &[&[0x11, 0, 0, 1, 0, 64][..], &ppp].concat(), network);
        push(3, &cisco, network);
        push(3, &[0x8f, 0, 0x88, 0x47, 0, 1, 1, 64], network);
        push(4, &[0x18, 0x41, 3, nlpid], network);
        push(4, &[0x18, 0x40, 1, 3, nlpid], network);
        push(4, &[&[0x18, 0x41][..], kind].concat(), network);
    }
    // PDUs of IS-IS and its kin (ISO 10589, ISO 9542, ISO 8473).
    for protocol in [0x81, 0x82, 0x83] {
        for pdu in 14..30 {
            let rest = [&[0x1b, 1, 0, pdu, 15, 0, 0, 0][..], &[0; 40]].concat();
            push(0, &[0xff, 3, 0, 0x23, protocol], &rest);
            push(1, &[0xff, 3, 0, 0x23, protocol], &rest);
            push(2, &[0x11, 0, 0, 1, 0, 64, 0, 0x23, protocol], &rest);
            push(3, &[0x0f, 0, 0xfe, 0xfe, 0, protocol], &rest);
            push(3, &[0x0f, 0, 0xfe, 0xfe, protocol], &rest);
            push(4, &[0x18, 0x41, 3, protocol], &rest);
        }
    }
    made
}

/// Ethernet frames as FDDI has them (RFC 1390): frame control, addresses, LLC; also of the ring itself,
/// and with LLC of other kinds.
pub(crate) fn fddi(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut made = Vec::new();
    for frame in frames.iter().filter(|frame| frame.len() > 14).step_by(20) {
        let (addresses, rest) = frame.split_at(12);
        let (kind, network) = rest.split_at(2);
        let mut push = |control: u8, llc: &[u8]| {
            made.push([&[control][..], addresses, llc, network].concat());
        };
        match kind {
            [0..=5, _] => push(0x50, &[]),
            kind => {
                let snap = [&[0xaa, 0xaa, 3, 0, 0, 0][..], kind].concat();
                push(0x50, &snap);
                push(0xd1, &snap);
                push(0x41, &snap);
            }
        }
    }
    let llc = llc(&frames[0]);
    let bare = llc.iter().filter(|frame| frame.len() > 14);
    made.extend(bare.map(|frame| [&[0x50][..], &frame[..12], &frame[14..]].concat()));
    made
}

/// IPv4, UDP and Geneve (RFC 8926), with and without options, around a frame or a packet.
fn geneve_payloads(frame: &[u8], kind: &[u8], network: &[u8]) -> Vec<Vec<u8>> {
    let outer = |header_words: u8, options: u8, vni: u8, kind: &[u8], payload: &[u8]| {
        let mut packet = vec![0x40 | header_words, 0, 0, 200, 0, 0, 0, 0, 64, 17, 0, 0];
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        packet.resize(usize::from(header_words) * 4, 0);
        // 6081.
        packet.extend([0x30, 0x39, 0x17, 0xc1, 0, 100, 0, 0]);
        packet.extend([options, 0, kind[0], kind[1], 0, 0, vni, 0]);
        packet.resize(packet.len() + usize::from(options) * 4, 0xee);
        packet.extend(payload);
        packet
    };
    let bridged = [0x65, 0x58];
    let tagged = [&frame[..12], &[0x81, 0x00, 0, 1], &frame[12..]].concat();
    let labelled = [&frame[..12], &[0x88, 0x47, 0, 1, 1, 64], &frame[14..]].concat();
    let session = [
        &frame[..12],
        &[0x88, 0x64, 0x11, 0, 0, 1, 0, 64, 0, 0x21],
        network,
    ]
    .concat();
    let spanning = [&frame[..12], &[0, 38, 0x42, 0x42, 3], &[0; 40]].concat();
    let broadcast = [&[0xff; 6], &frame[6..]].concat();
    let nested = {
        let inner = outer(5, 0, 10, &bridged, frame);
        [&frame[..12], &[0x08, 0x00], &inner].concat()
    };
    let mut made = vec![
        outer(5, 0, 0xb, kind, network),
        outer(6, 3, 10, kind, network),
    ];
    let frames = [
        tagged,
        labelled,
        session,
        spanning,
        broadcast,
        nested,
        frame.to_vec(),
    ];
    made.extend(frames.iter().map(|frame| outer(5, 1, 0xb, &bridged, frame)));
    made
}

/// Every LLC frame type (IEEE 802.2), the SAPs that have names, and SNAP.
fn llc(frame: &[u8]) -> Vec<Vec<u8>> {
    let mut made = Vec::new();
    let mut push = |kind: &[u8], llc: &[u8]| {
        made.push(
            [
                &frame[..12],
                kind,
                llc,
                &[0x83, 0x1b, 1, 0, 15, 0, 0, 0][..],
                &[0; 40],
            ]
            .concat(),
        );
    };
    for sap in [0x06, 0x42, 0xaa, 0xe0, 0xf0, 0xfe, 0xff] {
        for control in [
            0x00, 0x01, 0x03, 0x05, 0x09, 0x0f, 0x43, 0x63, 0x6f, 0x87, 0xaf, 0xe3,
        ] {
            push(&[0, 60], &[sap, sap, control]);
        }
    }
    for protocol in [0x81, 0x82, 0x83] {
        for pdu in 14..30 {
            push(&[0, 60], &[0xfe, 0xfe, 3, protocol, 0x1b, 1, 0, pdu]);
        }
    }
    push(&[0, 60], &[0xaa, 0xaa, 3, 8, 0, 7, 0x80, 0x9b]);
    push(&[0, 60], &[0xaa, 0xaa, 3, 0, 0, 0, 0x80, 0xf3]);
    push(&[0, 60], &[0xaa, 0xaa, 3, 0, 0, 0, 0x81, 0x37]);
    push(&[0x81, 0, 0, 1, 0, 60], &[0x42, 0x42, 3]);
    push(&[0x81, 0, 0, 1], &[0x81, 0x37]);
    for kind in [
        [0x80, 0x9b],
        [0x80, 0xf3],
        [0x81, 0x37],
        [0x90, 0x00],
        [0x80, 0x35],
    ] {
        push(&kind, &[0, 1]);
    }
    for kind in [1, 2, 3, 4, 7] {
        push(&[0x60, kind], &[0, 1]);
    }
    made
}
