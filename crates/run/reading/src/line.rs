//! A packet as a line, in the notation of tcpdump.

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::Range;

use serde_json::{Map, Value};
use strata_networks::Known;
use strata_processes::{Process, of_options};
use strata_query::{LoggedPacket, address_text, packet_json};
use strata_wire::dissect::protocol;
use strata_wire::{
    AddressFamily, Endpoint, FlowKey, Headers, Printable, ethernet, fields, transport,
};

/// EtherTypes that are shown by name, beside those of IP and ARP.
const NAMED: [(u16, &str); 3] = [(0x888e, "EAPOL"), (0x88cc, "LLDP"), (0x8863, "PPPoE")];

/// What is known about source and destination.
pub(crate) type Ends = [Known; 2];

/// A packet and its headers, in which later fragments have the ports of their first one.
pub(crate) struct Line<'a> {
    packet: &'a LoggedPacket<'a>,
    headers: &'a Headers,
    ends: Ends,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.headers.key {
            None => write!(f, "{}, not dissected", self.packet.link)?,
            Some(key) if key.family != AddressFamily::Mac => self.internet(key, f)?,
            Some(key) => match self.arp() {
                Some(message) => arp(message, f)?,
                None => self.frame(key, f)?,
            },
        }
        match self.length() {
            Some(length) => write!(f, ", length {length}")?,
            None => f.write_str(", bad length")?,
        }
        if let Some(tunnel) = self.headers.outer.filter(|_| self.arp().is_none()) {
            write!(f, ", in tunnel {tunnel}")?;
        }
        let judged = self.packet.judged;
        let class = judged.class().unwrap_or("unknown");
        write!(
            f,
            "  class={} reason={}",
            Printable(class),
            Printable(&judged.reason())
        )?;
        for (what, text) in self.known() {
            let quote = if text.contains(' ') { "\"" } else { "" };
            write!(f, " {what}={quote}{}{quote}", Printable(text))?;
        }
        for (end, process) in self.processes() {
            let Process { pid, name, cgroup } = process;
            let quote = if name.contains(' ') { "\"" } else { "" };
            write!(
                f,
                " {end}_process={quote}{name}{quote} {end}_pid={pid} {end}_cgroup=/{cgroup}"
            )?;
        }
        Ok(())
    }
}

impl<'a> Line<'a> {
    pub(crate) fn of(packet: &'a LoggedPacket<'a>, headers: &'a Headers) -> Self {
        Self {
            packet,
            headers,
            ends: Ends::default(),
        }
    }

    /// With what is known about its ends.
    pub(crate) fn with(self, ends: Ends) -> Self {
        Self { ends, ..self }
    }

    /// What follows the headers, as far as it was kept, without the padding of a short frame.
    pub(crate) fn payload(&self) -> &'a [u8] {
        let data = self.packet.data;
        let rest = usize::try_from(self.headers.header_len).ok();
        let rest = rest.and_then(|start| data.get(start..)).unwrap_or(&[]);
        let length = self
            .length()
            .and_then(|length| usize::try_from(length).ok());
        // Lengths that contradict each other: all of it.
        length.map_or(rest, |length| &rest[..length.min(rest.len())])
    }

    /// What is known about the ends, by the names of columns.
    fn known(&self) -> impl Iterator<Item = (String, &str)> {
        let ends = ["src", "dst"].into_iter().zip(&self.ends);
        ends.flat_map(|(end, known)| {
            let parts = known.parts();
            parts.map(move |(what, text)| (format!("{end}_{what}"), text))
        })
    }
}

