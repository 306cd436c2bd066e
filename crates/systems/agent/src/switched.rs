//! Software switches among the interfaces that are captured: what crosses one is exported once, where it
//! enters.
//!
//! Open vSwitch's datapath in user space receives packets at one port and sends them anew at another, so
//! the kernel does not know by which port a packet came in. If all ports of a switch are captured, each
//! packet is captured once if only one direction is: what comes in by its ports, and what this host sends by
//! the switch's own interfaces. If a packet could enter elsewhere, all copies are captured, which is said.

use crate::bridged::OwnPolicies;

/// A switch: bridges that patch ports join together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switch {
    /// Names of its bridges.
    pub bridges: Vec<String>,
    /// Its ports that are up and interfaces of this network namespace.
    pub ports: Vec<String>,
    /// Interfaces by which this host itself takes part, and that are up, such as that of a bridge's name.
    pub own: Vec<String>,
    /// Ports at which nothing can be captured, as in `vxlan0 (vxlan)`.
    pub elsewhere: Vec<String>,
    /// Whether it is in the kernel, which remembers by which port a packet came in.
    pub in_kernel: bool,
}

/// The switches of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Those that are known.
    pub all: Vec<Switch>,
    /// Why there may be others; empty if there are none.
    pub problem: String,
}

/// What is done about switches.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Switched {
    /// Ports of which only what comes in is captured.
    pub(crate) in_only: Vec<String>,
    /// Interfaces of which only what this host sends is captured.
    pub(crate) out_only: Vec<String>,
    /// What to say about it.
    pub(crate) notes: Vec<String>,
}

/// Names in a sentence: the first five, and the number of the others.
fn listed(names: &[&str]) -> String {
    let first = names.iter().take(5).copied().collect::<Vec<_>>();
    match names.len().saturating_sub(first.len()) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// What to do about switches if the interfaces with these `policies` are captured. Of ports with different
/// policies, each exports what passes it.
pub(crate) fn switched(switches: &Switches, policies: &OwnPolicies<'_>) -> Switched {
    let mut all = Switched::default();
    if !switches.problem.is_empty() {
        all.notes.push(switches.problem.clone());
    }
    for one in &switches.all {
        let captured = |name: &&String| policies.contains_key(name.as_str());
        let ports = || one.ports.iter().chain(&one.own);
        let several: Vec<&str> = ports().filter(captured).map(String::as_str).collect();
        let [first, _, ..] = several[..] else {
            continue;
        };
        let others = ports().filter(|name| !captured(name)).chain(&one.elsewhere);
        let others: Vec<&str> = others.map(String::as_str).collect();
        let are_alike = several
            .iter()
            .all(|name| policies.get(name) == policies.get(first));
        let bridges: Vec<&str> = one.bridges.iter().map(String::as_str).collect();
        let bridges = listed(&bridges);
        if others.is_empty() && are_alike {
            all.in_only.extend(one.ports.iter().cloned());
            all.out_only.extend(one.own.iter().cloned());
            all.notes.push(format!(
                "packets that cross Open vSwitch ({bridges}) are exported where they enter it, not where \
                 they leave (--all-copies exports both)"
            ));
            continue;
        }
        // The kernel tells forwarded packets, but not those of this host.
        let is_twice = !one.in_kernel || one.own.iter().any(|name| captured(&name));
        if is_twice {
            let why = match others.is_empty() {
                true => String::from("the same policies do not apply to all of its ports"),
                false => format!("ports of it are not captured: {}", listed(&others)),
            };
            all.notes.push(format!(
                "packets that cross Open vSwitch ({bridges}) between captured interfaces ({}) are exported \
                 twice, because {why}",
                listed(&several)
            ));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridged::own_policies;
    use crate::message::AssignedPolicy;

    fn policy(interface: Option<&str>) -> AssignedPolicy {
        AssignedPolicy {
            matches: "ip".into(),
            action: "header -> here".into(),
            priority: 100,
            interface: interface.map(str::to_owned),
        }
    }

    fn names(of: &[&str]) -> Vec<String> {
        of.iter().map(|name| (*name).to_owned()).collect()
    }

    fn switch() -> Switch {
        Switch {
            bridges: names(&["br-ex", "br-int"]),
            ports: names(&["eth1", "tap0", "tap1"]),
            own: names(&["br-int"]),
            ..Switch::default()
        }
    }

    fn found(one: Switch, captured: &[&str], policies: &[AssignedPolicy]) -> Switched {
        let all = Switches {
            all: vec![one],
            problem: String::new(),
        };
        switched(&all, &own_policies(captured.iter().copied(), policies))
    }

    #[test]
    fn one_direction_is_captured_if_all_ports_are() {
        let all = ["br-int", "eth0", "eth1", "tap0", "tap1"];
        let one = found(switch(), &all, &[policy(None)]);
        assert_eq!(one.in_only, ["eth1", "tap0", "tap1"]);
        assert_eq!(one.out_only, ["br-int"]);
        assert!(one.notes[0].contains("(br-ex, br-int) are exported where they enter"));
    }

    #[test]
    fn a_packet_that_could_enter_elsewhere_is_exported_where_it_leaves() {
        let twice = |one: Switch, captured: &[&str], own: &[AssignedPolicy], why: &str| {
            let one = found(one, captured, own);
            assert!(one.in_only.is_empty() && one.out_only.is_empty());
            assert!(one.notes[0].contains(why), "{:?}", one.notes);
        };
        let same = [policy(None)];
        twice(
            switch(),
            &["tap0", "tap1"],
            &same,
            "not captured: eth1, br-int",
        );
        let all = ["br-int", "eth1", "tap0", "tap1"];
        let tunnel = Switch {
            elsewhere: names(&["vxlan0 (vxlan)"]),
            ..switch()
        };
        twice(tunnel, &all, &same, "not captured: vxlan0 (vxlan)");
        let own = [policy(None), policy(Some("tap1"))];
        twice(switch(), &all, &own, "the same policies do not apply");
        assert_eq!(found(switch(), &["tap0"], &same), Switched::default());
        // The kernel itself knows what it forwards.
        let in_kernel = || Switch {
            in_kernel: true,
            ..switch()
        };
        assert_eq!(
            found(in_kernel(), &["tap0", "tap1"], &same),
            Switched::default()
        );
        twice(
            in_kernel(),
            &["br-int", "tap1"],
            &same,
            "not captured: eth1, tap0",
        );
    }

    #[test]
    fn a_switch_that_is_not_known_is_said() {
        let all = Switches {
            all: Vec::new(),
            problem: "the socket: permission denied".into(),
        };
        let one = switched(&all, &own_policies(["tap0"].into_iter(), &[]));
        assert_eq!(one.notes, ["the socket: permission denied"]);
    }
}
