//! A switch and a relay in a virtual world, for an hour of its time: both sides of the protocol
//! (`strata_relay::protocol`), requester and responder, and the log on a virtual disk, while
//! packets are lost, delayed and duplicated, connections break, disks fail and either end dies.
//!
//! What must hold is conservation (`log.rs`), and that nothing hangs: once faults stop, what was
//! recorded is on disk and the recording closed within bounded time.
//!
//!     SEEDS=1000 cargo test -p strata-relay --test simulation     as many worlds
//!     SEED=17 cargo test -p strata-relay --test simulation        this one
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers are small, or random"
)]

mod disk;
mod log;
mod net;
mod relay;
mod switch;

use std::io::ErrorKind;

use strata_control::elastic::Degradation;
use strata_rdma::OnLoss;
use strata_testkit::sim::{self, MS, SECOND, Weather};
use strata_testkit_disk::SimDisk;

use net::{End, Event, FAULTS, Fault, Net};
use relay::RelayNode;
use switch::{Account, SwitchNode, Way};

const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
/// Faults stop at this time.
const CALM: u64 = HOUR - 5 * MINUTE;
/// Packets stop at this time; their processing ends soon after.
const END: u64 = HOUR - 3 * MINUTE;

struct World {
    net: Net,
    disk: SimDisk,
    relay: Option<RelayNode>,
    switch: Option<SwitchNode>,
    accounts: Vec<Account>,
    way: Way,
    seed: u64,
}

impl World {
    /// A world with faults at random times.
    fn new(seed: u64) -> Self {
        let mut world = Self::calm(seed);
        let net = &mut world.net;
        for _ in 0..5 + net.rng.below(30) {
            let fault = FAULTS[net.rng.below(FAULTS.len() as u64) as usize];
            let at = net.rng.below(CALM);
            net.queue.at(at, Event::Fault(fault));
        }
        world
    }

    /// A world without faults of its own.
    fn calm(seed: u64) -> Self {
        let mut net = Net::new(seed);
        let way = match net.rng.below(8) {
            0 => Way {
                reliable: false,
                on_loss: OnLoss::Resend,
                reads_files: false,
            },
            1 => Way {
                reliable: true,
                on_loss: OnLoss::Skip,
                reads_files: false,
            },
            _ => Way {
                reliable: true,
                on_loss: OnLoss::Resend,
                reads_files: seed.is_multiple_of(2),
            },
        };
        net.queue.at(0, Event::Start(End::Relay));
        net.queue.at(MS, Event::Start(End::Switch));
        net.queue.at(SECOND, Event::Feed);
        Self {
            net,
            disk: SimDisk::new(),
            relay: None,
            switch: None,
            accounts: Vec::new(),
            way,
            seed,
        }
    }

    fn run(&mut self) {
        self.run_until(END);
        self.finish();
    }

    fn run_until(&mut self, time: u64) {
        while let Some(event) = self.net.queue.take(time) {
            self.happens(event);
        }
    }

    /// What the switch currently gives up.
    fn degradation(&self) -> Degradation {
        self.switch.as_ref().expect("it runs").degradation()
    }

    /// When the mode of the switch changed, and to what.
    fn changes(&self) -> &[(u64, Degradation)] {
        let switch = self.switch.as_ref().expect("it runs");
        &switch.account.changes
    }

