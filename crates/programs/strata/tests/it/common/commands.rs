//! Every command of the program, once: a new one belongs to one of the lists. `main.rs` compares them
//! with the command line; `program/sandbox.rs` starts those that run until they are stopped, and `attack` covers
//! those that strangers reach.
#![allow(dead_code, reason = "each test uses a part of it")]

/// What strangers can send to a command that runs until it is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Faces {
    /// Packets, connections or files: a list of attacks has its name.
    Strangers,
    /// Nothing but what a program of the same user shows or takes, or nothing at all.
    Nobody,
}

/// Commands that run until they are stopped, some of them with an option only.
pub(crate) const LONG_RUNNING: &[(&str, Faces)] = &[
    ("agent", Faces::Strangers),
    ("ask", Faces::Strangers),
    ("collector", Faces::Strangers),
    ("compact", Faces::Strangers),
    ("controller run", Faces::Strangers),
    ("generate", Faces::Nobody),
    ("gpv agent", Faces::Strangers),
    ("gpv bursts", Faces::Strangers),
    ("gpv classify", Faces::Strangers),
    ("gpv profile", Faces::Strangers),
    ("gpv run", Faces::Strangers),
    ("helper", Faces::Nobody),
    ("record", Faces::Strangers),
    ("relay", Faces::Strangers),
    ("replay", Faces::Strangers),
    ("serve", Faces::Strangers),
    ("status", Faces::Nobody),
    ("stream append", Faces::Strangers),
    ("stream serve", Faces::Strangers),
    ("stream tail", Faces::Strangers),
    ("switch", Faces::Strangers),
    ("telemetry collect", Faces::Strangers),
    ("telemetry generate", Faces::Nobody),
    ("telemetry list", Faces::Nobody),
    ("telemetry run", Faces::Strangers),
];

/// Commands that end by themselves.
pub(crate) const ENDING: &[&str] = &[
    "bug-report",
    "compare",
    "config init",
    "config reference",
    "config show",
    "controller agents",
    "controller apply",
    "controller forget",
    "controller log",
    "controller revoke",
    "controller rollout status",
    "controller rollout undo",
    "controller status",
    "detail",
    "eval",
    "export",
    "features",
    "gpv export",
    "gpv features",
    "gpv model",
    "gpv target add",
    "gpv target list",
    "gpv target remove",
    "gpv train",
    "gpv tune",
    "grep",
    "info",
    "interfaces",
    "key new",
    "key rotate",
    "labels add",
    "lake erase",
    "lake expire",
    "lake find",
    "lake query",
    "lake status",
    "learn",
    "mode set",
    "model compare",
    "model p4",
    "model promote",
    "move",
    "policy add",
    "policy list",
    "policy remove",
    "prune",
    // With --every, it runs until it is stopped, in the Python package: its unit restricts it.
    "publish",
    "query",
    "read",
    "rotate",
    "stream check",
    "stream create",
    "stream list",
    "stream to-parquet",
    "telemetry flows",
    "telemetry get",
    "telemetry path",
    "telemetry snapshot",
    "telemetry status",
    "telemetry table",
    "telemetry top",
    "top",
    "train",
    "verify",
];

/// A model for `gpv classify`: long flows, and others.
pub(crate) const FLOW_FOREST: &str = "\
strata-flow-forest 1
features size_1 size_2 size_3 size_4 size_5 size_6 size_7 size_8 size_mean size_sd delay_us_mean delay_us_sd
class short
class long
tree
split size_8 0 1 2
leaf 1 0
leaf 0 1
";

/// All commands.
pub(crate) fn all() -> Vec<&'static str> {
    let long = LONG_RUNNING.iter().map(|(name, _)| *name);
    long.chain(ENDING.iter().copied()).collect()
}

/// Whether the commands of a program are those of the lists that begin with one of these words.
pub(crate) fn are_known(mut there: Vec<String>, ours: &[&str]) {
    let is_ours = |name: &&str| ours.contains(&name.split(' ').next().unwrap());
    let mut known: Vec<&str> = all().into_iter().filter(is_ours).collect();
    known.sort_unstable();
    there.sort_unstable();
    assert_eq!(there, known);
}
