//! Who is attached to a recording: gets grouped packet vectors of what it records, as far as it
//! takes them.
//!
//! Each subscriber has a queue of its own, which workers never wait for: a datagram that does not
//! fit is lost, for this subscriber alone, and counted here and, by the numbers of the vectors, at
//! its reader.

use std::pin::Pin;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::status::VectorStatus;

/// Maximum number of subscribers.
pub const SUBSCRIBERS_MAX: usize = 8;
/// Maximum bytes of a datagram.
pub const DATAGRAM_BYTES: usize = 16 << 10;
/// Maximum number of datagrams that wait for a subscriber: 4 MiB.
const WAITING_MAX: usize = 256;

/// What a recording says at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VectorsEnd {
    /// By the number of its cache, how many vectors were sent, or lost on the way.
    pub caches: Vec<(u32, u64)>,
}

/// Those who are attached to a recording.
#[derive(Debug, Default)]
pub struct Subscribers {
    /// Changes with the list.
    version: AtomicU64,
    inner: Mutex<Inner>,
    all_gone: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    list: Vec<Arc<Subscriber>>,
    is_closed: bool,
    /// Of those who are gone.
    sent: u64,
    lost: u64,
}

/// What a worker does with a datagram for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It is lost, and counted.
    Lose,
    /// The worker waits: for recordings of files, which can wait.
    Wait,
}

/// Why no other client can attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAttached {
    /// There are enough.
    #[error("{SUBSCRIBERS_MAX} clients are attached to this recording already, the maximum")]
    TooMany,
    /// The recording is over.
    #[error("the recording is ending")]
    Ends,
}

impl Subscribers {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a subscriber to vectors with these columns (`docs/formats/gpv.md`), who is gone once
    /// the result is dropped.
    ///
    /// # Errors
    ///
    /// If there are too many, or the recording is ending.
    pub fn attach(self: &Arc<Self>, columns: u16) -> Result<Attached, NotAttached> {
        self.add(columns, None)
    }

    /// The same for threads of this process, which do not count as somebody attached.
    ///
    /// # Errors
    ///
    /// If the recording ends.
    pub fn attach_inside(
        self: &Arc<Self>,
        columns: u16,
        when_full: WhenFull,
    ) -> Result<Attached, NotAttached> {
        self.add(columns, Some(when_full))
    }