    /// Stops the switch, then the relay, and checks what is on disk.
    fn finish(&mut self) {
        // No more faults, and no more packets.
        self.net.weather = Weather::default();
        self.mend(Fault::FullDisk);
        self.mend(Fault::SlowDisk);
        self.mend(Fault::ShortDisk);
        if let Some(switch) = &mut self.switch {
            switch.end(&mut self.net);
        }
        while self.switch.is_some()
            && let Some(event) = self.net.queue.take(HOUR)
        {
            self.happens(event);
        }
        assert!(self.switch.is_none(), "a switch that does not end");
        let last = self
            .accounts
            .last()
            .and_then(|account| account.report.as_ref());
        if let Some(failure) = last.and_then(|report| report.failure.as_ref()) {
            panic!("nothing has gone wrong for minutes: {failure}");
        }
        self.net
            .queue
            .retain(|event| !matches!(event, Event::Start(_)));
        if let Some(relay) = &mut self.relay {
            relay.stop(&mut self.net);
        }
        while self.relay.is_some()
            && let Some(event) = self.net.queue.take(HOUR + MINUTE)
        {
            self.happens(event);
        }
        assert!(self.relay.is_none(), "a relay that does not end");
        log::check(&self.disk, &self.accounts);
        for account in &self.accounts {
            check_changes(&account.changes);
        }
        if std::env::var_os("SEED").is_some() {
            let sum = |of: fn(&Account) -> u64| self.accounts.iter().map(of).sum::<u64>();
            #[allow(clippy::print_stderr, reason = "asked for")]
            {
                eprintln!(
                    "seed {}: {:?}, {} recordings of {} packets, {} confirmed, {} disconnections",
                    self.seed,
                    self.way,
                    self.accounts.len(),
                    sum(|it| it.numbered),
                    sum(|it| it.stored.len() as u64),
                    sum(|it| it.report.as_ref().map_or(0, |r| r.disconnections)),
                );
            }
        }
    }

    fn happens(&mut self, event: Event) {
        let net = &mut self.net;
        match event {
            Event::Feed => self.feed(),
            Event::Wake(end) if !net.is_woken(end) => {}
            Event::Wake(End::Switch) => {
                if let Some(switch) = &mut self.switch {
                    switch.run(net);
                }
            }
            Event::Wake(End::Relay) => {
                if let Some(relay) = &mut self.relay {
                    relay.run_all(net);
                }
            }
            Event::Connect(conn) => match &mut self.relay {
                Some(relay) => relay.connect(conn, net),
                None => net.connected(conn, false),
            },
            Event::Connected(conn, is_there) => match &mut self.switch {
                Some(switch) => switch.connected(conn, is_there, net),
                None if is_there => net.hang_up(conn, End::Relay),
                None => {}
            },
            Event::Bytes(conn, End::Switch, bytes) => match &mut self.switch {
                Some(switch) => switch.bytes(conn, &bytes, net),
                None => net.hang_up(conn, End::Relay),
            },
            Event::Bytes(conn, End::Relay, bytes) => match &mut self.relay {
                Some(relay) => relay.bytes(conn, &bytes, net),
                None => net.hang_up(conn, End::Switch),
            },
            Event::HungUp(conn, End::Switch) => {
                if let Some(switch) = &mut self.switch {
                    switch.hung_up(conn, net);
                }
            }
            Event::HungUp(conn, End::Relay) => {
                if let Some(relay) = &mut self.relay {
                    relay.hung_up(conn, net);
                }
            }
            Event::Packet(conn, End::Switch, bytes) => {
                if let Some(switch) = &mut self.switch {
                    switch.packet(conn, &bytes, net);
                }
            }
            Event::Packet(_, End::Relay, bytes) => {
                if let Some(relay) = &mut self.relay {
                    relay.packet(&bytes, net);
                }
            }
            Event::Write(writing) => {
                let relay = self.relay.as_mut().expect("a dead relay writes nothing");
                relay.written(*writing, net);
            }
            Event::Fault(fault) => self.goes_wrong(fault),
            Event::Mend(fault) => self.mend(fault),
            Event::Start(End::Relay) => self.start_relay(),
            Event::Start(End::Switch) => self.start_switch(),
        }
        self.bury();
    }

    fn feed(&mut self) {
        let rng = &mut self.net.rng;
        let packets = match rng.below(80) {
            // More than fits in the relay's memory.
            0 => 3000 + rng.below(3000),
            1..10 => 50 + rng.below(200),
            _ => 1 + rng.below(20),
        };
        let next = match rng.below(4) {
            0 => rng.below(200 * MS),
            1 => rng.below(5 * SECOND),
            _ => rng.below(60 * SECOND),
        };
        self.net.after(next, Event::Feed);
        if self.net.now() < END
            && let Some(switch) = &mut self.switch
            && !switch.is_over()
        {
            switch.feed(packets, &mut self.net);
        }
    }

