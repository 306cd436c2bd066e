//! A bare relay with memory written by a NIC: for the guest of the test `rxe`.
//!
//!     verbs-relay DIR DEVICE

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use strata_relay::{Relay, RelayOptions};
use strata_roce::verbs::DeviceOptions;
use strata_store::RealDisk;

#[allow(clippy::print_stdout, reason = "a program")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, dir, device] = arguments.as_slice() else {
        return Err("verbs-relay DIR DEVICE".into());
    };
    let mut options = RelayOptions::new("0.0.0.0:4791".parse()?);
    options.block_bytes = 1 << 20;
    options.device = Some(DeviceOptions {
        name: device.clone(),
        gid_index: 1,
    });
    let disk = Arc::new(RealDisk::create_dir(Path::new(dir))?);
    strata_sandbox::leave_unrestricted();
    let _relay = Relay::start(disk, options, |events| println!("RELAY {events}"))?;
    println!("RELAY ready");
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}
