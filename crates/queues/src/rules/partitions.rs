//! Which partition of a queue a group's messages are in.
//!
//! The function is fixed for ever: a queue that is there would otherwise look for its groups where they are not. It cannot
//! be steered by the server, so whoever chooses group ids that all lead to one partition has a queue of one partition.

/// A power of two, so that a mask of bits is the rest of a division.
pub const COUNT_MAX: u32 = 32;

const OFFSET: u32 = 2_166_136_261;
const PRIME: u32 = 16_777_619;

/// The number of partitions that a text means: 1, 2, 4, 8, 16 or 32, and 0 is 1. None for every other text.
pub fn count(text: &str) -> Option<u32> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let count = is_plain.then(|| text.parse::<u32>().ok())??.max(1);
    (count.is_power_of_two() && count <= COUNT_MAX).then_some(count)
}

/// FNV-1a of 32 bits over the bytes of the group's name. That of 64 bits has the same lowest five.
pub fn hash(group: &str) -> i64 {
    if group.is_empty() {
        return 0;
    }
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(PRIME);
    group.bytes().fold(OFFSET, step).into()
}

/// Which partitions there are up to `spread`: those that have a bit in `here`, or all of them.
pub fn of(spread: i64, here: Option<i64>) -> impl Iterator<Item = i64> {
    (0..=spread).filter(move |partition| here.is_none_or(|here| here >> partition & 1 == 1))
}

/// `spread` is the number of the last partition that groups are spread over, as the catalog has it.
pub fn route(group: &str, spread: i64) -> i64 {
    hash(group) & spread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_02_a_count_is_a_power_of_two_up_to_32() {
        for (text, meant) in [("0", 1), ("1", 1), ("2", 2), ("4", 4), ("8", 8), ("16", 16), ("32", 32), ("08", 8)] {
            assert_eq!(count(text), Some(meant), "{text}");
        }
        for bad in ["", "3", "6", "33", "64", "-1", "+8", "8.0", " 8", "many", "4294967296", "99999999999999999999"] {
            assert_eq!(count(bad), None, "{bad}");
        }
    }

    #[test]
    fn rule_05_groups_are_routed_by_fnv_1a() {
        for (group, hashed, of_4, of_8) in [
            ("g0", 0x0f20_2702, 2, 2),
            ("g1", 0x1020_2895, 1, 5),
            ("g3", 0x0e20_256f, 3, 7),
            ("user-1", 0xf553_7974, 0, 4),
            ("日本", 0x9f26_ee51, 1, 1),
        ] {
            assert_eq!((hash(group), route(group, 3), route(group, 7)), (hashed, of_4, of_8), "{group}");
            assert_eq!(route(group, 0), 0, "{group}");
        }
        assert_eq!(route("", 31), 0, "no group is in the first partition");
    }

    #[test]
    fn some_partitions_are_in_one_store_and_others_elsewhere() {
        let of = |here| of(3, here).collect::<Vec<_>>();
        assert_eq!((of(None), of(Some(0b1001)), of(Some(0))), (vec![0, 1, 2, 3], vec![0, 3], vec![]));
    }

    #[test]
    fn rule_05_groups_are_spread_evenly() {
        let mut found = [0_i64; 8];
        // Any stream of unlike ids will do; this one is the same in every run.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            found[usize::try_from(route(&format!("{state:016x}"), 7)).unwrap()] += 1;
        }
        assert!(found.iter().all(|count| (11_875..=13_125).contains(count)), "{found:?}");
    }
}
