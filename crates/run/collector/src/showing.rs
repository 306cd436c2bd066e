//! What a collector shows while it runs: its status, and the socket where it can be asked for.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_control::api::{Server, serve_collector};
use strata_control::client::own_collector_socket;
use strata_control::{CollectorBoard, CollectorStatus};
use strata_role::{Level, Notice, Result, Tell};
use strata_sandbox::{Owner, SocketFile};

use crate::senders::Senders;

/// The least time over which packets per second are counted.
const RATE_OVER: Duration = Duration::from_millis(900);

/// What a collector shows, and where.
#[derive(Clone, Debug, Default)]
pub struct ShowSpec {
    /// Where the status is published.
    pub board: Arc<CollectorBoard>,
    /// The name of its output.
    pub output: String,
    /// The socket of its API; `None` if something else serves what is published, or nothing does.
    pub socket: Option<ControlSocket>,
}

/// The socket on which a collector answers.
#[derive(Clone, Debug, Default)]
pub struct ControlSocket {
    /// Where; `None` for the default place.
    pub path: Option<PathBuf>,
    /// Whose it is.
    pub owner: Owner,
}

impl ControlSocket {
    /// Listens. Without the default socket, a collector carries on.
    pub(super) fn bind(&self, tell: &Tell) -> Result<Option<SocketFile>> {
        match &self.path {
            Some(path) => Ok(Some(SocketFile::bind(path, &self.owner)?)),
            None => Ok(own_collector_socket(&self.owner)
                .inspect_err(|error| {
                    let what = format!("the collector runs without a control socket: {error}");
                    tell(&Notice::new(Level::Happened, "no-steering", what));
                })
                .ok()),
        }
    }
}

/// Publishes the status of a running collector.
pub(super) struct Showing {
    show: ShowSpec,
    fixed: CollectorStatus,
    started: Instant,
    /// When packets were last counted, how many there were, and the rate until then.
    counted: (Instant, u64, f64),
    _server: Option<Server>,
}

impl Showing {
    /// Of a collector that listens at `listen`. Serves it, if there is a socket.
    pub(super) fn start(
        show: ShowSpec,
        socket: Option<SocketFile>,
        (listen, is_encrypted): (String, bool),
    ) -> Result<Self> {
        let fixed = CollectorStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            listen,
            is_encrypted,
            output: show.output.clone(),
            ..CollectorStatus::default()
        };
        show.board.set(fixed.clone());
        let server = socket.map(|socket| serve_collector(Arc::clone(&show.board), socket));
        let now = Instant::now();
        Ok(Self {
            show,
            fixed,
            started: now,
            counted: (now, 0, 0.0),
            _server: server.transpose()?,
        })
    }

    /// Publishes what is known of senders.
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    pub(super) fn publish(&mut self, senders: &Senders, written: u64, socket_drops: u64) {
        let counts = &senders.counts;
        let (since, before, _) = self.counted;
        let elapsed = since.elapsed();
        if elapsed >= RATE_OVER {
            let rate = counts.packets.saturating_sub(before) as f64 / elapsed.as_secs_f64();
            self.counted = (Instant::now(), counts.packets, rate);
        }
        let (list, forgotten, forgotten_lost) = senders.status();
        self.show.board.set(CollectorStatus {
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            packets: counts.packets,
            bytes: counts.bytes,
            packets_per_second: self.counted.2,
            not_written: counts.packets.saturating_sub(written),
            announcements: counts.announcements,
            refused: counts.refused(),
            socket_drops,
            senders: list,
            forgotten,
            forgotten_lost,
            ..self.fixed.clone()
        });
    }
}