impl Line<'_> {
    /// The processes of the recording host that sent and receive it, as far as they are known.
    fn processes(&self) -> impl Iterator<Item = (&'static str, Process)> {
        let both = ["src", "dst"]
            .into_iter()
            .zip(of_options(self.packet.options));
        both.filter_map(|(end, process)| Some((end, process?)))
    }

    /// The packet as a JSON object, with the name of its log if there are several.
    pub(crate) fn json(&self, log: Option<&str>) -> Map<String, Value> {
        let mut object = packet_json(self.packet, self.headers);
        let more = [
            ("log", log.map(Value::from)),
            ("tcp_flags", self.tcp_flags().map(Value::from)),
            ("length", self.length().map(Value::from)),
        ];
        for (name, value) in more {
            object.extend(value.map(|value| (name.to_owned(), value)));
        }
        let known = self.known();
        object.extend(known.map(|(what, text)| (what, Value::from(text))));
        for (end, process) in self.processes() {
            object.extend([
                (format!("{end}_process"), Value::from(&*process.name)),
                (format!("{end}_pid"), Value::from(process.pid)),
                (
                    format!("{end}_cgroup"),
                    Value::from(format!("/{}", process.cgroup)),
                ),
            ]);
        }
        object
    }

    /// The flags of a packet with a TCP header.
    fn tcp_flags(&self) -> Option<u8> {
        let key = self.headers.key?;
        let is_tcp = key.family != AddressFamily::Mac && key.protocol == protocol::TCP;
        let is_whole = usize::from(self.headers.transport_len) >= transport::TCP_HEADER_LEN_MIN;
        (is_tcp && is_whole).then_some(self.headers.tcp_flags)
    }

    /// Bytes on the wire after the headers that the line shows: payload where there are ports (of a UDP
    /// datagram in fragments, all of it), else the message in the IP packet, or what follows the header of
    /// a frame. `None` if the packet's lengths
    /// contradict each other.
    pub(crate) fn length(&self) -> Option<u32> {
        let headers = self.headers;
        let wire = self.packet.wire_len.max(self.packet.captured_len);
        let Some(key) = headers.key else {
            return Some(wire);
        };
        if key.family == AddressFamily::Mac {
            let range = self.arp_range();
            let at = match range.filter(|_| self.arp().is_some()) {
                Some(range) => u32::try_from(range.start).ok()?,
                None => headers.header_len,
            };
            return wire.checked_sub(at);
        }
        let end = match self.has_ports(key) {
            true => self.ports_end(key)?,
            false => self.transport_at()?,
        };
        let before = end.checked_sub(headers.network_at)?;
        let payload = headers
            .ip_bytes(self.packet.data, wire)?
            .checked_sub(before)?;
        Some(match self.udp_payload(key) {
            // The first fragment says how long the datagram is.
            Some(stated) if headers.fragment.is_some() => stated,
            Some(stated) => payload.min(stated),
            None => payload,
        })
    }

    /// Where the transport header begins.
    fn transport_at(&self) -> Option<u32> {
        let headers = self.headers;
        headers.header_len.checked_sub(headers.transport_len.into())
    }

    /// Where the header with the ports ends on the wire: options of TCP may have been cut off.
    fn ports_end(&self, key: FlowKey) -> Option<u32> {
        let (headers, data) = (self.headers, self.packet.data);
        let is_cut = usize::try_from(headers.header_len) == Ok(data.len())
            && self.packet.wire_len > headers.header_len;
        if key.protocol != protocol::TCP || !is_cut {
            return Some(headers.header_len);
        }
        let start = self.transport_at()?;
        let at = usize::try_from(start).ok()?.checked_add(12)?;
        let stated = data.get(at).map(|offset| u32::from(offset >> 4) * 4);
        let end = stated.and_then(|len| start.checked_add(len));
        Some(end.map_or(headers.header_len, |end| end.max(headers.header_len)))
    }

    /// What the UDP header says.
    fn udp_payload(&self, key: FlowKey) -> Option<u32> {
        if key.protocol != protocol::UDP || !self.has_ports(key) {
            return None;
        }
        let end = usize::try_from(self.headers.header_len).ok()?;
        let start = end.checked_sub(transport::UDP_HEADER_LEN)?;
        let header = self.packet.data.get(start..end)?;
        let len = <[u8; 2]>::try_from(header.get(fields::udp::LEN)?).ok()?;
        u32::from(u16::from_be_bytes(len)).checked_sub(8)
    }

    fn is_later_fragment(&self) -> bool {
        self.headers
            .fragment
            .is_some_and(|fragment| !fragment.first)
    }

    /// Whether the packet itself has ports.
    fn has_ports(&self, key: FlowKey) -> bool {
        let may = matches!(
            key.protocol,
            protocol::TCP | protocol::UDP | protocol::SCTP | protocol::DCCP | protocol::UDP_LITE
        );
        let has = self.headers.transport_len > 0 || (key.low.port | key.high.port) != 0;
        may && has && !self.is_later_fragment()
    }

    fn internet(&self, key: FlowKey, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_ports = self.has_ports(key);
        let version = match key.family {
            AddressFamily::Ipv6 => "IP6",
            AddressFamily::Ipv4 | AddressFamily::Mac => "IP",
        };
        let end = |end: Endpoint| {
            let address = address_text(key.family, end.address);
            match has_ports {
                true => format!("{address}.{}", end.port),
                false => address,
            }
        };
        let (source, destination) = self.headers.endpoints();
        write!(f, "{version} {} > {}: ", end(source), end(destination))?;
        if let Some(flags) = self.tcp_flags() {
            return write!(f, "Flags [{}]", letters(flags));
        }
        match protocol::name(key.protocol) {
            Some(name) => f.write_str(name)?,
            None => write!(f, "protocol {}", key.protocol)?,
        }
        match self.is_later_fragment() {
            true => f.write_str(" fragment"),
            false => Ok(()),
        }
    }

    fn frame(&self, key: FlowKey, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The EtherType is in the place of both ports.
        let kind = key.low.port;
        let named = NAMED.iter().find(|(number, _)| *number == kind);
        match named {
            Some((_, name)) => f.write_str(name)?,
            None if kind <= ethernet::LENGTH_MAX => f.write_str("LLC")?,
            None => write!(f, "ethertype 0x{kind:04x}")?,
        }
        let (source, destination) = self.headers.endpoints();
        let [source, destination] =
            [source, destination].map(|end| address_text(key.family, end.address));
        write!(f, " {source} > {destination}")
    }

    /// Where an ARP message is, if the packet is one: all of it is header.
    fn arp_range(&self) -> Option<Range<usize>> {
        let end = usize::try_from(self.headers.header_len).ok()?;
        Some(end.checked_sub(fields::arp::LEN)?..end)
    }

    /// An ARP message for IPv4 over Ethernet: its hosts are in the place of a tunnel's ends.
    fn arp(&self) -> Option<&[u8]> {
        let hosts = self.headers.outer?;
        let is_arp = hosts.family == AddressFamily::Ipv4 && hosts.protocol == 0;
        let is_frame = self.headers.key?.family == AddressFamily::Mac;
        match is_arp && is_frame {
            true => self.packet.data.get(self.arp_range()?),
            false => None,
        }
    }
}

