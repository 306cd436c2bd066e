//! How long it takes to add a policy to a running recording and to remove it again, until the plan
//! is published, by the number of policies.
//!
//! `cargo run --release -p strata-control --example policies_speed`
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a tool for developers"
)]

use std::time::{Duration, Instant};

use strata_classify::Model;
use strata_control::config::PolicyConfig;
use strata_control::{Controller, Settings};
use strata_testkit::workspace_root;

fn policy(number: u32) -> PolicyConfig {
    let [_, a, b, c] = number.to_be_bytes();
    PolicyConfig {
        matches: format!("host 10.{a}.{b}.{c} and tcp port {}", number % 1000 + 1),
        action: "header".into(),
        priority: 100,
        interface: None,
        protect: false,
    }
}

fn main() {
    let json = std::fs::read(workspace_root().join("models/default.json")).unwrap();
    println!("| policies | add: median | add: longest | remove: median |\n|---|---|---|---|");
    for count in [100_u32, 1_500, 10_000] {
        let beginning = Settings {
            modes: vec!["default".into()],
            ..Settings::default()
        };
        let controller = Controller::new(Model::from_json(&json).unwrap(), beginning).unwrap();
        let timed = |work: &dyn Fn()| {
            let start = Instant::now();
            work();
            start.elapsed()
        };
        let mut added: Vec<Duration> = (0..count)
            .map(|number| timed(&|| drop(controller.add_policy(&policy(number), "bench", ""))))
            .collect();
        assert_eq!(controller.status().policies, count as usize);
        let mut last = added.split_off(added.len() - 50);
        last.sort_unstable();
        let mut removed: Vec<Duration> = (count - 50..count)
            .map(|number| timed(&|| controller.remove_policy(number + 1, "bench", "").unwrap()))
            .collect();
        removed.sort_unstable();
        println!(
            "| {count} | {:.2?} | {:.2?} | {:.2?} |",
            last[25], last[49], removed[25]
        );
    }
}
