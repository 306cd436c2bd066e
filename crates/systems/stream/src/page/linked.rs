//! Records of the paper (§3.4), which a switch can write: each names the addresses of those before
//! it, so that the first after a few lost ones still tells that it is a record.
//!
//! ```text
//!  0 magic u32      that of the page, XOR the record's address
//!  4 length u32     bytes of the payload
//!  8 previous u32   addresses of the previous R records, nearest first; 0: there are fewer
//! .. payload        head and payload are padded with zeros to a multiple of 8 each
//! ```
//!
//! Addresses are offsets in the page. The magic number is random and new for each use of a page, so
//! what an earlier use has left there is not taken for a record; and it differs from address to
//! address, so a copy of a record in a payload is not taken for one either.

use std::collections::{BTreeMap, BTreeSet};

use strata_wire::exact;

use crate::page::header::{
    ALIGN, Form, LINKED_HEAD_LEN_MAX, PAGE_HEADER_LEN, PageHeader, RECORD_LEN_MAX, REDUNDANCY_MAX,
};
use crate::page::missing::Missing;

/// What a writer keeps: a switch has it in registers.
#[derive(Debug)]
pub(crate) struct LinkedWriter {
    magic: u32,
    redundancy: usize,
    block_bytes: Option<u32>,
    /// Nearest first.
    previous: [u32; REDUNDANCY_MAX],
}

impl LinkedWriter {
    /// `None` if the page's records are not linked.
    pub(crate) fn new(header: &PageHeader) -> Option<Self> {
        let Form::Linked {
            redundancy,
            block_bytes,
        } = header.form
        else {
            return None;
        };
        Some(Self {
            magic: header.record_magic,
            redundancy: redundancy.into(),
            block_bytes,
            previous: [0; REDUNDANCY_MAX],
        })
    }

    fn head_len(&self) -> usize {
        self.redundancy
            .wrapping_mul(4)
            .wrapping_add(8)
            .next_multiple_of(ALIGN)
    }

    /// Where a record goes: here, or at the next block's start.
    pub(crate) fn next_at(&self, at: usize, len: usize, page_bytes: usize) -> Option<usize> {
        let whole = self.head_len().wrapping_add(len.next_multiple_of(ALIGN));
        let block_end = end_of_block(self.block_bytes, at, page_bytes);
        let at = if at.wrapping_add(whole) <= block_end {
            at
        } else {
            block_end
        };
        let end = end_of_block(self.block_bytes, at, page_bytes);
        (at.wrapping_add(whole) <= end && at < page_bytes).then_some(at)
    }

    pub(crate) fn head(&self, at: usize, len: usize) -> ([u8; LINKED_HEAD_LEN_MAX], usize) {
        let mut head = [0; LINKED_HEAD_LEN_MAX];
        head[..4].copy_from_slice(&(self.magic ^ exact::<u32>(at)).to_le_bytes());
        head[4..8].copy_from_slice(&exact::<u32>(len).to_le_bytes());
        let places = head[8..].as_chunks_mut::<4>().0;
        for (to, address) in places.iter_mut().zip(&self.previous[..self.redundancy]) {
            *to = address.to_le_bytes();
        }
        (head, self.head_len())
    }

    pub(crate) fn appended(&mut self, at: usize) {
        self.previous.copy_within(..REDUNDANCY_MAX - 1, 1);
        self.previous[0] = exact(at);
    }
}

/// Where the block of a place ends; at a block's end, the next one's.
fn end_of_block(block_bytes: Option<u32>, at: usize, page_bytes: usize) -> usize {
    block_bytes.map_or(page_bytes, |block| {
        at.wrapping_add(1)
            .next_multiple_of(exact(block))
            .min(page_bytes)
    })
}

/// A record that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// Where the next may start.
    pub(crate) end: usize,
    previous: [u32; REDUNDANCY_MAX],
}

/// A page of linked records, being read.
pub(crate) struct Reader<'p> {
    page: &'p [u8],
    magic: u32,
    redundancy: usize,
    block_bytes: Option<u32>,
}

