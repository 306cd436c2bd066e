//! Makes the seeds: `seeds CAPTURES LOGS CORPUS`, run by `run.sh`.
//!
//! - `CAPTURES`: a folder of capture files; short ones become seeds of `pcap` and
//!   `pcapng`, their packets seeds of `dissect`;
//! - `LOGS`: a folder of logs, whose block files become seeds of `block`;
//! - `CORPUS`: where to, a folder per target.
//!
//! Models and filter expressions come from the source tree, which is the current
//! folder's parent.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use prost::Message as _;
use strata_blocks::{BlockHeader, HEADER_LEN};
use strata_exporter::{Header, HeaderWriter, Label, Source};
use strata_fuzz::{capture, link_index};
use strata_gpv::format::datagram::DatagramWriter;
use strata_gpv::format::paper::emit;
use strata_gpv::marple::SHIPPED;
use strata_gpv::{Basic, Cache, Columns, Full, Packet, Parameters, Seen, Vector};
use strata_stream::message::{Answer, HEADER_ENTRY_LEN, Message, Request};
use strata_stream::{Description, Form, Geometry, Retention, State, StreamKey};
use strata_wire::dissect::dissect;
use strata_wire::tunnel::{TunnelKind, Tunnels};
use strata_wire::{TunnelKey, ipv4};

/// A longer input is slow to mutate.
const BYTES_MAX: usize = 4096;
/// Packets taken of one capture.
const PACKETS_MAX: usize = 8;

fn main() -> io::Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [captures, logs, corpus] = arguments.as_slice() else {
        return Err(io::Error::other("usage: seeds CAPTURES LOGS CORPUS"));
    };
    let source = Path::new("..");
    let captures = files_below(captures)?;
    let packets = of_captures(&captures, corpus)?;
    of_what_is_carried(corpus)?;
    of_filters(source, &packets, corpus)?;
    of_models(source, corpus)?;
    of_labels(corpus)?;
    of_names(corpus)?;
    of_policies(corpus)?;
    of_int(corpus)?;
    of_configuration(corpus)?;
    of_alerts(corpus)?;
    of_the_wire(&packets, corpus)?;
    of_vectors(&captures, corpus)?;
    of_export(&captures, corpus)?;
    of_streams(corpus)?;
    of_logs(corpus)?;
    for file in files_below(logs)? {
        if file
            .parent()
            .is_some_and(|folder| folder.ends_with("blocks"))
        {
            of_block_file(&fs::read(&file)?, corpus)?;
        }
    }
    Ok(())
}

/// Tunnels, pseudo-wires, transports and quoted packets that captures have too few of.
fn of_what_is_carried(corpus: &Path) -> io::Result<()> {
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

/// Records in pages of each form, with marks, records of their own inside and damage.
fn of_streams(corpus: &Path) -> io::Result<()> {
    for choices in [0x20_u8, 0x30, 0x02, 0x2e, 0x0f] {
        let mut all = vec![choices];
        for number in 0..40_u8 {
            all.extend_from_slice(&[number, number.wrapping_mul(37), number % 2]);
            all.extend_from_slice(&[number; 60]);
        }
        seed(corpus, "stream", &all)?;
    }
    let description = Description {
        id: 7,
        key: [5; 16],
        created_ns: 1,
        retention: Retention::default(),
        geometry: Geometry::default(),
        form: Form::Sealed,
        name: "events".parse().expect("a name"),
    };
    seed(corpus, "stream", &description.emit())?;
    let messages = [
        Message::Stripe { name: "disk1" },
        Message::Request(Request::Join {
            stream: 7,
            streams: &[[7; 8], [8; 8]],
        }),
        Message::Request(Request::Release { pages: &[[1; 4]] }),
        Message::Request(Request::Write {
            page: 1,
            offset: 64,
            bytes: b"bytes",
        }),
        Message::Answer(Answer::Headers {
            next: Some(2),
            entries: &[[1; HEADER_ENTRY_LEN]],
        }),
        Message::Answer(Answer::Failed {
            is_full: true,
            text: "it is full",
        }),
    ];
    for message in messages {
        let mut frame = Vec::new();
        message.emit(&mut frame);
        // As a target has it, and as a connection does.
        seed(corpus, "stream", &frame[4..])?;
        seed(corpus, "stream", &frame)?;
    }
    seed(
        corpus,
        "stream",
        &State::new(1).emit(&StreamKey::new([5; 16])),
    )
}

/// Requests of OpenTelemetry agents, as protobuf and as JSON.
fn of_logs(corpus: &Path) -> io::Result<()> {
    let json = r#"{"resourceLogs":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"web"}}]},
        "scopeLogs":[{"scope":{"name":"m","version":"1"},"schemaUrl":"u","logRecords":[
        {"timeUnixNano":"1700000000000000000","severityNumber":9,"severityText":"INFO","eventName":"e",
        "body":{"kvlistValue":{"values":[{"key":"a","value":{"arrayValue":{"values":[{"intValue":"-1"},{"doubleValue":2.5},
        {"boolValue":true},{"bytesValue":"AP8="},{}]}}}]}},"traceId":"5b8efff798038103d269b633813fc60c",
        "spanId":"eee19b7ec3c1b174","flags":1},{}]}]}]}"#;
    seed(corpus, "otlp", json.as_bytes())?;
    let request: ExportLogsServiceRequest = serde_json::from_str(json)?;
    seed(corpus, "otlp", &request.encode_to_vec())
}

