//! Whether an interface's packets may be taken away from the host.

use std::fmt;
use std::net::IpAddr;

use super::interface::Device;
use super::uses::{HostUses, Use};
use crate::live::error::LiveError;
use crate::live::options::{Direction, LiveOptions, Stamps};

/// Whether the packets of an interface are taken away from the host, or could be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exclusivity {
    /// They are.
    Taken,
    /// They could be: nothing else uses the interface, as far as can be seen.
    Possible,
    /// They should not be, or cannot be, and why.
    No(String),
}

impl fmt::Display for Exclusivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken => f.write_str("taken away from this host"),
            Self::Possible => {
                f.write_str("possible, since nothing else on this host uses it (--exclusive=auto)")
            }
            Self::No(why) => write!(f, "no: {why}"),
        }
    }
}

/// How an interface is captured.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Way {
    /// Its name.
    pub interface: String,
    /// In plain English: AF_PACKET or AF_XDP, and details of it.
    pub how: String,
    /// Whether its packets are taken away from the host, or could be.
    pub exclusive: Exclusivity,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.interface, self.how)
    }
}

impl Device {
    /// Whether its packets could be taken away from the host, whose uses these are.
    #[must_use]
    pub fn exclusivity(&self, uses: &HostUses) -> Exclusivity {
        match self.offers().xdp_problem {
            Some(problem) => Exclusivity::No(problem),
            None => self.unless_used(uses),
        }
    }

    fn unless_used(&self, uses: &HostUses) -> Exclusivity {
        let uses = uses.of(self);
        match uses.is_empty() {
            true => Exclusivity::Possible,
            false => Exclusivity::No(self.used(&uses)),
        }
    }

    /// Its uses in words.
    fn used(&self, uses: &[Use]) -> String {
        let words: Vec<String> = uses.iter().map(ToString::to_string).collect();
        let words = words.join("; ");
        let only_link_local = |used: &Use| match used {
            Use::Address(address, _) | Use::Route(address, ..) => is_link_local(*address),
            _ => false,
        };
        if !uses.is_empty() && uses.iter().all(only_link_local) {
            return format!(
                "{words}; if this host does not use IPv6 there: `sysctl -w \
                 net.ipv6.conf.{}.disable_ipv6=1`",
                self.name
            );
        }
        words
    }

    /// What speaks against taking packets away when they are captured like this.
    pub(in crate::live) fn exclusivity_for(
        &self,
        options: &LiveOptions,
        workers: u16,
        uses: &HostUses,
    ) -> Exclusivity {
        let no = |why: &str| Exclusivity::No(why.to_owned());
        // Whether it may be captured at all, opening it says.
        let found = match self.frame_problem() {
            Some(problem) => Exclusivity::No(problem),
            None => self.unless_used(uses),
        };
        match found {
            Exclusivity::Possible if options.direction == Direction::Out => {
                no("AF_XDP sees received packets only (-Q out)")
            }
            Exclusivity::Possible if options.stamps == Stamps::Adapter => {
                no("AF_XDP has no NIC timestamps (-j adapter)")
            }
            Exclusivity::Possible if workers > 1 => no(
                "the NIC spreads packets over workers by itself, and may separate the two \
                 directions of a flow (--cores)",
            ),
            found => found,
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Takes the packets of an unused interface away. `look` is called again afterwards: if something began to use
/// the interface meanwhile, its packets are not taken. Otherwise says why not.
pub(in crate::live) fn take_unused<T>(
    mut look: impl FnMut() -> Result<Exclusivity, LiveError>,
    take: impl FnOnce() -> Result<T, LiveError>,
) -> Result<T, String> {
    let unknown =
        |error: LiveError| format!("it cannot be determined whether it is in use ({error})");
    if let Exclusivity::No(why) = look().map_err(unknown)? {
        return Err(why);
    }
    let taken = take().map_err(|error| match error {
        LiveError::NoXdp { why, .. } => why,
        error => error.to_string(),
    })?;
    match look().map_err(unknown)? {
        Exclusivity::No(why) => {
            drop(taken);
            Err(format!("{why}, since a moment ago"))
        }
        _ => Ok(taken),
    }
}

#[cfg(test)]
mod tests {
    use strata_testkit::{Namespace, may_use_kernel};

    use super::*;

    /// Between the check and the start, an address is added.
    #[test]
    fn what_is_used_since_the_check_is_given_back() {
        if !may_use_kernel("network namespaces") {
            return;
        }
        let namespace = Namespace::new("st-race");
        namespace.pair("st-race-a", "st-race-b");
        namespace.ip("link set st-race-b mtu 1500");
        namespace.enter(|| {
            let device = Device::named("st-race-b").unwrap();
            let look = || Ok(device.exclusivity(&HostUses::of_device(&device)?));
            assert_eq!(take_unused(look, || Ok(7)), Ok(7));
            let taken = std::rc::Rc::new(());
            let take = || {
                namespace.ip("addr add 192.0.2.1/32 dev st-race-b");
                Ok(std::rc::Rc::clone(&taken))
            };
            let why = take_unused(look, take).unwrap_err();
            assert_eq!(why, "has address 192.0.2.1/32, since a moment ago");
            assert_eq!(std::rc::Rc::strong_count(&taken), 1, "given back");
            let why = take_unused(look, || Ok(7)).unwrap_err();
            assert_eq!(why, "has address 192.0.2.1/32", "not even tried");
        });
    }
}
