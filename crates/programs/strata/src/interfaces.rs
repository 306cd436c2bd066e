//! `strata interfaces`: which interfaces can be captured, how, and why not.

use std::io::Write;

use anyhow::Result;
use strata_capture::live::{ANY, Device, HostUses, interface_names};
use strata_terminal::confined::enter_netns;
use strata_terminal::output::{print_json, standard};
use strata_wire::Printable;

/// Arguments of `strata interfaces`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  strata interfaces eth0")]
pub(crate) struct Args {
    /// List only these interfaces, by name, altname or number.
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Work in this network namespace: its name (ip netns list), the PID of a process in it, such
    /// as a container's, or the path of its file.
    #[arg(long, value_name = "NAME|PID|PATH")]
    netns: Option<String>,

    /// Print a JSON array with an object for each interface.
    #[arg(long)]
    json: bool,
}

/// An interface as JSON. Without a problem, that is null.
#[derive(serde::Serialize)]
struct Answer {
    name: String,
    link: String,
    loopback: bool,
    up: bool,
    carrier: bool,
    /// In Mb/s, if the driver says so.
    speed_mbps: Option<u32>,
    mtu: u32,
    driver: Option<String>,
    /// Why it cannot be captured.
    af_packet_problem: Option<String>,
    /// Why AF_XDP (--exclusive) cannot be used.
    af_xdp_problem: Option<String>,
    receive_queues: u32,
    /// Whether the host uses it, as text: what exclusive capture would take away.
    exclusive: String,
    /// Packets of a flow are merged on receiving (GRO, LRO), so sizes are not those on the wire.
    merges: bool,
    /// The card can give its own times to all packets.
    stamps: bool,
}

impl Answer {
    fn new(device: &Device, exclusive: String) -> Self {
        let offers = device.offers();
        Self {
            name: device.name.clone(),
            link: device.link.to_string(),
            loopback: device.is_loopback,
            up: device.is_up,
            carrier: device.is_running,
            speed_mbps: device.speed_mbps,
            mtu: device.mtu,
            driver: offers.driver,
            af_packet_problem: offers.packet_problem,
            af_xdp_problem: offers.xdp_problem,
            receive_queues: offers.queues,
            exclusive,
            merges: offers.merges,
            stamps: offers.stamps,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    args.netns.as_deref().map_or(Ok(()), enter_netns)?;
    let devices: Vec<Device> = if args.names.is_empty() {
        Device::all()?
    } else {
        let names = interface_names(&args.names);
        let named = names.iter().map(|name| Device::named(name));
        named.collect::<Result<_, _>>()?
    };
    let uses = match &devices[..] {
        [device] => HostUses::of_device(device),
        _ => HostUses::now(),
    };
    let exclusive = |device: &Device| match &uses {
        Ok(uses) => device.exclusivity(uses).to_string(),
        Err(error) => format!("cannot determine whether it is in use: {error}"),
    };
    if args.json {
        let answers = devices
            .iter()
            .map(|device| Answer::new(device, exclusive(device)));
        let answers: Vec<Answer> = answers.collect();
        return print_json(&answers);
    }
    let mut out = standard();
    for device in devices {
        write!(out, "{}", text(&device, &exclusive(&device)))?;
    }
    Ok(())
}

/// `exclusive`: whether its packets could be taken away from the host.
fn text(device: &Device, exclusive: &str) -> String {
    let offers = device.offers();
    // Linux allows almost any character in interface names.
    let name = Printable(&device.name).to_string();
    if name == ANY {
        let way = offers.packet_problem.unwrap_or_else(|| String::from("yes"));
        return format!(
            "{name}: all interfaces together, {}\n    AF_PACKET: {way}\n",
            device.link
        );
    }
    let mut facts = vec![device.link.to_string()];
    if device.is_loopback {
        facts.push(String::from("loopback"));
    }
    facts.push(String::from(match (device.is_up, device.is_running) {
        (false, _) => "down",
        (true, false) => "up, no carrier",
        (true, true) => "up",
    }));
    facts.extend(device.speed_mbps.map(|mbps| format!("{mbps} Mb/s")));
    facts.push(format!("MTU {}", device.mtu));
    facts.extend(offers.driver.map(|driver| format!("driver {driver}")));
    let way = |problem: Option<String>, fine: String| match problem {
        Some(problem) => format!("no: {problem}"),
        None => fine,
    };
    let packet = way(offers.packet_problem, String::from("yes"));
    let queues = match offers.queues {
        1 => String::from("one receive queue"),
        count => format!("{count} receive queues, so {count} workers"),
    };
    let xdp = way(
        offers.xdp_problem,
        format!("can be tried, {queues}; native if the driver has XDP, else generic"),
    );
    let mut text = format!(
        "{name}: {}\n    AF_PACKET: {packet}\n    AF_XDP (--exclusive): {xdp}\n    \
         exclusive capture: {}\n",
        facts.join(", "),
        Printable(exclusive),
    );
    if offers.merges {
        text += &format!(
            "    packets of a flow are merged on receiving, so sizes are not those on the wire: \
             `ethtool -K {name} gro off lro off`\n"
        );
    }
    if offers.stamps {
        text += "    the NIC can timestamp all packets\n";
    }
    text
}
