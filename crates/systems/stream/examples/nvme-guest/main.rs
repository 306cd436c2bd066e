//! An NVMe disk that no driver has, driven by `strata_stream::nvme`: for the guest of the test `nvme`.
//!
//!     nvme-guest DISK run COMMANDS SEED [format]   writes and reads, with faults
//!     nvme-guest DISK slow                         on a disk that is throttled: abort, timeout, reset
//!     nvme-guest DISK lend DEPTH DEVICE PEER QPN PSN   lends a queue pair to an RDMA peer
//!
//! DISK is a directory of `/sys/bus/pci/devices`. Lines that begin with FAIL say what went wrong.
#![allow(clippy::print_stdout, reason = "a program")]

mod disk;
mod lend;
mod run;

use std::path::Path;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        [disk, "run", commands, seed, rest @ ..] => {
            let format = rest == ["format"];
            run::run(Path::new(disk), commands.parse()?, seed.parse()?, format)
        }
        [disk, "slow"] => run::slow(Path::new(disk)),
        [disk, "lend", depth, device, peer, qpn, psn] => {
            let peer = (peer.parse()?, qpn.parse()?, psn.parse()?);
            lend::lend(Path::new(disk), depth.parse()?, device, peer)
        }
        _ => return Err("see the source for how to call it".into()),
    };
    if let Err(error) = &done {
        println!("FAIL {error}");
    }
    done
}
