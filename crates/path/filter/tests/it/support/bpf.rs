//! A BPF machine, for what libpcap's own leaves undefined.
//!
//! `McCanne` and Jacobson, "The BSD Packet Filter" (USENIX 1993), table 1. Uninitialised memory
//! reads as all ones, so that a load from there fails.

use pcap::BpfProgram;

pub(crate) struct Machine(Vec<Instruction>);

struct Instruction {
    code: u32,
    yes: usize,
    no: usize,
    k: u32,
}

impl Machine {
    pub(crate) fn new(program: &BpfProgram) -> Self {
        let instructions = program.get_instructions().iter().map(|instruction| {
            let text = instruction.to_string();
            let fields: Vec<u32> = text
                .split(' ')
                .map(|field| field.parse().expect("a number"))
                .collect();
            let jump = |index: usize| usize::try_from(fields[index]).expect("fits");
            Instruction {
                code: fields[0],
                yes: jump(1),
                no: jump(2),
                k: fields[3],
            }
        });
        Self(instructions.collect())
    }

    pub(crate) fn matches(&self, packet: &[u8], wire_len: u32) -> bool {
        self.run(packet, wire_len).unwrap_or(0) != 0
    }

    fn run(&self, packet: &[u8], wire_len: u32) -> Option<u32> {
        let (mut a, mut x) = (0_u32, 0_u32);
        let mut memory = [u32::MAX; 16];
        let mut at = 0;
        loop {
            let Instruction { code, yes, no, k } = &self.0[at];
            let (code, k) = (*code, *k);
            let slot = usize::try_from(k).expect("fits") % 16;
            at += 1;
            match code & 0x07 {
                0 => {
                    a = match code & 0xe0 {
                        0x00 => k,
                        0x20 => load(packet, 0, k, code)?,
                        0x40 => load(packet, x, k, code)?,
                        0x60 => memory[slot],
                        _ => wire_len,
                    }
                }
                1 => {
                    x = match code & 0xe0 {
                        0x00 => k,
                        0x60 => memory[slot],
                        0x80 => wire_len,
                        _ => 4 * (load(packet, 0, k, 0x10)? & 0x0f),
                    }
                }
                2 => memory[slot] = a,
                3 => memory[slot] = x,
                4 => {
                    let operand = if code & 0x08 == 0 { k } else { x };
                    a = match code & 0xf0 {
                        0x00 => a.wrapping_add(operand),
                        0x10 => a.wrapping_sub(operand),
                        0x20 => a.wrapping_mul(operand),
                        0x30 => a.checked_div(operand)?,
                        0x40 => a | operand,
                        0x50 => a & operand,
                        0x60 => a.checked_shl(operand).unwrap_or(0),
                        0x70 => a.checked_shr(operand).unwrap_or(0),
                        0x80 => a.wrapping_neg(),
                        0x90 => a.checked_rem(operand)?,
                        _ => a ^ operand,
                    }
                }
                5 => {
                    let operand = if code & 0x08 == 0 { k } else { x };
                    let holds = match code & 0xf0 {
                        0x00 => {
                            // Backwards in `protochain`.
                            let offset = i64::from(i32::from_ne_bytes(k.to_ne_bytes()));
                            let next = i64::try_from(at).expect("fits") + offset;
                            at = usize::try_from(next).expect("inside of the program");
                            continue;
                        }
                        0x10 => a == operand,
                        0x20 => a > operand,
                        0x30 => a >= operand,
                        _ => a & operand != 0,
                    };
                    at += if holds { yes } else { no };
                }
                6 => return Some(if code & 0x10 == 0 { k } else { a }),
                _ if code & 0x80 == 0 => x = a,
                _ => a = x,
            }
        }
    }
}

fn load(packet: &[u8], start: u32, offset: u32, code: u32) -> Option<u32> {
    let bytes = match code & 0x18 {
        0x00 => 4,
        0x08 => 2,
        _ => 1,
    };
    let at = usize::try_from(u64::from(start) + u64::from(offset)).ok()?;
    let found = packet.get(at..at.checked_add(bytes)?)?;
    Some(
        found
            .iter()
            .fold(0, |value, byte| value << 8 | u32::from(*byte)),
    )
}
