//! Gives up payload while packets are lost because CPUs are short: what the kernel copies of a packet costs as
//! much as all that is done with it afterwards.

use std::time::{Duration, Instant};

use strata_capture::live::{CUT_BYTES_MIN, Contention, CopyLimit, softnet_dropped};
use strata_control::contention::Shedding;
use strata_control::{Controller, ShedStatus};
use strata_wire::count_of;

use crate::spec::Shed;

/// How often the host's CPUs are read: the kernel counts their time in ticks.
const CORES_EVERY: Duration = Duration::from_secs(1);
/// Copying whole packets again takes about a fifth of a CPU that receives them: with more than this share of
/// its time in software interrupts it has no room for that.
const BUSY: f64 = 0.7;
/// Losses of CPUs' receive queues are of all traffic of the host. They are taken for ours if packets are captured
/// at a rate that copying them matters, this number over [`RECENT`] looks, and a thousandth of them is lost.
const RECEIVED_MIN: u64 = 4_000;
const RECENT: usize = 4;
/// The mode in which whole packets were asked for.
const KEEPS_ALL: &str = "log-all";

/// Watches losses, and limits what is copied.
pub(crate) struct Shedder {
    limit: CopyLimit,
    what: Shed,
    contention: Contention,
    started: Instant,
    cores_at: Instant,
    is_busy: bool,
    /// Packets lost until the last look: by CPUs' receive queues, and in rings and cards.
    in_queues: Option<u64>,
    elsewhere: Option<u64>,
    /// Packets that rings had received at the latest looks, the last one first.
    received: [u64; RECENT],
    state: Shedding,
}

impl Shedder {
    /// `None` if the kernel cannot be told what to copy.
    pub(crate) fn new(limit: Option<CopyLimit>, what: Shed) -> Option<Self> {
        let limit = limit?;
        let now = Instant::now();
        let mut contention = Contention::open();
        contention.since_last();
        Some(Self {
            limit,
            what,
            contention,
            started: now,
            cores_at: now,
            is_busy: false,
            in_queues: None,
            elsewhere: None,
            received: [0; RECENT],
            state: Shedding::default(),
        })
    }

    /// Looks at losses. By now, rings had `received` packets, and `elsewhere` packets were lost in
    /// rings and cards. Returns what to report. `gives_way`: headers are all that is copied anyway.
    pub(crate) fn look(
        &mut self,
        controller: &Controller,
        (received, elsewhere): (u64, u64),
        gives_way: bool,
    ) -> Option<String> {
        let now = Instant::now();
        if now - self.cores_at >= CORES_EVERY {
            self.cores_at = now;
            let found = self.contention.since_last();
            self.is_busy = found.is_some_and(|found| found.softirq >= BUSY);
        }
        let gained = self.gained(received, elsewhere);
        let since = now.duration_since(self.started).as_nanos();
        let now_ns = u64::try_from(since).expect("it runs for less than 500 years");
        let was = self.state.is_shedding();
        let may = match self.what {
            Shed::Auto => controller.asked_mode() != KEEPS_ALL,
            Shed::Payload => true,
            Shed::Packets => false,
        };
        let is_busy = self.is_busy && may;
        self.state = self.state.next(gained > 0 && may, is_busy, now_ns);
        let is_now = self.state.is_shedding();
        self.limit.set(match is_now || gives_way {
            true => CUT_BYTES_MIN.into(),
            false => u32::MAX,
        });
        let seconds = Duration::from_nanos(self.state.total_ns(now_ns)).as_secs_f64();
        controller.note_shed(ShedStatus {
            now: is_now,
            times: self.state.times(),
            seconds,
            bytes: CUT_BYTES_MIN.into(),
        });
        match (was, is_now) {
            (false, true) => Some(format!(
                "{} lost because CPUs are overloaded: until they are free again, at most \
                 {CUT_BYTES_MIN} bytes of each packet are captured (--shed packets prevents it, but \
                 then more packets are lost)",
                count_of(gained, "packet")
            )),
            (true, false) => Some(format!(
                "packets are captured whole again; they were cut for {seconds:.1} s in all so far"
            )),
            _ => None,
        }
    }
    /// Packets lost since the last look, as far as copying less could have saved them.
    fn gained(&mut self, received: u64, elsewhere: u64) -> u64 {
        let since = |before: Option<u64>, now: u64| before.map_or(0, |it| now.saturating_sub(it));
        let elsewhere = since(self.elsewhere.replace(elsewhere), elsewhere);
        let in_queues = match softnet_dropped() {
            Some(now) => since(self.in_queues.replace(now), now),
            None => 0,
        };
        self.received.rotate_right(1);
        let oldest = std::mem::replace(&mut self.received[0], received);
        let recent = received.saturating_sub(oldest);
        let is_ours = recent >= RECEIVED_MIN && in_queues >= recent / 1000;
        match is_ours {
            true => in_queues.saturating_add(elsewhere),
            false => elsewhere,
        }
    }
}
