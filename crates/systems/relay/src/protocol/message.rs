//! The messages between switch and relay, and their bytes (`docs/formats/relay.md`).
//!
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use strata_auth::secret::PROOF_LEN;
use strata_store::SavedLedger;
use strata_wire::start_of;

/// The version of the protocol.
pub const VERSION: u8 = 5;
/// The longest body.
pub const BODY_LEN_MAX: usize = 16 << 20;
/// The longest body before a peer has identified itself.
pub const FIRST_LEN_MAX: usize = 4 << 10;
/// The longest body of a descriptive message: all but definitions and the model.
pub(super) const TEXT_LEN_MAX: usize = 1 << 20;

/// Bytes of a recording's name.
const SESSION_LEN_MAX: usize = 64;
/// Bytes of program and version, and of the names of a model or a class.
const NAME_LEN_MAX: usize = 256;
/// Maximum bytes of the names of modes.
const MODE_LEN_MAX: usize = 4 << 10;
/// Maximum bytes of a capture filter.
const FILTER_LEN_MAX: usize = 16 << 10;
/// Maximum bytes of the names of all inputs.
const INPUTS_LEN_MAX: usize = 64 << 10;
/// Maximum number of inputs that are named.
const INPUTS_MAX: usize = 1024;
/// Maximum number of classes: the values of a byte.
const CLASSES_MAX: usize = 256;
/// Maximum number of warnings, and maximum bytes of each.
const WARNINGS_MAX: usize = 256;
const WARNING_LEN_MAX: usize = 1 << 10;

/// Maximum bytes of the reason for a relay's shortage.
const WHY_LEN_MAX: usize = 1 << 10;

/// Allowed sizes of a block in bytes.
pub const BLOCK_BYTES: RangeInclusive<usize> = 1 << 20..=1 << 30;
/// They are multiples of this: of pages, and of every RDMA MTU.
pub const BLOCK_UNIT: usize = 4096;
/// Allowed numbers of blocks per worker of a switch.
pub const BLOCKS: RangeInclusive<usize> = 2..=1024;

/// A switch's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The recording's name, the same after reconnecting: letters, digits and hyphens.
    pub session: String,
    /// The worker whose packets come through this connection.
    pub worker: u16,
    /// Random.
    pub nonce: [u64; 4],
    /// Whether it has a secret, and wants the relay to prove that it knows it too.
    pub secret: bool,
}

impl Hello {
    /// Fails if it is not a valid hello.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        let name = &self.session;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ' ');
        if name.is_empty() || name.len() > SESSION_LEN_MAX || !name.chars().all(plain) {
            return Err(format!(
                "the name of a recording has 1 to {SESSION_LEN_MAX} letters, digits or hyphens"
            ));
        }
        Ok(())
    }
}

/// The relay's answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// Random.
    pub nonce: [u64; 4],
    /// Whether the switch must prove that it knows the secret.
    pub secret: bool,
}

/// What a switch records: sent once it is authenticated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// Program and version.
    pub program: String,
    /// Inputs as named by the user.
    pub inputs: Vec<String>,
    /// Capture filter.
    pub filter: String,
    /// Name of the mode.
    pub mode: String,
    /// Name of the model.
    pub model: String,
    /// Names of the classes, by index.
    pub classes: Vec<String>,
    /// Key of fingerprints.
    pub hash_seed: [u64; 2],
    /// Key of the segments' checksums.
    pub key: u32,
    /// Number of the first block.
    pub first_block: u64,
    /// Sequence number of the first packet.
    pub first_seq: u64,
    /// Every packet before this one is known to be stored, or given up: the welcome reports the stored packets from
    /// here on.
    pub unconfirmed_seq: u64,
    /// Whether the packets from there on can be sent again, without gaps in their numbers. Then the first packet is the
    /// one after those that the relay has stored ([`Stored::next_seq`]).
    pub resends: bool,
    /// The transport of its packets.
    pub path: HelloPath,
}

impl Begin {
    /// Fails if a field is longer than allowed: the relay's memory for a recording is bounded.
    ///
    /// # Errors
    ///
    /// Which field.
    pub fn check(&self) -> Result<(), String> {
        let inputs = self.inputs.iter().map(String::len).sum::<usize>();
        let class = self.classes.iter().map(String::len).fold(0, usize::max);
        let lengths = [
            (
                "bytes of the program's name",
                self.program.len(),
                NAME_LEN_MAX,
            ),
            ("inputs", self.inputs.len(), INPUTS_MAX),
            ("bytes of inputs' names", inputs, INPUTS_LEN_MAX),
            ("bytes of the filter", self.filter.len(), FILTER_LEN_MAX),
            ("bytes of modes' names", self.mode.len(), MODE_LEN_MAX),
            ("bytes of the model's name", self.model.len(), NAME_LEN_MAX),
            ("classes", self.classes.len(), CLASSES_MAX),
            ("bytes of a class's name", class, NAME_LEN_MAX),
        ];
        match lengths.iter().find(|(_, is, max)| is > max) {
            Some((what, is, max)) => Err(format!("{is} {what}: a relay accepts at most {max}")),
            None => Ok(()),
        }
    }

