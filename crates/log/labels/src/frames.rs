//! Labels by packet number.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::cells::{Columns, rows};
use crate::error::{ContentError, LineError, UsageError};
use crate::label::{Classes, Label};

/// Labels by packet number.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    labels: HashMap<u64, Label>,
    /// The highest number, and its line.
    last: (u64, u64),
    /// Lines that repeat the label of a frame.
    repeated: u64,
}

impl Frames {
    /// CSV with `frame`, `label` and, if need be, `source`.
    pub(crate) fn read(
        text: &str,
        columns: &Columns,
        classes: &mut Classes,
    ) -> Result<Self, ContentError> {
        let (frame, label) = (columns.need(&["frame"])?, columns.need(&["label"])?);
        let source = columns.find(&["source"]);
        let mut frames = Self::default();
        for row in rows(text) {
            let (line, row) = row?;
            let number = row.get(frame).unwrap_or("");
            let label = classes.label(row.get(label).unwrap_or(""));
            let mut label = label.map_err(|error| LineError::from(error).at(line))?;
            let source = source.and_then(|column| row.get(column));
            if let (Some(label), Some(source)) = (&mut label, source) {
                source.clone_into(&mut label.source);
            }
            let added = frames.add(number, line, label);
            added.map_err(|error| error.at(line))?;
        }
        Ok(frames)
    }

    fn add(&mut self, number: &str, line: u64, label: Option<Label>) -> Result<(), LineError> {
        let frame: u64 = number.parse().map_err(|source| LineError::Frame {
            text: number.to_owned(),
            source,
        })?;
        if frame == 0 {
            return Err(LineError::FrameZero);
        }
        self.last = self.last.max((frame, line));
        // Lines without a label are counted where labels are read.
        let Some(label) = label else { return Ok(()) };
        match self.labels.entry(frame) {
            Entry::Vacant(vacant) => drop(vacant.insert(label)),
            Entry::Occupied(known) if *known.get() == label => self.repeated += 1,
            Entry::Occupied(known) => {
                return Err(LineError::FrameTwice {
                    frame,
                    here: label,
                    before: known.get().clone(),
                });
            }
        }
        Ok(())
    }

    pub(crate) fn of(&self, frame: u64) -> Option<&Label> {
        self.labels.get(&frame)
    }

    /// Lines that repeat the label of a packet; an error if labels name packets beyond the end of a
    /// capture of this many.
    pub(crate) fn repeated(&self, packets: u64) -> Result<u64, UsageError> {
        let (frame, line) = self.last;
        if frame > packets {
            let beyond = self.labels.keys().filter(|frame| **frame > packets);
            return Err(UsageError::Beyond {
                line,
                frame,
                packets,
                beyond: beyond.count(),
                labels: self.labels.len(),
            });
        }
        Ok(self.repeated)
    }
}
