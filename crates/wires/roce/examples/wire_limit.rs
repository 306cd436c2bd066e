//! What the wire carries on its own: RDMA packets of 4096 bytes from one socket to another, sealed
//! and counted, and nothing else done. For `bench/topics/wire.py`.
#![allow(clippy::print_stdout, reason = "a program")]

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use strata_rdma::PacketBatch;
use strata_roce::Port;
use strata_roce::raw::RawToPeer;
use strata_roce::udp::{UdpPort, UdpToPeer};
use strata_wire::roce::{Extensions, Opcode, Operation, Repr, Reth, Service, UDP_PORT};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["receive", address] => receive(address.parse()?),
        ["send", local, relay, seconds] => {
            send(local.parse()?, relay.parse()?, seconds.parse()?, None)
        }
        ["send", local, relay, seconds, interface] => send(
            local.parse()?,
            relay.parse()?,
            seconds.parse()?,
            Some(interface),
        ),
        _ => Err("receive ADDRESS | send LOCAL REMOTE SECONDS [INTERFACE]".into()),
    }
}

/// Prints the Gb/s between the first packet and the last.
fn receive(address: IpAddr) -> Result<(), Failure> {
    let mut port = UdpPort::bind(SocketAddr::new(address, UDP_PORT))?;
    println!("ready");
    let (mut bytes, mut first, mut last) = (0_usize, None, Instant::now());
    while first.is_none() || last.elapsed() < Duration::from_secs(1) {
        if !port.wait(Duration::from_millis(100))? {
            continue;
        }
        // The very first packet tells the kernel where the relay is.
        port.receive_with(&mut |_, _, packet| {
            bytes += packet.len() * usize::from(first.is_some());
        })?;
        last = Instant::now();
        first.get_or_insert(last);
    }
    let took = last.duration_since(first.unwrap_or(last));
    #[allow(clippy::cast_precision_loss, reason = "a figure to look at")]
    let rate = bytes as f64 * 8.0 / took.as_secs_f64() / 1e9;
    println!("{rate:.2} Gb/s");
    Ok(())
}

fn send(local: IpAddr, relay: IpAddr, seconds: u64, raw: Option<&str>) -> Result<(), Failure> {
    let own = SocketAddr::new(local, UDP_PORT);
    let relay = SocketAddr::new(relay, UDP_PORT);
    let mut batch = PacketBatch::new();
    let repr = Repr {
        opcode: Opcode {
            service: Service::Uc,
            operation: Operation::WriteOnly,
        },
        dest_qp: 2,
        psn: 0,
        ack_request: false,
        payload_len: 4096,
        extensions: Extensions {
            reth: Some(Reth::default()),
            ..Extensions::default()
        },
    };
    batch.push(&repr, &[&[7; 4096]]);
    // The kernel looks up the neighbour that raw frames need.
    UdpToPeer::new(UdpPort::bind(own)?, own, relay)?.send(&mut batch)?;
    std::thread::sleep(Duration::from_millis(100));
    let answers = UdpPort::bind(own)?;
    let mut port: Box<dyn Port> = match raw {
        Some(interface) => Box::new(RawToPeer::new(interface, answers, own, relay)?),
        None => Box::new(UdpToPeer::new(answers, own, relay)?),
    };
    for _ in 1..240 {
        batch.push(&repr, &[&[7; 4096]]);
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        port.send(&mut batch)?;
    }
    Ok(())
}
