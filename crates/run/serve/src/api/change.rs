//! Changes of recordings, role `change`, and of what the server keeps: each an audit event.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use strata_control::client::{Client, ClientError};
use strata_control::{DetailRequest, ModeRequest, PolicyRequest, PolicyStatus};
use strata_log_views::answers::refused::Refused;
use strata_log_views::answers::times;
use strata_log_views::search::quoted;
use strata_rules::PolicyError;
use utoipa::ToSchema;

use super::{Answer, Shared, body, bytes, query, recorder};
use crate::access::trust::{Role, Who};
use crate::app::App;
use crate::label::{self, Labelling};
use crate::recorders::Recorder;
use crate::saved::KeptQuestion;

/// Maximum bytes of a reason.
const WHY_BYTES_MAX: usize = 1 << 10;
/// The rest is for the name of who asked.
const WHY_OWN_BYTES_MAX: usize = WHY_BYTES_MAX - 256;

/// The recorder, if this user may change it.
fn changed(app: &App, who: &Who, id: &str) -> Result<Arc<Recorder>, Refused> {
    who.may(Role::Change, app.spec.read_only)?;
    recorder(app, id)
}

/// Asks the recorder's socket.
async fn told<T: Send + 'static>(
    app: &App,
    recorder: &Arc<Recorder>,
    what: impl FnOnce(&Client) -> Result<T, ClientError> + Send + 'static,
) -> Result<T, Refused> {
    let recorder = Arc::clone(recorder);
    app.work
        .short(move |_| Ok(what(&recorder.client()?)?))
        .await
}

/// Says who asked: to the recording, everything comes from this process.
fn why(who: &Who, why: &str) -> Result<String, Refused> {
    if why.len() > WHY_OWN_BYTES_MAX {
        return Err(Refused::invalid(
            "why",
            "a reason may be at most 768 bytes long",
        ));
    }
    Ok(match why.is_empty() {
        true => format!("strata serve: {}", who.name),
        false => format!("{why} (strata serve: {})", who.name),
    })
}

/// A change that was made.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "what": "policy 8 added", "command": "strata policy add 'host 10.0.0.9' --action header", "id": 8,
    "undo": {"method": "DELETE", "path": "/api/v1/recorders/0/policies/8", "body": null},
}))]
pub(super) struct Changed {
    /// The change in words.
    what: String,
    /// The equal command line, as in `strata mode ...`.
    command: String,
    /// Number of a new policy.
    #[schema(required)]
    id: Option<u32>,
    #[schema(required)]
    undo: Option<Undo>,
}

/// The request that takes a change back.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Undo {
    method: &'static str,
    path: String,
    #[schema(required, value_type = Option<HashMap<String, Value>>)]
    body: Option<Value>,
}

pub(super) async fn mode(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path(id): Path<String>,
    given: Body,
) -> Answer<Changed> {
    let recorder = changed(&app, &who, &id)?;
    let asked: ModeRequest = body(given).await?;
    let request = ModeRequest {
        why: why(&who, &asked.why)?,
        ..asked.clone()
    };
    let before = told(&app, &recorder, move |client| {
        let before = client.status()?.asked_mode;
        client.set_mode(&request)?;
        Ok(before)
    });
    let before = before.await?;
    let period = asked
        .seconds
        .map_or_else(String::new, |seconds| format!(" for {seconds} s"));
    let what = format!("mode {}{period} on recorder {id}", asked.mode);
    app.audit.note(&who.name, &what, &asked.why);
    let mut command = format!("strata mode set {}", quoted(&asked.mode));
    if let Some(seconds) = asked.seconds {
        command.push_str(&format!(" --for {seconds}s"));
    }
    let undo = Undo {
        method: "PUT",
        path: format!("/api/v1/recorders/{id}/mode"),
        body: Some(json!({"mode": before, "seconds": null, "why": "undone"})),
    };
    Ok(Json(Changed {
        what,
        command,
        id: None,
        undo: Some(undo),
    }))
}

