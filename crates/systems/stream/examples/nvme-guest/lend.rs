//! A queue pair lent to an RDMA peer. A NIC could write the doorbells itself (PeerDirect); Soft-RoCE
//! cannot register the memory of a device, so this process forwards doorbells, and nothing else: it looks at no
//! entry, no completion and no data.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use strata_stream::nvme::register;
use strata_sys::shared::SharedMemory;
use strata_sys::verbs::{Connected, Device, DeviceOptions, Peer};
use strata_wire::exact;

use crate::Result;
use crate::disk::{BELLS, COMPLETIONS, DATA, Disk, ID, LISTS, SUBMISSIONS};

const MTU: usize = 1024;
/// Between looks at the doorbells; the guest's only CPU answers reads too.
const PAUSE: Duration = Duration::from_micros(50);

pub(crate) fn lend(
    path: &Path,
    depth: u16,
    device: &str,
    (peer, qpn, psn): (IpAddr, u32, u32),
) -> Result<()> {
    let mut disk = Disk::open(path)?;
    let mut own = disk.create_pair(depth, false, false)?;
    disk.claim(&mut own, false)?;
    disk.delete_pair()?;
    let mut pair = disk.create_pair(depth, true, false)?;
    let device = Device::open(&DeviceOptions {
        name: device.to_owned(),
        gid_index: 1,
    })?;
    let peer = Peer {
        reliable: true,
        qpn,
        psn,
        mtu: MTU,
        address: peer,
        len: disk.reach.memory.len(),
        reads: true,
    };
    let memory = SharedMemory::map(disk.reach.memory.file().try_clone()?, peer.len)?;
    let connected = device.lend(memory, &peer)?;
    say(&disk, &connected, depth);
    // One line: the controller is reset, and the queue pair begins again. The end of the input: this ends.
    let stop = Arc::new(AtomicBool::new(false));
    let (send, resets) = std::sync::mpsc::channel();
    {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            for line in std::io::stdin().lines() {
                match line.as_deref() {
                    Ok("reset") => drop(send.send(())),
                    _ => break,
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
    let (tail, head) = disk.capabilities.bells(ID);
    let mut told = [0; 2];
    while !stop.load(Ordering::Relaxed) {
        for (told, bell) in told.iter_mut().zip([tail, head]) {
            let at = BELLS as u64 + bell - register::BELLS;
            let bytes = connected.memory().copy_out(exact(at), 4);
            let value = u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
            if value != *told {
                *told = value;
                disk.reach.registers.write(exact(bell), value);
            }
        }
        if resets.try_recv().is_ok() {
            disk.enable()?;
            pair.reset();
            disk.announce(&pair, false)?;
            told = [0; 2];
            println!("RESET");
        }
        std::thread::sleep(PAUSE);
    }
    println!("BYE");
    Ok(())
}

fn say(disk: &Disk, connected: &Connected, depth: u16) {
    println!(
        "READY {} {} {} {} {} {} {depth} {SUBMISSIONS} {COMPLETIONS} {BELLS} {LISTS} {DATA}",
        connected.number(),
        connected.rkey(),
        connected.va(),
        disk.reach.bus(0),
        disk.blocks,
        disk.block,
    );
}