/// Alerts of Suricata, and an event that is not an alert.
fn of_alerts(corpus: &Path) -> io::Result<()> {
    let alert = |source: &str, destination: &str, proto: &str| {
        format!(
            r#"{{"timestamp":"2024-05-01T10:00:00.000000+0000","event_type":"alert","src_ip":"{source}","src_port":49152,"dest_ip":"{destination}","dest_port":443,"proto":"{proto}","alert":{{"severity":1}}}}"#
        )
    };
    let lines = [
        alert("10.1.2.3", "192.0.2.7", "TCP"),
        alert("2001:db8::1", "2001:db8::2", "udp"),
        alert("10.1.2.3", "192.0.2.7", "ICMP"),
        alert("10.1.2.3", "192.0.2.7", "132"),
        String::from(r#"{"event_type":"flow","proto":"TCP"}"#),
    ];
    for line in &lines {
        seed(corpus, "eve", line.as_bytes())?;
    }
    seed(corpus, "eve", lines.join("\n").as_bytes())
}

/// Datagrams of headers of short captures.
fn of_export(captures: &[PathBuf], corpus: &Path) -> io::Result<()> {
    let source = Source {
        identity: 1,
        session: 1,
    };
    for path in captures.iter().step_by(10) {
        let Some(reading) = capture::read(std::slice::from_ref(path), 1 << 16) else {
            continue;
        };
        let Some(first) = reading.packets().next() else {
            continue;
        };
        let link = reading.interfaces()[usize::from(first.interface)].link;
        let mut writer = HeaderWriter::new(source, link, 1400);
        let mut datagrams = Vec::new();
        let same = |packet: &&capture::Packet| packet.interface == first.interface;
        for packet in reading.packets().filter(same).take(60) {
            let headers = dissect(link, &packet.data, TunnelKey::Inner);
            let header = Header {
                ts_ns: packet.ts_ns,
                wire_len: packet.wire_len,
                bytes: &packet.data[..headers.header_len as usize],
                label: Label::default(),
            };
            let _ = writer.put(&header, |bytes| datagrams.push([&[0, 0], bytes].concat()));
        }
        writer.finish(|bytes| datagrams.push([&[0, 0], bytes].concat()));
        for datagram in datagrams.iter().take(2) {
            seed(corpus, "export", datagram)?;
        }
    }
    Ok(())
}

/// Vectors of short captures in each format, and queries with tuples.
fn of_vectors(captures: &[PathBuf], corpus: &Path) -> io::Result<()> {
    for path in captures.iter().step_by(20) {
        let Some(reading) = capture::read(std::slice::from_ref(path), 1 << 16) else {
            continue;
        };
        let interfaces = reading.interfaces();
        let packets = reading.packets().take(40).filter_map(|packet| {
            let link = interfaces[usize::from(packet.interface)].link;
            let headers = dissect(link, &packet.data, TunnelKey::Inner);
            let seen = Seen {
                ts_ns: packet.ts_ns,
                wire_len: packet.wire_len,
                ingress: 1,
            };
            Packet::read(&headers, &packet.data, seen)
        });
        let packets: Vec<Packet> = packets.collect();
        let mut bytes = vec![0];
        let mut paper = |vector: &Vector<'_, Basic>| {
            let _ = emit(vector, &mut bytes);
        };
        let mut cache = Cache::<Basic>::new(Parameters::PAPER, 1).map_err(io::Error::other)?;
        cache.push(&packets, &mut paper);
        cache.flush(&mut paper);
        if bytes.len() > 1 {
            seed(corpus, "vectors", &bytes)?;
        }
        let mut stream = vec![2];
        let mut send = |bytes: &[u8]| {
            let len = u16::try_from(bytes.len()).expect("a datagram");
            stream.extend_from_slice(&len.to_le_bytes());
            stream.extend_from_slice(bytes);
        };
        let mut writer = DatagramWriter::new(1, Columns::ALL, 600);
        let mut ours = |vector: &Vector<'_, Full>| {
            let _ = writer.put(vector, &mut send);
        };
        let mut cache = Cache::<Full>::new(Parameters::PAPER, 1).map_err(io::Error::other)?;
        cache.push(&packets, &mut ours);
        cache.flush(&mut ours);
        writer.finish(&mut send);
        if stream.len() > 1 {
            seed(corpus, "vectors", &stream)?;
        }
    }
    let tuples: Vec<u8> = (0..=255).collect();
    for query in SHIPPED {
        seed(
            corpus,
            "marple",
            &[query.text.as_bytes(), &[0], &tuples].concat(),
        )?;
    }
    Ok(())
}

