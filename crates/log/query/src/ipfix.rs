//! Rows of flows as IPFIX messages (RFC 7011): the columns define the contents of a record and
//! their sources.

use std::io::{self, Write};
use std::net::IpAddr;

use strata_archive::parts::icmp_counterpart;
use strata_archive::{Element, ElementForm, FlowColumn};

use crate::cells::WrongValue;
use crate::record::FlowRecord;

/// The start of every record.
const ADDRESSES: [FlowColumn; 2] = [FlowColumn::Src, FlowColumn::Dst];
/// What follows the addresses: ports, or type and code of ICMP.
const PORTS: [FlowColumn; 2] = [FlowColumn::SrcPort, FlowColumn::DstPort];
const ICMP: [FlowColumn; 2] = [FlowColumn::IcmpType, FlowColumn::IcmpCode];
/// What a record of IP has after these.
const OF_IP: [FlowColumn; 3] = [
    FlowColumn::Protocol,
    FlowColumn::TcpFlags,
    FlowColumn::IpBytes,
];
/// The end of every record.
const ENDING: [FlowColumn; 6] = [
    FlowColumn::Interface,
    FlowColumn::Packets,
    FlowColumn::WireBytes,
    FlowColumn::FirstTime,
    FlowColumn::LastTime,
    FlowColumn::EndReason,
];

/// IPFIX has no missing values: flows without ports get this value.
const MISSING: u64 = 0;
/// Bytes of data records after which a message is written to a file; RFC 7011 allows 65,535.
const MESSAGE_BYTES: usize = 32_000;
/// The same of a message in a datagram: with the templates, it has less than 1,452 bytes, so that it fits into an
/// Ethernet frame over IPv6 too.
const DATAGRAM_BYTES: usize = 850;
/// The templates are in one of this many messages in datagrams: any datagram can be lost (RFC 7011, section 8.4).
const TEMPLATES_EVERY: u32 = 16;
/// The latest export time that a message can hold.
const EXPORT_TIME_MAX_S: u64 = 0xffff_ffff;

/// What identifies a flow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    V4,
    V6,
    /// MAC addresses and EtherType.
    Mac,
    /// The interface alone: packets that were not dissected.
    Interface,
}

/// The layout of a record.
struct Template {
    id: u16,
    key: Key,
    /// What follows the addresses.
    then: &'static [FlowColumn],
}

/// For IPv4 and IPv6 with ports, for ICMP over both, and for what is not IP.
const TEMPLATES: [Template; 6] = [
    Template {
        id: 256,
        key: Key::V4,
        then: &PORTS,
    },
    Template {
        id: 257,
        key: Key::V6,
        then: &PORTS,
    },
    Template {
        id: 258,
        key: Key::V4,
        then: &ICMP,
    },
    Template {
        id: 259,
        key: Key::V6,
        then: &ICMP,
    },
    Template {
        id: 260,
        key: Key::Mac,
        then: &[FlowColumn::EtherType],
    },
    Template {
        id: 261,
        key: Key::Interface,
        then: &[],
    },
];

fn element(column: FlowColumn) -> Element {
    let element = column.spec().element;
    element.expect("the columns of a template are information elements")
}

impl Key {
    fn is_ip(self) -> bool {
        matches!(self, Self::V4 | Self::V6)
    }
}

impl Template {
    fn columns(&self) -> impl Iterator<Item = FlowColumn> {
        let (addresses, of_ip): (&[FlowColumn], &[FlowColumn]) = match self.key {
            Key::V4 | Key::V6 => (&ADDRESSES, &OF_IP),
            Key::Mac => (&ADDRESSES, &[]),
            Key::Interface => (&[], &[]),
        };
        [addresses, self.then, of_ip, &ENDING]
            .into_iter()
            .flatten()
            .copied()
    }

