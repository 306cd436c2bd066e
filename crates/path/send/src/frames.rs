//! Sending by XDP live frames: the kernel runs an XDP program over and over on its own pages, and
//! the program fills in the next frame and sends it out.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use strata_bpf::{
    Alu, Array, Assembler, Condition, Label, Program, ProgramKind, Reg, Shared, Width,
};
use strata_wire::exact;

use super::slots::{DUE_AT, HEADER_LEN, LEN_AT, Slots, stride};

/// `enum xdp_action` in linux/bpf.h.
const XDP_ABORTED: i32 = 0;
const XDP_DROP: i32 = 1;
const XDP_TX: i32 = 3;

/// How often the program checks the clock for a frame that is not due yet, at about 20 ns each,
/// before it gives up its turn. The verifier follows every check.
const LOOKS: i32 = 4096;
/// Maximum number of frames that the kernel collects before they leave.
const BATCH_MAX: u64 = 64;
/// Frames sent with one call, at most; the caller asks again for the others.
const REPEAT_MAX: u64 = 1 << 31;
/// How long a frame may wait for those collected with it.
const COLLECT_NS: u64 = 20_000;

/// A frame later than this delays all frames after it: a sender that was kept from its core does
/// not catch up in a burst that no link would carry.
const LATE_NS: i32 = 250_000;

/// `enum bpf_func_id` in linux/bpf.h.
const MAP_LOOKUP: i32 = 1;
const KTIME_GET_NS: i32 = 5;
const XDP_ADJUST_TAIL: i32 = 65;
const XDP_STORE_BYTES: i32 = 190;

/// What program and user share in addition to the frames, by word.
#[derive(Clone, Copy)]
enum Word {
    /// The slot whose turn it is.
    Next,
    /// The slot after the last one: then it is the first one's turn again.
    End,
    /// What due times are relative to, on the monotonic clock.
    Base,
    /// What each pass over the slots adds to that.
    Pass,
    /// Frames that were sent out.
    Sent,
}

impl Word {
    const COUNT: usize = 5;

    fn at(self) -> i16 {
        self as i16 * 8
    }
}

#[derive(Debug)]
pub(super) struct LiveFrames {
    program: Program,
    shared: Shared,
    ifindex: u32,
    /// What the kernel copies into each of its pages once: as long as the frames, with their tail.
    template: Vec<u8>,
}

impl LiveFrames {
    /// A frame must fit a page, with the kernel's space before and after it.
    pub(super) const FRAME_MAX: usize = 3_000;
    const FRAME_MIN: usize = 14;
    /// The least that is written anew into a page each time. The other end of a veth pair gets the
    /// very same page, and what it does to headers (removing a VLAN tag, decrementing TTL) is still
    /// there when the page comes back.
    const HEAD_MIN: usize = 128;

    /// Frames end with `tail`; if it is not empty, all are `frame_max` long.
    pub(super) fn open(
        ifindex: u32,
        count: usize,
        frame_max: usize,
        tail: &[u8],
    ) -> io::Result<(Slots, Self)> {
        let fits = |number: usize| u32::try_from(number).map_err(io::Error::other);
        let tail_max = frame_max.saturating_sub(Self::HEAD_MIN);
        let tail = &tail[tail.len().saturating_sub(tail_max)..];
        let frames = Array::new(fits(stride(frame_max - tail.len()))?, fits(count)?)?;
        let shared = Shared::new(Word::COUNT)?;
        let mut template = vec![0; frame_max.max(Self::FRAME_MIN)];
        let tail_at = template.len() - tail.len();
        template[tail_at..].copy_from_slice(tail);
        let code = program(&frames, &shared, frame_max, template.len(), tail.len())?;
        let program = Program::load(ProgramKind::Xdp, "strata_send", &code).map_err(|error| {
            if error.is_permission() {
                return error.source;
            }
            io::Error::other(error)
        })?;
        // The program keeps the maps alive.
        let slots = Slots::of_array(&frames, count, frame_max, tail)?;
        let sender = Self {
            program,
            shared,
            ifindex,
            template,
        };
        Ok((slots, sender))
    }

    /// Sends the next frames of a run started with `begin`; returns how many. May be fewer: after a
    /// signal, or if frames were not due for long.
    ///
    /// Each call costs 10 to 25 ms, in which the kernel takes its pages back: `frames`
    /// should be many.
    pub(super) fn send(&self, frames: u64, gap_ns: u64) -> io::Result<u64> {
        // Frames without a gap are due at once, all of them.
        let due_soon = match gap_ns {
            0 => BATCH_MAX,
            gap_ns => COLLECT_NS / gap_ns,
        };
        let batch = exact::<u32>(due_soon.clamp(1, BATCH_MAX));
        let repeat = exact::<u32>(frames.min(REPEAT_MAX));
        let before = self.word(Word::Sent).load(Relaxed);
        let done = self
            .program
            .run_live_frames(self.ifindex, &self.template, repeat, batch);
        match done {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(self.word(Word::Sent).load(Relaxed) - before),
        }
    }

    /// Starts at a slot; slots until `end` take turns, round and round.
    pub(super) fn begin(&self, next: usize, end: usize, base_ns: u64, pass_ns: u64) {
        self.word(Word::Next).store(next as u64, Relaxed);
        self.word(Word::End).store(end as u64, Relaxed);
        self.word(Word::Base).store(base_ns, Relaxed);
        self.word(Word::Pass).store(pass_ns, Relaxed);
    }

    fn word(&self, which: Word) -> &AtomicU64 {
        &self.shared.words()[which as usize]
    }
}

