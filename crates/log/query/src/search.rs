//! Which packets there are of which flows, of both tiers, without putting packets together: from
//! the rows of compacted packets, and the records of blocks.
//!
//! A log is searched piece by piece: a row group of a part, or a few blocks of a file. Threads take
//! the next piece, and the caller gets what each found: first in one piece, then now and then in
//! several, in no particular order.

mod blocks;
mod counted;
mod groups;
mod outline;
mod pieces;
mod rows;
mod seen;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use strata_archive::ArchiveError;
use strata_archive::parts::Amounts;
use strata_store::{Log, Recording};
use strata_wire::{FlowKey, LinkType};

use crate::parts::find::Find;

use pieces::{Piece, Pieces};

pub use outline::{Outline, outline};

/// How often the caller hears of a search that has found nothing new.
const NEWS: Duration = Duration::from_millis(100);
/// When a thread hands over what it has found: after its first piece, after this, then after twice as
/// long each time, up to the second, since putting together what several threads found of a flow takes
/// as long as finding it.
const HAND_OVER: Duration = Duration::from_millis(200);
const HAND_OVER_MAX: Duration = Duration::from_secs(1);

/// Class, granularity and reason of packets, and the model that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label<'a> {
    /// The first recording with the same models, which says what a reason's leaves are.
    pub recording: u32,
    /// The class.
    pub class: &'a str,
    /// How much was kept.
    pub granularity: &'a str,
    /// Why, as in an export's comments.
    pub reason: &'a str,
}

/// Packets that are stored one after another and have one flow, direction and label.
#[derive(Clone, Copy, Debug)]
pub struct FoundRun<'a> {
    /// Their flow; the ports of what is not IP are 0.
    pub flow: FlowKey,
    /// Whether they go from the flow's low to its high endpoint.
    pub low_to_high: bool,
    /// What [`TakeFound::label`] returned for their label.
    pub label: usize,
    /// One at least.
    pub packets: &'a [FoundPacket],
}

/// A packet of a log, as far as its row or record tells.
#[derive(Clone, Copy, Debug)]
pub struct FoundPacket {
    /// Arrival, ns.
    pub ts_ns: u64,
    /// Bytes on the wire.
    pub wire_bytes: u32,
    /// Bytes kept.
    pub kept_bytes: u32,
    /// The class's share of the trees, if these decided.
    pub score: Option<f32>,
}

/// What packets of a label come to.
#[derive(Clone, Copy, Debug)]
pub struct FoundCounts {
    /// Packets, bytes on the wire, bytes kept.
    pub amounts: Amounts,
    /// No packet is earlier than the one or later than the other, ns.
    pub span_ns: [u64; 2],
}

/// What packets of a class and granularity come to in a short time.
#[derive(Clone, Copy, Debug)]
pub struct FoundPoint<'a> {
    /// Their class.
    pub class: &'a str,
    /// How much was kept of them.
    pub granularity: &'a str,
    /// When the time begins, ns.
    pub from_ns: u64,
    /// Packets, bytes on the wire, bytes kept.
    pub amounts: Amounts,
}

/// A flow with what its packets come to.
#[derive(Clone, Copy, Debug)]
pub struct FoundFlow<'a> {
    /// The flow; the ports of what is not IP are 0.
    pub flow: FlowKey,
    /// Whether its first packet went from its low to its high endpoint.
    pub from_low: bool,
    /// From the low endpoint, and from the high one.
    pub packets: [u64; 2],
    /// Arrival of the first one, ns.
    pub first_ns: u64,
    /// Arrival of the last one, ns.
    pub last_ns: u64,
    /// Bytes on the wire.
    pub wire_bytes: u64,
    /// Bytes kept.
    pub kept_bytes: u64,
    /// The highest score.
    pub score: Option<f32>,
    /// Packets by class.
    pub classes: &'a [(String, u64)],
}

