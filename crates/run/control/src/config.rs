//! The configuration file: TOML, checked as a whole, self-describing.

mod alerts;
mod elastic;
mod error;
mod example;
mod export;
mod keys;
mod listening;
mod names;
mod reference;
mod tunnels;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strata_filter::Filter;
use strata_policy::{DetailBudget, ModeConfig};
use strata_rules::{Action, Policy, PolicyError};
use strata_sandbox::{SecretError, read_secret};
use strata_wire::tunnel::Tunnels;
use utoipa::ToSchema;

use crate::endpoint::{Admit, TcpEndpoint};
use reference::{schema, unknown_key};

pub use alerts::AlertsConfig;
pub(crate) use alerts::{NO_ADDRESS, is_address};
pub use elastic::{CPU_PERCENT_MAX, ElasticConfig};
pub use error::ConfigError;
pub use example::example;
pub(crate) use export::ALWAYS;
pub use export::{ExportConfig, ExportPlan, KeyFileError, NamedDestination, read_keys};
pub use keys::{Key, keys};
pub use names::NamesConfig;
pub use reference::reference;
pub use tunnels::TunnelsConfig;

/// The configuration of `strata record`. Command line and environment override it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Logging modes that are active together: `default`, `log-all`, `log-partial`, `log-sampled`,
    /// `log-minimum` or custom ones. By default, `default`.
    pub mode: Vec<String>,
    /// Action for packets that no policy matches, as in `policy.action`. By default, `classify`.
    pub default: Option<String>,
    /// Custom modes, by name; one with the name of a built-in mode replaces it.
    pub modes: BTreeMap<String, ModeConfig>,
    /// Policies. Of the policies that match a packet, those with the highest priority apply.
    pub policy: Vec<PolicyConfig>,
    /// Response to shortages during a live capture.
    pub elastic: ElasticConfig,
    /// Control of a running recording.
    pub control: ControlConfig,
    /// Destinations to which policies may export headers and packets (`header -> NAME`), and
    /// identities of the sender. Read at the start only.
    pub export: ExportConfig,
    /// UDP ports of tunnels: packets to these ports are classified, matched and kept by the headers
    /// and the flow inside the tunnel. A list replaces the usual ports of its kind of tunnel; an
    /// empty list disables this kind. Read at the start only. The log stores the ports for commands
    /// that read it, unless a relay writes the log. `--tunnel-port NAME=PORT` adds a port.
    pub tunnels: TunnelsConfig,
    /// Budget of detail: a share of the payload beyond headers, as in `10%`, a rate of this
    /// payload, as in `50MB/s` or `20GB/day`, or `none` for no budget. With a budget, short flows
    /// and the start of the other flows get payload, instead of all packets of the classes that the
    /// mode keeps in more detail. `--detail` overrides it. By default, `10%` with the built-in
    /// model, and `none` with another model.
    pub detail: Option<String>,
    /// Response during a live capture if the model does not fit the traffic of the last minutes
    /// (the stability index of its scores is above 0.25): `warn` logs a warning; `budget` also sets
    /// a budget of detail of a tenth of the payload, unless there is a budget; `keep` keeps every
    /// packet whole, like mode `log-all`. By default, `warn`.
    pub on_drift: OnDrift,
    /// Limit on the memory of the flow tables of all workers together, as in `2GB`; `--memory`
    /// overrides it. Read at the start only. By default, a sixteenth of the machine's memory.
    pub memory: Option<String>,
    /// Alerts about events that no user requested: shortages, the response to them, interfaces that
    /// disappear.
    pub alerts: AlertsConfig,
    /// Names of addresses, for commands that read logs: `strata read`, `grep`, `top`, `export`,
    /// `ask`, `query` and `serve`. A recording does not use them.
    pub names: NamesConfig,
}

