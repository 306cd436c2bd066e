//! Queries a running recording over its Unix socket.

mod agents;
mod sockets;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize as _, Serialize};
use serde_json::Value;
use strata_sandbox::runtime_dir;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::controller::Event;
use crate::queries::vectors::{DATAGRAM_BYTES, FRAME_HEAD, VectorsEnd};
use crate::queries::{QueryAnswer, QueryStatus};
use crate::request::{
    DetailRequest, ExportTimesRequest, ModeRequest, ModelRequest, PolicyAdded, PolicyRequest,
    QueryRequest, Refusal,
};
use crate::status::{CollectorStatus, PolicyStatus, Status};

pub use agents::{CONTROLLER_SOCKET, ControllerClient, ControllerError};
use sockets::{Sockets, running};
pub use sockets::{own_collector_socket, own_socket, own_socket_path};

/// Maximum bytes of an answer: more than the largest list of policies has.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// How long the first bytes of an answer may take: those of a status are there within milliseconds,
/// those of a change when all workers have it.
const ANSWER_BEGINS: Duration = Duration::from_secs(5);
const CHANGE_BEGINS: Duration = Duration::from_secs(20);
/// How long a whole exchange may take.
const EXCHANGE: Duration = Duration::from_secs(60);

/// The path of the status.
const STATUS: &str = "/api/v1/status";

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing is running, or nothing that this user may access.
    #[error(
        "no running recording found in {}: is one running, and are you its user? \
         --socket names another socket", dir.display()
    )]
    None {
        /// The directory searched for sockets.
        dir: PathBuf,
    },
    /// Several are running.
    #[error(
        "several recordings are running; choose one with --socket:{}",
        list(sockets)
    )]
    Several {
        /// Their sockets.
        sockets: Vec<PathBuf>,
    },
    /// It cannot be reached.
    #[error(
        "{}: {source}: is this the control socket of a running recording? `strata record` makes \
         one (--socket); without --socket, the running recording is found", socket.display()
    )]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It does not answer.
    #[error(
        "{}: no answer within {} s: is the recording stopped (Ctrl-Z, SIGSTOP), or the machine \
         overloaded?", socket.display(), after.as_secs()
    )]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// How long was waited.
        after: Duration,
    },
    /// The request cannot be made.
    #[error("cannot send a request to the recording: {0}")]
    Runtime(io::Error),
    /// The exchange failed.
    #[error("the recording does not answer as expected: {0}")]
    Http(#[from] hyper::Error),
    /// The answer cannot be received in full.
    #[error("{}: the answer is cut off, or longer than {ANSWER_BYTES_MAX} bytes", socket.display())]
    Incomplete {
        /// The socket.
        socket: PathBuf,
    },
    /// The answer is not what this version of Strata expects.
    #[error(
        "{}: the answer to {path} cannot be parsed ({source}): does the recording run another \
         version of Strata?", socket.display()
    )]
    Answer {
        /// The socket.
        socket: PathBuf,
        /// The path of the request.
        path: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The request is refused.
    #[error("{0}")]
    Refused(String),
}

fn list(sockets: &[PathBuf]) -> String {
    sockets
        .iter()
        .map(|path| format!("\n  {}", path.display()))
        .collect()
}

/// What listens on a control socket, with its status.
#[derive(Clone, Debug)]
pub enum Listening {
    /// A recording, perhaps of what a collector receives.
    Recording(Box<Status>),
    /// A collector that writes a stream.
    Collector(Box<CollectorStatus>),
}

