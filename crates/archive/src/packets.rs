//! The table `packets`: one row per packet, in order of flow, direction, arrival.

use std::collections::HashMap;

use parquet::data_type::ByteArray;
use strata_store::{Context, VerdictRecord, keep_name, reason};
use strata_wire::{AddressFamily, FlowShare};

use crate::coded::{Entries, IntCodes, NULL};
use crate::flows::{address_text, score};
use crate::run::{Run, has, layout, u32_of};
use crate::table::{Coding, Column, Kind, Spec, Values};

use Coding::{Codes, Delta, Dictionary, Plain};
use Kind::{Bool, Bytes, Float, Int32, Int64, Text, Time};

/// The columns, in order; `docs/formats/archive.md` says what they mean.
pub const COLUMNS: &[Spec] = &[
    Spec::new("time", Time, Delta),
    Spec::new("late_ns", Int64, Delta),
    Spec::new("tie", Int32, Delta),
    Spec::new("flow_id", Int64, Delta),
    Spec::new("recording", Int32, Codes),
    Spec::new("interface", Int32, Codes),
    Spec::new("src", Text, Codes).or_null(),
    Spec::new("dst", Text, Codes).or_null(),
    Spec::new("src_port", Int32, Codes).or_null(),
    Spec::new("dst_port", Int32, Codes).or_null(),
    Spec::new("protocol", Int32, Codes).or_null(),
    Spec::new("tcp_flags", Int32, Codes).or_null(),
    Spec::new("wire_bytes", Int64, Codes),
    Spec::new("captured_bytes", Int64, Codes).or_null(),
    Spec::new("header_bytes", Int32, Codes),
    Spec::new("payload_bytes", Int32, Codes),
    Spec::new("class", Text, Codes),
    Spec::new("score", Float, Codes).or_null(),
    Spec::new("granularity", Text, Codes),
    Spec::new("reason", Text, Codes),
    Spec::new("flow_share", Float, Codes),
    Spec::new("ip_tos", Int32, Codes).or_null(),
    Spec::new("ip_ttl", Int32, Codes).or_null(),
    Spec::new("ip_id_diff", Int32, Delta).or_null(),
    Spec::new("ip_fragment", Int32, Codes).or_null(),
    Spec::new("ip6_flow_label", Int32, Codes).or_null(),
    Spec::new("ip6_next_header", Int32, Codes).or_null(),
    Spec::new("ip_len", Int32, Codes).or_null(),
    Spec::new("ip_checksum", Int32, Delta).or_null(),
    Spec::new("ip_options", Bytes, Dictionary).or_null(),
    Spec::new("tcp_seq_diff", Int32, Delta).or_null(),
    Spec::new("tcp_ack_diff", Int32, Delta).or_null(),
    Spec::new("tcp_window", Int32, Codes).or_null(),
    Spec::new("tcp_tsval_diff", Int32, Delta).or_null(),
    Spec::new("tcp_tsecr_diff", Int32, Delta).or_null(),
    Spec::new("tcp_options", Bytes, Codes).or_null(),
    Spec::new("checksum", Int32, Delta).or_null(),
    Spec::new("link_header", Bytes, Codes).or_null(),
    Spec::new("transport_header", Bytes, Dictionary).or_null(),
    Spec::new("header", Bytes, Dictionary).or_null(),
    Spec::new("header_layout", Int32, Codes),
    Spec::new("has_time", Bool, Plain),
    Spec::new("packet_options", Bytes, Dictionary).or_null(),
    Spec::new("payload_offset", Int64, Delta).or_null(),
];

/// Number of a column.
///
/// # Panics
///
/// If there is no such column: the names are ours.
#[must_use]
pub fn column(name: &str) -> usize {
    let found = COLUMNS.iter().position(|spec| spec.name == name);
    found.expect("the name of a column")
}

/// Verdicts of a job by code, with their texts.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    /// By class, its name, score, and reason.
    codes: HashMap<(u8, String, Option<u16>, String), u32>,
    pub(crate) all: Vec<Verdict>,
}

