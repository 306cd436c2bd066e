//! How plans reach workers while packets come, and how long that takes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::plan::Plan;

/// Where plans are published: any thread publishes, workers follow.
#[derive(Debug)]
pub struct Steering {
    /// Counts publications.
    number: AtomicU64,
    published: Mutex<Published>,
    delays: Mutex<Delays>,
    /// These wake workers that wait for packets.
    wakers: Mutex<Wakers>,
}

/// What wakes workers.
#[derive(Default)]
struct Wakers(Vec<Box<dyn Fn() + Send + Sync>>);

impl fmt::Debug for Wakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wakers").field(&self.0.len()).finish()
    }
}

#[derive(Debug)]
struct Published {
    plan: Arc<Plan>,
    /// `None` for a plan that changes nothing.
    requested: Option<Instant>,
}

/// How long changes took: from the request, or the reading that led to it, until a worker switched
/// and treats its next packet accordingly.
#[derive(Clone, Debug, Default)]
pub struct Delays {
    /// The latest, at most [`Delays::KEPT`].
    latest: Vec<Duration>,
    /// Place of the oldest of these, once all are in use.
    next: usize,
    count: u64,
    sum: Duration,
}

impl Delays {
    /// How many delays are kept for quantiles.
    pub const KEPT: usize = 1024;

    fn add(&mut self, delay: Duration) {
        if self.latest.len() < Self::KEPT {
            self.latest.push(delay);
        } else {
            self.latest[self.next] = delay;
            self.next = (self.next + 1) % Self::KEPT;
        }
        self.count += 1;
        self.sum += delay;
    }

    /// How many changes were picked up, by all workers.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum of all.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The quantile `share`, from 0 to 1, of those kept; `None` without any.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let mut sorted = self.latest.clone();
        sorted.sort_unstable();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let place = (share * sorted.len() as f64) as usize;
        sorted
            .get(place.min(sorted.len().saturating_sub(1)))
            .copied()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Steering {
    /// Steering that starts with this plan.
    #[must_use]
    pub fn new(plan: Plan) -> Arc<Self> {
        Arc::new(Self {
            number: AtomicU64::new(1),
            published: Mutex::new(Published {
                plan: Arc::new(plan),
                requested: None,
            }),
            delays: Mutex::default(),
            wakers: Mutex::default(),
        })
    }

    /// Calls `wake` for each plan: it ends a worker's wait, so that one without packets switches
    /// too.
    pub fn wakes(&self, wake: impl Fn() + Send + Sync + 'static) {
        lock(&self.wakers).0.push(Box::new(wake));
    }

    /// Publishes a plan that was requested at `requested`. Workers that have not picked up the one
    /// before by then never will.
    pub fn publish(&self, plan: Plan, requested: Instant) {
        self.put(plan, Some(requested));
    }

    /// Publishes a plan that means the same as the one before, in another form.
    pub fn publish_same(&self, plan: Plan) {
        self.put(plan, None);
    }

    fn put(&self, plan: Plan, requested: Option<Instant>) {
        let mut published = lock(&self.published);
        *published = Published {
            plan: Arc::new(plan),
            requested,
        };
        // Under the lock, so that a thread that sees the number finds its plan.
        self.number.fetch_add(1, Ordering::Release);
        drop(published);
        for wake in &lock(&self.wakers).0 {
            wake();
        }
    }

    /// The plan that was published last.
    #[must_use]
    pub fn plan(&self) -> Arc<Plan> {
        Arc::clone(&lock(&self.published).plan)
    }

    /// How long changes took.
    #[must_use]
    pub fn delays(&self) -> Delays {
        lock(&self.delays).clone()
    }
}

/// A worker's view of [`Steering`].
#[derive(Debug)]
pub struct Follower {
    steering: Arc<Steering>,
    number: u64,
    /// When the current plan was requested, until the worker has switched to it.
    requested: Option<Instant>,
}

impl Follower {
    /// A view that has not yet seen a plan.
    #[must_use]
    pub fn new(steering: Arc<Steering>) -> Self {
        Self {
            steering,
            number: 0,
            requested: None,
        }
    }

    /// The plan, if it is not the current one; if it is, this costs a relaxed load.
    #[inline]
    pub fn events(&mut self) -> Option<Arc<Plan>> {
        if self.steering.number.load(Ordering::Acquire) == self.number {
            return None;
        }
        let published = lock(&self.steering.published);
        let first = self.number == 0;
        self.number = self.steering.number.load(Ordering::Acquire);
        // The plan there at the start is no change.
        self.requested = published.requested.filter(|_| !first);
        Some(Arc::clone(&published.plan))
    }

    /// Records that the worker has switched to the current plan.
    pub fn switched(&mut self) {
        if let Some(requested) = self.requested.take() {
            lock(&self.steering.delays).add(requested.elapsed());
        }
    }
}
