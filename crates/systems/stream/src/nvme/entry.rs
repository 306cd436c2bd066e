//! Entries of both queues.

use std::fmt;

use super::prp::Prps;

/// Bytes of a submission queue entry (Base Specification 1.4, figure 104).
pub const ENTRY_LEN: usize = 64;
/// Bytes of a completion queue entry (figure 121).
pub const SLOT_LEN: usize = 16;

/// Opcodes: of the admin queue (figure 139), and of I/O queues (figure 346).
pub mod opcode {
    /// Admin: delete a submission queue.
    pub const DELETE_SQ: u8 = 0x00;
    /// Admin: create a submission queue.
    pub const CREATE_SQ: u8 = 0x01;
    /// Admin: delete a completion queue.
    pub const DELETE_CQ: u8 = 0x04;
    /// Admin: create a completion queue.
    pub const CREATE_CQ: u8 = 0x05;
    /// Admin: identify a controller or a namespace.
    pub const IDENTIFY: u8 = 0x06;
    /// Admin: abort a command.
    pub const ABORT: u8 = 0x08;
    /// Admin: set features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Admin: doorbell buffer config.
    pub const DOORBELL_BUFFERS: u8 = 0x7c;
    /// I/O: flush.
    pub const FLUSH: u8 = 0x00;
    /// I/O: write.
    pub const WRITE: u8 = 0x01;
    /// I/O: read.
    pub const READ: u8 = 0x02;
}

/// The feature "number of queues" (figure 276).
const FEATURE_QUEUES: u32 = 7;

/// A command, but for its id.
///
/// ```text
///  0 opcode u8 | flags u8 | command id u16
///  4 namespace u32
///  8 reserved, 16 metadata pointer
/// 24 PRP1 u64
/// 32 PRP2 u64
/// 40 command dwords 10 to 15
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Command {
    /// What to do.
    pub opcode: u8,
    /// Of which namespace; 0: none.
    pub namespace: u32,
    /// With which memory.
    pub prps: Prps,
    /// Command dwords 10 to 15.
    pub dwords: [u32; 6],
}

/// The halves of a number.
fn halves(number: u64) -> [u32; 2] {
    let [a, b, c, d, rest @ ..] = number.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(rest)]
}

/// A field of an entry.
fn u32_at(entry: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*entry[at..].first_chunk().expect("a field of an entry"))
}

fn u64_at(entry: &[u8], at: usize) -> u64 {
    u64::from(u32_at(entry, at)) | u64::from(u32_at(entry, at.wrapping_add(4))) << 32
}

/// A queue's size, 0-based, and its id, as dword 10 has them.
fn size_and_id(depth: u16, id: u16) -> u32 {
    u32::from(depth.checked_sub(1).expect("a queue has entries")) << 16 | u32::from(id)
}

impl Command {
    fn of_blocks(opcode: u8, namespace: u32, first: u64, blocks: u16, prps: Prps) -> Self {
        assert!(blocks > 0, "a command of no blocks");
        let [low, high] = halves(first);
        Self {
            opcode,
            namespace,
            prps,
            // 0-based.
            dwords: [low, high, u32::from(blocks.wrapping_sub(1)), 0, 0, 0],
        }
    }

    /// Writes blocks.
    ///
    /// # Panics
    ///
    /// If `blocks` is 0.
    #[must_use]
    pub fn write(namespace: u32, first: u64, blocks: u16, prps: Prps) -> Self {
        Self::of_blocks(opcode::WRITE, namespace, first, blocks, prps)
    }

    /// Reads blocks.
    ///
    /// # Panics
    ///
    /// If `blocks` is 0.
    #[must_use]
    pub fn read(namespace: u32, first: u64, blocks: u16, prps: Prps) -> Self {
        Self::of_blocks(opcode::READ, namespace, first, blocks, prps)
    }

    /// Makes durable what was written.
    #[must_use]
    pub fn flush(namespace: u32) -> Self {
        Self {
            opcode: opcode::FLUSH,
            namespace,
            ..Self::default()
        }
    }

