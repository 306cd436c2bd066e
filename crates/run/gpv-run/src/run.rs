//! Packets into vectors, and those to files, rings and streams, and over UDP. The caller gives the packets,
//! and ends each batch of them.

mod grouping;
mod listed;
mod outlets;

use std::time::{Duration, Instant};

use strata_capture::PacketRef;
use strata_gpv::format::datagram::{LEN_MAX, LEN_MIN};
use strata_gpv::{CacheCounters, Columns, Packet, Parameters};
use strata_role::sandbox::Reach;
use strata_role::{Notice, Tell};
use strata_wire::LinkType;

use self::grouping::Grouping;
use self::outlets::{Outlets, TARGETS_MAX};
use crate::error::{Result, VectorError};
use crate::features::{Counted, Features, Matches};
use crate::form::Form;

pub use self::listed::{ParseTargets, Target, TargetList};
pub use self::outlets::{OutletsSpec, RingSpec, VectorFile};

/// Packets that go through the cache together.
const BATCH: usize = 256;
/// How often control packets are read.
const CONTROL_EVERY: Duration = Duration::from_millis(20);
/// How often peers hear of the cache, also if it has nothing for them.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);

/// A run that groups packets into vectors, and the destinations of the vectors.
#[derive(Debug)]
pub struct VectorRunSpec {
    /// The form of vectors.
    pub form: Form,
    /// The size of the cache.
    pub parameters: Parameters,
    /// The columns of vectors. Only for the form strata.
    pub columns: Columns,
    /// Maximum bytes of a datagram.
    pub datagram_max: usize,
    /// The destinations of vectors.
    pub outlets: OutletsSpec,
    /// The run ends after this number of packets.
    pub packets_max: Option<u64>,
    /// Given if interfaces are captured; `None` for capture files, whose packets can wait.
    pub live: Option<LiveVectors>,
}

/// A live capture.
#[derive(Clone, Debug)]
pub struct LiveVectors {
    /// Names of the interfaces.
    pub interfaces: String,
    /// The maximum time that a packet waits in the cache; `None`: no limit.
    pub flush_after: Option<Duration>,
}

/// What became of packets.
#[derive(Debug)]
pub struct VectorRunOutcome {
    /// The counters of the cache.
    pub cache: CacheCounters,
    /// Packets that are in no vector, or incomplete in one.
    pub counted: Counted,
    /// Slots that agents requested to flush.
    pub slots_asked: u64,
    /// The destinations of vectors: UDP, a file, a ring, a stream.
    pub to: Vec<SentTo>,
}

/// Vectors, datagrams and bytes for one destination.
#[derive(Debug)]
pub struct SentTo {
    /// Its name.
    pub name: String,
    /// Vectors.
    pub vectors: u64,
    /// Vectors that its rules do not choose.
    pub not_chosen: u64,
    /// Vectors that the form, or a datagram, cannot hold.
    pub not_carried: u64,
    /// Datagrams with these vectors.
    pub datagrams: u64,
    /// Bytes of these datagrams.
    pub bytes: u64,
    /// Datagrams that were not sent.
    pub unsent: u64,
    /// Why the first of these was not sent.
    pub error: Option<std::io::Error>,
}

/// A run: puts packets into the cache, and sends the cache's vectors to their destinations.
pub struct VectorRun {
    features: Features,
    grouping: Grouping,
    outlets: Outlets,
    batch: Vec<Packet>,
    left: Option<u64>,
    cache_slots: u32,
    /// Of interfaces.
    live: Option<Live>,
    tell: Tell,
    /// The source could be opened.
    has_begun: bool,
}

/// What is done as time goes by.
struct Live {
    interfaces: String,
    in_turn: Option<SlotsInTurn>,
    /// Slots that agents asked to be flushed, and when they were last listened to.
    asked: u64,
    control_at: Instant,
    announced_at: Instant,
}

