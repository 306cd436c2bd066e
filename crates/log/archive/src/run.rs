//! A run: up to half a million packets in order of arrival, taken apart.
//!
//! Packets are collected in order of arrival, each field in a vector of its own. When the run ends
//! they are sorted by flow and direction, and each vector becomes a column. Nothing depends on
//! packets of another run.

pub(crate) mod flow;
pub(crate) mod header;
pub(crate) mod pending;

use parquet::data_type::ByteArray;
use strata_blocks::PacketRecord;
use strata_names::Begun;
use strata_wire::dissect::protocol;
use strata_wire::transport::tcp_flag;
use strata_wire::{AddressFamily, FlowShare, Headers, KeepKind, prefetch_whole};

use crate::run::flow::index::FlowIndex;
use crate::run::flow::{Flow, PacketBytes};
use crate::run::header::dictionary::Dictionary;
use crate::run::header::predict::{TcpNumbers, difference};
use crate::run::header::{Around, Fields, Network, Tcp, Transport};
use crate::run::pending::{PENDING_MAX, Pending, hides_addresses};

/// Maximum number of packets of a run.
pub(crate) const RUN_PACKETS: usize = 1 << 19;
/// Bytes of kept payload after which a run ends.
pub(crate) const RUN_PAYLOAD_BYTES: usize = 256 << 20;

/// How a header is stored.
pub(crate) mod layout {
    /// All of it as bytes.
    pub(crate) const RAW: u8 = 0;
    /// In columns; what follows the IP header as bytes.
    pub(crate) const V4: u8 = 4;
    pub(crate) const V6: u8 = 6;
    /// Added to V4 or V6.
    pub(crate) const TCP: u8 = 16;
    pub(crate) const UDP: u8 = 32;
}

/// Which optional values a row has.
pub(crate) mod has {
    pub(crate) const IP_ID: u32 = 1;
    pub(crate) const IP_LEN: u32 = 1 << 1;
    pub(crate) const IP_CHECKSUM: u32 = 1 << 2;
    pub(crate) const SEQ: u32 = 1 << 3;
    pub(crate) const ACK: u32 = 1 << 4;
    pub(crate) const TSVAL: u32 = 1 << 5;
    pub(crate) const TSECR: u32 = 1 << 6;
    pub(crate) const CHECKSUM: u32 = 1 << 7;
    pub(crate) const NEXT_HEADER: u32 = 1 << 8;
    pub(crate) const TCP_FLAGS: u32 = 1 << 9;
    pub(crate) const CAPTURED: u32 = 1 << 10;
    pub(crate) const TIME: u32 = 1 << 11;
    pub(crate) const LATE: u32 = 1 << 12;
    pub(crate) const EXTRA_TRANSPORT: u32 = 1 << 13;
    pub(crate) const EXTRA_IP_OPTIONS: u32 = 1 << 14;
    pub(crate) const EXTRA_PACKET_OPTIONS: u32 = 1 << 15;
    /// For a run only: some row's header is stored as bytes.
    pub(crate) const RAW: u32 = 1 << 16;
    /// For a run only: some row has no time.
    pub(crate) const NO_TIME: u32 = 1 << 17;
    /// For a run only: some row belongs to a share of all flows.
    pub(crate) const SHARE: u32 = 1 << 18;
}

/// Bytes that few rows have.
#[derive(Debug, Default, Clone)]
pub(crate) struct Extra {
    pub(crate) header: Option<ByteArray>,
    pub(crate) transport: Option<ByteArray>,
    pub(crate) ip_options: Option<ByteArray>,
    pub(crate) packet_options: Option<ByteArray>,
}

/// The packets of a run, in the order of arrival.
#[derive(Default)]
pub(crate) struct Run {
    pub(crate) time: Vec<u64>,
    pub(crate) late: Vec<u64>,
    pub(crate) tie: Vec<u32>,
    /// Twice the flow's number, plus the direction.
    pub(crate) slot: Vec<u32>,
    pub(crate) interface: Vec<u16>,
    pub(crate) wire: Vec<u32>,
    pub(crate) captured: Vec<u32>,
    pub(crate) header_len: Vec<u16>,
    pub(crate) payload_len: Vec<u32>,
    /// Where the kept bytes are in `kept`, for packets with payload.
    pub(crate) kept_at: Vec<usize>,
    pub(crate) verdict: Vec<u32>,
    pub(crate) keep: Vec<KeepKind>,
    pub(crate) has: Vec<u32>,
    pub(crate) layout: Vec<u8>,
    pub(crate) tos: Vec<u8>,
    pub(crate) ttl: Vec<u8>,
    pub(crate) ip_id: Vec<i16>,
    /// Flags and offset, or the flow label.
    pub(crate) fragment: Vec<u32>,
    pub(crate) ip_len: Vec<u16>,
    pub(crate) ip_checksum: Vec<u16>,
    pub(crate) next_header: Vec<u8>,
    pub(crate) tcp_flags: Vec<u16>,
    pub(crate) seq: Vec<i32>,
    pub(crate) ack: Vec<i32>,
    pub(crate) window: Vec<u16>,
    pub(crate) tsval: Vec<i32>,
    pub(crate) tsecr: Vec<i32>,
    pub(crate) checksum: Vec<u16>,
    /// The packet's [`FlowShare`].
    pub(crate) share: Vec<u32>,
    pub(crate) link_code: Vec<u32>,
    pub(crate) options_code: Vec<u32>,
    /// 0, or the index in `extras` plus one.
    pub(crate) extra: Vec<u32>,

