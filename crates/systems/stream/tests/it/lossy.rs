//! Pages that a lossy network delivers: some records are lost, and where they would be is what the
//! page's previous use has left.

#![allow(dead_code, reason = "tests and the example use a part each")]

use std::collections::BTreeMap;
use std::convert::Infallible;

use strata_stream::{AppendError, Blocks, Form, Item, Page, PageHeader, PageWriter, StreamKey};
use strata_wire::mix64;

pub(crate) const PAGE_BYTES: usize = 4 << 20;

/// Numbers from a seed.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn chance(&mut self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "53 bits")]
        let bits = (self.next() >> 11) as f64;
        bits / 2_f64.powi(53)
    }
}

/// How a network loses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loss {
    /// Each record alone.
    Independent(f64),
    /// Runs of records, this long on average (Gilbert's model).
    Bursts(f64, f64),
}

impl Loss {
    pub(crate) fn rate(self) -> f64 {
        match self {
            Self::Independent(rate) | Self::Bursts(rate, _) => rate,
        }
    }

    fn is_lost(self, was_lost: bool, draw: &mut Draw) -> bool {
        let chance = match self {
            Self::Independent(rate) => rate,
            Self::Bursts(_, length) if was_lost => 1.0 - 1.0 / length,
            Self::Bursts(rate, length) => rate / (1.0 - rate) / length,
        };
        draw.chance() < chance
    }
}

/// A page in one block of memory.
struct Whole(Vec<u8>);

impl Blocks for Whole {
    type Error = Infallible;

    fn current(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn full(&mut self, _: usize, _: u32) -> Result<(), Infallible> {
        unreachable!("the page is one block")
    }
}

/// What was written: the page, and of each record where it lies and its payload.
pub(crate) struct Written {
    pub(crate) header: PageHeader,
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: Vec<(usize, usize, Vec<u8>)>,
}

pub(crate) fn header(form: Form, index: u64, draw: &mut Draw) -> PageHeader {
    PageHeader {
        stream: 1,
        index,
        lap: draw.next(),
        first_seq: 1000 * index,
        created_ns: 1,
        record_magic: u32::try_from(draw.next() >> 32).expect("32 bits"),
        form,
    }
}

/// Fills a page with payloads until no other fits. `payload` is given what was written so far.
pub(crate) fn write(
    header: PageHeader,
    key: &StreamKey,
    page_bytes: usize,
    mut payload: impl FnMut(&[u8], &[(usize, usize, Vec<u8>)]) -> Vec<u8>,
) -> Written {
    let mut memory = Whole(vec![0; page_bytes]);
    let begun = PageWriter::begin(&header, key, page_bytes, &mut memory);
    let mut writer = begun.expect("memory does not fail");
    let mut records = Vec::new();
    loop {
        let payload = payload(&memory.0[..writer.at()], &records);
        match writer.append(&mut memory, &payload) {
            Ok(()) => {
                let head = match header.form {
                    Form::Sealed => strata_stream::SEALED_HEAD_LEN,
                    Form::Linked { redundancy, .. } => {
                        (8 + 4 * usize::from(redundancy)).next_multiple_of(8)
                    }
                };
                let whole = head + payload.len().next_multiple_of(8);
                records.push((writer.at() - whole, writer.at(), payload));
            }
            Err(AppendError::Full) => break,
            Err(error) => panic!("{error:?}"),
        }
    }
    Written {
        header,
        bytes: memory.0,
        records,
    }
}

/// What a reader made of a page.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Outcome {
    pub(crate) arrived: u64,
    pub(crate) retrieved: u64,
    pub(crate) invented: u64,
    pub(crate) lost: u64,
    /// Gaps whose bounds do not hold, and sealed gaps that are not exact.
    pub(crate) wrong_gaps: u64,
}

impl Outcome {
    pub(crate) fn add(&mut self, other: Self) {
        self.arrived += other.arrived;
        self.retrieved += other.retrieved;
        self.invented += other.invented;
        self.lost += other.lost;
        self.wrong_gaps += other.wrong_gaps;
    }

    pub(crate) fn recall(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "few records")]
        let [retrieved, arrived] = [self.retrieved as f64, self.arrived as f64];
        retrieved / arrived
    }
}

