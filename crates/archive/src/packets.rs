//! The table `packets`: one row per packet, in order of flow, direction, arrival.

use std::collections::HashMap;
use std::net::IpAddr;

use parquet::data_type::ByteArray;
use strata_store::{VerdictRecord, export::reason, keep_name};

use crate::error::Source;
use crate::flows::{address_text, score};
use crate::header::{Around, Fields, Network, Options, Tcp, Transport};
use crate::predict::{Direction, TcpNumbers, sum};
use crate::run::{Run, has, layout, sequence_space};
use crate::table::{Coding, Column, Kind, Spec, Values};

use Coding::{Delta, Dictionary, Plain};
use Kind::{Bool, Bytes, Float, Int32, Int64, Text, Time};

/// The columns, in order; `docs/formats/archive.md` says what they mean.
pub(crate) const COLUMNS: &[Spec] = &[
    Spec::new("time", Time, Delta),
    Spec::new("late_ns", Int64, Delta),
    Spec::new("tie", Int32, Delta),
    Spec::new("flow_id", Int64, Delta),
    Spec::new("recording", Int32, Dictionary),
    Spec::new("interface", Int32, Dictionary),
    Spec::new("src", Text, Dictionary).or_null(),
    Spec::new("dst", Text, Dictionary).or_null(),
    Spec::new("src_port", Int32, Dictionary).or_null(),
    Spec::new("dst_port", Int32, Dictionary).or_null(),
    Spec::new("protocol", Int32, Dictionary).or_null(),
    Spec::new("tcp_flags", Int32, Dictionary).or_null(),
    Spec::new("wire_bytes", Int64, Dictionary),
    Spec::new("captured_bytes", Int64, Dictionary).or_null(),
    Spec::new("header_bytes", Int32, Dictionary),
    Spec::new("payload_bytes", Int32, Dictionary),
    Spec::new("class", Text, Dictionary),
    Spec::new("score", Float, Dictionary).or_null(),
    Spec::new("granularity", Text, Dictionary),
    Spec::new("reason", Text, Dictionary),
    Spec::new("ip_tos", Int32, Dictionary).or_null(),
    Spec::new("ip_ttl", Int32, Dictionary).or_null(),
    Spec::new("ip_id_diff", Int32, Delta).or_null(),
    Spec::new("ip_fragment", Int32, Dictionary).or_null(),
    Spec::new("ip6_flow_label", Int32, Dictionary).or_null(),
    Spec::new("ip6_next_header", Int32, Dictionary).or_null(),
    Spec::new("ip_len", Int32, Dictionary).or_null(),
    Spec::new("ip_checksum", Int32, Delta).or_null(),
    Spec::new("ip_options", Bytes, Dictionary).or_null(),
    Spec::new("tcp_seq_diff", Int32, Delta).or_null(),
    Spec::new("tcp_ack_diff", Int32, Delta).or_null(),
    Spec::new("tcp_window", Int32, Dictionary).or_null(),
    Spec::new("tcp_tsval_diff", Int32, Delta).or_null(),
    Spec::new("tcp_tsecr_diff", Int32, Delta).or_null(),
    Spec::new("tcp_options", Bytes, Dictionary).or_null(),
    Spec::new("checksum", Int32, Delta).or_null(),
    Spec::new("link_header", Bytes, Dictionary).or_null(),
    Spec::new("transport_header", Bytes, Dictionary).or_null(),
    Spec::new("header", Bytes, Dictionary).or_null(),
    Spec::new("header_layout", Int32, Dictionary),
    Spec::new("has_time", Bool, Plain),
    Spec::new("packet_options", Bytes, Dictionary).or_null(),
    Spec::new("payload_offset", Int64, Delta).or_null(),
];

/// Number of a column.
///
/// # Panics
///
/// If there is no such column: the names are ours.
pub(crate) fn column(name: &str) -> usize {
    let found = COLUMNS.iter().position(|spec| spec.name == name);
    found.expect("the name of a column")
}

/// Verdicts of a job by code, with their texts.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    codes: HashMap<(Option<VerdictKey>, String), u32>,
    pub(crate) all: Vec<Verdict>,
}

type VerdictKey = (u8, u16, u8, Vec<u16>);

/// What a verdict says in the table.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) class: u8,
    pub(crate) score: Option<u16>,
    class_name: ByteArray,
    reason: ByteArray,
}

