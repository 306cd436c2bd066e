//! The same work on several things, by several threads.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The results of `work` on each of `things`, in their order.
pub fn in_parallel<T: Sync, R: Send>(
    threads: NonZeroUsize,
    things: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let mut helpers = vec![(); threads.get()];
    by_helpers(&mut helpers, things, |()| |thing: &T| work(thing))
}

/// As [`in_parallel`]: a thread for each of `helpers`, which `begin` makes ready for it. One helper needs
/// no other thread.
pub(crate) fn by_helpers<'h, H: Send, T: Sync, R: Send, W: FnMut(&T) -> R>(
    helpers: &'h mut [H],
    things: &[T],
    begin: impl Fn(&'h mut H) -> W + Sync,
) -> Vec<R> {
    if let [helper] = helpers {
        return things.iter().map(begin(helper)).collect();
    }
    let next = AtomicUsize::new(0);
    let (begin, next) = (&begin, &next);
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let threads = helpers.iter_mut().map(|helper| {
            scope.spawn(move || {
                let mut work = begin(helper);
                let mut done = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(thing) = things.get(number) else {
                        return done;
                    };
                    done.push((number, work(thing)));
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined
            .flat_map(|done| done.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_whichever_thread_made_them() {
        let things: Vec<u64> = (0..1_000).collect();
        let squares: Vec<u64> = things.iter().map(|thing| thing * thing).collect();
        for threads in [1, 2, 7] {
            let threads = NonZeroUsize::new(threads).unwrap();
            assert_eq!(
                in_parallel(threads, &things, |thing| thing * thing),
                squares
            );
        }
    }

    #[test]
    fn a_panic_of_a_thread_is_that_of_the_caller() {
        let two = NonZeroUsize::new(2).unwrap();
        let work = |thing: &u32| assert_ne!(*thing, 3, "not three");
        let panicked = std::panic::catch_unwind(|| in_parallel(two, &[1, 2, 3, 4], work));
        assert!(panicked.is_err());
    }
}