/// Policies of every kind of field, with two packets.
fn of_policies(corpus: &Path) -> io::Result<()> {
    let mut policies = b"src net 10.1.0.0/16 and port 443=>header
tcp portrange 20-30 or vlan 5=>full 1/10 flows
ip6 net 2001:db8::/32 and not udp=>partial 64
host 10.1.0.1=>drop
icmp=>classify 1/3\0"
        .to_vec();
    let ipv4 = [&[0, 6, 1, 187, 4, 0, 0, 5, 1, 0, 0, 0], &[10, 1, 0, 1][..]];
    policies.extend(ipv4.concat());
    policies.extend([0; 28]);
    policies.extend([1, 17, 0, 53, 0, 53, 0, 0, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8]);
    policies.extend([0; 28]);
    seed(corpus, "rules", &policies)?;
    // Ports in a row about the numbers that need another bit of a port, and 10,000 in steps of 6.
    for (count, step, first) in [
        (4095_u16, 1_u16, 1_u16),
        (4096, 1, 1),
        (4097, 16, 7),
        (10_000, 6, 5),
    ] {
        let mut ports = Vec::new();
        for number in [count, step, first] {
            ports.extend(number.to_le_bytes());
        }
        ports.push(0);
        ports.extend([1, 80, 0, 0, 0, 0, 0xff, 0xff, 0, 0]);
        seed(corpus, "ports", &ports)?;
    }
    Ok(())
}

