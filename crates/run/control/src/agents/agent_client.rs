//! An agent that asks its controller: HTTP over TLS, one request at a time, on the calling thread.

mod enrolment;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use strata_agent::{Assignment, Enrol, Enrolled, Renew, Report};
pub use strata_agent::{CollectedSession, CollectorReport, NAME_BYTES_MAX, SESSIONS_MAX};
use strata_auth::authority::CONTROLLER;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::request::Refusal;
pub use enrolment::{Enrolment, Identity, TOKEN_DIGITS};

/// Connection and handshake.
const CONNECT: Duration = Duration::from_secs(5);
/// A request with its answer, which the controller holds for 5 s if there is nothing new.
const EXCHANGE: Duration = Duration::from_secs(15);
/// Bytes of an answer: of as many policies as there may be.
const ANSWER_BYTES: usize = 32 << 20;

/// Why a controller does not answer.
#[derive(Debug, thiserror::Error)]
pub enum AgentClientError {
    /// It cannot be reached, or is not who it should be.
    #[error("controller {address}: {source}")]
    Connect {
        /// Where it should be.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// It refuses: another attempt with the same would be refused too.
    #[error("controller {address} refuses: {why}")]
    Refused {
        /// Where it is.
        address: String,
        /// Why.
        why: String,
        /// Whether it does not know the agent.
        is_stranger: bool,
        /// Whether it is still busy with what the agent asked before.
        is_busy: bool,
        /// Whether another agent, which was there first, reports with the same certificate.
        is_copy: bool,
    },
    /// It sends something else than an answer.
    #[error("controller {address}: {what}")]
    Odd {
        /// Where it is.
        address: String,
        /// What is wrong.
        what: String,
    },
}

/// Ends a wait for something to do from another thread: there is something to report.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(watch::Sender<u64>);

/// What an [`Interrupt`] was when a report was made.
#[derive(Clone, Debug)]
pub struct Uninterrupted(watch::Receiver<u64>);

impl Interrupt {
    /// Ends the wait with a report that was made before now.
    pub fn interrupt(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    /// To be called before a report is made.
    #[must_use]
    pub fn follow(&self) -> Uninterrupted {
        Uninterrupted(self.0.subscribe())
    }
}

/// A connection to a controller, made again when it is gone.
#[derive(Debug)]
pub struct AgentClient {
    /// `HOST:PORT`.
    address: String,
    config: Arc<ClientConfig>,
    runtime: Runtime,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl AgentClient {
    /// A client of the controller at `HOST:PORT`, which connects when it first asks.
    ///
    /// # Errors
    ///
    /// If the system lacks descriptors.
    pub fn new(address: &str, config: Arc<ClientConfig>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Self {
            address: address.to_owned(),
            config,
            runtime,
            connection: None,
        })
    }

    /// Shows another certificate from now on.
    pub fn show(&mut self, config: Arc<ClientConfig>) {
        self.config = config;
        self.connection = None;
    }

    /// Whether the controller has answered the last request, and the connection is still there.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Asks for a first certificate.
    ///
    /// # Errors
    ///
    /// If there is no answer, or it is a refusal: as for all methods below.
    pub fn enrol(&mut self, request: &Enrol) -> Result<Enrolled, AgentClientError> {
        self.ask("/agents/v1/enrol", request)
    }

    /// Asks for another certificate.
    ///
    /// # Errors
    ///
    /// As [`AgentClient::enrol`].
    pub fn renew(&mut self, request: &Renew) -> Result<Enrolled, AgentClientError> {
        self.ask("/agents/v1/renew", request)
    }