impl VectorRun {
    /// Opens the sockets, and checks that the files can be made.
    ///
    /// # Errors
    ///
    /// If the spec is impossible, a destination cannot be sent to, or a file cannot be written.
    pub fn open(spec: VectorRunSpec, tell: Tell) -> Result<Self> {
        let (parameters, columns, room) = (spec.parameters, spec.columns, spec.datagram_max);
        let length = usize::from(parameters.narrow) + usize::from(parameters.wide);
        let longest = spec.form.longest(length, columns);
        if !(LEN_MIN..=LEN_MAX).contains(&room) || longest > room {
            return Err(VectorError::Refused(format!(
                "--datagram-max {room}: from {} to {LEN_MAX} are allowed with vectors of {length} \
                 packets; shorter vectors (--narrow, --wide) or fewer --columns need less",
                longest.max(LEN_MIN),
            )));
        }
        if spec.outlets.listed.is_some() && spec.form != Form::Strata {
            return Err(VectorError::Refused(String::from(
                "--targets needs -F strata: vectors in the forms paper and paper-seq are not numbered, so a receiver could \
                 not tell vectors that were sent elsewhere from lost ones",
            )));
        }
        let outlets = Outlets::open(spec.outlets, room)?;
        let targets = outlets.peers();
        if targets > TARGETS_MAX {
            return Err(VectorError::TooManyTargets {
                targets,
                most: TARGETS_MAX,
            });
        }
        let to = outlets.to();
        Ok(Self {
            features: Features::new()?,
            grouping: Grouping::new(spec.form, parameters, columns, room, to)?,
            outlets,
            batch: Vec::with_capacity(BATCH),
            left: spec.packets_max,
            cache_slots: parameters.slots,
            live: spec.live.map(|live| Live::new(live, parameters.slots)),
            tell,
            has_begun: false,
        })
    }

    /// What it needs in a sandbox.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.outlets.reach()
    }

    /// Prepares for packets, which must match if a filter is given: makes the files and the ring, and opens the stream.
    /// A process without a sandbox must have declared so before.
    ///
    /// # Errors
    ///
    /// If one of them cannot be made.
    pub fn begin(&mut self, filter: Option<Matches>) -> Result<()> {
        self.has_begun = true;
        self.features.filter(filter);
        self.outlets.create(&self.tell)?;
        if let Some(live) = &self.live {
            let outlets = &mut self.outlets;
            self.grouping
                .announce(|id, bytes| outlets.announce(id, bytes));
            let text = format!("grouping packets of {}", live.interfaces);
            (self.tell)(&Notice::info("grouping", text));
        }
        Ok(())
    }

    /// Whether [`VectorRun::begin`] was called.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Takes a packet.
    ///
    /// # Errors
    ///
    /// If a file, or a stream that is waited for, cannot be written.
    pub fn packet(&mut self, link: LinkType, packet: &PacketRef<'_>) -> Result<()> {
        if self.is_done() {
            return Ok(());
        }
        let before = self.features.counted.packets;
        if let Some(features) = self.features.of(link, packet) {
            self.batch.push(features);
        }
        let taken = self.features.counted.packets - before;
        self.left = self.left.map(|left| left - taken);
        if self.batch.len() >= BATCH {
            self.push()?;
        }
        Ok(())
    }

    /// To be called after a batch, or if no packets came for a moment. For interfaces, answers the requests of agents
    /// and flushes packets that have waited for long enough.
    ///
    /// # Errors
    ///
    /// As [`VectorRun::packet`].
    pub fn pause(&mut self) -> Result<()> {
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        let outlets = &mut self.outlets;
        let grouping = &mut self.grouping;
        if let Some(targets) = outlets.changed_targets(&self.tell) {
            // Those that are removed get what is begun for them, and learn how many vectors there were.
            grouping.send_begun(|id, bytes| outlets.send(id, bytes));
            grouping.announce(|id, bytes| outlets.announce(id, bytes));
            outlets.replace_targets(&targets, &self.tell);
            grouping.send_to(outlets.to())?;
        }
        let asked = match live.control_at.elapsed() >= CONTROL_EVERY {
            true => {
                live.control_at = Instant::now();
                live.announce_again(grouping, outlets);
                outlets.asked(self.cache_slots)
            }
            false => Vec::new(),
        };
        let mut send = |id, bytes: &[u8]| outlets.send(id, bytes);
        grouping.push(&self.batch, &mut send);
        self.batch.clear();
        let mut flushed = asked.len();
        for slot in asked {
            grouping.flush_slot(slot, &mut send);
        }
        live.asked += flushed as u64;
        if let Some(turn) = &mut live.in_turn {
            let (first, due) = turn.due();
            for slot in first..first + due {
                grouping.flush_slot(slot % turn.slots, &mut send);
            }
            flushed += due as usize;
        }
        if flushed > 0 {
            grouping.send_begun(&mut send);
        }
        self.outlets.check()
    }

    /// Whether the requested number of packets has come.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.left == Some(0) || self.outlets.is_complete()
    }

    /// Counts packets that the kernel has lost.
    pub fn lost(&mut self, packets: u64) {
        self.features.counted.dropped += packets;
    }

    /// Flushes all packets from the cache, and writes everything.
    ///
    /// # Errors
    ///
    /// As [`VectorRun::packet`].
    ///
    /// # Panics
    ///
    /// If a destination gets no vectors: a fault of Strata's own.
    pub fn finish(mut self) -> Result<VectorRunOutcome> {
        self.push()?;
        let outlets = &mut self.outlets;
        self.grouping.end(|id, bytes| outlets.send(id, bytes));
        self.outlets.check()?;
        self.outlets.finish()?;
        let grouping = &self.grouping;
        let to = self.outlets.into_targets().map(|to| {
            let given = grouping.given(to.id);
            let given = given.expect("each destination was given to the cache");
            SentTo {
                name: to.name,
                vectors: given.sent,
                not_chosen: given.filtered,
                not_carried: given.not_carried,
                datagrams: to.datagrams,
                bytes: to.bytes,
                unsent: to.unsent,
                error: to.error,
            }
        });
        Ok(VectorRunOutcome {
            to: to.collect(),
            cache: *self.grouping.counters(),
            counted: self.features.counted,
            slots_asked: self.live.map_or(0, |live| live.asked),
        })
    }

    fn push(&mut self) -> Result<()> {
        let outlets = &mut self.outlets;
        self.grouping
            .push(&self.batch, |id, bytes| outlets.send(id, bytes));
        self.batch.clear();
        self.outlets.check()
    }
}

