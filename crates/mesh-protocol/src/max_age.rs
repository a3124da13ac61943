//! How long a daemon goes on trying to send. A retry after the broker has forgotten the id would be a second message, so the age
//! ends strictly inside the time for which the broker remembers.

use std::time::Duration;

use waybill_kernel::{Code, Error, Result};

use crate::negotiation::{DEDUPE_RETENTION_DAYS_MIN, DedupeMode};

const HOUR_SECONDS: u64 = 3_600;
const MARGIN_HOURS_MIN: u64 = 24;
/// Where the broker never forgets.
const PERMANENT: Duration = hours(168);
const PERMANENT_MAX: Duration = hours(720);

const fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * HOUR_SECONDS)
}

/// `wanted` is what the operator has set, if anything.
///
/// # Errors
/// `feature_parameter_below_floor` when the broker remembers for less than a week, `outbox_max_age_above_dedupe_window` when
/// the operator wants more than the broker's window less a day.
pub fn outbox_max_age(dedupe: DedupeMode, wanted: Option<Duration>) -> Result<Duration> {
    let days = match dedupe {
        DedupeMode::Permanent => {
            return Ok(wanted.unwrap_or(PERMANENT).min(PERMANENT_MAX));
        }
        DedupeMode::RetentionScoped { days } => days,
    };
    if days < DEDUPE_RETENTION_DAYS_MIN {
        return Err(Error::new(
            Code::FeatureParameterBelowFloor,
            format!("The broker remembers ids for {days} days; it must be at least {DEDUPE_RETENTION_DAYS_MIN}."),
        ));
    }
    let window = u64::from(days) * 24;
    let most = hours(window - MARGIN_HOURS_MIN);
    // A tenth of the window, in whole hours and rounded up.
    let margin = window.div_ceil(10).max(MARGIN_HOURS_MIN);
    match wanted {
        None => Ok(hours(window - margin)),
        Some(wanted) if wanted <= most => Ok(wanted),
        Some(wanted) => Err(Error::new(
            Code::OutboxMaxAgeAboveDedupeWindow,
            format!(
                "The outbox would try for {} seconds; the broker remembers ids for {days} days, which allows at most {}.",
                wanted.as_secs(),
                most.as_secs()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_stays_inside_the_window() {
        use DedupeMode::{Permanent, RetentionScoped};
        let scoped = |days| RetentionScoped { days };
        for (dedupe, wanted_hours, expected) in [
            // The margin is a day until a tenth of the window is more.
            (scoped(7), None, Ok(144)),
            (scoped(8), None, Ok(168)),
            (scoped(10), None, Ok(216)),
            (scoped(11), None, Ok(237)),
            (scoped(30), None, Ok(648)),
            (scoped(365), None, Ok(7_884)),
            (scoped(u32::MAX), None, Ok(u64::from(u32::MAX) * 24 - (u64::from(u32::MAX) * 24).div_ceil(10))),
            (scoped(7), Some(1), Ok(1)),
            (scoped(7), Some(144), Ok(144)),
            (scoped(7), Some(145), Err(Code::OutboxMaxAgeAboveDedupeWindow)),
            // An operator may go past a tenth, but not past a day.
            (scoped(365), Some(8_736), Ok(8_736)),
            (scoped(365), Some(8_737), Err(Code::OutboxMaxAgeAboveDedupeWindow)),
            (scoped(6), None, Err(Code::FeatureParameterBelowFloor)),
            (scoped(6), Some(1), Err(Code::FeatureParameterBelowFloor)),
            (scoped(0), None, Err(Code::FeatureParameterBelowFloor)),
            (Permanent, None, Ok(168)),
            (Permanent, Some(1), Ok(1)),
            (Permanent, Some(720), Ok(720)),
            (Permanent, Some(721), Ok(720)),
        ] {
            let age = outbox_max_age(dedupe, wanted_hours.map(hours)).map_err(|error| error.code());
            assert_eq!(age, expected.map(hours), "{dedupe:?} {wanted_hours:?}");
        }
        let second = Duration::from_secs(1);
        assert!(outbox_max_age(scoped(7), Some(hours(144) + second)).is_err());
        for days in 7..=3_000 {
            assert!(outbox_max_age(scoped(days), None).unwrap() < hours(u64::from(days) * 24 - 23), "{days}");
        }
    }
}
