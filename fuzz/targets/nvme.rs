//! A queue pair of a disk whose controller writes arbitrary bytes. Every command ends once or is
//! reported as unknown at a reset, and nothing is written outside the memory of queues and doorbells.
//!
//! Input: a byte of choices, then actions: give commands, ring, write completions, read event indexes, let
//! time pass, reset.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use strata_fuzz::{Bounded, Chooser};
use strata_stream::nvme::{
    Capabilities, Command, Enable, Expired, Memory, Places, QueueError, QueuePair, Ring, Shadow,
    Step,
};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

const SUBMISSIONS: u64 = 0x10_0000;
const COMPLETIONS: u64 = 0x20_0000;
const WORDS: u64 = 0x30_0000;

/// What is written, which has to be within queues and doorbells.
struct Checked {
    depth: u64,
}

impl Memory for Checked {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        let within = |start: u64, len: u64| at >= start && end <= start + len;
        assert!(
            within(SUBMISSIONS, self.depth * 64)
                || within(COMPLETIONS, self.depth * 16)
                || within(WORDS, 6 * 4),
            "{at:#x}..{end:#x}"
        );
        if within(WORDS, 2 * 4) && bytes != [0; 4] {
            let value = u32::from_le_bytes(bytes.try_into().expect("a doorbell is a word"));
            assert!(u64::from(value) < self.depth, "a doorbell of {value}");
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    of_registers(bytes);
    let mut choose = Chooser::new(bytes);
    let choices = choose.u8();
    let depth = 2 + u16::from(choices & 63);
    let word = |number: u64| WORDS + 4 * number;
    let places = Places {
        submissions: SUBMISSIONS,
        completions: COMPLETIONS,
        tail: word(0),
        head: word(1),
        shadow: (choices & 64 != 0).then(|| Shadow {
            tail: word(2),
            head: word(3),
            tail_event: word(4),
            head_event: word(5),
        }),
    };
    let mut queue = QueuePair::new(3, depth, places).expect("depths from 2 to 32,768");
    let mut memory = Checked {
        depth: depth.into(),
    };
    queue.begin(&mut memory);
    let mut open = BTreeSet::new();
    let (mut next, mut now_ns) = (0_u64, 0_u64);
    while !choose.is_empty() {
        match choose.u8() % 6 {
            0 => {
                let given = queue.submit(&Command::flush(1), next, now_ns + 100, &mut memory);
                match given {
                    Ok(_) => {
                        open.insert(next);
                        next += 1;
                    }
                    Err(QueueError::Full) => assert_eq!(queue.room(), 0),
                    Err(error) => assert_eq!(Some(error), queue.failed().map(QueueError::Failed)),
                }
            }
            kind @ (1 | 2) => {
                let ring = match kind {
                    1 => queue.ring(&mut memory),
                    _ => queue.ring_head(&mut memory),
                };
                if let Ring::ReadEvent(read) = ring {
                    queue.event(read, choose.u16().into(), &mut memory);
                }
            }
            3 => {
                let count = usize::from(choose.u8());
                let mut ended = Vec::new();
                let _ = queue.take(choose.take(count), |done| ended.push(done.token));
                for token in ended {
                    assert!(open.remove(&token), "{token} was not open");
                }
            }
            4 => {
                now_ns += u64::from(choose.u8());
                while let Some(Expired::Abort { queue: 3, .. }) = queue.expire(now_ns, 50) {}
            }
            _ => {
                let unknown: BTreeSet<u64> = queue.reset().into_iter().collect();
                assert_eq!(unknown, open);
                open.clear();
                queue.begin(&mut memory);
            }
        }
        assert_eq!(usize::from(queue.in_flight()), open.len());
        assert!(open.len() < usize::from(depth));
    }
});

/// Any registers: it ends.
fn of_registers(bytes: &[u8]) {
    let mut choose = Chooser::new(bytes);
    let cap = (0..4).fold(0, |cap, _| cap << 16 | u64::from(choose.u16()));
    let capabilities = Capabilities::parse(cap);
    let mut enable = Enable::new(&capabilities, 32, 0x1000, 0x2000);
    let (mut now_ns, mut status) = (0, None);
    for _ in 0..10_000 {
        now_ns += 100_000_000;
        match enable.step(now_ns, status) {
            Ok(Step::Ready) | Err(_) => return,
            Ok(Step::Write { .. }) => status = None,
            Ok(Step::ReadStatus) => status = Some(choose.u16().into()),
        }
    }
    panic!("it never ends");
}
