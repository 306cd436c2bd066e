//! Accepts connections and serves them, each for a bounded time.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use strata_auth::authority::fingerprint;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::connections::{Connection, Connections, Limits, Source};
use super::{Peer, Shown};

/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long the head of a request may take, from the connection or the previous answer on: a silent
/// client is gone after that.
const HEAD: Duration = Duration::from_secs(10);
/// How long a connection may be used; clients then reconnect. It also ends those that do not read
/// their answer.
const CONNECTION: Duration = Duration::from_secs(300);
/// How long a connection's last request may continue after that.
const LAST_REQUEST: Duration = Duration::from_secs(10);
/// Maximum bytes of a request's head.
const HEAD_BYTES: usize = 16 << 10;
/// How long to wait when the system is out of descriptors or memory.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Serves a Unix socket, forever.
pub(super) async fn unix(listener: UnixListener, app: Router) {
    let connections = Connections::new(Limits::local());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let peer = Peer(stream.peer_cred().ok().map(|peer| peer.uid()));
                if let Some((connection, gone)) = connections.admit(Source::Local) {
                    let app = app.clone().layer(Extension(peer));
                    tokio::spawn(until(gone, serve(stream, app, connection)));
                }
            }
            Err(error) => wait_after(&error).await,
        }
        yield_now().await;
    }
}

/// Told of the address of a client that TLS refused, as by its certificate, and why. Clients that are silent or go away
/// meanwhile are not among them.
pub type TellRefused = dyn Fn(SocketAddr, &str) + Send + Sync;

/// Serves TCP, forever; if TLS is configured, only clients that complete the handshake. Requests have
/// [`Connection`] and the client's [`SocketAddr`] as extensions.
pub async fn tcp(
    listener: TcpListener,
    app: Router,
    tls: Option<Arc<ServerConfig>>,
    refused: Arc<TellRefused>,
) {
    tcp_within(listener, app, (tls, refused), Limits::tcp()).await;
}

/// The same with other limits.
pub(super) async fn tcp_within(
    listener: TcpListener,
    app: Router,
    (tls, refused): (Option<Arc<ServerConfig>>, Arc<TellRefused>),
    limits: Limits,
) {
    let connections = Connections::new(limits);
    let acceptor = tls.map(TlsAcceptor::from);
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                if let Some((connection, gone)) = connections.admit(address.ip().into()) {
                    let app = app.clone().layer(Extension(address));
                    let (acceptor, refused) = (acceptor.clone(), Arc::clone(&refused));
                    let work = async move {
                        let Some(acceptor) = acceptor else {
                            return serve(stream, app, connection).await;
                        };
                        // Each handshake runs in its connection's task, so none waits for another.
                        let handshake = timeout(HANDSHAKE, acceptor.accept(stream));
                        match handshake.await {
                            Ok(Ok(stream)) => {
                                let shown = stream.get_ref().1.peer_certificates();
                                let shown = shown.and_then(|chain| chain.first());
                                let shown = shown.map(|one| fingerprint(one));
                                let app = app.layer(Extension(Shown(shown)));
                                serve(stream, app, connection).await;
                            }
                            Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                                refused(address, &error.to_string());
                            }
                            Ok(Err(_)) | Err(_) => {}
                        }
                    };
                    tokio::spawn(until(gone, work));
                }
            }
            Err(error) => wait_after(&error).await,
        }
        // Let an accepted client send its request before more are accepted: else a burst of
        // connections would push out one whose request is already there.
        yield_now().await;
    }
}

/// Waits if accepting fails for lack of something that others may release, such as descriptors
/// (EMFILE, ENFILE).
async fn wait_after(error: &io::Error) {
    let is_of_peer = matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    );
    if !is_of_peer {
        sleep(AGAIN_AFTER).await;
    }
}

/// Does the work until it is done or another client needs the place.
async fn until(gone: oneshot::Receiver<()>, work: impl Future<Output = ()>) {
    tokio::select! {
        () = work => {}
        _ = gone => {}
    }
}

/// Serves one connection. Its errors concern its client only.
async fn serve<S>(stream: S, app: Router, connection: Connection)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let app = app.layer(Extension(connection.clone()));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES);
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    tokio::pin!(served);
    if timeout(CONNECTION, served.as_mut()).await.is_err() {
        served.as_mut().graceful_shutdown();
        if connection.is_lasting() {
            // Vectors, of which there are few streams.
            let _ = served.await;
            return;
        }
        let _ = timeout(LAST_REQUEST, served).await;
    }
}
