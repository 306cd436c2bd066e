//! Packets of all kinds, and a sink that keeps the blocks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use strata_blocks::{BlockBuilder, Progress, Sink, SinkError, Written};
use strata_capture::PacketRef;
use strata_classify::Model;
use strata_wire::mix64;

/// Blocks as they would be in a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    sealed: Arc<Mutex<Vec<Vec<u8>>>>,
    written: Arc<Mutex<VecDeque<Written>>>,
    progress: Arc<Progress>,
}

impl Blocks {
    pub(crate) fn sealed(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.sealed.lock().unwrap())
    }
}

impl Sink for Blocks {
    fn take(&mut self) -> Option<Box<BlockBuilder>> {
        Some(Box::new(BlockBuilder::new(64 << 10)))
    }

    fn submit(&mut self, mut block: Box<BlockBuilder>) -> Result<(), SinkError> {
        let counters = block.counters();
        let mut sealed = self.sealed.lock().unwrap();
        let number = sealed.len() as u64;
        sealed.push(block.seal(1, 0, number, [1, 2]).to_vec());
        let outcome = Ok(());
        self.written
            .lock()
            .unwrap()
            .push_back(Written { counters, outcome });
        Ok(())
    }

    fn poll(&mut self) -> Option<Written> {
        self.written.lock().unwrap().pop_front()
    }

    fn wait(&mut self) -> Result<Option<Written>, SinkError> {
        Ok(self.poll())
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }
}

/// A packet that owns its bytes.
pub(crate) struct Packet {
    ts_ns: u64,
    interface: u16,
    wire_len: u32,
    data: Vec<u8>,
    options: &'static [u8],
    has_timestamp: bool,
}

impl Packet {
    pub(crate) fn as_ref(&self) -> PacketRef<'_> {
        PacketRef {
            ts_ns: self.ts_ns,
            interface: self.interface,
            wire_len: self.wire_len,
            data: &self.data,
            options: self.options,
            has_timestamp: self.has_timestamp,
        }
    }
}

/// Numbers derived from a seed.
struct Dice(u64);

impl Dice {
    /// A number below `end`.
    fn roll(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0) % end
    }

    fn byte(&mut self) -> u8 {
        self.roll(256).to_le_bytes()[0]
    }

    fn word(&mut self) -> [u8; 2] {
        let [a, b, ..] = self.roll(1 << 16).to_le_bytes();
        [a, b]
    }
}

/// This many packets of this many flows; one in `odd_one_in` has something that few have.
pub(crate) fn packets(seed: u64, count: usize, flows: u64, odd_one_in: u64) -> Vec<Packet> {
    let mut dice = Dice(seed);
    let mut ts_ns = 1_700_000_000_000_000_000;
    let mut all = Vec::new();
    for _ in 0..count {
        ts_ns += dice.roll(200_000);
        let mut data = frame(&mut dice, flows);
        let mut packet = Packet {
            ts_ns,
            interface: 0,
            wire_len: u32::try_from(data.len()).unwrap(),
            data: Vec::new(),
            options: &[],
            has_timestamp: true,
        };
        // A snap length, as in most captures of headers.
        if dice.roll(4) == 0 {
            data.truncate(96);
        }
        if dice.roll(odd_one_in) == 0 {
            match dice.roll(10) {
                0 => packet.interface = 1,
                1 => packet.interface = 2,
                2 => packet.options = &[1, 0, 1, 0, 0x61, 0, 0, 0],
                3 => (packet.has_timestamp, packet.ts_ns) = (false, 0),
                4 => packet.wire_len = u32::MAX,
                5 => packet.wire_len = 1,
                6 => ts_ns += 10_000_000_000,
                7 => packet.ts_ns -= dice.roll(30_000_000_000),
                8 => data.truncate(usize::try_from(dice.roll(70)).unwrap()),
                _ => data.resize(70_000, 0x55),
            }
        }
        packet.data = data;
        all.push(packet);
    }
    all
}