impl Verdicts {
    /// The code of a verdict, whose class has this name.
    pub(crate) fn code(&mut self, verdict: Option<&VerdictRecord>, class_name: &str) -> u32 {
        let key = verdict.map(|v| (v.class, v.score, v.level, v.leaves.clone()));
        let next = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        let code = self.codes.entry((key, class_name.to_owned()));
        let code = *code.or_insert(next);
        if code == next {
            self.all.push(Verdict {
                class: verdict.map_or(u8::MAX, |verdict| verdict.class),
                score: verdict.filter(|v| v.level > 0).map(|v| v.score),
                class_name: ByteArray::from(class_name),
                reason: ByteArray::from(reason(verdict).as_str()),
            });
        }
        code
    }
}

/// What a run's rows need beside it to become columns.
pub(crate) struct Filling<'a> {
    pub(crate) run: &'a Run,
    /// The rows wanted, in the order wanted.
    pub(crate) rows: &'a [u32],
    pub(crate) verdicts: &'a [Verdict],
    /// By flow.
    pub(crate) flow_ids: &'a [i64],
    /// By row of the run, for those with payload.
    pub(crate) payload_at: &'a HashMap<u32, u64>,
    pub(crate) recording: u32,
    /// By flow: its low and high address.
    pub(crate) addresses: &'a [Option<[ByteArray; 2]>],
    pub(crate) keeps: &'a [ByteArray; 4],
}

/// The texts of the flows' addresses.
pub(crate) fn addresses(run: &Run) -> Vec<Option<[ByteArray; 2]>> {
    let texts = run.flows.iter().map(|flow| {
        let key = &flow.key;
        let text = |address| ByteArray::from(address_text(key.family, address).as_str());
        let both = || [text(key.low.address), text(key.high.address)];
        flow.has_addresses().then(both)
    });
    texts.collect()
}

/// The names of the granularities by code.
pub(crate) fn keeps() -> [ByteArray; 4] {
    [0, 1, 2, 3].map(|code| ByteArray::from(keep_name(code)))
}