const CONTEXT: Reg = Reg::R6;
const WORDS: Reg = Reg::R7;
const SLOT: Reg = Reg::R8;
/// On the stack.
const KEY_AT: i16 = -8;
const LOOKS_AT: i16 = -16;

fn immediate(number: usize) -> io::Result<i32> {
    i32::try_from(number).map_err(io::Error::other)
}

fn offset(number: usize) -> io::Result<i16> {
    i16::try_from(number).map_err(io::Error::other)
}

/// The program: takes the next frame, waits until it is due, cuts the page's frame to its length,
/// copies it except for the tail, which is already there, and sends it out.
fn program(
    frames: &Array,
    shared: &Shared,
    frame_max: usize,
    template_len: usize,
    tail_len: usize,
) -> io::Result<Vec<u64>> {
    use Condition::{Equal, Greater, Less, NotEqual};
    use Reg::{R0, R1, R2, R3, R4, R9 as LEN};
    let mut asm = Assembler::new();
    let failed = asm.label();
    asm.set(CONTEXT, R1);
    asm.shared_address(WORDS, shared.number(), 0);
    write_next_slot(&mut asm, frames, failed);
    write_wait(&mut asm)?;
    for counter in [Word::Next, Word::Sent] {
        asm.load(Width::Double, R1, WORDS, counter.at());
        asm.alu64(Alu::Add, R1, 1);
        asm.store(Width::Double, WORDS, counter.at(), R1);
    }
    let len_min = LiveFrames::FRAME_MIN + tail_len;
    asm.load(Width::Word, LEN, SLOT, offset(LEN_AT)?);
    asm.jump_if(Greater, LEN, immediate(frame_max)?, failed);
    asm.jump_if(Less, LEN, immediate(len_min)?, failed);
    let fits = asm.label();
    asm.set(R2, LEN);
    asm.alu64(Alu::Sub, R2, immediate(template_len)?);
    asm.jump_if(Equal, R2, 0, fits);
    asm.set(R1, CONTEXT);
    asm.call(XDP_ADJUST_TAIL);
    asm.jump_if(NotEqual, R0, 0, failed);
    asm.bind(fits);
    asm.set(R1, CONTEXT);
    asm.set(R2, 0);
    asm.set(R3, SLOT);
    asm.alu64(Alu::Add, R3, immediate(HEADER_LEN)?);
    asm.set(R4, LEN);
    asm.alu64(Alu::Sub, R4, immediate(tail_len)?);
    asm.call(XDP_STORE_BYTES);
    asm.jump_if(NotEqual, R0, 0, failed);
    asm.set(R0, XDP_TX);
    asm.exit();
    asm.bind(failed);
    asm.set(R0, XDP_ABORTED);
    asm.exit();
    asm.finish().map_err(io::Error::other)
}

/// `SLOT` = the frame whose turn it is; a new pass begins after the last.
fn write_next_slot(asm: &mut Assembler, frames: &Array, failed: Label) {
    use Reg::{R0, R1, R2, R10};
    let within = asm.label();
    asm.load(Width::Double, R1, WORDS, Word::Next.at());
    asm.load(Width::Double, R2, WORDS, Word::End.at());
    asm.jump_if(Condition::Less, R1, R2, within);
    asm.load(Width::Double, R1, WORDS, Word::Base.at());
    asm.load(Width::Double, R2, WORDS, Word::Pass.at());
    asm.alu64(Alu::Add, R1, R2);
    asm.store(Width::Double, WORDS, Word::Base.at(), R1);
    asm.set(R1, 0);
    asm.store(Width::Double, WORDS, Word::Next.at(), R1);
    asm.bind(within);
    asm.store(Width::Word, R10, KEY_AT, R1);
    asm.map(R1, frames.number());
    asm.set(R2, R10);
    asm.alu64(Alu::Add, R2, i32::from(KEY_AT));
    asm.call(MAP_LOOKUP);
    asm.jump_if(Condition::Equal, R0, 0, failed);
    asm.set(SLOT, R0);
}

/// Waits until the frame in `SLOT` is due, or ends the program's turn; a frame that is very late
/// delays all that follow.
fn write_wait(asm: &mut Assembler) -> io::Result<()> {
    use Reg::{R0, R1, R9 as DUE, R10};
    asm.load(Width::Double, DUE, SLOT, offset(DUE_AT)?);
    asm.load(Width::Double, R1, WORDS, Word::Base.at());
    asm.alu64(Alu::Add, DUE, R1);
    let (again, now) = (asm.label(), asm.label());
    asm.set(R1, LOOKS);
    asm.bind(again);
    asm.store(Width::Double, R10, LOOKS_AT, R1);
    asm.call(KTIME_GET_NS);
    asm.jump_if(Condition::GreaterEqual, R0, DUE, now);
    asm.load(Width::Double, R1, R10, LOOKS_AT);
    asm.alu64(Alu::Add, R1, -1);
    asm.jump_if(Condition::NotEqual, R1, 0, again);
    asm.set(R0, XDP_DROP);
    asm.exit();
    asm.bind(now);
    let in_time = asm.label();
    asm.alu64(Alu::Sub, R0, DUE);
    asm.jump_if(Condition::Less, R0, LATE_NS, in_time);
    asm.alu64(Alu::Sub, R0, LATE_NS);
    asm.load(Width::Double, R1, WORDS, Word::Base.at());
    asm.alu64(Alu::Add, R1, R0);
    asm.store(Width::Double, WORDS, Word::Base.at(), R1);
    asm.bind(in_time);
    Ok(())
}
