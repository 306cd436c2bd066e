//! Why an interface cannot be captured, or no longer.

use std::io;

/// What a user can do to be permitted to capture.
pub(super) const PERMIT: &str = "run as root, or permit it to the program, once: `sudo setcap \
     cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM`";

/// What went wrong with live capture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// No interface was named.
    #[error("no interface given: name one or more with -i; `strata interfaces` lists them")]
    NoInterface,
    /// Without a secret key, a sender could choose which worker gets its flows.
    #[error("cannot get random numbers from the system, to spread flows among workers: {why}")]
    NoRandomness {
        /// What the operating system says.
        why: String,
    },
    /// There is no such interface.
    #[error("there is no interface '{name}' here: choose one of {known}, or 'any' for all of them")]
    NoSuchInterface {
        /// The name.
        name: String,
        /// The interfaces there are.
        known: String,
    },
    /// The interface is down at the start.
    #[error("{interface}: the interface is down: `ip link set {interface} up`")]
    Down {
        /// The interface.
        interface: String,
    },
    /// The process lacks the permission to capture.
    #[error("{interface}: capturing is not permitted: {}", PERMIT)]
    NotPermitted {
        /// The interface.
        interface: String,
    },
    /// The filter cannot be applied to the interface.
    #[error("the filter cannot be applied to {interface}: {why}")]
    Filter {
        /// The interface.
        interface: String,
        /// What cannot be tested.
        why: String,
    },
    /// Something that only the kernel can do for us.
    #[error(
        "{interface}: {wanted} needs eBPF: {why}; run as root, or with `setcap cap_bpf+ep`{instead}"
    )]
    NoBpf {
        /// The interface.
        interface: String,
        /// The requested feature.
        wanted: &'static str,
        /// Why it is not available.
        why: String,
        /// What else can be done, in words that follow.
        instead: &'static str,
    },
    /// The interface cannot be captured through AF_XDP.
    #[error(
        "{interface}: cannot be captured through AF_XDP: {why}; leave out --exclusive to capture it"
    )]
    NoXdp {
        /// The interface.
        interface: String,
        /// Why not.
        why: String,
    },
    /// The card provides no timestamps.
    #[error(
        "{interface}: the NIC does not timestamp received packets (`ethtool -T {interface}`): \
         leave out -j to use the kernel's timestamps"
    )]
    NoCardTimes {
        /// The interface.
        interface: String,
    },
    /// The ring could not be created.
    #[error(
        "{interface}: cannot create a ring of {} MiB: {source}; try a smaller one (-B, in KiB)",
        .bytes >> 20
    )]
    Ring {
        /// The interface.
        interface: String,
        /// The size that was wanted.
        bytes: usize,
        /// What the kernel says.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{interface}: {call} failed: {source}")]
    System {
        /// The interface.
        interface: String,
        /// What was tried.
        call: &'static str,
        /// What the kernel says.
        source: io::Error,
    },
}

impl LiveError {
    /// Whether another try may succeed: others hold all descriptors or all memory at the moment.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::System { source, .. } | Self::Ring { source, .. } => matches!(
                source.raw_os_error(),
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)
            ),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_others_may_release_is_tried_again() {
        let system = |code| LiveError::System {
            interface: String::from("eth0"),
            call: "SIOCGIFINDEX",
            source: io::Error::from_raw_os_error(code),
        };
        assert!(system(libc::EMFILE).may_pass());
        assert!(system(libc::ENFILE).may_pass());
        assert!(!system(libc::EPERM).may_pass());
        assert!(!system(libc::ENODEV).may_pass());
        assert!(!LiveError::NoInterface.may_pass());
    }
}
