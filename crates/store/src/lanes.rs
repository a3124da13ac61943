//! A bounded number of things at a time: transactions on PostgreSQL, requests to endpoints. A call that finds no lane free waits in a
//! line in which tenants take turns, and the callers of a tenant do too: first come, first served would make everybody wait behind
//! the thousand slow calls of one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use waybill_kernel::{Error, Result};

use crate::store::overloaded;
pub use crate::turns::Owner;
use crate::turns::{Owned, Turns};

pub struct Lanes(Mutex<Line>);

struct Line {
    /// Nobody waits while there is one.
    free: usize,
    waiting: Turns<Waiting>,
    /// One more is refused.
    waiting_max: usize,
    /// Of the next who waits.
    number: u64,
}

struct Waiting {
    number: u64,
    owner: Owner,
    ready: oneshot::Sender<()>,
}

impl Owned for Waiting {
    fn owner(&self) -> Owner {
        self.owner
    }
}

/// Goes to the next when dropped.
pub struct Lane(Arc<Lanes>);

impl Drop for Lane {
    fn drop(&mut self) {
        self.0.pass_on();
    }
}

impl Lanes {
    pub fn new(count: usize, waiting_max: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Line { free: count, waiting: Turns::new(), waiting_max, number: 0 })))
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is free, now or when this owner's turn has come.
    pub async fn enter(self: &Arc<Self>, owner: Owner) -> Result<Lane> {
        let (called, mut place) = {
            let mut line = self.line();
            if let Some(left) = line.free.checked_sub(1) {
                line.free = left;
                return Ok(Lane(Arc::clone(self)));
            }
            if line.waiting.len() >= line.waiting_max {
                return Err(overloaded());
            }
            let (ready, called) = oneshot::channel();
            let number = line.number;
            line.number += 1;
            line.waiting.push(Waiting { number, owner, ready });
            (called, Place { lanes: self, owner, number, is_left: false })
        };
        called.await.map_err(Error::internal)?;
        place.is_left = true;
        Ok(Lane(Arc::clone(self)))
    }

    /// Whoever has gone away meanwhile passes the lane on in its turn.
    fn pass_on(&self) {
        let mut line = self.line();
        match line.waiting.pop() {
            Some(next) => drop(next.ready.send(())),
            None => line.free += 1,
        }
    }
}

/// Of somebody who waits, and may go away at any moment: also just when a lane was given to it.
struct Place<'a> {
    lanes: &'a Lanes,
    owner: Owner,
    number: u64,
    /// For the lane.
    is_left: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        let withdrawn = self.lanes.line().waiting.withdraw(self.owner, |waiting| waiting.number == self.number);
        if withdrawn.is_none() {
            self.lanes.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use waybill_kernel::Code;

    use super::*;

    fn owner(tenant: i64) -> Owner {
        Owner { tenant, line: 1 }
    }

    /// Lanes that are free, and who waits.
    fn counts(lanes: &Lanes) -> (usize, usize) {
        let line = lanes.line();
        (line.free, line.waiting.len())
    }

    fn poll(entering: Pin<&mut impl Future<Output = Result<Lane>>>) -> Option<Lane> {
        match entering.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(lane) => Some(lane.unwrap()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn tenants_get_lanes_by_turns() {
        let lanes = Lanes::new(1, 3);
        let held = poll(pin!(lanes.enter(owner(9)))).expect("there is one");
        let (mut first, mut second) = (pin!(lanes.enter(owner(1))), pin!(lanes.enter(owner(1))));
        let mut other = pin!(lanes.enter(owner(2)));
        assert!(poll(first.as_mut()).is_none() && poll(second.as_mut()).is_none() && poll(other.as_mut()).is_none());
        let refused = pin!(lanes.enter(owner(4))).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(refused, Poll::Ready(Err(error)) if error.code() == Code::Overloaded));
        drop(held);
        let held = poll(first.as_mut()).expect("the first who came");
        assert!(poll(second.as_mut()).is_none() && poll(other.as_mut()).is_none());
        drop(held);
        assert!(poll(second.as_mut()).is_none(), "it is the other tenant's turn");
        drop(poll(other.as_mut()).expect("its turn"));
        drop(poll(second.as_mut()).expect("and then the rest"));
        assert_eq!(counts(&lanes), (1, 0));
    }

    #[test]
    fn who_goes_away_leaves_its_place_and_a_lane_that_it_was_given() {
        let lanes = Lanes::new(1, 3);
        let held = poll(pin!(lanes.enter(owner(9)))).expect("there is one");
        let mut last = pin!(lanes.enter(owner(3)));
        {
            let (mut gone, mut given) = (pin!(lanes.enter(owner(1))), pin!(lanes.enter(owner(2))));
            assert!(poll(gone.as_mut()).is_none() && poll(given.as_mut()).is_none() && poll(last.as_mut()).is_none());
            // Given to the first, which goes away before it looks; then to the second, likewise.
            drop(held);
        }
        drop(poll(last.as_mut()).expect("passed on"));
        assert_eq!(counts(&lanes), (1, 0));
    }
}
