//! Which run times are due. Pure: the clock comes in, nothing goes out.
//!
//! A schedule's expected run times follow from its timing alone. Of those after the last one dealt with and not after now,
//! the latest is the one that is due; all before it were missed, and the policy says what becomes of them.

use serde::{Deserialize, Serialize};

use super::cron::Cron;

/// When a schedule is expected to run, in whole seconds since 1970.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a few hundred of them, made seldom")]
pub enum Timing {
    /// Every so many seconds, counted from the schedule's creation, which is no run itself.
    Every {
        seconds: i64,
        anchor_s: i64,
    },
    Cron(Cron),
}

/// What becomes of runs that were missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    /// Nothing.
    Skip,
    /// The latest of them runs, beside the one that is due.
    #[default]
    CatchUpOne,
    /// All of them run.
    CatchUpAll,
}

impl Timing {
    /// The first run after this time.
    pub fn next_after(&self, at_s: i64) -> Option<i64> {
        match self {
            Timing::Every { seconds, anchor_s } => {
                let passed = at_s.checked_sub(*anchor_s)?.div_euclid(*seconds);
                seconds.checked_mul(passed.checked_add(1)?.max(1))?.checked_add(*anchor_s)
            }
            Timing::Cron(cron) => cron.next_after(at_s),
        }
    }

    /// The last run not after this time.
    pub fn last_until(&self, at_s: i64) -> Option<i64> {
        match self {
            Timing::Every { seconds, anchor_s } => {
                let passed = at_s.checked_sub(*anchor_s)?.div_euclid(*seconds);
                (passed >= 1).then(|| anchor_s + passed * seconds)
            }
            Timing::Cron(cron) => cron.last_until(at_s),
        }
    }
}