    pub(crate) extras: Vec<Extra>,
    pub(crate) kept: Vec<u8>,
    pub(crate) flows: Vec<Flow>,
    /// By the flow's number.
    pub(crate) begun: Begun,
    pub(crate) links: Dictionary,
    pub(crate) options: Dictionary,
    /// Rows with payload.
    pub(crate) with_payload: Vec<u32>,
    /// The flags that any row has.
    pub(crate) any_has: u32,
    index: FlowIndex,
    /// The share of the following packets.
    current_share: FlowShare,
    /// The header columns are not needed.
    pub(crate) without_headers: bool,
    /// The latest arrival so far, and how many packets have it.
    clock: (u64, u32),
    scratch: Vec<u8>,
}

impl Run {
    pub(crate) fn len(&self) -> usize {
        self.time.len()
    }

    /// A row's bytes besides its fields.
    pub(crate) fn extra_of(&self, row: usize) -> Option<&Extra> {
        let place = self.extra[row].checked_sub(1)?;
        self.extras.get(place as usize)
    }

    /// Whether this many more packets do not fit.
    pub(crate) fn is_full_with(&self, packets: usize) -> bool {
        self.len() + packets > RUN_PACKETS || self.kept.len() >= RUN_PAYLOAD_BYTES
    }

    /// Empties it but keeps its memory and its clock.
    pub(crate) fn clear(&mut self) {
        let clock = self.clock;
        macro_rules! clear {
            ($($column:ident)*) => { $(self.$column.clear();)* };
        }
        clear!(time late tie slot interface wire captured header_len payload_len kept_at verdict keep
            has layout share tos ttl ip_id fragment ip_len ip_checksum next_header tcp_flags seq ack window
            tsval tsecr checksum link_code options_code extra extras kept with_payload flows links options index);
        self.clock = clock;
        self.any_has = 0;
    }

    /// Takes what `before` counts on with: as if it had been emptied.
    pub(crate) fn follow(&mut self, before: &Self) {
        self.clock = before.clock;
        self.current_share = before.current_share;
        self.without_headers = before.without_headers;
    }

    /// Sets the share of flows that the following packets belong to.
    pub(crate) fn set_share(&mut self, share: FlowShare) {
        self.current_share = share;
    }

    /// The time of the latest packet, which the next one is compared with.
    pub(crate) fn clock_ns(&self) -> u64 {
        self.clock.0
    }

