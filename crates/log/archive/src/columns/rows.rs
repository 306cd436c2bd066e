//! Rows of the table `packets`: read from their columns, and turned back into packets.

use std::net::IpAddr;
use std::num::TryFromIntError;
use std::ops::Range;

use strata_tables::{Batch, FloatCells, IntCells, TableReader, TextCells};

use crate::columns::packets::{PacketColumn, Read};
use crate::columns::row::Row;
use crate::error::{ArchiveError, Source};
use crate::files::Input;
use crate::run::header::predict::{Direction, TcpNumbers, sum};
use crate::run::header::{Around, Fields, Network, Options, Tcp, Transport};
use crate::run::{layout, sequence_space};

/// RFC 791, section 3.1: 15 words of header, of which 5 are fixed.
const IPV4_OPTIONS_MAX: usize = 40;

/// Rows converted at a time: they stay in the L1 cache while the columns are gone through.
const AT_ONCE: usize = 64;

/// Some rows of a row group, by flow.
#[derive(Debug)]
pub struct PacketRows {
    batch: Batch,
}

/// The cells of a column, and where they go in a row.
enum Cells<'a> {
    Ints(
        IntCells<'a>,
        fn(&mut Row<'_>, i64) -> Result<(), TryFromIntError>,
    ),
    Floats(FloatCells<'a>, fn(&mut Row<'_>, Option<f32>)),
    Bytes(TextCells<'a>, for<'b> fn(&mut Row<'b>, &'b [u8])),
}

impl PacketRows {
    /// Reads rows of a row group of `packets`; `rows` are in ascending order and do not overlap.
    ///
    /// # Errors
    ///
    /// If the table cannot be read, or is not of this kind.
    pub fn read(
        table: &TableReader<Input>,
        group: usize,
        rows: &[Range<usize>],
    ) -> Result<Self, ArchiveError> {
        let all: Vec<usize> = (0..PacketColumn::ALL.len()).collect();
        let batch = table.batch(group, &all, rows)?;
        Ok(Self { batch })
    }

    /// How many rows there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.batch.rows()
    }

    /// The rows of the flow that a row belongs to, among those in a row before and after it.
    #[must_use]
    pub fn flow_at(&self, row: usize) -> Range<usize> {
        let flows = self.ints(PacketColumn::FlowId);
        let same = |at: &usize| flows.get(*at) == flows.get(row);
        let before = (0..row).rev().take_while(same).count();
        let after = (row..self.count()).take_while(same).count();
        row - before..row + after
    }

    /// A row's flow, within the log.
    #[must_use]
    pub fn flow_id(&self, row: usize) -> Option<i64> {
        self.ints(PacketColumn::FlowId).get(row)
    }

    /// Passes some rows, flow by flow, those of a flow in order of arrival; and of a row with a value that a packet
    /// cannot have, which.
    ///
    /// # Errors
    ///
    /// That of `take`, which ends it.
    pub fn each<'a, E>(
        &'a self,
        rows: Range<usize>,
        mut take: impl FnMut(&Row<'a>, Option<&str>) -> Result<(), E>,
    ) -> Result<(), E> {
        let order = self.by_arrival(rows);
        let cells = self.cells();
        let mut some = Vec::with_capacity(AT_ONCE);
        let mut wrong: Vec<(usize, String)> = Vec::new();
        for places in order.chunks(AT_ONCE) {
            some.clear();
            some.resize_with(places.len(), Row::default);
            wrong.clear();
            for (name, cells) in &cells {
                fill(name, cells, places, &mut some, &mut wrong);
            }
            for (at, row) in some.iter().enumerate() {
                let problem = wrong.iter().find(|(wrong, _)| *wrong == at);
                take(row, problem.map(|(_, problem)| problem.as_str()))?;
            }
        }
        Ok(())
    }

    /// The places of rows, those of a flow in order of arrival: its directions are one after the other.
    fn by_arrival(&self, rows: Range<usize>) -> Vec<usize> {
        let flows = self.ints(PacketColumn::FlowId);
        let [times, late, ties] =
            [PacketColumn::Time, PacketColumn::LateNs, PacketColumn::Tie].map(|one| self.ints(one));
        let arrival = |at: &usize| {
            let time = times.get(*at)?.wrapping_add(late.get(*at)?);
            Some((time.cast_unsigned(), ties.get(*at)?))
        };
        let mut order: Vec<usize> = rows.collect();
        for flow in order.chunk_by_mut(|one, next| flows.get(*one) == flows.get(*next)) {
            if !flow.is_sorted_by_key(arrival) {
                flow.sort_by_key(arrival);
            }
        }
        order
    }

    fn ints(&self, column: PacketColumn) -> IntCells<'_> {
        self.batch.ints(column.index())
    }

    /// The columns that have values, and their names.
    fn cells(&self) -> Vec<(&'static str, Cells<'_>)> {
        let of = |column: &PacketColumn| {
            let at = column.index();
            let cells = match column.reads() {
                Read::Int(set) => {
                    let cells = self.batch.ints(at);
                    match cells.is_empty() {
                        true => None,
                        false => Some(Cells::Ints(cells, set)),
                    }
                }
                Read::Float(set) => Some(Cells::Floats(self.batch.floats(at), set)),
                Read::Bytes(set) => self.batch.texts(at).map(|cells| Cells::Bytes(cells, set)),
            };
            cells.map(|cells| (column.spec().name, cells))
        };
        PacketColumn::ALL.iter().filter_map(of).collect()
    }
}

