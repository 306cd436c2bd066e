//! Why a request is refused: as the page shows it.

use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use strata_archive::ArchiveError;
use strata_control::client::{ClientError, ControllerError};
use strata_filter::ParseError;
use strata_store::StoreError;
use strata_wire::clamped;
use utoipa::ToSchema;

/// Seconds after which to try again when too many requests come at a time.
const AGAIN_AFTER: u64 = 2;

/// The error.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(
    as = Error,
    example = json!({
        "error": "'hots' is no word of the filter language: host?",
        "code": "invalid", "field": "filter", "start": 8, "end": 12,
    })
)]
pub struct Refused {
    /// The status of HTTP.
    #[serde(skip)]
    pub status: StatusCode,
    /// The error and the remedy, in plain English.
    pub error: String,
    /// `login`, `wait`, `role`, `csrf`, `host`, `busy`, `expired`, `not_found`, `invalid`, `too_large`, `timeout`,
    /// `recorder`, `controller`, `missing_tool`, `damaged`, `read_only` or `internal`.
    pub code: &'static str,
    /// The parameter or field that is wrong.
    pub field: Option<&'static str>,
    /// Where in its text, in UTF-16 code units.
    pub start: Option<usize>,
    /// And where that ends.
    pub end: Option<usize>,
    /// Seconds after which to try again.
    #[serde(skip)]
    again_after: Option<u64>,
}

impl Refused {
    /// An error with a status of HTTP and a code.
    pub fn new(status: StatusCode, code: &'static str, error: impl Into<String>) -> Self {
        Self {
            status,
            error: error.into(),
            code,
            field: None,
            start: None,
            end: None,
            again_after: None,
        }
    }

    /// The request's head names no place, or more than one: what others take for its end may be
    /// another one, so nothing more is read of the connection.
    pub fn host(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "host", error)
    }

    /// An address has to wait before it may try again.
    pub fn wait(wait: Duration) -> Self {
        // Not before the wait is over.
        let seconds = wait.as_nanos().div_ceil(1_000_000_000);
        let seconds = clamped::<u64>(seconds);
        let error = format!("too many failed logins from your address: try again in {seconds} s");
        Self {
            again_after: Some(seconds),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "wait", error)
        }
    }

    /// A parameter or field is wrong.
    pub fn invalid(field: &'static str, error: impl Into<String>) -> Self {
        Self {
            field: Some(field),
            ..Self::new(StatusCode::BAD_REQUEST, "invalid", error)
        }
    }

    /// A filter is wrong, at a place.
    pub fn filter(field: &'static str, error: &ParseError) -> Self {
        let (text, span) = (error.expression(), error.span());
        Self {
            start: Some(units(text, span.start)),
            end: Some(units(text, span.end)),
            ..Self::invalid(field, error.message())
        }
    }

    /// There is no such thing.
    pub fn not_found(error: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", error)
    }

    /// Too many requests at a time.
    pub fn busy(error: impl Into<String>) -> Self {
        Self {
            again_after: Some(AGAIN_AFTER),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", error)
        }
    }

    /// The server failed.
    pub fn internal(error: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error)
    }

    /// A log cannot be read.
    pub(crate) fn unreadable(error: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "damaged", error)
    }
}

/// A place in a text in UTF-16 code units, as JavaScript counts.
pub(crate) fn units(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or(text);
    before.encode_utf16().count()
}

impl From<ArchiveError> for Refused {
    fn from(error: ArchiveError) -> Self {
        Self::unreadable(error.to_string())
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::unreadable(error.to_string())
    }
}

impl From<ClientError> for Refused {
    fn from(error: ClientError) -> Self {
        match error {
            // The recording's own words.
            ClientError::Refused(words) => Self::new(StatusCode::BAD_REQUEST, "recorder", words),
            error => Self::new(StatusCode::BAD_GATEWAY, "recorder", error.to_string()),
        }
    }
}

impl From<ControllerError> for Refused {
    fn from(error: ControllerError) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "controller", error.to_string())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let again = self
            .again_after
            .map(|seconds| [(header::RETRY_AFTER, seconds.to_string())]);
        let is_torn = self.code == "host" && self.status == StatusCode::BAD_REQUEST;
        let close = is_torn.then_some([(header::CONNECTION, "close")]);
        (self.status, again, close, Json(self)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_as_the_browser_does() {
        let text = "host \u{1f600} and é x";
        let at = text.find('x').unwrap();
        assert_eq!(units(text, at), text[..at].encode_utf16().count());
        assert_eq!(units(text, at), 14);
        assert_eq!(units(text, 10_000), units(text, text.len()));
    }
}
