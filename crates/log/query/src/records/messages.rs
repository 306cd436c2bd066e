//! Rows of flows as messages of IPFIX (RFC 7011) or NetFlow 9 (RFC 3954): the columns define the contents of a record
//! and their sources, for both protocols.
//!
//! `uptime` has the clock of NetFlow 9, in which times are milliseconds since the exporter started.

mod uptime;

use std::io::{self, Write};
use std::net::IpAddr;

use strata_archive::parts::icmp_counterpart;
use strata_archive::{Element, ElementForm, FlowColumn};
use strata_wire::exact;

use crate::parts::cells::WrongValue;
use crate::records::record::FlowRecord;
use uptime::Uptime;

pub(crate) use uptime::Unfit;

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

/// The protocols have no missing values: flows without ports get this value.
const MISSING: u64 = 0;
/// Bytes of data records after which a message is written to a file; RFC 7011 allows 65,535.
const MESSAGE_BYTES: usize = 32_000;
/// The same of a message in a datagram: with the templates, it has less than 1,452 bytes, so that it fits into an
/// Ethernet frame over IPv6 too.
const DATAGRAM_BYTES: usize = 850;
/// The templates are in one of this many messages in datagrams: any datagram can be lost (RFC 7011, section 8.4; RFC
/// 3954, section 9).
const TEMPLATES_EVERY: u32 = 16;
/// The latest export time that a message can hold.
const EXPORT_TIME_MAX_S: u64 = 0xffff_ffff;
/// Sets of NetFlow 9 begin at multiples of this many bytes (RFC 3954, section 5.3).
const PADDED_TO: usize = 4;

/// The protocol by which a collector takes flow records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowProtocol {
    /// IPFIX (RFC 7011).
    Ipfix,
    /// NetFlow 9 (RFC 3954).
    Netflow9,
}

impl std::fmt::Display for FlowProtocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ipfix => "IPFIX",
            Self::Netflow9 => "NetFlow 9",
        })
    }
}

impl FlowProtocol {
    /// The first field of a message.
    fn version(self) -> u16 {
        match self {
            Self::Ipfix => 10,
            Self::Netflow9 => 9,
        }
    }

    /// The set that has templates.
    fn template_set(self) -> u16 {
        match self {
            Self::Ipfix => 2,
            Self::Netflow9 => 0,
        }
    }

