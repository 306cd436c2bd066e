//! The configuration file: TOML, checked as a whole, described by itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strata_confine::{SecretError, read_secret};
use strata_filter::Filter;
use strata_policy::ModeConfig;
use strata_rules::{Action, Policy, PolicyError};

use crate::alerts::Webhook;
use crate::api::{Admit, TcpEndpoint};
use crate::elastic::{ElasticOptions, Resource, Threshold};

/// The configuration of `strata record`. Command line and environment go before it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Logging modes that are active together: `default`, `log-all`, `log-partial`,
    /// `log-sampled`, `log-minimum` or own ones. Without any, `default`.
    pub mode: Vec<String>,
    /// What is done with packets that no policy matches: an action as in `policy.action`.
    /// Without it, `classify`.
    pub default: Option<String>,
    /// Own modes, by name.
    pub modes: BTreeMap<String, ModeConfig>,
    /// Policies; of those that match a packet, the ones of the highest priority count.
    pub policy: Vec<PolicyConfig>,
    /// How shortages are answered while interfaces are captured.
    pub elastic: ElasticConfig,
    /// How a running recording is steered.
    pub control: ControlConfig,
    /// Who is told what happens by itself: shortages, what is done about them, interfaces that go.
    pub alerts: AlertsConfig,
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyConfig {
    /// Which packets: an expression in tcpdump's language, on addresses, ports, protocols and
    /// VLANs.
    #[serde(rename = "match")]
    pub matches: String,
    /// What is done: `full`, `header`, `partial N` (bytes of payload), `drop` or `classify`,
    /// optionally followed by `1/N` or `1/N flows`; or `mirror`: a copy of each packet leaves by
    /// the interface of `--mirror-to`, and what is kept is for the other policies of the same
    /// priority to say, or the default.
    pub action: String,
    /// A larger number goes first; 0 to 65535.
    #[serde(default = "priority_default")]
    pub priority: u16,
    /// Only packets of the interface of this name.
    #[serde(default)]
    pub interface: Option<String>,
    /// Whether what is kept of the packets is not deleted to make room on the disk.
    #[serde(default)]
    pub protect: bool,
}

fn priority_default() -> u16 {
    strata_rules::PRIORITY_DEFAULT
}

impl PolicyConfig {
    /// The policy.
    ///
    /// # Errors
    ///
    /// If expression or action are not understood.
    pub fn policy(&self) -> Result<Policy, PolicyError> {
        let mut policy = Policy::new(Filter::parse(&self.matches)?, self.action.parse()?);
        policy.priority = self.priority;
        policy.interface.clone_from(&self.interface);
        policy.protect = self.protect;
        Ok(policy)
    }
}

/// How shortages are answered. A step of relief is a mode that keeps less.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ElasticConfig {
    /// Whether modes change by themselves when something is short.
    pub enabled: bool,
    /// Share of the file system in use at which the disk is short, in percent.
    pub disk_space_percent: f64,
    /// Share of the memory blocks that wait for the disk at which its rate is short, in percent.
    pub blocks_percent: f64,
    /// Share of a ring's memory that waits for its worker at which packets per second are short,
    /// in percent.
    pub ring_percent: f64,
    /// Share of the time that the disk has as many blocks to write as it takes at once, at which
    /// its rate is short, in percent.
    pub disk_rate_percent: f64,
    /// RDMA packets sent again, of those sent, at which the way to the relay is short, in percent.
    pub rdma_again_percent: f64,
    /// What is kept may take so many megabits per second on its way to the disk or the relay;
    /// without it, any number.
    pub bandwidth_mbps: Option<f64>,
    /// CPU use of the busiest worker at which CPU is short, in percent of a core. Without it, CPU
    /// is short only where it makes the kernel drop packets.
    pub cpu_percent: Option<f64>,
    /// CPU that the process may use, its programs in the kernel included, in percent of a core. It
    /// is kept by capturing a share of flows only. Without it, as much as it takes.
    pub cpu_budget_percent: Option<f64>,
    /// Share of the file system in use at which the least important data of the log is deleted,
    /// in percent: whole files of classes that are not anomalous first, of these the oldest;
    /// never the newest files, and never what a policy protects. Without it, nothing is deleted.
    pub remove_percent: Option<f64>,
    /// How long something is short before it is answered, in seconds.
    pub confirm_seconds: f64,
    /// How long it is no longer short before the answer is taken back, in seconds, at first; it
    /// doubles when the shortage comes back.
    pub hold_seconds: f64,
    /// How long that is at most, in seconds.
    pub hold_seconds_max: f64,
}

