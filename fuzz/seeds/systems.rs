//! What systems exchange: streams, exported headers, vectors, telemetry.

use std::io;
use std::path::{Path, PathBuf};

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use prost::Message as _;
use strata_exporter::{Header, HeaderWriter, Label, Source};
use strata_fuzz::capture;
use strata_gpv::format::datagram::DatagramWriter;
use strata_gpv::format::paper::emit;
use strata_gpv::marple::SHIPPED;
use strata_gpv::{Basic, Cache, Columns, Full, Packet, Parameters, Seen, Vector};
use strata_stream::message::{Answer, HEADER_ENTRY_LEN, Message, Request};
use strata_stream::{Description, Form, Geometry, Retention, State, StreamKey};
use strata_wire::TunnelKey;
use strata_wire::dissect::dissect;

use super::seed;

/// Records in pages of each form, with marks, records of their own inside and damage.
pub(crate) fn of_streams(corpus: &Path) -> io::Result<()> {
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
pub(crate) fn of_logs(corpus: &Path) -> io::Result<()> {
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

/// Datagrams of headers of short captures.
pub(crate) fn of_export(captures: &[PathBuf], corpus: &Path) -> io::Result<()> {
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
pub(crate) fn of_vectors(captures: &[PathBuf], corpus: &Path) -> io::Result<()> {
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
            of_sources(corpus, &bytes[1..], &stream[1..])?;
        }
    }
    of_frames(corpus)?;
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

/// Files that grow in turns: with vectors of the paper's form, and with datagrams, each after its length, of ours.
fn of_sources(corpus: &Path, paper: &[u8], datagrams: &[u8]) -> io::Result<()> {
    let step = |action: u8, bytes: &[u8]| {
        let len = u16::try_from(bytes.len()).expect("seeds are short");
        let mut step = vec![action];
        step.extend_from_slice(&len.to_le_bytes());
        step.extend_from_slice(bytes);
        step
    };
    let mut files = vec![1];
    for (number, piece) in (0..).zip(paper.chunks(100).take(20)) {
        files.extend(step(number % 3, piece));
    }
    seed(corpus, "vector_sources", &files)?;
    // As they are, and put right.
    for first in [0, 4] {
        let (mut files, mut rest) = (vec![first], datagrams);
        for action in [0, 1, 1, 2, 9, 0x40, 3, 15, 0] {
            let Some((len, others)) = rest.split_first_chunk::<2>() else {
                break;
            };
            let len = usize::from(u16::from_le_bytes(*len)).min(others.len());
            files.extend(step(action, &others[..len]));
            rest = &others[len..];
        }
        seed(corpus, "vector_sources", &files)?;
    }
    Ok(())
}

/// Frames of the paper's switch with narrow and wide vectors, of each kind of words.
fn of_frames(corpus: &Path) -> io::Result<()> {
    for first in [7, 15] {
        let mut frames = vec![first];
        for (kind, count) in [(1_u8, 2_u8), (0, 5), (1, 1), (0, 8), (0, 28), (1, 9)] {
            let mut frame = vec![kind; 12];
            frame.extend_from_slice(&[8, 0x1a, 8, 0, 0, 1]);
            frame.extend_from_slice(&[10, 0, 0, kind, 10, 0, 0, 2, 4, 0, 0, 53]);
            frame.extend_from_slice(&[0x3b, 0x9a, 0xca, count, 0, count, 17]);
            frame.extend((0..28_u8).flat_map(|word| [0, word, 5, 0xdc]));
            let len = u16::try_from(frame.len()).expect("seeds are short");
            for word in [1_700_000_000_u32, 7] {
                frames.extend_from_slice(&word.to_le_bytes());
            }
            frames.extend_from_slice(&len.to_le_bytes());
            frames.extend_from_slice(&frame);
        }
        seed(corpus, "vector_sources", &frames)?;
    }
    Ok(())
}

/// A report of each kind and version, an INT report, a negative acknowledgement.
pub(crate) fn of_telemetry(corpus: &Path) -> io::Result<()> {
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
