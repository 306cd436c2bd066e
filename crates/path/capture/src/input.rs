//! Several capture files read as one, merged in time order.

mod batch;

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::path::PathBuf;

use strata_wire::Meta;

pub use crate::file::{InputOptions, InputSource};

use crate::error::{CaptureError, Warning};
use crate::file::{Filled, InterfaceIds, Source};
use crate::packet::{BATCH_MAX, Descriptor};
pub use batch::{Batch, BatchIter};

/// What [`Input::advance`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// At least one packet is in [`Input::batch`].
    Packets,
    /// Something the file says about itself; the batch is empty.
    Meta(Meta),
    /// Every input has been read to its end; the batch is empty.
    End,
}

/// One or many capture files as one sequence of packets.
///
/// Several inputs are merged by the timestamps of their next packets; of equal ones the input named
/// first goes first. Each input keeps its own order, even where its times run backwards. A packet
/// without a timestamp goes as soon as it is its input's next. What files hold in addition to
/// packets comes in each file's order, and may precede earlier packets of other inputs.
///
/// Memory: one window per input ([`InputOptions::window_bytes`]) and 40 bytes
/// for each of [`BATCH_MAX`] packets.
pub struct Input {
    sources: Vec<Source>,
    ids: InterfaceIds,
    /// `None` for a single input, whose own queue is the batch.
    merge: Option<Merge>,
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input")
            .field("sources", &self.sources.len())
            .field("packets", &self.batch().len())
            .finish_non_exhaustive()
    }
}

impl Input {
    /// Opens the files and reads their headers. `-` is standard input.
    ///
    /// # Errors
    /// If a file cannot be opened, or is not a supported capture file.
    pub fn open(paths: &[PathBuf], options: &InputOptions) -> Result<Self, CaptureError> {
        let files = paths.iter().cloned().map(InputSource::File);
        Self::of(files.collect(), options)
    }

    /// As [`Input::open`], also of readers.
    ///
    /// # Errors
    /// As [`Input::open`].
    pub fn of(inputs: Vec<InputSource>, options: &InputOptions) -> Result<Self, CaptureError> {
        const MAX: usize = u16::MAX as usize;
        if inputs.is_empty() {
            return Err(CaptureError::NoInput);
        }
        if inputs.len() > MAX {
            return Err(CaptureError::TooManyInputs {
                count: inputs.len(),
                max: MAX,
            });
        }
        let is_standard = |input: &&InputSource| matches!(input, InputSource::File(path) if path.as_os_str() == "-");
        if inputs.iter().filter(is_standard).count() > 1 {
            return Err(CaptureError::StandardInputTwice);
        }
        let sources = (0u16..)
            .zip(inputs)
            .map(|(index, input)| Source::open(input, index, options))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            merge: (sources.len() > 1).then(|| Merge::new(sources.len())),
            sources,
            ids: InterfaceIds::default(),
        })
    }

    /// Whether all inputs come as other programs write them, by pipes, sockets or devices. Once
    /// [`InputOptions::stop`] is set, such inputs end behind what has arrived.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.sources.iter().all(Source::is_live)
    }

    /// Bytes of all inputs together; `None` if one is compressed, or no regular file.
    #[must_use]
    pub fn plain_bytes(&self) -> Option<u64> {
        let sum = |sum: u64, source: &Source| Some(sum.saturating_add(source.plain_bytes()?));
        self.sources.iter().try_fold(0, sum)
    }

    /// Takes one step: to the next packets, the next thing that is not a packet, or the end. The
    /// batch of the previous step is gone.
    ///
    /// # Errors
    /// If an input is damaged or cannot be read any further. Its packets before that place were
    /// delivered. Of several inputs the others are read to their ends first; then each call returns
    /// an error, until all are returned.
    pub fn advance(&mut self) -> Result<Next, CaptureError> {
        match &mut self.merge {
            Some(merge) => merge.advance(&mut self.sources, &mut self.ids),
            None => self.sources[0].fill(&mut self.ids).map(Next::from),
        }
    }

    /// The packets of the last step; empty after anything but [`Next::Packets`]. Valid until the
    /// next step.
    #[inline]
    #[must_use]
    pub fn batch(&self) -> Batch<'_> {
        Batch {
            descriptors: match &self.merge {
                Some(merge) => &merge.batch,
                None => self.sources[0].queue(),
            },
            sources: &self.sources,
            only: match &self.sources[..] {
                [source] => Some(source.window_bytes()),
                _ => None,
            },
        }
    }

    /// What has been odd so far, by input.
    pub fn warnings(&self) -> impl Iterator<Item = &Warning> {
        self.sources.iter().flat_map(Source::warnings)
    }

    /// As [`warnings`](Self::warnings), but forgets them.
    pub fn take_warnings(&mut self) -> Vec<Warning> {
        self.sources
            .iter_mut()
            .flat_map(Source::take_warnings)
            .collect()
    }
}

