//! Requests over HTTP, and their answers: the OTLP specification 1.9, "OTLP/HTTP".

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http_body_util::BodyExt as _;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceResponse,
};
use prost::Message as _;
use serde_json::json;
use strata_wire::exact;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::append::{Answer, Form, Job};

/// Bytes of a body as it is sent, at most.
const BODY_MAX: usize = 8 << 20;
/// Bytes of a longer one that are read, and thrown away.
const THROWN_MAX: usize = 64 << 20;
/// Requests that are in progress at once; later ones wait.
pub(crate) const REQUESTS_MAX: usize = 8;
/// How long a request may wait, its body may take, and requests may go on at the end.
const WAIT: Duration = Duration::from_secs(5);
const BODY_LIMIT: Duration = Duration::from_secs(10);
const LAST: Duration = Duration::from_secs(5);

/// `google.rpc.Status`, the body of refusals (OTLP specification 1.9, "Failures").
#[derive(Clone, PartialEq, prost::Message)]
struct Refusal {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// What requests share.
#[derive(Clone)]
struct Intake {
    jobs: SyncSender<Job>,
    places: Arc<Semaphore>,
}

/// The application, before it runs.
pub(crate) struct App(Intake);

/// Takes logs, which it sends to the queue.
pub(crate) fn router(jobs: SyncSender<Job>) -> App {
    App(Intake {
        jobs,
        places: Arc::new(Semaphore::new(REQUESTS_MAX)),
    })
}

impl App {
    /// Done once no request is in progress, or after 5 s.
    pub(crate) fn ending(&self) -> impl Future<Output = ()> + Send + use<> {
        let places = Arc::clone(&self.0.places);
        async move {
            let all = places.acquire_many(exact(REQUESTS_MAX));
            if let Ok(Ok(all)) = timeout(LAST, all).await {
                all.forget();
            }
        }
    }

    pub(crate) fn into_router(self) -> Router {
        let unknown = "only logs are received here, by POST /v1/logs";
        Router::new()
            .route("/v1/logs", post(logs))
            .method_not_allowed_fallback(move || async move {
                (StatusCode::METHOD_NOT_ALLOWED, unknown)
            })
            .fallback(move || async move { (StatusCode::NOT_FOUND, unknown) })
            .with_state(self.0)
    }
}

/// What is wrong with a request, for its client.
struct Wrong(StatusCode, String);

async fn logs(State(intake): State<Intake>, headers: HeaderMap, body: Body) -> Response {
    let Some(form) = form(&headers) else {
        let text = "Content-Type: application/x-protobuf or application/json is needed";
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, text).into_response();
    };
    match take(&intake, &headers, form, body).await {
        Ok(Answer::Taken { refused, why }) => taken(form, refused, why),
        Ok(Answer::Invalid(text)) => refusal(form, StatusCode::BAD_REQUEST, text),
        Ok(Answer::Long(text)) => refusal(form, StatusCode::PAYLOAD_TOO_LARGE, text),
        Ok(Answer::Later(text)) => refusal(form, StatusCode::SERVICE_UNAVAILABLE, text),
        Err(Wrong(status, text)) => refusal(form, status, text),
    }
}

/// Reads a request, and waits until its records are durable.
async fn take(
    intake: &Intake,
    headers: &HeaderMap,
    form: Form,
    body: Body,
) -> Result<Answer, Wrong> {
    let is_gzip = is_gzip(headers)?;
    let later = |text: &str| Wrong(StatusCode::SERVICE_UNAVAILABLE, text.to_owned());
    let place = timeout(WAIT, intake.places.acquire()).await;
    let Ok(Ok(_place)) = place else {
        return Err(later("too many requests are in progress"));
    };
    let body = read(body).await?;
    let (answer, answered) = oneshot::channel();
    let job = Job {
        body,
        form,
        is_gzip,
        answer,
    };
    // It has a place for each request in progress, and for those whose clients have gone.
    let sent = intake.jobs.try_send(job);
    sent.map_err(|_| later("too many requests are in progress"))?;
    let answer = answered.await;
    answer.map_err(|_| later("the server is shutting down"))
}

