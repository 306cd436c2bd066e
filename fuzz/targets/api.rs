//! Any bytes as the body of a request to the API.
//!
//! Input: which request, one byte; then the body.
#![no_main]

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use libfuzzer_sys::{Corpus, fuzz_target};
use strata_classify::Model;
use strata_control::{Controller, Settings, api};
use strata_fuzz::Bounded;
use tower::ServiceExt;

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

thread_local! {
    static RUNTIME: RefCell<tokio::runtime::Runtime> = RefCell::new(
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without I/O"),
    );
}

fn controller() -> Arc<Controller> {
    static MODEL: OnceLock<Model> = OnceLock::new();
    let model = MODEL.get_or_init(|| {
        let json = include_bytes!("../../models/default.json");
        Model::from_json(json).expect("the model of the program")
    });
    let beginning = Settings {
        modes: vec![String::from("default")],
        ..Settings::default()
    };
    Arc::new(Controller::new(model.clone(), beginning).expect("a mode of the program"))
}

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Some((&kind, body)) = bytes.split_first() else {
        return Corpus::Reject;
    };
    let (method, path) = match kind % 3 {
        0 => (Method::PUT, "/api/v1/mode".to_owned()),
        1 => (Method::POST, "/api/v1/policies".to_owned()),
        _ => {
            let number = String::from_utf8_lossy(body);
            let safe: String = number.chars().filter(char::is_ascii_alphanumeric).collect();
            (Method::DELETE, format!("/api/v1/policies/{safe}"))
        }
    };
    let controller = controller();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_vec()))
        .expect("a request");
    let answer = RUNTIME.with_borrow(|runtime| {
        let app = api::admitted(Arc::clone(&controller), api::Admit::Certificate);
        runtime
            .block_on(app.oneshot(request))
            .expect("it always answers")
    });
    let status = controller.status();
    let changed = !controller.events().is_empty();
    assert_eq!(changed, answer.status().is_success(), "{}", answer.status());
    assert!(answer.status() != StatusCode::INTERNAL_SERVER_ERROR);
    if !changed {
        assert_eq!((status.mode.as_str(), status.policies), ("default", 0));
    }
    Corpus::Keep
});
