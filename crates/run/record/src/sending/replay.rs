//! Sends capture files.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::thread::CapabilitySet;
use strata_capture::{Input, InputOptions, Next};
use strata_role::require;
use strata_role::sandbox::drop_the_rest;
use strata_send::{Method, Run, Sender, frame_max_of};
use strata_wire::{LinkType, Meta, exact};

use super::{NO_LIMIT, SendOutcome, Sending};
use crate::error::Result;

/// Which capture files to send, and how.
#[derive(Clone, Debug)]
pub struct ReplaySpec {
    /// The files, merged in time order; `-` is standard input.
    pub files: Vec<PathBuf>,
    /// The interface.
    pub interface: String,
    /// How to send; the fastest method that works if `None`.
    pub method: Option<Method>,
    /// When packets leave.
    pub pace: Pace,
    /// How often the files are sent; until stopped if `None`.
    pub times: Option<u64>,
    /// Stop after this many packets.
    pub limit: Option<u64>,
    /// Stop after this time.
    pub duration: Option<Duration>,
    /// Memory that this process can have ([`usable_bytes`](crate::usable_bytes)), of which a part is taken.
    pub usable_bytes: u64,
    /// What is kept of capabilities once the interface is open; `None` for all of them. The process is
    /// confined before ([`sandbox::confine`](strata_role::sandbox::confine)), since files are read first.
    pub keep: Option<CapabilitySet>,
}

/// When packets leave. Numbers are above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// With the times of the file, this many times as fast.
    File {
        /// Above 1 is faster.
        factor: f64,
    },
    /// A number of packets a second.
    Packets {
        /// Packets.
        per_second: f64,
    },
    /// A number of bits of frames a second.
    Megabits {
        /// Millions of bits.
        per_second: f64,
    },
    /// As fast as possible.
    TopSpeed,
}

/// When packets are sent, relative to the first one.
enum Schedule {
    /// Times of the file, divided by a factor.
    File { first_ns: Option<u64>, factor: f64 },
    /// A gap after each packet: fixed, and per byte.
    Gap {
        ns: f64,
        ns_per_byte: f64,
        due_ns: f64,
    },
}

impl Schedule {
    fn of(pace: Pace) -> Self {
        let gap = |ns, ns_per_byte| Self::Gap {
            ns,
            ns_per_byte,
            due_ns: 0.0,
        };
        match pace {
            Pace::File { factor } => Self::File {
                first_ns: None,
                factor,
            },
            Pace::Packets { per_second } => gap(1e9 / per_second, 0.0),
            Pace::Megabits { per_second } => gap(0.0, 8e3 / per_second),
            Pace::TopSpeed => gap(0.0, 0.0),
        }
    }

    /// When the next packet is due.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    fn due_ns(&mut self, ts_ns: u64, len: usize) -> u64 {
        match self {
            Self::File { first_ns, factor } => {
                let first_ns = *first_ns.get_or_insert(ts_ns);
                (ts_ns.saturating_sub(first_ns) as f64 / *factor) as u64
            }
            Self::Gap {
                ns,
                ns_per_byte,
                due_ns,
            } => {
                let due = *due_ns;
                *due_ns += *ns + *ns_per_byte * len as f64;
                due as u64
            }
        }
    }
}

/// Frames in memory, read from a file.
#[derive(Default)]
struct Frames {
    bytes: Vec<u8>,
    /// Due time of each frame, and its end in `bytes`.
    index: Vec<(u64, usize)>,
    longest: usize,
}

impl Frames {
    fn clear(&mut self) {
        self.bytes.clear();
        self.index.clear();
    }

    /// The bytes that all frames end with; empty if they differ in length.
    fn tail(&self) -> &[u8] {
        let mut frames = self.iter().map(|(_, frame)| frame);
        let Some(mut tail) = frames.next() else {
            return &[];
        };
        let len = tail.len();
        for frame in frames {
            if frame.len() != len {
                return &[];
            }
            let frame = &frame[len - tail.len()..];
            let same = tail.iter().rev().zip(frame.iter().rev());
            let same = same.take_while(|(a, b)| a == b).count();
            tail = &tail[tail.len() - same..];
        }
        tail
    }

    fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let starts = std::iter::once(0).chain(self.index.iter().map(|&(_, end)| end));
        starts
            .zip(&self.index)
            .map(|(start, &(due_ns, end))| (due_ns, &self.bytes[start..end]))
    }
}

