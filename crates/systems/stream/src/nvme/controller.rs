//! A controller's registers: what it can, and how it is reset and enabled (Base Specification 1.4, §3.1
//! and §7.6.1).

/// Where registers are in the first BAR.
pub mod register {
    /// Capabilities, 64 bits.
    pub const CAP: u64 = 0x00;
    /// Configuration.
    pub const CC: u64 = 0x14;
    /// Status.
    pub const CSTS: u64 = 0x1c;
    /// Sizes of the admin queues.
    pub const AQA: u64 = 0x24;
    /// Bus address of the admin submission queue, 64 bits.
    pub const ASQ: u64 = 0x28;
    /// Bus address of the admin completion queue, 64 bits.
    pub const ACQ: u64 = 0x30;
    /// Doorbells.
    pub const BELLS: u64 = 0x1000;
}

/// CC: entries of 16 and 64 bytes, pages of 4 KiB, the NVM command set, enabled.
const ENABLED: u32 = 4 << 20 | 6 << 16 | 1;
/// CSTS: ready.
const READY: u32 = 1;
/// CSTS: a fatal error.
const FATAL: u32 = 2;

/// What a controller can (CAP, figure 68).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Entries of a queue at most.
    pub depth_max: u32,
    /// How long becoming ready, or not ready, may take.
    pub ready_limit_ns: u64,
    /// Bytes between doorbells.
    pub stride: u64,
    /// Whether it takes pages of 4 KiB, and the NVM command set.
    pub is_usable: bool,
}

impl Capabilities {
    /// Reads the register.
    #[must_use]
    pub fn parse(cap: u64) -> Self {
        let field = |shift: u32, bits: u32| cap >> shift & (1_u64 << bits).wrapping_sub(1);
        Self {
            depth_max: strata_wire::exact::<u32>(field(0, 16)).wrapping_add(1),
            // In units of 500 ms; 0 is not a time that a controller can keep.
            ready_limit_ns: field(24, 8).max(1).wrapping_mul(500_000_000),
            stride: 4 << field(32, 4),
            is_usable: field(48, 4) == 0 && field(37, 1) == 1,
        }
    }

    /// Where the doorbells of a queue pair are: its tail, its head.
    #[must_use]
    pub fn bells(&self, queue: u16) -> (u64, u64) {
        let tail = register::BELLS
            .wrapping_add(u64::from(queue).wrapping_mul(2).wrapping_mul(self.stride));
        (tail, tail.wrapping_add(self.stride))
    }
}

/// Why a controller cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EnableError {
    /// It does not become ready, or not ready, in the time that it names.
    #[error("the controller did not become {} within the {limit_ms} ms that it specifies", if *.ready { "ready" } else { "idle" })]
    Slow {
        /// What it should be.
        ready: bool,
        /// How long it may take.
        limit_ms: u64,
    },
    /// It says that it has failed.
    #[error("the controller reports a fatal error (CSTS.CFS)")]
    Fatal,
    /// All bits of its registers are set: it is gone, or its memory is not mapped.
    #[error(
        "the controller's registers read as all ones: it was removed, or PCI memory space access is disabled"
    )]
    Gone,
}

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Write a register of 32 bits; a register of 64 is written as two, the low half first.
    Write {
        /// Which.
        at: u64,
        /// What.
        value: u32,
    },
    /// Read CSTS, after a while, and give it to the next call.
    ReadStatus,
    /// It is ready.
    Ready,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Disabling,
    Idle(u64),
    Writing(usize),
    Enabling(u64),
    Ready,
}

/// Resets a controller and enables it again. Once it is idle it writes no memory; queues are to be
/// zeroed then ([`super::QueuePair::begin`]).
#[derive(Clone, Debug)]
pub struct Enable {
    limit_ns: u64,
    writes: [(u64, u32); 6],
    state: State,
}

impl Enable {
    /// With an admin queue of this depth at these bus addresses.
    ///
    /// # Panics
    ///
    /// If the depth is not from 2 to 4,096, as admin queues have.
    #[must_use]
    pub fn new(
        capabilities: &Capabilities,
        depth: u16,
        submissions: u64,
        completions: u64,
    ) -> Self {
        assert!(
            (2..=4096).contains(&depth),
            "an admin queue of {depth} entries"
        );
        let sizes = u32::from(depth.wrapping_sub(1));
        let halves = |address: u64| {
            let [a, b, c, d, high @ ..] = address.to_le_bytes();
            [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(high)]
        };
        let ([asq, asq_high], [acq, acq_high]) = (halves(submissions), halves(completions));
        Self {
            limit_ns: capabilities.ready_limit_ns,
            writes: [
                (register::AQA, sizes << 16 | sizes),
                (register::ASQ, asq),
                (register::ASQ + 4, asq_high),
                (register::ACQ, acq),
                (register::ACQ + 4, acq_high),
                (register::CC, ENABLED),
            ],
            state: State::Disabling,
        }
    }

    /// Whether the controller is idle: it writes no memory until it is enabled.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Writing(_))
    }

    /// The next step. `status` is CSTS, if the step before was to read it.
    ///
    /// # Errors
    ///
    /// If the controller cannot be used.
    pub fn step(&mut self, now_ns: u64, status: Option<u32>) -> Result<Step, EnableError> {
        if status == Some(u32::MAX) {
            return Err(EnableError::Gone);
        }
        match self.state {
            State::Disabling => {
                self.state = State::Idle(now_ns.saturating_add(self.limit_ns));
                Ok(Step::Write {
                    at: register::CC,
                    value: ENABLED & !1,
                })
            }
            State::Idle(limit_ns) => match status {
                Some(status) if status & READY == 0 => {
                    self.state = State::Writing(0);
                    self.step(now_ns, None)
                }
                _ => self.wait(now_ns, limit_ns, false),
            },
            State::Writing(number) => {
                let (at, value) = self.writes[number];
                self.state = match number.wrapping_add(1) < self.writes.len() {
                    true => State::Writing(number.wrapping_add(1)),
                    false => State::Enabling(now_ns.saturating_add(self.limit_ns)),
                };
                Ok(Step::Write { at, value })
            }
            State::Enabling(limit_ns) => match status {
                Some(status) if status & FATAL != 0 => Err(EnableError::Fatal),
                Some(status) if status & READY != 0 => {
                    self.state = State::Ready;
                    Ok(Step::Ready)
                }
                _ => self.wait(now_ns, limit_ns, true),
            },
            State::Ready => Ok(Step::Ready),
        }
    }

    fn wait(&self, now_ns: u64, limit_ns: u64, ready: bool) -> Result<Step, EnableError> {
        if now_ns > limit_ns {
            let limit_ms = self.limit_ns / 1_000_000;
            return Err(EnableError::Slow { ready, limit_ms });
        }
        Ok(Step::ReadStatus)
    }
}