impl<'p> Reader<'p> {
    /// `None` if the page's records are not linked.
    pub(crate) fn new(page: &'p [u8], header: &PageHeader) -> Option<Self> {
        let Form::Linked {
            redundancy,
            block_bytes,
        } = header.form
        else {
            return None;
        };
        Some(Self {
            page,
            magic: header.record_magic,
            redundancy: redundancy.into(),
            block_bytes,
        })
    }

    pub(crate) fn head_len(&self) -> usize {
        self.redundancy
            .wrapping_mul(4)
            .wrapping_add(8)
            .next_multiple_of(ALIGN)
    }

    /// What looks like a record at a place: its magic number, and it ends within its block.
    fn head_at(&self, at: usize) -> Option<Found> {
        let head = self.page.get(at..at.wrapping_add(self.head_len()))?;
        let word = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let words = head.as_chunks::<4>().0;
        let len = exact::<usize>(word(&words[1]));
        if word(&words[0]) != self.magic ^ exact::<u32>(at) || len > RECORD_LEN_MAX {
            return None;
        }
        let end = at
            .wrapping_add(self.head_len())
            .wrapping_add(len.next_multiple_of(ALIGN));
        let mut previous = [0; REDUNDANCY_MAX];
        for (to, from) in previous.iter_mut().zip(&words[2..][..self.redundancy]) {
            *to = word(from);
        }
        let is_possible = end <= end_of_block(self.block_bytes, at, self.page.len())
            && addresses(&previous).all(|address| (PAGE_HEADER_LEN..at).contains(&address))
            && previous
                .windows(2)
                .all(|two| two[0] > two[1] || two == [0, 0]);
        is_possible.then_some(Found {
            at,
            len,
            end,
            previous,
        })
    }

    /// The records that can be found, by address, and the gaps between them: of each record, what is
    /// missing before it.
    pub(crate) fn records(&self) -> Vec<(Found, Option<Missing>)> {
        let (found, is_whole) = self.forward();
        let mut lost = BTreeSet::new();
        let found = if is_whole {
            found
        } else {
            self.beyond(found, &mut lost)
        };
        let mut after: Option<Found> = None;
        let mut records = Vec::with_capacity(found.len());
        for record in found {
            let missing = self.missing(after.as_ref(), &record, &lost);
            records.push((record, missing));
            after = Some(record);
        }
        records
    }

    /// From each place where a record must start to the next; after a lost one, to the first whose
    /// addresses agree with what is known. The second value: nothing was searched for.
    fn forward(&self) -> (Vec<Found>, bool) {
        let mut found = Vec::new();
        // Where records start, without a gap up to the last.
        let mut known = Vec::new();
        let mut is_whole = true;
        let mut at = PAGE_HEADER_LEN;
        while at.wrapping_add(self.head_len()) <= self.page.len() {
            let record = self.head_at(at).filter(|record| agrees(record, &known));
            if let Some(record) = record {
                known.push(at);
                found.push(record);
                at = record.end;
                continue;
            }
            // Lost, or nothing follows in this block.
            is_whole = false;
            let block_end = end_of_block(self.block_bytes, at, self.page.len());
            known.push(at);
            match self.search(at, block_end, &known) {
                Some(record) => {
                    let new = addresses(&record.previous).take_while(|&address| address > at);
                    let start = known.len();
                    known.extend(new);
                    known[start..].reverse();
                    at = record.at;
                }
                None => {
                    known.clear();
                    at = block_end;
                }
            }
        }
        (found, is_whole)
    }

    /// The first record after a lost one, at `lost`, that names it, and before it what is known.
    fn search(&self, lost: usize, block_end: usize, known: &[usize]) -> Option<Found> {
        if self.redundancy == 0 {
            return None;
        }
        let from = lost.wrapping_add(self.head_len());
        (from..block_end).step_by(ALIGN).find_map(|at| {
            let record = self.head_at(at)?;
            let names_lost = addresses(&record.previous).any(|address| address == lost);
            (names_lost && agrees(&record, known)).then_some(record)
        })
    }