/// How much of a trace is in memory at once. One that fits is read once, and what is sent again is sent from
/// memory; of a longer one, a part is read while nothing is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    /// Bytes of frames read before sending, and frames: each takes a slot of the longest one's length.
    chunk_bytes: usize,
    chunk_frames: usize,
    /// Bytes of all slots.
    slots_bytes: usize,
}

/// The bounds where there is memory enough.
const MOST: Bounds = Bounds {
    chunk_bytes: 1 << 30,
    chunk_frames: 1 << 20,
    slots_bytes: 2 << 30,
};
/// Of a trace that is sent once, nothing is sent again from memory.
const MOST_ONCE: usize = 256 << 20;
/// Where less memory is usable, parts are smaller, but not than this.
const LEAST: usize = 1 << 20;

impl Bounds {
    /// `usable`: bytes that this process can have. A quarter of it is for what is read, which takes up to twice
    /// its length while it grows; a quarter for slots, a quarter is left to the rest.
    fn within(usable: u64, is_once: bool) -> Self {
        let most_once = if is_once { MOST_ONCE } else { usize::MAX };
        let share = exact::<usize>((usable / 8).min(MOST.slots_bytes as u64));
        let share = share.clamp(LEAST, most_once);
        let chunk_bytes = share.min(MOST.chunk_bytes);
        Self {
            chunk_bytes,
            chunk_frames: MOST.chunk_frames.min(chunk_bytes / 64),
            slots_bytes: share.saturating_mul(2).min(MOST.slots_bytes),
        }
    }
}

/// A file read in parts.
struct Trace {
    input: Input,
    bounds: Bounds,
    schedule: Schedule,
    cut: u64,
    ended: bool,
}

impl Trace {
    fn open(spec: &ReplaySpec, bounds: Bounds) -> Result<Self> {
        Ok(Self {
            bounds,
            input: Input::open(&spec.files, &InputOptions::default())?,
            schedule: Schedule::of(spec.pace),
            cut: 0,
            ended: false,
        })
    }

    /// Reads the next part.
    fn read(&mut self, frames: &mut Frames) -> Result<()> {
        frames.clear();
        let bounds = self.bounds;
        while frames.bytes.len() < bounds.chunk_bytes && frames.index.len() < bounds.chunk_frames {
            match self.input.advance()? {
                Next::End => {
                    self.ended = true;
                    break;
                }
                Next::Meta(Meta::Interface { interface, .. }) => {
                    require(interface.link == LinkType::ETHERNET, || {
                        let link = interface.link;
                        format!("replay sends Ethernet frames, and these packets are {link}")
                    })?;
                }
                Next::Meta(_) => {}
                Next::Packets => {
                    for packet in self.input.batch().iter() {
                        self.cut += u64::from(packet.wire_len as usize > packet.data.len());
                        let due_ns = self.schedule.due_ns(packet.ts_ns, packet.data.len());
                        frames.bytes.extend_from_slice(packet.data);
                        frames.index.push((due_ns, frames.bytes.len()));
                        frames.longest = frames.longest.max(packet.data.len());
                    }
                }
            }
        }
        Ok(())
    }

    /// Duration of one pass over the trace, in ns; valid once the trace has been read to the end.
    fn pass_ns(&mut self, frames: &Frames) -> u64 {
        let last_ns = frames.index.last().map_or(0, |&(due_ns, _)| due_ns);
        match self.schedule {
            // The file does not tell the gap after its last packet.
            Schedule::File { .. } => last_ns,
            Schedule::Gap { .. } => self.schedule.due_ns(0, 0),
        }
    }
}

/// A trace being sent.
struct Replay {
    sending: Sending,
    /// Maximum number of packets still to be sent.
    left: u64,
    base_ns: u64,
}

impl Replay {
    /// Puts frames into slots and sends them, in parts if they do not fit.
    fn put_and_send(&mut self, frames: &Frames) -> Result<()> {
        let slots = self.sending.sender.slots();
        let mut filled = 0;
        for (due_ns, frame) in frames.iter() {
            self.sending.sender.put(filled, frame, due_ns)?;
            filled += 1;
            if filled == slots {
                self.send(filled, 1, 0)?;
                filled = 0;
                if self.over() {
                    break;
                }
            }
        }
        self.send(filled, 1, 0)
    }

    /// Sends the first slots this many times.
    fn send(&mut self, slots: usize, times: u64, pass_ns: u64) -> Result<()> {
        let frames = times.saturating_mul(slots as u64).min(self.left);
        if frames == 0 {
            return Ok(());
        }
        self.left -= frames;
        self.sending.send(&Run {
            slots,
            frames,
            base_ns: self.base_ns,
            pass_ns,
        })
    }

