//! The model that classifies.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use strata_classify::Model;

/// The model used without `-m`; made by `make model`.
const BUILT_IN: &[u8] = include_bytes!("../../../../../models/default.json");

/// The longest window of a model, 10 days, in ms.
pub const WINDOW_MS_MAX: u64 = 864_000_000;

/// A model and the bytes it was read from.
pub struct Loaded {
    /// What classifies.
    pub model: Model,
    /// The file, byte for byte.
    pub json: Vec<u8>,
}

/// The model of a file, or the built-in one.
pub fn load(path: Option<&Path>) -> Result<Loaded> {
    let (json, named) = match path {
        Some(path) => {
            let json = fs::read(path)
                .with_context(|| format!("{}: cannot read the model", path.display()))?;
            (json, path.display().to_string())
        }
        None => (BUILT_IN.to_vec(), String::from("built-in model")),
    };
    let model = Model::from_json(&json).context(named)?;
    Ok(Loaded { model, json })
}