pub(super) async fn detail(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path(id): Path<String>,
    given: Body,
) -> Answer<Changed> {
    let recorder = changed(&app, &who, &id)?;
    let asked: DetailRequest = body(given).await?;
    let request = DetailRequest {
        why: why(&who, &asked.why)?,
        ..asked.clone()
    };
    let before = told(&app, &recorder, move |client| {
        let before = client.status()?.detail.map(|detail| detail.asked);
        client.set_detail(&request)?;
        Ok(before.unwrap_or_else(|| String::from("none")))
    });
    let before = before.await?;
    let what = format!("budget of detail {} on recorder {id}", asked.detail);
    app.audit.note(&who.name, &what, &asked.why);
    let command = format!("strata detail {}", quoted(&asked.detail));
    let undo = Undo {
        method: "PUT",
        path: format!("/api/v1/recorders/{id}/detail"),
        body: Some(json!({"detail": before, "why": "undone"})),
    };
    Ok(Json(Changed {
        what,
        command,
        id: None,
        undo: Some(undo),
    }))
}

/// Labels a flow for training.
pub(super) async fn label(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path(log): Path<String>,
    given: Body,
) -> Answer<Changed> {
    who.may(Role::Change, app.spec.read_only)?;
    let asked: Labelling = body(given).await?;
    let labelled = label::label(&app, &log, &asked).await?;
    let what = format!("log {log}, flow {}: {}", asked.flow, labelled.what);
    app.audit.note(&who.name, &what, "");
    Ok(Json(Changed {
        what: labelled.what,
        command: labelled.command,
        id: None,
        undo: None,
    }))
}

/// Users who may ask may keep what they ask; with `--read-only`, no one may.
fn may_keep(app: &App, who: &Who) -> Result<(), Refused> {
    if app.spec.read_only {
        who.may(Role::Change, true)?;
    }
    who.may(Role::Payload, app.spec.read_only)
}

