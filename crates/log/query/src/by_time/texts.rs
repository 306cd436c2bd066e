//! The texts of packets that wait.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::{TEXTS_MAX, WRITTEN_OUT, length};
use crate::exporter::new_origin;

/// Texts shared by many packets, by number.
pub(super) struct Texts {
    /// See [`crate::exporter::JudgementKey`].
    pub(super) origin: u64,
    numbers: HashMap<Box<[u8]>, u32, RandomState>,
    pub(super) texts: Vec<Box<[u8]>>,
    /// Of the last packet: class, granularity, reason, mode.
    last: [u32; 4],
}

impl Texts {
    pub(super) fn new() -> Self {
        Self {
            origin: new_origin(),
            numbers: HashMap::default(),
            texts: Vec::new(),
            last: [WRITTEN_OUT; 4],
        }
    }

    /// The numbers of a packet's texts.
    pub(super) fn numbers(&mut self, texts: [&[u8]; 4]) -> [u32; 4] {
        let last = self.last;
        let is_last = |number: u32, text: &[u8]| {
            let known = self.texts.get(number as usize);
            known.is_some_and(|known| **known == *text)
        };
        let same: [bool; 4] = std::array::from_fn(|which| is_last(last[which], texts[which]));
        self.last = std::array::from_fn(|which| match same[which] {
            true => last[which],
            false => self.number(texts[which]),
        });
        self.last
    }

    fn number(&mut self, text: &[u8]) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        if self.texts.len() == TEXTS_MAX {
            return WRITTEN_OUT;
        }
        let number = length(self.texts.len());
        self.texts.push(text.into());
        self.numbers.insert(text.into(), number);
        number
    }
}
