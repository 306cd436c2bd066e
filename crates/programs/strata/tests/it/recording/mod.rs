//! Recordings that run: what they capture, and how they are controlled meanwhile.

mod altnames;
mod budget;
mod control;
mod dedup;
mod drift;
mod exclusive;
mod live;
mod loopback;
mod netns;
mod processes;
mod replay;
mod shed;
mod twice;
