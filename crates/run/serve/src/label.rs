//! Labels of flows, for training: added to a file of the server's by `strata labels add`.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use serde::Deserialize;
use strata_archive::parts::community_id_of;
use strata_log_views::answers::refused::Refused;
use strata_log_views::answers::times;
use strata_log_views::search::flow_id;
use strata_log_views::search::{Asked, quoted};
use strata_log_views::work::child::{self, NoAnswer};
use strata_wire::{AddressFamily, FlowKey};

use crate::app::App;

/// Maximum bytes of a label.
const LABEL_BYTES_MAX: usize = 64;
/// How long labelling may take: of a log without indexes, all is read.
const AFTER: Duration = Duration::from_secs(300);
/// Maximum bytes of what the program that labels writes.
const OUTPUT_BYTES_MAX: u64 = 4 << 10;

/// A label for a flow (`LabelRequest`).
#[derive(Debug, Deserialize)]
pub(crate) struct Labelling {
    pub(crate) flow: String,
    label: String,
    from: Option<String>,
    to: Option<String>,
}

impl Labelling {
    fn key(&self) -> Result<FlowKey, Refused> {
        let key = flow_id::parse(&self.flow);
        let key = key.ok_or_else(|| Refused::invalid("flow", "this is not a flow"))?;
        match key.family {
            AddressFamily::Mac => {
                let error = "flows are labelled by their IP addresses, and this one has none";
                Err(Refused::invalid("flow", error))
            }
            AddressFamily::Ipv4 | AddressFamily::Ipv6 => Ok(key),
        }
    }

    fn label(&self) -> Result<&str, Refused> {
        let label = self.label.trim();
        // Zeek writes these where there is no label.
        let is_none = matches!(label, "" | "-" | "(empty)");
        if is_none || label.len() > LABEL_BYTES_MAX || label.chars().any(char::is_control) {
            let error = format!(
                "a label is a word such as scan or benign, of at most {LABEL_BYTES_MAX} bytes"
            );
            return Err(Refused::invalid("label", error));
        }
        Ok(label)
    }

    /// The words of `strata labels add` after the log. Each value is in one word, since it may begin
    /// with a dash.
    fn arguments(&self, file: &str) -> Result<Vec<String>, Refused> {
        let (key, label) = (self.key()?, self.label()?);
        let sought = Asked::between(self.from.clone(), self.to.clone()).sought(&Arc::default())?;
        let mut words = vec![format!("--label={label}"), format!("--output={file}")];
        words.push(format!("--community-id={}", community_id_of(&key)));
        let times = [("from", sought.from_ns), ("to", sought.to_ns)];
        let times = times
            .into_iter()
            .filter_map(|(name, at)| Some(format!("--{name}={}", times::text(at?))));
        words.extend(times);
        words.extend(flow_id::filter(&key));
        Ok(words)
    }
}

/// A flow that was labelled: what was done, in words, and the equal command line.
pub(crate) struct Labelled {
    pub(crate) what: String,
    pub(crate) command: String,
}

/// Labels a flow in the file that training reads.
pub(crate) async fn label(app: &App, log: &str, asked: &Labelling) -> Result<Labelled, Refused> {
    let dir = app.logs.dir(log)?.display().to_string();
    let file = app.saved.labels()?.display().to_string();
    let words = asked.arguments(&file)?;
    let shown: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let command = format!("strata labels add {} {}", quoted(&dir), shown.join(" "));
    let key = app.spec.key.as_ref();
    let key = key.map(|key| format!("--key={}", key.display()));
    let mut arguments: Vec<String> = ["labels", "add"].map(str::to_owned).into();
    arguments.extend(key);
    // Options first: the rest is a filter.
    let (filter, options) = words.split_last().expect("a filter is one of them");
    arguments.extend_from_slice(options);
    arguments.extend([String::from("--"), dir, filter.clone()]);
    let _turn = app.work.turn().await?;
    let _one = app.saved.labelling.lock().await;
    let program = &app.spec.program;
    let answered = child::run(program, arguments, (Vec::new(), OUTPUT_BYTES_MAX), AFTER).await;
    let answered = answered.map_err(|why| match why {
        NoAnswer::Start(error) => {
            let error = format!("{}: {error}", program.display());
            Refused::new(StatusCode::NOT_IMPLEMENTED, "missing_tool", error)
        }
        NoAnswer::Late(after) => {
            let after = after.as_secs();
            let error =
                format!("not labelled after {after} s, and the file is unchanged: {command}");
            Refused::new(StatusCode::GATEWAY_TIMEOUT, "timeout", error)
        }
    })?;
    let said = answered.said.trim().lines().last().unwrap_or("labelled");
    let what = said.strip_prefix("strata: ").unwrap_or(said);
    if !answered.succeeded {
        return Err(Refused::invalid("flow", what));
    }
    Ok(Labelled {
        what: what.to_owned(),
        command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labelling(flow: &str, label: &str) -> Labelling {
        Labelling {
            flow: flow.to_owned(),
            label: label.to_owned(),
            from: None,
            to: None,
        }
    }

    #[test]
    fn a_flow_is_named_to_the_program_that_labels_and_nothing_else_is() {
        let flow = "6_10.0.0.1_443_10.0.0.2_51234";
        let words = labelling(flow, " --scan ")
            .arguments("labels.json")
            .unwrap();
        assert_eq!(words[0], "--label=--scan");
        assert!(words[2].starts_with("--community-id=1:"), "{words:?}");
        let filter = words.last().unwrap();
        assert!(filter.starts_with("tcp and host 10.0.0.1"), "{filter}");
        for (flow, label) in [
            (flow, ""),
            (flow, "-"),
            (flow, "a\nb"),
            (flow, &*"x".repeat(65)),
            ("--output=/etc/passwd", "scan"),
            ("e_00:1b:21:00:00:01_0_00:1b:21:00:00:02_0", "scan"),
        ] {
            assert!(labelling(flow, label).arguments("labels.json").is_err());
        }
    }
}
