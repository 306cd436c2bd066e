//! TLS in front of the API.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a handshake may take, and how many may go on at a time: whoever connects and says
/// nothing keeps nobody else out.
const HANDSHAKE: Duration = Duration::from_secs(5);
const HANDSHAKES_MAX: usize = 64;
/// How long is waited when the system has no descriptor left.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Connections whose handshake is done.
pub(super) struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
}

impl TlsListener {
    pub(super) fn new(listener: TcpListener, config: Arc<ServerConfig>) -> Self {
        Self {
            listener,
            acceptor: TlsAcceptor::from(config),
            handshakes: JoinSet::new(),
        }
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let has_room = self.handshakes.len() < HANDSHAKES_MAX;
            tokio::select! {
                accepted = self.listener.accept(), if has_room => match accepted {
                    Ok((stream, address)) => {
                        let handshake = timeout(HANDSHAKE, self.acceptor.accept(stream));
                        self.handshakes.spawn(async move {
                            Some((handshake.await.ok()?.ok()?, address))
                        });
                    }
                    Err(_) => sleep(AGAIN_AFTER).await,
                },
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = done {
                        return connection;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