impl From<Filled> for Next {
    fn from(filled: Filled) -> Self {
        match filled {
            Filled::Packets => Self::Packets,
            Filled::Meta(meta) => Self::Meta(meta),
            Filled::End => Self::End,
        }
    }
}

/// The merging of several sources.
///
/// A batch borrows from the sources' windows, and a source that runs out of described packets needs
/// its window for the next ones: a batch ends there.
struct Merge {
    batch: Vec<Descriptor>,
    /// By source: the next packet in its queue.
    taken: Vec<usize>,
    /// Time of the next packet, and source: for every source that has one.
    heads: BinaryHeap<Reverse<(u64, u16)>>,
    /// Sources whose queue is used up; the last is filled first.
    dry: Vec<u16>,
    /// Why sources ended early, in this order: at most one each.
    failed: VecDeque<CaptureError>,
}

impl Merge {
    fn new(sources: usize) -> Self {
        let indices = 0..u16::try_from(sources).expect("the number of inputs was checked");
        Self {
            batch: Vec::with_capacity(BATCH_MAX),
            taken: vec![0; sources],
            heads: BinaryHeap::with_capacity(sources),
            dry: indices.rev().collect(),
            failed: VecDeque::new(),
        }
    }

    fn advance(
        &mut self,
        sources: &mut [Source],
        ids: &mut InterfaceIds,
    ) -> Result<Next, CaptureError> {
        self.batch.clear();
        while let Some(&index) = self.dry.last() {
            let source = &mut sources[usize::from(index)];
            match source.fill(ids) {
                Ok(Filled::Packets) => {
                    self.taken[usize::from(index)] = 0;
                    self.heads.push(Reverse((source.queue()[0].ts_ns, index)));
                }
                Ok(Filled::End) => {}
                Ok(Filled::Meta(meta)) => return Ok(Next::Meta(meta)),
                Err(error) => self.failed.push_back(error),
            }
            self.dry.pop();
        }
        self.take(sources);
        if !self.batch.is_empty() {
            return Ok(Next::Packets);
        }
        self.failed.pop_front().map_or(Ok(Next::End), Err)
    }

    /// Takes packets in order until the batch is full or a source runs dry.
    fn take(&mut self, sources: &[Source]) {
        while self.batch.len() < BATCH_MAX {
            let Some(mut head) = self.heads.peek_mut() else {
                return;
            };
            let Reverse((ts_ns, index)) = &mut *head;
            let index = *index;
            let queue = sources[usize::from(index)].queue();
            let taken = &mut self.taken[usize::from(index)];
            self.batch.push(queue[*taken]);
            // Of a queue of BATCH_MAX.
            *taken = taken.wrapping_add(1);
            match queue.get(*taken) {
                Some(next) => *ts_ns = next.ts_ns,
                None => {
                    PeekMut::pop(head);
                    self.dry.push(index);
                    return;
                }
            }
        }
    }
}
