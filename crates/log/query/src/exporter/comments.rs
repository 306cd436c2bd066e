//! Comments of packets: many packets share one, and each text is made once.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;

use super::Judgement;

/// Texts that are kept; beyond, all are made again.
const TEXTS_MAX: usize = 1 << 12;

/// What the comment of a packet follows from: numbers, and what gave them their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JudgementKey {
    /// From [`new_origin`].
    pub(crate) origin: u64,
    /// Of a verdict, or of texts.
    pub(crate) numbers: [u32; 4],
    /// Score and share of flows, as bits.
    pub(crate) values: [u32; 2],
}

/// A number for a set of definitions, which no other set has.
pub(crate) fn new_origin() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Comments that were made.
#[derive(Default)]
pub(super) struct Comments {
    made: HashMap<JudgementKey, String, RandomState>,
    /// Of a packet without a key.
    other: String,
}

impl Comments {
    /// A packet's comment.
    pub(super) fn of(&mut self, judged: &dyn Judgement) -> &str {
        let Some(key) = judged.key() else {
            self.other = comment_text(judged);
            return &self.other;
        };
        if self.made.len() >= TEXTS_MAX && !self.made.contains_key(&key) {
            self.made.clear();
        }
        self.made.entry(key).or_insert_with(|| comment_text(judged))
    }
}

/// A packet's comment, as shown by Wireshark.
pub(super) fn comment_text(judged: &dyn Judgement) -> String {
    let mut text = String::from("strata:");
    if let Some(class) = judged.class() {
        let _ = write!(text, " class={class}");
    }
    if let Some(score) = judged.score() {
        let _ = write!(text, " score={score:.3}");
    }
    let (granularity, reason) = (judged.granularity(), judged.reason());
    let _ = write!(text, " granularity={granularity} reason={reason}");
    if !judged.mode().is_empty() {
        let _ = write!(text, " mode={}", judged.mode());
    }
    if judged.flow_share() < 1.0 {
        let _ = write!(text, " flow_share={:.6}", judged.flow_share());
    }
    text
}