    /// Reports, and waits for something to do, for some seconds or until it is interrupted.
    ///
    /// # Errors
    ///
    /// As [`AgentClient::enrol`].
    pub fn report(
        &mut self,
        report: &Report,
        until: Uninterrupted,
    ) -> Result<Option<Assignment>, AgentClientError> {
        match self.ask_until("/agents/v1/report", report, Some(until)) {
            Ok(answer) => Ok(answer),
            Err(AgentClientError::Connect { source, .. })
                if source.kind() == io::ErrorKind::Interrupted =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Reports what a collector has counted.
    ///
    /// # Errors
    ///
    /// As [`AgentClient::enrol`].
    pub fn collected(&mut self, report: &CollectorReport) -> Result<(), AgentClientError> {
        self.ask("/agents/v1/collected", report)
    }

    fn ask<A: DeserializeOwned>(
        &mut self,
        path: &str,
        request: &impl Serialize,
    ) -> Result<A, AgentClientError> {
        self.ask_until(path, request, None)
    }

    fn ask_until<A: DeserializeOwned>(
        &mut self,
        path: &str,
        request: &impl Serialize,
        until: Option<Uninterrupted>,
    ) -> Result<A, AgentClientError> {
        let odd = |address: &str, what: String| AgentClientError::Odd {
            address: address.to_owned(),
            what,
        };
        let body =
            serde_json::to_vec(request).map_err(|error| odd(&self.address, error.to_string()))?;
        let answer = self.exchange(path, body.into(), until);
        let (status, body) = answer.inspect_err(|_| self.connection = None)?;
        if status.is_success() {
            return serde_json::from_slice(&body)
                .map_err(|error| odd(&self.address, format!("its answer to {path}: {error}")));
        }
        let refusal = serde_json::from_slice::<Refusal>(&body);
        let why = refusal.map_or_else(|_| status.to_string(), |refusal| refusal.error);
        Err(AgentClientError::Refused {
            address: self.address.clone(),
            why,
            is_stranger: status == StatusCode::FORBIDDEN,
            is_busy: status == StatusCode::TOO_MANY_REQUESTS,
            is_copy: status == StatusCode::CONFLICT,
        })
    }

    fn exchange(
        &mut self,
        path: &str,
        body: Bytes,
        until: Option<Uninterrupted>,
    ) -> Result<(StatusCode, Bytes), AgentClientError> {
        let failed = |source: io::Error| AgentClientError::Connect {
            address: self.address.clone(),
            source,
        };
        let late = |what: &str| io::Error::new(io::ErrorKind::TimedOut, what.to_owned());
        let (address, config) = (&self.address, &self.config);
        let open = self.connection.take();
        let exchanged = self.runtime.block_on(async {
            let mut connection = match open.filter(|open| !open.is_closed()) {
                Some(open) => open,
                None => timeout(CONNECT, connect(address, config))
                    .await
                    .unwrap_or_else(|_| Err(late("no connection within 5 s")))?,
            };
            let asked = timeout(EXCHANGE, ask(&mut connection, path, body));
            let interrupted = async {
                if let Some(Uninterrupted(mut until)) = until
                    && until.changed().await.is_ok()
                {
                    return;
                }
                std::future::pending::<()>().await;
            };
            let answer = tokio::select! {
                asked = asked => asked.unwrap_or_else(|_| Err(late("no answer within 15 s")))?,
                () = interrupted => return Err(io::ErrorKind::Interrupted.into()),
            };
            Ok((connection, answer))
        });
        let (connection, answer) = exchanged.map_err(failed)?;
        self.connection = Some(connection);
        Ok(answer)
    }
}

async fn connect(
    address: &str,
    config: &Arc<ClientConfig>,
) -> io::Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(CONTROLLER).map_err(io::Error::other)?;
    let stream = TlsConnector::from(Arc::clone(config))
        .connect(name, stream)
        .await?;
    let (sender, connection) = handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn ask(
    connection: &mut SendRequest<Full<Bytes>>,
    path: &str,
    body: Bytes,
) -> io::Result<(StatusCode, Bytes)> {
    let request = Request::post(path)
        .header("host", CONTROLLER)
        .header("content-type", "application/json")
        .body(Full::new(body))
        .map_err(io::Error::other)?;
    connection.ready().await.map_err(io::Error::other)?;
    let answer = connection
        .send_request(request)
        .await
        .map_err(io::Error::other)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES)
        .collect()
        .await;
    Ok((status, body.map_err(io::Error::other)?.to_bytes()))
}
