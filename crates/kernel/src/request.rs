//! Which request a thread is working for, so that whatever the log is told on the way bears its id.
//!
//! A value of the thread and not a span of the tracing library: a span costs every request several allocations and locks,
//! and the id is all that was ever read of it.

use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The id by which the log knows a request, and by which its answer names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

impl RequestId {
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

thread_local! {
    static CURRENT: Cell<Option<RequestId>> = const { Cell::new(None) };
}

/// The request that this thread is working for.
pub fn current() -> Option<RequestId> {
    let mut id = CURRENT.take();
    let found = id.clone();
    CURRENT.set(id.take());
    found
}

/// Does the work for this request, or for none, on whichever threads it goes on after it has waited.
pub fn during<F: Future>(id: Option<RequestId>, work: F) -> During<F> {
    During { id, work }
}

pin_project_lite::pin_project! {
    /// A struct and not an `async fn`, which would have room for the work twice: as it was given and as it is polled.
    pub struct During<F> {
        id: Option<RequestId>,
        #[pin]
        work: F,
    }
}

impl<F: Future> Future for During<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        scope(this.id, || this.work.poll(context))
    }
}

/// Runs the work for this request, or for none.
pub fn scope<T>(id: &mut Option<RequestId>, work: impl FnOnce() -> T) -> T {
    let _scope = Scope::enter(id);
    work()
}

/// The thread's id and another one in each other's places, until it is dropped.
struct Scope<'a>(&'a mut Option<RequestId>);

impl<'a> Scope<'a> {
    fn enter(id: &'a mut Option<RequestId>) -> Self {
        *id = CURRENT.replace(id.take());
        Self(id)
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        *self.0 = CURRENT.replace(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Waker;

    use super::*;

    fn shown() -> Option<String> {
        current().map(|id| id.to_string())
    }

    #[test]
    fn work_bears_its_id_at_every_step_and_leaves_none_behind() {
        let mut seen = Vec::new();
        {
            let steps = async {
                for _ in 0..2 {
                    seen.push(shown());
                    let mut is_first = true;
                    poll_fn(|_| if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }).await;
                }
            };
            let mut work = pin!(during(Some(RequestId::new("a")), steps));
            let mut context = Context::from_waker(Waker::noop());
            while work.as_mut().poll(&mut context).is_pending() {
                assert_eq!(shown(), None);
            }
        }
        assert_eq!(seen, [Some("a".to_owned()), Some("a".to_owned())]);
        assert_eq!(shown(), None);
    }

    #[test]
    fn one_scope_within_another_gives_the_outer_one_back() {
        let (mut outer, mut inner) = (Some(RequestId::new("a")), Some(RequestId::new("b")));
        scope(&mut outer, || {
            scope(&mut inner, || assert_eq!(shown().as_deref(), Some("b")));
            assert_eq!(shown().as_deref(), Some("a"));
            scope(&mut None, || assert_eq!(shown(), None));
        });
        assert_eq!((shown(), outer, inner), (None, Some(RequestId::new("a")), Some(RequestId::new("b"))));
    }
}