fn too_long() -> Wrong {
    let text = format!("the body is longer than {BODY_MAX} bytes: send smaller batches");
    Wrong(StatusCode::PAYLOAD_TOO_LARGE, text)
}

/// Reads a body. One that is too long is read on and thrown away, as far as it is worth it: a client that still sends may
/// not look at the answer, and would send the same again.
async fn read(mut body: Body) -> Result<Bytes, Wrong> {
    let mut bytes = Vec::new();
    let mut len = 0_usize;
    let all = async {
        while let Some(frame) = body.frame().await {
            // Trailers have no data.
            if let Ok(data) = frame?.into_data() {
                len = len.saturating_add(data.len());
                match len > BODY_MAX {
                    true => bytes = Vec::new(),
                    false => bytes.extend_from_slice(&data),
                }
            }
            if len > THROWN_MAX {
                break;
            }
        }
        Ok::<(), axum::Error>(())
    };
    match timeout(BODY_LIMIT, all).await {
        Ok(Ok(())) if len > BODY_MAX => Err(too_long()),
        Ok(Ok(())) => Ok(bytes.into()),
        Ok(Err(error)) => {
            let text = format!("the body cannot be read: {error}");
            Err(Wrong(StatusCode::BAD_REQUEST, text))
        }
        Err(_) => {
            let text = format!("the body was not complete after {} s", BODY_LIMIT.as_secs());
            Err(Wrong(StatusCode::REQUEST_TIMEOUT, text))
        }
    }
}

/// How a body is written, by its media type.
fn form(headers: &HeaderMap) -> Option<Form> {
    let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let kind = kind.split(';').next()?.trim();
    if kind.eq_ignore_ascii_case("application/x-protobuf") {
        return Some(Form::Protobuf);
    }
    kind.eq_ignore_ascii_case("application/json")
        .then_some(Form::Json)
}

fn is_gzip(headers: &HeaderMap) -> Result<bool, Wrong> {
    let Some(coding) = headers.get(header::CONTENT_ENCODING) else {
        return Ok(false);
    };
    let coding = coding.as_bytes().trim_ascii();
    if coding.eq_ignore_ascii_case(b"gzip") {
        return Ok(true);
    }
    match coding.is_empty() || coding.eq_ignore_ascii_case(b"identity") {
        true => Ok(false),
        false => Err(Wrong(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Content-Encoding: only gzip is supported".to_owned(),
        )),
    }
}

/// An answer in the form of its request.
fn answer(form: Form, status: StatusCode, protobuf: Vec<u8>, json: &serde_json::Value) -> Response {
    let (kind, body) = match form {
        Form::Protobuf => ("application/x-protobuf", protobuf),
        Form::Json => ("application/json", json.to_string().into_bytes()),
    };
    (status, [(header::CONTENT_TYPE, kind)], body).into_response()
}

/// All records are durable, but for some that were refused ("Partial Success").
fn taken(form: Form, refused: u64, why: String) -> Response {
    if refused == 0 {
        return answer(form, StatusCode::OK, Vec::new(), &json!({}));
    }
    // In JSON, a number of 64 bits is a text.
    let json = json!({
        "partialSuccess": {"rejectedLogRecords": refused.to_string(), "errorMessage": &why},
    });
    let partial = ExportLogsPartialSuccess {
        rejected_log_records: i64::try_from(refused).expect("a body has fewer bytes"),
        error_message: why,
    };
    let response = ExportLogsServiceResponse {
        partial_success: Some(partial),
    };
    answer(form, StatusCode::OK, response.encode_to_vec(), &json)
}

/// No record was confirmed. Clients send a request again that is refused with 503, and drop others.
fn refusal(form: Form, status: StatusCode, message: String) -> Response {
    let json = json!({"code": 0, "message": &message});
    let refusal = Refusal { code: 0, message };
    let mut response = answer(form, status, refusal.encode_to_vec(), &json);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
