//! Which numbers an operator may set. The crate that owns a setting says its range, once; whoever reads the file asks it.

use std::ops::RangeInclusive;

/// Sizes of what one caller may send: small ones are for those who test what is too large.
pub const BYTES: RangeInclusive<i64> = 100..=1 << 30;
/// Bytes that all callers share.
pub const SHARED_BYTES: RangeInclusive<i64> = 16 << 20..=1 << 40;
/// Numbers of things that are kept in memory.
pub const MANY: RangeInclusive<i64> = 1..=1_000_000;
pub const PERCENT: RangeInclusive<i64> = 1..=100;
/// A second to a year.
pub const SECONDS: RangeInclusive<i64> = 1..=31_536_000;
/// As long, or not at all.
pub const PAUSE_SECONDS: RangeInclusive<i64> = 0..=31_536_000;
/// Up to a hundred years, which is for ever.
pub const KEEP_SECONDS: RangeInclusive<i64> = 0..=3_153_600_000;

pub const fn at_least(least: i64) -> RangeInclusive<i64> {
    least..=i64::MAX
}

/// A setting under the name that it has in the file, its value, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: &'static str,
    pub value: i64,
    pub allowed: RangeInclusive<i64>,
}

/// What does not fit into an `i64` is as large as one can be: no range of ours excludes the one and not the other.
pub fn setting(name: &'static str, value: impl TryInto<i64>, allowed: RangeInclusive<i64>) -> Setting {
    Setting { name, value: value.try_into().unwrap_or(i64::MAX), allowed }
}

/// What is wrong with the first one that is out of its range, in words for whoever wrote the file.
pub fn check(section: &str, settings: &[Setting]) -> Result<(), String> {
    match settings.iter().find(|setting| !setting.allowed.contains(&setting.value)) {
        Some(Setting { name, value, allowed }) => {
            Err(format!("{section}.{name} is {value}; it must be {}.", shown(allowed)))
        }
        None => Ok(()),
    }
}

fn shown(allowed: &RangeInclusive<i64>) -> String {
    match (*allowed.start(), *allowed.end()) {
        (least, i64::MAX) => format!("at least {least}"),
        (least, most) => format!("from {least} to {most}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_out_of_its_range_is_told_with_the_range() {
        let settings = |a: i64, b: u64| [setting("a", a, 1..=5), setting("b", b, at_least(10))];
        assert_eq!(check("s", &settings(5, 10)), Ok(()));
        assert_eq!(check("s", &settings(1, u64::MAX)), Ok(()));
        assert_eq!(check("s", &settings(6, 0)).unwrap_err(), "s.a is 6; it must be from 1 to 5.");
        assert_eq!(check("s", &settings(5, 9)).unwrap_err(), "s.b is 9; it must be at least 10.");
    }
}