    fn admin(opcode: u8, prp1: u64, dwords: [u32; 2]) -> Self {
        let [a, b] = dwords;
        Self {
            opcode,
            prps: Prps { prp1, prp2: 0 },
            dwords: [a, b, 0, 0, 0, 0],
            ..Self::default()
        }
    }

    /// Admin: describes the controller (`namespace` 0) or a namespace, in 4 KiB at this bus address.
    #[must_use]
    pub fn identify(namespace: u32, bus: u64) -> Self {
        let what = u32::from(namespace == 0);
        Self {
            namespace,
            ..Self::admin(opcode::IDENTIFY, bus, [what, 0])
        }
    }

    /// Admin: asks for a number of queue pairs; the completion's result says how many there are.
    ///
    /// # Panics
    ///
    /// If `pairs` is 0.
    #[must_use]
    pub fn ask_queues(pairs: u16) -> Self {
        let pairs = pairs.checked_sub(1).expect("one queue pair at least");
        let pairs = u32::from(pairs);
        Self::admin(
            opcode::SET_FEATURES,
            0,
            [FEATURE_QUEUES, pairs << 16 | pairs],
        )
    }

    /// Admin: a completion queue at this bus address, contiguous, without interrupts.
    #[must_use]
    pub fn create_completions(id: u16, depth: u16, bus: u64) -> Self {
        Self::admin(opcode::CREATE_CQ, bus, [size_and_id(depth, id), 1])
    }

    /// Admin: a submission queue at this bus address, contiguous, whose completions go to the queue of
    /// the same id, which is there.
    #[must_use]
    pub fn create_submissions(id: u16, depth: u16, bus: u64) -> Self {
        let completions = u32::from(id) << 16 | 1;
        Self::admin(
            opcode::CREATE_SQ,
            bus,
            [size_and_id(depth, id), completions],
        )
    }

    /// Admin: deletes a submission queue.
    #[must_use]
    pub fn delete_submissions(id: u16) -> Self {
        Self::admin(opcode::DELETE_SQ, 0, [id.into(), 0])
    }

    /// Admin: deletes a completion queue, whose submission queue is gone.
    #[must_use]
    pub fn delete_completions(id: u16) -> Self {
        Self::admin(opcode::DELETE_CQ, 0, [id.into(), 0])
    }

    /// Admin: asks the controller to give up a command. Bit 0 of the result: it did not.
    #[must_use]
    pub fn abort(queue: u16, command: u16) -> Self {
        let which = u32::from(command) << 16 | u32::from(queue);
        Self::admin(opcode::ABORT, 0, [which, 0])
    }

    /// Admin: shadow doorbells and event indexes at these bus addresses, a page each.
    #[must_use]
    pub fn doorbell_buffers(shadow: u64, events: u64) -> Self {
        let mut command = Self::admin(opcode::DOORBELL_BUFFERS, shadow, [0, 0]);
        command.prps.prp2 = events;
        command
    }

    /// Its bytes, with this id.
    #[must_use]
    pub fn emit(&self, id: u16) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        let mut put = |at: usize, field: &[u8]| {
            bytes[at..][..field.len()].copy_from_slice(field);
        };
        put(0, &[self.opcode, 0]);
        put(2, &id.to_le_bytes());
        put(4, &self.namespace.to_le_bytes());
        put(24, &self.prps.prp1.to_le_bytes());
        put(32, &self.prps.prp2.to_le_bytes());
        for (at, dword) in (40..).step_by(4).zip(self.dwords) {
            put(at, &dword.to_le_bytes());
        }
        bytes
    }

    /// The id and the command of an entry.
    #[must_use]
    pub fn parse(entry: &[u8; ENTRY_LEN]) -> (u16, Self) {
        let command = Self {
            opcode: entry[0],
            namespace: u32_at(entry, 4),
            prps: Prps {
                prp1: u64_at(entry, 24),
                prp2: u64_at(entry, 32),
            },
            dwords: std::array::from_fn(|number| {
                u32_at(entry, number.wrapping_mul(4).wrapping_add(40))
            }),
        };
        (u16::from_le_bytes([entry[2], entry[3]]), command)
    }
}