    /// Numbers and lengths of the information elements.
    fn elements(&self) -> impl Iterator<Item = (u16, u16)> {
        self.columns().filter_map(|column| {
            let element = element(column);
            let (id, address_bytes) = match (self.key, element.mac) {
                (Key::V6, _) => (element.ids[1], 16),
                (Key::Mac, Some((id, _))) => (id, 6),
                (Key::V4 | Key::Mac | Key::Interface, _) => (element.ids[0], 4),
            };
            let bytes = match element.form {
                ElementForm::Unsigned(bytes) => bytes,
                ElementForm::Milliseconds => 8,
                ElementForm::Address => address_bytes,
                ElementForm::FirstByte => 2,
                ElementForm::SecondByte => return None,
            };
            Some((id, bytes))
        })
    }
}

/// A direction of a flow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    There,
    Back,
}

/// Where messages go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    File,
    Datagrams,
}

/// IPFIX messages being filled.
pub(crate) struct Ipfix {
    carrier: Carrier,
    /// Data records by template.
    sets: [Vec<u8>; TEMPLATES.len()],
    records: u32,
    /// Data records of all messages.
    pub(crate) written: u64,
    sequence: u32,
    export_time_s: u32,
    messages: u32,
}

impl Ipfix {
    pub(crate) fn new(carrier: Carrier) -> Self {
        Self {
            carrier,
            sets: Default::default(),
            records: 0,
            written: 0,
            sequence: 0,
            export_time_s: 0,
            messages: 0,
        }
    }

    /// Writes the templates with the next message.
    pub(crate) fn repeat_templates(&mut self) {
        self.messages = 0;
    }

    /// Adds both directions of a flow; returns whether the message is full.
    pub(crate) fn add(&mut self, record: &FlowRecord) -> Result<bool, WrongValue> {
        let ends = ADDRESSES.map(|column| record.address(column));
        let key = match ends {
            [Some(IpAddr::V4(_)), Some(IpAddr::V4(_))] => Key::V4,
            [Some(IpAddr::V6(_)), Some(IpAddr::V6(_))] => Key::V6,
            _ if ADDRESSES.iter().all(|end| mac(record, *end).is_some()) => Key::Mac,
            _ => Key::Interface,
        };
        self.exported(record);
        let there = icmp(record)?;
        // Only the answering type is known; the other direction's own is not in the record.
        let back = match (there, record.int(FlowColumn::Protocol)?) {
            (Some([kind, _]), Some(number)) => icmp_counterpart(number, kind).map(|kind| [kind, 0]),
            _ => None,
        };
        self.direction(record, key, Direction::There, there)?;
        self.direction(record, key, Direction::Back, back)?;
        let most = match self.carrier {
            Carrier::File => MESSAGE_BYTES,
            Carrier::Datagrams => DATAGRAM_BYTES,
        };
        Ok(self.sets.iter().map(Vec::len).sum::<usize>() > most)
    }

    /// A message's export time is the end of its latest flow.
    fn exported(&mut self, record: &FlowRecord) {
        let last_s = record.time(FlowColumn::LastTime) / 1_000_000_000;
        let last_s = u32::try_from(last_s.min(EXPORT_TIME_MAX_S)).expect("no later than that");
        self.export_time_s = self.export_time_s.max(last_s);
    }

    fn direction(
        &mut self,
        record: &FlowRecord,
        key: Key,
        direction: Direction,
        icmp: Option<[u8; 2]>,
    ) -> Result<(), WrongValue> {
        let of = |column: FlowColumn| match direction {
            Direction::There => column,
            Direction::Back => column.reverse(),
        };
        if record.int::<u64>(of(FlowColumn::Packets))? == Some(0) {
            return Ok(());
        }
        let is_it = |template: &Template| {
            let is_of_icmp = template.then.starts_with(&ICMP);
            template.key == key && is_of_icmp == (icmp.is_some() && key.is_ip())
        };
        let number = TEMPLATES.iter().position(is_it);
        let number = number.expect("a template for each key and protocol");
        let mut bytes = Vec::new();
        for column in TEMPLATES[number].columns() {
            put(record, of(column), icmp, &mut bytes)?;
        }
        self.sets[number].extend_from_slice(&bytes);
        self.records += 1;
        self.written += 1;
        Ok(())
    }

