//! What stands in the way of writing, if anything: set by the threads that find out, asked by callers and probes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use waybill_kernel::{Code, Error};

use crate::metrics::INTEGRITY_FAILURES;

#[derive(Default)]
pub(super) struct Condition(Mutex<State>);

#[derive(Default)]
struct State {
    /// The file is damaged or has lost commits: nothing is written to it again by this process.
    damaged: Option<String>,
    /// A commit failed; the file is being opened again and verified.
    reopening: bool,
    /// The disk is full: only what gives room or ends work is run.
    full: bool,
    /// The check of the file that start-up began is still under way.
    checking: bool,
}

impl Condition {
    /// Why a write is not even tried; None when it is.
    pub(super) fn refusal(&self, relieves: bool) -> Option<Error> {
        let state = self.lock();
        if let Some(why) = state.stopped() {
            return Some(Error::new(Code::StoreUnavailable, why));
        }
        (state.full && !relieves).then(|| Error::new(Code::StorageFull, Code::StorageFull.entry().title))
    }

    /// Why the program is not ready, in words for its operator.
    pub(super) fn trouble(&self) -> Option<String> {
        let state = self.lock();
        let full = || "the disk is full: only operations that end work or give room are run".to_owned();
        state.stopped().or_else(|| state.full.then(full))
    }

    pub(super) fn is_full(&self) -> bool {
        self.lock().full
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.lock().damaged.is_some()
    }

    pub(super) fn is_checking(&self) -> bool {
        self.lock().checking
    }

    pub(super) fn set_reopening(&self, reopening: bool) {
        self.lock().reopening = reopening;
    }

    pub(super) fn set_full(&self, full: bool) {
        self.lock().full = full;
    }

    pub(super) fn set_checking(&self, checking: bool) {
        self.lock().checking = checking;
    }

    /// For good: only another start, on another file, gets out of it. Callers read `why`: no path belongs in it.
    pub(super) fn set_damaged(&self, why: impl Into<String>) {
        metrics::counter!(INTEGRITY_FAILURES).increment(1);
        self.lock().damaged = Some(why.into());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn stopped(&self) -> Option<String> {
        const REOPENING: &str = "Writing has stopped after an error of the disk until the file has been verified.";
        self.damaged.clone().or_else(|| self.reopening.then(|| REOPENING.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stops_more_is_said_first() {
        let condition = Condition::default();
        let codes = || [true, false].map(|relieves| condition.refusal(relieves).map(|error| error.code()));
        assert_eq!((codes(), condition.trouble()), ([None, None], None));

        condition.set_checking(true);
        assert_eq!((codes(), condition.trouble()), ([None, None], None), "a check under way stops nobody");

        condition.set_full(true);
        assert_eq!(codes(), [None, Some(Code::StorageFull)]);
        condition.set_reopening(true);
        assert_eq!(codes(), [Some(Code::StoreUnavailable); 2]);
        condition.set_damaged("page 7 is torn");
        condition.set_reopening(false);
        assert_eq!(condition.trouble().as_deref(), Some("page 7 is torn"));
    }
}
