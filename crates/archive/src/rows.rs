//! Rows of the table `packets` as packets again.

use std::collections::HashMap;
use std::net::IpAddr;

use parquet::data_type::ByteArray;

use crate::error::Source;
use crate::header::{Around, Fields, Network, Options, Tcp, Transport};
use crate::packets::COLUMNS;
use crate::predict::{Direction, TcpNumbers, sum};
use crate::run::{layout, sequence_space};
use crate::table::Column;

/// One row as it was read: what the packet is, and what its header is made of.
#[derive(Debug, Default, Clone)]
pub struct Row {
    /// Arrival, ns.
    pub time: u64,
    late: u64,
    tie: i64,
    /// Its flow, within the log.
    pub flow_id: i64,
    /// Its recording.
    pub recording: u32,
    /// Its interface.
    pub interface: u16,
    src: Option<ByteArray>,
    dst: Option<ByteArray>,
    src_port: u16,
    dst_port: u16,
    protocol: u8,
    tcp_flags: u16,
    /// Bytes on the wire.
    pub wire: u32,
    captured: Option<u32>,
    /// Bytes up to the end of the headers that are kept.
    pub header_len: u16,
    /// Bytes kept beyond the headers.
    pub payload_len: u32,
    /// Its class's name.
    pub class: ByteArray,
    /// The class's share of the trees.
    pub score: Option<f32>,
    /// How much of it was kept.
    pub granularity: ByteArray,
    /// Why.
    pub reason: ByteArray,
    /// The share of flows that were captured.
    pub flow_share: f32,
    tos: u8,
    ttl: u8,
    ip_id: i16,
    fragment: u16,
    flow_label: u32,
    next_header: Option<u8>,
    ip_len: Option<u16>,
    ip_checksum: Option<u16>,
    ip_options: Option<ByteArray>,
    seq: i32,
    ack: i32,
    window: u16,
    tsval: i32,
    tsecr: i32,
    tcp_options: Option<ByteArray>,
    checksum: Option<u16>,
    link_header: Option<ByteArray>,
    transport_header: Option<ByteArray>,
    header: Option<ByteArray>,
    layout: u8,
    /// Whether the capture gave a time.
    pub has_time: bool,
    /// Options of a pcapng input.
    pub packet_options: Option<ByteArray>,
    /// Its place in the payload file.
    pub payload_offset: Option<u64>,
}

impl Row {
    /// By which rows stand in the order of arrival, within a run.
    #[must_use]
    pub fn arrival(&self) -> (u64, i64) {
        (self.time.wrapping_add(self.late), self.tie)
    }

    /// Bytes that the capture held.
    #[must_use]
    pub fn captured(&self) -> u32 {
        self.captured.unwrap_or(self.wire)
    }
}

