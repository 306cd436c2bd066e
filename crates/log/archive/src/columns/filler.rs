//! Filling columns from the rows of a run: how values are added, not which.

use parquet::data_type::ByteArray;
use strata_tables::{Coded, Column, Entries, IntCodes, NULL, Values};
use strata_wire::{AddressFamily, FlowShare, KeepKind};

use crate::columns::addresses::Addresses;
use crate::columns::verdicts::Verdict;
use crate::run::flow::score;
use crate::run::{Extra, Run, has, layout};

/// What is needed in addition to a run's rows to make columns.
#[derive(Clone, Copy)]
pub(crate) struct Filling<'a> {
    pub(crate) run: &'a Run,
    /// The wanted rows, in the wanted order.
    pub(crate) rows: &'a [u32],
    pub(crate) verdicts: &'a [Verdict],
    /// By flow.
    pub(crate) flow_ids: &'a [i64],
    /// By row of the run; empty if no row has payload.
    pub(crate) payload_at: &'a [Option<u64>],
    pub(crate) recording: u32,
    pub(crate) addresses: &'a Addresses,
    pub(crate) keeps: &'a [ByteArray; 4],
}

/// One end of a packet.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Source,
    Destination,
}

impl Filling<'_> {
    /// Whether an end of a packet is its flow's low endpoint.
    fn is_low(at: At, end: End) -> bool {
        (at.slot & 1 == 0) == matches!(end, End::Source)
    }

    /// The code of an address's text.
    pub(crate) fn address(&self, at: At, end: End) -> u32 {
        let [low, high] = self.addresses.codes[at.flow()];
        if Self::is_low(at, end) { low } else { high }
    }

    pub(crate) fn port(&self, at: At, end: End) -> Option<i64> {
        let flow = &self.run.flows[at.flow()];
        let (low, high) = (flow.key.low, flow.key.high);
        let end = if Self::is_low(at, end) { low } else { high };
        flow.has_ports().then_some(end.port.into())
    }

    pub(crate) fn protocol(&self, at: At) -> Option<i64> {
        let key = &self.run.flows[at.flow()].key;
        (key.family != AddressFamily::Mac).then_some(key.protocol.into())
    }

    /// Position in the payload file of a packet with payload.
    pub(crate) fn payload_at(&self, at: At) -> Option<i64> {
        let place = self.payload_at.get(at.row()).copied().flatten();
        place.map(u64::cast_signed)
    }
}

/// The names of the granularities by code.
pub(crate) fn keeps() -> [ByteArray; 4] {
    KeepKind::ALL.map(|keep| ByteArray::from(keep.name()))
}

/// The row being filled in: its number in the run, and what many columns need.
#[derive(Clone, Copy)]
pub(crate) struct At {
    row: u32,
    slot: u32,
    /// Its `has` flags, with the layout in the highest byte.
    bits: u32,
    verdict: u32,
}

const LAYOUT_SHIFT: u32 = 24;

impl At {
    pub(crate) fn flow(self) -> usize {
        (self.slot / 2) as usize
    }

    pub(crate) fn row(self) -> usize {
        self.row as usize
    }

    pub(crate) fn has(self, bit: u32) -> bool {
        self.bits & bit != 0
    }

    pub(crate) fn layout(self) -> u8 {
        self.bits.to_le_bytes()[3]
    }

    pub(crate) fn is(self, version: u8) -> bool {
        self.layout() & 7 == version
    }

    pub(crate) fn is_tcp(self) -> bool {
        self.layout() & layout::TCP != 0
    }

    pub(crate) fn is_raw(self) -> bool {
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

    pub(crate) fn run(&self) -> &'a Run {
        self.of.run
    }

