//! What searches are tested with and measured against: rule sets and traces in the shape of
//! ClassBench's, and other algorithms. The example `rules_speed` uses it too.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each program uses a part of it"
)]

pub mod classbench;
pub mod peers;
