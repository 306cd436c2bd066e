//! The subscribers to immediate reports of a telemetry collector.
//!
//! The collector never waits for subscribers: each has a bounded queue, and what does not fit is
//! lost for this subscriber alone, who gets the number lost.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Frame};
use tokio::sync::Notify;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Maximum number of subscribers.
pub const SUBSCRIBERS_MAX: usize = 8;
/// Maximum number of events that wait for a subscriber.
const WAITING_MAX: usize = 1024;
/// One whose queue has been full for this long makes room for another one.
const STUCK: Duration = Duration::from_secs(60);
/// The interval of signs of life of a silent stream, by which a client that is gone is found.
const ALIVE: Duration = Duration::from_secs(15);
/// In a queue, no event: events were lost.
const WAKES: Bytes = Bytes::new();

/// Why no other client can subscribe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSubscribed {
    /// The maximum number of clients has subscribed.
    #[error(
        "{SUBSCRIBERS_MAX} clients already receive the immediate reports of this collector, the maximum"
    )]
    TooMany,
    /// The collector is shutting down.
    #[error("the collector is shutting down")]
    Ends,
}

/// The subscribers to immediate reports.
#[derive(Debug, Default)]
pub struct Pushes {
    /// Whether there is anyone, for the collector to look at before it does anything else.
    is_watched: AtomicBool,
    pushed: AtomicU64,
    lost: AtomicU64,
    inner: Mutex<Inner>,
    all_gone: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    list: Vec<Arc<Subscriber>>,
    is_closed: bool,
}

#[derive(Debug)]
struct Subscriber {
    /// `None` once the collector is shutting down.
    sender: Mutex<Option<Sender<Bytes>>>,
    /// Events that were lost since its last notice of losses.
    lost: AtomicU64,
    /// Since when no event has found room.
    full_since: Mutex<Option<Instant>>,
}

impl Pushes {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a subscriber.
    #[inline]
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// The numbers of events that were put into queues, and of events that were lost, for all subscribers.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let [pushed, lost] = [&self.pushed, &self.lost].map(|n| n.load(Ordering::Relaxed));
        (pushed, lost)
    }

    /// Puts an event, JSON in one line, into the queue of each subscriber; a full queue loses it.
    pub fn push(&self, event: &str) {
        let frame = Bytes::from(format!("event: report\ndata: {event}\n\n"));
        for subscriber in &self.lock().list {
            let sender = subscriber.sender();
            match sender.as_ref().map(|to| to.try_send(frame.clone())) {
                Some(Ok(())) => {
                    subscriber.full_since().take();
                    self.pushed.fetch_add(1, Ordering::Relaxed)
                }
                Some(Err(TrySendError::Full(_))) => {
                    subscriber.full_since().get_or_insert_with(Instant::now);
                    subscriber.lost.fetch_add(1, Ordering::Relaxed);
                    self.lost.fetch_add(1, Ordering::Relaxed)
                }
                Some(Err(TrySendError::Closed(_))) | None => continue,
            };
        }
    }

    /// Counts `count` events that all subscribers have lost, because there were too many to process.
    pub fn lose(&self, count: u64) {
        for subscriber in &self.lock().list {
            subscriber.lost.fetch_add(count, Ordering::Relaxed);
            self.lost.fetch_add(count, Ordering::Relaxed);
            // Wakes one that waits for the next event. If its queue is full, it does not wait.
            if let Some(to) = subscriber.sender().as_ref() {
                let _ = to.try_send(WAKES);
            }
        }
    }

    /// Adds a subscriber, who is gone once the result is dropped. If there are too many, one that has
    /// not read for a minute while events came has to go: it gets what waits for it.
    ///
    /// # Errors
    ///
    /// If there are too many, or the collector is shutting down.
    pub fn subscribe(self: &Arc<Self>) -> Result<Subscription, NotSubscribed> {
        self.subscribe_at(Instant::now())
    }

    fn subscribe_at(self: &Arc<Self>, now: Instant) -> Result<Subscription, NotSubscribed> {
        let mut inner = self.lock();
        if inner.is_closed {
            return Err(NotSubscribed::Ends);
        }
        if inner.list.len() >= SUBSCRIBERS_MAX
            && let Some(stuck) = inner.list.iter().position(|one| one.is_stuck(now))
        {
            inner.list.remove(stuck).sender().take();
        }
        if inner.list.len() >= SUBSCRIBERS_MAX {
            return Err(NotSubscribed::TooMany);
        }
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let subscriber = Arc::new(Subscriber {
            sender: Mutex::new(Some(sender)),
            lost: AtomicU64::new(0),
            full_since: Mutex::new(None),
        });
        inner.list.push(Arc::clone(&subscriber));
        self.is_watched.store(true, Ordering::Relaxed);
        let mut alive = interval(ALIVE);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Subscription {
            pushes: Arc::clone(self),
            subscriber,
            receiver,
            alive,
        })
    }

    /// The collector ends: no client subscribes any more, and subscribers get what waits for them.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        for subscriber in &inner.list {
            subscriber.sender().take();
        }
    }

    /// Waits until no client is subscribed.
    pub async fn all_gone(&self) {
        while !self.lock().list.is_empty() {
            self.all_gone.notified().await;
        }
    }
}

