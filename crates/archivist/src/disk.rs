//! How much room the archive's disk has.

use std::path::Path;

use waybill_archive::repo::free_bytes;
use waybill_mail::archive_health::Pressure;

use crate::{Settings, metrics};

const MB: u64 = 1_000_000;

/// None where the disk cannot be asked: then it is not the disk that keeps anything from being written.
pub(crate) fn sample(root: &Path, settings: &Settings) -> Pressure {
    let Ok(free) = free_bytes(root) else { return Pressure::None };
    let pressure = of(free, settings);
    metrics::disk(pressure.level(), free);
    pressure
}

fn of(free: u64, settings: &Settings) -> Pressure {
    if free < settings.disk_critical_mb.saturating_mul(MB) {
        Pressure::Critical
    } else if free < settings.disk_warning_mb.saturating_mul(MB) {
        Pressure::Warning
    } else {
        Pressure::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_30_pressure_begins_where_the_contract_says() {
        let settings = Settings::default();
        for (free_mb, pressure) in [
            (500, Pressure::None),
            (499, Pressure::Warning),
            (100, Pressure::Warning),
            (99, Pressure::Critical),
            (0, Pressure::Critical),
        ] {
            assert_eq!(of(free_mb * MB, &settings), pressure, "{free_mb} MB");
        }
    }
}
