//! The texts of verdicts in the tables, numbered.

use std::collections::HashMap;
use std::sync::Arc;

use parquet::data_type::ByteArray;
use strata_blocks::{Trees, VerdictRecord, reason};
use strata_wire::Context;

use crate::run::u32_of;

/// Verdicts of a job by code, with their texts.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    /// By class, its name, score, and reason.
    codes: HashMap<(u8, String, Option<u16>, String), u32>,
    pub(crate) all: Arc<Vec<Verdict>>,
}

/// A verdict's values in the table.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) class: u8,
    pub(crate) score: Option<u16>,
    pub(crate) class_name: ByteArray,
    pub(crate) reason: ByteArray,
}

impl Verdicts {
    /// The code of a verdict on a packet recorded with `context`.
    pub(crate) fn code(&mut self, verdict: Option<&VerdictRecord>, context: &Context) -> u32 {
        let name = verdict.and_then(|v| context.classes.get(usize::from(v.class)));
        let class_name = name.map_or("unknown", String::as_str);
        let class = verdict.map_or(u8::MAX, |verdict| verdict.class);
        let score = verdict.filter(|v| v.trees != Trees::None).map(|v| v.score);
        let reason = reason(verdict, context);
        let next = u32_of(self.all.len());
        let key = (class, class_name.to_owned(), score, reason);
        let entry = self.codes.entry(key);
        let reason = ByteArray::from(entry.key().3.as_str());
        let code = *entry.or_insert(next);
        if code == next {
            Arc::make_mut(&mut self.all).push(Verdict {
                class,
                score,
                class_name: ByteArray::from(class_name),
                reason,
            });
        }
        code
    }
}
