//! How long a cron expression may be silent.
//!
//! When a schedule runs is its scheduler's to say; the server only has to know from when on silence means something. So it
//! looks for the widest gap that the five fields leave, and does not ask in which year or zone: three gaps are waited for,
//! and an hour more or less, or a short month, is within them.

use std::time::Duration;

const MINUTES_A_DAY: u32 = 24 * 60;
const DAY: Duration = Duration::from_secs(86_400);
/// A year and more: three of them reach from one 29 February to the next.
const YEAR: Duration = Duration::from_secs(500 * 86_400);
const MONTH: Duration = Duration::from_secs(31 * 86_400);
const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// None for what is no expression of five fields.
pub(crate) fn widest_gap(expression: &str) -> Option<Duration> {
    let fields: Vec<&str> = expression.split_whitespace().collect();
    match fields[..] {
        ["@yearly" | "@annually"] => Some(YEAR),
        ["@monthly"] => Some(MONTH),
        ["@weekly"] => Some(WEEK),
        ["@daily" | "@midnight"] => Some(DAY),
        ["@hourly"] => Some(DAY / 24),
        [minute, hour, day, month, weekday] => Some(of_fields(minute, hour, day, month, weekday)),
        _ => None,
    }
}

fn of_fields(minute: &str, hour: &str, day: &str, month: &str, weekday: &str) -> Duration {
    // A plus joins day and weekday: the 13th that is a Friday.
    if !is_any(month) || weekday.starts_with('+') {
        return YEAR;
    }
    if !is_any(day) {
        return MONTH;
    }
    if !is_any(weekday) {
        // The second Friday, the last Monday.
        let is_of_month = weekday.contains(['#', 'L', 'l']);
        let days = values(weekday, 0, 7).map(|days| days.into_iter().map(|day| day % 7).collect());
        return if is_of_month { MONTH } else { days.map_or(WEEK, |days| DAY * widest(days, 7)) };
    }
    let (Some(minutes), Some(hours)) = (values(minute, 0, 59), values(hour, 0, 23)) else { return DAY };
    let times = hours.iter().flat_map(|hour| minutes.iter().map(move |minute| hour * 60 + minute)).collect();
    Duration::from_secs(60) * widest(times, MINUTES_A_DAY)
}

fn is_any(field: &str) -> bool {
    matches!(field, "*" | "?")
}

/// The widest gap on a round of this length. One time leaves all of it.
fn widest(mut times: Vec<u32>, round: u32) -> u32 {
    times.sort_unstable();
    let last = times.last().copied().unwrap_or_default();
    let before = std::iter::once(last).chain(times.iter().copied());
    let gaps = before.zip(&times).map(|(before, time)| (time + round - before) % round).filter(|gap| *gap > 0);
    gaps.max().unwrap_or(round)
}

/// Numbers, ranges and steps; None for names and everything else.
fn values(field: &str, first: u32, last: u32) -> Option<Vec<u32>> {
    let mut values = Vec::new();
    for part in field.split(',') {
        let (range, step) = part.split_once('/').unwrap_or((part, "1"));
        let (from, to) = match range.split_once('-') {
            _ if is_any(range) => (first, last),
            Some((from, to)) => (from.parse().ok()?, to.parse().ok()?),
            None if part.contains('/') => (range.parse().ok()?, last),
            None => (range.parse().ok()?, range.parse().ok()?),
        };
        let step: usize = step.parse().ok().filter(|step| *step > 0)?;
        if from > to || to > last {
            return None;
        }
        values.extend((from..=to).step_by(step));
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_gap_is_found() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        for (expression, gap) in [
            ("* * * * *", minutes(1)),
            ("*/15 * * * *", minutes(15)),
            ("*/7 * * * *", minutes(7)),
            ("5 * * * *", minutes(60)),
            ("10,20 * * * *", minutes(50)),
            ("30/10 * * * *", minutes(40)),
            ("0 */6 * * *", minutes(6 * 60)),
            ("30 2 * * *", DAY),
            ("*/5 9-17 * * *", minutes(15 * 60 + 5)),
            ("0 9 * * 1-5", DAY * 3),
            ("0 9 * * 0,7", WEEK),
            ("0 9 * * MON-FRI", WEEK),
            ("0 9 * * 5#2", MONTH),
            ("0 9 * * 5L", MONTH),
            ("0 9 13 * *", MONTH),
            ("0 9 13 * +FRI", YEAR),
            ("0 0 29 2 *", YEAR),
            ("@daily", DAY),
            ("@hourly", minutes(60)),
            ("late * * * *", DAY),
            ("*/0 * * * *", DAY),
            ("5-1 * * * *", DAY),
            ("99 * * * *", DAY),
            (", * * * *", DAY),
        ] {
            assert_eq!(widest_gap(expression), Some(gap), "{expression}");
        }
        for expression in ["", "* * * *", "* * * * * *", "@reboot", "nonsense"] {
            assert_eq!(widest_gap(expression), None, "{expression:?}");
        }
    }
}
