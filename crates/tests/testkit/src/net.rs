//! Private networks for tests.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace, removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace whose name starts with `prefix`, without IPv6, so that only the test sends
    /// anything in it. Tests of one process may use the same prefix at a time.
    ///
    /// # Panics
    ///
    /// If it cannot be made: see [`may_use_kernel`](crate::may_use_kernel).
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("{prefix}-{}-{number}", std::process::id());
        let namespace = Self { name };
        namespace.run_outside(&["netns", "add", &namespace.name]);
        namespace.enter(|| {
            // A kernel without IPv6 has nothing to disable.
            let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        });
        namespace
    }

    /// Its name, for `ip netns exec`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` in it, with arguments separated by spaces.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn ip(&self, arguments: &str) {
        let mut all = vec!["-n", &self.name];
        all.extend(arguments.split(' '));
        self.run_outside(&all);
    }

    fn run_outside(&self, arguments: &[&str]) {
        let output = Command::new("ip").args(arguments).output();
        let output = output.expect("iproute2 is installed (`make tools`)");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "ip {arguments:?}: {error}");
    }

    /// Makes a pair of connected interfaces that are up.
    ///
    /// # Panics
    ///
    /// If they cannot be made.
    pub fn pair(&self, one: &str, two: &str) {
        self.ip(&format!(
            "link add {one} mtu 60000 type veth peer name {two} mtu 60000"
        ));
        self.ip(&format!("link set {one} up"));
        self.ip(&format!("link set {two} up"));
    }

    /// Runs a closure on a thread in the namespace.
    ///
    /// # Panics
    ///
    /// If the closure does.
    pub fn enter<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.name)).expect("it was just made");
        thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("root may enter it");
                inside()
            });
            match thread.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .output();
    }
}
