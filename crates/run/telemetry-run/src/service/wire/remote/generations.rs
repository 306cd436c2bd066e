//! Generations of the stores of all collectors, as a translator has them begun.

use std::time::{Duration, Instant};

use strata_dta::Translator;
use strata_dta::generations::Generation;
use strata_dta::key_increment::largest::Largest;
use strata_role::Tell;
use strata_wire::unix_ns;

use super::super::connector::Granted;
use super::super::link::write_largest;
use super::super::turns::Turns;
use super::Collectors;
use crate::store::candidates;

/// How long a collector may take to clear the place of a generation, on a slow disk too.
const TURN_LIMIT: Duration = Duration::from_secs(60);

impl Collectors {
    /// Has the collectors begin another generation, if the youngest is over, and gives up those that take too
    /// long.
    pub(super) fn begin_generations(&mut self, translator: &mut Translator, tell: &Tell) {
        if self
            .turns
            .as_mut()
            .is_some_and(|turns| turns.look(unix_ns()))
        {
            self.turning_since = Some(Instant::now());
            (0..self.links.len()).for_each(|index| self.ask(index));
            self.look_at_turns(translator, tell);
        }
        if self
            .turning_since
            .is_some_and(|since| since.elapsed() > TURN_LIMIT)
        {
            self.turning_since = Some(Instant::now());
            self.give_up_late();
        }
    }

    /// Collectors that have not begun the generation that all wait for are away from now on.
    fn give_up_late(&mut self) {
        for (index, link) in self.links.iter().enumerate() {
            let is_late = self
                .turns
                .as_ref()
                .is_some_and(|turns| turns.asks(index).is_some());
            if is_late {
                let why = format!(
                    "collector {}: has not begun the next generation within {} s",
                    link.address,
                    TURN_LIMIT.as_secs()
                );
                self.failed.push((index, why));
            }
        }
    }

    /// A collector is there: it has the generation that reports go to, or is asked to begin it.
    pub(super) fn arrived(
        &mut self,
        index: usize,
        granted: Granted,
        translator: &mut Translator,
        tell: &Tell,
    ) {
        let generation = granted.generation;
        if generation.is_some() != self.turns.is_some() {
            let why = format!(
                "collector {}: does not say which generation its store has",
                self.links[index].address
            );
            self.failed.push((index, why));
            return;
        }
        self.links[index].granted = Some(granted);
        if let (Some(turns), Some(generation)) = (&mut self.turns, generation) {
            turns.arrive(index, generation, unix_ns());
            (0..self.links.len()).for_each(|index| self.ask(index));
        }
        self.look_at_turns(translator, tell);
    }

    /// Asks a collector for the generation that it is to have, if it has another one.
    fn ask(&mut self, index: usize) {
        let turns = self.turns.as_ref();
        if let Some(wanted) = turns.and_then(|turns| turns.asks(index)) {
            self.links[index]
                .connector
                .turn(wanted.number, wanted.begun_ns);
        }
    }

    /// Goes on to the generation that all collectors have begun, and with collectors that have it.
    pub(super) fn look_at_turns(&mut self, translator: &mut Translator, tell: &Tell) {
        let before = self.youngest();
        let begun = self.turns.as_mut().and_then(Turns::step);
        if let Some(begun) = begun {
            self.turning_since = None;
            let rows = candidates::entries(&self.plan, begun.index).len();
            let connected = self.links.iter_mut().zip(&mut self.remotes);
            for (link, remote) in connected.filter(|(link, _)| link.port.is_some()) {
                if let Some(before) = before {
                    remote.finish_largest();
                    let known = (&mut link.written[..], &mut link.others);
                    write_largest(remote, (&self.plan, before.index), known, &mut link.entries);
                }
                link.others = candidates::others(Some(0));
                link.written = vec![0; rows];
                remote.keep_largest(Largest::new(rows));
            }
            self.has_turned = true;
        }
        if let Some((youngest, generations)) = self.youngest().zip(self.plan.generations()) {
            let (plan, offset) = (&self.plan, generations.offset(youngest.index));
            translator.turn_to(
                plan.key_write.shifted(offset),
                plan.postcarding.shifted(offset),
                plan.key_increment.shifted(offset),
            );
        }
        for index in 0..self.links.len() {
            let is_there = self
                .turns
                .as_ref()
                .is_none_or(|turns| turns.is_there(index));
            if is_there && let Some(granted) = self.links[index].granted.take() {
                self.connected(index, granted, translator, tell);
            }
        }
    }

    pub(super) fn youngest(&self) -> Option<Generation> {
        self.turns.as_ref().and_then(Turns::youngest)
    }
}