    fn start_relay(&mut self) {
        if self.relay.is_none() {
            match RelayNode::start(&self.disk, &mut self.net) {
                Ok(relay) => self.relay = Some(relay),
                Err(_) => self.net.after(SECOND, Event::Start(End::Relay)),
            }
        }
    }

    fn start_switch(&mut self) {
        if self.switch.is_none() {
            let session = self.accounts.len() as u64 + (self.seed << 16);
            self.switch = Some(SwitchNode::new(session, self.way, &mut self.net));
        }
    }

    /// Restarts processes that have ended by themselves.
    fn bury(&mut self) {
        if self
            .relay
            .as_ref()
            .is_some_and(|r| r.is_ending() && r.is_idle())
        {
            self.relay = None;
            let later = self.net.rng.below(10 * SECOND);
            self.net.after(later, Event::Start(End::Relay));
        }
        if self.switch.as_ref().is_some_and(SwitchNode::is_over) {
            self.switch_is_gone();
        }
    }

    fn switch_is_gone(&mut self) {
        if let Some(switch) = self.switch.take() {
            self.accounts.push(switch.into_account(&mut self.net));
            if self.net.now() < END {
                let later = self.net.rng.below(10 * SECOND);
                self.net.after(later, Event::Start(End::Switch));
            }
        }
    }

    /// The relay's process is gone, with everything in its memory.
    fn relay_is_gone(&mut self) {
        let Some(relay) = self.relay.take() else {
            return;
        };
        for conn in relay.connections() {
            if self.net.rng.chance(700_000) {
                self.net.hang_up(conn, End::Switch);
            }
        }
        self.net
            .queue
            .retain(|event| !matches!(event, Event::Write(_)));
        drop(relay);
        let later = self.net.rng.below(20 * SECOND);
        self.net.after(later, Event::Start(End::Relay));
    }

    fn goes_wrong(&mut self, fault: Fault) {
        let net = &mut self.net;
        match fault {
            Fault::Weather => {
                net.weather = Weather {
                    loss: net.rng.below(300_000),
                    duplication: net.rng.below(50_000),
                    reordering: net.rng.below(50_000),
                    delay: net.rng.below(30 * MS),
                    jitter: net.rng.below(10 * MS),
                    cut_until: net.weather.cut_until,
                };
                let later = net.rng.below(30 * SECOND);
                net.after(later, Event::Mend(fault));
            }
            Fault::Cut => {
                let most = if net.rng.chance(500_000) {
                    3 * SECOND
                } else {
                    50 * SECOND
                };
                net.weather.cut_until = net.now() + net.rng.below(most);
            }
            Fault::Reset => {
                let conns = self
                    .relay
                    .as_ref()
                    .map(|relay| relay.connections().collect());
                let conns: Vec<u64> = conns.unwrap_or_default();
                for conn in conns {
                    net.hang_up(conn, End::Switch);
                    net.hang_up(conn, End::Relay);
                }
            }
            Fault::KillRelay => self.relay_is_gone(),
            Fault::PowerLoss => {
                self.relay_is_gone();
                self.disk = self.disk.after_power_loss(self.net.rng.bits());
            }
            Fault::StopRelay => {
                if let Some(relay) = &mut self.relay {
                    relay.stop(net);
                }
            }
            Fault::KillSwitch => self.switch_is_gone(),
            Fault::StopSwitch => {
                if let Some(switch) = &mut self.switch {
                    switch.stop(net);
                }
            }
            Fault::FullDisk => {
                self.disk.fail(1, u64::MAX, ErrorKind::StorageFull);
                let later = net.rng.below(30 * SECOND);
                net.after(later, Event::Mend(fault));
            }
            Fault::BadWrite => {
                let which = 1 + net.rng.below(10);
                self.disk.fail(which, 1, ErrorKind::Other);
            }
            Fault::ShortDisk => {
                net.disk_used = 0.97;
                let later = net.rng.below(120 * SECOND);
                net.after(later, Event::Mend(fault));
            }
            Fault::SlowDisk => {
                net.disk_ns = net.rng.below(3 * SECOND) + 1;
                let later = net.rng.below(30 * SECOND);
                net.after(later, Event::Mend(fault));
            }
        }
    }

