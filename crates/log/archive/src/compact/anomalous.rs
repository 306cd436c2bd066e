//! Which classes of a recording are anomalous, according to its model.

use std::collections::HashSet;

use strata_classify::Model;
use strata_store::{Damage, Log, Recording};

/// The anomalous classes of a recording, by name.
#[derive(Debug)]
pub(crate) enum Anomalous {
    /// According to the model.
    Known(HashSet<String>),
    /// The model cannot be read. Any class may be anomalous, so that evidence is kept.
    Unknown(Damage),
}

impl Anomalous {
    pub(crate) fn of(log: &Log, recording: &Recording) -> Self {
        let read = log.model_json(recording).map_err(|error| error.to_string());
        let model = read.and_then(|json| Model::classes_of(&json).map_err(|e| e.to_string()));
        match model {
            Ok(classes) => {
                let anomalous = classes.into_iter().filter(|class| class.anomalous);
                Self::Known(anomalous.map(|class| class.name).collect())
            }
            Err(problem) => Self::Unknown(Damage {
                file: log.disk().display(&recording.model_file),
                offset: 0,
                problem: format!(
                    "the recording's model cannot be read ({problem}), so none of its packets \
                     count as ordinary: restore the file"
                ),
                missing: None,
            }),
        }
    }

    /// Whether a class may be anomalous.
    pub(crate) fn holds(&self, class: &str) -> bool {
        match self {
            Self::Known(classes) => classes.contains(class),
            Self::Unknown(_) => true,
        }
    }

    /// What is wrong with the model.
    pub(crate) fn into_problem(self) -> Option<Damage> {
        match self {
            Self::Known(_) => None,
            Self::Unknown(problem) => Some(problem),
        }
    }
}
