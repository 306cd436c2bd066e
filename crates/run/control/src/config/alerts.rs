//! Where alerts go.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use ureq::http::Uri;

/// Alerts about unrequested events. The journal records these events in any case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AlertsConfig {
    /// URL to which each alert is sent by HTTP POST, as JSON, as in
    /// `https://alerts.example/strata`.
    pub webhook: Option<String>,
    /// File with a token to send with each alert, as `Authorization: Bearer TOKEN`; readable by its
    /// owner only (mode 0600).
    pub token_file: Option<PathBuf>,
    /// File with the certificate authority (PEM) of the webhook's server, instead of the public
    /// ones.
    pub ca_file: Option<PathBuf>,
    /// Age, in seconds, at which a complete block file that is not compacted is reported, in a log
    /// with some compacted files. By default, 86400 (a day).
    pub compaction_lag_seconds: Option<u64>,
}

/// Why an address of alerts is refused; the address, which may contain a password, is not repeated.
pub(crate) const NO_ADDRESS: &str = "not an address for alerts: write http://... or https://...";

impl AlertsConfig {
    /// The first key that is wrong, and what is wrong with it; files are not read.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        match &self.webhook {
            Some(url) if !is_address(url) => Err(("webhook", NO_ADDRESS.to_owned())),
            _ => Ok(()),
        }
    }
}

/// Whether alerts can be sent to an address: HTTP or HTTPS, with a host.
pub(crate) fn is_address(url: &str) -> bool {
    url.parse::<Uri>().is_ok_and(|uri| {
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        matches!(uri.scheme_str(), Some("http" | "https")) && has_host
    })
}
