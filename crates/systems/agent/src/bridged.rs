//! Bridges among the interfaces that are captured: what crosses one passes several of them, and is exported
//! once.

use std::collections::BTreeMap;

use crate::message::{AssignedPolicy, Interface};

/// Ports of bridges that are up, whether or not they may be captured, by the name of the bridge.
pub(crate) type Ports = BTreeMap<String, Vec<String>>;

/// What is done about bridges.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Bridged {
    /// Bridges that are not captured, since their ports are.
    pub(crate) left_out: Vec<String>,
    /// Ports of a bridge for which the same policies hold: of what goes from one to another, only what comes
    /// in is captured. Those of each together, at least two.
    pub(crate) ports: Vec<Vec<String>>,
    /// What to say about it.
    pub(crate) notes: Vec<String>,
}

/// Ports of all bridges.
pub(crate) fn ports(all: &[Interface]) -> Ports {
    let mut ports = Ports::new();
    for one in all.iter().filter(|one| !one.bridge.is_empty()) {
        let ports = ports.entry(one.bridge.clone()).or_default();
        ports.push(one.name.clone());
    }
    ports
}

/// Policies that are for one interface only.
type Own<'a> = Vec<(&'a str, &'a str, u16)>;

/// Those of each captured interface.
pub(crate) type OwnPolicies<'a> = BTreeMap<&'a str, Own<'a>>;

/// Policies of captured interfaces. Those with the same export the same packets.
pub(crate) fn own_policies<'a>(
    captured: impl Iterator<Item = &'a str>,
    policies: &'a [AssignedPolicy],
) -> OwnPolicies<'a> {
    let mut own: OwnPolicies<'_> = captured.map(|name| (name, Vec::new())).collect();
    for policy in policies {
        let only = policy.interface.as_deref();
        if let Some(own) = only.and_then(|only| own.get_mut(only)) {
            own.push((&policy.matches, &policy.action, policy.priority));
        }
    }
    own.values_mut().for_each(|own| own.sort_unstable());
    own
}

/// What to do about bridges if the interfaces with these policies are captured, all of them without `ports`. Two
/// interfaces of which one has a policy that the other has not are not taken for the same: each exports what
/// passes it.
pub(crate) fn bridged(ports: &Ports, own: &OwnPolicies<'_>) -> Bridged {
    let mut all = Bridged::default();
    for (bridge, names) in ports {
        let mut groups: BTreeMap<&Own<'_>, Vec<String>> = BTreeMap::new();
        for name in names {
            if let Some(own) = own.get(name.as_str()) {
                groups.entry(own).or_default().push(name.clone());
            }
        }
        if let Some(of_bridge) = own.get(bridge.as_str()) {
            let alike = groups.get(of_bridge).map_or(0, Vec::len);
            if alike == names.len() {
                all.left_out.push(bridge.clone());
                all.notes.push(format!(
                    "bridge {bridge} is not captured, because all of its ports are captured \
                     (--all-copies also captures the bridge)"
                ));
            } else if !groups.is_empty() {
                all.notes.push(format!(
                    "bridge {bridge} is captured, and so are some of its ports: packets that pass both are \
                     exported twice, unless all of its ports are captured, with the same policies"
                ));
            }
        }
        let several: Vec<_> = groups
            .into_values()
            .filter(|ports| ports.len() > 1)
            .collect();
        if !several.is_empty() {
            all.notes.push(format!(
                "packets between captured ports of bridge {bridge} are exported where they enter, \
                 not where they leave (--all-copies exports both)"
            ));
        }
        all.ports.extend(several);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(matches: &str, interface: Option<&str>) -> AssignedPolicy {
        AssignedPolicy {
            matches: matches.into(),
            action: "header -> here".into(),
            priority: 100,
            interface: interface.map(str::to_owned),
        }
    }

    fn found(captured: &[&str], policies: &[AssignedPolicy]) -> Bridged {
        let port = |(name, bridge): &(&str, &str)| Interface {
            name: (*name).into(),
            bridge: (*bridge).into(),
            ..Interface::default()
        };
        let all = [("eth0", "br1"), ("tap0", "br0"), ("tap1", "br0")];
        let none = [("br0", ""), ("br1", ""), ("eth1", "")];
        let all: Vec<Interface> = all.iter().chain(&none).map(port).collect();
        bridged(
            &ports(&all),
            &own_policies(captured.iter().copied(), policies),
        )
    }

    fn names(of: &[&str]) -> Vec<String> {
        of.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_crosses_a_bridge_is_captured_once_where_policies_are_the_same() {
        let all = [policy("ip", None)];
        let both = found(&["tap0", "tap1"], &all);
        assert_eq!(
            (both.ports, both.left_out),
            (vec![names(&["tap0", "tap1"])], vec![])
        );
        let whole = found(&["br0", "br1", "eth0", "eth1", "tap0", "tap1"], &all);
        assert_eq!(whole.ports, [names(&["tap0", "tap1"])]);
        assert_eq!(whole.left_out, ["br0", "br1"]);
        // Not all of its ports: what comes in by the others passes the bridge only.
        let some = found(&["br0", "tap1"], &all);
        assert!(some.ports.is_empty() && some.left_out.is_empty());
        assert!(some.notes[0].contains("exported twice"), "{:?}", some.notes);
        assert_eq!(found(&["br0", "eth1"], &all), Bridged::default());
        assert_eq!(found(&["tap0", "eth0"], &all), Bridged::default());
    }

    #[test]
    fn an_interface_with_a_policy_of_its_own_exports_all_that_passes_it() {
        let one = [policy("ip", None), policy("tcp", Some("tap1"))];
        let apart = found(&["br0", "tap0", "tap1"], &one);
        assert!(apart.ports.is_empty() && apart.left_out.is_empty());
        let of_bridge = [policy("ip", None), policy("tcp", Some("br0"))];
        let ports = found(&["br0", "tap0", "tap1"], &of_bridge);
        assert_eq!(ports.ports, [names(&["tap0", "tap1"])]);
        assert!(ports.left_out.is_empty(), "its own policy is for it alone");
        // The same for each, in whatever order, is the same.
        let same = [
            policy("tcp", Some("tap1")),
            policy("udp", Some("tap1")),
            policy("udp", Some("tap0")),
            policy("tcp", Some("tap0")),
        ];
        assert_eq!(found(&["tap0", "tap1"], &same).ports.len(), 1);
    }
}