/// Steps of nodes of INT: what, which, by how much. The first is a node whose version changes near the
/// end of its numbers, which ended the collector.
fn of_int(corpus: &Path) -> io::Result<()> {
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

/// The keys of the configuration, and bodies of requests.
fn of_configuration(corpus: &Path) -> io::Result<()> {
    let config = "mode = ['office']\ndefault = 'drop'\n[modes.office]\nbenign = 'header'\n\
        anomalous = 'full'\n[modes.office.classes]\nunclassified = 'drop'\n[[policy]]\n\
        match = 'port 443'\naction = 'header'\ninterface = 'eth0'\nprotect = true\n[elastic]\n\
        blocks_percent = 50\nremove_percent = 97.5\ncpu_budget_percent = 10\n[control]\n\
        listen = '127.0.0.1:9477'\n[alerts]\nwebhook = 'https://example.com/'\n";
    seed(corpus, "config", config.as_bytes())?;
    let report = "{\"time_ns\":1,\"program\":\"1\",\"labels\":{\"rack\":\"1\"},\"interfaces\":\
        [{\"name\":\"tap0\",\"index\":1},{\"name\":\"eth0\",\"index\":2}],\"has\":null,\"runs\":0,\
        \"captures\":0,\"problem\":\"\",\"exports\":[]}";
    seed(corpus, "agents", &[b"\0", report.as_bytes()].concat())?;
    let policies = "[[policy]]\nname = 'a'\nmatch = 'tcp port 80'\naction = 'payload 9 -> b'\n\
        hosts = ['h*']\nlabels = { rack = '1' }\ninterfaces = ['tap?']\ntenant = 't'\npriority = 7\n\
        [[tenant]]\nname = 't'\ninterfaces = ['*:tap*']\n\
        [[identity]]\ninterface = 'host-1:tap0'\nidentity = 9\n";
    seed(corpus, "agents", &[b"\x01", policies.as_bytes()].concat())?;
    let mode = br#" {"mode":"log-all+default","seconds":1.5,"why":"x"}"#;
    seed(corpus, "api", &[b"\0", &mode[..]].concat())?;
    let policy = br#"{"match":"tcp","action":"full","priority":7,"protect":true}"#;
    seed(corpus, "api", &[b"\x01", &policy[..]].concat())?;
    seed(corpus, "api", b"\x021")
}

fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Writes a seed, by the checksum of its content: the same one once.
fn seed(corpus: &Path, target: &str, content: &[u8]) -> io::Result<()> {
    let folder = corpus.join(target);
    fs::create_dir_all(&folder)?;
    let name = format!("seed-{:08x}-{}", crc32c::crc32c(content), content.len());
    fs::write(folder.join(name), content)
}

/// Seeds of `pcap`, `pcapng` and `dissect`; returns packets of many kinds.
fn of_captures(files: &[PathBuf], corpus: &Path) -> io::Result<Vec<Vec<u8>>> {
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

/// The expressions that the filter's own tests use, each with some packet.
fn of_filters(source: &Path, packets: &[Vec<u8>], corpus: &Path) -> io::Result<()> {
    let tests = source.join("crates/path/filter/tests/it/support/expressions.rs");
    let tests = fs::read_to_string(tests)?;
    let lines = tests.lines().filter_map(|line| {
        let quoted = line.strip_prefix("    \"")?.strip_suffix("\",")?;
        Some(quoted.replace("\\\\", "\\"))
    });
    let step = (packets.len() / 700).max(1);
    let none = Vec::new();
    for (index, expression) in lines.enumerate() {
        let packet = packets.get(index * step).unwrap_or(&none);
        let packet = &packet[..packet.len().min(128)];
        seed(
            corpus,
            "filter",
            &[expression.as_bytes(), &[0], packet].concat(),
        )?;
    }
    Ok(())
}

/// A report of each kind and version, an INT report, a negative acknowledgement.
fn of_telemetry(corpus: &Path) -> io::Result<()> {
    let header = |opcode: u8, key_len: u8, data_len: u8, redundancy: u8| {
        let mut header = vec![opcode, 0x40, 0, 1, 0, 0, 0, 0];
        header.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 9, key_len, data_len, redundancy, 1]);
        header
    };
    let with = |mut header: Vec<u8>, body: &[u8]| {
        header.extend_from_slice(body);
        header
    };
    let int = [
        0x21, 0x40, 0, 1, 0, 0, 0, 7, 0x14, 14, 2, 0x60, 0x50, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 4, 1,
        0, 0, 9, 0x45, 0, 0, 40, 0, 0, 0, 0, 63, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 0, 0, 80, 0,
        0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0,
    ];
    let mut all = vec![0x20, 0];
    for (kind, datagram) in [
        (0, b"\x01\0\x02\x0a\0\0\x33\xde\xad\xbe\xef".to_vec()),
        (0, b"\x02\x07\0\0\0\0\x01\xde\xad\xbe\xef".to_vec()),
        (0, b"\x03\0\x04\x0a\0\0\x33\0\0\0\0\0\0\0\x08".to_vec()),
        (0, b"\x04\0\x0a\0\0\x33\x05\xde\xad\xbe\xef".to_vec()),
        (0, with(header(0x21, 3, 5, 2), b"abchello")),
        (0, with(header(0x22, 0, 4, 0), b"\0\0\0\x01data")),
        (0, with(header(0x23, 4, 8, 2), b"key!\0\0\0\0\0\0\0\x05")),
        (0, with(header(0x24, 4, 4, 0), b"flow\x01\x05\0\0\0\x07")),
        (2, int.to_vec()),
        (3, b"\x2f\x80\0\x01\0\0\0\0".to_vec()),
    ] {
        let len = u16::try_from(datagram.len()).expect("seeds are short");
        all.extend_from_slice(&len.to_le_bytes());
        all.push(kind);
        all.extend_from_slice(&datagram);
    }
    seed(corpus, "dta", &all)
}