/// The runs to fire now, in order, at most `max` of them: the rest is due again in the next round.
///
/// `handled_until_s` is the last run dealt with; a schedule that never ran has its creation there.
pub fn due(timing: &Timing, misfire: Misfire, handled_until_s: i64, now_s: i64, max: usize) -> Vec<i64> {
    let open = |run_s: &i64| *run_s > handled_until_s;
    let Some(last) = timing.last_until(now_s).filter(open) else { return Vec::new() };
    match misfire {
        Misfire::Skip => vec![last],
        Misfire::CatchUpOne => {
            let missed = timing.last_until(last - 1).filter(open);
            missed.into_iter().chain([last]).take(max).collect()
        }
        Misfire::CatchUpAll => {
            let from = timing.next_after(handled_until_s);
            let runs = std::iter::successors(from, |run_s| timing.next_after(*run_s));
            runs.take_while(|run_s| *run_s <= now_s).take(max).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Misfire; 3] = [Misfire::Skip, Misfire::CatchUpOne, Misfire::CatchUpAll];

    fn every(seconds: i64) -> Timing {
        Timing::Every { seconds, anchor_s: 1_000 }
    }

    fn cron(expression: &str, zone: &str) -> Timing {
        Timing::Cron(Cron::new(expression, zone).unwrap())
    }

    #[test]
    fn a_schedule_is_not_due_at_its_creation_nor_a_second_early() {
        for misfire in ALL {
            for at in [0, 999, 1_000, 1_001, 1_059] {
                assert_eq!(due(&every(60), misfire, 1_000, at, 10), [0; 0], "{misfire:?} at {at}");
            }
            assert_eq!(due(&every(60), misfire, 1_000, 1_060, 10), [1_060], "{misfire:?}");
            assert_eq!(due(&every(60), misfire, 1_000, 1_119, 10), [1_060], "{misfire:?}");
        }
    }

    #[test]
    fn what_was_dealt_with_is_never_due_again() {
        for misfire in ALL {
            for at in [1_060, 1_119] {
                assert_eq!(due(&every(60), misfire, 1_060, at, 10), [0; 0], "{misfire:?} at {at}");
            }
            assert_eq!(due(&every(60), misfire, 2_000, 1_119, 10), [0; 0], "{misfire:?}: a clock set back");
        }
    }

    #[test]
    fn the_policies_differ_only_in_what_was_missed() {
        // Expected 1060, 1120, 1180, 1240; the last is due and the others were missed.
        for (misfire, expected) in [
            (Misfire::Skip, vec![1_240]),
            (Misfire::CatchUpOne, vec![1_180, 1_240]),
            (Misfire::CatchUpAll, vec![1_060, 1_120, 1_180, 1_240]),
        ] {
            assert_eq!(due(&every(60), misfire, 1_000, 1_250, 10), expected, "{misfire:?}");
        }
        for misfire in ALL {
            assert_eq!(due(&every(60), misfire, 1_180, 1_250, 10), [1_240], "{misfire:?}: nothing was missed");
        }
        assert_eq!(due(&every(60), Misfire::CatchUpOne, 1_120, 1_250, 10), [1_180, 1_240]);
    }

    #[test]
    fn a_long_absence_costs_no_time_and_is_caught_up_with_in_rounds() {
        let century_s = 1_000 + 100 * 365 * 86_400;
        assert_eq!(due(&every(1), Misfire::Skip, 1_000, century_s, 10), [century_s]);
        assert_eq!(due(&every(1), Misfire::CatchUpOne, 1_000, century_s, 10), [century_s - 1, century_s]);
        let first = due(&every(1), Misfire::CatchUpAll, 1_000, century_s, 3);
        assert_eq!(first, [1_001, 1_002, 1_003]);
        assert_eq!(due(&every(1), Misfire::CatchUpAll, 1_003, century_s, 2), [1_004, 1_005]);
    }

    #[test]
    fn absurd_numbers_are_no_run_and_no_panic() {
        let huge = Timing::Every { seconds: i64::MAX, anchor_s: 1_000 };
        assert_eq!(huge.next_after(1_000), None);
        assert_eq!(every(60).next_after(i64::MIN), None);
        assert_eq!(huge.last_until(i64::MAX - 1), None);
        assert_eq!(every(60).next_after(-5_000), Some(1_060), "before its creation");
    }

    #[test]
    fn cron_and_policies_meet() {
        // Daily at 03:00 UTC; day 1 is 86_400.
        let daily = cron("0 3 * * *", "UTC");
        let (day, hour) = (86_400, 3_600);
        let at = |days: i64| days * day + 3 * hour;
        for (misfire, expected) in [
            (Misfire::Skip, vec![at(13)]),
            (Misfire::CatchUpOne, vec![at(12), at(13)]),
            (Misfire::CatchUpAll, vec![at(10), at(11), at(12), at(13)]),
        ] {
            assert_eq!(due(&daily, misfire, at(9), at(13) + 5, 10), expected, "{misfire:?}");
        }
    }

    #[test]
    fn forwards_and_backwards_agree_all_through_a_year_with_its_two_changes() {
        for (expression, zone) in [
            ("30 2 * * *", "Europe/Berlin"),
            ("30 1 * * *", "America/New_York"),
            ("*/20 * * * *", "Europe/Berlin"),
            ("15 */2 * * 1-5", "Australia/Lord_Howe"),
            ("0 0 * * *", "America/Sao_Paulo"),
            ("0 12 L * *", "Asia/Kathmandu"),
        ] {
            let timing = cron(expression, zone);
            // 2027, from its first second.
            let (from, until) = (1_798_761_600, 1_830_297_600);
            let mut previous = timing.next_after(from - 1).unwrap();
            while previous < until {
                let next = timing.next_after(previous).unwrap();
                assert!(next > previous, "{expression} {zone}: {next} after {previous}");
                assert_eq!(timing.last_until(next - 1), Some(previous), "{expression} {zone} before {next}");
                assert_eq!(timing.last_until(next), Some(next), "{expression} {zone} at {next}");
                previous = next;
            }
        }
    }
}
