//! Entries of lists, as records of a stream too.

use std::net::SocketAddr;

use strata_dta::event::listed::{Listed, ListedKind};
use strata_dta::protocol::{Datagram, Primitive, Report};
use strata_role::{Feed, FeedCounts, Result};

use crate::store::plan::{EntryKind, NamedList};

/// A stream that gets the entries that were accepted.
pub(crate) struct Streaming {
    /// `None` once it is finished.
    feed: Option<Box<dyn Feed>>,
    /// What became of records then.
    finished: FeedCounts,
    names: Vec<NamedList>,
    /// Entries of others are refused.
    lists: u64,
    /// The number of the next entry.
    number: u64,
    record: Vec<u8>,
}

impl Streaming {
    pub(crate) fn new(feed: Box<dyn Feed>, names: Vec<NamedList>, lists: u64) -> Self {
        Self {
            feed: Some(feed),
            finished: FeedCounts::default(),
            names,
            lists,
            number: 0,
            record: Vec::new(),
        }
    }

    /// Whether a datagram has entries of lists.
    #[inline(always)]
    pub(crate) fn wants(datagram: &[u8]) -> bool {
        Primitive::of(datagram) == Some(Primitive::Append)
    }

    /// Appends the entries of a datagram of which `accepted` were accepted. If it cannot be told
    /// which those are, they are lost.
    pub(crate) fn take(&mut self, reporter: SocketAddr, datagram: &[u8], accepted: u64) {
        let Ok(datagram) = Datagram::new_checked(datagram) else {
            return;
        };
        match datagram {
            Datagram::Packed(packet) => {
                let is_known = |report: &Report<'_>| match *report {
                    Report::Append { list, .. } => u64::from(list) < self.lists,
                    _ => false,
                };
                if packet.reports().filter(is_known).count() as u64 != accepted {
                    self.number += accepted;
                    if let Some(feed) = &mut self.feed {
                        feed.lose(accepted);
                    }
                } else if accepted > 0 {
                    packet
                        .reports()
                        .for_each(|report| self.put(reporter, &report));
                }
            }
            Datagram::Published(packet) => {
                if let (1, Ok(report)) = (accepted, packet.report()) {
                    self.put(reporter, &report);
                }
            }
        }
    }

    fn put(&mut self, reporter: SocketAddr, report: &Report<'_>) {
        let Report::Append { list, data } = *report else {
            return;
        };
        if u64::from(list) >= self.lists {
            return;
        }
        let named = self.names.iter().find(|named| named.number == list);
        let kind = named.map_or(EntryKind::Bytes, |named| named.entries);
        self.record.clear();
        let listed = Listed {
            kind: match kind {
                EntryKind::Bytes => ListedKind::Bytes,
                EntryKind::NodeEvent => ListedKind::NodeEvent,
                EntryKind::FlowEvent => ListedKind::FlowEvent,
            },
            list,
            number: self.number,
            reporter: Some(reporter.ip()).filter(|address| !address.is_unspecified()),
            entry: data,
        };
        listed.emit(&mut self.record);
        self.number += 1;
        // What cannot be taken is counted there, and leaves a gap in the numbers.
        if let Some(feed) = &mut self.feed {
            let _ = feed.put(&self.record);
        }
    }

    pub(crate) fn counts(&self) -> FeedCounts {
        let feed = self.feed.as_ref();
        feed.map_or(self.finished, |feed| feed.counts())
    }

    /// Has everything written.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if let Some(feed) = self.feed.take() {
            self.finished = feed.finish()?;
        }
        Ok(())
    }
}
