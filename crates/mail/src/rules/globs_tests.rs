//! The comparison against a table, and against an oracle that tries every path there is.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::rules::braces::BRACES_DEPTH_MAX;

fn overlap(here: &str, there: &str) -> bool {
    let read = |text: &str| Pattern::read(text).unwrap_or_else(|why| panic!("{text}: {why:?}"));
    let (here, there) = (read(here), read(there));
    let found = here.overlaps(&there, &mut Budget::default());
    assert_eq!(found, there.overlaps(&here, &mut Budget::default()), "not symmetric");
    found
}

#[test]
fn the_table() {
    for (here, there, expected) in [
        ("src/a.rs", "src/a.rs", true),
        ("src/a.rs", "src/b.rs", false),
        ("src/a.rs", "src/A.rs", false),
        // A plain path may be a folder.
        ("src", "src/a.rs", true),
        ("src", "src2/a.rs", false),
        ("src/a", "src/a/b/c", true),
        ("src", "src/**", true),
        ("src/a", "src/*/x.rs", true),
        ("src/b/x.rs/deep", "src/*/x.rs", false),
        ("src/a", "src/*", true),
        // A glob means whole paths.
        ("src/*", "src/a/b.rs", false),
        ("src/*.rs", "src/a.rs", true),
        ("src/*.rs", "src/a.ts", false),
        ("src/**", "src/a/b.rs", true),
        ("src/**/*.rs", "src/a.rs", true),
        ("src/**/*.rs", "src/a/b/c.rs", true),
        ("src/**/*.rs", "tests/**/*.rs", false),
        ("**/*.rs", "src/*.rs", true),
        ("**/*.rs", "src/*.ts", false),
        ("**/a/**", "b/**/c", true),
        ("a/**/b", "a/b", true),
        ("a/**/b", "a/c", true),
        ("a/**/b", "a/c?", false),
        ("a/**/b/**/c", "a/*/c", true),
        ("a/**/b/**/c", "a/[!b]/c", false),
        ("*a", "a*", true),
        ("a*b", "b*a", false),
        ("?", "ab", false),
        ("a?c", "abc", true),
        ("[a-c]", "[d-f]", false),
        ("[a-d]", "[d-f]", true),
        ("[!a]", "a", false),
        ("[!a]", "[!b]", true),
        ("[^a-z]x", "[a-z]x", false),
        ("{src,tests}/*.rs", "tests/a.rs", true),
        ("{src,tests}/*.rs", "docs/a.rs", false),
        ("src/{a,b}.{rs,ts}", "src/b.ts", true),
        ("src/{a,b}.{rs,ts}", "src/c.ts", false),
        ("{src/a,tests/b}.rs", "tests/b.rs", true),
        ("a{,b}", "a", true),
        ("a{b,c{d,e}}", "ace", true),
        ("[{]a", "{b,[{]}a", true),
        ("ü*", "?ber", true),
    ] {
        assert_eq!(overlap(here, there), expected, "{here} {there}");
    }
}

#[test]
fn brackets_stand_in_names_as_well() {
    for (here, there, expected) in [
        ("app/[slug]", "app/[slug]/page.tsx", true),
        ("app/[slug]/*.tsx", "app/[slug]/page.tsx", true),
        ("app/[slug]", "app/*/page.tsx", true),
        ("app/[slug]/page.tsx", "app/[id]/page.tsx", false),
        ("app/[slug]/a.tsx", "app/[slug]/b.tsx", false),
        ("app/[slug]", "app/s", true),
        ("app/[slug]", "app/x", false),
        ("app/[[...all]]", "app/[[...all]]/page.tsx", true),
        ("app/[[...all]]/{a,b}.tsx", "app/[[...all]]/b.tsx", true),
        ("app/[[...all]]", "app/[[...other]]", false),
        ("src/*", "src/*/x.rs", false),
    ] {
        assert_eq!(overlap(here, there), expected, "{here} {there}");
    }
    for broken in ["[", "a[", "a]", "a[]", "a[z-a]"] {
        assert!(Pattern::read(broken).is_err(), "{broken}");
    }
}