/// A running recording, through its API: every answer has the type that the server sends.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// The recording with this socket; without one, the only one running.
    ///
    /// # Errors
    ///
    /// If no recording is running, or more than one.
    pub fn new(socket: Option<&Path>) -> Result<Self, ClientError> {
        let socket = match socket {
            Some(socket) => socket.to_owned(),
            None => running().only()?,
        };
        Ok(Self::at(socket))
    }

    /// The recording or collector with this socket; without one, all that are running: recordings, and then
    /// collectors, by socket.
    ///
    /// # Errors
    ///
    /// If none is running.
    pub fn all(socket: Option<&Path>) -> Result<Vec<Self>, ClientError> {
        if let Some(socket) = socket {
            return Ok(vec![Self::at(socket.to_owned())]);
        }
        let Sockets {
            recordings,
            collectors,
        } = running();
        let all = recordings.into_iter().chain(collectors);
        let all: Vec<Self> = all.map(Self::at).collect();
        match all.is_empty() {
            true => Err(ClientError::None { dir: runtime_dir() }),
            false => Ok(all),
        }
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The recording with this socket.
    #[must_use]
    pub fn at(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// The status.
    ///
    /// # Errors
    ///
    /// If it cannot be reached, refuses, or sends an unexpected answer: as for all methods below.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.get(STATUS)
    }

    /// The status of the recording or collector.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn listening(&self) -> Result<Listening, ClientError> {
        let answer: Value = self.get(STATUS)?;
        let odd = |source| self.odd(STATUS, source);
        let mode = answer.get("mode");
        match answer.get("collector").filter(|_| mode.is_none()) {
            Some(status) => CollectorStatus::deserialize(status)
                .map(|status| Listening::Collector(Box::new(status)))
                .map_err(odd),
            None => Status::deserialize(&answer)
                .map(|status| Listening::Recording(Box::new(status)))
                .map_err(odd),
        }
    }

    /// The events, oldest first.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn events(&self) -> Result<Vec<Event>, ClientError> {
        self.get("/api/v1/events")
    }

    /// The policies with their hits.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn policies(&self) -> Result<Vec<PolicyStatus>, ClientError> {
        self.get("/api/v1/policies")
    }

    /// Switches to another mode; returns the status afterwards.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn set_mode(&self, request: &ModeRequest) -> Result<Status, ClientError> {
        self.send(Method::PUT, "/api/v1/mode", request)
    }

    /// Switches to another budget of detail; returns the status afterwards.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn set_detail(&self, request: &DetailRequest) -> Result<Status, ClientError> {
        self.send(Method::PUT, "/api/v1/detail", request)
    }

    /// Chooses which of the recording's models decides; returns the status afterwards.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn set_model(&self, request: &ModelRequest) -> Result<Status, ClientError> {
        self.send(Method::PUT, "/api/v1/model", request)
    }

    /// Adds a policy.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn add_policy(&self, request: &PolicyRequest) -> Result<PolicyAdded, ClientError> {
        self.send(Method::POST, "/api/v1/policies", request)
    }

    /// Removes a policy.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn remove_policy(&self, id: u32) -> Result<(), ClientError> {
        let path = format!("/api/v1/policies/{id}");
        self.exchange(Method::DELETE, &path, Bytes::new()).map(drop)
    }

    /// Lets it export only packets of these times.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn set_export_times(&self, request: &ExportTimesRequest) -> Result<(), ClientError> {
        let path = "/api/v1/export/times";
        let body = serde_json::to_vec(request);
        let body = body.map_err(|source| self.odd(path, source))?;
        self.exchange(Method::PUT, path, body.into()).map(drop)
    }

    /// Starts new files of the log.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn rotate(&self) -> Result<(), ClientError> {
        let path = "/api/v1/rotate";
        self.exchange(Method::POST, path, Bytes::new()).map(drop)
    }

    /// The queries that are installed.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn queries(&self) -> Result<Vec<QueryStatus>, ClientError> {
        self.get("/api/v1/queries")
    }

    /// Installs a query.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn install_query(&self, request: &QueryRequest) -> Result<QueryStatus, ClientError> {
        self.send(Method::POST, "/api/v1/queries", request)
    }

    /// What the installed query of this name has found so far.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn query_answer(&self, name: &str) -> Result<QueryAnswer, ClientError> {
        self.get(&query_path(name))
    }

    /// Removes an installed query.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn remove_query(&self, name: &str) -> Result<(), ClientError> {
        let path = query_path(name);
        self.exchange(Method::DELETE, &path, Bytes::new()).map(drop)
    }

    /// Attaches to the recording: vectors of its packets with these columns, from now on.
    ///
    /// # Errors
    ///
    /// As [`Client::status`].
    pub fn vectors(&self, columns: u16) -> Result<Vectors, ClientError> {
        let runtime = runtime()?;
        let path = format!("/api/v1/vectors?columns={columns}");
        let request = self.answer(Method::GET, &path, Bytes::new());
        let answer = runtime.block_on(async {
            let answer = request.await?;
            match answer.status().is_success() {
                true => Ok(answer.into_body()),
                false => Err(self.refusal(&path, answer).await),
            }
        });
        Ok(Vectors {
            body: answer?,
            runtime,
            socket: self.socket.clone(),
            waiting: Vec::new(),
        })
    }

    fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, ClientError> {
        let answer = self.exchange(Method::GET, path, Bytes::new())?;
        self.understood(path, &answer)
    }

    fn send<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        request: &impl Serialize,
    ) -> Result<A, ClientError> {
        let body = serde_json::to_vec(request);
        let body = body.map_err(|source| self.odd(path, source))?;
        let answer = self.exchange(method, path, body.into())?;
        self.understood(path, &answer)
    }

    fn understood<A: DeserializeOwned>(&self, path: &str, answer: &[u8]) -> Result<A, ClientError> {
        serde_json::from_slice(answer).map_err(|source| self.odd(path, source))
    }

    fn odd(&self, path: &str, source: serde_json::Error) -> ClientError {
        ClientError::Answer {
            socket: self.socket.clone(),
            path: path.to_owned(),
            source,
        }
    }

    fn cannot_connect(&self, source: io::Error) -> ClientError {
        ClientError::Connect {
            socket: self.socket.clone(),
            source,
        }
    }

    /// Sends a request; returns the body of the answer.
    fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, ClientError> {
        let answer = runtime()?
            .block_on(async { timeout(EXCHANGE, self.exchange_in_time(method, path, body)).await });
        answer.unwrap_or_else(|_| Err(self.silent(EXCHANGE)))
    }

    fn silent(&self, after: Duration) -> ClientError {
        ClientError::Silent {
            socket: self.socket.clone(),
            after,
        }
    }

    /// Sends a request; returns the answer, whose body is still to come.
    async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = UnixStream::connect(&self.socket).await;
        let stream = stream.map_err(|error| self.cannot_connect(error))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let begins = match method {
            Method::GET => ANSWER_BEGINS,
            _ => CHANGE_BEGINS,
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "strata")
            .header("content-type", "application/json")
            .body(Full::new(body));
        let request = request.map_err(|error| ClientError::Refused(error.to_string()))?;
        let answer = timeout(begins, sender.send_request(request)).await;
        Ok(answer.map_err(|_| self.silent(begins))??)
    }

    async fn whole(&self, answer: Response<Incoming>) -> Result<Bytes, ClientError> {
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX);
        let body = body.collect().await.map_err(|_| ClientError::Incomplete {
            socket: self.socket.clone(),
        })?;
        Ok(body.to_bytes())
    }

    async fn exchange_in_time(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Bytes, ClientError> {
        let answer = self.answer(method, path, body).await?;
        match answer.status().is_success() {
            true => self.whole(answer).await,
            false => Err(self.refusal(path, answer).await),
        }
    }

    /// Why a request was refused.
    async fn refusal(&self, path: &str, answer: Response<Incoming>) -> ClientError {
        let status = answer.status();
        let body = match self.whole(answer).await {
            Ok(body) => body,
            Err(error) => return error,
        };
        let refusal = serde_json::from_slice::<Refusal>(&body);
        let message = match refusal {
            Ok(refusal) => refusal.error,
            Err(_) => String::from_utf8_lossy(&body).into_owned(),
        };
        ClientError::Refused(match message.is_empty() {
            true if status == StatusCode::NOT_FOUND => format!("{path}: unknown to the recording"),
            true => format!("{path}: {status}"),
            false => message,
        })
    }
}