    /// Shortens texts meant only for people; the names of a model and its classes stay.
    pub(crate) fn shorten(&mut self) {
        shorten(&mut self.program, NAME_LEN_MAX);
        shorten(&mut self.filter, FILTER_LEN_MAX);
        shorten(&mut self.mode, MODE_LEN_MAX);
        let (mut bytes, all) = (0, self.inputs.len());
        let fits = |input: &&String| {
            bytes = input.len().saturating_add(bytes);
            bytes <= INPUTS_LEN_MAX - NAME_LEN_MAX
        };
        let fitting = self
            .inputs
            .iter()
            .take(INPUTS_MAX - 1)
            .take_while(fits)
            .count();
        if fitting < all {
            self.inputs.truncate(fitting);
            let more = all.saturating_sub(fitting);
            self.inputs.push(format!("and {more} more"));
        }
    }
}

/// Truncates a text that is too long, and marks it.
fn shorten(text: &mut String, bytes_max: usize) {
    const MORE: &str = " ...";
    if text.len() > bytes_max {
        let kept = bytes_max.saturating_sub(MORE.len());
        text.truncate(start_of(text, kept).len());
        text.push_str(MORE);
    }
}

/// The transport of a switch's packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "transport")]
pub enum HelloPath {
    /// RoCEv2.
    Rdma {
        /// Whether the connection is reliable.
        reliable: bool,
        /// The switch's queue pair.
        qpn: u32,
        /// Sequence number of its first packet.
        psn: u32,
        /// The UDP port that receives answers.
        port: u16,
        /// The largest RDMA MTU that its path supports.
        mtu: usize,
    },
    /// Memory of the same machine.
    SharedMemory,
}

/// The relay's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Number of the recording in its log.
    pub recording: u32,
    /// Bytes of a block that segments may fill.
    pub block_bytes: usize,
    /// Distance from one block to the next.
    pub block_stride: usize,
    /// Number of blocks, filled in turn.
    pub blocks: usize,
    /// The stored packets, of those that the switch does not know to be stored.
    pub stored: Stored,
    /// The path to the blocks.
    pub path: WelcomePath,
}

/// The packets of a worker in a relay's log, from [`Begin::unconfirmed_seq`] on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stored {
    /// The number of the last stored packet plus one; [`Begin::unconfirmed_seq`] if there is none.
    pub next_seq: u64,
    /// Packets that are stored whole.
    pub packets: u64,
    /// Their bytes on the wire.
    pub wire_bytes: u64,
    /// Their bytes that were kept.
    pub logged_bytes: u64,
    /// Their bytes that were cut, by [`CutWhere`](strata_wire::CutWhere).
    pub cut_bytes: [u64; 3],
}

impl Welcome {
    /// Fails unless these are blocks that a switch can fill: another machine supplied every value.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        let Self {
            block_bytes,
            block_stride,
            blocks,
            ..
        } = *self;
        if !BLOCK_BYTES.contains(&block_bytes) || !block_bytes.is_multiple_of(BLOCK_UNIT) {
            return Err(format!("blocks of {block_bytes} bytes"));
        }
        let stride_max = BLOCK_BYTES.end().saturating_mul(2);
        if !(block_bytes..=stride_max).contains(&block_stride) {
            return Err(format!("blocks that are {block_stride} bytes apart"));
        }
        if !BLOCKS.contains(&blocks) {
            return Err(format!("{blocks} blocks"));
        }
        if let WelcomePath::Rdma { va, .. } = self.path {
            let len = (blocks as u64).saturating_mul(block_stride as u64);
            let end = va.checked_add(len);
            end.ok_or_else(|| format!("{len} bytes of memory from {va:#x} on"))?;
        }
        Ok(())
    }
}

/// Where a relay's blocks are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "transport")]
pub enum WelcomePath {
    /// Memory of a queue pair.
    Rdma {
        /// The relay's queue pair.
        qpn: u32,
        /// Remote key.
        rkey: u32,
        /// Virtual address of the first block.
        va: u64,
        /// RDMA MTU.
        mtu: usize,
        /// UDP port, 4791 except in tests.
        port: u16,
        /// Sequence number of the first packet that the relay sends; NICs require it.
        psn: u32,
    },
    /// Memory to be mapped, which the relay hands over through a Unix socket of its machine.
    SharedMemory {
        /// What the switch sends there to get this memory.
        token: String,
    },
}

