//! Recordings that run: what they capture, and how they are controlled meanwhile.

mod budget;
mod control;
mod drift;
mod exclusive;
mod live;
mod replay;
mod shed;