/// What passes between switch and relay: a write, its answer, packets in a block, a
/// message of each kind.
fn of_the_wire(packets: &[Vec<u8>], corpus: &Path) -> io::Result<()> {
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
    of_telemetry(corpus)?;
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

/// A label file of each form, with a packet that it names.
const LABELS: [(u64, &str); 6] = [
    (1, "frame,label,source\n1,0,web\n2,1,scan\n"),
    (
        150,
        "label,source_address,port,protocol,from,to\nscan,10.0.0.0/24,80,tcp,100,200\nother,,,,,\n",
    ),
    (
        1_499_083_201,
        "Flow ID, Source IP, Source Port, Destination IP, Destination Port, Protocol, Timestamp, Flow Duration, Label\n\
         x,10.0.0.1,4000,10.0.0.2,80,6,03/07/2017 12:00:00,2000000,BENIGN\n",
    ),
    (
        1_499_083_201,
        "Src IP,Src Port,Dst IP,Dst Port,Protocol,Timestamp,Flow Duration,Label\n\
         10.0.0.1,4000,10.0.0.2,80,6,03/07/2017 12:00:00 PM,2000000,DoS Hulk\n",
    ),
    (
        102,
        "#separator \\x09\n#fields\tts\tid.orig_h\tid.orig_p\tid.resp_h\tid.resp_p\tproto\tduration\tlabel   detailed-label\n\
         100.5\t10.0.0.1\t4000\t10.0.0.2\t80\ttcp\t3.0\tMalicious   Scan\n",
    ),
    (
        102,
        "{\"ts\":100.5,\"id.orig_h\":\"10.0.0.1\",\"id.orig_p\":4000,\"id.resp_h\":\"10.0.0.2\",\"id.resp_p\":80,\"proto\":\"tcp\",\"duration\":3.0,\"label\":\"scan\"}\n",
    ),
];

/// Seeds of `names`: a query, a request, the beginnings of client hellos, and a server's certificate.
fn of_names(corpus: &Path) -> io::Result<()> {
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

/// Seeds of `labels`.
fn of_labels(corpus: &Path) -> io::Result<()> {
    for (ts_s, text) in LABELS {
        let ts_ns = (ts_s * 1_000_000_000).to_le_bytes();
        for choice in [0, 1] {
            seed(
                corpus,
                "labels",
                &[&[choice], &ts_ns[..], text.as_bytes()].concat(),
            )?;
        }
    }
    Ok(())
}

/// The built-in model whole and with one small tree of each kind, and some bytes
/// from which the target makes models itself.
fn of_models(source: &Path, corpus: &Path) -> io::Result<()> {
    let content = fs::read(source.join("models/default.json"))?;
    let mut model: serde_json::Value = serde_json::from_slice(&content)?;
    let values: Vec<u8> = (0..=255).collect();
    seed(
        corpus,
        "model",
        &[model.to_string().as_bytes(), &[0], &values].concat(),
    )?;
    for trees in ["flow_trees", "packet_trees"] {
        let split = serde_json::json!({"feature": 0, "at_most": 100.5, "left": 1, "right": 2});
        let leaf = |share: f64| serde_json::json!({"classes": [share, 1.0 - share]});
        model[trees] = serde_json::json!([{"nodes": [split, leaf(1.0), leaf(0.25)]}]);
    }
    seed(
        corpus,
        "model",
        &[model.to_string().as_bytes(), &[0], &values].concat(),
    )?;
    for first in 0..32_u8 {
        let made: Vec<u8> = (0..=255_u8)
            .map(|n| n.wrapping_mul(first * 2 + 1) ^ first)
            .collect();
        seed(corpus, "model", &made)?;
    }
    Ok(())
}

/// A block file as it is, and its first block's records by themselves.
fn of_block_file(content: &[u8], corpus: &Path) -> io::Result<()> {
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