/// What a recording does while its model does not fit the traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnDrift {
    /// Says so.
    #[default]
    Warn,
    /// Has a budget of detail, which does not depend on scores.
    Budget,
    /// Keeps every packet whole.
    Keep,
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyConfig {
    /// Packets to match: an expression in tcpdump's filter language, on addresses, ports, protocols
    /// and VLANs. It must not be empty.
    #[serde(rename = "match")]
    pub matches: String,
    /// Action: `full`, `header`, `partial N` (bytes of payload), `drop` or `classify`, optionally
    /// followed by `1/M` (one packet in M) or `1/M flows`; `mirror`, which sends a copy of each
    /// packet from the `--mirror-to` interface; or an export to a destination of `[export]`:
    /// `header -> NAME` sends headers, `payload -> NAME` whole packets, and `payload N -> NAME`
    /// headers and the N bytes after them. `1/M` before the arrow samples: one packet in M is sent.
    /// If the action is mirror or export, other policies of the same priority, or the default
    /// action, decide what is kept.
    pub action: String,
    /// Priority, 0 to 65535; the largest number wins.
    #[serde(default = "priority_default")]
    pub priority: u16,
    /// Match only packets of the interface with this name.
    #[serde(default)]
    pub interface: Option<String>,
    /// Never delete the kept data of these packets for disk space.
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
    /// If the expression or action is invalid, or the expression or the interface's name is empty.
    pub fn policy(&self) -> Result<Policy, PolicyError> {
        // An empty filter selects all packets, and is most likely one that was not filled in.
        if self.matches.trim().is_empty() {
            return Err(PolicyError::Empty);
        }
        if self
            .interface
            .as_deref()
            .is_some_and(|name| name.trim().is_empty())
        {
            return Err(PolicyError::NoInterface);
        }
        let mut policy = Policy::new(Filter::parse(&self.matches)?, self.action.parse()?);
        policy.priority = self.priority;
        policy.interface.clone_from(&self.interface);
        policy.protect = self.protect;
        Ok(policy)
    }
}

/// Fewest bytes of a token, as of a relay's secret.
const TOKEN_BYTES_MIN: usize = 16;

/// Control of a running recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ControlConfig {
    /// Path of the Unix socket for `strata status`, `mode`, `detail`, `policy` and other commands.
    /// By default, for a live capture, a socket in `/run/strata` or `$XDG_RUNTIME_DIR/strata`.
    pub socket: Option<PathBuf>,
    /// Address and port to serve HTTP over TCP, as in `127.0.0.1:9477`; needs `token_file` or
    /// `tls_ca`.
    pub listen: Option<String>,
    /// File with the token required for HTTP over TCP, as `Authorization: Bearer TOKEN`; at least
    /// 16 bytes, readable by its owner only (mode 0600).
    pub token_file: Option<PathBuf>,
    /// Server certificate and its chain (PEM) for HTTPS instead of HTTP over TCP.
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM).
    pub tls_key: Option<PathBuf>,
    /// Certificate authorities (PEM): clients with a certificate from them need no token.
    pub tls_ca: Option<PathBuf>,
}

impl ControlConfig {
    /// HTTP over TCP, if configured.
    ///
    /// # Errors
    ///
    /// Which key is missing, or which file is unusable.
    pub fn tcp(&self) -> Result<Option<TcpEndpoint>, EndpointError> {
        let Some(address) = self.listen.clone() else {
            return Ok(None);
        };
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(strata_auth::tls::server(
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
            Some(path) => {
                let token = read_secret(path)?;
                if token.len() < TOKEN_BYTES_MIN {
                    return Err(EndpointError::ShortToken { file: path.clone() });
                }
                Admit::Token(token)
            }
        };
        Ok(Some(TcpEndpoint {
            address,
            admit,
            tls,
        }))
    }
}

/// Why HTTP over TCP cannot be served as configured.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Anybody could send requests.
    #[error(
        "control.listen needs control.token_file or control.tls_ca: without them, anyone \
    could use it"
    )]
    Open,
    /// A part is missing.
    #[error("TLS needs control.tls_cert and control.tls_key")]
    HalfTls,
    /// The token cannot be used.
    #[error("control.token_file: {0}")]
    Token(#[from] SecretError),
    /// The token could be guessed.
    #[error(
        "control.token_file: {}: the token is too short: it needs at least {TOKEN_BYTES_MIN} bytes; make one with \
         `openssl rand -hex 32`", file.display()
    )]
    ShortToken {
        /// The file.
        file: PathBuf,
    },
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] strata_auth::tls::TlsError),
}