/// Loses records of a page, on top of what lay there before, and reads what arrived.
pub(crate) fn deliver(
    written: &Written,
    before: &[u8],
    key: &StreamKey,
    loss: Loss,
    draw: &mut Draw,
) -> Outcome {
    let mut bytes = before.to_vec();
    bytes[..64].copy_from_slice(&written.bytes[..64]);
    let mut outcome = Outcome::default();
    let mut arrived = BTreeMap::new();
    let mut was_lost = false;
    for (number, (at, end, payload)) in written.records.iter().enumerate() {
        was_lost = loss.is_lost(was_lost, draw);
        if was_lost {
            outcome.lost += 1;
        } else {
            bytes[*at..*end].copy_from_slice(&written.bytes[*at..*end]);
            arrived.insert(*at, (number, payload));
        }
    }
    outcome.arrived = arrived.len() as u64;
    let page_key = key.page(written.header.index, written.header.lap);
    let page = Page::new(written.header, page_key, &bytes);
    let (mut next, mut gap) = (0, (0, 0));
    for item in page.walk() {
        match item {
            Item::Missing(missing) => gap = missing.bounds(),
            Item::Record(record) => {
                let Some((number, payload)) = arrived.get(&record.at) else {
                    outcome.invented += 1;
                    continue;
                };
                outcome.invented += u64::from(payload.as_slice() != record.payload);
                outcome.retrieved += 1;
                // What is missing may have arrived, but cannot be found.
                let missing = (number - next) as u64;
                let is_right = (gap.0..=gap.1).contains(&missing);
                outcome.wrong_gaps += u64::from(!is_right);
                (next, gap) = (number + 1, (0, 0));
            }
        }
    }
    outcome
}

/// Payloads of a size between two, with random bytes.
pub(crate) fn payload(draw: &mut Draw, (min, max): (usize, usize)) -> Vec<u8> {
    let len = min + usize::try_from(draw.below((max - min + 1) as u64)).expect("a size");
    let mut bytes = vec![0; len.next_multiple_of(8)];
    for word in bytes.as_chunks_mut::<8>().0 {
        *word = draw.next().to_le_bytes();
    }
    bytes.truncate(len);
    bytes
}

/// A page with hostile payloads: heads and whole records of this page, of the page before and of
/// another stream; and heads of this page's magic number with addresses that are there. Counts these
/// forged records in `forged`.
pub(crate) fn hostile(
    header: PageHeader,
    key: &StreamKey,
    page_bytes: usize,
    others: &[&Written],
    draw: &mut Draw,
    forged: &mut u64,
) -> Written {
    write(header, key, page_bytes, |so_far, records| {
        let mut bytes = Vec::new();
        while bytes.len() < 400 {
            *forged += 1;
            match draw.below(4) {
                0 if !records.is_empty() => {
                    let recent = records.len().min(6) as u64;
                    let back = usize::try_from(draw.below(recent)).expect("few");
                    let (at, end, _) = records[records.len() - 1 - back];
                    bytes.extend(&so_far[at..end.min(at + 200)]);
                }
                1 => {
                    let other =
                        others[usize::try_from(draw.below(others.len() as u64)).expect("few")];
                    let number =
                        usize::try_from(draw.below(other.records.len() as u64)).expect("few");
                    let (at, end, _) = other.records[number];
                    bytes.extend(&other.bytes[at..end.min(at + 200)]);
                }
                2 if records.len() > 3 => {
                    bytes.extend(header.record_magic.to_le_bytes());
                    bytes.extend(8_u32.to_le_bytes());
                    for (at, _, _) in records.iter().rev().take(3) {
                        bytes.extend(u32::try_from(*at).expect("an offset").to_le_bytes());
                    }
                    bytes.extend([0; 12]);
                }
                _ => {
                    // Looks like a sealed head: everything but what needs the key.
                    let head =
                        16_u64 | 1 << 22 | (records.len() as u64 + 1) << 24 | draw.next() << 48;
                    bytes.extend(head.to_le_bytes());
                    bytes.extend(draw.next().to_le_bytes());
                }
            }
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        bytes.truncate(400 + usize::try_from(draw.below(100)).expect("small"));
        bytes
    })
}

/// The ways of the paper's Figure 4, and ours.
pub(crate) fn ways() -> [(&'static str, Form); 5] {
    let linked = |redundancy, block_bytes| Form::Linked {
        redundancy,
        block_bytes,
    };
    [
        ("none", linked(0, None)),
        ("redundancy", linked(3, None)),
        ("alignment", linked(0, Some(256 << 10))),
        ("both", linked(3, Some(256 << 10))),
        ("ours", Form::Sealed),
    ]
}

/// Recall of pages with records of a size, page by page.
pub(crate) fn recalls(
    form: Form,
    sizes: (usize, usize),
    loss: Loss,
    pages: u64,
    seed: u64,
) -> Vec<Outcome> {
    let mut draw = Draw(seed);
    let key = StreamKey::new([7; 16]);
    let fill = |index, draw: &mut Draw| {
        let header = header(form, index, draw);
        write(header, &key, PAGE_BYTES, |_, _| payload(draw, sizes))
    };
    let mut before = fill(0, &mut draw).bytes;
    let mut outcomes = Vec::new();
    for index in 1..=pages {
        let written = fill(index, &mut draw);
        outcomes.push(deliver(&written, &before, &key, loss, &mut draw));
        before = written.bytes;
    }
    outcomes
}
