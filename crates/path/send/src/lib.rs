//! Sending frames out of an interface, each at its time.
//!
//! ```text
//! Sender        filling in frames; sending a run of them, by which method
//! frames        XDP live frames: fastest, where kernel and driver support them
//! socket        an AF_PACKET socket and sendmmsg: every interface
//! mirror        copies of packets that are recorded
//! slots         the memory that holds the frames
//! ```
//!
//! PACKET_TX_RING is not here: between veth ends it sends no faster than `sendmmsg`.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![expect(
    clippy::arithmetic_side_effects,
    reason = "nothing is parsed: slots and frames that this process has made, and times of its own clock"
)]

mod frames;
mod mirror;
mod slots;
mod socket;
mod ticks;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use strata_sys::{interface as asked, pause};
use strata_wire::exact;

use frames::LiveFrames;
pub use mirror::Mirror;
use slots::Slots;
use socket::PacketSocket;
pub use ticks::Ticks;

/// How frames leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `sendmmsg` on a packet socket: works on every interface.
    Sendmmsg,
    /// Frames that an XDP program makes in the kernel (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux
    /// 5.18): several times as fast. The driver must transmit XDP frames; the other end
    /// of a veth pair must have XDP or generic receive offload on.
    LiveFrames,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sendmmsg => "sendmmsg",
            Self::LiveFrames => "XDP live frames",
        })
    }
}

/// Why frames cannot be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// There is no such interface.
    #[error("there is no interface '{0}' here: `ip link` lists them")]
    NoSuchInterface(String),
    /// The interface is down.
    #[error("{0}: the interface is down: `ip link set {0} up`")]
    Down(String),
    /// The process lacks the permission to send raw frames.
    #[error(
        "{0}: no permission to send frames: CAP_NET_RAW is needed (run as root, or see setcap in \
         docs/recording.md)"
    )]
    NotPermitted(String),
    /// A frame does not fit.
    #[error(
        "{interface}: a frame of {len} bytes is too long to be sent here, {max} at most: raise the \
         MTU, as in `ip link set dev {interface} mtu {}`",
        .len.saturating_sub(14)
    )]
    TooLong {
        /// The interface.
        interface: String,
        /// Bytes of the frame.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// The requested method does not work here.
    #[error(
        "{0}: live frames do not arrive: the driver does not transmit XDP frames, or the other end \
         of the veth pair does not accept them (`ethtool -K OTHER gro on` there): fix this, or use \
         `--method sendmmsg`"
    )]
    NoLiveFrames(String),
    /// A system call failed.
    #[error("{interface}: {call}: {source}")]
    System {
        /// The interface.
        interface: String,
        /// What was tried.
        call: &'static str,
        /// What the kernel says.
        source: io::Error,
    },
}

/// What happened to frames, as far as the sender knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames given to the kernel.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that the interface reports dropped since the sender was opened; on a veth those for
    /// which the other end had no space.
    pub dropped: u64,
    /// ns in the system calls that gave frames to the kernel, and with it what frames cost on their
    /// way as far as the kernel takes them at once: on a veth, to the sockets of the other end.
    /// Unknown for live frames, whose calls wait for frames' times.
    pub sending_ns: u64,
}

impl Sent {
    /// Counts frames that were sent starting with slot `at`, round and round.
    fn count(&mut self, slots: &Slots, at: usize, end: usize, frames: u64) {
        self.frames += frames;
        let passes = frames / end as u64;
        if passes > 0 {
            let pass: usize = (0..end).map(|slot| slots.len(slot)).sum();
            self.bytes += passes * pass as u64;
        }
        let rest = exact::<usize>(frames % end as u64);
        let rest = (at..at + rest).map(|slot| slots.len(slot % end));
        self.bytes += rest.sum::<usize>() as u64;
    }
}

/// What to send, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first this many slots take turns in order, round and round.
    pub slots: usize,
    /// How many frames to send.
    pub frames: u64,
    /// What due times are relative to, on the clock of [`Sender::now_ns`].
    pub base_ns: u64,
    /// What each pass over the slots adds to that.
    pub pass_ns: u64,
}

/// Sends frames out of one interface. Has space for a number of them, which are written once and
/// may be sent many times.
#[derive(Debug)]
pub struct Sender {
    interface: String,
    slots: Slots,
    socket: PacketSocket,
    frames: Option<LiveFrames>,
    /// Whether live frames have been seen to leave, or another method has been taken.
    proven: bool,
    /// What this took, ns: frames after the first one are due later by this.
    delay_ns: u64,
    /// Whether the first frame of the next run has left already.
    is_ahead: bool,
    /// Whether another method may be taken instead.
    free: bool,
    sent: Sent,
    dropped_before: Option<u64>,
}

/// Bytes of the longest frame that an interface sends: its MTU, with the Ethernet header and a VLAN tag.
///
/// # Errors
/// [`SendError::System`] if there is no such interface.
pub fn frame_max_of(interface: &str) -> Result<usize, SendError> {
    let mtu = asked::mtu(interface).map_err(system(interface, "SIOCGIFMTU"))?;
    Ok(mtu as usize + 18)
}

