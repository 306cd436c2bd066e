//! Which of a recording's models decides: the one that it was started with, or its shadow.

use std::time::Instant;

use super::inner::Inner;
use super::{ControlError, Controller, WHY_BYTES_MAX, bounded};
use crate::request::InForce;
use crate::status::ModelsStatus;

impl Controller {
    /// With a shadow model of this name, of the same classes, which may be promoted.
    #[must_use]
    pub fn with_shadow(mut self, shadow: Option<String>) -> Self {
        self.shadow = shadow;
        self
    }

    /// Has the shadow model decide from now on, or the recording's own model again. Changes nothing if
    /// it decides already.
    ///
    /// # Errors
    ///
    /// If there is no shadow model, or the log has no copy of it.
    pub fn put_in_force(&self, model: InForce, who: &str, why: &str) -> Result<(), ControlError> {
        let requested = Instant::now();
        bounded("why", why, WHY_BYTES_MAX)?;
        let Some(shadow) = &self.shadow else {
            return Err(ControlError::NoShadow);
        };
        let mut inner = self.lock();
        if !self.can_rotate && !inner.ways.only_exports {
            return Err(ControlError::ShadowNotStored);
        }
        let mut next = inner.asked.clone();
        let (promoted, what) = match model {
            InForce::Shadow => {
                let what = format!("the shadow model {shadow} is promoted");
                (Some(shadow.clone()), what)
            }
            InForce::Own => {
                let what = format!("model {} is in force again", self.model.name);
                (None, what)
            }
        };
        if next.promoted == promoted {
            return Ok(());
        }
        next.promoted = promoted;
        // What was found is about the other model.
        next.is_drifted = false;
        self.go_over(&mut inner, next, requested, (who, what, why))
    }

    /// The names of the model in force and of the other one.
    pub(super) fn models(&self, inner: &Inner) -> Option<ModelsStatus> {
        let (own, shadow) = (self.model.name.clone(), self.shadow.clone()?);
        let promoted = inner.asked.promoted.is_some();
        let (in_force, in_shadow) = if promoted {
            (shadow, own)
        } else {
            (own, shadow)
        };
        Some(ModelsStatus {
            in_force,
            in_shadow,
            promoted,
        })
    }
}
