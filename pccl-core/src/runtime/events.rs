//! Hands events to whoever has subscribed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::calls::lock;
use crate::event::Event;

/// Events of one communicator, from the subscription on, in order.
///
/// The stream holds at most 1,024 unread events; what comes while it is full is dropped and
/// counted, so that a slow reader never holds up the run.
#[derive(Debug)]
pub struct EventStream {
    events: Receiver<Event>,
    dropped: Arc<AtomicU64>,
}

impl EventStream {
    /// The next event, if one waits.
    pub fn try_next(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Waits for the next event, at most `limit`. `None` after that time, or once the communicator
    /// is gone and all of its events are read.
    pub fn next_within(&self, limit: Duration) -> Option<Event> {
        self.events.recv_timeout(limit).ok()
    }

    /// How many events were dropped because nobody read them in time.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The subscribers of one communicator.
#[derive(Default)]
pub(crate) struct Subscribers {
    sinks: Mutex<Vec<Sink>>,
}

struct Sink {
    events: SyncSender<Event>,
    dropped: Arc<AtomicU64>,
}

impl Subscribers {
    /// A new stream.
    pub(crate) fn subscribe(&self) -> EventStream {
        let (sender, events) = sync_channel(UNREAD);
        let dropped = Arc::new(AtomicU64::new(0));
        lock(&self.sinks).push(Sink {
            events: sender,
            dropped: dropped.clone(),
        });
        EventStream { events, dropped }
    }

    /// Hands an event to all; forgets who has gone.
    pub(crate) fn publish(&self, event: &Event) {
        lock(&self.sinks).retain(|sink| match sink.events.try_send(event.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                sink.dropped.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        });
    }
}

/// Unread events of one stream: a loss in the largest group, with all that follows it.
const UNREAD: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_loses_and_counts_and_a_gone_one_is_forgotten() {
        let subscribers = Subscribers::default();
        let stream = subscribers.subscribe();
        for gap_ms in 0..UNREAD as u64 + 3 {
            subscribers.publish(&Event::Stalled { gap_ms });
        }
        assert_eq!(stream.dropped(), 3);
        assert_eq!(stream.try_next(), Some(Event::Stalled { gap_ms: 0 }));
        drop(stream);
        subscribers.publish(&Event::Stalled { gap_ms: 0 });
        assert!(lock(&subscribers.sinks).is_empty());
    }
}
