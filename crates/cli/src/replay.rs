//! `strata replay`: send a capture file from an interface.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use strata_capture::send::{Run, Sender};
use strata_capture::{Input, InputOptions, Next};
use strata_wire::{LinkType, Meta, grouped};
use tracing::warn;

use crate::sending::{Method, NO_LIMIT, Sending};
use crate::{bounded, text};

/// Arguments of `strata replay`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata replay -i eth1 -r trace.pcap                     # with the times of the file
  strata replay -i eth1 -r trace.pcap --multiplier 2
  strata replay -i veth0 -r trace.pcap --mbps 9000 --loop 100
  strata replay -i veth0 -r trace.pcap --topspeed --duration 20

Addresses stay as they are: replay into a network of your own.")]
pub(crate) struct Args {
    /// Send from this interface.
    #[arg(short = 'i', long, visible_alias = "intf1", value_name = "IF")]
    interface: String,

    /// Send this capture file, in any format that `strata record` reads. Several are merged in time
    /// order.
    #[arg(short = 'r', long = "read", value_name = "FILE", required = true)]
    read: Vec<PathBuf>,

    /// Multiply the speed of the file by this factor.
    #[arg(short = 'x', long, value_name = "FACTOR", group = "rate", value_parser = bounded::factor)]
    multiplier: Option<f64>,

    /// Send this many packets per second; with k or M.
    #[arg(short = 'p', long, value_name = "N", value_parser = text::number, group = "rate")]
    pps: Option<u64>,

    /// Send this many megabits of frames per second.
    #[arg(short = 'M', long, value_name = "N", group = "rate", value_parser = bounded::factor)]
    mbps: Option<f64>,

    /// Send as fast as possible.
    #[arg(short = 't', long, group = "rate")]
    topspeed: bool,

    /// Send the file this many times; 0 until Ctrl-C; once by default.
    #[arg(short = 'l', long = "loop", value_name = "N")]
    times: Option<u64>,

    /// Stop after this many packets.
    #[arg(short = 'L', long, value_name = "N", value_parser = text::number)]
    limit: Option<u64>,

    /// Stop after this many seconds; the file is repeated until then unless --loop is given.
    #[arg(long, value_name = "SECONDS", value_parser = bounded::seconds)]
    duration: Option<f64>,

    /// Choose how to send; by default the fastest method that works on this interface.
    #[arg(long, value_enum, value_name = "METHOD")]
    method: Option<Method>,
}

/// When packets are sent, relative to the first one.
enum Pace {
    /// Times of the file, divided by a factor.
    File { first_ns: Option<u64>, factor: f64 },
    /// A gap after each packet: fixed, and per byte.
    Gap {
        ns: f64,
        ns_per_byte: f64,
        due_ns: f64,
    },
}

