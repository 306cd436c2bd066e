//! Turns rows of the table `packets` back into packets.

use std::collections::HashMap;
use std::net::IpAddr;

use parquet::data_type::ByteArray;

use crate::error::Source;
use crate::header::{Around, Fields, Network, Options, Tcp, Transport};
use crate::predict::{Direction, TcpNumbers, sum};
use crate::row::Row;
use crate::run::{layout, sequence_space};

/// RFC 791, section 3.1: 15 words of header, of which 5 are fixed.
const IPV4_OPTIONS_MAX: usize = 40;

/// Rebuilds headers from rows, which come in order of arrival.
#[derive(Debug, Default)]
pub struct Rebuild {
    /// For each flow, the directions from the first and from the second address.
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
        // A flow from an endpoint to itself has only one direction.
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
            if options.len() > IPV4_OPTIONS_MAX || !options.len().is_multiple_of(4) {
                return Err("more IPv4 options than there can be, or a part of a word".into());
            }
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