impl Filling<'_> {
    /// Fills one column.
    #[allow(clippy::cast_possible_wrap, clippy::too_many_lines)]
    pub(crate) fn fill(&self, index: usize, column: &mut Column) {
        let run = self.run;
        let flow_of = |row: usize| (run.slot[row] / 2) as usize;
        let layout_is = |row: usize, bit: u8| run.layout[row] & bit != 0;
        let is = |row: usize, version: u8| run.layout[row] & 7 == version;
        let flag = |row: usize, bit: u32| run.has[row] & bit != 0;
        let ends = |row: usize| run.flows[flow_of(row)].ends((run.slot[row] & 1) as usize);
        let port = |row: usize, destination: bool| {
            let flow = &run.flows[flow_of(row)];
            let (from, to) = ends(row);
            let port = if destination { to.port } else { from.port };
            flow.has_ports().then_some(i32::from(port))
        };
        let address = |row: usize, end: u32| {
            let both = self.addresses[flow_of(row)].as_ref()?;
            Some(both[((run.slot[row] & 1) ^ end) as usize].clone())
        };
        let extra = |row: usize| {
            run.extra[row]
                .checked_sub(1)
                .map(|n| &run.extras[n as usize])
        };
        let of = |there: bool, value: i32| there.then_some(value);
        match COLUMNS[index].name {
            "time" => self.int64(column, |row| run.time[row] as i64),
            "late_ns" => self.int64(column, |row| run.late[row] as i64),
            "tie" => self.int32(column, |row| run.tie[row].cast_signed()),
            "flow_id" => self.int64(column, |row| self.flow_ids[flow_of(row)]),
            "recording" => self.int32(column, |_| self.recording.cast_signed()),
            "interface" => self.int32(column, |row| run.interface[row].into()),
            "src" => self.bytes(column, |row| address(row, 0)),
            "dst" => self.bytes(column, |row| address(row, 1)),
            "src_port" => self.int32_or_null(column, |row| port(row, false)),
            "dst_port" => self.int32_or_null(column, |row| port(row, true)),
            "protocol" => self.int32_or_null(column, |row| {
                let key = &run.flows[flow_of(row)].key;
                of(
                    key.family != strata_wire::AddressFamily::Mac,
                    key.protocol.into(),
                )
            }),
            "tcp_flags" => self.int32_or_null(column, |row| {
                of(flag(row, has::TCP_FLAGS), run.tcp_flags[row].into())
            }),
            "wire_bytes" => self.int64(column, |row| run.wire[row].into()),
            "captured_bytes" => self.int64_or_null(column, |row| {
                flag(row, has::CAPTURED).then_some(run.captured[row].into())
            }),
            "header_bytes" => self.int32(column, |row| run.header_len[row].into()),
            "payload_bytes" => self.int32(column, |row| run.payload_len[row].cast_signed()),
            "class" => self.bytes(column, |row| Some(self.verdict(row).class_name.clone())),
            "score" => self.floats(column, |row| self.verdict(row).score.map(score)),
            "granularity" => {
                self.bytes(column, |row| {
                    Some(self.keeps[usize::from(run.keep[row] & 3)].clone())
                });
            }
            "reason" => self.bytes(column, |row| Some(self.verdict(row).reason.clone())),
            "ip_tos" => {
                let known = |row: usize| run.layout[row] != layout::RAW;
                self.int32_or_null(column, |row| of(known(row), run.tos[row].into()));
            }
            "ip_ttl" => {
                let known = |row: usize| run.layout[row] != layout::RAW;
                self.int32_or_null(column, |row| of(known(row), run.ttl[row].into()));
            }
            "ip_id_diff" => self.int32_or_null(column, |row| {
                of(flag(row, has::IP_ID), run.ip_id[row].into())
            }),
            "ip_fragment" => self.int32_or_null(column, |row| {
                of(is(row, layout::V4), run.fragment[row].cast_signed())
            }),
            "ip6_flow_label" => self.int32_or_null(column, |row| {
                of(is(row, layout::V6), run.fragment[row].cast_signed())
            }),
            "ip6_next_header" => self.int32_or_null(column, |row| {
                of(flag(row, has::NEXT_HEADER), run.next_header[row].into())
            }),
            "ip_len" => self.int32_or_null(column, |row| {
                of(flag(row, has::IP_LEN), run.ip_len[row].into())
            }),
            "ip_checksum" => self.int32_or_null(column, |row| {
                of(flag(row, has::IP_CHECKSUM), run.ip_checksum[row].into())
            }),
            "ip_options" => self.bytes(column, |row| extra(row)?.ip_options.clone()),
            "tcp_seq_diff" => {
                self.int32_or_null(column, |row| of(flag(row, has::SEQ), run.seq[row]));
            }
            "tcp_ack_diff" => {
                self.int32_or_null(column, |row| of(flag(row, has::ACK), run.ack[row]));
            }
            "tcp_window" => self.int32_or_null(column, |row| {
                of(layout_is(row, layout::TCP), run.window[row].into())
            }),
            "tcp_tsval_diff" => {
                self.int32_or_null(column, |row| of(flag(row, has::TSVAL), run.tsval[row]));
            }
            "tcp_tsecr_diff" => {
                self.int32_or_null(column, |row| of(flag(row, has::TSECR), run.tsecr[row]));
            }
            "tcp_options" => self.bytes(column, |row| {
                let code = run.options_code[row] as usize;
                layout_is(row, layout::TCP).then(|| run.options.entries[code].clone())
            }),
            "checksum" => self.int32_or_null(column, |row| {
                of(flag(row, has::CHECKSUM), run.checksum[row].into())
            }),
            "link_header" => self.bytes(column, |row| {
                let code = run.link_code[row] as usize;
                (run.layout[row] != layout::RAW).then(|| run.links.entries[code].clone())
            }),
            "transport_header" => self.bytes(column, |row| extra(row)?.transport.clone()),
            "header" => self.bytes(column, |row| extra(row)?.header.clone()),
            "header_layout" => self.int32(column, |row| run.layout[row].into()),
            "has_time" => {
                if let Values::Bool(out) = &mut column.values {
                    out.extend(self.rows.iter().map(|row| flag(*row as usize, has::TIME)));
                }
            }
            "packet_options" => self.bytes(column, |row| extra(row)?.packet_options.clone()),
            "payload_offset" => self.int64_or_null(column, |row| {
                if run.payload_len[row] == 0 {
                    return None;
                }
                let row = u32::try_from(row).unwrap_or(u32::MAX);
                self.payload_at.get(&row).map(|at| *at as i64)
            }),
            name => unreachable!("{name} is no column"),
        }
    }

    fn verdict(&self, row: usize) -> &Verdict {
        &self.verdicts[self.run.verdict[row] as usize]
    }

    fn int32(&self, column: &mut Column, get: impl Fn(usize) -> i32) {
        if let Values::Int32(out) = &mut column.values {
            out.extend(self.rows.iter().map(|row| get(*row as usize)));
        }
    }

    fn int64(&self, column: &mut Column, get: impl Fn(usize) -> i64) {
        if let Values::Int64(out) = &mut column.values {
            out.extend(self.rows.iter().map(|row| get(*row as usize)));
        }
    }

    fn int32_or_null(&self, column: &mut Column, get: impl Fn(usize) -> Option<i32>) {
        if let Values::Int32(out) = &mut column.values {
            self.or_null(out, &mut column.levels, get);
        }
    }

    fn int64_or_null(&self, column: &mut Column, get: impl Fn(usize) -> Option<i64>) {
        if let Values::Int64(out) = &mut column.values {
            self.or_null(out, &mut column.levels, get);
        }
    }

    fn floats(&self, column: &mut Column, get: impl Fn(usize) -> Option<f32>) {
        if let Values::Float(out) = &mut column.values {
            self.or_null(out, &mut column.levels, get);
        }
    }

    /// Columns of text come without nulls too; their levels are not looked at then.
    fn bytes(&self, column: &mut Column, get: impl Fn(usize) -> Option<ByteArray>) {
        if let Values::Bytes(out) = &mut column.values {
            self.or_null(out, &mut column.levels, get);
        }
    }

    fn or_null<T>(
        &self,
        out: &mut Vec<T>,
        levels: &mut Vec<i16>,
        get: impl Fn(usize) -> Option<T>,
    ) {
        for row in self.rows {
            let value = get(*row as usize);
            levels.push(i16::from(value.is_some()));
            out.extend(value);
        }
    }
}