    fn add(
        self: &Arc<Self>,
        columns: u16,
        inside: Option<WhenFull>,
    ) -> Result<Attached, NotAttached> {
        let is_inside = inside.is_some();
        let mut inner = self.lock();
        if inner.is_closed {
            return Err(NotAttached::Ends);
        }
        if !is_inside && inner.outside().count() >= SUBSCRIBERS_MAX {
            return Err(NotAttached::TooMany);
        }
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let subscriber = Arc::new(Subscriber {
            is_inside,
            waits: inside == Some(WhenFull::Wait),
            columns: AtomicU16::new(columns),
            sender: Mutex::new(Some(sender)),
            ended: Mutex::default(),
            sent: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        inner.list.push(Arc::clone(&subscriber));
        self.version.fetch_add(1, Ordering::Release);
        Ok(Attached {
            subscribers: Arc::clone(self),
            subscriber,
            receiver,
            is_over: false,
        })
    }

    /// Sends these columns too from the next batch on.
    ///
    /// # Errors
    ///
    /// If the recording ends.
    pub(crate) fn widen(&self, subscriber: &Subscriber, columns: u16) -> Result<(), NotAttached> {
        if self.lock().is_closed {
            return Err(NotAttached::Ends);
        }
        let before = subscriber.columns.fetch_or(columns, Ordering::AcqRel);
        if before | columns != before {
            self.version.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Changes when somebody came or went, or wants other columns.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Those who are attached now.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Subscriber>> {
        self.lock().list.clone()
    }

    /// How many are attached, and what they got.
    #[must_use]
    pub fn status(&self) -> VectorStatus {
        let inner = self.lock();
        let sum = |of: fn(&Subscriber) -> &AtomicU64| -> u64 {
            let counts = inner.outside().map(|to| of(to).load(Ordering::Relaxed));
            counts.sum()
        };
        VectorStatus {
            attached: inner.outside().count(),
            datagrams_sent: inner.sent + sum(|to| &to.sent),
            datagrams_lost: inner.lost + sum(|to| &to.lost),
            installed: 0,
        }
    }

    /// The recording is over: no client attaches any more, and those who are attached get what
    /// waits for them.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        for subscriber in &inner.list {
            subscriber.close();
        }
    }

    /// Waits until no client is attached.
    pub async fn all_gone(&self) {
        while !self.lock().list.is_empty() {
            self.all_gone.notified().await;
        }
    }

    fn detach(&self, gone: &Arc<Subscriber>) {
        let mut inner = self.lock();
        inner.list.retain(|other| !Arc::ptr_eq(other, gone));
        if !gone.is_inside {
            inner.sent += gone.sent.load(Ordering::Relaxed);
            inner.lost += gone.lost.load(Ordering::Relaxed);
        }
        self.version.fetch_add(1, Ordering::Release);
        if inner.list.is_empty() {
            self.all_gone.notify_one();
        }
    }
}

impl Inner {
    /// Those who are attached from outside.
    fn outside(&self) -> impl Iterator<Item = &Arc<Subscriber>> {
        self.list.iter().filter(|subscriber| !subscriber.is_inside)
    }
}

/// One of them, as workers see it.
#[derive(Debug)]
pub struct Subscriber {
    /// Whether it is a thread of this process: of the installed queries, or of reports.
    is_inside: bool,
    /// Whether workers wait until there is room.
    waits: bool,
    columns: AtomicU16,
    /// `None` once the recording is over.
    sender: Mutex<Option<Sender<Bytes>>>,
    ended: Mutex<VectorsEnd>,
    sent: AtomicU64,
    lost: AtomicU64,
}

impl Subscriber {
    fn sender(&self) -> MutexGuard<'_, Option<Sender<Bytes>>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which columns it wants.
    #[must_use]
    pub fn columns(&self) -> u16 {
        self.columns.load(Ordering::Acquire)
    }

    /// Sends nothing more: its reader gets what waits, and then the end.
    pub fn close(&self) {
        self.sender().take();
    }

    /// How much was sent in all, as far as workers have ended.
    #[must_use]
    pub fn end(&self) -> VectorsEnd {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.clone()
    }

    /// Sends a datagram if there is room for it, or once there is. Not in asynchronous code.
    pub fn send(&self, datagram: &[u8]) {
        let frame = frame_of(datagram);
        let sender = self.sender();
        let sent = sender.as_ref().map(|to| match self.waits {
            true => to.blocking_send(frame).map_err(Into::into),
            false => to.try_send(frame),
        });
        drop(sender);
        let counter = match sent {
            Some(Ok(())) => &self.sent,
            // Gone, which is not a loss, or full.
            Some(Err(mpsc::error::TrySendError::Closed(_))) | None => return,
            Some(Err(mpsc::error::TrySendError::Full(_))) => &self.lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// No more vectors come from this cache, after `vectors`.
    pub fn ended(&self, cache: u32, vectors: u64) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.caches.push((cache, vectors));
    }
}

/// Bytes of a frame's length.
pub(crate) const FRAME_HEAD: usize = 4;

fn frame_of(content: &[u8]) -> Bytes {
    let len: u32 = strata_wire::exact(content.len());
    let mut frame = Vec::with_capacity(FRAME_HEAD + content.len());
    frame.extend_from_slice(&len.to_le_bytes());
    frame.extend_from_slice(content);
    frame.into()
}

/// A subscriber, as the body of its answer: frames, each its length in 4 bytes, little-endian, and
/// a datagram. After the last, [`VectorsEnd`] as JSON.
#[derive(Debug)]
pub struct Attached {
    subscribers: Arc<Subscribers>,
    subscriber: Arc<Subscriber>,
    receiver: Receiver<Bytes>,
    is_over: bool,
}

impl Attached {
    /// What workers see of it.
    #[must_use]
    pub fn subscriber(&self) -> Arc<Subscriber> {
        Arc::clone(&self.subscriber)
    }

    /// Waits for the next datagram; `None` at the end. Not in asynchronous code.
    pub fn blocking_next(&mut self) -> Option<Bytes> {
        let frame = self.receiver.blocking_recv();
        frame.map(|frame| frame.slice(FRAME_HEAD..))
    }

    /// The next datagram, if one is there already.
    pub fn next_now(&mut self) -> Option<Bytes> {
        let frame = self.receiver.try_recv().ok();
        frame.map(|frame| frame.slice(FRAME_HEAD..))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.subscribers.detach(&self.subscriber);
    }
}

impl Body for Attached {
    type Data = Bytes;
    type Error = serde_json::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        self.receiver.poll_recv(context).map(|frame| {
            let frame = match frame {
                Some(frame) => Ok(frame),
                None => {
                    self.is_over = true;
                    serde_json::to_vec(&self.subscriber.end()).map(|end| frame_of(&end))
                }
            };
            Some(frame.map(Frame::data))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_read_loses_alone_and_it_is_counted() {
        let all = Arc::new(Subscribers::default());
        let (mut reads, sleeps) = (all.attach(1).unwrap(), all.attach(3).unwrap());
        let list = all.list();
        let mut read = 0;
        for _ in 0..2 * WAITING_MAX {
            list.iter().for_each(|to| to.send(b"datagram"));
            while reads.receiver.try_recv().is_ok() {
                read += 1;
            }
        }
        assert_eq!(read, 2 * WAITING_MAX);
        let lost = WAITING_MAX as u64;
        let expected = VectorStatus {
            attached: 2,
            datagrams_sent: 3 * lost,
            datagrams_lost: lost,
            installed: 0,
        };
        assert_eq!(all.status(), expected);
        let before = all.version();
        drop(sleeps);
        assert_ne!(all.version(), before);
        let attached = 1;
        assert_eq!(
            all.status(),
            VectorStatus {
                attached,
                ..expected
            }
        );
    }

    #[test]
    fn who_waits_for_room_loses_nothing() {
        let all = Arc::new(Subscribers::default());
        let mut reads = all.attach_inside(1, WhenFull::Wait).unwrap();
        let to = reads.subscriber();
        let count = 3 * WAITING_MAX;
        let sends = std::thread::spawn(move || {
            for n in 0..count {
                to.send(&n.to_le_bytes());
            }
            to.close();
        });
        for n in 0..count {
            assert_eq!(reads.blocking_next().unwrap()[..], n.to_le_bytes());
        }
        assert_eq!(reads.blocking_next(), None);
        sends.join().unwrap();
    }

    #[test]
    fn clients_are_bounded_and_end_with_the_recording() {
        let all = Arc::new(Subscribers::default());
        let mut attached: Vec<Attached> = (0..SUBSCRIBERS_MAX)
            .map(|_| all.attach(1).unwrap())
            .collect();
        assert_eq!(all.attach(1).unwrap_err(), NotAttached::TooMany);
        attached.pop();
        assert!(all.attach(1).is_ok());
        all.list()[0].send(b"last");
        all.list()[0].ended(7, 3);
        all.close();
        assert_eq!(all.attach(1).unwrap_err(), NotAttached::Ends);
        // What waited comes, then the end.
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut frames = Vec::new();
        while let Poll::Ready(Some(frame)) = Pin::new(&mut attached[0]).poll_frame(&mut context) {
            frames.push(frame.unwrap().into_data().unwrap());
        }
        assert_eq!(frames[0][..], *b"\x04\0\0\0last");
        let end: VectorsEnd = serde_json::from_slice(&frames[1][FRAME_HEAD..]).unwrap();
        assert_eq!((frames.len(), end.caches), (2, vec![(7, 3)]));
    }
}