impl Default for ElasticConfig {
    fn default() -> Self {
        let options = ElasticOptions::default();
        let percent =
            |resource: Resource| (options.thresholds[resource as usize].raise * 100.0).round();
        Self {
            enabled: true,
            disk_space_percent: percent(Resource::DiskSpace),
            blocks_percent: percent(Resource::Blocks),
            ring_percent: percent(Resource::RingFill),
            disk_rate_percent: percent(Resource::DiskRate),
            rdma_again_percent: percent(Resource::Rdma),
            bandwidth_mbps: None,
            cpu_percent: None,
            cpu_budget_percent: None,
            remove_percent: None,
            confirm_seconds: seconds(options.confirm_ns),
            hold_seconds: seconds(options.hold_ns),
            hold_seconds_max: seconds(options.hold_ns_max),
        }
    }
}

#[allow(clippy::cast_precision_loss)]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// CPU that may be asked for, in percent of a core: more cores than Linux knows.
pub const CPU_PERCENT_MAX: f64 = 100.0 * 8192.0;
/// The longest time, 366 days.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;
/// The largest rate, a petabit per second.
const MBPS_MAX: f64 = 1e9;
/// The largest share. Above 100 a resource is never short, which turns its sensor off.
const PERCENT_MAX: f64 = 1000.0;

impl ElasticConfig {
    /// The first number that is out of its bounds: its key and what is wrong with it.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let share = 0.0..=PERCENT_MAX;
        let time = 0.0..=SECONDS_MAX;
        for (key, value, range) in [
            (
                "disk_space_percent",
                Some(self.disk_space_percent),
                share.clone(),
            ),
            ("blocks_percent", Some(self.blocks_percent), share.clone()),
            ("ring_percent", Some(self.ring_percent), share.clone()),
            (
                "disk_rate_percent",
                Some(self.disk_rate_percent),
                share.clone(),
            ),
            (
                "rdma_again_percent",
                Some(self.rdma_again_percent),
                share.clone(),
            ),
            ("cpu_percent", self.cpu_percent, share),
            ("bandwidth_mbps", self.bandwidth_mbps, 1e-6..=MBPS_MAX),
            (
                "cpu_budget_percent",
                self.cpu_budget_percent,
                1e-3..=CPU_PERCENT_MAX,
            ),
            ("remove_percent", self.remove_percent, 1.0..=100.0),
            ("confirm_seconds", Some(self.confirm_seconds), time.clone()),
            ("hold_seconds", Some(self.hold_seconds), time.clone()),
            ("hold_seconds_max", Some(self.hold_seconds_max), time),
        ] {
            // What is not a number is in no range.
            if let Some(value) = value.filter(|value| !range.contains(value)) {
                let (low, high) = range.into_inner();
                return Err((key, format!("{value} is not from {low} to {high}")));
            }
        }
        Ok(())
    }

    /// The same for the plan. The lower thresholds keep their distance from the upper ones.
    #[must_use]
    pub fn options(&self) -> ElasticOptions {
        let mut options = ElasticOptions::default();
        for (resource, percent) in [
            (Resource::DiskSpace, Some(self.disk_space_percent)),
            (Resource::Blocks, Some(self.blocks_percent)),
            (Resource::Cpu, self.cpu_percent),
            (Resource::RingFill, Some(self.ring_percent)),
            (Resource::DiskRate, Some(self.disk_rate_percent)),
            (Resource::Rdma, Some(self.rdma_again_percent)),
        ] {
            let Some(percent) = percent else { continue };
            let Threshold { raise, lower } = &mut options.thresholds[resource as usize];
            let distance = if raise.is_finite() {
                *lower / *raise
            } else {
                0.75
            };
            *raise = percent / 100.0;
            *lower = *raise * distance;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let ns = |seconds: f64| (seconds.max(0.0) * 1e9) as u64;
        options.remove_at = self.remove_percent.map(|percent| percent / 100.0);
        options.bits_per_second = self.bandwidth_mbps.map(|mbps| mbps * 1e6);
        options.confirm_ns = ns(self.confirm_seconds);
        options.hold_ns = ns(self.hold_seconds);
        options.hold_ns_max = ns(self.hold_seconds_max.max(self.hold_seconds));
        options
    }
}