/// What became of a command (figure 124): status code type and status code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Status {
    /// 0 generic, 1 of the command, 2 media and data.
    pub kind: u8,
    /// The code.
    pub code: u8,
    /// The same command would fail again.
    pub is_final: bool,
}

impl Status {
    /// Done.
    pub const SUCCESS: Self = Self::generic(0x00);
    /// Given up, as Abort asked.
    pub const ABORTED: Self = Self::generic(0x07);
    /// Given up with its submission queue.
    pub const QUEUE_DELETED: Self = Self::generic(0x08);

    /// A generic status.
    #[must_use]
    pub const fn generic(code: u8) -> Self {
        Self {
            kind: 0,
            code,
            is_final: false,
        }
    }

    /// Whether it was done.
    #[must_use]
    pub fn is_success(self) -> bool {
        self.kind == 0 && self.code == 0
    }
}

/// `LBA out of range (0x080)`.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match (self.kind, self.code) {
            (0, 0x00) => "success",
            (0, 0x01) => "invalid opcode",
            (0, 0x02) => "invalid field",
            (0, 0x03) => "command id in use",
            (0, 0x04) => "data transfer error",
            (0, 0x05) => "aborted by power loss",
            (0, 0x06) => "internal error",
            (0, 0x07) => "aborted as requested",
            (0, 0x08) => "aborted with its queue",
            (0, 0x0b) => "invalid namespace",
            (0, 0x13) => "invalid PRP offset",
            (0, 0x80) => "LBA out of range",
            (0, 0x81) => "capacity exceeded",
            (1, 0x00) => "no such completion queue",
            (1, 0x01) => "invalid queue id",
            (1, 0x02) => "invalid queue size",
            (1, 0x03) => "too many aborts",
            (2, 0x80) => "write fault",
            (2, 0x81) => "unrecovered read error",
            (2, 0x86) => "access denied",
            (0, _) => "generic error",
            (1, _) => "error of the command",
            (2, _) => "media error",
            _ => "error of an unknown kind",
        };
        write!(f, "{words} (0x{:x}{:02x})", self.kind, self.code)
    }
}

/// A completion.
///
/// ```text
///  0 result u32
///  8 head of the submission queue u16 | its id u16
/// 12 command id u16 | phase 1 bit, status code 8, type 3, retry delay 2, more 1, do not retry 1
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Of the command.
    pub result: u32,
    /// How far the controller has read the submission queue.
    pub head: u16,
    /// The submission queue.
    pub queue: u16,
    /// The command.
    pub command: u16,
    /// Flips with each lap.
    pub phase: bool,
    /// What became of it.
    pub status: Status,
}

impl Completion {
    /// Reads a slot, whether it holds one of this lap or not.
    #[must_use]
    pub fn parse(slot: &[u8; SLOT_LEN]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([slot[at], slot[at.wrapping_add(1)]]);
        let [code, kind] = (u16_at(14) >> 1).to_le_bytes();
        Self {
            result: u32_at(slot, 0),
            head: u16_at(8),
            queue: u16_at(10),
            command: u16_at(12),
            phase: slot[14] & 1 == 1,
            status: Status {
                kind: kind & 7,
                code,
                is_final: slot[15] & 0x80 != 0,
            },
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; SLOT_LEN] {
        let mut bytes = [0; SLOT_LEN];
        bytes[..4].copy_from_slice(&self.result.to_le_bytes());
        let status = u16::from(self.phase)
            | u16::from(self.status.code) << 1
            | u16::from(self.status.kind & 7) << 9
            | u16::from(self.status.is_final) << 15;
        for (at, field) in [
            (8_usize, self.head),
            (10, self.queue),
            (12, self.command),
            (14, status),
        ] {
            bytes[at..at.wrapping_add(2)].copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }
}
