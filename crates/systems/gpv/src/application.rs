//! Applications (section 6.2 of the paper): each measures what it likes from the same vectors, and
//! comes and goes without the others.

mod bursts;
mod classifier;
mod hosts;
mod profiler;

pub use bursts::{Burst, BurstCounters, BurstOptions, BurstSource, Bursts, Congestion};
pub use classifier::{
    Classifier, FLOW_FEATURES, FlowFeatures, FlowRecord, Forest, ForestError, flow_features,
};
pub use profiler::{Profile, Profiler, ProfilerCounters, ProfilerOptions};

use crate::marple::Query;
use crate::tuple::Tuple;
use crate::vector::Grouped;

/// Something that is computed from grouped packets. A query is one.
///
/// ```
/// use strata_gpv::application::Application;
/// use strata_gpv::{Grouped, Tuple};
///
/// /// Bytes of the largest burst: packets less than 1 ms after the one before.
/// #[derive(Default)]
/// struct LargestBurst {
///     bytes: u64,
/// }
///
/// impl<T: Tuple> Application<T> for LargestBurst {
///     fn take<G: Grouped<T>>(&mut self, _switch: u32, group: &G) {
///         let (mut last_ns, mut bytes) = (0, 0);
///         group.for_each_run(|start_ns, tuples| {
///             for tuple in tuples {
///                 let at_ns = start_ns + tuple.delta_ns();
///                 bytes = if at_ns - last_ns < 1_000_000 { bytes } else { 0 };
///                 bytes += u64::from(tuple.get(strata_gpv::Column::Size));
///                 last_ns = at_ns;
///                 self.bytes = self.bytes.max(bytes);
///             }
///         });
///     }
/// }
/// ```
pub trait Application<T: Tuple> {
    /// Takes a vector of the cache, or a record of the agent, of a switch with this number. Those
    /// of a flow come in the order of its packets.
    fn take<G: Grouped<T>>(&mut self, switch: u32, group: &G);
}

impl<T: Tuple> Application<T> for Query {
    fn take<G: Grouped<T>>(&mut self, switch: u32, group: &G) {
        Self::take(self, switch, group);
    }
}
