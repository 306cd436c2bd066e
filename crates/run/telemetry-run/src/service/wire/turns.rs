//! Generations of stores elsewhere. When one is over, every collector that is there clears the place of the
//! next, and says so; then reports go to it. One that comes back later is asked first to begin the one that
//! the others have.

use strata_dta::generations::{Generation, Generations, is_over};

use crate::store::plan::Plan;

/// Which generation reports go to, and which the collectors have.
#[derive(Debug)]
pub(crate) struct Turns {
    generations: Generations,
    period_ns: u64,
    /// Where reports go; `None` until the first collector has said what it has.
    youngest: Option<Generation>,
    /// Where they are to go, once all have it.
    wanted: Option<Generation>,
    /// The number of the youngest that each collector has, as long as it is there.
    there: Vec<Option<u64>>,
}

impl Turns {
    /// Of this many collectors; `None` for stores without generations.
    pub(super) fn new(plan: &Plan, collectors: usize) -> Option<Self> {
        Some(Self {
            generations: plan.generations()?,
            period_ns: plan.period_ns(),
            youngest: None,
            wanted: None,
            there: vec![None; collectors],
        })
    }

    /// Where reports go.
    pub(crate) fn youngest(&self) -> Option<Generation> {
        self.youngest
    }

    /// Whether another one is being cleared.
    pub(crate) fn is_turning(&self) -> bool {
        self.wanted.is_some()
    }

    fn generation(&self, number: u64, begun_ns: u64) -> Generation {
        Generation {
            index: self.generations.index(number),
            number,
            begun_ns,
        }
    }

    /// The generation that all are to have.
    fn aim(&self) -> Option<Generation> {
        self.wanted.or(self.youngest)
    }

    /// A collector is there, and has this generation, or none yet (0).
    pub(super) fn arrive(&mut self, collector: usize, (number, begun_ns): (u64, u64), now_ns: u64) {
        self.there[collector] = Some(number);
        let has = self.generation(number.max(1), begun_ns);
        match self.aim() {
            // The first one.
            None if number == 0 => self.youngest = Some(self.generation(1, now_ns)),
            None => self.youngest = Some(has),
            // An earlier translator had begun it. The place that reports go to is not cleared.
            Some(aim) if aim.number < number => {
                let is_taken = self
                    .youngest
                    .is_some_and(|youngest| youngest.index == has.index);
                self.wanted = Some(match is_taken {
                    true => self.generation(number.wrapping_add(1), now_ns),
                    false => has,
                });
            }
            Some(_) => {}
        }
    }

    /// A collector has begun a generation; one that was not asked for is not counted.
    pub(super) fn turned(&mut self, collector: usize, number: u64) {
        let mut known = [self.youngest, self.wanted].into_iter().flatten();
        if known.any(|known| known.number == number)
            && let Some(there) = &mut self.there[collector]
        {
            *there = number;
        }
    }

    /// A collector is gone.
    pub(super) fn leave(&mut self, collector: usize) {
        self.there[collector] = None;
    }

    /// Whether a collector has the generation that reports go to.
    pub(super) fn is_there(&self, collector: usize) -> bool {
        let youngest = self.youngest.map(|youngest| youngest.number);
        youngest.is_some() && self.there[collector] == youngest
    }

    /// The generation that a collector is to be asked for.
    pub(super) fn asks(&self, collector: usize) -> Option<Generation> {
        let (aim, there) = (self.aim()?, self.there[collector]?);
        (there != aim.number).then_some(aim)
    }

    /// Wants the next generation, if the youngest is over; whether it now does.
    pub(super) fn look(&mut self, now_ns: u64) -> bool {
        let (None, Some(youngest)) = (self.wanted, self.youngest) else {
            return false;
        };
        let over = is_over(youngest.begun_ns, now_ns, self.period_ns);
        if over {
            self.wanted = Some(self.generation(youngest.number.wrapping_add(1), now_ns));
        }
        over
    }

