//! Interfaces, sockets and their rings.

pub mod interface;
pub mod packet;
pub mod socket;
pub mod xdp;
