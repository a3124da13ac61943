//! Dates as people write them in filters.

use std::time::Duration;

use waybill_kernel::Time;

const DAY: Duration = Duration::from_secs(86_400);

/// When a filter begins: a moment, or the beginning of a day in UTC.
pub fn since(text: &str) -> Option<Time> {
    day(text).or_else(|| moment(text))
}

/// When a filter ends, itself not included: a moment, or the end of a day in UTC.
pub fn until(text: &str) -> Option<Time> {
    day(text).map(|day| day.after(DAY)).or_else(|| moment(text))
}

/// `2026-01-05`
fn day(text: &str) -> Option<Time> {
    let text = text.trim();
    (text.len() == "2026-01-05".len()).then(|| moment(&format!("{text}T00:00:00Z"))).flatten()
}

/// `2026-01-05T12:30:00Z`
fn moment(text: &str) -> Option<Time> {
    serde_json::from_value(text.trim().into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_whole_and_moments_exact() {
        let text = |time: Option<Time>| time.map(|time| time.to_string());
        assert_eq!(text(since("2026-01-05")).as_deref(), Some("2026-01-05T00:00:00.000000Z"));
        assert_eq!(text(until("2026-01-05")).as_deref(), Some("2026-01-06T00:00:00.000000Z"));
        for read in [since, until] {
            assert_eq!(text(read(" 2026-01-05T12:30:00+01:00 ")).as_deref(), Some("2026-01-05T11:30:00.000000Z"));
            for wrong in ["", "yesterday", "2026-13-01", "2026-01-5", "20260105xx"] {
                assert_eq!(read(wrong), None, "{wrong}");
            }
        }
    }
}