/// Where a query is; a name may have any characters, and an unusable one finds none.
fn query_path(name: &str) -> String {
    let mut path = String::from("/api/v1/queries/");
    for byte in name.bytes() {
        match byte {
            b'.' | b'_' | b'-' => path.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => path.push(char::from(byte)),
            byte => path += &format!("%{byte:02X}"),
        }
    }
    path
}

fn runtime() -> Result<Runtime, ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(ClientError::Runtime)
}

/// Vectors of a running recording, as it sends them.
#[derive(Debug)]
pub struct Vectors {
    body: Incoming,
    runtime: Runtime,
    socket: PathBuf,
    /// What came of frames that are not complete.
    waiting: Vec<u8>,
}

/// What [`Vectors::next`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VectorsNext {
    /// A datagram, in the format of `docs/formats/gpv.md`.
    Datagram(Vec<u8>),
    /// Nothing came in time.
    Nothing,
    /// The recording has ended, and says how much it sent.
    End(VectorsEnd),
    /// The recording is gone.
    Gone,
}

impl Vectors {
    /// The next datagram, if it comes within this time.
    ///
    /// # Errors
    ///
    /// If what comes is no vectors.
    pub fn next(&mut self, wait: Duration) -> Result<VectorsNext, ClientError> {
        loop {
            if let Some(frame) = self.whole()? {
                return match frame.first() {
                    Some(b'{') => match serde_json::from_slice(&frame) {
                        Ok(end) => Ok(VectorsNext::End(end)),
                        Err(source) => Err(ClientError::Answer {
                            socket: self.socket.clone(),
                            path: String::from("/api/v1/vectors"),
                            source,
                        }),
                    },
                    _ => Ok(VectorsNext::Datagram(frame)),
                };
            }
            let body = &mut self.body;
            let next = async { timeout(wait, body.frame()).await };
            match self.runtime.block_on(next) {
                Err(_) => return Ok(VectorsNext::Nothing),
                // A recording that was killed cuts its answer off.
                Ok(None | Some(Err(_))) => return Ok(VectorsNext::Gone),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.waiting.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// The first frame, if it is complete.
    fn whole(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        let Some(head) = self.waiting.first_chunk::<FRAME_HEAD>() else {
            return Ok(None);
        };
        let len = usize::try_from(u32::from_le_bytes(*head));
        let len = len.ok().filter(|len| *len <= DATAGRAM_BYTES);
        let len = len.ok_or_else(|| {
            let what = "the recording sends a frame that is too long for vectors";
            ClientError::Refused(format!("{}: {what}", self.socket.display()))
        })?;
        if self.waiting.len() < FRAME_HEAD + len {
            return Ok(None);
        }
        let rest = self.waiting.split_off(FRAME_HEAD + len);
        let mut frame = std::mem::replace(&mut self.waiting, rest);
        frame.drain(..FRAME_HEAD);
        Ok(Some(frame))
    }
}
