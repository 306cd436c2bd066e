//! Generations of a store: which there are, and of what time.

use strata_dta::generations::Generation;
use strata_sys::words::Words;
use strata_wire::exact;

use crate::api::status::{GenerationStatus, GenerationsStatus};
use crate::store::counted::counted;
use crate::store::plan::Plan;

/// Bytes that are cleared between looks at what has arrived: about 1 ms.
pub(crate) const PIECE_BYTES: usize = 2 << 20;

/// The period in which a generation of a store was filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GenerationTime {
    /// Its start, in ns since 1970.
    pub begun_ns: u64,
    /// Its end, in ns since 1970; `None` for the youngest generation.
    pub ended_ns: Option<u64>,
}

/// A generation that a query looks into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    /// Its place among them, from 0.
    pub(crate) index: u8,
    /// Where its stores lie, in bytes from those of the first generation.
    pub(crate) offset: u64,
    /// Its number; 0 in a store without generations.
    pub(crate) number: u64,
    /// Its time; `None` in a store without generations.
    pub(crate) time: Option<GenerationTime>,
}

/// The youngest one that there is, if the store has generations and one of them has begun.
pub(crate) fn youngest(plan: &Plan, words: &Words) -> Option<Generation> {
    let word = |at| u64::from_le_bytes(words.word(exact(at)));
    plan.generations()?.read(word).first().copied()
}

/// All that there are, youngest first; in a store without generations, the only one.
pub(crate) fn spans(plan: &Plan, words: &Words) -> Vec<Span> {
    let Some(generations) = plan.generations() else {
        return vec![Span {
            index: 0,
            offset: 0,
            number: 0,
            time: None,
        }];
    };
    let word = |at| u64::from_le_bytes(words.word(exact(at)));
    let present = generations.read(word);
    let ends = present.iter().map(|younger| Some(younger.begun_ns));
    let ends = std::iter::once(None).chain(ends);
    let span = |(generation, ended_ns): (&Generation, _)| Span {
        index: generation.index,
        offset: generations.offset(generation.index),
        number: generation.number,
        time: Some(GenerationTime {
            begun_ns: generation.begun_ns,
            ended_ns,
        }),
    };
    present.iter().zip(ends).map(span).collect()
}

/// Generations, youngest first, as far as the one that says it knows them.
pub(crate) fn generations_status(
    plan: &Plan,
    present: &[Generation],
    clearing: bool,
) -> GenerationsStatus {
    let present = present.iter().map(|generation| {
        counted! {
            generation => GenerationStatus {
                number,
                begun_ns,
            }
        }
    });
    GenerationsStatus {
        count: Some(plan.parameters.generations),
        period_seconds: Some(plan.parameters.generation_period_s),
        clearing: Some(clearing),
        present: present.collect(),
    }
}