#[test]
fn braces_are_bounded() {
    let two = "{a,b}";
    assert!(Pattern::read(&two.repeat(5)).is_ok());
    assert!(Pattern::read(&two.repeat(6)).is_err());
    assert!(Pattern::read(&two.repeat(100)).is_err());
    assert!(Pattern::read(&"{".repeat(500)).is_err());
    let nested = |depth: usize| format!("{}a{}", "{".repeat(depth), "}".repeat(depth));
    assert!(Pattern::read(&nested(BRACES_DEPTH_MAX)).is_ok());
    assert!(Pattern::read(&nested(BRACES_DEPTH_MAX + 1)).is_err());
    assert!(Pattern::read(&format!("{}{{,x}}", "{a}".repeat(150))).is_ok());
    let long = format!("{}{{{}}}", "a".repeat(400), "b,".repeat(20));
    assert!(Pattern::read(&long).is_err(), "more bytes than alternatives may have together");
}

#[test]
fn patterns_that_backtrack_elsewhere_are_decided_at_once() {
    let stars = |end: &str| format!("{}{end}", "*a".repeat(250));
    let began = Instant::now();
    assert!(!overlap(&stars("b"), &stars("c")));
    assert!(overlap(&stars("*"), &stars("c")));
    let parts = |end: &str| format!("{}{end}", "**/a/".repeat(100));
    assert!(!overlap(&parts("b"), &parts("c")));
    assert!(!overlap(&stars("b"), &"a".repeat(4_000)));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[test]
fn the_largest_patterns_fit_the_budget_of_a_call() {
    let widest = |end: char| format!("{}{end}", "*?".repeat(GLOB_BYTES_MAX / 2 - 1));
    let (here, there) = (Pattern::read(&widest('b')).unwrap(), Pattern::read(&widest('c')).unwrap());
    let mut budget = Budget::default();
    assert!(!here.overlaps(&there, &mut budget));
    assert!(budget.0 > STEPS_MAX / 2, "{}", budget.0);
    // What it no longer covers counts as overlapping.
    assert!(here.overlaps(&there, &mut Budget(10)));
}

/// `[…]` of characters that never touch, every other one: none of these sets has one in common with a set of the other parity.
fn comb(parity: u32, of: u32) -> String {
    let chars = (0..of).filter_map(|n| char::from_u32(0x100 + 2 * n + parity));
    format!("[{}]", chars.collect::<String>())
}

#[test]
fn sets_cost_what_is_compared_of_them() {
    let mine: Vec<Pattern> = (0..500).map(|n| Pattern::read(&comb(0, 150 + n % 100)).unwrap()).collect();
    let theirs: Vec<Pattern> = (0..20).map(|n| Pattern::read(&comb(1, 160 + n)).unwrap()).collect();
    let (mut budget, mut compared) = (Budget::default(), 0);
    let began = Instant::now();
    // As many pairs as one call can meet: 5,000 that are held, 200 that are wanted.
    'call: for _ in 0..100 {
        for (here, there) in mine.iter().flat_map(|here| theirs.iter().map(move |there| (here, there))) {
            assert!(!here.overlaps(there, &mut budget) || budget.is_used_up());
            if budget.is_used_up() {
                break 'call;
            }
            compared += 1;
        }
    }
    assert!(budget.is_used_up(), "a call's comparisons end");
    assert!(compared > 5_000 && compared < 50_000, "{compared}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(!overlap(&comb(0, 200), &comb(1, 200)) && overlap(&comb(0, 200), &comb(0, 3)));
    assert!(overlap(&comb(0, 200), "\u{100}") && !overlap(&comb(0, 200), "\u{101}"));
    assert!(overlap(&comb(1, 3), "[\u{105}]") && !overlap(&comb(1, 3), "[\u{106}\u{fe}]"));
}

#[test]
fn plain_paths_beside_each_other_use_nothing_up() {
    let beside = |n: usize| Pattern::read(&format!("crates/server/src/http/file{n}.rs")).unwrap();
    let mut budget = Budget::default();
    let held: Vec<Pattern> = (0..100).map(beside).collect();
    let wanted: Vec<Pattern> = (100..200).map(beside).collect();
    for _ in 0..100 {
        assert!(!held.iter().any(|held| wanted.iter().any(|wanted| held.overlaps(wanted, &mut budget))));
    }
    assert_eq!(budget.0, STEPS_MAX);
    let deep = |end: &str| Pattern::read(&format!("{}{end}", "a/".repeat(2_000))).unwrap();
    assert!(!deep("x").overlaps(&deep("y"), &mut budget) && budget.0 < STEPS_MAX - 100);
}

#[test]
fn what_is_written_out_is_read_in_one_walk() {
    let began = Instant::now();
    let chain = format!("{}{}", "{a,b}".repeat(5), "{c}".repeat(20));
    for _ in 0..1_000 {
        assert_eq!(Pattern::read(&chain).unwrap().0.len(), 32);
        assert!(Pattern::read(&"{a}".repeat(170)).is_ok());
    }
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let alternatives = |text: &str| expand(text, Brackets::OfSets).unwrap();
    assert_eq!(alternatives("a{b,c{d,e}}f"), ["abf", "acdf", "acef"]);
    assert_eq!(alternatives("{,x}a,b[{,}]"), ["a,b[{,}]", "xa,b[{,}]"]);
}

#[test]
fn the_head_is_the_folder_all_of_it_is_in() {
    for (text, head) in [
        ("src/a.rs", Some("src")),
        ("src/**", Some("src")),
        ("src", Some("src")),
        ("{src/a,src/b}", Some("src")),
        ("{src,tests}/a", None),
        ("**/a", None),
        ("s*/a", None),
    ] {
        assert_eq!(Pattern::read(text).unwrap().head(), head, "{text}");
    }
}

static PATHS: LazyLock<Vec<Vec<String>>> = LazyLock::new(all_paths);

/// Every path of up to four parts of up to two letters over `a`, `b`.
fn all_paths() -> Vec<Vec<String>> {
    let parts = ["a", "b", "aa", "ab", "ba", "bb"];
    let mut paths: Vec<Vec<String>> = vec![Vec::new()];
    for length in 0..4 {
        let longest: Vec<_> = paths.iter().filter(|path| path.len() == length).cloned().collect();
        for path in longest {
            paths.extend(parts.iter().map(|part| [path.clone(), vec![(*part).to_owned()]].concat()));
        }
    }
    paths
}

/// Plain trial and retreat, without any of the code above.
fn matches_path(pattern: &[&str], path: &[String]) -> bool {
    match pattern {
        [] => path.is_empty(),
        ["**", rest @ ..] => (0..=path.len()).any(|skip| matches_path(rest, &path[skip..])),
        [first, rest @ ..] => {
            path.split_first().is_some_and(|(part, others)| matches_part(first, part) && matches_path(rest, others))
        }
    }
}

fn matches_part(pattern: &str, part: &str) -> bool {
    match pattern.chars().next() {
        None => part.is_empty(),
        Some('*') => (0..=part.len()).any(|skip| matches_part(&pattern[1..], &part[skip..])),
        Some('?') => !part.is_empty() && matches_part(&pattern[1..], &part[1..]),
        Some('[') => {
            let end = pattern.find(']').unwrap();
            let (negated, set) = match pattern[1..end].strip_prefix('!') {
                Some(set) => (true, set),
                None => (false, &pattern[1..end]),
            };
            part.chars().next().is_some_and(|c| set.contains(c) != negated)
                && matches_part(&pattern[end + 1..], &part[1..])
        }
        Some(c) => part.starts_with(c) && matches_part(&pattern[1..], &part[1..]),
    }
}

fn means(pattern: &str, path: &[String]) -> bool {
    let parts: Vec<&str> = pattern.split('/').collect();
    let is_plain = !pattern.contains(['*', '?', '[']);
    matches_path(&parts, path) || (is_plain && (1..path.len()).any(|length| matches_path(&parts, &path[..length])))
}

/// Parts whose every text has two letters at most or could have, so that a path in common is among those tried.
fn part() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[ab]{1,2}",
        2 => "[ab*?]{1,2}",
        1 => Just("[ab]".to_owned()),
        1 => Just("[!a]?".to_owned()),
        1 => Just("[a]*".to_owned()),
        2 => Just("**".to_owned()),
    ]
}

fn pattern() -> impl Strategy<Value = String> {
    proptest::collection::vec(part(), 1..3).prop_map(|parts| parts.join("/"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn two_patterns_overlap_if_and_only_if_some_path_is_of_both(here in pattern(), there in pattern()) {
        // The oracle knows no names with brackets.
        let read = |text: &str| Pattern::written_out(text, Brackets::OfSets).map(Pattern);
        let (Ok(left), Ok(right)) = (read(&here), read(&there)) else { return Ok(()) };
        let shared = PATHS.iter().find(|path| !path.is_empty() && means(&here, path) && means(&there, path));
        prop_assert_eq!(left.overlaps(&right, &mut Budget::default()), shared.is_some(), "{} {} {:?}", here, there, shared);
        prop_assert_eq!(right.overlaps(&left, &mut Budget::default()), shared.is_some());
    }

    #[test]
    fn no_text_is_too_strange_to_read(text in "[\\[\\]{}*?!,/a-]{0,40}") {
        let _ = Pattern::read(&text);
    }
}