/// A frame: mostly TCP and UDP in IPv4, as in traffic.
fn frame(dice: &mut Dice, flows: u64) -> Vec<u8> {
    let flow = mix64(dice.roll(flows)).to_le_bytes();
    let [from, to, port] = [flow[0], flow[1], flow[2]];
    let mut ends = [[10, 0, 0, from], [10, 0, 1, to]];
    let mut ports = [[0x80, port], [flow[3] & 1, flow[4]]];
    // Now and then a port of a tunnel.
    if dice.roll(40) == 0 {
        ports[1] = [0x12, 0xb5];
    }
    if dice.roll(2) == 0 {
        ends.swap(0, 1);
        ports.swap(0, 1);
    }
    let tcp = flow[5] & 1 == 0;
    let transport = transport(dice, tcp, ports);
    let protocol = if tcp { 6 } else { 17 };
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    match dice.roll(100) {
        0..85 => frame.extend(ipv4(dice, protocol, ends, &transport)),
        85..87 => {
            frame.extend([0x81, 0, 0, 7]);
            frame.extend(ipv4(dice, protocol, ends, &transport));
        }
        87..95 => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(u16::try_from(transport.len()).unwrap().to_be_bytes());
            frame.extend([protocol, 64]);
            for end in ends {
                frame.extend([0xfd; 12]);
                frame.extend(end);
            }
            frame.extend(transport);
        }
        95 => frame.extend(ipv4(dice, 1, ends, &[8, 0, 1, 2, 3, 4, 5, 6])),
        96 => {
            frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
            frame.extend([from; 20]);
        }
        97 => frame.extend((0..dice.roll(80)).map(|n| n.to_le_bytes()[0])),
        98 => frame = (0..dice.roll(60)).map(|_| dice.byte()).collect(),
        _ => {
            // Nearly right: one byte differs.
            frame.extend(ipv4(dice, protocol, ends, &transport));
            let at = usize::try_from(dice.roll(50)).unwrap().min(frame.len() - 1);
            frame[at] = dice.byte();
        }
    }
    frame
}

/// EtherType, header and payload.
fn ipv4(dice: &mut Dice, protocol: u8, ends: [[u8; 4]; 2], payload: &[u8]) -> Vec<u8> {
    let total_len = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![8, 0, 0x45, dice.byte() & 7];
    bytes.extend(total_len);
    bytes.extend(dice.word());
    // Rarely a fragment.
    let fragment: [u8; 2] = match dice.roll(100) {
        0 => [0x20, 0],
        1 => [0, 0x10],
        _ => [0x40, 0],
    };
    bytes.extend(fragment);
    bytes.extend([64 - dice.byte() % 4, protocol, 0, 0]);
    bytes.extend(ends.as_flattened());
    bytes.extend(payload);
    bytes
}

fn transport(dice: &mut Dice, tcp: bool, ports: [[u8; 2]; 2]) -> Vec<u8> {
    let payload = usize::try_from(dice.roll(200)).unwrap();
    let mut bytes = ports.concat();
    if tcp {
        let offset = if dice.roll(50) == 0 {
            dice.byte()
        } else {
            0x50 | (dice.byte() & 3) << 5
        };
        bytes.extend([0; 8]);
        bytes.extend([offset, if dice.roll(9) == 0 { 0x12 } else { 0x10 }]);
        bytes.extend(dice.word());
        bytes.extend([0; 4]);
        bytes.extend([1; 16]);
    } else {
        bytes.extend([0, 8, 0, 0]);
    }
    bytes.resize(bytes.len() + payload, 0x61);
    if dice.roll(8) == 0 {
        bytes.resize(1_460, 0x62);
    }
    bytes
}

/// A model that asks for the same features, and decides otherwise: every other tree of a model.
pub(crate) fn another(model: &Model) -> Model {
    let mut other = model.clone();
    let mut number = 0;
    other.flow_trees.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    other.known = None;
    other
}