    /// Writes what was added as a message, at once.
    pub(crate) fn flush(&mut self, output: &mut impl Write) -> io::Result<()> {
        if self.records == 0 {
            return Ok(());
        }
        let mut body = Vec::new();
        let with_templates = match self.carrier {
            Carrier::File => self.messages == 0,
            Carrier::Datagrams => self.messages.is_multiple_of(TEMPLATES_EVERY),
        };
        self.messages = self.messages.wrapping_add(1);
        if with_templates {
            let mut templates = Vec::new();
            for template in &TEMPLATES {
                let count = u16::try_from(template.elements().count()).map_err(io::Error::other)?;
                templates.extend_from_slice(&template.id.to_be_bytes());
                templates.extend_from_slice(&count.to_be_bytes());
                for (element, len) in template.elements() {
                    templates.extend_from_slice(&element.to_be_bytes());
                    templates.extend_from_slice(&len.to_be_bytes());
                }
            }
            set(&mut body, 2, &templates);
        }
        for (template, records) in TEMPLATES.iter().zip(&mut self.sets) {
            if !records.is_empty() {
                set(&mut body, template.id, records);
                records.clear();
            }
        }
        let len = u16::try_from(16 + body.len()).map_err(io::Error::other)?;
        let mut message = Vec::with_capacity(usize::from(len));
        message.extend_from_slice(&10_u16.to_be_bytes());
        message.extend_from_slice(&len.to_be_bytes());
        message.extend_from_slice(&self.export_time_s.to_be_bytes());
        message.extend_from_slice(&self.sequence.to_be_bytes());
        // No particular observation domain (RFC 7011 §3.1): templates are valid for one.
        message.extend_from_slice(&0_u32.to_be_bytes());
        message.append(&mut body);
        output.write_all(&message)?;
        self.sequence = self.sequence.wrapping_add(self.records);
        self.records = 0;
        Ok(())
    }
}

/// Type and code of an ICMP flow.
fn icmp(record: &FlowRecord) -> Result<Option<[u8; 2]>, WrongValue> {
    let [kind, code] = ICMP.map(|column| record.int(column));
    Ok(kind?.zip(code?).map(|(kind, code)| [kind, code]))
}

/// A column's MAC address.
fn mac(record: &FlowRecord, column: FlowColumn) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = record.get(column).as_str()?.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

/// Appends a column's value as its information element.
fn put(
    record: &FlowRecord,
    column: FlowColumn,
    icmp: Option<[u8; 2]>,
    out: &mut Vec<u8>,
) -> Result<(), WrongValue> {
    let of_icmp = || icmp.expect("the template is that of ICMP");
    match element(column).form {
        ElementForm::Unsigned(len) => {
            let value = record.int::<u64>(column)?;
            let bytes = value.unwrap_or(MISSING).to_be_bytes();
            let (high, low) = bytes.split_at(bytes.len() - usize::from(len));
            if high.iter().any(|byte| *byte != 0) {
                return Err(record.wrong(column));
            }
            out.extend_from_slice(low);
        }
        ElementForm::Milliseconds => {
            out.extend_from_slice(&(record.time(column) / 1_000_000).to_be_bytes());
        }
        ElementForm::Address => match record.address(column) {
            Some(IpAddr::V4(address)) => out.extend_from_slice(&address.octets()),
            Some(IpAddr::V6(address)) => out.extend_from_slice(&address.octets()),
            None => {
                let mac = mac(record, column);
                out.extend_from_slice(&mac.expect("the template is that of MAC addresses"));
            }
        },
        ElementForm::FirstByte => out.push(of_icmp()[0]),
        ElementForm::SecondByte => out.push(of_icmp()[1]),
    }
    Ok(())
}

fn set(body: &mut Vec<u8>, id: u16, content: &[u8]) {
    let len = u16::try_from(4 + content.len()).expect("a set has some 32,000 bytes");
    body.extend_from_slice(&id.to_be_bytes());
    body.extend_from_slice(&len.to_be_bytes());
    body.extend_from_slice(content);
}