pub(super) async fn keep_question(
    State(app): Shared,
    Extension(who): Extension<Who>,
    given: Body,
) -> Result<StatusCode, Refused> {
    may_keep(&app, &who)?;
    let asked: KeptQuestion = body(given).await?;
    let what = format!("saved the query '{}'", asked.name);
    let (shared, name) = (Arc::clone(&app), who.name.clone());
    let kept = app.work.short(move |_| shared.saved.keep(&name, asked));
    kept.await?;
    app.audit.note(&who.name, &what, "");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn forget_question(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path(name): Path<String>,
) -> Result<StatusCode, Refused> {
    may_keep(&app, &who)?;
    let what = format!("deleted the query '{name}'");
    let shared = Arc::clone(&app);
    app.work.short(move |_| shared.saved.forget(&name)).await?;
    app.audit.note(&who.name, &what, "");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn rotate(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path(id): Path<String>,
) -> Result<StatusCode, Refused> {
    let recorder = changed(&app, &who, &id)?;
    told(&app, &recorder, Client::rotate).await?;
    app.audit
        .note(&who.name, &format!("new files on recorder {id}"), "");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn policies(
    State(app): Shared,
    Path(id): Path<String>,
) -> Answer<Vec<PolicyStatus>> {
    let recorder = recorder(&app, &id)?;
    let policies = told(&app, &recorder, Client::policies).await?;
    Ok(Json(policies))
}

pub(super) async fn add_policy(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path(id): Path<String>,
    given: Body,
) -> Result<(StatusCode, Json<Changed>), Refused> {
    let recorder = changed(&app, &who, &id)?;
    let asked: PolicyRequest = body(given).await?;
    // The place of an error is known here.
    strata_log_views::filters::check_match(&asked.policy.matches)?;
    if let Err(error @ PolicyError::NoInterface) = asked.policy.policy() {
        return Err(Refused::invalid("interface", error.to_string()));
    }
    let (policy, reason) = (asked.policy.clone(), asked.why.clone());
    let request = PolicyRequest {
        why: why(&who, &asked.why)?,
        ..asked
    };
    let added = told(&app, &recorder, move |client| {
        let added = client.add_policy(&request)?;
        // The policy is there, also if the recording ends now.
        let remark = match &request.policy.interface {
            Some(interface) => {
                let status = client.status().ok();
                status.and_then(|status| status.not_captured(interface))
            }
            None => None,
        };
        Ok((added, remark))
    });
    let (added, remark) = added.await?;
    let (action, matches) = (&policy.action, &policy.matches);
    let what = format!(
        "policy {} added on recorder {id}: {action} for {matches}{}",
        added.id,
        remark.map_or_else(String::new, |remark| format!("; {remark}")),
    );
    app.audit.note(&who.name, &what, &reason);
    let mut command = format!(
        "strata policy add {} --action {}",
        quoted(matches),
        quoted(action)
    );
    if policy.priority != strata_rules::PRIORITY_DEFAULT {
        command.push_str(&format!(" --prio {}", policy.priority));
    }
    if let Some(interface) = &policy.interface {
        command.push_str(&format!(" --interface {}", quoted(interface)));
    }
    if policy.protect {
        command.push_str(" --protect");
    }
    let undo = Undo {
        method: "DELETE",
        path: format!("/api/v1/recorders/{id}/policies/{}", added.id),
        body: None,
    };
    let changed = Changed {
        what,
        command,
        id: Some(added.id),
        undo: Some(undo),
    };
    Ok((StatusCode::CREATED, Json(changed)))
}

#[derive(Deserialize)]
struct Reason {
    #[serde(default)]
    why: String,
}

pub(super) async fn remove_policy(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path((id, policy)): Path<(String, String)>,
    uri: Uri,
) -> Answer<Changed> {
    let recorder = changed(&app, &who, &id)?;
    let reason: Reason = query(&uri)?;
    let missing = || Refused::not_found(format!("unknown policy '{policy}'"));
    let number: u32 = policy.parse().map_err(|_| missing())?;
    let removed = told(&app, &recorder, move |client| {
        let policies = client.policies()?;
        let known = policies.into_iter().find(|policy| policy.id == number);
        if known.is_some() {
            client.remove_policy(number)?;
        }
        Ok(known)
    });
    let removed = removed.await?.ok_or_else(missing)?;
    let what = format!(
        "policy {number} removed on recorder {id}: {} for {}",
        removed.action, removed.matches
    );
    app.audit.note(&who.name, &what, &reason.why);
    let undo = Undo {
        method: "POST",
        path: format!("/api/v1/recorders/{id}/policies"),
        body: Some(again(&removed)),
    };
    Ok(Json(Changed {
        what,
        command: format!("strata policy remove {number}"),
        id: None,
        undo: Some(undo),
    }))
}

/// The request that adds a policy again.
fn again(policy: &PolicyStatus) -> Value {
    json!({
        "match": policy.matches, "action": policy.action, "priority": policy.priority,
        "interface": policy.interface, "protect": policy.protect, "why": "undone",
    })
}

pub(super) async fn acknowledge(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path((id, event)): Path<(String, String)>,
    given: Body,
) -> Result<StatusCode, Refused> {
    let recorder = changed(&app, &who, &id)?;
    let given = bytes(given).await?;
    let reason = match given.is_empty() {
        true => Reason { why: String::new() },
        false => serde_json::from_slice(&given)
            .map_err(|error| Refused::invalid("body", error.to_string()))?,
    };
    if !recorder.acknowledge(&event, &who.name, &times::now()) {
        return Err(Refused::not_found(format!("unknown event '{event}'")));
    }
    let what = format!("event {event} of recorder {id} acknowledged");
    app.audit.note(&who.name, &what, &reason.why);
    Ok(StatusCode::NO_CONTENT)
}
