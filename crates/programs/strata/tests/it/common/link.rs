//! Network namespaces for a translator and its collectors.

use std::process::Command;

/// Addresses of translator and collectors.
const TRANSLATOR: &str = "192.0.2.1";
pub(crate) const COLLECTOR: &str = "192.0.2.2";

/// Two namespaces with a link between them.
pub(crate) struct Link {
    pub(crate) names: [String; 2],
}

impl Link {
    pub(crate) fn new(name: &str) -> Self {
        let id = std::process::id();
        let names = [format!("st-{name}-t-{id}"), format!("st-{name}-c-{id}")];
        let link = Self { names };
        let [translator, collector] = &link.names;
        let script = format!(
            "ip netns add {translator} && ip netns add {collector} &&
             ip -n {translator} link add eth0 type veth peer name eth0 netns {collector} &&
             ip -n {translator} addr add {TRANSLATOR}/24 dev eth0 &&
             ip -n {collector} addr add {COLLECTOR}/24 dev eth0 &&
             ip -n {translator} link set lo up && ip -n {collector} link set lo up &&
             ip -n {translator} link set eth0 up && ip -n {collector} link set eth0 up"
        );
        let made = Command::new("sh").args(["-c", &script]).status().unwrap();
        assert!(
            made.success(),
            "these tests need root, for network namespaces"
        );
        link
    }

    /// The program, in the namespace of the translator (0) or of collectors (1).
    pub(crate) fn strata(&self, end: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[end]]);
        command.arg(env!("CARGO_BIN_EXE_strata"));
        command
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}
