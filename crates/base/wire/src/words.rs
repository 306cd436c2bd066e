//! The words that all of Strata shares: granularity, decider, ledger, flow, amounts.

pub(crate) mod amounts;
pub(crate) mod decider;
pub(crate) mod flow;
pub(crate) mod granularity;
pub(crate) mod ledger;
pub(crate) mod meta;
pub(crate) mod number;
pub(crate) mod printable;
pub(crate) mod share;