/// Longer waits sleep, shorter ones spin: a sleep wakes up this much too late.
const SLEEP_LATE_NS: u64 = 150_000;

impl Sender {
    /// A sender with space for `slots` frames of at most `frame_max` bytes, at least one each.
    /// Without a method it uses the fastest that works here. The memory of all slots is allocated
    /// at once.
    ///
    /// `tail` is what all frames end with, empty if they differ in length or down to the last byte:
    /// live frames, whose pages hold it already, need not copy it each time.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn open(
        interface: &str,
        method: Option<Method>,
        slots: usize,
        frame_max: usize,
        tail: &[u8],
    ) -> Result<Self, SendError> {
        let system = |call| system(interface, call);
        let (socket, ifindex) = opened(interface)?;
        let interface_max = frame_max_of(interface)?;
        if frame_max > interface_max {
            return Err(SendError::TooLong {
                interface: interface.to_owned(),
                len: frame_max,
                max: interface_max,
            });
        }
        let wanted = match method {
            Some(method) => method == Method::LiveFrames,
            // Of the drivers that transmit XDP frames, only this one tells whether they left.
            None => driver(interface).is_some_and(|name| name == "veth"),
        };
        let live = (wanted && frame_max <= LiveFrames::FRAME_MAX)
            .then(|| LiveFrames::open(ifindex, slots, frame_max, tail));
        let (slots, frames) = match live {
            Some(Ok((slots, frames))) => (slots, Some(frames)),
            Some(Err(error)) if method.is_some() => return Err(system("XDP live frames")(error)),
            None if method == Some(Method::LiveFrames) => {
                return Err(SendError::TooLong {
                    interface: interface.to_owned(),
                    len: frame_max,
                    max: LiveFrames::FRAME_MAX,
                });
            }
            _ => (
                Slots::in_memory(slots, frame_max).map_err(system("memory for frames"))?,
                None,
            ),
        };
        Ok(Self {
            interface: interface.to_owned(),
            slots,
            socket,
            frames,
            proven: false,
            delay_ns: 0,
            is_ahead: false,
            free: method.is_none(),
            sent: Sent::default(),
            dropped_before: statistic(interface, "tx_dropped"),
        })
    }

    /// How frames leave. It is certain only after the first is sent.
    #[must_use]
    pub fn method(&self) -> Method {
        if self.frames.is_some() {
            Method::LiveFrames
        } else {
            Method::Sendmmsg
        }
    }

    /// Frames that there is space for.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots.count()
    }

    /// Puts a frame into a slot, to be sent `due_ns` after the start of a pass.
    ///
    /// # Errors
    /// [`SendError::TooLong`] if it does not fit.
    ///
    /// # Panics
    /// If there is no such slot, or the frame does not end with the announced tail.
    pub fn put(&mut self, slot: usize, frame: &[u8], due_ns: u64) -> Result<(), SendError> {
        if frame.len() > self.slots.frame_max() {
            return Err(SendError::TooLong {
                interface: self.interface.clone(),
                len: frame.len(),
                max: self.slots.frame_max(),
            });
        }
        self.slots.put(slot, frame, due_ns);
        Ok(())
    }

    /// Now, ns on the clock of [`Run::base_ns`].
    #[must_use]
    pub fn now_ns() -> u64 {
        monotonic_ns()
    }

    /// Sends frames, none before its time; returns when all have left or `stop` is set. A signal
    /// whose handler sets it takes effect at once.
    ///
    /// # Errors
    /// [`SendError`]; frames before the one that failed have been sent.
    ///
    /// # Panics
    /// If the run has no slots, or more than there are.
    pub fn send(&mut self, run: &Run, stop: &AtomicBool) -> Result<(), SendError> {
        assert!(run.slots > 0 && run.slots <= self.slots.count());
        let mut left = run.frames;
        let mut at = 0;
        if left > 0 {
            self.prove(run.base_ns)?;
            if std::mem::take(&mut self.is_ahead) {
                (left, at) = (left - 1, 1);
            }
        }
        let mut base_ns = run.base_ns.saturating_add(self.delay_ns);
        if let Some(frames) = &mut self.frames {
            let gap_ns = run.pass_ns / run.slots as u64;
            frames.begin(at, run.slots, base_ns, run.pass_ns);
            while left > 0 && !stop.load(Ordering::Relaxed) {
                let sent = frames.send(left, gap_ns);
                let sent = sent.map_err(|source| failed(&self.interface, source))?;
                self.sent.count(&self.slots, at, run.slots, sent);
                at = (at + exact::<usize>(sent)) % run.slots;
                left -= sent;
            }
            return Ok(());
        }
        while left > 0 && !stop.load(Ordering::Relaxed) {
            if at == run.slots {
                (at, base_ns) = (0, base_ns + run.pass_ns);
            }
            if !wait_until(base_ns + self.slots.due_ns(at), stop) {
                break;
            }
            let end = usize::try_from(left).map_or(run.slots, |left| run.slots.min(at + left));
            let began_ns = monotonic_ns();
            let sent = self.socket.send(&self.slots, at..end, base_ns);
            let sent = sent.map_err(|source| failed(&self.interface, source))?;
            self.sent.sending_ns += monotonic_ns() - began_ns;
            self.sent.count(&self.slots, at, run.slots, sent as u64);
            at += sent;
            left -= sent as u64;
        }
        Ok(())
    }

    /// Before the first frames: with live frames, sends the frame of the first slot, and checks whether it left, since
    /// an interface that does not take live frames is silent about it. The next [`Sender::send`] goes on with the second
    /// frame of its run. What this takes, up to a second, delays all that follows: nothing is overdue afterwards.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn prove(&mut self, base_ns: u64) -> Result<(), SendError> {
        if self.frames.is_none() || self.proven {
            return Ok(());
        }
        if !self.live_frame_leaves(base_ns) {
            if !self.free {
                return Err(SendError::NoLiveFrames(self.interface.clone()));
            }
            // Frames in an array belong to its program.
            if self.slots.are_shared() {
                let whole = self.slots.whole();
                self.slots = whole.map_err(system(&self.interface, "memory for frames"))?;
            }
            self.frames = None;
            let sent = self.socket.send(&self.slots, 0..1, base_ns);
            sent.map_err(|source| failed(&self.interface, source))?;
        }
        self.proven = true;
        self.is_ahead = true;
        self.delay_ns = monotonic_ns().saturating_sub(base_ns);
        self.sent.count(&self.slots, 0, 1, 1);
        Ok(())
    }

    /// Sends the first frame live; returns whether the interface counts it as sent.
    fn live_frame_leaves(&mut self, base_ns: u64) -> bool {
        // A receiver that keeps its core busy may be late.
        const WAITS: u32 = 500;
        let before = statistic(&self.interface, "tx_packets");
        let Some(frames) = &mut self.frames else {
            return false;
        };
        frames.begin(0, 1, base_ns, 0);
        if frames.send(1, 0).is_err() {
            return false;
        }
        for _ in 0..WAITS {
            let now = statistic(&self.interface, "tx_packets");
            if now.zip(before).is_some_and(|(now, before)| now > before) {
                return true;
            }
            pause::backoff(Duration::from_millis(1));
        }
        false
    }

    /// What has been sent so far.
    #[must_use]
    pub fn sent(&self) -> Sent {
        let dropped = statistic(&self.interface, "tx_dropped");
        Sent {
            // An interface that does not report a total reports none of these.
            dropped: dropped
                .zip(self.dropped_before)
                .map_or(0, |(now, before)| now.saturating_sub(before)),
            ..self.sent
        }
    }
}