/// Takes what pieces of a log hold.
pub trait TakeFound {
    /// Numbers a label.
    fn label(&mut self, label: &Label<'_>) -> usize;

    /// Hears of a flow whose packets come soon, but not next: time to fetch what is known of it.
    fn soon(&mut self, _flow: &FlowKey) {}

    /// Takes packets. Those of one flow come together as far as they are stored together.
    fn packets(&mut self, run: &FoundRun<'_>);

    /// Takes packets of a label of which only the sums are told, to a search that does with counts
    /// ([`Search::points_ns`]). The next two say what these packets are by time, and by flow.
    fn counted(&mut self, label: usize, counts: &FoundCounts);

    /// Takes what counted packets come to by time.
    fn counted_point(&mut self, point: &FoundPoint<'_>);

    /// Takes what counted packets come to by flow.
    fn counted_flow(&mut self, flow: &FoundFlow<'_>);

    /// A name that a flow's packets tell: of a TLS server, an HTTP host or DNS.
    fn name(&mut self, flow: &FlowKey, name: &str);

    /// A damaged place, which is skipped.
    fn damage(&mut self, problem: String);

    /// Packets that cannot be read without a key.
    fn encrypted(&mut self, packets: u64);
}

/// Whether a packet is wanted, by link type, bytes kept and wire length.
pub type Matches<'a> = dyn FnMut(LinkType, &[u8], u32) -> bool + 'a;

/// A search.
pub struct Search<'a, 'm> {
    /// What is wanted.
    pub find: Find<'a>,
    /// Makes what decides, for each thread, where the filter of `find` is not decided by the flow.
    pub matches: &'a (dyn Fn() -> Box<Matches<'m>> + Sync),
    /// Whether the rest is still wanted.
    pub goes_on: &'a (dyn Fn() -> bool + Sync),
    /// If counts of packets do: where all packets of a row group are wanted, what is written about
    /// them is told, by times of which this many ns are a multiple. The packets are told as ever where
    /// nothing was written.
    pub points_ns: Option<u64>,
    /// How many threads read.
    pub threads: usize,
}

impl std::fmt::Debug for Search<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Search")
            .field("find", &self.find)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// What is the same for all threads of a search.
struct Searching<'a> {
    log: &'a Log,
    find: Find<'a>,
    points_ns: Option<u64>,
    goes_on: &'a (dyn Fn() -> bool + Sync),
    ended: AtomicBool,
}

impl Searching<'_> {
    /// The first recording with the same model.
    fn model_of(&self, recording: u32) -> u32 {
        let recordings = self.log.recordings();
        let models = |one: &Recording| {
            let shadow = one.shadow.as_ref().map(|shadow| shadow.model_crc);
            (one.model_crc, shadow)
        };
        let own = recordings.iter().find(|one| one.id == recording);
        let same = own.and_then(|own| recordings.iter().find(|one| models(one) == models(own)));
        same.map_or(recording, |first| first.id)
    }

    fn goes_on(&self) -> bool {
        !self.ended.load(Ordering::Relaxed) && (self.goes_on)()
    }
}

/// Searches a log. Of compacted packets, only those are put together of whose flow the filter is not
/// decided. `take` gets what `new` made once it has taken some pieces, and the share of the log that was
/// searched, from 0 to 1; now and then nothing new; it breaks if the rest is not wanted.
///
/// Memory: for each thread, the columns of a row group or a few blocks, and what `new` made; the
/// packets of a flow.
///
/// # Errors
///
/// If the log cannot be read.
pub fn search<T: TakeFound + Send>(
    log: &Log,
    search: &Search<'_, '_>,
    new: &(dyn Fn() -> T + Sync),
    take: &mut dyn FnMut(Option<T>, f64) -> ControlFlow<()>,
) -> Result<(), ArchiveError> {
    let counts = search.points_ns.is_some();
    let pieces = Pieces::of(log, search.find, counts)?;
    let all = pieces.all_bytes;
    let pieces = Mutex::new(pieces);
    let searching = Searching {
        log,
        find: search.find,
        points_ns: search.points_ns,
        goes_on: search.goes_on,
        ended: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        // Nothing waits: what has been found is as large as what is being found.
        let (send, found) = sync_channel(0);
        for _ in 0..search.threads.max(1) {
            let send = send.clone();
            let (searching, pieces) = (&searching, &pieces);
            let work = move || {
                let mut matches = (search.matches)();
                searches(searching, pieces, &mut *matches, new, &send);
            };
            let named = thread::Builder::new().name("strata-search".into());
            let started = named.spawn_scoped(scope, work);
            started.map_err(|source| ArchiveError::Io {
                file: String::from("a thread that searches the log"),
                action: "start",
                source,
            })?;
        }
        drop(send);
        let mut done = 0.0;
        let ended = loop {
            let (piece, bytes) = match found.recv_timeout(NEWS) {
                Ok(Ok((piece, bytes))) => (Some(piece), bytes),
                Ok(Err(error)) => break Err(error),
                Err(RecvTimeoutError::Timeout) => (None, 0.0),
                Err(RecvTimeoutError::Disconnected) => break Ok(()),
            };
            done += bytes;
            let share = if all > 0.0 { done / all } else { 1.0 };
            if take(piece, share.min(1.0)).is_break() {
                break Ok(());
            }
        };
        searching.ended.store(true, Ordering::Relaxed);
        ended
    })
}

/// What a thread found in some pieces, and their bytes.
type News<T> = Result<(T, f64), ArchiveError>;

fn searches<T: TakeFound>(
    searching: &Searching<'_>,
    pieces: &Mutex<Pieces<'_>>,
    matches: &mut Matches<'_>,
    new: &(dyn Fn() -> T + Sync),
    send: &SyncSender<News<T>>,
) {
    let (mut found, mut searched) = (new(), 0.0);
    let (mut since, mut wait) = (Instant::now(), Duration::ZERO);
    while searching.goes_on() {
        let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((piece, bytes)) = next else {
            break;
        };
        if let Err(error) = of_piece(searching, piece, matches, &mut found) {
            let _ = send.send(Err(error));
            return;
        }
        searched += bytes;
        if since.elapsed() >= wait {
            let so_far = std::mem::replace(&mut found, new());
            if send
                .send(Ok((so_far, std::mem::take(&mut searched))))
                .is_err()
            {
                return;
            }
            since = Instant::now();
            wait = (wait * 2).clamp(HAND_OVER, HAND_OVER_MAX);
        }
    }
    // A caller that has left takes nothing.
    let _ = send.send(Ok((found, searched)));
}

/// Searches a piece.
fn of_piece(
    searching: &Searching<'_>,
    piece: Piece<'_>,
    matches: &mut Matches<'_>,
    found: &mut dyn TakeFound,
) -> Result<(), ArchiveError> {
    match piece {
        Piece::Group(part, group) => counted::of_group(searching, &part, group, matches, found),
        Piece::Blocks(recording, file, numbers) => {
            return blocks::of_blocks(searching, (recording, file), numbers, matches, found);
        }
        Piece::Encrypted(packets) => found.encrypted(packets),
        Piece::Damaged(problem) => found.damage(problem),
        Piece::Failed(error) => return Err(error),
    }
    Ok(())
}

fn is_within(find: &Find<'_>, ts_ns: u64) -> bool {
    find.from_ns.is_none_or(|from| ts_ns >= from) && find.to_ns.is_none_or(|to| ts_ns < to)
}
