//! A switch whose relay is lost: looking for it, and what becomes of what it had not confirmed.

use strata_blocks::{BlockCounters, BlockSource, RawRecord, Records, SinkError, Written};

use crate::error::RelayError;
use crate::protocol::{MS_NS, Shortage};

use super::{Connection, Search, State, Switch, progress};

/// How often to try to reconnect to a lost relay.
const RECONNECT_EVERY_NS: u64 = 200 * MS_NS;
/// Maximum number of problems reported as text.
const PROBLEMS_MAX: usize = 100;

impl Switch {
    /// The connection is unusable. The relay may have packets that it did not confirm, and reports them when it is back
    /// ([`Switch::connected`]). A last message, if any, is among the connection's messages.
    pub fn lost(
        &mut self,
        connection: &mut Connection,
        problem: &RelayError,
        source: &BlockSource,
        now_ns: u64,
    ) {
        let is_over = match problem {
            RelayError::Failed(_) => true,
            RelayError::Silent { .. } => self.stopped_ns.is_some(),
            _ => false,
        };
        drop(connection.messages());
        if is_over {
            self.report.failure = Some(problem.to_string());
            connection.last_word(progress(source));
        }
        self.shortage = Shortage::default();
        self.take_counters(connection);
        self.report.disconnections += 1;
        self.problem(problem.to_string());
        match &mut self.retained {
            Some(retained) => retained.stop(),
            None => self.unsettled.add(&connection.unconfirmed()),
        }
        self.next_block = connection.next_block();
        self.state = State::Searching {
            problem: problem.to_string(),
            is_over,
            next_try_ns: now_ns,
            give_up_ns: None,
        };
    }

    fn settle_lost(&mut self, counters: BlockCounters, source: &BlockSource) {
        if counters.packets == 0 {
            return;
        }
        self.report.lost.add(&counters);
        let outcome = match &self.report.failure {
            Some(reason) => SinkError::RelayFailed(reason.clone()),
            None => SinkError::RelayLost,
        };
        source.settle(Written {
            counters,
            outcome: Err(outcome),
        });
    }

    /// Why the relay that the switch waits for was lost.
    #[must_use]
    pub fn searches_because(&self) -> Option<&str> {
        match &self.state {
            State::Searching { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// What to do without a relay.
    pub fn search(&mut self, now_ns: u64) -> Search {
        let is_impatient = self.is_out_of_patience(now_ns);
        let is_waited_for = self.ending.is_some() || self.flush || self.options.reads_files;
        let State::Searching {
            is_over,
            next_try_ns,
            give_up_ns,
            ..
        } = &mut self.state
        else {
            return Search::Wait(now_ns);
        };
        if *is_over || is_impatient {
            return Search::GiveUp;
        }
        if is_waited_for {
            let end = *give_up_ns.get_or_insert(now_ns + self.options.patience_ns);
            if now_ns > end {
                return Search::GiveUp;
            }
        }
        if now_ns < *next_try_ns {
            return Search::Wait(*next_try_ns);
        }
        *next_try_ns = now_ns + RECONNECT_EVERY_NS;
        Search::Connect
    }

    /// A relay could not be reached, or did not admit the switch.
    pub fn refused(&mut self, error: &RelayError, now_ns: u64) {
        if let State::Searching {
            is_over,
            next_try_ns,
            ..
        } = &mut self.state
        {
            // Refusals may be temporary: of a relay that is ending, or has not yet missed others.
            if let RelayError::Failed(_) = error {
                self.report.failure = Some(error.to_string());
                *is_over = true;
            }
            *next_try_ns = now_ns + RECONNECT_EVERY_NS;
        }
    }

    /// A relay is connected again, and has reported its stored packets. Sends it the definitions that packets refer to.
    pub fn connected(&mut self, connection: &mut Connection, source: &BlockSource) {
        self.settle_found(connection, source);
        let known = self.definitions.values();
        for record in known.chain(self.additions.iter().map(|(_, bytes)| bytes)) {
            connection.define(record);
        }
        self.report.recording = connection.recording();
        self.state = State::Serving;
    }

    /// Settles what was sent through the connection that was lost: it is in the relay's log, or will be sent
    /// again, or is lost.
    fn settle_found(&mut self, connection: &Connection, source: &BlockSource) {
        let stored = connection.stored();
        // As in `Resumption::numbers`.
        let next_seq = stored.next_seq.clamp(self.confirmed_seq, self.next_seq);
        let is_sane = next_seq == stored.next_seq;
        let sent = match &self.retained {
            Some(retained) => retained.count(self.confirmed_seq..next_seq),
            None => self.unsettled,
        };
        let found = BlockCounters {
            packets: stored.packets,
            wire_bytes: stored.wire_bytes,
            logged_bytes: stored.logged_bytes,
            cut_bytes: stored.cut_bytes,
            ..BlockCounters::default()
        };
        let (found, lost) = match sent.without(&found) {
            Some(lost) if is_sane => (found, lost),
            _ => {
                let problem = format!(
                    "the relay claims to have stored {} unconfirmed packets, up to number {}, of \
                     {}: this is impossible, so none is counted",
                    stored.packets, stored.next_seq, sent.packets
                );
                self.problem(problem);
                (BlockCounters::default(), sent)
            }
        };
        self.unsettled = BlockCounters::default();
        if found.packets > 0 {
            self.report.found.add(&found);
            source.settle(Written {
                counters: found,
                outcome: Ok(()),
            });
        }
        self.settle_lost(lost, source);
        match &mut self.retained {
            Some(retained) => {
                self.confirmed_seq = next_seq;
                retained.begin_again(next_seq..self.next_seq);
            }
            None => self.confirmed_seq = self.next_seq,
        }
    }

    fn problem(&mut self, problem: String) {
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(problem);
        }
    }

    /// Without a relay, everything that still arrives is lost: to be called after each
    /// [`Switch::take`] until it is ending.
    pub fn give_up(&mut self, source: &BlockSource) {
        if let State::Searching { problem, .. } = &self.state {
            let failure = format!("the relay did not return: {problem}");
            self.report.failure.get_or_insert(failure);
        }
        let mut unknown = std::mem::take(&mut self.unsettled);
        if let Some(retained) = &mut self.retained {
            unknown.add(&retained.count(self.confirmed_seq..self.next_seq));
            // What of it was not sent is counted with the current block, and with those that come.
            retained.clear();
        }
        self.confirmed_seq = self.next_seq;
        self.report.unknown_packets += unknown.packets;
        self.settle_lost(unknown, source);
        if let Some(current) = self.current.take() {
            let mut records = Records::at(current.block.body(), current.place);
            let mut counters = BlockCounters::default();
            while let Some(Ok(record)) = records.next_raw() {
                if let RawRecord::Packet(packet) = record {
                    counters.count(&packet);
                }
            }
            source.give_back(current.block);
            self.settle_lost(counters, source);
        }
    }
}