/// Rows from all columns of `packets`, of so many rows.
#[must_use]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn rows(columns: &[Column], count: usize) -> Vec<Row> {
    let mut rows = vec![Row::default(); count];
    for (spec, column) in COLUMNS.iter().zip(columns) {
        macro_rules! ints {
            ($set:expr) => {{
                let set: fn(&mut Row, i64) = $set;
                for (row, value) in rows.iter_mut().zip(column.ints()) {
                    if let Some(value) = value {
                        set(row, value);
                    }
                }
            }};
        }
        macro_rules! bytes {
            ($set:expr) => {{
                let set: fn(&mut Row, ByteArray) = $set;
                for (row, value) in rows.iter_mut().zip(column.bytes()) {
                    if let Some(value) = value {
                        set(row, value.clone());
                    }
                }
            }};
        }
        match spec.name {
            "time" => ints!(|row, v| row.time = v as u64),
            "late_ns" => ints!(|row, v| row.late = v as u64),
            "tie" => ints!(|row, v| row.tie = v),
            "flow_id" => ints!(|row, v| row.flow_id = v),
            "recording" => ints!(|row, v| row.recording = v as u32),
            "interface" => ints!(|row, v| row.interface = v as u16),
            "src" => bytes!(|row, v| row.src = Some(v)),
            "dst" => bytes!(|row, v| row.dst = Some(v)),
            "src_port" => ints!(|row, v| row.src_port = v as u16),
            "dst_port" => ints!(|row, v| row.dst_port = v as u16),
            "protocol" => ints!(|row, v| row.protocol = v as u8),
            "tcp_flags" => ints!(|row, v| row.tcp_flags = v as u16),
            "wire_bytes" => ints!(|row, v| row.wire = v as u32),
            "captured_bytes" => ints!(|row, v| row.captured = Some(v as u32)),
            "header_bytes" => ints!(|row, v| row.header_len = v as u16),
            "payload_bytes" => ints!(|row, v| row.payload_len = v as u32),
            "class" => bytes!(|row, v| row.class = v),
            "score" => {
                for (row, value) in rows.iter_mut().zip(column.floats()) {
                    row.score = value;
                }
            }
            "granularity" => bytes!(|row, v| row.granularity = v),
            "reason" => bytes!(|row, v| row.reason = v),
            "flow_share" => {
                for (row, value) in rows.iter_mut().zip(column.floats()) {
                    row.flow_share = value.unwrap_or(1.0);
                }
            }
            "ip_tos" => ints!(|row, v| row.tos = v as u8),
            "ip_ttl" => ints!(|row, v| row.ttl = v as u8),
            "ip_id_diff" => ints!(|row, v| row.ip_id = v as i16),
            "ip_fragment" => ints!(|row, v| row.fragment = v as u16),
            "ip6_flow_label" => ints!(|row, v| row.flow_label = v as u32),
            "ip6_next_header" => ints!(|row, v| row.next_header = Some(v as u8)),
            "ip_len" => ints!(|row, v| row.ip_len = Some(v as u16)),
            "ip_checksum" => ints!(|row, v| row.ip_checksum = Some(v as u16)),
            "ip_options" => bytes!(|row, v| row.ip_options = Some(v)),
            "tcp_seq_diff" => ints!(|row, v| row.seq = v as i32),
            "tcp_ack_diff" => ints!(|row, v| row.ack = v as i32),
            "tcp_window" => ints!(|row, v| row.window = v as u16),
            "tcp_tsval_diff" => ints!(|row, v| row.tsval = v as i32),
            "tcp_tsecr_diff" => ints!(|row, v| row.tsecr = v as i32),
            "tcp_options" => bytes!(|row, v| row.tcp_options = Some(v)),
            "checksum" => ints!(|row, v| row.checksum = Some(v as u16)),
            "link_header" => bytes!(|row, v| row.link_header = Some(v)),
            "transport_header" => bytes!(|row, v| row.transport_header = Some(v)),
            "header" => bytes!(|row, v| row.header = Some(v)),
            "header_layout" => ints!(|row, v| row.layout = v as u8),
            "has_time" => ints!(|row, v| row.has_time = v != 0),
            "packet_options" => bytes!(|row, v| row.packet_options = Some(v)),
            "payload_offset" => ints!(|row, v| row.payload_offset = Some(v as u64)),
            name => unreachable!("{name} is no column"),
        }
    }
    rows
}

/// Makes headers of rows, which come in the order of arrival.
#[derive(Debug, Default)]
pub struct Rebuild {
    /// Of each flow, the direction from the first and from the second address.
    flows: HashMap<i64, FlowState>,
}

#[derive(Debug)]
struct FlowState {
    first: (Option<ByteArray>, u16),
    directions: [Direction; 2],
}

