//! Runs a role: [`RecordSpec`] (also of a switch), [`RelaySpec`], [`TelemetrySpec`].
//!
//! The caller (the command line, a test) describes the role in a [`Spec`], [`start`]s it and gets a
//! [`Handle`] to query, change and end it. Progress is reported as [`Notice`]s, and the result as the
//! role's outcome; nothing here prints, reads arguments or handles signals. [`replay`] and
//! [`generate`] send on the calling thread.
//!
//! ```text
//! handle           a role, started and running
//! record           the role that records, to a log or as a switch to a relay: the order of its start
//! files, live      the two kinds of recordings: from capture files, from interfaces
//! observer         the workers' reports, combined for the controller
//! sensors, governor, watchdog, reclaim, lag, eve
//!                  what is monitored during a live capture, and the response to it
//! vectors, reports packets of workers as vectors; what is reported of them to a telemetry collector
//! exports          what policies export: a queue beside each worker, sockets, streams of datagrams
//! sending          replay and generated traffic, on the calling thread
//! stream           streams on disk: appending, reading, checking; the role that serves them over TCP
//! agents           the role of a controller of agents: registry, certificates, SQLite
//! agent            the role of an agent: asks a controller, runs recordings that only export
//! collector        the role of a collector of exported packets: datagrams in, pcapng out
//! telemetry        the role of a telemetry collector: reports by UDP into memory that is queried
//! relay            the role of a relay: memory for switches, and the response to a short disk
//! destination      a log on this machine, or a relay
//! configuration    the configuration file, read once per start and once per reload
//! preflight        what is checked before anything is changed
//! sandbox, log_dir what is dropped once all is open; what is created, and for whom
//! waker            what ends the wait of a role that waits
//! memory, cpus     tables of flows; which CPU a thread runs on
//! error            why a role could not start, or failed
//! ```
//!
//! Crates above: `cli` only. This is where siblings meet: control, pipeline, capture, store,
//! archive and relay know nothing of each other's threads.
#![forbid(unsafe_code)]

mod agent;
mod agents;
mod collector;
mod configuration;
mod cpus;
mod destination;
mod drift;
mod error;
mod eve;
mod exports;
mod files;
mod governor;
mod handle;
mod journal;
mod lag;
mod live;
mod log_dir;
mod memory;
mod notice;
mod observer;
mod outcome;
mod preflight;
mod reclaim;
mod record;
mod relay;
mod relay_stream;
mod reports;
pub mod sandbox;
mod sending;
mod sensors;
mod setup;
mod spec;
mod stream;
mod telemetry;
mod vectors;
mod waker;
mod watchdog;

pub use agent::{AgentSource, AgentSpec, run_agent};
pub use agents::{ControllerSpec, ENROL_TOKEN, run_controller};
pub use collector::{
    CollectedFrom, Collector, CollectorCounts, CollectorOutcome, CollectorSpec, Outlet,
};
pub use destination::Closed;
pub use error::NodeError;
pub use handle::{Handle, Spec, start};
pub use log_dir::log_directory;
pub use memory::{machine_bytes, room_for};
pub use notice::{EveCounts, Notice, Tell};
pub use outcome::RecordOutcome;
pub use record::{RecordCounts, Recorded, check};
pub use relay::{RelayOutcome, RelaySpec};
pub use sending::{GenerateSpec, Pace, ReplaySpec, SendOutcome, generate, replay};
pub use spec::{
    DestinationSpec, DetailSpec, InputSpec, InterfaceSpec, LogSpec, ModelSpec, RecordSpec,
    SandboxSpec, ShadowSpec, SteeringSpec, TriggerSpec,
};
pub use stream::{
    Appended, Entry, FeedCounts, FeedWarning, HostedSession, HostedSpec, HostedStripe, Kept,
    LineRecords, PeerError, STREAM_PORT, SavedCursor, StreamAppender, StreamCheck, StreamClient,
    StreamDir, StreamError, StreamEvent, StreamFeed, StreamReader, StreamServeOutcome,
    StreamServeSpec, StreamSpec, StreamStatus, StripeConnection, StripeLink, StripeServer,
    StripeTls, Unread, Upkeep, WhenFull, check_streams,
};
pub use telemetry::{
    COLLECTOR_PORT, CollectorError, CollectorsSpec, Counted, EntryKind, Fade, FadeOptions, Found,
    FoundPath, FrameCounts, GenerationTime, Known, NamedList, TELEMETRY_COLLECTORS_MAX,
    TelemetryApiSpec, TelemetryCollectorOutcome, TelemetryCollectorSpec, TelemetryCursor,
    TelemetryLayout, TelemetryOutcome, TelemetrySpec, TelemetryStore, shown, telemetry_status,
};
pub use waker::Waker;
