//! Fewer instructions for the same answer: comparisons join the jumps that they decide, what is not
//! read is not computed, and what is the same for all packets of a vector is found.
//!
//! All jumps go forward, so what is read later is known after one pass backwards; values that
//! outlive a packet make it two.

use super::super::program::{AnswerOf, Op, Program, REGISTERS, Turn};

/// A set of registers.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Set([u64; REGISTERS / 64]);

impl Set {
    fn add(&mut self, register: u8) {
        self.0[usize::from(register / 64)] |= 1 << (register % 64);
    }

    fn remove(&mut self, register: u8) {
        self.0[usize::from(register / 64)] &= !(1 << (register % 64));
    }

    fn has(&self, register: u8) -> bool {
        self.0[usize::from(register / 64)] & 1 << (register % 64) != 0
    }

    fn join(&mut self, other: &Self) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }
}

/// Makes a program shorter, and says which instructions a vector needs only once.
pub(super) fn optimize(program: &mut Program) {
    fuse(&mut program.ops);
    while shorten(program) {}
    program.turns = turns(program);
}

/// The places that jumps go to.
fn targets(ops: &[Op]) -> Vec<bool> {
    let mut targets = vec![false; ops.len().wrapping_add(1)];
    for to in ops.iter().filter_map(Op::target) {
        targets[usize::from(to)] = true;
    }
    targets
}

/// Gives jumps the comparisons that decide them. The comparisons stay, for [`shorten`] to see
/// whether somebody else reads them.
fn fuse(ops: &mut [Op]) {
    let targets = targets(ops);
    for at in 1..ops.len() {
        let Op::Unless { a: tested, to } = ops[at] else {
            continue;
        };
        let is_reached_only_from_above = |place: usize| !targets[place];
        let (first, is_not) = match ops[at.wrapping_sub(1)] {
            Op::Not { to: result, a } if at > 1 && result == tested && a == tested => {
                (at.wrapping_sub(2), true)
            }
            _ => (at.wrapping_sub(1), false),
        };
        if !(first.wrapping_add(1)..=at).all(is_reached_only_from_above) {
            continue;
        }
        let fused = match (ops[first], is_not) {
            (Op::Eq { to: result, a, b }, false) if result == tested => Op::UnlessEq { a, b, to },
            (Op::Eq { to: result, a, b }, true) if result == tested => Op::IfEq { a, b, to },
            (Op::LtInt { to: result, a, b }, false) if result == tested => {
                Op::UnlessLt { a, b, to }
            }
            (Op::LtInt { to: result, a, b }, true) if result == tested => Op::IfLt { a, b, to },
            _ => continue,
        };
        // The comparison may have overwritten what it compared.
        let reads_its_result = |register: u8| register == tested;
        if !fused.reads().any(reads_its_result) {
            ops[at] = fused;
        }
    }
}

/// Removes instructions whose results are not read, and jumps to what comes next anyway. False
/// without any.
fn shorten(program: &mut Program) -> bool {
    let after = live_after(program);
    let ops = &program.ops;
    let is_needed = |(at, op): (usize, &Op)| match (op, op.result()) {
        (Op::Jump { to }, _) => usize::from(*to) > at.wrapping_add(1),
        (_, Some(result)) => after[at].has(result),
        _ => true,
    };
    let needed: Vec<bool> = ops.iter().enumerate().map(is_needed).collect();
    if needed.iter().all(|needed| *needed) {
        return false;
    }
    // Where each instruction goes, and what comes after the last.
    let mut places = Vec::with_capacity(ops.len().wrapping_add(1));
    let mut next = 0_u16;
    for &needed in &needed {
        places.push(next);
        next = next.wrapping_add(u16::from(needed));
    }
    places.push(next);
    let mut kept = needed.iter();
    program.ops.retain(|_| *kept.next().expect("one for each"));
    for op in &mut program.ops {
        if let Some(to) = op.target_mut() {
            *to = places[usize::from(*to)];
        }
    }
    true
}

/// What is read after each instruction, also by the next packet.
fn live_after(program: &Program) -> Vec<Set> {
    let mut last = Set::default();
    for slot in &program.slots {
        slot.registers().for_each(|register| last.add(register));
    }
    if let AnswerOf::Packets(present) = program.answer {
        last.add(present);
    }
    let states = program.groups.iter().flat_map(|group| &group.state);
    states.for_each(|&register| last.add(register));
    let mut after = vec![Set::default(); program.ops.len()];
    loop {
        let mut before = vec![last; program.ops.len().wrapping_add(1)];
        for (at, op) in program.ops.iter().enumerate().rev() {
            let mut live = match op {
                Op::Jump { to } => before[usize::from(*to)],
                _ => before[at.wrapping_add(1)],
            };
            if let Some(to) = op.target() {
                let other = before[usize::from(to)];
                live.join(&other);
            }
            after[at] = live;
            if let Some(result) = op.result() {
                live.remove(result);
            }
            op.reads().for_each(|register| live.add(register));
            if let Op::Group { index, .. } = op {
                let key = &program.groups[usize::from(*index)].key;
                key.iter().for_each(|&register| live.add(register));
            }
            before[at] = live;
        }
        let first = before[0];
        let mut all = last;
        all.join(&first);
        if all == last {
            return after;
        }
        last = all;
    }
}

/// Which instructions have the same result for all packets of a vector.
fn turns(program: &Program) -> Vec<Turn> {
    let mut varies = Set::default();
    program
        .each
        .iter()
        .for_each(|(_, register)| varies.add(*register));
    let states = program.groups.iter().flat_map(|group| &group.state);
    states.for_each(|&register| varies.add(register));
    // What is done after a jump that may differ from packet to packet differs too.
    loop {
        let before = varies;
        let mut until = 0;
        for (at, op) in program.ops.iter().enumerate() {
            let differs = op.reads().any(|register| varies.has(register));
            if let Some(result) = op.result()
                && (differs || at < until)
            {
                varies.add(result);
            }
            let may_differ = differs || at < until || matches!(op, Op::Group { .. });
            if let (Some(to), true) = (op.target(), may_differ) {
                until = until.max(usize::from(to));
            }
        }
        if varies == before {
            break;
        }
    }
    let turn = |op: &Op| {
        let differs = op.reads().any(|register| varies.has(register));
        match op.result() {
            _ if differs || matches!(op, Op::Group { .. }) => Turn::EachPacket,
            Some(result) if varies.has(result) => Turn::Again,
            _ => Turn::Once,
        }
    };
    program.ops.iter().map(turn).collect()
}
