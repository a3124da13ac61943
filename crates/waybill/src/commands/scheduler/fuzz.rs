//! Fuzz target of the reader of cron expressions, and of what is computed from those it accepts.

use waybill_fuzz::{Target, feed};

use super::cron::Cron;

/// Around a change of the clocks, the beginning of time, and far from both.
const MOMENTS_S: [i64; 4] = [1_774_745_999, 0, 4_102_444_800, -62_135_596_800];
/// Between the expression and the zone.
const SEPARATOR: char = '|';

#[test]
fn fuzz_cron() {
    const SEEDS: &[&str] =
        &["*/5 * * * *", "30 2 * * 1-5|Europe/Berlin", "0 0 29 2 *|UTC", "0 12 L * *", "15,45 8-18/2 1 JAN,jun MON#2"];
    let read = |input: &[u8]| {
        let text = String::from_utf8_lossy(input);
        let (expression, zone) = text.split_once(SEPARATOR).unwrap_or((&text, "UTC"));
        let Ok(cron) = Cron::new(expression, zone) else { return false };
        for at_s in MOMENTS_S {
            assert!(cron.next_after(at_s).is_none_or(|next_s| next_s > at_s), "{expression}");
            assert!(cron.last_until(at_s).is_none_or(|last_s| last_s <= at_s), "{expression}");
        }
        true
    };
    feed(Target { name: "cron", seeds: SEEDS, read });
}
