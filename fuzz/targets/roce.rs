//! Any datagrams at a responder and a requester: nothing is written outside the region.
//!
//! Input: 2 bytes of choices, then datagrams, each after its length (u16) and a byte
//! that says what is put right of it, since chance does not: bit 0 the header, 1 the
//! sequence number, 2 the key, 3 the address, 4 what a waiting message expects.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use libfuzzer_sys::fuzz_target;
use strata_fuzz::{Bounded, Chooser};
use strata_rdma::{
    Access, Memory, OnLoss, PacketBatch, Psn, QueuePairOptions, QueuePairState, Refused, Region,
    Replies, Requester, RequesterOptions, Responder,
};
use strata_wire::roce::{Packet, Repr, Service};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const QPN: u32 = 0x11;
const RKEY: u32 = 0x55;
const VA: u64 = 0x7000_0000;
/// Bytes of the region, and of what lies around it and stays as it is.
const LEN: usize = 4096;
const GUARD: usize = 4096;
const UNTOUCHED: u8 = 0xa5;

/// A region in the middle of memory that is not its.
struct Guarded(Vec<u8>);

impl Memory for Guarded {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Refused> {
        // Whatever the responder asks for is done, as a NIC's DMA would.
        let start = (GUARD as u64).wrapping_add(at) as usize;
        self.0[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn update(&mut self, at: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, Refused> {
        let start = (GUARD as u64).wrapping_add(at) as usize;
        let place: &mut [u8] = &mut self.0[start..start + 8];
        let before = u64::from_ne_bytes((&*place).try_into().expect("8 bytes"));
        place.copy_from_slice(&change(before).to_ne_bytes());
        Ok(before)
    }
}

fn queue_pair(service: Service) -> QueuePairOptions {
    let access = Access {
        write: true,
        atomic: true,
    };
    QueuePairOptions {
        number: QPN,
        peer_number: 9,
        peer: PEER,
        service,
        first_psn: Psn::new(0xff_fff0),
        mtu: 256,
        domain: 1,
        access,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut choose = Chooser::new(bytes);
    let choices = choose.u16();
    let service = if choices & 1 == 0 {
        Service::Rc
    } else {
        Service::Uc
    };
    let access = Access {
        write: choices & 2 == 0,
        atomic: choices & 4 == 0,
    };
    let mut responder = Responder::new();
    responder.register(Region {
        rkey: RKEY,
        va: VA,
        len: LEN as u64,
        domain: 1,
        access,
        memory: Guarded(vec![UNTOUCHED; GUARD + LEN + GUARD]),
    });
    responder.connect(queue_pair(service));
    let mut requester = requester(choices, service);
    let mut replies = Replies::default();
    let mut out = PacketBatch::new();
    let mut now_ns = 0;
    while !choose.is_empty() {
        let len = usize::from(choose.u16()) % 600;
        let mended = choose.u8();
        let mut datagram = choose.take(len).to_vec();
        mend(&mut datagram, mended, &responder, service);
        let Some(packet) = Packet::new_checked(&datagram) else {
            continue;
        };
        again(&packet);
        let _ = responder.receive(PEER, &packet, &mut replies);
        now_ns += u64::from(mended) << 20;
        let _ = requester.receive(&packet, now_ns, &mut out);
        let _ = requester.tick(now_ns, &mut out);
        assert!(requester.in_flight() <= 16 || service == Service::Uc);
        out.clear();
        let state = responder.queue_pair(QPN).map(|qp| qp.state());
        if state.is_some_and(|state| state != QueuePairState::Ready) {
            responder.connect(queue_pair(service));
        }
    }
    responder.acknowledge(&mut replies);
    for answer in replies.packets.iter() {
        let answer = Packet::new_checked(answer).expect("answers are packets");
        assert!(answer.aeth().is_some() && service == Service::Rc);
    }
    let memory = &responder.region_mut(RKEY).expect("it is there").memory.0;
    let (before, rest) = memory.split_at(GUARD);
    let (inside, behind) = rest.split_at(LEN);
    assert!(before.iter().chain(behind).all(|&byte| byte == UNTOUCHED));
    if !access.write && !access.atomic {
        assert!(inside.iter().all(|&byte| byte == UNTOUCHED));
    }
});

/// With packets in flight.
fn requester(choices: u16, service: Service) -> Requester {
    let mut options = RequesterOptions::new(service, QPN, Psn::new(0xff_fff0), 256);
    options.window = 16;
    options.on_loss = if choices & 8 == 0 {
        OnLoss::Resend
    } else {
        OnLoss::Skip
    };
    let mut requester = Requester::new(options);
    let mut out = PacketBatch::new();
    for n in 0..u64::from(choices >> 4 & 15) {
        let posted = match service {
            Service::Rc if n % 3 == 2 => requester.fetch_add(VA, RKEY, 1, 0, &mut out).map(drop),
            _ => requester.write(VA, RKEY, &[1; 8], 0, &mut out).map(drop),
        };
        assert!(posted.is_ok(), "the window has room for 16");
    }
    requester
}

/// Reads headers and writes them again.
fn again(packet: &Packet<'_>) {
    let Some(repr) = Repr::parse(packet) else {
        return;
    };
    let mut bytes = Vec::new();
    repr.emit(&[packet.payload()], &mut bytes);
    assert_eq!(bytes.len(), repr.buffer_len());
    let read = Packet::new_checked(&bytes).expect("what was emitted is read");
    assert_eq!(Repr::parse(&read), Some(repr));
    assert_eq!(read.payload(), packet.payload());
}

fn mend(datagram: &mut [u8], what: u8, responder: &Responder<Guarded>, service: Service) {
    if datagram.len() < 28 {
        return;
    }
    if what & 1 != 0 {
        let code = datagram[0] % 21;
        datagram[0] = code | if service == Service::Uc { 0x20 } else { 0 };
        datagram[1] &= 0xf0;
        datagram[2..8].copy_from_slice(&[0xff, 0xff, 0, 0, 0, 0x11]);
    }
    if what & 2 != 0
        && let Some(qp) = responder.queue_pair(QPN)
    {
        let psn = qp.expected().get().to_be_bytes();
        datagram[9..12].copy_from_slice(&psn[1..]);
    }
    if what & 4 != 0 {
        datagram[20..24].copy_from_slice(&RKEY.to_be_bytes());
    }
    if what & 8 != 0 {
        // Within, or a little before or after.
        let at = u64::from(u16::from_be_bytes([datagram[18], datagram[19]])) % 5120;
        datagram[12..20].copy_from_slice(&(VA + at - 512).to_be_bytes());
    }
    if what & 16 != 0 {
        let payload = datagram
            .len()
            .saturating_sub(32 + usize::from(datagram[1] >> 4 & 3));
        let len = u32::try_from(payload).unwrap_or(0);
        datagram[24..28].copy_from_slice(&len.to_be_bytes());
    }
}
