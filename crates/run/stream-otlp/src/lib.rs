//! Logs of OpenTelemetry, received over HTTP (OTLP/HTTP) and appended to a stream of a server.
//!
//! ```text
//! http     requests and answers, bounded in number, size and time
//! decode   a body, protobuf or JSON, record by record
//! record   a log record as the JSON of a record in the stream
//! append   the thread that appends records, and syncs before a request is confirmed
//! ```
//!
//! [`OtlpIntake`] is given to a server of streams, which starts it. A request is confirmed once its records survive a
//! loss of power. Requests that wait are synced together.

#![forbid(unsafe_code)]

mod append;
mod decode;
mod http;
mod record;

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};

use strata_control::api::{Endpoints, Server, TcpEndpoint, serve_routers};
use strata_role::sandbox::thread as restrict;
use strata_role::{Notice, Result, RoleError, Tell};
use strata_sandbox::Role;
use strata_stream::StreamName;
use strata_stream_run::{RunningIntake, SharedStreams, StreamIntake, StreamSpec};

pub use decode::{Body, BodyError, MESSAGE_LEN_MAX, Origin, count_records, each_record};
pub use record::put_record;

/// The TCP port of OTLP over HTTP (OTLP specification 1.9, "OTLP/HTTP Default Port").
pub const OTLP_PORT: u16 = 4318;

/// Values within values are decoded by recursion: some 100 levels, as far as the libraries allow.
const STACK_BYTES: usize = 8 << 20;

/// A receiver of logs in front of a stream.
#[derive(Debug)]
pub struct OtlpIntake {
    /// Where it listens, and who may send.
    pub endpoint: TcpEndpoint,
    /// The stream that records are appended to.
    pub stream: StreamName,
}

/// A receiver that runs.
struct Running {
    server: Server,
    appending: JoinHandle<u64>,
}

impl StreamIntake for OtlpIntake {
    fn start(
        self: Box<Self>,
        streams: &Arc<SharedStreams>,
        creates: Option<&StreamSpec>,
        tell: &Tell,
    ) -> Result<Box<dyn RunningIntake>> {
        let Self { endpoint, stream } = *self;
        if let Some(spec) = creates {
            streams.create(&stream, spec)?;
        }
        // The stream has to be there, so that the first agent need not find out.
        streams.dir().read(&stream)?;
        let (jobs, queue) = sync_channel(http::REQUESTS_MAX);
        let appender =
            append::Appender::new(Arc::clone(streams), stream.clone(), Arc::clone(tell))?;
        let appending = thread::Builder::new()
            .name("stream-otlp".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                restrict(Role::Files);
                appender.run(&queue)
            })
            .map_err(RoleError::thread("appends log records to the stream"))?;
        let address = endpoint.address.clone();
        let app = http::router(jobs);
        let endpoints = Endpoints {
            socket: None,
            tcp: Some(endpoint),
        };
        let warned = Arc::clone(tell);
        let warn = move |text| warned(&Notice::warning(text));
        let ending = app.ending();
        let router = app.into_router();
        let server = serve_routers(router.clone(), router, endpoints, warn, ending);
        let server = server.map_err(RoleError::own)?;
        let text = format!("logs of OpenTelemetry on http {address}, appended to {stream}");
        tell(&Notice::info("otlp", text).with("address", address));
        Ok(Box::new(Running { server, appending }))
    }
}

impl RunningIntake for Running {
    fn end(self: Box<Self>) -> u64 {
        let Self { server, appending } = *self;
        // With it go the senders of the queue, whose end the thread waits for.
        drop(server);
        appending.join().expect("the thread does not panic")
    }
}