impl Subscriber {
    fn sender(&self) -> MutexGuard<'_, Option<Sender<Bytes>>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full_since(&self) -> MutexGuard<'_, Option<Instant>> {
        let since = self.full_since.lock();
        since.unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stuck(&self, now: Instant) -> bool {
        let is_full = self.sender().as_ref().is_some_and(|to| to.capacity() == 0);
        let since = *self.full_since();
        is_full && since.is_some_and(|since| now.saturating_duration_since(since) >= STUCK)
    }
}

/// A subscriber, as the body of its answer: server-sent events (HTML Living Standard, §9.2). An
/// event `report` is a report; `lost` says how many were lost before the next one. The first thing
/// sent is a comment, from which on no report is missed.
#[derive(Debug)]
pub struct Subscription {
    pushes: Arc<Pushes>,
    subscriber: Arc<Subscriber>,
    receiver: Receiver<Bytes>,
    /// Its first tick is at once.
    alive: Interval,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut inner = self.pushes.lock();
        inner
            .list
            .retain(|other| !Arc::ptr_eq(other, &self.subscriber));
        if inner.list.is_empty() {
            self.pushes.is_watched.store(false, Ordering::Relaxed);
            self.pushes.all_gone.notify_one();
        }
    }
}

impl Body for Subscription {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        loop {
            let lost = self.subscriber.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                let text = format!("event: lost\ndata: {{\"lost\": {lost}}}\n\n");
                return Poll::Ready(Some(Ok(Frame::data(text.into()))));
            }
            match self.receiver.poll_recv(context) {
                Poll::Ready(Some(event)) if event.is_empty() => {}
                Poll::Ready(next) => return Poll::Ready(next.map(|event| Ok(Frame::data(event)))),
                Poll::Pending => break,
            }
        }
        match self.alive.poll_tick(context) {
            Poll::Ready(_) => Poll::Ready(Some(Ok(Frame::data(": alive\n\n".into())))),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    async fn next(of: &mut Subscription) -> Option<String> {
        let frame = of.frame().await?.unwrap();
        let bytes = frame.into_data().unwrap();
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_slow_subscriber_loses_events_alone_and_learns_how_many() {
        let pushes = Arc::new(Pushes::default());
        assert!(!pushes.is_watched());
        pushes.push("0");
        let mut slow = pushes.subscribe().unwrap();
        let mut quick = pushes.subscribe().unwrap();
        assert!(pushes.is_watched());
        for begins in [&mut slow, &mut quick] {
            assert_eq!(next(begins).await.unwrap(), ": alive\n\n");
        }
        for n in 0..WAITING_MAX + 5 {
            pushes.push(&n.to_string());
            let expected = format!("event: report\ndata: {n}\n\n");
            assert_eq!(next(&mut quick).await.unwrap(), expected);
        }
        pushes.lose(2);
        assert_eq!(
            next(&mut quick).await.unwrap(),
            "event: lost\ndata: {\"lost\": 2}\n\n"
        );
        assert_eq!(
            next(&mut slow).await.unwrap(),
            "event: lost\ndata: {\"lost\": 7}\n\n"
        );
        assert_eq!(next(&mut slow).await.unwrap(), "event: report\ndata: 0\n\n");
        assert_eq!(pushes.counts(), (2 * WAITING_MAX as u64 + 5, 9));
        drop(quick);
        pushes.close();
        for _ in 1..WAITING_MAX {
            assert!(next(&mut slow).await.is_some());
        }
        assert_eq!(next(&mut slow).await, None);
        assert_eq!(pushes.subscribe().unwrap_err(), NotSubscribed::Ends);
        drop(slow);
        pushes.all_gone().await;
        assert!(!pushes.is_watched());
    }

    #[tokio::test]
    async fn one_that_waits_learns_at_once_that_events_were_lost() {
        let pushes = Arc::new(Pushes::default());
        let mut one = pushes.subscribe().unwrap();
        assert_eq!(next(&mut one).await.unwrap(), ": alive\n\n");
        for lost in [3, 4] {
            let waits = tokio::spawn(async move {
                let event = next(&mut one).await;
                (one, event)
            });
            // It runs until it waits.
            tokio::task::yield_now().await;
            pushes.lose(lost);
            let learns = tokio::time::timeout(ALIVE / 2, waits).await;
            let (again, event) = learns.unwrap().unwrap();
            let expected = format!("event: lost\ndata: {{\"lost\": {lost}}}\n\n");
            assert_eq!(event, Some(expected));
            one = again;
        }
        pushes.push("5");
        assert_eq!(next(&mut one).await.unwrap(), "event: report\ndata: 5\n\n");
    }

    #[tokio::test]
    async fn subscribers_are_a_bounded_number() {
        let pushes = Arc::new(Pushes::default());
        let all: Vec<_> = (0..SUBSCRIBERS_MAX)
            .map(|_| pushes.subscribe().unwrap())
            .collect();
        assert_eq!(pushes.subscribe().unwrap_err(), NotSubscribed::TooMany);
        drop(all);
        assert!(pushes.subscribe().is_ok());
    }

    #[tokio::test]
    async fn one_that_does_not_read_makes_room_for_another() {
        let pushes = Arc::new(Pushes::default());
        let subscribe = || pushes.subscribe().unwrap();
        let mut all: Vec<_> = (0..SUBSCRIBERS_MAX).map(|_| subscribe()).collect();
        let now = Instant::now();
        let later = |seconds| now + Duration::from_secs(seconds);
        for n in 0..=WAITING_MAX {
            pushes.push(&n.to_string());
        }
        // All but the first read.
        let last = format!("event: report\ndata: {}\n\n", WAITING_MAX - 1);
        for reader in &mut all[1..] {
            while next(reader).await.unwrap() != last {}
        }
        let refused = pushes.subscribe_at(later(59)).unwrap_err();
        assert_eq!(refused, NotSubscribed::TooMany);
        let another = pushes.subscribe_at(later(120)).unwrap();
        assert_eq!(
            pushes.subscribe_at(later(120)).unwrap_err(),
            NotSubscribed::TooMany
        );
        // It gets what had waited, and then its stream ends.
        let mut left = 0;
        while next(&mut all[0]).await.is_some() {
            left += 1;
        }
        assert!(left >= WAITING_MAX, "{left}");
        drop((all, another));
        assert!(!pushes.is_watched());
    }
}
