//! A packet as tshark dissects it, where that is installed: in a child that may take a few seconds
//! and write a bounded amount.

use std::path::Path;
use std::time::Duration;

use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};
use strata_wire::clamped;

use crate::answers::parts::Field;
use crate::answers::times::SECOND_NS;
use crate::packets::Packet;
use crate::work::child::{self, NoAnswer};

/// Maximum bytes of tshark's answer, number of fields, depth of nesting and bytes of a label.
const BYTES_MAX: u64 = 4 << 20;
const FIELDS_MAX: usize = 5000;
const DEPTH_MAX: usize = 64;
const LABEL_BYTES_MAX: usize = 1024;
const AFTER: Duration = Duration::from_secs(10);

/// The layers of the first `shown` bytes of a packet.
///
/// # Errors
///
/// If tshark cannot be run or does not understand the packet: the page's words.
pub async fn layers(program: &Path, packet: &Packet, shown: usize) -> Result<Vec<Field>, String> {
    let input = (capture(packet, shown), BYTES_MAX);
    // Without names: a look at a packet must not ask a name server.
    let arguments = ["-n", "-r", "-", "-T", "pdml"];
    let answered = child::run(program, arguments, input, AFTER).await;
    let answered = answered.map_err(|why| match why {
        NoAnswer::Start(error) => format!("tshark cannot be run: {error}"),
        NoAnswer::Late(after) => format!("tshark took longer than {} s", after.as_secs()),
    })?;
    if answered.is_cut {
        return Err(String::from("tshark's dissection is too long"));
    }
    let layers = parse(&answered.output)?;
    match layers.is_empty() {
        true => Err(format!("tshark says: {}", answered.said.trim())),
        false => Ok(layers),
    }
}

/// A pcap file with one packet, with nanoseconds.
fn capture(packet: &Packet, shown: usize) -> Vec<u8> {
    let data = &packet.data[..shown.min(packet.data.len())];
    let mut file = Vec::with_capacity(data.len().saturating_add(40));
    let mut words = |words: &[u32]| {
        for word in words {
            file.extend_from_slice(&word.to_le_bytes());
        }
    };
    let len: u32 = clamped(data.len());
    words(&[
        0xa1b2_3c4d,
        0x0004_0002,
        0,
        0,
        0x0004_0000,
        packet.link.0.into(),
    ]);
    let seconds = clamped(packet.ts_ns / SECOND_NS);
    let rest = clamped(packet.ts_ns % SECOND_NS);
    words(&[seconds, rest, len, packet.wire_len.max(len)]);
    file.extend_from_slice(data);
    file
}

/// A field whose fields are being read.
struct Open {
    field: Field,
    is_hidden: bool,
}

/// The protocols of the first packet of a PDML document.
fn parse(pdml: &[u8]) -> Result<Vec<Field>, String> {
    let text = String::from_utf8_lossy(pdml);
    let mut reader = Reader::from_str(&text);
    let mut layers: Vec<Field> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    let mut count = 0_usize;
    loop {
        let event = reader.read_event();
        let event =
            event.map_err(|error| format!("tshark's dissection cannot be parsed: {error}"))?;
        match event {
            Event::Start(start) if is_field(&start) => {
                count = count.saturating_add(1);
                if open.len().saturating_add(1) >= DEPTH_MAX || count > FIELDS_MAX {
                    return Err(String::from("tshark's dissection has too many fields"));
                }
                open.push(field(&start));
            }
            Event::Empty(start) if is_field(&start) => {
                count = count.saturating_add(1);
                if count > FIELDS_MAX {
                    return Err(String::from("tshark's dissection has too many fields"));
                }
                add(&mut layers, &mut open, field(&start));
            }
            Event::End(end) if matches!(end.name().as_ref(), b"proto" | b"field") => {
                if let Some(done) = open.pop() {
                    add(&mut layers, &mut open, done);
                }
            }
            Event::End(end) if end.name().as_ref() == b"packet" => break,
            Event::Eof => break,
            _ => {}
        }
    }
    // What tshark says about the file is not of the packet.
    layers.retain(|layer| {
        let name = layer.name.as_deref();
        !matches!(name, Some("geninfo" | "frame" | "fake-field-wrapper"))
    });
    Ok(layers)
}

fn is_field(start: &BytesStart<'_>) -> bool {
    matches!(start.name().as_ref(), b"proto" | b"field")
}

/// Adds a field to what it is in: the innermost field that is open, or the layers.
fn add(layers: &mut Vec<Field>, open: &mut [Open], done: Open) {
    if done.is_hidden {
        return;
    }
    match open.last_mut() {
        Some(within) => within.field.fields.push(done.field),
        None => layers.push(done.field),
    }
}

fn field(start: &BytesStart<'_>) -> Open {
    let text = |name: &str| {
        let found = start
            .attributes()
            .flatten()
            .find(|one| one.key.as_ref() == name.as_bytes());
        let found = found.map(|one| String::from_utf8_lossy(&one.value).into_owned());
        found.map(|raw| unescape(&raw).map_or_else(|_| raw.clone(), |text| text.into_owned()))
    };
    let number = |name: &str| text(name).and_then(|number| number.parse::<u64>().ok());
    let label = text("showname")
        .filter(|label| !label.is_empty())
        .or_else(|| text("show"));
    let label = label.as_deref().unwrap_or("");
    Open {
        field: Field {
            name: text("name"),
            label: strata_wire::start_of(label, LABEL_BYTES_MAX).to_owned(),
            start: number("pos"),
            length: number("size"),
            fields: Vec::new(),
        },
        is_hidden: text("hide").as_deref() == Some("yes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pdml_is_read_with_its_places_and_hostile_text_stays_text() {
        let pdml = br#"<?xml version="1.0"?><pdml><packet>
            <proto name="geninfo" pos="0" showname="General" size="60"/>
            <proto name="ip" showname="IP &lt;script&gt;" size="20" pos="14">
              <field name="ip.ttl" showname="TTL: 64" size="1" pos="22" show="64"/>
              <field name="ip.x" hide="yes" show="1" size="1" pos="22"/>
            </proto></packet></pdml>"#;
        let layers = parse(pdml).unwrap();
        assert_eq!(layers.len(), 1);
        assert_eq!(layers[0].label, "IP <script>");
        assert_eq!(layers[0].fields.len(), 1);
        assert_eq!(layers[0].fields[0].start, Some(22));
        let deep = "<field>".repeat(100_000);
        assert!(parse(deep.as_bytes()).is_err());
        assert!(parse(b"\xff<<&").map_or(true, |layers| layers.is_empty()));
    }
}