impl Rebuild {
    /// Appends the header of a row to `out`.
    ///
    /// # Errors
    ///
    /// If its columns contradict each other.
    pub fn header(&mut self, row: &Row, out: &mut Vec<u8>) -> Result<(), Source> {
        if row.layout == layout::RAW {
            out.extend_from_slice(row.header.as_ref().ok_or("a row without a header")?.data());
            return Ok(());
        }
        let flow = self.flows.entry(row.flow_id).or_insert_with(|| FlowState {
            first: (row.src.clone(), row.src_port),
            directions: [Direction::default(), Direction::default()],
        });
        // A flow from an endpoint to itself has one direction only.
        let from_first = flow.first.1 == row.src_port && flow.first.0 == row.src;
        let [first, second] = &mut flow.directions;
        let (own, opposite) = if from_first {
            (first, second)
        } else {
            (second, first)
        };
        let network = network(row, own)?;
        let tcp = (row.layout & layout::TCP != 0).then(|| tcp(row, own, opposite));
        let mut fields = Fields {
            link: row.link_header.as_ref().map_or(&[], |bytes| bytes.data()),
            network,
            tos: row.tos,
            ttl: row.ttl,
            ip_len: row.ip_len,
            transport: Transport::Other(&[]),
            checksum: row.checksum,
        };
        let around = Around {
            wire_len: row.wire,
            payload: &[],
        };
        if let Some(tcp) = tcp {
            let (tcp, ahead, actual) = tcp?;
            let space = sequence_space(&tcp, fields.transport_len(row.wire));
            let has = tcp.timestamps.is_some();
            own.learn_tcp(&ahead, &actual, has, space, row.time);
            fields.transport = Transport::Tcp(tcp);
        } else if row.layout & layout::UDP != 0 {
            fields.transport = Transport::Udp {
                source: row.src_port,
                destination: row.dst_port,
            };
        } else if let Some(bytes) = &row.transport_header {
            fields.transport = Transport::Other(bytes.data());
        }
        fields.emit(around, out);
        Ok(())
    }
}

fn network<'a>(row: &'a Row, own: &mut Direction) -> Result<Network<'a>, Source> {
    let address = |text: &Option<ByteArray>| -> Result<IpAddr, Source> {
        let text = text.as_ref().ok_or("a row without addresses")?;
        Ok(std::str::from_utf8(text.data())?.parse()?)
    };
    let options = row
        .ip_options
        .as_ref()
        .map_or(&[][..], |bytes| bytes.data());
    match (address(&row.src)?, address(&row.dst)?) {
        (IpAddr::V4(source), IpAddr::V4(destination)) if row.layout & 7 == layout::V4 => {
            let step = row.ip_id.cast_unsigned();
            let identification = own.identification().wrapping_add(step);
            own.learn_identification(identification);
            Ok(Network::V4 {
                source: source.to_bits(),
                destination: destination.to_bits(),
                protocol: row.protocol,
                identification,
                fragment: row.fragment,
                checksum: row.ip_checksum,
                options,
            })
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) if row.layout & 7 == layout::V6 => {
            Ok(Network::V6 {
                source: source.to_bits(),
                destination: destination.to_bits(),
                next_header: row.next_header.unwrap_or(row.protocol),
                flow_label: row.flow_label,
                extensions: options,
            })
        }
        _ => Err("addresses and header layout do not agree".into()),
    }
}

type TcpParts = (Tcp, crate::predict::Prediction, TcpNumbers);

fn tcp(row: &Row, own: &Direction, opposite: &Direction) -> Result<TcpParts, Source> {
    let ahead = own.tcp(opposite, row.time);
    let predicted = ahead.numbers;
    let options = row
        .tcp_options
        .as_ref()
        .map_or(&[][..], |bytes| bytes.data());
    let options = Options::new(options).ok_or("more TCP options than there can be")?;
    let actual = TcpNumbers {
        sequence: sum(predicted.sequence, row.seq),
        acknowledgement: sum(predicted.acknowledgement, row.ack),
        timestamps: (
            sum(predicted.timestamps.0, row.tsval),
            sum(predicted.timestamps.1, row.tsecr),
        ),
    };
    let tcp = Tcp {
        source: row.src_port,
        destination: row.dst_port,
        sequence: actual.sequence,
        acknowledgement: actual.acknowledgement,
        flags: row.tcp_flags,
        window: row.window,
        timestamps: options.has_timestamps().then_some(actual.timestamps),
        options,
    };
    Ok((tcp, ahead, actual))
}
