//! What a request asks for.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use strata_filter::{Filter, ParseError};
use strata_networks::Names;
use strata_query::{Find, Kept};
use strata_wire::{AddressFamily, FlowKey};

use crate::answers::refused::Refused;
use crate::answers::times;
use crate::search::flow_id::{self, address};

/// Maximum bytes of a filter.
const FILTER_BYTES_MAX: usize = 4 << 10;
/// How much may be kept of a packet in a log, as `--granularity` has it.
const GRANULARITIES: [&str; 3] = ["full", "partial", "header"];

/// What a request asks for: the parameters of search, series and export.
#[derive(Clone, Debug, Default, Deserialize)]
#[allow(
    missing_docs,
    reason = "parameters of the API, which its description says"
)]
pub struct Asked {
    filter: Option<String>,
    from: Option<String>,
    to: Option<String>,
    pub class: Option<String>,
    pub reason: Option<String>,
    pub granularity: Option<String>,
    pub points: Option<usize>,
    pub format: Option<String>,
    pub flow: Option<String>,
}

/// What is sought, checked.
#[derive(Clone, Debug, Default)]
pub struct Sought {
    /// The filter as it was typed.
    pub text: String,
    /// The filter; `None` for all packets.
    pub filter: Option<Filter>,
    /// From this time on, ns since 1970.
    pub from_ns: Option<u64>,
    /// Before this time, ns since 1970.
    pub to_ns: Option<u64>,
    /// The only flow; `None` for all.
    pub flow: Option<FlowKey>,
    /// Why and how far packets were kept.
    pub kept: Kept,
    /// Those that the filter may use, and that addresses are shown with.
    pub names: Arc<Names>,
}

/// A filter for a recording, which knows no names of networks; `None` for everything.
///
/// # Errors
///
/// If the filter is invalid, with the place of the mistake.
pub fn filter(field: &'static str, text: &str) -> Result<Option<Filter>, Refused> {
    filter_by(field, text, Filter::parse)
}

/// A filter for a log. The first with `asn` or `country` of a value reads a whole database.
pub(crate) fn filter_with(text: &str, names: &Names) -> Result<Option<Filter>, Refused> {
    filter_by("filter", text, |text| Filter::parse_with(text, names))
}

fn filter_by(
    field: &'static str,
    text: &str,
    parse: impl FnOnce(&str) -> Result<Filter, ParseError>,
) -> Result<Option<Filter>, Refused> {
    if text.len() > FILTER_BYTES_MAX {
        let error = format!("a filter may be at most {FILTER_BYTES_MAX} bytes long");
        return Err(Refused::invalid(field, error));
    }
    if text.trim().is_empty() {
        return Ok(None);
    }
    parse(text)
        .map(Some)
        .map_err(|error| Refused::filter(field, &error))
}