    pub(crate) fn addresses(&self) -> &'a Addresses {
        self.of.addresses
    }

    pub(crate) fn keeps(&self) -> &'a [ByteArray; 4] {
        self.of.keeps
    }

    pub(crate) fn recording(&self) -> i64 {
        self.of.recording.into()
    }

    /// 32-bit integers that every row has.
    pub(crate) fn int32(&self, column: &mut Column, get: impl Fn(&Filling<'_>, At) -> i32) {
        let (out, _) = int32_of(column);
        out.extend(self.at.iter().map(|at| get(&self.of, *at)));
    }

    /// 64-bit integers that every row has.
    pub(crate) fn int64(&self, column: &mut Column, get: impl Fn(&Filling<'_>, At) -> i64) {
        let (out, _) = int64_of(column);
        out.extend(self.at.iter().map(|at| get(&self.of, *at)));
    }

    /// 64-bit integers, all 0 unless `any`.
    pub(crate) fn int64_if(
        &self,
        column: &mut Column,
        any: bool,
        get: impl Fn(&Filling<'_>, At) -> i64,
    ) {
        if any {
            self.int64(column, get);
        } else {
            int64_of(column).0.resize(self.at.len(), 0);
        }
    }

    /// 64-bit integers that some rows have.
    pub(crate) fn int64_or_null(
        &self,
        column: &mut Column,
        get: impl Fn(&Filling<'_>, At) -> Option<i64>,
    ) {
        let (out, levels) = int64_of(column);
        self.or_null(out, levels, get);
    }

    /// 32-bit integers for rows with the flag `there`.
    pub(crate) fn diffs(
        &self,
        column: &mut Column,
        there: u32,
        get: impl Fn(&Filling<'_>, At) -> i32,
    ) {
        let (out, levels) = int32_of(column);
        self.or_null(out, levels, |of, at| at.has(there).then(|| get(of, at)));
    }

    /// Bytes that few rows have.
    pub(crate) fn extra(&self, column: &mut Column, get: impl Fn(&Extra) -> Option<ByteArray>) {
        let Column { values, levels } = column;
        let Values::Bytes(out) = values else {
            unreachable!("a column of bytes");
        };
        self.or_null(out, levels, |of, at| get(of.run.extra_of(at.row())?));
    }

    /// True or false, true in every row unless `any_false`.
    pub(crate) fn bools(
        &self,
        column: &mut Column,
        any_false: bool,
        get: impl Fn(&Filling<'_>, At) -> bool,
    ) {
        let Values::Bool(out) = &mut column.values else {
            unreachable!("a column of booleans");
        };
        if any_false {
            out.extend(self.at.iter().map(|at| get(&self.of, *at)));
        } else {
            out.resize(self.at.len(), true);
        }
    }

    /// Integers from a small set, numbered here.
    pub(crate) fn ints(
        &mut self,
        column: &mut Column,
        get: impl Fn(&Filling<'_>, At) -> Option<i64>,
    ) {
        let coded = coded_of(column);
        let (ints, of) = (&mut self.ints, &self.of);
        let code = |at: &At| get(of, *at).map_or(NULL, |value| ints.code(value));
        coded.codes.extend(self.at.iter().map(code));
        coded.entries = Entries::Int(ints.take());
    }

    /// The same integer in all rows.
    pub(crate) fn one(&self, column: &mut Column, value: i64) {
        let coded = coded_of(column);
        coded.codes.resize(self.at.len(), 0);
        coded.entries = Entries::Int(vec![value]);
    }

    /// Numbers of interfaces; most runs have only one.
    pub(crate) fn interfaces(&mut self, column: &mut Column) {
        let all = &self.of.run.interface;
        match all.first() {
            Some(first) if all.iter().all(|one| one == first) => {
                self.one(column, i64::from(*first));
            }
            _ => self.ints(column, |of, at| Some(of.run.interface[at.row()].into())),
        }
    }

    /// Scores of verdicts, from 0 to 1.
    pub(crate) fn scores(&self, column: &mut Column) {
        let scores = self.of.verdicts.iter().map(|verdict| verdict.score);
        // A verdict without a score is never referred to.
        let entries = scores.map(|of| of.map_or(0.0, score)).collect();
        self.codes(column, Entries::Float(entries), |of, at| {
            let has_score = of.verdicts[at.verdict as usize].score.is_some();
            if has_score { at.verdict } else { NULL }
        });
    }

    /// Shares of all flows, as numbers from 0 to 1.
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn shares(&mut self, column: &mut Column) {
        let coded = coded_of(column);
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

    /// Texts of verdicts.
    pub(crate) fn of_verdicts(&self, column: &mut Column, text: fn(&Verdict) -> &ByteArray) {
        let texts = self.of.verdicts.iter().map(|verdict| text(verdict).clone());
        let entries = Entries::Bytes(texts.collect());
        self.codes(column, entries, |_, at| at.verdict);
    }

    /// Texts or bytes that are already numbered.
    pub(crate) fn coded(
        &self,
        column: &mut Column,
        entries: &[ByteArray],
        get: impl Fn(&Filling<'_>, At) -> u32,
    ) {
        self.codes(column, Entries::Bytes(entries.to_vec()), get);
    }

    fn codes(&self, column: &mut Column, entries: Entries, get: impl Fn(&Filling<'_>, At) -> u32) {
        let coded = coded_of(column);
        coded
            .codes
            .extend(self.at.iter().map(|at| get(&self.of, *at)));
        coded.entries = entries;
    }

    /// No value in any row.
    pub(crate) fn nulls(&self, column: &mut Column) {
        if let Values::Coded(coded) = &mut column.values {
            coded.codes.resize(self.at.len(), NULL);
            coded.entries = Entries::Int(Vec::new());
        } else {
            column.levels.resize(self.at.len(), 0);
        }
    }

    fn or_null<T>(
        &self,
        out: &mut Vec<T>,
        levels: &mut Vec<i16>,
        get: impl Fn(&Filling<'_>, At) -> Option<T>,
    ) {
        for at in &self.at {
            let value = get(&self.of, *at);
            levels.push(i16::from(value.is_some()));
            out.extend(value);
        }
    }
}

fn int32_of(column: &mut Column) -> (&mut Vec<i32>, &mut Vec<i16>) {
    match &mut column.values {
        Values::Int32(values) => (values, &mut column.levels),
        _ => unreachable!("a column of 32 bits"),
    }
}

fn int64_of(column: &mut Column) -> (&mut Vec<i64>, &mut Vec<i16>) {
    match &mut column.values {
        Values::Int64(values) => (values, &mut column.levels),
        _ => unreachable!("a column of 64 bits"),
    }
}

fn coded_of(column: &mut Column) -> &mut Coded {
    match &mut column.values {
        Values::Coded(coded) => coded,
        _ => unreachable!("a column of numbered values"),
    }
}