    fn mend(&mut self, fault: Fault) {
        match fault {
            Fault::Weather => {
                let cut_until = self.net.weather.cut_until;
                self.net.weather = Weather {
                    cut_until,
                    ..Weather::default()
                };
            }
            Fault::FullDisk => self.disk.fail(u64::MAX, 0, ErrorKind::Other),
            Fault::SlowDisk => self.net.disk_ns = 5 * MS,
            Fault::ShortDisk => self.net.disk_used = 0.5,
            _ => {}
        }
    }
}

#[test]
fn whatever_happens_what_was_confirmed_is_there_once_and_the_rest_is_counted() {
    sim::seeds(30, |seed| World::new(seed).run());
}

/// Modes do not flap: what is given up comes back after the hold time (10 s), which doubles when
/// it was too early.
fn check_changes(changes: &[(u64, Degradation)]) {
    for (first, (start, _)) in changes.iter().enumerate() {
        let within = changes[first..].iter();
        let count = within.take_while(|(at, _)| at - start <= MINUTE).count();
        assert!(count <= 8, "{count} changes within a minute: {changes:?}");
    }
}

/// The relay's disk fills, and the switch learns it: it keeps less, even if its connections break
/// meanwhile, and as much as before once there is space.
#[test]
fn switches_keep_less_while_the_relays_disk_is_nearly_full() {
    sim::seeds(10, |seed| {
        let mut world = World::calm(seed);
        let (full_at, free_at) = (10 * MINUTE, 15 * MINUTE);
        world.run_until(full_at);
        assert!(world.changes().is_empty(), "{:?}", world.changes());
        world.net.disk_used = 0.97;
        world.run_until(full_at + 5 * SECOND);
        assert!(world.degradation().sampled, "{:?}", world.changes());
        for step in 1..15 {
            world.run_until(full_at + step * 20 * SECOND);
            world.goes_wrong(Fault::Reset);
        }
        world.run_until(free_at);
        let up = world.changes().len();
        assert!((1..=2).contains(&up), "only more: {:?}", world.changes());
        world.net.disk_used = 0.5;
        world.run_until(free_at + 9 * SECOND);
        assert_eq!(world.changes().len(), up, "not at once");
        world.run_until(free_at + MINUTE);
        assert_eq!(
            world.degradation(),
            Degradation::default(),
            "{:?}",
            world.changes()
        );
        let all = world.changes().len();
        assert!(all <= 2 * up, "{:?}", world.changes());
        world.run_until(END);
        assert_eq!(world.changes().len(), all, "nothing more");
        let account = &world.switch.as_ref().expect("it runs").account;
        assert!(account.sampled_out > 0 && account.numbered > 0);
        world.finish();
    });
}

/// The first definitions, and the block that needs them, are on their way to a disk that takes seconds when the relay
/// is killed or loses power: whatever is left of the two, no packet refers to what is nowhere.
#[test]
fn a_relay_that_dies_while_it_writes_leaves_no_packets_that_nothing_reads() {
    sim::seeds(100, |seed| {
        let mut world = World::calm(seed);
        world.way = Way {
            reliable: true,
            on_loss: OnLoss::Resend,
            reads_files: false,
        };
        world.net.disk_ns = 3 * SECOND;
        world.run_until(SECOND);
        if let Some(switch) = &mut world.switch {
            switch.feed(50, &mut world.net);
        }
        // The block is full after a second, or was when more came.
        let dies_at = 2 * SECOND + world.net.rng.below(4 * SECOND);
        world.run_until(dies_at);
        world.goes_wrong([Fault::KillRelay, Fault::PowerLoss][(seed % 2) as usize]);
        world.run_until(2 * MINUTE);
        world.finish();
    });
}

