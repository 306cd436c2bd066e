//! Reads of a requester, between writes, over a network that loses packets either way. The responder
//! is a naive one: it executes what is next, and repeats reads.

use std::collections::BTreeMap;

use strata_rdma::{Event, PacketBatch, PostError, Psn, Requester, RequesterOptions};
use strata_wire::mix64;
use strata_wire::roce::{
    Aeth, CREDIT_UNLIMITED, Extensions, NakCode, Opcode, Operation, Packet, Repr, Service, Syndrome,
};

const QP: u32 = 0x17;
const RKEY: u32 = 0x55;
const FIRST_PSN: u32 = 0x00ff_fff0;

struct Responder {
    memory: Vec<u8>,
    expected: u32,
    naked: bool,
}

impl Responder {
    fn answer(operation: Operation, psn: u32, syndrome: Syndrome, payload: &[u8]) -> Vec<u8> {
        let repr = Repr {
            opcode: Opcode {
                service: Service::Rc,
                operation,
            },
            dest_qp: QP,
            psn,
            ack_request: false,
            payload_len: payload.len(),
            extensions: Extensions {
                aeth: Some(Aeth { syndrome, msn: 0 }),
                ..Extensions::default()
            },
        };
        let mut bytes = Vec::new();
        repr.emit(&[payload], &mut bytes);
        bytes
    }

    fn receive(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let packet = Packet::new_checked(bytes).unwrap();
        let is_read = packet.opcode().operation == Operation::ReadRequest;
        let ahead = packet.psn().wrapping_sub(self.expected) & 0xff_ffff;
        if ahead > 0 && ahead < 1 << 23 {
            let is_first = !std::mem::replace(&mut self.naked, true);
            let nak = Syndrome::Nak(NakCode::PsnSequence);
            return is_first.then(|| Self::answer(Operation::Acknowledge, self.expected, nak, &[]));
        }
        if ahead == 0 {
            self.expected = (self.expected + 1) & 0xff_ffff;
            self.naked = false;
        }
        let done = Syndrome::Ack(CREDIT_UNLIMITED);
        let reth = packet.reth().unwrap();
        assert_eq!(reth.rkey, RKEY);
        let at = usize::try_from(reth.va).unwrap();
        if is_read {
            let read = &self.memory[at..at + usize::try_from(reth.dma_len).unwrap()];
            return Some(Self::answer(
                Operation::ReadResponseOnly,
                packet.psn(),
                done,
                read,
            ));
        }
        if ahead == 0 {
            let payload = packet.payload();
            self.memory[at..at + payload.len()].copy_from_slice(payload);
        }
        packet
            .ack_request()
            .then(|| Self::answer(Operation::Acknowledge, packet.psn(), done, &[]))
    }
}

#[test]
fn a_read_has_what_was_written_before_it_whatever_is_lost() {
    for seed in 0..50 {
        let mut draw = seed << 32;
        let mut is_lost = || {
            draw += 1;
            seed > 0 && mix64(draw).is_multiple_of(7)
        };
        let mut options = RequesterOptions::new(Service::Rc, QP, Psn::new(FIRST_PSN), 256);
        (options.timeout_ns, options.window, options.atomics_max) = (10, 32, 4);
        let mut requester = Requester::new(options);
        let mut responder = Responder {
            memory: vec![0; 4096],
            expected: FIRST_PSN,
            naked: false,
        };
        let (mut out, mut now_ns) = (PacketBatch::new(), 0);
        let mut awaited = BTreeMap::new();
        let mut read = 0;
        for round in 0_u64.. {
            // Each read is of a place of its own, which is written once before it.
            if round < 300 && requester.room() > 1 {
                let at = round * 13 % 4000;
                let len = usize::try_from(1 + round % 90).unwrap();
                let data = vec![mix64(round).to_le_bytes()[0]; len];
                requester.write(at, RKEY, &data, now_ns, &mut out).unwrap();
                match requester.read(at, RKEY, len, now_ns, &mut out) {
                    Ok(number) => drop(awaited.insert(number, (data, round))),
                    Err(error) => {
                        assert_eq!(error, PostError::WindowFull);
                        assert_eq!(requester.atomic_room(), 0);
                    }
                }
            }
            now_ns += 3;
            let mut failed = requester.tick(now_ns, &mut out);
            let packets: Vec<Vec<u8>> = out.iter().map(<[u8]>::to_vec).collect();
            out.clear();
            for packet in packets {
                if is_lost() {
                    continue;
                }
                let Some(answer) = responder.receive(&packet).filter(|_| !is_lost()) else {
                    continue;
                };
                let answer = Packet::new_checked(&answer).unwrap();
                match requester.receive(&answer, now_ns, &mut out) {
                    Some(Event::ReadDone { number }) => {
                        let (data, of) = awaited.remove(&number).unwrap();
                        // A repeated read may see what was written after it.
                        let is_own = answer.payload() == data;
                        assert!(is_own || seed > 0, "{seed}: read of round {of}");
                        assert_eq!(answer.payload().len(), data.len());
                        read += 1;
                    }
                    event => failed = failed.or(event),
                }
            }
            assert_eq!(failed, None, "{seed}");
            if round >= 300 && requester.in_flight() == 0 {
                break;
            }
            assert!(round < 100_000, "{seed}: {:?}", requester.counters());
        }
        assert!(awaited.is_empty(), "{seed}: {awaited:?}");
        assert!(read > 50, "{seed}: {read}");
        let counters = requester.counters();
        assert_eq!((counters.acknowledged, counters.lost), (counters.posted, 0));
        assert_eq!(counters.resent > 0, seed > 0, "{seed}");
    }
}