/// Waits until a time; false if `stop` was set before.
fn wait_until(due_ns: u64, stop: &AtomicBool) -> bool {
    /// A signal may arrive just before a sleep.
    const SLEEP_MAX_NS: u64 = 100_000_000;
    loop {
        let now_ns = monotonic_ns();
        if now_ns >= due_ns {
            return true;
        }
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let left_ns = due_ns - now_ns;
        if left_ns > SLEEP_LATE_NS {
            pause::until(now_ns + (left_ns - SLEEP_LATE_NS).min(SLEEP_MAX_NS));
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock of `bpf_ktime_get_ns`.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    exact::<u64>(now.tv_sec) * 1_000_000_000 + exact::<u64>(now.tv_nsec)
}

fn failed(interface: &str, source: io::Error) -> SendError {
    SendError::System {
        interface: interface.to_owned(),
        call: "sending",
        source,
    }
}

/// Turns an error of a system call on an interface into ours.
fn system(interface: &str, call: &'static str) -> impl Fn(io::Error) -> SendError {
    move |source| match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => SendError::NotPermitted(interface.to_owned()),
        _ => SendError::System {
            interface: interface.to_owned(),
            call,
            source,
        },
    }
}

/// A socket that sends out of an interface that is up, and the interface's number.
fn opened(interface: &str) -> Result<(PacketSocket, u32), SendError> {
    let ifindex =
        asked::index(interface).map_err(|_| SendError::NoSuchInterface(interface.to_owned()))?;
    let flags = asked::flags(interface).map_err(system(interface, "SIOCGIFFLAGS"))?;
    if i32::from(flags) & libc::IFF_UP == 0 {
        return Err(SendError::Down(interface.to_owned()));
    }
    let socket = PacketSocket::open(ifindex).map_err(system(interface, "packet socket"))?;
    Ok((socket, ifindex))
}

/// A counter of the interface; `None` if sysfs does not have it.
fn statistic(interface: &str, name: &str) -> Option<u64> {
    let path = format!("/sys/class/net/{interface}/statistics/{name}");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The driver's name (`struct ethtool_drvinfo`, linux/ethtool.h).
fn driver(interface: &str) -> Option<String> {
    const GET_DRIVER_INFO: u32 = 3;
    let mut answer = [0_u8; 196];
    answer[..4].copy_from_slice(&GET_DRIVER_INFO.to_ne_bytes());
    asked::ethtool(interface, &mut answer).ok()?;
    let name = answer[4..36].split(|&byte| byte == 0).next()?;
    String::from_utf8(name.to_vec()).ok()
}