    /// The generation that reports go to from now on, if all that are there have the one that was wanted.
    pub(super) fn step(&mut self) -> Option<Generation> {
        let wanted = self.wanted?;
        let mut there = self.there.iter().flatten();
        if !there.all(|&number| number == wanted.number) {
            return None;
        }
        self.youngest = self.wanted.take();
        self.youngest
    }
}

/// Whether there can be a generation of this number: a period has a second at least.
pub(super) fn is_possible(number: u64, now_ns: u64) -> bool {
    number <= now_ns / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::plan::{Manifest, TelemetryLayout};

    fn turns() -> Turns {
        let layout = TelemetryLayout {
            generations: Some(3),
            generation_period_s: Some(1),
            ..TelemetryLayout::default()
        };
        let manifest = Manifest::new([1, 2], layout.decided(), Vec::new()).unwrap();
        Turns::new(&manifest.plan().unwrap(), 2).unwrap()
    }

    const S: u64 = 1_000_000_000;

    #[test]
    fn reports_go_to_a_generation_that_all_collectors_have() {
        let mut turns = turns();
        turns.arrive(0, (0, 0), 5 * S);
        let first = turns.youngest().unwrap();
        assert_eq!((first.number, first.index), (1, 0));
        assert!(!turns.is_there(0) && turns.asks(0) == Some(first));
        turns.turned(0, 1);
        assert!(turns.is_there(0) && turns.asks(0).is_none());
        turns.arrive(1, (0, 0), 5 * S);
        turns.turned(1, 1);
        assert!(!turns.look(5 * S + 9) && turns.step().is_none());
        assert!(turns.look(6 * S) && turns.is_turning());
        turns.turned(1, 2);
        assert_eq!(turns.step(), None, "the other clears");
        assert!(turns.is_there(0) && turns.asks(0).unwrap().number == 2);
        turns.turned(0, 2);
        let second = turns.step().unwrap();
        assert_eq!(
            (second.number, second.index, second.begun_ns),
            (2, 1, 6 * S)
        );
    }

    #[test]
    fn a_collector_that_is_gone_holds_nothing_up_and_is_asked_when_it_comes_back() {
        let mut turns = turns();
        for collector in 0..2 {
            turns.arrive(collector, (4, 2 * S), 2 * S);
        }
        assert_eq!(turns.youngest().unwrap().index, 0);
        turns.leave(1);
        assert!(turns.look(3 * S));
        turns.turned(0, 5);
        assert_eq!(turns.step().unwrap().number, 5);
        turns.arrive(1, (4, 2 * S), 3 * S);
        assert!(!turns.is_there(1));
        assert_eq!(turns.asks(1).unwrap().number, 5);
        turns.turned(1, 5);
        assert!(turns.is_there(1));
    }

    #[test]
    fn a_translator_that_begins_anew_goes_on_with_the_youngest_of_all() {
        let mut turns = turns();
        turns.arrive(0, (6, 2 * S), 3 * S);
        turns.arrive(1, (7, 3 * S), 3 * S);
        assert_eq!(turns.youngest().unwrap().number, 6);
        assert!(!turns.is_there(1) && turns.asks(1).is_none());
        assert_eq!(turns.asks(0).unwrap().number, 7);
        turns.turned(0, 7);
        assert_eq!(turns.step().unwrap().begun_ns, 3 * S);
        assert!(turns.is_there(0) && turns.is_there(1));
        // The place of the youngest is not cleared under its reports.
        turns.arrive(1, (10, 9 * S), 10 * S);
        assert_eq!(turns.asks(0).unwrap().number, 11);
        assert_eq!(turns.asks(1).unwrap().number, 11);
        turns.turned(0, 99);
        assert_eq!(turns.step(), None, "that one was not asked for");
        assert!(is_possible(10, 10 * S) && !is_possible(11, 10 * S));
    }
}
