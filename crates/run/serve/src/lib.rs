//! The operator's page: what Strata knows, to a browser. A process of its own beside recordings,
//! which reads logs and talks to recordings' sockets.
//!
//! `openapi.yaml` is the contract with the page, whose client is made from it.
//!
//! ```text
//! api              the paths, a file for each view
//! ask              programs that answer: bounded, ended with the browser; shape: what is an amount
//! saved label      what users keep: questions, labels of flows
//! recorders        recordings, asked once a second
//! fleet            a controller of agents, asked when a browser wants it
//! access           who may what: trust, attempts (failed logins wait), audit
//! app              shared by all requests
//! ```
//!
//! What it shows of logs is made by `log-views`, and knows no path, login or user's choice. Threads and asynchronous
//! code are in `recorders` and `api` only. Uses `control` for recordings and controllers; used by the command line.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
// For the example of a recorder's status.
#![recursion_limit = "256"]

mod access;
mod api;
mod app;
mod ask;
mod fleet;
mod label;
mod recorders;
mod saved;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use strata_control::api::serve_tcp;
use strata_log_views::OpenLog;
use strata_networks::Names;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub use access::audit::{AuditEvent, TellAudit};
pub use access::trust::{Login, Role};

use app::App;

/// Connections waiting to be accepted.
const BACKLOG: i32 = 1024;
/// Maximum number of threads that read logs and talk to recordings.
const THREADS_MAX: usize = 24;

/// What to serve, where, and to whom.
pub struct Spec {
    /// Directories of logs.
    pub logs: Vec<PathBuf>,
    /// Sockets of recordings.
    pub sockets: Vec<PathBuf>,
    /// The directory or socket of a controller of agents, whose fleet is shown.
    pub fleet: Option<PathBuf>,
    /// Where to listen.
    pub listen: SocketAddr,
    /// Serves HTTPS, if given.
    pub tls: Option<TlsFiles>,
    /// Who may.
    pub login: Login,
    /// Whether no user may change anything.
    pub read_only: bool,
    /// Where users' questions and labels are kept, if they are.
    pub state: Option<PathBuf>,
    /// Opens a log, decrypting what is encrypted as far as there is a key.
    pub open: Arc<OpenLog>,
    /// Opens a log as it is stored.
    pub open_stored: Arc<OpenLog>,
    /// The program `strata`, which answers questions of logs.
    pub program: PathBuf,
    /// The file with the key of encrypted logs, for that program.
    pub key: Option<PathBuf>,
    /// Names of networks, countries and autonomous systems, which filters may use and addresses are shown with.
    pub names: Arc<Names>,
    /// Told of every change, look at payload and failed login.
    pub audit: Arc<TellAudit>,
    /// Told of what is wrong.
    pub warn: Box<dyn Fn(String) + Send + Sync>,
}

/// Files of TLS, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// What the server shows.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Whose certificates browsers must have; `None` if they need none.
    pub authority: Option<PathBuf>,
}

impl std::fmt::Debug for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spec")
            .field("logs", &self.logs)
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

/// Why the page cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Anybody could look.
    #[error(
        "--listen {0}: other machines can reach this address, and anyone could view the logs: \
         give --token-file, --tls-ca, or --trust-proxy with --user-header"
    )]
    Open(SocketAddr),
    /// The address cannot be used.
    #[error("--listen {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The directory for what users keep cannot be used.
    #[error("--state {}: {source}", dir.display())]
    State {
        /// The directory.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another server has the directory for what users keep.
    #[error(
        "--state {}: another server uses this directory: stop it, or give another directory, so that neither loses \
         what the other saves",
        .0.display()
    )]
    StateInUse(PathBuf),
    /// TLS cannot be used.
    #[error("cannot serve with TLS: {0}")]
    Tls(strata_auth::tls::TlsError),
    /// No thread or runtime.
    #[error("cannot start the thread that serves the page: {0}")]
    Thread(io::Error),
}

/// A page that is served. It ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves the page on a thread of its own.
///
/// # Errors
///
/// If it may not be served so, or cannot.
pub fn serve(spec: Spec) -> Result<Server, ServeError> {
    if matches!(spec.login, Login::None) && !spec.listen.ip().is_loopback() {
        return Err(ServeError::Open(spec.listen));
    }
    // A server that changes nothing may look on.
    let state = spec.state.as_deref().filter(|_| !spec.read_only);
    let state = state.map(saved::lock).transpose()?;
    let tls = spec.tls.as_ref().map(|files| {
        strata_auth::tls::server(&files.certificate, &files.key, files.authority.as_deref())
    });
    let tls = tls.transpose().map_err(ServeError::Tls)?;
    let at = |source| ServeError::Listen {
        address: spec.listen,
        source,
    };
    let listener = std::net::TcpListener::bind(spec.listen).map_err(at)?;
    // A burst of clients waits, instead of trying again after a second.
    rustix::net::listen(&listener, BACKLOG)
        .map_err(io::Error::from)
        .map_err(at)?;
    listener.set_nonblocking(true).map_err(at)?;
    let address = listener.local_addr().map_err(at)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(THREADS_MAX)
        .build()
        .map_err(ServeError::Thread)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let work = move || {
        runtime.block_on(async move {
            let app = Arc::new(App::new(spec, address));
            let listener = match TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(error) => return (app.spec.warn)(error.to_string()),
            };
            recorders::watch(&app.recorders, app.ticks.clone());
            let takes_certificates = app
                .spec
                .tls
                .as_ref()
                .is_some_and(|tls| tls.authority.is_some());
            let gate = Arc::clone(&app.gate);
            let refused = move |peer, why: &str| {
                if takes_certificates {
                    gate.refused_by_tls(peer, why);
                }
            };
            tokio::spawn(serve_tcp(
                listener,
                api::router(app),
                tls,
                Arc::new(refused),
            ));
            let _ = stopped.await;
        });
        drop(state);
        // The reader of a log sees that its client is gone.
        runtime.shutdown_background();
    };
    let thread = thread::Builder::new().name("strata-serve".into());
    let thread = thread.spawn(work).map_err(ServeError::Thread)?;
    Ok(Server {
        address,
        stop: Some(stop),
        thread: Some(thread),
    })
}
