//! Grouped packet vectors of what a worker records, for those who are attached to the recording.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_control::vectors::{DATAGRAM_BYTES, Subscriber, Subscribers};
use strata_gpv::format::datagram::DatagramWriter;
use strata_gpv::{Cache, Columns, Full, Packet, Parameters, Seen, Vector};
use strata_pipeline::{Tap, Tapped, TappedHeaders, wire_bytes};
use strata_wire::{AddressFamily, exact};

/// Packets that go through the cache together.
const BATCH: usize = 256;
/// How long packets wait in the cache at most.
const FLUSH_EVERY: Duration = Duration::from_millis(500);

/// A worker's cache, which exists only while a client is attached.
///
/// Memory meanwhile: 6 MB for the cache, 16 KiB for each subscriber.
pub struct VectorTap {
    subscribers: Arc<Subscribers>,
    /// Number of the worker.
    number: u32,
    seed: u64,
    /// Of the list of subscribers that `feeds` is.
    version: u64,
    feeds: Vec<Feed>,
    cache: Option<Box<Cache<Full>>>,
    batch: Vec<Packet>,
    flushed: Instant,
}

/// What goes to a subscriber.
struct Feed {
    to: Arc<Subscriber>,
    writer: DatagramWriter,
}

impl fmt::Debug for VectorTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VectorTap")
            .field("number", &self.number)
            .field("feeds", &self.feeds.len())
            .finish_non_exhaustive()
    }
}

impl VectorTap {
    /// The tap of the worker with this number.
    pub fn new(subscribers: &Arc<Subscribers>, number: u32, seed: u64) -> Self {
        Self {
            subscribers: Arc::clone(subscribers),
            number,
            seed,
            version: 0,
            feeds: Vec::new(),
            cache: None,
            batch: Vec::new(),
            flushed: Instant::now(),
        }
    }

    fn push(&mut self) {
        let feeds = &mut self.feeds;
        if let Some(cache) = &mut self.cache {
            cache.push(&self.batch, &mut |vector: &Vector<'_, Full>| {
                give(feeds, vector);
            });
        }
        self.batch.clear();
    }

    /// Sends everything that the cache holds.
    fn flush(&mut self) {
        self.push();
        let feeds = &mut self.feeds;
        if let Some(cache) = &mut self.cache {
            cache.flush(&mut |vector: &Vector<'_, Full>| give(feeds, vector));
        }
        for Feed { to, writer } in &mut self.feeds {
            writer.finish(|datagram| to.send(datagram));
        }
        self.flushed = Instant::now();
    }

    /// Follows the list of subscribers. What came before goes to those who were there, and only to
    /// them.
    fn change(&mut self) {
        self.flush();
        let wanted = self.subscribers.list();
        self.feeds
            .retain(|feed| wanted.iter().any(|to| Arc::ptr_eq(to, &feed.to)));
        for Feed { to, writer } in &mut self.feeds {
            // What it has begun was sent above.
            let columns = Columns(to.columns() | 1);
            writer.reshape(columns, DATAGRAM_BYTES, |datagram| to.send(datagram));
        }
        for to in wanted {
            if !self.feeds.iter().any(|feed| Arc::ptr_eq(&to, &feed.to)) {
                let columns = Columns(to.columns() | 1);
                let writer = DatagramWriter::new(self.number, columns, DATAGRAM_BYTES);
                self.feeds.push(Feed { to, writer });
            }
        }
        if self.feeds.is_empty() {
            self.cache = None;
            self.batch = Vec::new();
        } else if self.cache.is_none() {
            let cache = Cache::new(Parameters::PAPER, self.seed);
            self.cache = Some(Box::new(
                cache.expect("the paper's parameters make a cache"),
            ));
        }
    }
}

/// Gives a vector to all. One that fits into no datagram takes a number, so it is counted as lost;
/// vectors of this cache fit.
fn give(feeds: &mut [Feed], vector: &Vector<'_, Full>) {
    for Feed { to, writer } in feeds {
        let _ = writer.put(vector, |datagram| to.send(datagram));
    }
}

impl Tap for VectorTap {
    fn is_wanted(&mut self) -> bool {
        let version = self.subscribers.version();
        if version != self.version {
            self.version = version;
            self.change();
        }
        if self.feeds.is_empty() {
            return false;
        }
        if self.flushed.elapsed() >= FLUSH_EVERY {
            self.flush();
        }
        true
    }

    fn take(&mut self, tapped: &Tapped<'_>) {
        let packet = &tapped.packet;
        let seen = Seen {
            ts_ns: packet.ts_ns,
            wire_len: exact(wire_bytes(packet)),
            ingress: packet.interface,
        };
        let features = match tapped.headers {
            TappedHeaders::Plain(plain) => Some(Packet::plain(plain, packet.data, seen)),
            TappedHeaders::Other(headers) => Packet::read(headers, packet.data, seen),
        };
        let Some(features) = features.filter(|f| f.key.family() != AddressFamily::Mac) else {
            return;
        };
        let class = tapped.class;
        self.batch.push(Packet { class, ..features });
        if self.batch.len() >= BATCH {
            self.push();
        }
    }

    fn finish(&mut self) {
        self.flush();
        for Feed { to, writer } in self.feeds.drain(..) {
            to.ended(self.number, writer.next_seq());
        }
        self.cache = None;
    }
}
