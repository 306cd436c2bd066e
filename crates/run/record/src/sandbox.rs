//! What a recording in its sandbox can still do.

use std::sync::Arc;

use strata_capture::live::SocketOpener;
use strata_role::RoleError;
use strata_sandbox::Helper;

use crate::error::{At as _, RecordError, Result};
use crate::spec::SandboxSpec;

/// Starts the process that opens packet sockets for this one; returns the opener that uses it.
///
/// # Errors
///
/// If it cannot be started.
pub fn socket_opener(spec: &SandboxSpec) -> Result<SocketOpener> {
    let arguments: Vec<&str> = spec.helper.iter().map(String::as_str).collect();
    let helper = Helper::start(&arguments).at("cannot start the process that opens sockets")?;
    let helper = Arc::new(helper);
    Ok(SocketOpener::new(move |cooked| {
        helper.packet_socket(cooked)
    }))
}

/// If the sandbox is why a file cannot be read, says so.
pub(crate) fn explain(error: RecordError) -> RecordError {
    if !error.is_denied() {
        return error;
    }
    RecordError::Role(RoleError::At {
        what: String::from(
            "a recording reaches only its log, its socket and the directories of the files it \
             was started with; restart it with other files, or with --no-sandbox",
        ),
        source: Box::new(error.into()),
    })
}