/// One row as it was read: what the packet is, and what its header is made of.
#[derive(Debug, Default, Clone)]
pub(crate) struct Row {
    pub(crate) time: u64,
    late: u64,
    tie: i64,
    pub(crate) flow_id: i64,
    pub(crate) recording: u32,
    pub(crate) interface: u16,
    src: Option<ByteArray>,
    dst: Option<ByteArray>,
    src_port: u16,
    dst_port: u16,
    protocol: u8,
    tcp_flags: u16,
    pub(crate) wire: u32,
    captured: Option<u32>,
    pub(crate) header_len: usize,
    pub(crate) payload_len: u32,
    pub(crate) class: ByteArray,
    pub(crate) score: Option<f32>,
    pub(crate) granularity: ByteArray,
    pub(crate) reason: ByteArray,
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
    pub(crate) has_time: bool,
    pub(crate) packet_options: Option<ByteArray>,
    pub(crate) payload_offset: Option<u64>,
}

impl Row {
    /// By which rows stand in the order of arrival, within a run.
    pub(crate) fn arrival(&self) -> (u64, i64) {
        (self.time.wrapping_add(self.late), self.tie)
    }

    /// Bytes that the capture held.
    pub(crate) fn captured(&self) -> u32 {
        self.captured.unwrap_or(self.wire)
    }
}

/// Rows from all columns of some rows.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(crate) fn rows(columns: &[Column], count: usize) -> Vec<Row> {
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
            "header_bytes" => ints!(|row, v| row.header_len = v as u16 as usize),
            "payload_bytes" => ints!(|row, v| row.payload_len = v as u32),
            "class" => bytes!(|row, v| row.class = v),
            "score" => {
                for (row, value) in rows.iter_mut().zip(column.floats()) {
                    row.score = value;
                }
            }
            "granularity" => bytes!(|row, v| row.granularity = v),
            "reason" => bytes!(|row, v| row.reason = v),
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
#[derive(Default)]
pub(crate) struct Rebuild {
    /// Of each flow, the direction from the first and from the second address.
    flows: HashMap<i64, FlowState>,
}

struct FlowState {
    first: (Option<ByteArray>, u16),
    directions: [Direction; 2],
}

impl Rebuild {
    /// Appends the header of a row to `out`.
    pub(crate) fn header(&mut self, row: &Row, out: &mut Vec<u8>) -> Result<(), Source> {
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
