//! What workers count.

use strata_sketch::Pressure;
use strata_wire::{Ledger, summed};

use crate::detail::DetailCounts;
use crate::kept::ClassKept;
use crate::shadow::ShadowCounts;

summed! {
    /// What a worker has counted, or all of them together: as it leaves the data path, and until it is shown.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct WorkerCounts {
        /// Where packets ended.
        pub ledger: Ledger,
        /// How much of each class was kept.
        pub kept: Vec<ClassKept>,
        /// What became of payload under the budget of detail; `None` if there never was one.
        pub detail: Option<DetailCounts>,
        /// What a shadow model would have kept differently; `None` without one.
        pub shadow: Option<ShadowCounts>,
        /// Pressure on the tables of flows; `None` before it was first reported.
        pub pressure: Option<Pressure>,
    }
}