/// How a running recording is steered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ControlConfig {
    /// Path of the Unix socket for `strata status`, `mode` and `policy`. Without it, one in
    /// `/run/strata` or `$XDG_RUNTIME_DIR/strata`, while interfaces are captured.
    pub socket: Option<PathBuf>,
    /// Address and port for HTTP over TCP, as in `127.0.0.1:9477`; needs `token_file` or
    /// `tls_ca`.
    pub listen: Option<String>,
    /// File with the token that HTTP over TCP asks for, as `Authorization: Bearer TOKEN`; for its
    /// owner alone (mode 0600).
    pub token_file: Option<PathBuf>,
    /// Certificate (PEM) that HTTP over TCP shows, with those that lead to its authority; then it
    /// is HTTPS.
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM).
    pub tls_key: Option<PathBuf>,
    /// Authorities (PEM): who shows a certificate of theirs may ask, instead of with a token.
    pub tls_ca: Option<PathBuf>,
}

impl ControlConfig {
    /// HTTP over TCP, if it is wanted.
    ///
    /// # Errors
    ///
    /// Which key is missing, or which file cannot be used.
    pub fn tcp(&self) -> Result<Option<TcpEndpoint>, EndpointError> {
        let Some(address) = self.listen.clone() else {
            return Ok(None);
        };
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(strata_tls::server(
                certificate,
                key,
                self.tls_ca.as_deref(),
            )?),
            (None, None) if self.tls_ca.is_none() => None,
            _ => return Err(EndpointError::HalfTls),
        };
        let admit = match &self.token_file {
            _ if self.tls_ca.is_some() => Admit::Certificate,
            None => return Err(EndpointError::Open),
            Some(path) => Admit::Token(read_secret(path)?),
        };
        Ok(Some(TcpEndpoint {
            address,
            admit,
            tls,
        }))
    }
}

/// Why HTTP over TCP cannot be served as it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Anybody could ask.
    #[error("control.listen needs control.token_file or control.tls_ca: anybody could ask")]
    Open,
    /// A part is missing.
    #[error("TLS needs control.tls_cert and control.tls_key")]
    HalfTls,
    /// The token cannot be used.
    #[error("control.token_file: {0}")]
    Token(#[from] SecretError),
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] strata_tls::TlsError),
}

/// Who is told what happens by itself. It is in the journal in any case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AlertsConfig {
    /// Address to which each alert is sent by HTTP POST, as JSON, as in
    /// `https://alerts.example/strata`.
    pub webhook: Option<String>,
    /// File with a token that is sent along, as `Authorization: Bearer TOKEN`; for its owner
    /// alone (mode 0600).
    pub token_file: Option<PathBuf>,
    /// File with the authority (PEM) that the server's certificate comes from, instead of the
    /// public ones.
    pub ca_file: Option<PathBuf>,
}

impl AlertsConfig {
    /// The webhook, if there is one.
    #[must_use]
    pub fn webhook(&self) -> Option<Webhook> {
        Some(Webhook {
            url: self.webhook.clone()?,
            token_file: self.token_file.clone(),
            ca_file: self.ca_file.clone(),
        })
    }
}

