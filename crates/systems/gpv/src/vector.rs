//! A grouped packet vector, and its description.

use crate::key::Key;
use crate::tuple::Tuple;

/// Why a vector left the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Reason {
    /// Its buffer was full; the flow stays in the cache.
    Full = 0,
    /// Another flow took the slot.
    Collision = 1,
    /// A packet came too late, or too long before the start, for its time to fit.
    Time = 2,
    /// The reader of the vectors requested it, or the cache was emptied.
    Flushed = 3,
    /// Not known: the paper's format does not say.
    Unknown = 7,
}

impl Reason {
    /// The one of this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Full,
            1 => Self::Collision,
            2 => Self::Time,
            3 => Self::Flushed,
            7 => Self::Unknown,
            _ => return None,
        })
    }
}

/// A flow key and the features of its next packets, in their order, as the cache lets go of it.
///
/// The tuples lie in two pieces: what was in the narrow buffer, then what was in the wide one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Vector<'a, T> {
    /// Whose packets.
    pub key: Key,
    /// What the tuples' times count from, ns since 1970: not after the first packet.
    pub start_ns: u64,
    /// The tuples.
    pub pieces: [&'a [T]; 2],
    /// Why it left the cache.
    pub reason: Reason,
    /// Whether a size or length was larger than its field and is the field's largest value.
    pub saturated: bool,
    /// The cache's slot in which it was.
    pub slot: u32,
}

impl<'a, T: Tuple> Vector<'a, T> {
    /// The tuples in their order.
    #[inline]
    pub fn tuples(&self) -> impl Iterator<Item = &'a T> + use<'a, T> {
        let [narrow, wide] = self.pieces;
        narrow.iter().chain(wide)
    }

    /// When each packet arrived, ns since 1970.
    #[inline]
    pub fn times_ns(&self) -> impl Iterator<Item = u64> + use<'a, T> {
        let start_ns = self.start_ns;
        self.tuples()
            .map(move |tuple| start_ns.wrapping_add(tuple.delta_ns()))
    }
}

/// Packets of one flow in their order, put together by the cache (a [`Vector`]) or
/// the agent (a [`Record`](crate::agent::Record)).
pub trait Grouped<T> {
    /// Whose packets.
    fn key(&self) -> &Key;

    /// How many there are.
    fn count(&self) -> usize;

    /// Calls `run` for each run of tuples whose times count from the same start (ns since 1970).
    fn for_each_run(&self, run: impl FnMut(u64, &[T]));
}

impl<T: Tuple> Grouped<T> for Vector<'_, T> {
    #[inline(always)]
    fn key(&self) -> &Key {
        &self.key
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.pieces[0].len().wrapping_add(self.pieces[1].len())
    }

    #[inline(always)]
    fn for_each_run(&self, mut run: impl FnMut(u64, &[T])) {
        run(self.start_ns, self.pieces[0]);
        if !self.pieces[1].is_empty() {
            run(self.start_ns, self.pieces[1]);
        }
    }
}

/// Who takes vectors from a cache or an agent. Closures do.
pub trait VectorSink<T> {
    /// Takes a vector.
    fn take(&mut self, vector: &Vector<'_, T>);
}

impl<T, F: FnMut(&Vector<'_, T>)> VectorSink<T> for F {
    #[inline]
    fn take(&mut self, vector: &Vector<'_, T>) {
        self(vector);
    }
}
