//! A switch: a worker with packets identified by number, and the protocol's state machine.

use std::collections::VecDeque;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use strata_blocks::{
    BlockBuilder, BlockSink, BlockSource, Incoming, PacketRecord, Trees, link_channel,
};
use strata_control::elastic::{Degradation, ElasticState, follow};
use strata_rdma::OnLoss;
use strata_relay::RelayError;
use strata_relay::protocol::switch::{
    Connection, Entry, LinkReport, Path, Resumption, Search, Switch, SwitchOptions, Turn,
};
use strata_relay::protocol::{self, Begin, Decoder, Hello, HelloPath, Message};
use strata_store::SavedLedger;
use strata_testkit::sim::{MS, SECOND};
use strata_wire::roce::Packet;
use strata_wire::segment::Layout;
use strata_wire::{Interface, KeepKind, Ledger, LinkType, mix64};

use crate::disk::{degradation, options};
use crate::net::{Conn, End, Net};

/// The contents of packets after their first bytes, from an offset that depends on their number.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let words = (0..2048).map(mix64);
    words.flat_map(u64::to_le_bytes).collect()
});

/// The bytes of a session's packets, by number.
pub(crate) fn content(session: u64, seq: u64, out: &mut Vec<u8>) {
    let key = mix64(session << 32 ^ seq);
    let len = match key % 16 {
        0 => 60,
        1 => 1500,
        2 => 5000,
        _ => 60 + (key >> 8) as usize % 900,
    };
    out.clear();
    out.extend(key.to_le_bytes());
    out.extend(&PATTERN[(key >> 32) as usize % 8192..][..len - 8]);
}

pub(crate) fn record(seq: u64, data: &[u8]) -> PacketRecord<'_> {
    let len = u32::try_from(data.len()).unwrap();
    PacketRecord {
        ts_ns: 1_000_000 + seq * 1000,
        seq,
        wire_len: len,
        captured_len: len,
        header_len: 54,
        interface: 0,
        verdict: (seq % 5) as u16,
        keep: KeepKind::Full,
        has_timestamp: true,
        data,
        options: &[],
    }
}

/// The transport of a switch's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) reliable: bool,
    pub(crate) on_loss: OnLoss,
    /// It reads files: no number is missing, and what was not confirmed is sent again.
    pub(crate) reads_files: bool,
}

impl Way {
    /// Whether everything confirmed is there in full.
    pub(crate) fn is_lossless(self) -> bool {
        self.reliable && self.on_loss == OnLoss::Resend
    }
}

/// What is known about a recording's packets when its switch is gone.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) session: u64,
    pub(crate) way: Way,
    /// Packets that were numbered.
    pub(crate) numbered: u64,
    /// Those that the switch knew to be on disk. Of some it knows only the number
    /// ([`LinkReport::found`]): these are among those that may be it.
    pub(crate) stored: Vec<u64>,
    /// Packets that may be those in the report.
    pub(crate) found: Vec<(u64, Vec<u64>)>,
    /// The switch's report at its end; none if it was killed.
    pub(crate) report: Option<LinkReport>,
    /// Packets whose fate it never reported.
    pub(crate) unsettled: usize,
    /// Packets not numbered, since the relay asked for less.
    pub(crate) sampled_out: u64,
    /// When the mode changed, and to what.
    pub(crate) changes: Vec<(u64, Degradation)>,
}

#[allow(clippy::large_enum_variant, reason = "there is one")]
enum Link {
    Down,
    Connecting(Conn),
    Entering {
        conn: Conn,
        entry: Entry,
        decoder: Decoder,
        from: Resumption,
        key: u32,
        path: HelloPath,
        end_ns: u64,
    },
    Up {
        conn: Conn,
        connection: Connection,
        decoder: Decoder,
        hung_up: bool,
    },
    Over,
}

pub(crate) struct SwitchNode {
    pub(crate) account: Account,
    sink: BlockSink,
    source: BlockSource,
    /// Numbers of packets whose fate is unknown.
    fed: VecDeque<u64>,
    switch: Option<Switch>,
    link: Link,
    retry_ns: u64,
    mtu: usize,
    layout: Layout,
    /// Its worker has ended.
    has_ended: bool,
    elastic: ElasticState,
}