/// What a verdict says in the table.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) class: u8,
    pub(crate) score: Option<u16>,
    class_name: ByteArray,
    reason: ByteArray,
}

impl Verdicts {
    /// The code of a verdict on a packet that was recorded with `context`.
    pub(crate) fn code(&mut self, verdict: Option<&VerdictRecord>, context: &Context) -> u32 {
        let name = verdict.and_then(|v| context.classes.get(usize::from(v.class)));
        let class_name = name.map_or("unknown", String::as_str);
        let class = verdict.map_or(u8::MAX, |verdict| verdict.class);
        let score = verdict.filter(|v| v.level > 0).map(|v| v.score);
        let reason = reason(verdict, context);
        let next = u32_of(self.all.len());
        let key = (class, class_name.to_owned(), score, reason);
        let entry = self.codes.entry(key);
        let reason = ByteArray::from(entry.key().3.as_str());
        let code = *entry.or_insert(next);
        if code == next {
            self.all.push(Verdict {
                class,
                score,
                class_name: ByteArray::from(class_name),
                reason,
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
    pub(crate) addresses: &'a Addresses,
    pub(crate) keeps: &'a [ByteArray; 4],
}

/// The texts of a run's addresses.
pub(crate) struct Addresses {
    entries: Vec<ByteArray>,
    /// By flow: the low and the high one's entry.
    codes: Vec<[u32; 2]>,
}

impl Addresses {
    /// The texts of a flow's low and high address.
    pub(crate) fn of(&self, flow: u32) -> Option<[&ByteArray; 2]> {
        let [low, high] = *self.codes.get(flow as usize)?;
        let text = |code: u32| self.entries.get(code as usize);
        Some([text(low)?, text(high)?])
    }
}

/// The texts of the flows' addresses.
pub(crate) fn addresses(run: &Run) -> Addresses {
    let mut entries = Vec::new();
    let mut known: HashMap<(u8, u128), u32> = HashMap::new();
    let mut code = |family: AddressFamily, address: u128| {
        *known.entry((family as u8, address)).or_insert_with(|| {
            entries.push(ByteArray::from(address_text(family, address).as_str()));
            u32::try_from(entries.len() - 1).unwrap_or(NULL)
        })
    };
    let codes = run.flows.iter().map(|flow| {
        let key = &flow.key;
        if !flow.has_addresses() {
            return [NULL; 2];
        }
        [key.low.address, key.high.address].map(|address| code(key.family, address))
    });
    let codes = codes.collect();
    Addresses { entries, codes }
}

/// The names of the granularities by code.
pub(crate) fn keeps() -> [ByteArray; 4] {
    [0, 1, 2, 3].map(|code| ByteArray::from(keep_name(code)))
}

/// Of a row that is filled in: its number in the run, and what many columns ask for.
#[derive(Clone, Copy)]
struct At {
    row: u32,
    slot: u32,
    /// Of `has`, and the layout in the highest byte.
    bits: u32,
    verdict: u32,
}

const LAYOUT_SHIFT: u32 = 24;

impl At {
    fn flow(self) -> usize {
        (self.slot / 2) as usize
    }

    fn row(self) -> usize {
        self.row as usize
    }

    fn has(self, bit: u32) -> bool {
        self.bits & bit != 0
    }

    fn layout(self) -> u8 {
        self.bits.to_le_bytes()[3]
    }

    fn is(self, version: u8) -> bool {
        self.layout() & 7 == version
    }

    fn is_tcp(self) -> bool {
        self.layout() & layout::TCP != 0
    }

    fn is_raw(self) -> bool {
        self.layout() == layout::RAW
    }
}

/// Fills a run's columns, in the order of the table.
pub(crate) struct Filler<'a> {
    of: Filling<'a>,
    at: Vec<At>,
    ints: IntCodes,
}

impl<'a> Filler<'a> {
    pub(crate) fn new(of: Filling<'a>) -> Self {
        let run = of.run;
        let at = of.rows.iter().map(|&number| {
            let row = number as usize;
            At {
                row: number,
                slot: run.slot[row],
                bits: run.has[row] | u32::from(run.layout[row]) << LAYOUT_SHIFT,
                verdict: run.verdict[row],
            }
        });
        Self {
            at: at.collect(),
            of,
            ints: IntCodes::default(),
        }
    }

    /// Fills one column.
    #[allow(clippy::cast_possible_wrap, clippy::too_many_lines)]
    pub(crate) fn fill(&mut self, index: usize, column: &mut Column) {
        let Filling {
            run,
            verdicts,
            flow_ids,
            payload_at,
            recording,
            addresses,
            keeps,
            ..
        } = self.of;
        if none_has(COLUMNS[index].name, run) {
            fill_nulls(column, self.at.len());
            return;
        }
        let port = |at: At, end: u32| {
            let flow = &run.flows[at.flow()];
            let low = (at.slot & 1) ^ end == 0;
            let end = if low { flow.key.low } else { flow.key.high };
            flow.has_ports().then_some(i64::from(end.port))
        };
        let address = |at: At, end: u32| addresses.codes[at.flow()][((at.slot & 1) ^ end) as usize];
        let extra = |at: At| {
            let place = run.extra[at.row()].checked_sub(1)?;
            run.extras.get(place as usize)
        };
        let of = |there: bool, value: i64| there.then_some(value);
        let diff = |there: bool, value: i32| there.then_some(value);
        match COLUMNS[index].name {
            "time" => self.int64(column, |at| run.time[at.row()] as i64),
            "late_ns" if run.any_has & has::LATE == 0 => fill_zeros(column, self.at.len()),
            "late_ns" => self.int64(column, |at| run.late[at.row()] as i64),
            "tie" => self.int32(column, |at| run.tie[at.row()].cast_signed()),
            "flow_id" => self.int64(column, |at| flow_ids[at.flow()]),
            "recording" => fill_one(column, self.at.len(), recording.into()),
            "interface" if is_one(&run.interface) => {
                fill_one(column, self.at.len(), run.interface[0].into());
            }
            "interface" => self.ints(column, |at| Some(run.interface[at.row()].into())),
            "src" => self.coded(column, &addresses.entries, |at| address(at, 0)),
            "dst" => self.coded(column, &addresses.entries, |at| address(at, 1)),
            "src_port" => self.ints(column, |at| port(at, 0)),
            "dst_port" => self.ints(column, |at| port(at, 1)),
            "protocol" => self.ints(column, |at| {
                let key = &run.flows[at.flow()].key;
                of(key.family != AddressFamily::Mac, key.protocol.into())
            }),
            "tcp_flags" => self.ints(column, |at| {
                of(at.has(has::TCP_FLAGS), run.tcp_flags[at.row()].into())
            }),
            "wire_bytes" => self.ints(column, |at| Some(run.wire[at.row()].into())),
            "captured_bytes" => self.ints(column, |at| {
                of(at.has(has::CAPTURED), run.captured[at.row()].into())
            }),
            "header_bytes" => self.ints(column, |at| Some(run.header_len[at.row()].into())),
            "payload_bytes" => self.ints(column, |at| Some(run.payload_len[at.row()].into())),
            "class" => {
                let names: Vec<ByteArray> = verdicts.iter().map(|v| v.class_name.clone()).collect();
                self.coded(column, &names, |at| at.verdict);
            }
            "score" => {
                let scores: Vec<Option<f32>> =
                    verdicts.iter().map(|v| v.score.map(score)).collect();
                let entries = scores.iter().map(|score| score.unwrap_or(0.0)).collect();
                self.codes(column, Entries::Float(entries), |at| {
                    let code = at.verdict;
                    if scores[code as usize].is_some() {
                        code
                    } else {
                        NULL
                    }
                });
            }
            "granularity" => self.coded(column, keeps, |at| u32::from(run.keep[at.row()] & 3)),
            "reason" => {
                let texts: Vec<ByteArray> = verdicts.iter().map(|v| v.reason.clone()).collect();
                self.coded(column, &texts, |at| at.verdict);
            }
            "flow_share" => self.shares(column),
            "ip_tos" => self.ints(column, |at| of(!at.is_raw(), run.tos[at.row()].into())),
            "ip_ttl" => self.ints(column, |at| of(!at.is_raw(), run.ttl[at.row()].into())),
            "ip_id_diff" => self.diffs(column, |at| {
                diff(at.has(has::IP_ID), run.ip_id[at.row()].into())
            }),
            "ip_fragment" => self.ints(column, |at| {
                of(at.is(layout::V4), run.fragment[at.row()].into())
            }),
            "ip6_flow_label" => self.ints(column, |at| {
                of(at.is(layout::V6), run.fragment[at.row()].into())
            }),
            "ip6_next_header" => self.ints(column, |at| {
                of(at.has(has::NEXT_HEADER), run.next_header[at.row()].into())
            }),
            "ip_len" => self.ints(column, |at| {
                of(at.has(has::IP_LEN), run.ip_len[at.row()].into())
            }),
            "ip_checksum" => self.diffs(column, |at| {
                diff(at.has(has::IP_CHECKSUM), run.ip_checksum[at.row()].into())
            }),
            "ip_options" => self.bytes(column, |at| extra(at)?.ip_options.clone()),
            "tcp_seq_diff" => self.diffs(column, |at| diff(at.has(has::SEQ), run.seq[at.row()])),
            "tcp_ack_diff" => self.diffs(column, |at| diff(at.has(has::ACK), run.ack[at.row()])),
            "tcp_window" => self.ints(column, |at| of(at.is_tcp(), run.window[at.row()].into())),
            "tcp_tsval_diff" => {
                self.diffs(column, |at| diff(at.has(has::TSVAL), run.tsval[at.row()]));
            }
            "tcp_tsecr_diff" => {
                self.diffs(column, |at| diff(at.has(has::TSECR), run.tsecr[at.row()]));
            }
            "tcp_options" => self.coded(column, &run.options.entries, |at| {
                if at.is_tcp() {
                    run.options_code[at.row()]
                } else {
                    NULL
                }
            }),
            "checksum" => self.diffs(column, |at| {
                diff(at.has(has::CHECKSUM), run.checksum[at.row()].into())
            }),
            "link_header" => self.coded(column, &run.links.entries, |at| {
                if at.is_raw() {
                    NULL
                } else {
                    run.link_code[at.row()]
                }
            }),
            "transport_header" => self.bytes(column, |at| extra(at)?.transport.clone()),
            "header" => self.bytes(column, |at| extra(at)?.header.clone()),
            "header_layout" => self.ints(column, |at| Some(at.layout().into())),
            "has_time" => {
                if run.any_has & has::NO_TIME == 0 {
                    if let Values::Bool(out) = &mut column.values {
                        out.resize(self.at.len(), true);
                    }
                } else if let Values::Bool(out) = &mut column.values {
                    out.extend(self.at.iter().map(|at| at.has(has::TIME)));
                }
            }
            "packet_options" => self.bytes(column, |at| extra(at)?.packet_options.clone()),
            "payload_offset" => {
                if let Values::Int64(out) = &mut column.values {
                    or_null(&self.at, out, &mut column.levels, |at| {
                        if run.payload_len[at.row()] == 0 {
                            return None;
                        }
                        payload_at.get(&at.row).map(|at| *at as i64)
                    });
                }
            }
            name => unreachable!("{name} is no column"),
        }
    }

    fn int32(&self, column: &mut Column, get: impl Fn(At) -> i32) {
        if let Values::Int32(out) = &mut column.values {
            out.extend(self.at.iter().map(|at| get(*at)));
        }
    }

    fn int64(&self, column: &mut Column, get: impl Fn(At) -> i64) {
        if let Values::Int64(out) = &mut column.values {
            out.extend(self.at.iter().map(|at| get(*at)));
        }
    }

    fn diffs(&self, column: &mut Column, get: impl Fn(At) -> Option<i32>) {
        if let Values::Int32(out) = &mut column.values {
            or_null(&self.at, out, &mut column.levels, get);
        }
    }

    fn bytes(&self, column: &mut Column, get: impl Fn(At) -> Option<ByteArray>) {
        if let Values::Bytes(out) = &mut column.values {
            or_null(&self.at, out, &mut column.levels, get);
        }
    }

    /// Integers of a small set, numbered here.
    fn ints(&mut self, column: &mut Column, get: impl Fn(At) -> Option<i64>) {
        if let Values::Coded(coded) = &mut column.values {
            let ints = &mut self.ints;
            let code = |at: &At| get(*at).map_or(NULL, |value| ints.code(value));
            coded.codes.extend(self.at.iter().map(code));
            coded.entries = Entries::Int(ints.take());
        }
    }

    /// Shares of all flows, as numbers from 0 to 1.
    #[allow(clippy::cast_possible_truncation)]
    fn shares(&mut self, column: &mut Column) {
        let Values::Coded(coded) = &mut column.values else {
            return;
        };
        let run = self.of.run;
        if run.any_has & has::SHARE == 0 {
            coded.codes.resize(self.at.len(), 0);
            coded.entries = Entries::Float(vec![1.0]);
            return;
        }
        let ints = &mut self.ints;
        let code = |at: &At| ints.code(run.share[at.row()].into());
        coded.codes.extend(self.at.iter().map(code));
        let shares = ints.take().into_iter();
        let ratio = |share| {
            let share = u32::try_from(share).expect("it was 32 bits");
            FlowShare(share).ratio() as f32
        };
        coded.entries = Entries::Float(shares.map(ratio).collect());
    }

    /// Texts that are numbered already.
    fn coded(&self, column: &mut Column, entries: &[ByteArray], get: impl Fn(At) -> u32) {
        self.codes(column, Entries::Bytes(entries.to_vec()), get);
    }

    fn codes(&self, column: &mut Column, entries: Entries, get: impl Fn(At) -> u32) {
        if let Values::Coded(coded) = &mut column.values {
            coded.codes.extend(self.at.iter().map(|at| get(*at)));
            coded.entries = entries;
        }
    }
}

fn or_null<T>(rows: &[At], out: &mut Vec<T>, levels: &mut Vec<i16>, get: impl Fn(At) -> Option<T>) {
    for at in rows {
        let value = get(*at);
        levels.push(i16::from(value.is_some()));
        out.extend(value);
    }
}

/// Whether no row of a run has a value in a column.
fn none_has(column: &str, run: &Run) -> bool {
    let bit = match column {
        "captured_bytes" => has::CAPTURED,
        "ip_id_diff" => has::IP_ID,
        "ip6_next_header" => has::NEXT_HEADER,
        "ip_len" => has::IP_LEN,
        "ip_checksum" => has::IP_CHECKSUM,
        "ip_options" => has::EXTRA_IP_OPTIONS,
        "checksum" => has::CHECKSUM,
        "transport_header" => has::EXTRA_TRANSPORT,
        "header" => has::RAW,
        "packet_options" => has::EXTRA_PACKET_OPTIONS,
        "payload_offset" => return run.with_payload.is_empty(),
        _ => return false,
    };
    run.any_has & bit == 0
}

fn fill_nulls(column: &mut Column, rows: usize) {
    if let Values::Coded(coded) = &mut column.values {
        coded.codes.resize(rows, NULL);
        coded.entries = Entries::Int(Vec::new());
    } else {
        column.levels.resize(rows, 0);
    }
}

fn fill_zeros(column: &mut Column, rows: usize) {
    if let Values::Int64(out) = &mut column.values {
        out.resize(rows, 0);
    }
}

fn fill_one(column: &mut Column, rows: usize, value: i64) {
    if let Values::Coded(coded) = &mut column.values {
        coded.codes.resize(rows, 0);
        coded.entries = Entries::Int(vec![value]);
    }
}

/// Whether all are the same, and there are some.
fn is_one(values: &[u16]) -> bool {
    let first = values.first();
    values.iter().all(|value| Some(value) == first) && first.is_some()
}