/// What is wrong with a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{}: cannot read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not TOML, or a value is not what it has to be.
    #[error("{}: {source}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// What and where.
        source: Box<toml::de::Error>,
    },
    /// A key that there is not.
    #[error("{}: no key '{key}'{}", path.display(), suggest(suggestion.as_deref()))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key with the tables it stands in.
        key: String,
        /// What was meant, perhaps.
        suggestion: Option<String>,
    },
    /// A number is out of its bounds.
    #[error("{}: {key}: {problem}", path.display())]
    Bounds {
        /// The file.
        path: PathBuf,
        /// The key with the table it stands in.
        key: String,
        /// The number and its bounds.
        problem: String,
    },
    /// A policy is wrong.
    #[error("{}: policy {number}: {source}", path.display())]
    Policy {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        number: usize,
        /// Why.
        source: PolicyError,
    },
    /// The default action is wrong.
    #[error("{}: default: {source}", path.display())]
    Default {
        /// The file.
        path: PathBuf,
        /// Why.
        source: strata_rules::ParseActionError,
    },
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map_or(String::new(), |key| format!("; did you mean '{key}'?"))
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong, with the file and the key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.into(),
            source,
        })?;
        Self::from_toml(&text, path)
    }

    /// Understands the text of a file.
    ///
    /// # Errors
    ///
    /// As [`Config::read`].
    pub fn from_toml(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let config = Self::parse(text, path)?;
        let checked = config.elastic.check();
        checked.map_err(|(key, problem)| ConfigError::Bounds {
            path: path.into(),
            key: format!("elastic.{key}"),
            problem,
        })?;
        config.policies(path)?;
        config.default_action(path)?;
        Ok(config)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let toml_error = |source| ConfigError::Toml {
            path: path.into(),
            source: Box::new(source),
        };
        let table: toml::Table = toml::from_str(text).map_err(toml_error)?;
        let schema = schema();
        if let Some((key, suggestion)) = unknown_key(&schema, &schema, &table, "") {
            return Err(ConfigError::UnknownKey {
                path: path.into(),
                key,
                suggestion,
            });
        }
        toml::from_str(text).map_err(toml_error)
    }

    /// The policies of the file.
    ///
    /// # Errors
    ///
    /// The first that is wrong.
    pub fn policies(&self, path: &Path) -> Result<Vec<Policy>, ConfigError> {
        let mut policies = Vec::new();
        for (index, config) in self.policy.iter().enumerate() {
            let made = config.policy().and_then(|policy| {
                strata_rules::regions(&policy.filter)?;
                Ok(policy)
            });
            policies.push(made.map_err(|source| ConfigError::Policy {
                path: path.into(),
                number: index + 1,
                source,
            })?);
        }
        Ok(policies)
    }

    /// What is done with packets that no policy matches.
    ///
    /// # Errors
    ///
    /// If it is no action.
    pub fn default_action(&self, path: &Path) -> Result<Action, ConfigError> {
        let Some(text) = &self.default else {
            return Ok(Action::CLASSIFY);
        };
        text.parse().map_err(|source| ConfigError::Default {
            path: path.into(),
            source,
        })
    }
}

fn schema() -> Value {
    serde_json::to_value(schemars::schema_for!(Config)).unwrap_or_default()
}

/// What a part of a schema refers to.
fn resolve<'a>(root: &'a Value, part: &'a Value) -> &'a Value {
    let Some(name) = part["$ref"].as_str() else {
        return part;
    };
    &root["$defs"][name.rsplit('/').next().unwrap_or_default()]
}