fn not_empty(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

impl Asked {
    /// Everything in a time.
    pub fn between(from: Option<String>, to: Option<String>) -> Self {
        Self {
            from,
            to,
            ..Self::default()
        }
    }

    /// What is sought: its filter parsed, its times read.
    ///
    /// # Errors
    ///
    /// If a parameter is invalid.
    pub fn sought(&self, names: &Arc<Names>) -> Result<Sought, Refused> {
        let text = self.filter.as_deref().unwrap_or("").to_owned();
        let time = |field, text: &Option<String>| {
            not_empty(text)
                .map(|text| times::parse(field, text))
                .transpose()
        };
        let flow = self.flow.as_deref().map(|id| {
            let wrong =
                || Refused::invalid("flow", "this is not a flow: follow a link from the search");
            flow_id::parse(id).ok_or_else(wrong)
        });
        let granularity = not_empty(&self.granularity);
        if let Some(unknown) = granularity.filter(|one| !GRANULARITIES.contains(one)) {
            let known = GRANULARITIES.join(", ");
            let error = format!("'{unknown}' is not a granularity: write one of {known}");
            return Err(Refused::invalid("granularity", error));
        }
        let sought = Sought {
            filter: filter_with(&text, names)?,
            text: text.trim().to_owned(),
            from_ns: time("from", &self.from)?,
            to_ns: time("to", &self.to)?,
            flow: flow.transpose()?,
            kept: Kept {
                class: not_empty(&self.class).map(str::to_owned),
                granularity: granularity.map(str::to_owned),
                reason: not_empty(&self.reason).map(str::to_owned),
                process: None,
            },
            names: Arc::clone(names),
        };
        if let (Some(from), Some(to)) = (sought.from_ns, sought.to_ns)
            && from >= to
        {
            let error = match from == to {
                true => "the end of the time is its start, so it is empty: write a later end",
                false => "the end of the time is before its start",
            };
            return Err(Refused::invalid("to", error));
        }
        Ok(sought)
    }
}

impl Sought {
    /// How a log is searched for it.
    pub fn find(&self) -> Find<'_> {
        Find {
            from_ns: self.from_ns,
            to_ns: self.to_ns,
            filter: self.filter.as_ref(),
        }
    }

    /// A filter that all packets match that are sought, where its tests are known to see what a packet's flow is: the
    /// filter, and the addresses of the only flow. Where they may not, packets are looked at.
    pub(super) fn narrowed(&self) -> Option<Filter> {
        let of_flow = self.flow.filter(|flow| flow.family != AddressFamily::Mac);
        let of_flow = of_flow.map(|flow| {
            let [low, high] = [flow.low, flow.high].map(|end| address(flow.family, end.address));
            format!("host {low} and host {high}")
        });
        let Some(of_flow) = of_flow else {
            return self.filter.clone();
        };
        let whole = match self.filter {
            // A test of tags would change what tests after it see.
            Some(_) => format!("{of_flow} and ({})", self.text),
            None => of_flow,
        };
        Filter::parse_with(&whole, &*self.names)
            .ok()
            .or_else(|| self.filter.clone())
    }

    /// What is sought, for the audit log: each part with a comma before it; nothing for a whole log.
    pub fn words(&self) -> String {
        let flow = self.flow.as_ref().map(flow_id::id);
        let quoted = |text: &String| format!("'{text}'");
        let parts = [
            ("flow", flow),
            ("from", self.from_ns.map(times::text)),
            ("to", self.to_ns.map(times::text)),
            ("class", self.kept.class.as_ref().map(quoted)),
            ("granularity", self.kept.granularity.clone()),
            ("reason", self.kept.reason.as_ref().map(quoted)),
            (
                "filter",
                (!self.text.is_empty()).then(|| quoted(&self.text)),
            ),
        ];
        let parts = parts.into_iter();
        let parts = parts.filter_map(|(name, value)| Some(format!(", {name} {}", value?)));
        parts.collect()
    }

    /// The command line that writes the same to a file, after whose name there may be options.
    pub fn command(&self, dir: &Path, file: &str) -> String {
        let mut words = vec![String::from("strata"), String::from("export")];
        words.push(quoted(&dir.display().to_string()));
        words.extend([String::from("-w"), file.to_owned()]);
        let mut option = |name: &str, value: &Option<String>| {
            if let Some(value) = value {
                // In one word, since a value may begin with a dash.
                words.push(format!("{name}={}", quoted(value)));
            }
        };
        option("--from", &self.from_ns.map(times::text));
        option("--to", &self.to_ns.map(times::text));
        option("--class", &self.kept.class);
        option("--granularity", &self.kept.granularity);
        option("--reason", &self.kept.reason);
        if !self.text.is_empty() {
            // Only names of networks need them.
            if Filter::parse(&self.text).is_err() {
                words.extend(options(&self.names));
            }
            words.push(quoted(&self.text));
        }
        words.join(" ")
    }
}

/// The options of a command line with which it reads the same names, for a shell.
pub fn options(names: &Names) -> impl Iterator<Item = String> {
    let files = names.files().iter().map(|file| ("--names", file.as_path()));
    let all = files.chain(names.databases().map(|file| ("--mmdb", file)));
    all.map(|(option, file)| format!("{option}={}", quoted(&file.display().to_string())))
}

/// A word of a command line as a shell takes it.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        for word in [
            "plain",
            "a b",
            "it's",
            "$(reboot)",
            "",
            "`x`",
            "a\nb",
            "--x",
        ] {
            let command = format!("printf %s {}", quoted(word));
            let said = std::process::Command::new("sh")
                .args(["-c", &command])
                .output();
            assert_eq!(said.unwrap().stdout, word.as_bytes(), "{command}");
        }
    }
}
