//! Commands at the ends of a link: packets to a relay, packets from exports.

pub(crate) mod collector;
pub(crate) mod extcap;
pub(crate) mod relay;
pub(crate) mod switch;