impl Live {
    fn new(spec: LiveVectors, slots: u32) -> Self {
        Self {
            interfaces: spec.interfaces,
            in_turn: spec.flush_after.map(|every| SlotsInTurn {
                slots,
                every,
                began: Instant::now(),
                flushed: 0,
            }),
            asked: 0,
            control_at: Instant::now(),
            announced_at: Instant::now(),
        }
    }

    /// Lets agents hear of the cache, which they may only ask for as much as comes from here.
    fn announce_again(&mut self, grouping: &mut Grouping, outlets: &mut Outlets) {
        if self.announced_at.elapsed() < ANNOUNCE_EVERY {
            return;
        }
        self.announced_at = Instant::now();
        // What is begun goes everywhere; what says how many there were, to peers alone.
        grouping.send_begun(|id, bytes| outlets.send(id, bytes));
        grouping.announce(|id, bytes| outlets.announce(id, bytes));
    }
}

/// Slots of the cache that are flushed one after the other, all of them in a stated time.
struct SlotsInTurn {
    slots: u32,
    every: Duration,
    began: Instant,
    flushed: u64,
}

impl SlotsInTurn {
    /// The next slot, and how many from it on are due: each at most once.
    fn due(&mut self) -> (u32, u32) {
        let slots = u128::from(self.slots);
        let all = self.began.elapsed().as_nanos() * slots / self.every.as_nanos();
        let all: u64 = strata_wire::clamped(all);
        let due = (all - self.flushed.min(all)).min(u64::from(self.slots));
        let first = self.flushed % u64::from(self.slots);
        // After a long break, what is overdue is flushed once.
        self.flushed = all;
        (strata_wire::exact(first), strata_wire::exact(due))
    }
}
