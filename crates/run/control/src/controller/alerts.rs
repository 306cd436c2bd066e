//! Alerts: unrequested events, sent as HTTP requests to a webhook.
//!
//! A thread of its own sends them, one after another, so that no other thread waits for a server.
//! Alerts that cannot be delivered are retried at growing intervals, then given up and counted; so
//! are alerts that find the queue full.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fs, io};

use serde::Serialize;
use strata_sandbox::{Role, SecretError, read_secret, restrict_thread};
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::config::{AlertsConfig, NO_ADDRESS, is_address};
use crate::controller::Event;

/// The most alerts that wait.
const QUEUE_MAX: usize = 256;
/// How long a server may take for one alert.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often an alert is tried, and the first pause between tries; each pause is twice as long as
/// the previous one.
const TRIES: u32 = 8;
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Where alerts go.
#[derive(Clone, Debug, Default)]
pub struct Webhook {
    /// The address, `http://` or `https://`.
    pub url: String,
    /// File with a token, sent as `Authorization: Bearer TOKEN`.
    pub token_file: Option<PathBuf>,
    /// Authorities that may issue the server's certificate (PEM), instead of the public ones.
    pub ca_file: Option<PathBuf>,
}

impl Webhook {
    /// The configured webhook, if any.
    #[must_use]
    pub fn of(config: &AlertsConfig) -> Option<Self> {
        Some(Self {
            url: config.webhook.clone()?,
            token_file: config.token_file.clone(),
            ca_file: config.ca_file.clone(),
        })
    }

    /// Checks that alerts can be sent, as far as possible without sending one.
    ///
    /// # Errors
    ///
    /// If the address is invalid, or a file is unusable.
    pub fn check(&self) -> Result<(), WebhookError> {
        self.prepare().map(drop)
    }

    /// The HTTP client, and the token that it sends.
    fn prepare(&self) -> Result<(Agent, Option<String>), WebhookError> {
        if !is_address(&self.url) {
            return Err(WebhookError::Address);
        }
        let read = |path: &PathBuf| {
            fs::read(path).map_err(|source| WebhookError::File {
                path: path.clone(),
                source,
            })
        };
        let token = self.token_file.as_deref().map(read_secret).transpose()?;
        let mut tls = TlsConfig::builder();
        if let Some(path) = &self.ca_file {
            let none = || WebhookError::NoCertificate { path: path.clone() };
            let certificate = Certificate::from_pem(&read(path)?).map_err(|_| none())?;
            tls = tls.root_certs(RootCerts::new_with_certs(&[certificate]));
        }
        let agent = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .tls_config(tls.build())
            .build()
            .into();
        Ok((agent, token))
    }
}

/// Why alerts cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The token is unusable.
    #[error("alerts.token_file: {0}")]
    Token(#[from] SecretError),
    /// A file holds no certificate.
    #[error("{}: contains no certificate", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The address is invalid.
    #[error("{}", NO_ADDRESS)]
    Address,
    /// The thread cannot be started.
    #[error("cannot start a thread for alerts: {0}")]
    Thread(io::Error),
}

/// What became of the alerts so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlertCounts {
    /// Accepted by the server.
    pub sent: u64,
    /// Given up after several tries.
    pub failed: u64,
    /// Lost since the queue was full.
    pub dropped: u64,
}

#[derive(Debug, Default)]
struct Counters {
    sent: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

/// Accepts alerts. Those still waiting when it is dropped are tried once more, until one fails.
#[derive(Debug)]
pub struct AlertSender {
    queue: Option<SyncSender<Event>>,
    stop: Option<SyncSender<()>>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

/// The body of a request.
#[derive(Serialize)]
struct Body<'a> {
    version: &'a str,
    pid: u32,
    log: &'a str,
    #[serde(flatten)]
    event: &'a Event,
}

impl AlertSender {
    /// Starts sending; `log` is the recording's, as shown.
    ///
    /// # Errors
    ///
    /// If the webhook is unusable as given.
    pub fn start(webhook: &Webhook, log: String) -> Result<Self, WebhookError> {
        let (agent, token) = webhook.prepare()?;
        let url = webhook.url.clone();
        let (queue, waiting) = mpsc::sync_channel(QUEUE_MAX);
        let (stop, stopped) = mpsc::sync_channel(0);
        let counters = Arc::<Counters>::default();
        let mut sender = Sender {
            agent,
            url,
            token,
            log,
            stopped,
            counters: Arc::clone(&counters),
        };
        let thread = thread::Builder::new()
            .name("strata-alerts".into())
            .spawn(move || {
                // If this fails, so did the filter of the process, which was reported.
                let _ = restrict_thread(Role::Server);
                while let Ok(event) = waiting.recv() {
                    if !sender.deliver(&event) {
                        break;
                    }
                }
                let left = waiting.try_iter().count() as u64;
                sender.counters.failed.fetch_add(left, Ordering::Relaxed);
            })
            .map_err(WebhookError::Thread)?;
        Ok(Self {
            queue: Some(queue),
            stop: Some(stop),
            counters,
            thread: Some(thread),
        })
    }

    /// Hands an alert over; never waits.
    pub fn send(&self, event: &Event) {
        let queue = self.queue.as_ref();
        if queue.is_some_and(|queue| queue.try_send(event.clone()).is_err()) {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What became of the alerts so far.
    #[must_use]
    pub fn counts(&self) -> AlertCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AlertCounts {
            sent: load(&self.counters.sent),
            failed: load(&self.counters.failed),
            dropped: load(&self.counters.dropped),
        }
    }
}

impl Drop for AlertSender {
    fn drop(&mut self) {
        drop(self.stop.take());
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Sender {
    agent: Agent,
    url: String,
    token: Option<String>,
    log: String,
    /// Its other end is closed once no thread waits any more.
    stopped: Receiver<()>,
    counters: Arc<Counters>,
}

impl Sender {
    /// Whether to go on with the next alert: not if this one failed and no thread waits.
    fn deliver(&mut self, event: &Event) -> bool {
        let body = Body {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            log: &self.log,
            event,
        };
        let Ok(body) = serde_json::to_vec(&body) else {
            return true;
        };
        let mut pause = AGAIN_AFTER;
        for number in 1..=TRIES {
            let mut request = self.agent.post(&self.url);
            request = request.header("Content-Type", "application/json");
            if let Some(token) = &self.token {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            if request.send(&body[..]).is_ok() {
                self.counters.sent.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            if self.stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                self.counters.failed.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            if number == TRIES {
                break;
            }
            pause *= 2;
        }
        self.counters.failed.fetch_add(1, Ordering::Relaxed);
        true
    }
}