    /// Adds packets. Their flows are anywhere in memory, so they are prefetched together.
    pub(crate) fn push(&mut self, packets: &[Pending<'_>]) {
        for pending in packets {
            self.index.fetch(pending.fingerprint);
        }
        for pending in packets {
            prefetch_whole(&self.flows, self.index.candidate(pending.fingerprint));
        }
        let mut numbers = [0; PENDING_MAX];
        for (number, pending) in numbers.iter_mut().zip(packets) {
            *number = self.flow(pending);
        }
        for (number, pending) in numbers.iter().zip(packets) {
            self.push_one(pending, *number);
        }
    }

    fn push_one(&mut self, pending: &Pending<'_>, number: u32) {
        let packet = &pending.packet;
        let header_len = usize::from(packet.header_len).min(packet.data.len());
        let (header, payload) = packet.data.split_at(header_len);
        let direction = pending.direction();
        self.tick(packet.ts_ns);
        self.slot.push(number * 2 + u32::from(direction == 1));
        self.verdict.push(pending.verdict.0);
        self.packet(packet, header_len, payload);
        self.count_in_flow(pending, number, header, payload);
        let extra = self.header(pending, number as usize, header, payload);
        self.extra(extra);
    }

    /// Stores what a packet's record says of it, and its payload.
    fn packet(&mut self, packet: &PacketRecord<'_>, header_len: usize, payload: &[u8]) {
        self.interface.push(packet.interface);
        self.wire.push(packet.wire_len);
        self.captured.push(packet.captured_len);
        self.header_len
            .push(u16::try_from(header_len).expect("no longer than what came of 16 bits"));
        self.payload_len
            .push(u32::try_from(payload.len()).expect("a record is smaller than 4 GiB"));
        self.kept_at.push(self.kept.len());
        if !payload.is_empty() {
            let row = u32_of(self.len() - 1);
            self.with_payload.push(row);
            self.kept.extend_from_slice(packet.data);
        }
        self.keep.push(packet.keep);
        let share = self.current_share;
        self.share.push(share.0);
        self.any_has |= if share == FlowShare::ALL {
            0
        } else {
            has::SHARE
        };
    }

    /// Adds a packet to its flow's counters.
    fn count_in_flow(&mut self, pending: &Pending<'_>, number: u32, header: &[u8], payload: &[u8]) {
        let Pending {
            packet,
            headers,
            verdict: (_, class, score),
            ..
        } = pending;
        let (kept_len, direction) = (packet.data.len(), pending.direction());
        let flow = &mut self.flows[number as usize];
        flow.hides_addresses |=
            pending.is_later_fragment() || hides_addresses(headers, header.len(), kept_len);
        let stats = &mut flow.stats;
        stats.count(
            direction,
            packet.ts_ns,
            &PacketBytes {
                wire_len: packet.wire_len,
                ip: pending.ip_bytes(),
                logged: kept_len as u64,
            },
        );
        stats.class(*class);
        stats.share_max = stats.share_max.max(self.current_share);
        stats.score_max = stats.score_max.max(*score);
        stats.tcp_flags[direction] |= u16::from(headers.tcp_flags);
        let place = (number, direction);
        flow.look(&mut self.begun, place, headers, header, payload);
        flow.processes.look(packet.options, direction);
    }

    /// Stores a header: in columns if they yield it again, else as bytes. Returns what has no
    /// column of its own.
    fn header(
        &mut self,
        pending: &Pending<'_>,
        number: usize,
        header: &[u8],
        payload: &[u8],
    ) -> Extra {
        let (packet, headers) = (&pending.packet, &pending.headers);
        let mut extra = Extra::default();
        if !packet.options.is_empty() {
            extra.packet_options = Some(ByteArray::from(packet.options.to_vec()));
        }
        let mut has = 0;
        if packet.captured_len != packet.wire_len {
            has |= has::CAPTURED;
        }
        if packet.has_timestamp {
            has |= has::TIME;
        } else {
            self.any_has |= has::NO_TIME;
        }
        if self.without_headers {
            self.raw(has, 0, 0, 0);
            return extra;
        }
        let around = Around {
            wire_len: packet.wire_len,
            payload,
        };
        let plain = Fields::plain(pending.link, header, around);
        let fields = match plain.filter(|fields| agree(fields, headers)) {
            None => Fields::of(pending.link, header, around)
                .filter(|fields| agree(fields, headers) && self.comes_back(fields, header, around)),
            plain => plain,
        };
        match fields {
            Some(fields) => {
                let direction = pending.direction();
                self.fields(&fields, number, direction, packet, has, &mut extra);
            }
            None => {
                let tcp_flags = u16::from(headers.tcp_flags);
                if tcp_flags != 0 {
                    has |= has::TCP_FLAGS;
                }
                extra.header = Some(ByteArray::from(header.to_vec()));
                self.raw(has, tcp_flags, headers.tos, headers.ttl);
            }
        }
        extra
    }

    /// Stores a row's bytes besides its fields, if it has any.
    fn extra(&mut self, extra: Extra) {
        let any = extra.header.is_some()
            || extra.transport.is_some()
            || extra.ip_options.is_some()
            || extra.packet_options.is_some();
        if any {
            let of = |there: bool, bit: u32| if there { bit } else { 0 };
            self.any_has |= of(extra.transport.is_some(), has::EXTRA_TRANSPORT)
                | of(extra.ip_options.is_some(), has::EXTRA_IP_OPTIONS)
                | of(extra.packet_options.is_some(), has::EXTRA_PACKET_OPTIONS);
            self.extras.push(extra);
        }
        let place = if any { self.extras.len() } else { 0 };
        self.extra.push(u32_of(place));
    }

    /// Stores a packet's arrival, and its position among packets of the same time.
    fn tick(&mut self, ts_ns: u64) {
        if ts_ns > self.clock.0 {
            self.clock = (ts_ns, 0);
        }
        self.time.push(ts_ns);
        let late = self.clock.0 - ts_ns;
        self.late.push(late);
        self.any_has |= if late > 0 { has::LATE } else { 0 };
        self.tie.push(self.clock.1);
        self.clock.1 += 1;
    }

    /// The number of a packet's flow, which is created if need be.
    fn flow(&mut self, pending: &Pending<'_>) -> u32 {
        let key = pending.headers.flow_key();
        let interface = pending.packet.interface;
        let flows = &self.flows;
        let is = |number: u32| {
            let flow = &flows[number as usize];
            flow.key == key && flow.interface == interface
        };
        let number = self.index.number(pending.fingerprint, is);
        if number as usize == self.flows.len() {
            let flow = Flow::new(key, interface, pending.direction());
            self.flows.push(flow);
        }
        number
    }

    /// Whether the fields yield the header again.
    fn comes_back(&mut self, fields: &Fields<'_>, header: &[u8], around: Around<'_>) -> bool {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        fields.emit(around, &mut bytes);
        let same = bytes == header;
        self.scratch = bytes;
        same
    }

    fn raw(&mut self, has: u32, tcp_flags: u16, tos: u8, ttl: u8) {
        self.any_has |= has | has::RAW;
        self.has.push(has);
        self.layout.push(layout::RAW);
        self.tos.push(tos);
        self.ttl.push(ttl);
        self.ip_id.push(0);
        self.fragment.push(0);
        self.ip_len.push(0);
        self.ip_checksum.push(0);
        self.next_header.push(0);
        self.link_code.push(0);
        self.checksum.push(0);
        self.no_tcp(tcp_flags);
    }

    fn no_tcp(&mut self, tcp_flags: u16) {
        self.tcp_flags.push(tcp_flags);
        self.seq.push(0);
        self.ack.push(0);
        self.window.push(0);
        self.tsval.push(0);
        self.tsecr.push(0);
        self.options_code.push(0);
    }

    fn fields(
        &mut self,
        fields: &Fields<'_>,
        number: usize,
        direction: usize,
        packet: &PacketRecord<'_>,
        mut has: u32,
        extra: &mut Extra,
    ) {
        let last = &mut self.flows[number].last_codes[direction];
        if !self.links.is(last[0], fields.link) {
            last[0] = self.links.code(fields.link);
        }
        self.link_code.push(last[0]);
        self.tos.push(fields.tos);
        self.ttl.push(fields.ttl);
        self.ip_len
            .push(noted(fields.ip_len, has::IP_LEN, &mut has));
        self.checksum
            .push(noted(fields.checksum, has::CHECKSUM, &mut has));
        let network = self.network(&fields.network, number, direction, &mut has, extra);
        let transport = match &fields.transport {
            Transport::Tcp(tcp) => {
                let len = fields.transport_len(packet.wire_len);
                has |= self.tcp(tcp, number, direction, len, packet.ts_ns);
                layout::TCP
            }
            Transport::Udp { .. } => {
                self.no_tcp(0);
                layout::UDP
            }
            Transport::Other(bytes) => {
                self.other_transport(bytes, number, extra);
                0
            }
        };
        self.layout.push(network + transport);
        self.any_has |= has;
        self.has.push(has);
    }

    /// Stores an IP header; returns its layout.
    fn network(
        &mut self,
        network: &Network<'_>,
        number: usize,
        direction: usize,
        has: &mut u32,
        extra: &mut Extra,
    ) -> u8 {
        let flow = &mut self.flows[number];
        let (layout, options) = match network {
            Network::V4 {
                identification,
                fragment,
                checksum,
                options,
                ..
            } => {
                self.ip_checksum
                    .push(noted(*checksum, has::IP_CHECKSUM, has));
                let own = &mut flow.directions[direction];
                let step = identification.wrapping_sub(own.identification());
                own.learn_identification(*identification);
                if step != 0 {
                    *has |= has::IP_ID;
                }
                self.ip_id.push(step.cast_signed());
                self.fragment.push(u32::from(*fragment));
                self.next_header.push(0);
                (layout::V4, options)
            }
            Network::V6 {
                next_header,
                flow_label,
                extensions,
                ..
            } => {
                self.ip_checksum.push(0);
                self.ip_id.push(0);
                self.fragment.push(*flow_label);
                self.next_header.push(*next_header);
                if *next_header != flow.key.protocol {
                    *has |= has::NEXT_HEADER;
                }
                (layout::V6, extensions)
            }
        };
        if !options.is_empty() {
            extra.ip_options = Some(ByteArray::from(options.to_vec()));
        }
        layout
    }

    /// Stores what follows an IP header and is neither TCP nor UDP.
    fn other_transport(&mut self, bytes: &[u8], number: usize, extra: &mut Extra) {
        let flow = &mut self.flows[number];
        if !bytes.is_empty() {
            if let (Some(kind), Some(code)) = (bytes.first(), bytes.get(1))
                && matches!(flow.key.protocol, protocol::ICMP | protocol::ICMPV6)
            {
                flow.icmp.get_or_insert([*kind, *code]);
            }
            extra.transport = Some(ByteArray::from(bytes.to_vec()));
        }
        self.no_tcp(0);
    }

    /// Stores a TCP header; returns which values differ from the prediction.
    fn tcp(&mut self, tcp: &Tcp, number: usize, direction: usize, len: u16, ts_ns: u64) -> u32 {
        let flow = &mut self.flows[number];
        let [first, second] = &mut flow.directions;
        let (own, opposite) = if direction == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let ahead = own.tcp(opposite, ts_ns);
        let predicted = ahead.numbers;
        let actual = TcpNumbers {
            sequence: tcp.sequence,
            acknowledgement: tcp.acknowledgement,
            timestamps: tcp.timestamps.unwrap_or(predicted.timestamps),
        };
        let space = sequence_space(tcp, len);
        own.learn_tcp(&ahead, &actual, tcp.timestamps.is_some(), space, ts_ns);
        let mut has = has::TCP_FLAGS;
        let mut note = |actual: u32, predicted: u32, bit: u32| {
            let difference = difference(actual, predicted);
            has |= if difference == 0 { 0 } else { bit };
            difference
        };
        self.seq
            .push(note(actual.sequence, predicted.sequence, has::SEQ));
        self.ack.push(note(
            actual.acknowledgement,
            predicted.acknowledgement,
            has::ACK,
        ));
        let (now, ahead) = (actual.timestamps, predicted.timestamps);
        self.tsval.push(note(now.0, ahead.0, has::TSVAL));
        self.tsecr.push(note(now.1, ahead.1, has::TSECR));
        self.tcp_flags.push(tcp.flags);
        self.window.push(tcp.window);
        let last = &mut flow.last_codes[direction];
        let options = tcp.options.as_slice();
        if !self.options.is(last[1], options) {
            last[1] = self.options.code(options);
        }
        self.options_code.push(last[1]);
        has
    }
}

/// Whether the fields agree with the flow, whose columns replace some of them.
fn agree(fields: &Fields<'_>, headers: &Headers) -> bool {
    let key = headers.flow_key();
    let (source, destination) = headers.endpoints();
    let network = match &fields.network {
        Network::V4 {
            source: from,
            destination: to,
            protocol,
            ..
        } => {
            key.family == AddressFamily::Ipv4
                && source.address == u128::from(*from)
                && destination.address == u128::from(*to)
                && key.protocol == *protocol
        }
        Network::V6 {
            source: from,
            destination: to,
            ..
        } => {
            key.family == AddressFamily::Ipv6
                && source.address == *from
                && destination.address == *to
        }
    };
    let ports = (source.port, destination.port);
    let transport = match &fields.transport {
        Transport::Tcp(tcp) => {
            ports == (tcp.source, tcp.destination) && key.protocol == protocol::TCP
        }
        Transport::Udp {
            source,
            destination,
        } => ports == (*source, *destination) && key.protocol == protocol::UDP,
        Transport::Other(_) => true,
    };
    network && transport
}

/// A value, whose bit is set in `has` if there is one; where there is none, it is not read.
fn noted(value: Option<u16>, bit: u32, has: &mut u32) -> u16 {
    value.map_or(0, |value| {
        *has |= bit;
        value
    })
}

/// The number of a row, flow or entry of a run.
///
/// # Panics
///
/// Never: a run has [`RUN_PACKETS`] packets at most, and no more of anything else.
pub(crate) fn u32_of(of: usize) -> u32 {
    u32::try_from(of).expect("a run has half a million packets")
}

/// What a segment uses of the sequence space: its payload, SYN and FIN.
pub(crate) fn sequence_space(tcp: &Tcp, transport_len: u16) -> u32 {
    let header = 20 + tcp.options.as_slice().len();
    let payload = usize::from(transport_len).saturating_sub(header);
    let flags = tcp.flags;
    let syn = u32::from(flags & u16::from(tcp_flag::SYN) != 0);
    let fin = u32::from(flags & u16::from(tcp_flag::FIN) != 0);
    let payload = u32::try_from(payload).expect("at most 65,535 bytes");
    payload + syn + fin
}