impl SwitchNode {
    pub(crate) fn new(session: u64, way: Way, net: &mut Net) -> Self {
        let (sink, source) = link_channel(64 << 10, 24);
        let account = Account {
            session,
            way,
            numbered: 0,
            stored: Vec::new(),
            found: Vec::new(),
            report: None,
            unsettled: 0,
            sampled_out: 0,
            changes: Vec::new(),
        };
        net.wake(End::Switch, 0);
        Self {
            account,
            sink,
            source,
            fed: VecDeque::new(),
            switch: None,
            link: Link::Down,
            retry_ns: 0,
            mtu: [256, 1024, 4096][net.rng.below(3) as usize],
            layout: match net.rng.chance(200_000) {
                true => Layout::PowersOfTwo,
                false => Layout::Mtu,
            },
            has_ended: false,
            elastic: ElasticState::default(),
        }
    }

    /// What it currently gives up.
    pub(crate) fn degradation(&self) -> Degradation {
        self.elastic.degradation()
    }

    /// Follows the relay, as a controller does.
    fn follow(&mut self, net: &mut Net) {
        let none = Degradation::default();
        let asked = match &self.switch {
            Some(switch) => degradation(switch.shortage()),
            None => none,
        };
        let before = self.degradation();
        self.elastic = follow(&self.elastic, asked, &options(), net.now());
        let now = self.degradation();
        if now != before {
            self.account.changes.push((net.now(), now));
        }
        if (asked, now) != (none, none) && !self.is_over() {
            net.wake(End::Switch, net.now() + SECOND);
        }
    }

    /// What was sent and what of it was lost, as a controller reads it.
    pub(crate) fn rdma(&self) -> (u64, u64) {
        let progress = self.sink.progress();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (read(&progress.rdma_sent), read(&progress.rdma_again))
    }

    /// The recording's name at the relay.
    pub(crate) fn name(session: u64) -> String {
        format!("session {session}")
    }

    /// Processes reports about the fate of packets.
    fn account(&mut self) {
        account(&mut self.account, &mut self.sink, &mut self.fed);
    }

    fn define(block: &mut BlockBuilder, packet: &PacketRecord<'_>) {
        if block.needs_context() {
            block.define_context(
                b"{\"mode\":\"m\",\"model\":\"x\",\"classes\":[],\"granularities\":[]}",
            );
        }
        if block.needs_interface(packet.interface) {
            block.define_interface(packet.interface, &Interface::new(LinkType(1), 65_535));
        }
        if block.needs_verdict(packet.verdict) {
            block.define_verdict(
                packet.verdict,
                packet.verdict as u8,
                Trees::Packet,
                9,
                &[1, 2, 3],
            );
        }
    }

    /// Packets arrive; those without a free block are dropped, and numbered.
    pub(crate) fn feed(&mut self, packets: u64, net: &mut Net) {
        if self.has_ended {
            return;
        }
        self.account();
        let degradation = self.degradation();
        let kept = match (degradation.partial, degradation.sampled) {
            (false, false) => packets,
            (true, false) => packets.div_ceil(2),
            (_, true) => packets.div_ceil(8),
        };
        self.account.sampled_out += packets - kept;
        let packets = kept;
        let mut block = self.sink.take();
        let mut data = Vec::new();
        for _ in 0..packets {
            let seq = self.account.numbered;
            content(self.account.session, seq, &mut data);
            if block
                .as_ref()
                .is_some_and(|block| block.room() < data.len() + 2048)
            {
                let full = block.take().unwrap();
                self.sink.submit(full).unwrap();
                block = self.sink.take();
            }
            if block.is_none() && self.account.way.reads_files {
                // The file is read on later.
                break;
            }
            self.account.numbered += 1;
            if let Some(block) = &mut block {
                let packet = record(seq, &data);
                Self::define(block, &packet);
                block.push_packet(&packet, packet.verdict as u8);
                self.fed.push_back(seq);
            }
        }
        if let Some(block) = block {
            self.sink.submit(block).unwrap();
        }
        let progress = self.sink.progress();
        progress
            .next_seq
            .store(self.account.numbered, Ordering::Relaxed);
        progress.seen_packets.store(
            self.account.numbered + self.account.sampled_out,
            Ordering::Relaxed,
        );
        net.wake(End::Switch, 0);
    }

