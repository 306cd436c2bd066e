//! Counters that are kept side by side, by several workers: a counter is named where it is declared, and the code that
//! adds those of workers up, or lists them, learns of it from there.

/// What several workers have each of their own, and can be added up.
pub trait Summed {
    /// Adds what another worker has.
    fn merge(&mut self, more: &Self);
}

/// What a worker has several of, each of its own kind.
pub trait Kinds: Summed + Clone {
    /// Whether it counts the same.
    fn is_alike(&self, other: &Self) -> bool;
}

/// Counts of a file or a peer may be anything: a sum that is too large is the largest number.
impl Summed for u64 {
    fn merge(&mut self, more: &Self) {
        *self = self.saturating_add(*more);
    }
}

impl<T: Summed, const N: usize> Summed for [T; N] {
    fn merge(&mut self, more: &Self) {
        self.iter_mut()
            .zip(more)
            .for_each(|(all, more)| all.merge(more));
    }
}

/// Of those that have it.
impl<T: Summed + Clone> Summed for Option<T> {
    fn merge(&mut self, more: &Self) {
        match (self.as_mut(), more) {
            (Some(all), Some(more)) => all.merge(more),
            (None, more) => self.clone_from(more),
            (Some(_), None) => {}
        }
    }
}

/// Each kind with its own; new ones come last.
impl<T: Kinds> Summed for Vec<T> {
    fn merge(&mut self, more: &Self) {
        for more in more {
            match self.iter_mut().find(|known| known.is_alike(more)) {
                Some(known) => known.merge(more),
                None => self.push(more.clone()),
            }
        }
    }
}

/// Keeps the largest, of what is no sum.
pub fn largest<T: PartialOrd + Clone>(all: &mut T, more: &T) {
    if *more > *all {
        all.clone_from(more);
    }
}

/// Declares a struct whose fields are added up by [`Summed`], each by its own type, or by a function that is named
/// after it: `packets: u64,` or `windows: u64 = largest,`.
#[macro_export]
macro_rules! summed {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$help:meta])* $field_vis:vis $field:ident: $kind:ty $(= $how:path)?,)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$help])* $field_vis $field: $kind,)*
        }

        impl $crate::Summed for $name {
            fn merge(&mut self, more: &Self) {
                $($crate::summed!(@merge self.$field, more.$field $(, $how)?);)*
            }
        }
    };
    (@merge $all:expr, $more:expr) => {
        $crate::Summed::merge(&mut $all, &$more)
    };
    (@merge $all:expr, $more:expr, $how:path) => {
        $how(&mut $all, &$more)
    };
}

/// Declares a struct of `Counters` that are added up, and listed by their names.
#[macro_export]
macro_rules! counters {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$help:meta])* $field_vis:vis $field:ident,)*
        }
    ) => {
        $crate::summed! {
            $(#[$meta])*
            $vis struct $name {
                $($(#[$help])* $field_vis $field: $crate::Counters,)*
            }
        }

        impl $name {
            /// Each by its name, as it is shown.
            #[must_use]
            $vis fn by_name(&self) -> impl ExactSizeIterator<Item = (&'static str, $crate::Counters)> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counters;

    counters! {
        /// Of two kinds.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        struct Two {
            first,
            second,
        }
    }

    summed! {
        #[derive(Clone, PartialEq, Debug, Default)]
        struct All {
            two: Option<Two>,
            peak: Option<u64> = largest,
            places: [u64; 2],
        }
    }

    #[test]
    fn each_field_is_added_up_as_it_says() {
        let counts = |packets| Counters { packets, bytes: 9 };
        let of = |packets| Two {
            first: counts(packets),
            second: Counters::default(),
        };
        let mut all = All::default();
        all.merge(&All {
            two: Some(of(1)),
            peak: Some(3),
            places: [u64::MAX, 1],
        });
        all.merge(&All {
            two: None,
            peak: None,
            places: [1, 1],
        });
        let two = Some(of(2));
        all.merge(&All {
            two,
            ..All::default()
        });
        let named: Vec<_> = all.two.unwrap().by_name().collect();
        let first = Counters {
            packets: 3,
            bytes: 18,
        };
        assert_eq!(named, [("first", first), ("second", Counters::default())]);
        assert_eq!((all.peak, all.places), (Some(3), [u64::MAX, 2]));
    }
}
