//! What a recording says when it has deleted files to make room: written here, and read here again by those who
//! add up what a log says.

use std::fmt;

use jiff::Timestamp;
use strata_wire::{count_of, grouped, human_bytes};

use super::Pruned;

/// Files that a recording deleted to make room, once or several times. Displayed as it says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomMade {
    /// Block files, with those of which protected packets are kept.
    pub block_files: u64,
    /// Those of which protected packets are kept.
    pub split: u64,
    /// Compacted parts.
    pub parts: u64,
    /// Packets in all of them.
    pub packets: u64,
    /// Bytes that this freed; 0 in what was parsed.
    pub bytes: u64,
    /// When the newest of the packets arrived, if any did.
    pub newest: Option<Timestamp>,
}

/// The end of the line that a manifest has, after their number, for the events that it does not keep.
pub const EARLIER_EVENTS: &str = "earlier events are only in the journal";

const NEWEST: &str = ", the newest from ";
const PURPOSE: &str = "to make room on the disk";

impl RoomMade {
    /// What a text says that is displayed here, or was by an older version; `None` for other texts.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (files, rest) = text.strip_prefix("deleted ")?.split_once(" block file")?;
        let (_, rest) = rest.split_once(" and ")?;
        let (parts, rest) = rest.split_once(" compacted part")?;
        let (_, rest) = rest.split_once(" with ")?;
        let (packets, rest) = rest.split_once(" packet")?;
        let newest = rest.split_once(NEWEST).and_then(|(_, rest)| {
            let (time, _) = rest.split_once(',')?;
            time.parse().ok()
        });
        let number = |text: &str| text.replace(',', "").parse::<u64>().ok();
        rest.contains(PURPOSE).then_some(Self {
            block_files: number(files)?,
            split: 0,
            parts: number(parts)?,
            packets: number(packets)?,
            bytes: 0,
            newest,
        })
    }

    /// Both together.
    #[must_use]
    pub fn and(self, more: Self) -> Self {
        Self {
            block_files: self.block_files.saturating_add(more.block_files),
            split: self.split.saturating_add(more.split),
            parts: self.parts.saturating_add(more.parts),
            packets: self.packets.saturating_add(more.packets),
            bytes: self.bytes.saturating_add(more.bytes),
            newest: self.newest.max(more.newest),
        }
    }
}

impl From<&Pruned> for RoomMade {
    fn from(pruned: &Pruned) -> Self {
        let newest = pruned.newest_ns.and_then(|ns| {
            let seconds = i64::try_from(ns / 1_000_000_000).ok()?;
            Timestamp::from_second(seconds).ok()
        });
        Self {
            block_files: pruned.block_files.saturating_add(pruned.split),
            split: pruned.split,
            parts: pruned.parts,
            packets: pruned.packets,
            bytes: pruned.bytes,
            newest,
        }
    }
}

impl fmt::Display for RoomMade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deleted {}", count_of(self.block_files, "block file"))?;
        if self.split > 0 {
            let split = grouped(self.split);
            write!(
                f,
                " (packets that policies protect in {split} of them are kept)"
            )?;
        }
        write!(
            f,
            " and {} with {}",
            count_of(self.parts, "compacted part"),
            count_of(self.packets, "packet"),
        )?;
        if let Some(newest) = self.newest {
            write!(f, "{NEWEST}{newest}")?;
        }
        write!(f, ", {}, {PURPOSE}", human_bytes(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read_again() {
        let mut made = RoomMade {
            block_files: 1,
            split: 0,
            parts: 1_200,
            packets: 1_234_567,
            bytes: 9_000_000,
            newest: Some("2026-01-31T13:05:00Z".parse().unwrap()),
        };
        let text = made.to_string();
        assert_eq!(
            text,
            "deleted 1 block file and 1,200 compacted parts with 1,234,567 packets, \
             the newest from 2026-01-31T13:05:00Z, 9.0 MB, to make room on the disk"
        );
        made.bytes = 0;
        assert_eq!(RoomMade::parse(&text), Some(made));
        (made.split, made.newest) = (1, None);
        let read = RoomMade::parse(&made.to_string()).unwrap();
        assert_eq!(read, RoomMade { split: 0, ..made });
    }

    #[test]
    fn older_texts_are_read_and_others_are_not() {
        let old = "deleted 3 block files (packets that policies protect in 1 of them are kept) \
                   and 0 compacted parts with 1,000 packets, 2.0 MB, to make room on the disk";
        let read = RoomMade::parse(old).unwrap();
        assert_eq!((read.block_files, read.parts, read.packets), (3, 0, 1_000));
        for other in [
            "",
            "deleted 3 block files",
            "mode log-all: the disk is full",
        ] {
            assert_eq!(RoomMade::parse(other), None, "{other}");
        }
    }
}
