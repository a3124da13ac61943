//! A bounded queue in which callers take turns, and whose reader can ask to be left asleep until enough has come.
//!
//! With an ordinary channel the writer would be woken by every arrival while it lingers, and on a small machine those wakes
//! cost more than the work they announce.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use waybill_kernel::{Code, Error, Result};

use crate::turns::{Owned, Turns};

pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
    max: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken<T> {
    Item(T),
    /// Nothing has come in time, or somebody has nudged.
    Nothing,
    /// Nothing will come any more.
    Closed,
}

struct State<T> {
    items: Turns<T>,
    /// A sleeping reader is woken when this many are here.
    wanted: usize,
    /// Readers that sleep: a word is a system call, also where nobody hears it.
    sleeping: usize,
    nudged: bool,
    closed: bool,
}

impl<T: Owned> Queue<T> {
    pub(super) fn new(max: usize) -> Self {
        let state = State { items: Turns::new(), wanted: 1, sleeping: 0, nudged: false, closed: false };
        Self { state: Mutex::new(state), arrived: Condvar::new(), max }
    }

    /// Never blocks: a full queue is the caller's 503.
    pub(super) fn push(&self, item: T) -> Result<()> {
        let mut state = self.lock();
        if state.closed {
            return Err(crate::store::shutting_down());
        }
        if state.items.len() >= self.max {
            return Err(Error::new(Code::Overloaded, Code::Overloaded.entry().title));
        }
        state.items.push(item);
        let is_awaited = state.sleeping > 0 && state.items.len() >= state.wanted;
        drop(state);
        if is_awaited {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// The next item. Without patience it is waited for; a nudge ends the waiting as if patience had.
    pub(super) fn take(&self, patience: Option<Duration>) -> Taken<T> {
        let idle = |state: &mut State<T>| state.items.is_empty() && !state.closed && !state.nudged;
        let mut state = self.sleep(self.lock(), patience, idle);
        state.nudged = false;
        match state.items.pop() {
            Some(item) => Taken::Item(item),
            None if state.closed => Taken::Closed,
            None => Taken::Nothing,
        }
    }

    /// Makes the reader look up although nothing has come.
    pub(super) fn nudge(&self) {
        self.lock().nudged = true;
        self.arrived.notify_one();
    }

    pub(super) fn is_open_and_empty(&self) -> bool {
        let state = self.lock();
        state.items.is_empty() && !state.closed
    }

    /// Moves up to `most` of what is here; never blocks.
    pub(super) fn drain_into(&self, items: &mut Vec<T>, most: usize) -> usize {
        let mut state = self.lock();
        let before = items.len();
        items.extend(std::iter::from_fn(|| state.items.pop()).take(most));
        items.len() - before
    }

    /// What was taken and not used. Whoever has taken it may be a caller that writes in the reader's stead: the reader, woken by
    /// its arrival, may have found nothing and sleep again.
    pub(super) fn put_back(&self, items: impl DoubleEndedIterator<Item = T>) {
        self.lock().items.put_back(items);
        self.arrived.notify_one();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().items.is_empty()
    }

    /// Sleeps until `count` are here, the queue is closed, or the patience ends.
    pub(super) fn wait_for(&self, count: usize, patience: Duration) {
        let mut state = self.lock();
        state.wanted = count.max(1);
        let too_few = |state: &mut State<T>| state.items.len() < state.wanted && !state.closed;
        self.sleep(state, Some(patience), too_few).wanted = 1;
    }

    /// For as long as the condition holds, or the patience.
    fn sleep<'q>(
        &'q self,
        mut state: MutexGuard<'q, State<T>>,
        patience: Option<Duration>,
        condition: impl Fn(&mut State<T>) -> bool,
    ) -> MutexGuard<'q, State<T>> {
        if !condition(&mut state) {
            return state;
        }
        state.sleeping += 1;
        let mut state = match patience {
            None => self.arrived.wait_while(state, condition).unwrap_or_else(PoisonError::into_inner),
            Some(patience) => {
                self.arrived.wait_timeout_while(state, patience, condition).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.sleeping -= 1;
        state
    }

    /// What is in it is still given out; nothing more is taken.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::turns::Owner;

    impl Owned for i32 {
        fn owner(&self) -> Owner {
            Owner { tenant: 0, line: 0 }
        }
    }

    #[test]
    fn a_full_queue_refuses_and_a_closed_one_gives_out_its_rest() {
        let queue = Queue::new(2);
        queue.push(1).unwrap();
        queue.push(2).unwrap();
        assert_eq!(queue.push(3).unwrap_err().code(), Code::Overloaded);
        queue.close();
        assert_eq!(queue.push(4).unwrap_err().code(), Code::ShuttingDown);
        let rest = [queue.take(None), queue.take(None), queue.take(None)];
        assert_eq!(rest, [Taken::Item(1), Taken::Item(2), Taken::Closed]);
    }

    #[test]
    fn a_reader_with_other_work_waits_only_so_long() {
        let queue = Queue::new(2);
        assert_eq!(queue.take(Some(Duration::from_millis(1))), Taken::Nothing);
        queue.nudge();
        assert_eq!(queue.take(None), Taken::Nothing, "a nudge ends the longest wait");
        assert!(queue.is_open_and_empty());
        queue.push(1).unwrap();
        assert!(!queue.is_open_and_empty());
        queue.close();
        assert_eq!(queue.take(Some(Duration::from_secs(60))), Taken::Item(1));
        assert_eq!(queue.take(Some(Duration::from_secs(60))), Taken::Closed);
        assert!(!queue.is_open_and_empty());
    }

    #[test]
    fn what_is_put_back_wakes_a_reader_that_sleeps() {
        const NEVER: Duration = Duration::from_secs(60);
        let (queue, began) = (Arc::new(Queue::new(2)), Instant::now());
        let reader = Arc::clone(&queue);
        let thread = std::thread::spawn(move || reader.take(Some(NEVER)));
        // Long enough for it to sleep.
        std::thread::sleep(Duration::from_millis(100));
        queue.put_back([7].into_iter());
        assert_eq!(thread.join().unwrap(), Taken::Item(7));
        assert!(began.elapsed() < NEVER / 2, "it was found when the patience had ended");
    }

    #[test]
    fn a_reader_that_waits_for_two_gets_two_and_afterwards_wakes_for_one() {
        let queue = Arc::new(Queue::new(8));
        let pusher = Arc::clone(&queue);
        let thread = std::thread::spawn(move || (1..=3).for_each(|item| pusher.push(item).unwrap()));
        queue.wait_for(2, Duration::from_secs(60));
        let mut items = Vec::new();
        assert!(queue.drain_into(&mut items, 8) >= 2);
        thread.join().unwrap();
        queue.drain_into(&mut items, 8);
        assert_eq!(items, [1, 2, 3]);
        queue.push(4).unwrap();
        assert_eq!(queue.take(None), Taken::Item(4));
    }

    #[test]
    fn whoever_sleeps_is_known_to_until_it_is_awake() {
        let queue = Arc::new(Queue::new(64));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let queue = Arc::clone(&queue);
                std::thread::spawn(move || {
                    let next = || match queue.take(None) {
                        Taken::Item(item) => Some(item),
                        Taken::Nothing | Taken::Closed => None,
                    };
                    std::iter::from_fn(next).count()
                })
            })
            .collect();
        while queue.lock().sleeping < 3 {
            std::thread::yield_now();
        }
        (0..64).for_each(|item| queue.push(item).unwrap());
        while !queue.is_open_and_empty() {
            std::thread::yield_now();
        }
        queue.close();
        let taken: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert_eq!((taken, queue.lock().sleeping), (64, 0));
        queue.wait_for(2, Duration::from_secs(60));
        assert_eq!(queue.lock().sleeping, 0, "nobody waits at a closed one");
    }
}