impl Pace {
    fn new(args: &Args) -> Result<Self> {
        let positive = |rate: f64, name: &str| {
            ensure!(rate > 0.0 && rate.is_finite(), "{name} must be above 0");
            Ok(rate)
        };
        let gap = |ns, ns_per_byte| Self::Gap {
            ns,
            ns_per_byte,
            due_ns: 0.0,
        };
        #[allow(clippy::cast_precision_loss)]
        Ok(match (args.pps, args.mbps, args.topspeed) {
            (Some(pps), _, _) => gap(1e9 / positive(pps as f64, "--pps")?, 0.0),
            (_, Some(mbps), _) => gap(0.0, 8e3 / positive(mbps, "--mbps")?),
            (_, _, true) => gap(0.0, 0.0),
            _ => Self::File {
                first_ns: None,
                factor: positive(args.multiplier.unwrap_or(1.0), "--multiplier")?,
            },
        })
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

/// Bytes of frames read before sending. A trace that fits is read once.
const CHUNK_BYTES: usize = 1 << 30;
/// Frames read before sending: each takes a slot of the longest one's length.
const CHUNK_FRAMES: usize = 1 << 20;
/// Most bytes of all slots.
const SLOTS_BYTES: usize = 2 << 30;

/// A file read in parts.
struct Trace {
    input: Input,
    pace: Pace,
    cut: u64,
    ended: bool,
}

impl Trace {
    fn open(args: &Args) -> Result<Self> {
        Ok(Self {
            input: Input::open(&args.read, &InputOptions::default())?,
            pace: Pace::new(args)?,
            cut: 0,
            ended: false,
        })
    }

    /// Reads the next part.
    fn read(&mut self, frames: &mut Frames) -> Result<()> {
        frames.clear();
        while frames.bytes.len() < CHUNK_BYTES && frames.index.len() < CHUNK_FRAMES {
            match self.input.advance()? {
                Next::End => {
                    self.ended = true;
                    break;
                }
                Next::Meta(Meta::Interface { interface, .. }) => ensure!(
                    interface.link == LinkType::ETHERNET,
                    "replay sends Ethernet frames, and these packets are {}",
                    interface.link
                ),
                Next::Meta(_) => {}
                Next::Packets => {
                    for packet in self.input.batch().iter() {
                        self.cut += u64::from(packet.wire_len as usize > packet.data.len());
                        let due_ns = self.pace.due_ns(packet.ts_ns, packet.data.len());
                        frames.bytes.extend_from_slice(packet.data);
                        frames.index.push((due_ns, frames.bytes.len()));
                        frames.longest = frames.longest.max(packet.data.len());
                    }
                }
            }
        }
        Ok(())
    }

    /// How long one pass over the trace takes, once it has been read to the end.
    fn pass_ns(&mut self, frames: &Frames) -> u64 {
        let last_ns = frames.index.last().map_or(0, |&(due_ns, _)| due_ns);
        match self.pace {
            // The file does not tell the gap after its last packet.
            Pace::File { .. } => last_ns,
            Pace::Gap { .. } => self.pace.due_ns(0, 0),
        }
    }
}

/// A trace being sent.
struct Replay {
    sending: Sending,
    /// Packets still to be sent at most.
    left: u64,
    base_ns: u64,
}

impl Replay {
    /// Puts frames into slots and sends them, in parts if they do not fit.
    fn put_and_send(&mut self, frames: &Frames) -> Result<()> {
        let slots = self.sending.sender().slots();
        let mut filled = 0;
        for (due_ns, frame) in frames.iter() {
            self.sending.sender().put(filled, frame, due_ns)?;
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
        args: &Args,
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
            *trace = Trace::open(args)?;
            trace.read(frames)?;
            trace.cut = trace.cut.max(cut);
        }
        Ok(())
    }

    fn over(&self) -> bool {
        self.left == 0 || self.sending.stopped()
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut trace = Trace::open(args)?;
    let mut frames = Frames::default();
    trace.read(&mut frames)?;
    ensure!(!frames.index.is_empty(), "the input has no packets");
    // Later frames may be longer than those read so far.
    let frame_max = if trace.ended {
        frames.longest
    } else {
        frames.longest.max(1518)
    };
    let slots = frames.index.len().min(SLOTS_BYTES / frame_max.max(1));
    let stays = trace.ended && slots == frames.index.len();
    let mut sender = Sender::open(
        &args.interface,
        args.method.map(Into::into),
        slots,
        frame_max,
        if stays { frames.tail() } else { &[] },
    )?;
    let times = match (args.times, args.duration) {
        (Some(0), _) | (None, Some(_)) => u64::MAX,
        (times, _) => times.unwrap_or(1),
    };
    if stays {
        for (slot, (due_ns, frame)) in frames.iter().enumerate() {
            sender.put(slot, frame, due_ns)?;
        }
    }
    let mut replay = Replay {
        sending: Sending::start(sender, args.duration)?,
        left: args.limit.unwrap_or(NO_LIMIT),
        base_ns: Sender::now_ns(),
    };
    if stays {
        replay.send(slots, times, trace.pass_ns(&frames))?;
    } else {
        replay.in_parts(args, &mut trace, &mut frames, times)?;
    }
    if trace.cut > 0 {
        warn!(
            "{} packets are cut short in the file: only what was captured of them \
             was sent",
            grouped(trace.cut)
        );
    }
    replay.sending.finish(&args.interface);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