/// Stores the values of a column in rows, which are at these places.
fn fill<'a>(
    name: &str,
    cells: &Cells<'a>,
    places: &[usize],
    rows: &mut [Row<'a>],
    wrong: &mut Vec<(usize, String)>,
) {
    let rows = rows.iter_mut().zip(places);
    match cells {
        Cells::Ints(cells, set) => {
            for (at, (row, place)) in rows.enumerate() {
                if let Some(value) = cells.get(*place)
                    && set(row, value).is_err()
                {
                    let problem =
                        format!("column {name} has the value {value}, which is impossible");
                    wrong.push((at, problem));
                }
            }
        }
        Cells::Floats(cells, set) => {
            for (row, place) in rows {
                set(row, cells.get(*place));
            }
        }
        Cells::Bytes(cells, set) => {
            for (row, place) in rows {
                if let Some(value) = cells.bytes(*place) {
                    set(row, value);
                }
            }
        }
    }
}

/// Rebuilds headers from rows, which come flow by flow, those of a flow in order of arrival.
#[derive(Debug, Default)]
pub struct Rebuild<'a> {
    flow: Option<FlowState<'a>>,
    /// A flow with a packet that cannot be put together: later ones follow from it.
    broken: Option<i64>,
}

#[derive(Debug)]
struct FlowState<'a> {
    flow_id: i64,
    /// Source and destination of the first packet: as they are in its row, and as addresses.
    texts: [Option<&'a [u8]>; 2],
    addresses: [Option<IpAddr>; 2],
    first_port: u16,
    /// From the first address, and from the second.
    directions: [Direction; 2],
}

impl<'a> FlowState<'a> {
    fn of(row: &Row<'a>) -> Self {
        let texts = [row.src, row.dst];
        let address = |text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok();
        Self {
            flow_id: row.flow_id,
            texts,
            addresses: texts.map(|text| text.and_then(address)),
            first_port: row.src_port,
            directions: [Direction::default(), Direction::default()],
        }
    }

    /// The address that a row has as this text.
    fn address(&self, text: Option<&[u8]>) -> Result<IpAddr, Source> {
        let [first, second] = self.texts.map(|own| own == text);
        let address = match (first, second) {
            (true, _) => self.addresses[0],
            (_, true) => self.addresses[1],
            _ => return Err("the addresses of a row differ from those of its flow".into()),
        };
        Ok(address.ok_or("a row without addresses")?)
    }
}

impl<'a> Rebuild<'a> {
    /// Appends the header of a row to `out`, unless it has this problem.
    ///
    /// # Errors
    ///
    /// If it has a problem, its columns contradict each other, or its header follows from that of an earlier packet
    /// with which this was so.
    pub fn header(
        &mut self,
        row: &Row<'a>,
        problem: Option<&str>,
        out: &mut Vec<u8>,
    ) -> Result<(), Source> {
        if self.broken.is_some_and(|flow| flow == row.flow_id) && row.layout != layout::RAW {
            return Err("an earlier packet of its flow cannot be reconstructed".into());
        }
        let done = match problem {
            Some(problem) => Err(problem.into()),
            None => self.whole_header(row, out),
        };
        if done.is_err() {
            self.broken = Some(row.flow_id);
        }
        done
    }

