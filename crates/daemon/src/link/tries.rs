//! How often the link was tried in vain, and when it was last up. Pure: whoever asks says what time it is.

use std::time::Duration;

use tokio::time::Instant;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    count: u32,
    last_up: Option<Instant>,
}

impl Tries {
    /// A connection that came up at `since` has ended. Only one that lived for a while is a reason to begin with short pauses
    /// again: a broker that greets everybody and breaks at once is otherwise asked without end.
    pub fn was_up(&mut self, since: Instant, now: Instant, steady: Duration) {
        self.last_up = Some(now);
        if now.saturating_duration_since(since) >= steady {
            self.count = 0;
        }
    }

    /// Whether the link was up so short a time ago that the broker may still keep its connection.
    pub fn was_up_within(&self, time: Duration, now: Instant) -> bool {
        self.last_up.is_some_and(|at| now.saturating_duration_since(at) < time)
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// Counts one more, and says how many there are.
    pub fn another(&mut self) -> u32 {
        self.count = self.count.saturating_add(1);
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::link::ending::{Ending, Next, next};
    use crate::outbox::rules::Backoff;
    use waybill_kernel::Code;
    use waybill_mesh_protocol::CloseCode;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_link_that_breaks_at_once_backs_off_and_one_that_lived_begins_anew() {
        let (steady, start) = (10 * SECOND, Instant::now());
        let backoff = Backoff { least: SECOND, most: 60 * SECOND };
        let mut tries = Tries::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            tries.was_up(start, start + SECOND, steady);
            pauses.push(backoff.ceiling(tries.another()).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        tries.was_up(start, start + steady, steady);
        assert_eq!((tries.count(), tries.another()), (0, 1));
    }

    #[test]
    fn its_own_connection_is_waited_for_longer_than_any_lease_and_a_strangers_never() {
        let settings = config::Link::default();
        let (own_for, start) = (Duration::from_millis(settings.own_connection_ms), Instant::now());
        let already = Ending::Closed(Some(CloseCode::AlreadyConnected.code()));
        let mut tries = Tries::default();
        let judged = |tries: &Tries, now| next(&already, tries.was_up_within(own_for, now));
        assert_eq!(judged(&tries, start), Next::Exit(Code::MemberAlreadyConnected), "it was never up");
        tries.was_up(start, start + SECOND, 10 * SECOND);
        // A killed broker's connections are kept for up to 90 s, and there must be time for a try after that.
        for seconds in [1, 61, 95, 150, 180] {
            assert_eq!(judged(&tries, start + seconds * SECOND), Next::Again, "{seconds} s");
        }
        assert_eq!(judged(&tries, start + SECOND + own_for), Next::Exit(Code::MemberAlreadyConnected));
    }
}