/// A full block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BlockFull {
    /// Number of the block.
    pub block: u64,
    /// Bytes of segments in it.
    pub used: u32,
    /// Sequence number (PSN) after the last RDMA packet that wrote into it.
    pub end_psn: u32,
    /// Sequence number of its first packet.
    pub first_seq: u64,
    /// Sequence number of its last packet plus one.
    pub next_seq: u64,
    /// Packets.
    pub packets: u64,
    /// Segments.
    pub segments: u64,
}

/// A block that is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BlockStored {
    /// Number of the block.
    pub block: u64,
    /// Segments that the switch had sent and that are not in it. Always 0 on a reliable connection, where the
    /// switch knows what was lost.
    pub missing: u64,
}

/// A worker's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Progress {
    /// The sequence number of the next packet.
    pub next_seq: u64,
    /// Packets seen.
    pub seen_packets: u64,
    /// Wire bytes seen.
    pub seen_bytes: u64,
}

/// The end of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct End {
    /// The counters; only the connection that closes the recording sends them.
    pub accounting: Option<SavedLedger>,
    /// Warnings.
    pub warnings: Vec<String>,
}

impl End {
    /// Truncates whatever exceeds a relay's limits.
    pub(crate) fn shorten(&mut self) {
        if self.warnings.len() > WARNINGS_MAX {
            let more = self.warnings.len().saturating_sub(WARNINGS_MAX - 1);
            self.warnings.truncate(WARNINGS_MAX - 1);
            self.warnings.push(format!("and {more} more"));
        }
        for warning in &mut self.warnings {
            shorten(warning, WARNING_LEN_MAX);
        }
    }
}

/// The degradation that a relay requests from its switches while its disk is short of space or too slow; no degradation
/// once the shortage is over.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Shortage {
    /// Cut payloads.
    pub partial: bool,
    /// Sample benign packets.
    pub sampled: bool,
    /// Why, in plain English.
    pub why: String,
}

impl Shortage {
    /// Whether it asks for the same as `other`, regardless of the reason.
    #[must_use]
    pub fn asks_as(&self, other: &Self) -> bool {
        (self.partial, self.sampled) == (other.partial, other.sampled)
    }

    /// Truncates a reason that exceeds a switch's limit.
    pub(crate) fn shorten(&mut self) {
        shorten(&mut self.why, WHY_LEN_MAX);
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Switch: let me write into your memory.
    Hello(Box<Hello>),
    /// Relay: here it is.
    Welcome(Box<Welcome>),
    /// Relay: no, for this reason.
    Refused(String),
    /// Switch: records that packets refer to, as in a block file.
    Definitions(Vec<u8>),
    /// Switch: this block is full.
    BlockFull(BlockFull),
    /// Relay: this block is on disk, and may be filled again.
    BlockStored(BlockStored),
    /// Switch: progress, every 100 ms.
    Progress(Progress),
    /// Switch: that was everything.
    End(Box<End>),
    /// Relay: all of it is on disk.
    Ended,
    /// Relay: nothing more can be stored, for this reason.
    Failed(String),
    /// Relay: still there, every second.
    Alive,
    /// Relay: my disk is short, keep less; or it no longer is.
    Shortage(Box<Shortage>),
    /// Relay: who are you?
    Challenge(Challenge),
    /// Either: I know the secret.
    Proof([u8; PROOF_LEN]),
    /// Switch: the contents of the model file.
    Model(Vec<u8>),
    /// Switch: this is what I record.
    Begin(Box<Begin>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_takes_no_blocks_that_it_cannot_fill() {
        let usual = Welcome {
            recording: 1,
            block_bytes: 8 << 20,
            block_stride: (8 << 20) + 4096,
            blocks: 4,
            stored: Stored::default(),
            path: WelcomePath::Rdma {
                qpn: 2,
                rkey: 3,
                va: 1 << 40,
                mtu: 4096,
                port: 4791,
                psn: 0,
            },
        };
        assert_eq!(usual.check(), Ok(()));
        type Change = fn(&mut Welcome);
        let changes: [Change; 7] = [
            |it| it.block_bytes = 0,
            |it| it.block_bytes = (8 << 20) + 1,
            |it| it.block_bytes = usize::MAX & !4095,
            |it| it.block_stride = 4096,
            |it| it.block_stride = usize::MAX,
            |it| it.blocks = usize::MAX,
            |it| {
                if let WelcomePath::Rdma { va, .. } = &mut it.path {
                    *va = u64::MAX - 4096;
                }
            },
        ];
        for change in changes {
            let mut welcome = usual.clone();
            change(&mut welcome);
            assert!(welcome.check().is_err(), "{welcome:?}");
        }
    }
}
