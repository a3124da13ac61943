//! Reads the times that the server writes, `2026-11-15T21:41:31.123456Z`, and judges how they follow each other.

use std::time::{Duration, Instant};

use crate::checker::{Invariant, Violation};
use crate::history::Op;

/// A server may be drawn towards the wall by one part in a hundred; twice that is no longer drawing.
const RATE_MAX: f64 = 1.02;
/// For two clocks that are read by two programs.
const SLACK: Duration = Duration::from_millis(20);

/// A promised create: when it was asked for and answered on our clock, and the time its task bears.
#[derive(Clone, Copy, Debug)]
pub struct Dated {
    pub op: Op,
    pub began: Instant,
    pub ended: Instant,
    pub created_us: i64,
}

/// No task bears an earlier time than a task whose request had ended before its own began. `floor_us`: the latest time of
/// all requests that ended before any of these.
pub fn judge_order(dated: &[Dated], floor_us: i64) -> Vec<Violation> {
    let mut begun: Vec<&Dated> = dated.iter().collect();
    begun.sort_by_key(|item| item.began);
    let mut ended: Vec<&Dated> = dated.iter().collect();
    ended.sort_by_key(|item| item.ended);
    let mut before = ended.into_iter().peekable();
    let mut latest_us = floor_us;
    let mut violations = Vec::new();
    for item in begun {
        while let Some(earlier) = before.next_if(|earlier| earlier.ended < item.began) {
            latest_us = latest_us.max(earlier.created_us);
        }
        if item.created_us < latest_us {
            let detail = format!("created_at is {} µs before that of an earlier task", latest_us - item.created_us);
            violations.push(Violation::of(Invariant::RanBack, item.op, detail));
        }
    }
    violations
}

/// Since the first of these requests the server's time advanced no faster than ours. Only for one process whose monotonic
/// clock is true.
pub fn judge_rate(dated: &[Dated]) -> Vec<Violation> {
    let Some(first) = dated.iter().min_by_key(|item| item.began) else { return Vec::new() };
    let raced = dated.iter().filter_map(|item| {
        let elapsed_us = item.ended.duration_since(first.began).as_micros() as f64;
        let advanced_us = (item.created_us - first.created_us) as f64;
        let detail = format!("created_at advanced {advanced_us} µs in {elapsed_us} µs");
        (advanced_us > elapsed_us * RATE_MAX + SLACK.as_micros() as f64)
            .then(|| Violation::of(Invariant::Raced, item.op, detail))
    });
    raced.collect()
}

/// Microseconds since 1970. `None` for anything but a time in UTC.
pub fn micros(text: &str) -> Option<i64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':');
    let (hour, minute) = (time.next()?.parse::<i64>().ok()?, time.next()?.parse::<i64>().ok()?);
    let (second, fraction) = time.next()?.split_once('.')?;
    let second = second.parse::<i64>().ok()?;
    let fraction = format!("{fraction:0<6}").get(..6)?.parse::<i64>().ok()?;
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(seconds * 1_000_000 + fraction)
}

/// Days since 1970 in the Gregorian calendar, with years that begin in March so that the leap day is the last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dated(began_ms: u64, ended_ms: u64, created_ms: i64) -> Dated {
        static ZERO: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        let at = |ms| *ZERO.get_or_init(Instant::now) + Duration::from_millis(ms);
        let op = Op { conn: 0, seq: 0 };
        Dated { op, began: at(began_ms), ended: at(ended_ms), created_us: created_ms * 1_000 }
    }

    #[test]
    fn ran_back() {
        let first = dated(0, 10, 5);
        assert!(judge_order(&[first, dated(11, 20, 5)], 0).is_empty());
        assert!(judge_order(&[first, dated(9, 20, 4)], 0).is_empty(), "they overlap");
        assert_eq!(judge_order(&[dated(11, 20, 4), first], 0).len(), 1);
        assert_eq!(judge_order(&[first], 6_000).len(), 1, "before an earlier round");
    }

    #[test]
    fn raced() {
        let first = dated(0, 10, 5);
        assert!(judge_rate(&[first, dated(900, 1_000, 1_040)]).is_empty());
        assert_eq!(judge_rate(&[first, dated(900, 1_000, 1_050)]).len(), 1);
        assert!(judge_rate(&[]).is_empty());
    }

    #[test]
    fn times_as_the_server_writes_them() {
        assert_eq!(micros("1970-01-01T00:00:00.000001Z"), Some(1));
        assert_eq!(micros("2000-03-01T00:00:00.000000Z"), Some(951_868_800_000_000));
        assert_eq!(micros("2026-11-15T21:41:31.123456Z"), Some(1_794_778_891_123_456));
        assert_eq!(micros("2024-02-29T23:59:59.5Z"), Some(1_709_251_199_500_000));
        assert_eq!(micros("2024-02-29T23:59:59+01:00"), None);
        assert_eq!(micros("queued"), None);
    }
}