/// Whatever a switch does about loss, its controller reads it: as the share of what was sent meanwhile, and
/// nothing of it before and after.
#[test]
fn what_is_lost_on_the_way_is_read_by_who_skips_and_who_hears_nothing_too() {
    sim::seeds(9, |seed| {
        let mut world = World::calm(seed);
        world.way = Way {
            reliable: seed % 3 != 0,
            on_loss: [OnLoss::Skip, OnLoss::Resend][(seed % 3 / 2) as usize],
            reads_files: false,
        };
        let mut at = 10 * SECOND;
        let mut minute = |world: &mut World, loss: u64| {
            world.net.weather.loss = loss;
            let before = world.switch.as_ref().map_or((0, 0), SwitchNode::rdma);
            for _ in 0..60 {
                at += SECOND;
                world.run_until(at);
                let switch = world.switch.as_mut().expect("it runs");
                switch.feed(100, &mut world.net);
            }
            world.net.weather = Weather::default();
            at += 10 * SECOND;
            world.run_until(at);
            let after = world.switch.as_ref().expect("it runs").rdma();
            (after.0 - before.0, after.1 - before.1)
        };
        let (sent, lost) = minute(&mut world, 0);
        assert!(sent > 1000 && lost == 0, "{lost} of {sent}");
        let (sent, lost) = minute(&mut world, 100_000);
        assert!(sent > 1000 && lost <= sent, "{lost} of {sent}");
        // A tenth is lost; of a window, all after a gap are sent again or skipped.
        assert!(lost > sent / 20, "{:?}: {lost} of {sent}", world.way);
        let (sent, lost) = minute(&mut world, 0);
        assert!(sent > 1000 && lost == 0, "{lost} of {sent}");
        world.finish();
    });
}

/// The relay's disk is so slow that all memory waits for it.
#[test]
fn switches_keep_less_while_the_relays_disk_is_slow() {
    sim::seeds(10, |seed| {
        let mut world = World::calm(seed);
        let (slow_at, fast_at) = (10 * MINUTE, 13 * MINUTE);
        world.run_until(slow_at);
        world.net.disk_ns = 60 * SECOND;
        let mut kept_less = false;
        for step in 1..=180 {
            if let Some(switch) = &mut world.switch {
                switch.feed(300, &mut world.net);
            }
            world.run_until(slow_at + step * SECOND);
            kept_less |= world.degradation().partial;
        }
        assert!(kept_less, "{:?}", world.changes());
        world.mend(Fault::SlowDisk);
        world.run_until(fast_at + 6 * MINUTE);
        assert_eq!(
            world.degradation(),
            Degradation::default(),
            "{:?}",
            world.changes()
        );
        let changes = world.changes().len();
        assert!(changes <= 16, "{changes} changes: {:?}", world.changes());
        world.finish();
    });
}

/// A disk that is nearly full every other moment causes few changes, not one each time.
#[test]
fn a_shortage_that_comes_and_goes_does_not_make_modes_flap() {
    const PERIODS: [u64; 3] = [3 * SECOND, 15 * SECOND, 40 * SECOND];
    sim::seeds(30, |seed| {
        let period = PERIODS[(seed % 3) as usize];
        let mut world = World::calm(seed);
        let (start, end) = (5 * MINUTE, 35 * MINUTE);
        let mut at = start;
        while at < end {
            world.run_until(at);
            world.net.disk_used = 1.47 - world.net.disk_used;
            at += period;
        }
        world.net.disk_used = 0.5;
        world.run_until(end + 6 * MINUTE);
        assert_eq!(
            world.degradation(),
            Degradation::default(),
            "{:?}",
            world.changes()
        );
        let changes = world.changes().len();
        assert!(
            changes <= 30,
            "{changes} in 30 minutes: {:?}",
            world.changes()
        );
        check_changes(world.changes());
        world.finish();
    });
}