    /// Nothing more will arrive.
    pub(crate) fn end(&mut self, net: &mut Net) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.sink.end_handle().end();
        }
        net.wake(End::Switch, 0);
    }

    /// Tells it to stop.
    pub(crate) fn stop(&mut self, net: &mut Net) {
        if let Some(switch) = &mut self.switch {
            switch.stop(net.now());
        }
        self.end(net);
    }

    /// Whether its process has ended by itself.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.link, Link::Over)
    }

    /// What is known about its packets, now that it is gone.
    pub(crate) fn into_account(mut self, net: &mut Net) -> Account {
        self.account();
        let conn = match &self.link {
            Link::Connecting(conn) | Link::Entering { conn, .. } | Link::Up { conn, .. } => {
                Some(*conn)
            }
            Link::Down | Link::Over => None,
        };
        // A machine that is gone sends nothing at all.
        if let Some(conn) = conn
            && net.rng.chance(700_000)
        {
            net.hang_up(conn, End::Relay);
        }
        if self.is_over() {
            self.account.report = self.switch.as_ref().map(|switch| switch.report().clone());
        }
        self.account.unsettled = self.fed.len();
        self.account
    }

    pub(crate) fn connected(&mut self, conn: Conn, is_there: bool, net: &mut Net) {
        if !matches!(self.link, Link::Connecting(waiting) if waiting == conn) {
            if is_there {
                net.hang_up(conn, End::Relay);
            }
            return;
        }
        if !is_there {
            return self.refused(&RelayError::Refused("no listener".into()), net);
        }
        let first = Resumption {
            resends: self.account.way.reads_files,
            ..Resumption::default()
        };
        let from = self.switch.as_ref().map_or(first, Switch::next_numbers);
        let key = net.rng.bits() as u32;
        let path = HelloPath::Rdma {
            reliable: self.account.way.reliable,
            qpn: 7,
            psn: net.rng.bits() as u32 & 0xff_ffff,
            port: 4791,
            mtu: self.mtu,
        };
        let begin = Begin {
            program: "simulated".into(),
            inputs: Vec::new(),
            filter: String::new(),
            mode: "m".into(),
            model: "x".into(),
            classes: Vec::new(),
            hash_seed: [self.account.session, 1],
            key,
            first_block: from.block,
            first_seq: from.seq,
            unconfirmed_seq: from.unconfirmed_seq,
            resends: from.resends,
            path: path.clone(),
        };
        let hello = Hello {
            session: Self::name(self.account.session),
            worker: 0,
            nonce: [net.rng.bits(); 4],
            secret: false,
        };
        let mut out = Vec::new();
        let entry = Entry::new("relay".into(), None, hello, begin, b"{}".to_vec(), &mut out);
        for message in &out {
            net.say(conn, End::Relay, message);
        }
        self.link = Link::Entering {
            conn,
            entry: entry.unwrap(),
            decoder: Decoder::new("relay".into(), true),
            from,
            key,
            path,
            end_ns: net.now() + 5 * SECOND,
        };
        net.wake(End::Switch, net.now() + 5 * SECOND);
    }

    fn refused(&mut self, error: &RelayError, net: &mut Net) {
        self.link = Link::Down;
        match &mut self.switch {
            Some(switch) => switch.refused(error, net.now()),
            // The user restarts it.
            None => self.retry_ns = net.now() + SECOND,
        }
        net.wake(End::Switch, net.now() + SECOND / 5);
    }

    pub(crate) fn bytes(&mut self, of: Conn, bytes: &[u8], net: &mut Net) {
        match &mut self.link {
            Link::Entering { conn, decoder, .. } | Link::Up { conn, decoder, .. }
                if *conn == of =>
            {
                decoder.push(bytes);
                self.run(net);
            }
            _ => {}
        }
    }

    pub(crate) fn hung_up(&mut self, of: Conn, net: &mut Net) {
        match &mut self.link {
            Link::Entering { conn, .. } if *conn == of => {
                let peer = "relay".into();
                self.refused(&RelayError::Closed { peer }, net);
            }
            Link::Up { conn, hung_up, .. } if *conn == of => {
                *hung_up = true;
                self.run(net);
            }
            _ => {}
        }
    }

    pub(crate) fn packet(&mut self, of: Conn, bytes: &[u8], net: &mut Net) {
        let now = net.now();
        let Link::Up {
            conn, connection, ..
        } = &mut self.link
        else {
            return;
        };
        if *conn != of {
            return;
        }
        let packet = Packet::new_checked(bytes).unwrap();
        match connection.receive_packet(&packet, now) {
            Ok(()) => self.run(net),
            Err(error) => self.lost(&error, net),
        }
    }

    fn lost(&mut self, problem: &RelayError, net: &mut Net) {
        let Link::Up {
            conn,
            mut connection,
            ..
        } = std::mem::replace(&mut self.link, Link::Down)
        else {
            return;
        };
        let switch = self.switch.as_mut().expect("it was connected");
        switch.lost(&mut connection, problem, &self.source, net.now());
        for message in connection.messages() {
            net.say(conn, End::Relay, &message);
        }
        net.hang_up(conn, End::Relay);
        self.run(net);
    }

    /// Makes as much progress as possible.
    pub(crate) fn run(&mut self, net: &mut Net) {
        self.follow(net);
        for _ in 0..100_000 {
            let goes_on = match &self.link {
                Link::Over | Link::Connecting(_) => false,
                Link::Down => self.search(net),
                Link::Entering { .. } => self.enter(net),
                Link::Up { .. } => match self.serve(net) {
                    Ok(goes_on) => goes_on,
                    Err(problem) => return self.lost(&problem, net),
                },
            };
            self.account();
            if !goes_on {
                return;
            }
        }
        panic!("a switch that never rests");
    }

    fn search(&mut self, net: &mut Net) -> bool {
        let now = net.now();
        let search = match &mut self.switch {
            None if now < self.retry_ns => Search::Wait(self.retry_ns),
            None => Search::Connect,
            Some(switch) => switch.search(now),
        };
        match search {
            Search::Connect => {
                let conn = net.new_conn();
                net.connect(conn);
                self.link = Link::Connecting(conn);
                false
            }
            Search::Wait(until) => {
                net.wake(End::Switch, until);
                let Some(switch) = &mut self.switch else {
                    return false;
                };
                if switch.wants_block() && !switch.is_ending() {
                    let incoming = self.source.receive(std::time::Duration::ZERO);
                    let goes_on = !matches!(incoming, Incoming::Nothing);
                    take(switch, incoming, None);
                    return goes_on;
                }
                false
            }
            Search::GiveUp => {
                let switch = self.switch.as_mut().expect("it has searched");
                loop {
                    switch.give_up(&self.source);
                    if switch.is_ending() {
                        break;
                    }
                    let incoming = self.source.receive(std::time::Duration::ZERO);
                    if matches!(incoming, Incoming::Nothing) {
                        // A program that has lost its relay for good exits.
                        self.sink.end_handle().end();
                    }
                    take(switch, incoming, None);
                }
                self.link = Link::Over;
                false
            }
        }
    }

    fn enter(&mut self, net: &mut Net) -> bool {
        let Link::Entering {
            conn,
            entry,
            decoder,
            from,
            key,
            path,
            end_ns,
        } = &mut self.link
        else {
            return false;
        };
        let mut out = Vec::new();
        account(&mut self.account, &mut self.sink, &mut self.fed);
        let step = match decoder.next_message() {
            Ok(Some(message)) => entry.receive(message, &mut out),
            Ok(None) if net.now() < *end_ns => {
                net.wake(End::Switch, *end_ns);
                return false;
            }
            Ok(None) => Err(RelayError::Refused("no answer".into())),
            Err(error) => Err(error),
        };
        for message in &out {
            net.say(*conn, End::Relay, message);
        }
        match step {
            Ok(None) => true,
            Ok(Some(welcome)) => {
                let road = Path::rdma(path, &welcome.path, self.account.way.on_loss).unwrap();
                let (conn, now) = (*conn, net.now());
                let numbers = from.numbers(&welcome, *key);
                let mut connection =
                    Connection::new("relay".into(), numbers, welcome, road, self.layout, now);
                match &mut self.switch {
                    Some(switch) => {
                        let before = switch.report().clone();
                        switch.connected(&mut connection, &self.source);
                        let after = switch.report();
                        let found = after.found.packets - before.found.packets;
                        let lost = after.lost.packets - before.lost.packets;
                        if found > 0 && lost > 0 && !self.account.way.reads_files {
                            // It got their number, not which they are.
                            let of = self.fed.drain(..(found + lost) as usize).collect();
                            self.account.found.push((found, of));
                            while self.sink.poll().is_some() {}
                        }
                    }
                    none => {
                        let options = SwitchOptions {
                            flush_interval_ns: SECOND,
                            patience_ns: match self.account.way.reads_files {
                                true => 3600 * SECOND,
                                false => 10 * SECOND,
                            },
                            reads_files: self.account.way.reads_files,
                            resends: self.account.way.reads_files,
                        };
                        *none = Some(Switch::new(options, &connection));
                    }
                }
                let decoder = std::mem::replace(decoder, Decoder::new(String::new(), true));
                self.link = Link::Up {
                    conn,
                    connection,
                    decoder,
                    hung_up: false,
                };
                true
            }
            Err(error) => {
                net.hang_up(*conn, End::Relay);
                self.refused(&error, net);
                false
            }
        }
    }

    /// As a link's thread does; returns whether it has something to do at once.
    fn serve(&mut self, net: &mut Net) -> Result<bool, RelayError> {
        let now = net.now();
        let (
            Link::Up {
                conn,
                connection,
                decoder,
                hung_up,
            },
            Some(switch),
        ) = (&mut self.link, &mut self.switch)
        else {
            return Ok(false);
        };
        while !switch.is_closed()
            && let Some(message) = decoder.next_message()?
        {
            switch.receive(connection, message, &self.source, now)?;
        }
        if *hung_up && !switch.is_closed() {
            return Err(RelayError::Closed {
                peer: "relay".into(),
            });
        }
        let turn = switch.step(connection, &self.source, now)?;
        let mut goes_on = false;
        let mut rests = switch.deadline_ns(connection);
        match turn {
            Turn::Again => goes_on = true,
            Turn::Answers(_) => {}
            Turn::Receive(_) => {
                let incoming = self.source.receive(std::time::Duration::ZERO);
                goes_on = !matches!(incoming, Incoming::Nothing);
                take(switch, incoming, Some(connection));
                rests = switch.deadline_ns(connection);
            }
            Turn::Done => {}
        }
        if let Some(packets) = connection.packets() {
            for packet in packets.iter() {
                net.packet(*conn, End::Relay, packet);
            }
            packets.clear();
        }
        let messages: Vec<Message> = connection.messages().collect();
        for message in &messages {
            net.say(*conn, End::Relay, message);
        }
        if turn == Turn::Done {
            net.hang_up(*conn, End::Relay);
            self.link = Link::Over;
            return Ok(false);
        }
        let rests = if rests <= now { now + 20 * MS } else { rests };
        net.wake(End::Switch, rests);
        Ok(goes_on)
    }
}

/// Processes reports about the fate of packets.
fn account(account: &mut Account, sink: &mut BlockSink, fed: &mut VecDeque<u64>) {
    while let Some(written) = sink.poll() {
        for _ in 0..written.counters.packets {
            let seq = fed.pop_front().expect("no packet is settled twice");
            if written.outcome.is_ok() {
                account.stored.push(seq);
            }
        }
    }
}

/// As a link does: at the end, the counters are sent.
fn take(switch: &mut Switch, incoming: Incoming, connection: Option<&mut Connection>) {
    if matches!(incoming, Incoming::End) && !switch.is_ending() {
        switch.end_with(protocol::End {
            accounting: Some(SavedLedger::from(&Ledger::default())),
            warnings: Vec::new(),
        });
    }
    switch.take(incoming, connection);
}