fn arp(message: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let ip = |range: Range<usize>| {
        let bytes = message
            .get(range)
            .and_then(|ip| <[u8; 4]>::try_from(ip).ok());
        bytes.map_or_else(|| String::from("?"), |ip| Ipv4Addr::from(ip).to_string())
    };
    let (sender, target) = (ip(fields::arp::SENDER_IP), ip(fields::arp::TARGET_IP));
    match message.get(fields::arp::OPERATION) {
        Some([0, 1]) => write!(f, "ARP, Request who-has {target} tell {sender}"),
        Some([0, 2]) => {
            let mac = message.get(fields::arp::SENDER_MAC).into_iter().flatten();
            let mac: Vec<String> = mac.map(|byte| format!("{byte:02x}")).collect();
            write!(f, "ARP, Reply {sender} is-at {}", mac.join(":"))
        }
        _ => write!(f, "ARP, {sender} > {target}"),
    }
}

/// TCP flags in tcpdump's notation: `S.` is SYN and ACK.
fn letters(flags: u8) -> String {
    let set = "FSRP.UEW".chars().enumerate();
    let set: String = set
        .filter(|(bit, _)| flags >> bit & 1 != 0)
        .map(|(_, letter)| letter)
        .collect();
    match set.is_empty() {
        true => String::from("none"),
        false => set,
    }
}

#[cfg(test)]
mod tests {
    use super::letters;

    #[test]
    fn flags_are_in_the_order_of_tcpdump() {
        for (flags, text) in [
            (0x00, "none"),
            (0x02, "S"),
            (0x12, "S."),
            (0x10, "."),
            (0x19, "FP."),
            (0x14, "R."),
            (0xc2, "SEW"),
            (0xff, "FSRP.UEW"),
        ] {
            assert_eq!(letters(flags), text);
        }
    }
}
