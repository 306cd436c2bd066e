//! The page's files, embedded by `build.rs`. Only names that were embedded are looked up, so no path
//! leads anywhere else.

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

/// Name, content, and the content in gzip.
type File = (&'static str, &'static [u8], Option<&'static [u8]>);

const FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// The answer where the page was not built.
const MISSING: &str = "\
This strata was built without its page, because Node was missing: `make page build` builds both.
The API is at /api/v1 (crates/run/serve/openapi.yaml describes it).
";

/// A file of the page; a view of it for every other path.
pub(crate) async fn asset(uri: Uri, headers: HeaderMap) -> Response {
    let name = uri.path().trim_start_matches('/');
    let named = |name: &str| FILES.iter().find(|(known, ..)| *known == name);
    if uri.path().starts_with("/api/") {
        let error = strata_log_views::answers::refused::Refused::not_found(format!(
            "there is no {}",
            uri.path()
        ));
        return error.into_response();
    }
    let is_file = name
        .rsplit('/')
        .next()
        .is_some_and(|last| last.contains('.'));
    match (named(name), named("index.html")) {
        (Some(file), _) => sent(file, &headers),
        (None, _) if is_file => (StatusCode::NOT_FOUND, "there is no such file\n").into_response(),
        (None, Some(index)) => sent(index, &headers),
        (None, None) => {
            let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
            (kind, MISSING).into_response()
        }
    }
}

fn sent(&(name, plain, packed): &File, headers: &HeaderMap) -> Response {
    let accepted = headers.get(header::ACCEPT_ENCODING);
    let accepted = accepted.and_then(|value| value.to_str().ok()).unwrap_or("");
    let takes_gzip = accepted.split(',').any(|coding| {
        let (coding, quality) = coding.split_once(';').unwrap_or((coding, ""));
        coding.trim() == "gzip" && !matches!(quality.trim(), "q=0" | "q=0.0")
    });
    // A hashed name stands for its content.
    let lasts = match name {
        "index.html" => "no-cache",
        name if name.contains('-') => "public, max-age=31536000, immutable",
        _ => "public, max-age=3600",
    };
    let head = [
        (header::CONTENT_TYPE, kind(name)),
        (header::CACHE_CONTROL, lasts),
        (header::VARY, "accept-encoding"),
    ];
    match packed.filter(|_| takes_gzip) {
        Some(packed) => {
            let coding = [(header::CONTENT_ENCODING, "gzip")];
            (head, coding, Bytes::from_static(packed)).into_response()
        }
        None => (head, Bytes::from_static(plain)).into_response(),
    }
}

fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, suffix)| suffix) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("json" | "webmanifest") => "application/json",
        _ => "application/octet-stream",
    }
}