    /// Records that the way forward did not reach: those that others name, and those that confirm each
    /// other. Puts the addresses where a record was and nothing is into `lost`.
    fn beyond(&self, found: Vec<Found>, lost: &mut BTreeSet<usize>) -> Vec<Found> {
        let mut open: BTreeSet<usize> = BTreeSet::new();
        for record in &found {
            open.extend(addresses(&record.previous));
        }
        let mut all: BTreeMap<usize, Found> =
            found.into_iter().map(|found| (found.at, found)).collect();
        self.named(&mut all, open, lost);
        if self.redundancy > 0 {
            let mut open = BTreeSet::new();
            for record in self.islands(&all) {
                open.extend(addresses(&record.previous));
                all.insert(record.at, record);
            }
            self.named(&mut all, open, lost);
        }
        all.into_values().collect()
    }

    /// Adds what lies at addresses that records name, and at those that these name.
    fn named(
        &self,
        all: &mut BTreeMap<usize, Found>,
        mut open: BTreeSet<usize>,
        lost: &mut BTreeSet<usize>,
    ) {
        while let Some(at) = open.pop_last() {
            if all.contains_key(&at) {
                continue;
            }
            let before = all.range(..at).next_back();
            let is_free = before.is_none_or(|(_, before)| before.end <= at);
            let next = all
                .range(at..)
                .next()
                .map_or(self.page.len(), |(&at, _)| at);
            let record = self.head_at(at).filter(|record| record.end <= next);
            match record.filter(|_| is_free && at.is_multiple_of(ALIGN)) {
                Some(record) => {
                    open.extend(addresses(&record.previous));
                    all.insert(at, record);
                }
                None => {
                    lost.insert(at);
                }
            }
        }
    }

    /// Records between two bursts, which no known record names: heads of which one names the other.
    /// Two magic numbers at their addresses are as unlikely by chance as a tag of 64 bits.
    fn islands(&self, all: &BTreeMap<usize, Found>) -> Vec<Found> {
        let starts = all.keys().copied().chain([self.page.len()]);
        let ends = [PAGE_HEADER_LEN]
            .into_iter()
            .chain(all.values().map(|found| found.end));
        let mut islands = Vec::new();
        for (start, end) in ends.zip(starts) {
            let heads = (start..end)
                .step_by(ALIGN)
                .filter_map(|at| self.head_at(at));
            let heads: Vec<Found> = heads.filter(|head| head.end <= end).collect();
            let is_head = |at: usize| heads.binary_search_by_key(&at, |head| head.at).is_ok();
            let named: BTreeSet<usize> = heads
                .iter()
                .flat_map(|head| addresses(&head.previous))
                .collect();
            let mut free = start;
            for head in &heads {
                let is_confirmed =
                    named.contains(&head.at) || addresses(&head.previous).any(is_head);
                if is_confirmed && head.at >= free {
                    free = head.end;
                    islands.push(*head);
                }
            }
        }
        islands
    }

    /// What is missing between two records, or before the first of a page.
    fn missing(
        &self,
        before: Option<&Found>,
        record: &Found,
        lost: &BTreeSet<usize>,
    ) -> Option<Missing> {
        let (end, address) = before.map_or((PAGE_HEADER_LEN, 0), |before| (before.end, before.at));
        if end == record.at {
            return None;
        }
        let named = &record.previous[..self.redundancy];
        if let Some(between) = named
            .iter()
            .position(|&named| exact::<usize>(named) == address)
        {
            return (between > 0).then_some(Missing::Exact(between as u64));
        }
        let seen = lost.range(end..record.at).count().max(self.redundancy);
        let between = record.at.saturating_sub(end);
        let max = between.div_euclid(self.head_len());
        Some(Missing::Between {
            min: seen.min(max) as u64,
            max: max as u64,
        })
    }
}

/// The addresses that a record names, nearest first.
fn addresses(previous: &[u32; REDUNDANCY_MAX]) -> impl Iterator<Item = usize> {
    let named = previous.iter().take_while(|&&address| address > 0);
    named.map(|&address| exact::<usize>(address))
}

/// Whether those of a record's addresses that are not after the last known start are the known ones.
fn agrees(record: &Found, known: &[usize]) -> bool {
    let Some(&last) = known.last() else {
        return true;
    };
    let mut named = addresses(&record.previous).skip_while(|&address| address > last);
    let mut expected = known.iter().rev().copied();
    loop {
        match (named.next(), expected.next()) {
            (Some(named), Some(expected)) if named != expected => return false,
            (Some(_), Some(_)) => {}
            _ => return true,
        }
    }
}