    /// Number and length in bytes of an element in NetFlow 9, if it has others there.
    fn own(self, element: &Element) -> Option<(u16, u16)> {
        match self {
            Self::Ipfix => None,
            Self::Netflow9 => element.netflow9,
        }
    }
}

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
    fn elements(&self, protocol: FlowProtocol) -> impl Iterator<Item = (u16, u16)> {
        self.columns().filter_map(move |column| {
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
            Some(protocol.own(&element).unwrap_or((id, bytes)))
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

/// Messages being filled.
pub(crate) struct Messages {
    protocol: FlowProtocol,
    carrier: Carrier,
    /// The observation domain, in NetFlow 9 the source: templates and sequence numbers are of one.
    domain: u32,
    /// Data records by template.
    sets: [Vec<u8>; TEMPLATES.len()],
    records: u32,
    /// Data records of all messages.
    pub(crate) written: u64,
    /// Of the next message: in IPFIX, the number of data records before it; in NetFlow 9, of messages.
    sequence: u32,
    export_time_s: u32,
    messages: u32,
    /// Of NetFlow 9.
    uptime: Uptime,
}

impl Messages {
    /// Of a domain; 0 for no particular one.
    pub(crate) fn new(protocol: FlowProtocol, carrier: Carrier, domain: u32) -> Self {
        Self {
            protocol,
            carrier,
            domain,
            sets: Default::default(),
            records: 0,
            written: 0,
            sequence: 0,
            export_time_s: 0,
            messages: 0,
            uptime: Uptime::default(),
        }
    }

    /// Writes the templates with the next message.
    pub(crate) fn repeat_templates(&mut self) {
        self.messages = 0;
    }

    /// Adds both directions of a flow, and writes the message if it is full.
    pub(crate) fn add(&mut self, record: &FlowRecord, output: &mut impl Write) -> io::Result<()> {
        self.exported(record, output)?;
        self.both_directions(record)
            .map_err(|wrong| io::Error::new(io::ErrorKind::InvalidData, wrong))?;
        let most = match self.carrier {
            Carrier::File => MESSAGE_BYTES,
            Carrier::Datagrams => DATAGRAM_BYTES,
        };
        match self.sets.iter().map(Vec::len).sum::<usize>() > most {
            true => self.flush(output),
            false => Ok(()),
        }
    }

    fn both_directions(&mut self, record: &FlowRecord) -> Result<(), WrongValue> {
        let ends = ADDRESSES.map(|column| record.address(column));
        let key = match ends {
            [Some(IpAddr::V4(_)), Some(IpAddr::V4(_))] => Key::V4,
            [Some(IpAddr::V6(_)), Some(IpAddr::V6(_))] => Key::V6,
            _ if ADDRESSES.iter().all(|end| mac(record, *end).is_some()) => Key::Mac,
            _ => Key::Interface,
        };
        let there = icmp(record)?;
        // Only the answering type is known; the other direction's own is not in the record.
        let back = match (there, record.int(FlowColumn::Protocol)?) {
            (Some([kind, _]), Some(number)) => icmp_counterpart(number, kind).map(|kind| [kind, 0]),
            _ => None,
        };
        self.direction(record, key, Direction::There, there)?;
        self.direction(record, key, Direction::Back, back)
    }

    /// A message's export time is the end of its latest flow. If the times of a flow do not fit the message that is
    /// being filled, that is written first.
    fn exported(&mut self, record: &FlowRecord, output: &mut impl Write) -> io::Result<()> {
        let [first_ns, last_ns] =
            [FlowColumn::FirstTime, FlowColumn::LastTime].map(|column| record.time(column));
        let last_s = match self.protocol {
            FlowProtocol::Ipfix => last_ns / 1_000_000_000,
            FlowProtocol::Netflow9 => {
                if !self.uptime.holds(first_ns, last_ns) {
                    let uptime = Uptime::that_holds(first_ns, last_ns)?;
                    self.flush(output)?;
                    self.uptime = uptime;
                    self.export_time_s = 0;
                }
                // A flow that ended after the uptime in the header would be taken for one of 49.7 days before.
                last_ns.div_ceil(1_000_000_000)
            }
        };
        let last_s = u32::try_from(last_s.min(EXPORT_TIME_MAX_S)).expect("no later than that");
        self.export_time_s = self.export_time_s.max(last_s);
        Ok(())
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
            self.put(record, of(column), icmp, &mut bytes)?;
        }
        self.sets[number].extend_from_slice(&bytes);
        self.records += 1;
        self.written += 1;
        Ok(())
    }

    /// Appends a column's value as its information element.
    fn put(
        &self,
        record: &FlowRecord,
        column: FlowColumn,
        icmp: Option<[u8; 2]>,
        out: &mut Vec<u8>,
    ) -> Result<(), WrongValue> {
        let of_icmp = || icmp.expect("the template is that of ICMP");
        let element = element(column);
        match element.form {
            ElementForm::Unsigned(len) => {
                let bytes = record.int::<u64>(column)?.unwrap_or(MISSING).to_be_bytes();
                let (high, low) = bytes.split_at(bytes.len() - usize::from(len));
                if high.iter().any(|byte| *byte != 0) {
                    return Err(record.wrong(column));
                }
                let low = match self.protocol.own(&element) {
                    Some((_, own)) => &bytes[bytes.len() - usize::from(own)..],
                    None => low,
                };
                out.extend_from_slice(low);
            }
            ElementForm::Milliseconds => match self.protocol {
                FlowProtocol::Ipfix => {
                    out.extend_from_slice(&(record.time(column) / 1_000_000).to_be_bytes());
                }
                FlowProtocol::Netflow9 => {
                    out.extend_from_slice(&self.uptime.at(record.time(column)).to_be_bytes());
                }
            },
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
            let templates = self.templates()?;
            let id = self.protocol.template_set();
            set(self.protocol, &mut body, id, &templates);
        }
        for (template, records) in TEMPLATES.iter().zip(&mut self.sets) {
            if !records.is_empty() {
                set(self.protocol, &mut body, template.id, records);
                records.clear();
            }
        }
        let mut message = self.header(body.len(), with_templates)?;
        message.append(&mut body);
        output.write_all(&message)?;
        let counted = match self.protocol {
            FlowProtocol::Ipfix => self.records,
            FlowProtocol::Netflow9 => 1,
        };
        self.sequence = self.sequence.wrapping_add(counted);
        self.records = 0;
        Ok(())
    }

    fn templates(&self) -> io::Result<Vec<u8>> {
        let mut templates = Vec::new();
        for template in &TEMPLATES {
            let count = template.elements(self.protocol).count();
            let count = u16::try_from(count).map_err(io::Error::other)?;
            templates.extend_from_slice(&template.id.to_be_bytes());
            templates.extend_from_slice(&count.to_be_bytes());
            for (element, len) in template.elements(self.protocol) {
                templates.extend_from_slice(&element.to_be_bytes());
                templates.extend_from_slice(&len.to_be_bytes());
            }
        }
        Ok(templates)
    }

    /// The header of a message (RFC 7011, section 3.1; RFC 3954, section 5.1).
    fn header(&self, body_len: usize, with_templates: bool) -> io::Result<Vec<u8>> {
        let mut header = Vec::with_capacity(body_len + 20);
        header.extend_from_slice(&self.protocol.version().to_be_bytes());
        match self.protocol {
            FlowProtocol::Ipfix => {
                let len = u16::try_from(16 + body_len).map_err(io::Error::other)?;
                header.extend_from_slice(&len.to_be_bytes());
            }
            FlowProtocol::Netflow9 => {
                // Records of templates count too.
                let of_templates = if with_templates { TEMPLATES.len() } else { 0 };
                let count = exact::<usize>(self.records) + of_templates;
                let count = u16::try_from(count).map_err(io::Error::other)?;
                header.extend_from_slice(&count.to_be_bytes());
                let exported_ns = u64::from(self.export_time_s) * 1_000_000_000;
                header.extend_from_slice(&self.uptime.at(exported_ns).to_be_bytes());
            }
        }
        header.extend_from_slice(&self.export_time_s.to_be_bytes());
        header.extend_from_slice(&self.sequence.to_be_bytes());
        header.extend_from_slice(&self.domain.to_be_bytes());
        Ok(header)
    }
}

/// Appends a set of templates or of records.
fn set(protocol: FlowProtocol, body: &mut Vec<u8>, id: u16, content: &[u8]) {
    let padding = match protocol {
        FlowProtocol::Ipfix => 0,
        FlowProtocol::Netflow9 => content.len().next_multiple_of(PADDED_TO) - content.len(),
    };
    let len = u16::try_from(4 + content.len() + padding);
    let len = len.expect("a set has some 32,000 bytes");
    body.extend_from_slice(&id.to_be_bytes());
    body.extend_from_slice(&len.to_be_bytes());
    body.extend_from_slice(content);
    body.resize(body.len() + padding, 0);
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