    fn whole_header(&mut self, row: &Row<'a>, out: &mut Vec<u8>) -> Result<(), Source> {
        let start = out.len();
        self.emit(row, out)?;
        if out.len() - start != usize::from(row.header_len) {
            return Err("a header does not have its original length".into());
        }
        Ok(())
    }

    fn emit(&mut self, row: &Row<'a>, out: &mut Vec<u8>) -> Result<(), Source> {
        if row.layout == layout::RAW {
            out.extend_from_slice(row.header.ok_or("a row without a header")?);
            return Ok(());
        }
        let known = self.flow.take().filter(|flow| flow.flow_id == row.flow_id);
        let flow = self
            .flow
            .insert(known.unwrap_or_else(|| FlowState::of(row)));
        let ends = [flow.address(row.src)?, flow.address(row.dst)?];
        // A flow from an endpoint to itself has only one direction.
        let from_first = flow.first_port == row.src_port && flow.texts[0] == row.src;
        let [first, second] = &mut flow.directions;
        let (own, opposite) = if from_first {
            (first, second)
        } else {
            (second, first)
        };
        let network = network(row, ends, own)?;
        let tcp = (row.layout & layout::TCP != 0).then(|| tcp(row, own, opposite));
        let mut fields = Fields {
            link: row.link_header.unwrap_or(&[]),
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
        } else if let Some(bytes) = row.transport_header {
            fields.transport = Transport::Other(bytes);
        }
        fields.emit(around, out);
        Ok(())
    }
}

fn network<'a>(
    row: &Row<'a>,
    ends: [IpAddr; 2],
    own: &mut Direction,
) -> Result<Network<'a>, Source> {
    let options = row.ip_options.unwrap_or(&[]);
    match ends.into() {
        (IpAddr::V4(source), IpAddr::V4(destination)) if row.layout & 7 == layout::V4 => {
            if options.len() > IPV4_OPTIONS_MAX || !options.len().is_multiple_of(4) {
                return Err("more IPv4 options than possible, or not in whole words".into());
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

type TcpParts = (Tcp, crate::run::header::predict::Prediction, TcpNumbers);

fn tcp(row: &Row<'_>, own: &Direction, opposite: &Direction) -> Result<TcpParts, Source> {
    let ahead = own.tcp(opposite, row.time);
    let predicted = ahead.numbers;
    let options = row.tcp_options.unwrap_or(&[]);
    let options = Options::new(options).ok_or("more TCP options than possible")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn row(flow_id: i64) -> Row<'static> {
        Row {
            flow_id,
            src: Some(b"10.0.0.1"),
            dst: Some(b"10.0.0.2"),
            src_port: 1,
            dst_port: 2,
            protocol: 17,
            wire: 28,
            header_len: 28,
            layout: layout::V4 | layout::UDP,
            ..Row::default()
        }
    }

    /// A packet's header follows from those before it, so none is made up after one is missing.
    #[test]
    fn no_header_follows_from_one_that_cannot_be_put_together() {
        let mut rebuild = Rebuild::default();
        let mut header = |row: &Row<'static>, problem| {
            let mut out = Vec::new();
            let done = rebuild.header(row, problem, &mut out);
            done.map(|()| out).map_err(|error| error.to_string())
        };
        let whole = header(&row(1), None).unwrap();
        assert_eq!((whole.len(), whole[9]), (28, 17));
        let wrong = Row {
            header_len: 27,
            ..row(1)
        };
        let follows = "an earlier packet of its flow cannot be reconstructed";
        assert!(header(&wrong, None).unwrap_err().contains("length"));
        assert_eq!(header(&row(1), None).unwrap_err(), follows);
        let raw = Row {
            layout: layout::RAW,
            header: Some(&[0; 28]),
            ..row(1)
        };
        assert_eq!(header(&raw, None).unwrap(), [0; 28]);
        assert_eq!(header(&row(2), None).unwrap(), whole);
        assert_eq!(header(&row(2), Some("no")).unwrap_err(), "no");
        assert_eq!(header(&row(2), None).unwrap_err(), follows);
    }
}
