//! Cron expressions of five fields in a time zone.
//!
//! Where clocks change, the rule is cron's own. An expression with one hour and one minute is a time of day: when it does not
//! exist it runs at the first moment after the gap, and when it exists twice it runs the first time. Any other (`*`, steps,
//! ranges, lists) runs at every moment that matches, so not in a gap, and twice in an hour that repeats.
//!
//! The pattern is searched on the plain calendar only. A zone's time is a row of stretches with a fixed offset each; within one
//! the calendar and the time line agree, and what happens where two meet is decided here.

use croner::JobType;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};

const EXPRESSION_CHARS_MAX: usize = 200;
/// Stretches looked at in one search: two a year for the longest time that two leap days can be apart, and some.
const STRETCHES_MAX: usize = 100;

#[derive(Clone, Debug)]
pub struct Cron {
    pattern: croner::Cron,
    zone: TimeZone,
    /// One time a day: it runs once a day whatever the clocks do.
    is_time_of_day: bool,
}

/// Where one stretch ends and the next begins.
struct Seam {
    at_s: i64,
    /// The calendar there, before and after the clocks were changed.
    old: DateTime,
    new: DateTime,
}

impl Cron {
    /// The error says what is wrong with which of the two.
    pub fn new(expression: &str, zone: &str) -> Result<Self, String> {
        if expression.len() > EXPRESSION_CHARS_MAX {
            return Err(format!("cron_expr must have at most {EXPRESSION_CHARS_MAX} characters."));
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let pattern = parser.parse(expression).map_err(|error| {
            let fields = "minute hour day month weekday";
            format!("cron_expr {expression:?} is not understood ({error}): write five fields, {fields}.")
        })?;
        let is_time_of_day = pattern.determine_job_type() == JobType::FixedTime;
        Ok(Self { pattern, zone: self::zone(zone)?, is_time_of_day })
    }

    pub fn next_after(&self, at_s: i64) -> Option<i64> {
        let mut offset = self.offset(at_s)?;
        let mut found = self.find_next(civil(offset, at_s)?, false);
        let mut from_s = at_s;
        for _ in 0..STRETCHES_MAX {
            let run_s = instant(offset, found?)?;
            let Some(seam) = self.seam_after(from_s) else { return Some(run_s) };
            if run_s < seam.at_s {
                return Some(run_s);
            }
            if self.is_in_gap(&seam) {
                return Some(seam.at_s);
            }
            (from_s, offset) = (seam.at_s, self.offset(seam.at_s)?);
            found = self.find_next(self.begin(&seam), true);
        }
        None
    }

    pub fn last_until(&self, at_s: i64) -> Option<i64> {
        let mut until_s = at_s;
        for _ in 0..STRETCHES_MAX {
            let offset = self.offset(until_s)?;
            let found = self.find_last(civil(offset, until_s)?);
            let Some(seam) = self.seam_until(until_s) else { return instant(offset, found?) };
            if let Some(found) = found
                && found >= self.begin(&seam)
            {
                return instant(offset, found);
            }
            if self.is_in_gap(&seam) {
                return Some(seam.at_s);
            }
            until_s = seam.at_s - 1;
        }
        None
    }

    /// The first moment of the calendar after a seam that counts: a time of day does not count again.
    fn begin(&self, seam: &Seam) -> DateTime {
        if self.is_time_of_day { seam.new.max(seam.old) } else { seam.new }
    }

    /// Is there a time of day among those that the seam leaves out?
    fn is_in_gap(&self, seam: &Seam) -> bool {
        self.is_time_of_day && self.find_next(seam.old, true).is_some_and(|found| found < seam.new)
    }

    fn find_next(&self, from: DateTime, inclusive: bool) -> Option<DateTime> {
        self.pattern.find_next_occurrence(&from, inclusive).ok()
    }

    fn find_last(&self, until: DateTime) -> Option<DateTime> {
        self.pattern.find_previous_occurrence(&until, true).ok()
    }

    fn offset(&self, at_s: i64) -> Option<Offset> {
        Some(self.zone.to_offset(Timestamp::from_second(at_s).ok()?))
    }

    fn seam_after(&self, at_s: i64) -> Option<Seam> {
        let next = self.zone.following(Timestamp::from_second(at_s).ok()?).next()?;
        self.seam(next.timestamp())
    }

    /// The seam at which the stretch of this moment begins.
    fn seam_until(&self, at_s: i64) -> Option<Seam> {
        let last = self.zone.preceding(Timestamp::from_second(at_s.checked_add(1)?).ok()?).next()?;
        self.seam(last.timestamp())
    }

    fn seam(&self, at: Timestamp) -> Option<Seam> {
        let at_s = at.as_second();
        let (old, new) = (self.offset(at_s - 1)?, self.offset(at_s)?);
        Some(Seam { at_s, old: civil(old, at_s)?, new: civil(new, at_s)? })
    }
}

fn civil(offset: Offset, at_s: i64) -> Option<DateTime> {
    Some(offset.to_datetime(Timestamp::from_second(at_s).ok()?))
}

fn instant(offset: Offset, at: DateTime) -> Option<i64> {
    Some(offset.to_timestamp(at).ok()?.as_second())
}

pub fn zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name)
        .map_err(|_| format!("There is no time zone {name:?}: write one like Europe/Berlin, or leave it out for UTC."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The runs after a time, as the zone's clocks show them.
    fn runs(expression: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let cron = Cron::new(expression, zone).unwrap();
        let after: Timestamp = after.parse().unwrap();
        let shown = |run_s: i64| {
            let at = Timestamp::from_second(run_s).unwrap().to_zoned(cron.zone.clone());
            at.strftime("%m-%d %H:%M %Z").to_string()
        };
        let runs = std::iter::successors(cron.next_after(after.as_second()), |run_s| cron.next_after(*run_s));
        runs.take(count).map(shown).collect()
    }

    #[test]
    fn a_time_that_does_not_exist_runs_right_after_the_gap() {
        // On 28 March 2027 clocks in Berlin go from 02:00 to 03:00.
        let expected = ["03-27 02:30 CET", "03-28 03:00 CEST", "03-29 02:30 CEST"];
        assert_eq!(runs("30 2 * * *", "Europe/Berlin", "2027-03-26T12:00:00Z", 3), expected);
    }

    #[test]
    fn a_time_that_exists_twice_runs_once_and_the_first_time() {
        // On 31 October 2027 clocks in Berlin go from 03:00 back to 02:00.
        let expected = ["10-30 02:30 CEST", "10-31 02:30 CEST", "11-01 02:30 CET"];
        assert_eq!(runs("30 2 * * *", "Europe/Berlin", "2027-10-29T12:00:00Z", 3), expected);
    }

    #[test]
    fn steps_run_through_the_hour_that_repeats_and_leave_out_the_one_that_is_missing() {
        let twice = ["10-31 02:00 CEST", "10-31 02:30 CEST", "10-31 02:00 CET", "10-31 02:30 CET", "10-31 03:00 CET"];
        assert_eq!(runs("*/30 * * * *", "Europe/Berlin", "2027-10-30T23:30:00Z", 5), twice);
        let missing = ["03-28 01:30 CET", "03-28 03:00 CEST", "03-28 03:30 CEST"];
        assert_eq!(runs("*/30 * * * *", "Europe/Berlin", "2027-03-28T00:00:00Z", 3), missing);
    }

    #[test]
    fn a_time_of_day_runs_once_on_every_day_of_many_years() {
        // Gaps and repeats of an hour, half an hour, at midnight, and a zone that left out a whole day.
        for (zone, from) in [
            ("Europe/Berlin", "2027-01-01T00:00:00Z"),
            ("America/New_York", "2027-01-01T00:00:00Z"),
            ("Australia/Lord_Howe", "2027-01-01T00:00:00Z"),
            ("America/Santiago", "2027-01-01T00:00:00Z"),
            ("Africa/Cairo", "2027-01-01T00:00:00Z"),
        ] {
            for expression in ["30 1 * * *", "30 2 * * *", "0 0 * * *", "0 3 * * *", "45 1 * * *", "59 23 * * *"] {
                let cron = Cron::new(expression, zone).unwrap();
                let from: Timestamp = from.parse().unwrap();
                let runs = std::iter::successors(cron.next_after(from.as_second()), |run_s| cron.next_after(*run_s));
                let mut days = runs
                    .take(3 * 365)
                    .map(|run_s| Timestamp::from_second(run_s).unwrap().to_zoned(cron.zone.clone()).date());
                let first = days.next().unwrap();
                for (position, day) in days.enumerate() {
                    let expected = first.checked_add(jiff::Span::new().days(position as i64 + 1)).unwrap();
                    assert_eq!(day, expected, "{expression} {zone}");
                }
            }
        }
        let apia = runs("0 12 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", 3);
        assert_eq!(apia, ["12-29 12:00 -10", "12-31 00:00 +14", "12-31 12:00 +14"]);
    }

    #[test]
    fn zones_and_leap_days_count() {
        assert_eq!(runs("0 9 * * *", "Asia/Kathmandu", "2027-01-01T00:00:00Z", 1), ["01-01 09:00 +0545"]);
        assert_eq!(runs("0 0 29 2 *", "UTC", "2025-01-01T00:00:00Z", 2), ["02-29 00:00 UTC", "02-29 00:00 UTC"]);
        assert_eq!(runs("0 0 1 1 1", "UTC", "2027-01-01T00:00:00Z", 2), ["01-04 00:00 UTC", "01-11 00:00 UTC"]);
    }

    #[test]
    fn what_is_no_expression_or_zone_is_refused_with_its_name() {
        for expression in
            ["", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "x * * * *", "*/0 * * * *", "0 0 0 * *"]
        {
            let error = Cron::new(expression, "UTC").unwrap_err();
            assert!(error.contains("cron_expr"), "{expression}: {error}");
        }
        assert!(Cron::new(&"*".repeat(201), "UTC").is_err());
        for zone in ["", "Mars/Olympus", "../../etc/passwd", "CEST+1"] {
            assert!(Cron::new("* * * * *", zone).unwrap_err().contains("time zone"), "{zone}");
        }
    }

    #[test]
    fn a_day_that_never_comes_has_no_run() {
        let never = Cron::new("0 0 30 2 *", "UTC").unwrap();
        assert_eq!((never.next_after(1_798_761_600), never.last_until(1_798_761_600)), (None, None));
    }
}