/// The first key that the schema does not have, and the one that is most like it.
fn unknown_key(
    root: &Value,
    part: &Value,
    table: &toml::Table,
    within: &str,
) -> Option<(String, Option<String>)> {
    let part = resolve(root, part);
    let known = part["properties"].as_object();
    for (key, value) in table {
        let full = format!("{within}{key}");
        let inner = known.and_then(|known| known.get(key)).or_else(|| {
            let any = &part["additionalProperties"];
            any.is_object().then_some(any)
        });
        let Some(inner) = inner else {
            let names = known.into_iter().flat_map(|known| known.keys());
            let like = |name: &String| strsim::jaro_winkler(name, key);
            let best = names.max_by(|a, b| like(a).total_cmp(&like(b)));
            let best = best.filter(|name| like(name) > 0.75).cloned();
            return Some((full, best.map(|name| format!("{within}{name}"))));
        };
        let inner = resolve(root, inner);
        let found = match value {
            toml::Value::Table(table) => unknown_key(root, inner, table, &format!("{full}.")),
            toml::Value::Array(items) => items.iter().find_map(|item| {
                let table = item.as_table()?;
                unknown_key(root, &inner["items"], table, &format!("{full}."))
            }),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

/// The page that describes every key, in Markdown.
#[must_use]
pub fn reference() -> String {
    let schema = schema();
    let mut page = String::from(
        "# Configuration\n\n\
         One TOML file, given with `--config FILE` or in `STRATA_CONFIG`. What the command line \
         says goes before the environment, and that before the file. `strata record --check` \
         reads it and says what is wrong; a key that there is not is an error. While interfaces \
         are captured, `kill -HUP` reads it again: modes and policies change without a packet \
         lost, and policies that stay keep their counts. What is refused changes nothing. \
         (`strata rotate` begins new files.)\n\n\
         Policies that `strata policy add` or the API added to a running recording are not part of \
         this file. They stay when it is read again, and are saved in the log's directory, as \
         `policies.jsonl`: a later recording into the same directory begins with them, under the \
         same numbers. One that the file comes to have too is from then on the file's. `strata \
         policy list` says where each is from; `strata policy remove` also forgets a saved one, \
         but one of the file comes back when that is read again. This page is made from the program by \
         `strata config-reference`.\n",
    );
    describe(&schema, &schema, "", &mut page);
    page
}

fn describe(root: &Value, part: &Value, within: &str, page: &mut String) {
    let part = resolve(root, part);
    let Some(keys) = part["properties"].as_object() else {
        return;
    };
    let title = if within.is_empty() { "Keys" } else { within };
    let _ = write!(
        page,
        "\n## {title}\n\n| key | what | type | default |\n|---|---|---|---|\n"
    );
    let required = part["required"].as_array().cloned().unwrap_or_default();
    let mut inner = Vec::new();
    for (key, value) in keys {
        let target = resolve(root, value);
        let text = value["description"]
            .as_str()
            .or(target["description"].as_str());
        let text = text.unwrap_or_default().replace('\n', " ");
        let (kind, nested) = kind(root, value);
        let default = match &value["default"] {
            _ if required.contains(&Value::from(key.as_str())) => "required".into(),
            Value::Null | Value::Object(_) => String::from("-"),
            Value::Array(items) if items.is_empty() => String::from("-"),
            value => format!("`{value}`"),
        };
        let _ = writeln!(page, "| `{key}` | {text} | {kind} | {default} |");
        if let Some((part, name)) = nested {
            inner.push((
                part,
                name.replace(
                    "KEY",
                    &format!("{within_dot}{key}", within_dot = dotted(within)),
                ),
            ));
        }
    }
    for (part, name) in inner {
        describe(root, part, &name, page);
    }
}

/// A table's name as the beginning of a key.
fn dotted(within: &str) -> String {
    let name = within.trim_matches(['`', '[', ']']);
    if name.is_empty() {
        String::new()
    } else {
        format!("{name}.")
    }
}

/// The type of a key in words, and the table behind it with the form of its heading.
fn kind<'a>(root: &'a Value, value: &'a Value) -> (String, Option<(&'a Value, &'static str)>) {
    let target = resolve(root, value);
    let types: Vec<&str> = match &target["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if target["properties"].is_object() {
        return ("table".into(), Some((target, "`[KEY]`")));
    }
    if target["additionalProperties"].is_object() {
        let item = resolve(root, &target["additionalProperties"]);
        if item["properties"].is_object() {
            return ("tables by name".into(), Some((item, "`[KEY.NAME]`")));
        }
        return ("texts by name".into(), None);
    }
    if types.contains(&"array") {
        let item = resolve(root, &target["items"]);
        if item["properties"].is_object() {
            return ("list of tables".into(), Some((item, "`[[KEY]]`")));
        }
        return ("list of texts".into(), None);
    }
    let words = types
        .iter()
        .filter(|name| **name != "null")
        .map(|name| match *name {
            "string" => "text",
            "boolean" => "true or false",
            "integer" => "whole number",
            other => other,
        });
    (words.collect::<Vec<_>>().join(" or "), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::from_toml(text, Path::new("strata.toml"))
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("moed = []", "no key 'moed'; did you mean 'mode'?"),
            (
                "[elastic]\ndisk_space_precent = 5",
                "no key 'elastic.disk_space_precent'; did you mean 'elastic.disk_space_percent'?",
            ),
            (
                "[[policy]]\nmatch = 'tcp'\nacton = 'drop'",
                "no key 'policy.acton'; did you mean 'policy.action'?",
            ),
            (
                "[modes.office]\nbenign = 'full'\nanomalous = 'full'\nclass = 1",
                "no key 'modes.office.class'; did you mean 'modes.office.classes'?",
            ),
            ("zzz = 1", "no key 'zzz'"),
            ("[[policy]]\nmatch = 'tcp['\naction = 'drop'", "policy 1:"),
            (
                "[[policy]]\nmatch = 'tcp'\naction = 'keep'",
                "policy 1: 'keep' is not an action",
            ),
            (
                "[[policy]]\nmatch = 'greater 5'\naction = 'drop'",
                "policy 1: 'len >= 5' cannot be part of a policy",
            ),
            ("default = 'all'", "default: 'all' is not an action"),
            ("[elastic]\nenabled = 3", "line 2"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(
                error.starts_with("strata.toml: ") && error.contains(expected),
                "{error}"
            );
        }
    }

    /// Every number of the schema, and all that a float can be.
    fn numbers() -> Vec<(String, bool)> {
        let schema = schema();
        let properties = schema["$defs"]["ElasticConfig"]["properties"].as_object();
        let of_kind = |value: &Value, kind: &str| match &value["type"] {
            Value::Array(kinds) => kinds.contains(&Value::from(kind)),
            one => one == kind,
        };
        let numbers = properties.unwrap().iter();
        let numbers = numbers.filter(|(_, value)| of_kind(value, "number"));
        numbers
            .map(|(key, value)| (key.clone(), of_kind(value, "null")))
            .collect()
    }

    fn with_number(key: &str, number: &str) -> Result<Config, ConfigError> {
        parse(&format!("[elastic]\n{key} = {number}\n"))
    }

    #[test]
    fn numbers_out_of_bounds_are_refused_by_key() {
        let numbers = numbers();
        assert!(numbers.len() >= 12, "{numbers:?}");
        for (key, _) in numbers {
            for extreme in [
                "nan",
                "inf",
                "-inf",
                "1e19",
                "-1.0",
                "-1",
                "1e308",
                "9223372036854775807",
            ] {
                let error = with_number(&key, extreme).unwrap_err().to_string();
                let expected = format!("strata.toml: elastic.{key}: ");
                assert!(error.starts_with(&expected), "{extreme}: {error}");
            }
            assert!(with_number(&key, "1e400").is_err() && with_number(&key, "1.0").is_ok());
        }
        let error = parse("[[policy]]\nmatch = 'tcp'\naction = 'drop'\npriority = 65536");
        assert!(error.unwrap_err().to_string().contains("priority"));
    }

    proptest::proptest! {
        /// Whatever number is accepted makes options that the plan can work with.
        #[test]
        fn accepted_numbers_are_usable(which in 0_usize..12, number in proptest::num::f64::ANY) {
            let (key, _) = &numbers()[which];
            if let Ok(config) = with_number(key, &format!("{number:e}")) {
                let options = config.elastic.options();
                for threshold in options.thresholds {
                    let is_off = threshold.raise == f64::INFINITY;
                    proptest::prop_assert!(is_off || threshold.lower <= threshold.raise);
                }
                proptest::prop_assert!(options.hold_ns <= options.hold_ns_max);
                proptest::prop_assert!(options.remove_at.is_none_or(|at| at > 0.0 && at <= 1.0));
            }
        }
    }

    #[test]
    fn a_whole_file_is_understood() {
        let config = parse(
            "mode = ['office']\ndefault = 'drop'\n[modes.office]\nbenign = 'header'\n\
             anomalous = 'full'\n[modes.office.classes]\nunclassified = 'drop'\n[[policy]]\n\
             match = 'port 443'\naction = 'header'\ninterface = 'eth0'\n[elastic]\n\
             blocks_percent = 50\n[control]\nlisten = '127.0.0.1:9477'\n",
        )
        .unwrap();
        assert_eq!(config.policy[0].priority, 100);
        let threshold = config.elastic.options().thresholds[Resource::Blocks as usize];
        assert!((threshold.raise - 0.5).abs() < 1e-9 && threshold.lower < threshold.raise);
    }

    #[test]
    fn the_reference_is_up_to_date() {
        let path = strata_testkit::workspace_root().join("docs/configuration.md");
        let page = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            page,
            reference(),
            "make it again with `strata config-reference`"
        );
    }
}