    /// Reads and sends a trace that does not fit into the slots, reading it again each time.
    fn in_parts(
        &mut self,
        spec: &ReplaySpec,
        trace: &mut Trace,
        frames: &mut Frames,
        times: u64,
    ) -> Result<()> {
        for time in 1..=times {
            self.put_and_send(frames)?;
            while !trace.ended && !self.over() {
                trace.read(frames)?;
                self.put_and_send(frames)?;
            }
            if self.over() || time == times {
                break;
            }
            self.base_ns += trace.pass_ns(frames);
            let cut = trace.cut;
            *trace = Trace::open(spec, trace.bounds)?;
            trace.read(frames)?;
            trace.cut = trace.cut.max(cut);
        }
        Ok(())
    }

    fn over(&self) -> bool {
        self.left == 0 || self.sending.stopped()
    }
}

/// Sends capture files.
///
/// # Errors
///
/// If a file cannot be read, or frames cannot be sent.
pub fn replay(spec: &ReplaySpec, stop: Arc<AtomicBool>) -> Result<SendOutcome> {
    let is_once = spec.times == Some(1) && spec.duration.is_none();
    let bounds = Bounds::within(spec.usable_bytes, is_once);
    let mut trace = Trace::open(spec, bounds)?;
    let mut frames = Frames::default();
    trace.read(&mut frames)?;
    require(!frames.index.is_empty(), || {
        String::from("the input has no packets")
    })?;
    // Later frames may be longer than those read so far.
    let frame_max = match (trace.ended, spec.method) {
        (true, _) => frames.longest,
        // Those are of a page at most, however long the interface sends them.
        (false, Some(Method::LiveFrames)) => frames.longest.max(1518),
        (false, _) => frames.longest.max(frame_max_of(&spec.interface)?),
    };
    let slots = frames
        .index
        .len()
        .min(bounds.slots_bytes / frame_max.max(1));
    let stays = trace.ended && slots == frames.index.len();
    let mut sender = Sender::open(
        &spec.interface,
        spec.method,
        slots,
        frame_max,
        if stays { frames.tail() } else { &[] },
    )?;
    if let Some(keep) = spec.keep {
        drop_the_rest(keep)?;
    }
    // Without a number, until stopped.
    let times = spec.times.unwrap_or(NO_LIMIT);
    if stays {
        for (slot, (due_ns, frame)) in frames.iter().enumerate() {
            sender.put(slot, frame, due_ns)?;
        }
    }
    let mut replay = Replay {
        sending: Sending::new(sender, spec.duration, stop),
        left: spec.limit.unwrap_or(NO_LIMIT),
        base_ns: Sender::now_ns(),
    };
    if stays {
        replay.send(slots, times, trace.pass_ns(&frames))?;
    } else {
        replay.in_parts(spec, &mut trace, &mut frames, times)?;
    }
    Ok(replay.sending.finish(trace.cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_takes_a_part_of_the_memory_and_never_more_than_a_bound() {
        assert_eq!(Bounds::within(1 << 40, false), MOST);
        let once = Bounds::within(1 << 40, true);
        assert_eq!(
            (once.chunk_bytes, once.slots_bytes),
            (MOST_ONCE, 2 * MOST_ONCE)
        );
        for is_once in [false, true] {
            let small = Bounds::within(160 << 20, is_once);
            assert_eq!((small.chunk_bytes, small.slots_bytes), (20 << 20, 40 << 20));
            let least = Bounds::within(0, is_once);
            assert_eq!((least.chunk_bytes, least.slots_bytes), (LEAST, 2 * LEAST));
        }
    }

    #[test]
    fn the_tail_is_what_all_frames_end_with() {
        let tail = |frames: &[&[u8]]| {
            let mut read = Frames::default();
            for frame in frames {
                read.bytes.extend_from_slice(frame);
                read.index.push((0, read.bytes.len()));
            }
            read.tail().to_vec()
        };
        assert_eq!(tail(&[b"abcd"]), b"abcd");
        assert_eq!(tail(&[b"abcd", b"abcd"]), b"abcd");
        assert_eq!(tail(&[b"abcd", b"xbcd", b"aycd"]), b"cd");
        assert_eq!(tail(&[b"abcd", b"abcx"]), b"");
        assert_eq!(tail(&[b"abcd", b"bcd"]), b"");
        assert_eq!(tail(&[b"", b""]), b"");
        assert_eq!(tail(&[]), b"");
    }
}