/// The text of a file.
fn text_of(path: &Path) -> Result<String, ConfigError> {
    fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.into(),
        source,
    })
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong, with the file and the key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::from_toml(&text_of(path)?, path)
    }

    /// Parses the text of a file.
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
        config.memory_max(path)?;
        config.export_plan(path)?;
        config.tunnels(path)?;
        config.detail(path, None)?;
        let checked = config.alerts.check();
        checked.map_err(|(key, problem)| ConfigError::Bounds {
            path: path.into(),
            key: format!("alerts.{key}"),
            problem,
        })?;
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
    /// The first invalid policy.
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

    /// Maximum bytes of the tables of flows, if the file says so.
    ///
    /// # Errors
    ///
    /// If the text is not a size.
    pub fn memory_max(&self, path: &Path) -> Result<Option<u64>, ConfigError> {
        let bytes = self.memory.as_deref().map(strata_wire::parse_bytes);
        bytes.transpose().map_err(|problem| ConfigError::Bounds {
            path: path.into(),
            key: "memory".into(),
            problem,
        })
    }

    /// The UDP ports of tunnels.
    ///
    /// # Errors
    ///
    /// If a port is 0 or that of two tunnels, or there are too many.
    pub fn tunnels(&self, path: &Path) -> Result<Tunnels, ConfigError> {
        let table = self.tunnels.table();
        table.map_err(|problem| ConfigError::Bounds {
            path: path.into(),
            key: "tunnels".into(),
            problem: problem.to_string(),
        })
    }

    /// Where packets may be exported to, and as whom; `None` if nowhere.
    ///
    /// # Errors
    ///
    /// The first key that is wrong.
    pub fn export_plan(&self, path: &Path) -> Result<Option<ExportPlan>, ConfigError> {
        self.export
            .plan()
            .map_err(|(key, problem)| ConfigError::Bounds {
                path: path.into(),
                key: format!("export.{key}"),
                problem,
            })
    }

    /// The action for packets that no policy matches.
    ///
    /// # Errors
    ///
    /// If the action is invalid.
    pub fn default_action(&self, path: &Path) -> Result<Action, ConfigError> {
        let Some(text) = &self.default else {
            return Ok(Action::CLASSIFY);
        };
        text.parse().map_err(|source| ConfigError::Default {
            path: path.into(),
            source,
        })
    }

    /// The budget of detail; `default` if the file has none.
    ///
    /// # Errors
    ///
    /// If its text is invalid.
    pub fn detail(
        &self,
        path: &Path,
        default: Option<DetailBudget>,
    ) -> Result<Option<DetailBudget>, ConfigError> {
        let Some(text) = &self.detail else {
            return Ok(default);
        };
        DetailBudget::parse(text).map_err(|source| ConfigError::Detail {
            path: path.into(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::elastic::Resource;

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
            ("[[policy]]\nmatch = ' '\naction = 'drop'", "every packet"),
            (
                "[[policy]]\nmatch = 'tcp'\naction = 'drop'\ninterface = ''",
                "empty name",
            ),
            (
                "[[policy]]\nmatch = 'tcp'\naction = 'keep'",
                "policy 1: 'keep' is not an action",
            ),
            (
                "[[policy]]\nmatch = 'greater 5'\naction = 'drop'",
                "policy 1: 'len >= 5' cannot be part of a policy",
            ),
            ("default = 'all'", "default: 'all' is not an action"),
            (
                "[tunnels]\nvxlan = [4789, 6081]",
                "tunnels: port 6081 is given to both vxlan and geneve",
            ),
            (
                "[tunnels]\nvxlan_gpe = [4790]",
                "no key 'tunnels.vxlan_gpe'; did you mean 'tunnels.vxlan-gpe'?",
            ),
            (
                "[tunnels]\nteredo = [0]",
                "tunnels: teredo: 0 is not a UDP port",
            ),
            ("[elastic]\nenabled = 3", "line 2"),
            (
                "[export.destinations]\na = 'udp://192.0.2.1:4740'",
                "export.identity: is missing",
            ),
            (
                "[export]\nidentity = 0\n[export.destinations]\na = 'udp://192.0.2.1:4740'",
                "export.identity: 0 is",
            ),
            (
                "[export]\nidentity = 5\n[export.destinations]\na = '192.0.2.1:4740'",
                "export.destinations.a: '192.0.2.1:4740': not a destination",
            ),
            (
                "[export]\nidentity = 5\n[export.destinations]\n'a b' = 'udp://192.0.2.1:4740'",
                "export.destinations.a b: 'a b' is not a valid destination name",
            ),
            (
                "[export]\nidentity = 5\n[export.identities]\na = 7\nb = 7\n[export.destinations]\n\
                 a = 'udp://192.0.2.1:4740'",
                "export.identities.b: 7 is",
            ),
            ("memory = 'much'", "memory: 'much' is not a size"),
            (
                "[names]\nfile = ['hosts']",
                "no key 'names.file'; did you mean 'names.files'?",
            ),
            ("detail = '99999999999999999GB/s'", "detail: "),
            (
                "[alerts]\nwebhook = 'ftp://x'",
                "alerts.webhook: not an address for alerts",
            ),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(
                error.starts_with("strata.toml: ") && error.contains(expected),
                "{error}"
            );
        }
    }

    /// Every number in the schema, and whether it may be left unset.
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
        /// Whatever numbers are accepted, the plan can work with the resulting options.
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
             blocks_percent = 50\n[control]\nlisten = '127.0.0.1:9477'\n[names]\n\
             files = ['/etc/hosts']\n",
        )
        .unwrap();
        assert_eq!(config.policy[0].priority, 100);
        assert_eq!(config.names.files, [Path::new("/etc/hosts")]);
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
            "make it again with `strata config reference`"
        );
    }
}
