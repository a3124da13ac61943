//! What queries are read as, and what is written for the engines.

use proptest::prelude::*;
use waybill_kernel::{Code, Tenant};

use super::*;

const SPACE: Space = Space { tenant: Tenant(1), project: 2 };

fn written(text: &str) -> (String, String) {
    let query = Query::read(text).unwrap();
    let expr = query.expr.unwrap_or_else(|| panic!("nothing in {text}"));
    (expr.fts5(SPACE, "1p2z").replace("1p2x", ""), expr.tsquery(SPACE).replace("1p2x", ""))
}

#[test]
fn both_engines_get_the_same_meaning() {
    for (text, fts5, tsquery) in [
        ("Hello", "\"hello\"", "('hello')"),
        ("a b", "(\"a\" AND \"b\")", "(('a') & ('b'))"),
        ("a AND b OR c", "((\"a\" AND \"b\") OR \"c\")", "((('a') & ('b')) | ('c'))"),
        ("a (b OR c)", "(\"a\" AND (\"b\" OR \"c\"))", "(('a') & (('b') | ('c')))"),
        ("\"big red\"", "\"big red\"", "('big' <-> 'red')"),
        ("POL-358", "\"pol 358\"", "('pol' <-> '358')"),
        ("depl*", "\"depl\" *", "('depl':*)"),
        ("d*", "\"d\"", "('d')"),
        ("\"roll ba\"*", "\"roll ba\" *", "('roll' <-> 'ba':*)"),
        ("subject:Plan", "subject : \"plan\"", "('plan':A)"),
        ("body:\"x y\"", "body : \"x y\"", "('x':B <-> 'y':B)"),
        ("subject:pl*", "subject : \"pl\" *", "('pl':*A)"),
        ("a NOT b", "((\"a\") NOT (\"b\"))", "(('a') & !(('b')))"),
        ("NOT b", "(\"1p2z\" NOT (\"b\"))", "!(('b'))"),
        ("a OR NOT b", "(\"a\" OR (\"1p2z\" NOT (\"b\")))", "(('a') | !(('b')))"),
        ("http://x.y", "\"http x y\"", "('http' <-> 'x' <-> 'y')"),
        ("and or not", "(\"and\" AND \"or\" AND \"not\")", "(('and') & ('or') & ('not'))"),
    ] {
        assert_eq!(written(text), (fts5.to_owned(), tsquery.to_owned()), "{text}");
        assert!(!Query::read(text).unwrap().is_fallback, "{text}");
    }
}

#[test]
fn what_does_not_parse_is_any_of_its_words() {
    for text in ["a AND", "(a b", "a OR OR b", "\"a b", "a )", "NOT", "((((((((((a b))))))))))", "a b \"c"] {
        let query = Query::read(text).unwrap();
        assert!(query.is_fallback, "{text}");
    }
    assert_eq!(written("(a \"b c"), ("(\"a\" OR \"b\" OR \"c\")".to_owned(), "(('a') | ('b') | ('c'))".to_owned()));
}

#[test]
fn nothing_to_search_for_is_told_from_nothing_given() {
    for text in ["", "   "] {
        assert_eq!(Query::read(text).unwrap(), Query::default());
    }
    for text in ["***", "--", "()", "\"\"", "subject:*", "NOT ."] {
        let query = Query::read(text).unwrap();
        assert!(query.expr.is_none() && query.is_unsearchable, "{text}");
    }
}

#[test]
fn hints_are_taken_out() {
    let query = Query::read("from:BlueLake deploy before:2026-01-01 thread:\"T 1\" Importance:high foo:bar").unwrap();
    let found: Vec<_> = query.hints.iter().map(|hint| (hint.kind, hint.value.as_str())).collect();
    let expected = [
        (HintKind::From, "BlueLake"),
        (HintKind::Before, "2026-01-01"),
        (HintKind::Thread, "T 1"),
        (HintKind::Importance, "high"),
    ];
    assert_eq!(found, expected);
    assert_eq!(query.expr.unwrap().tsquery(SPACE).replace("1p2x", ""), "(('deploy') & ('foo' <-> 'bar'))");
    assert_eq!(Query::read("from:x").unwrap().expr, None);
    assert!(!Query::read("from:x").unwrap().is_unsearchable);
}

#[test]
fn a_query_is_bounded() {
    let words = |count: usize| vec!["w"; count].join(" ");
    assert!(Query::read(&words(WORDS_MAX)).is_ok());
    assert_eq!(Query::read(&words(WORDS_MAX + 1)).unwrap_err().code(), Code::InvalidRequest);
    assert_eq!(Query::read(&"x".repeat(QUERY_BYTES_MAX + 1)).unwrap_err().code(), Code::InvalidRequest);
    assert!(Query::read(&"NOT ".repeat(200)).unwrap().expr.is_none());
    assert!(Query::read(&"(".repeat(1_000)).unwrap().expr.is_none());
}

#[test]
fn the_subject_alone_keeps_what_is_not_wanted() {
    let query = Query::read("a NOT b body:c").unwrap().expr.unwrap().in_subject();
    assert_eq!(query.tsquery(SPACE).replace("1p2x", ""), "(('a':A) & !(('b')) & ('c':B))");
}

proptest! {
    /// Only words, operators of ours and brackets come out, whatever goes in.
    #[test]
    fn what_is_written_is_our_own(text in "\\PC{0,60}|[\"'():*&|!<>\\\\ ANDORTnot:\u{0}-]{0,60}") {
        let Ok(query) = Query::read(&text) else { return Ok(()) };
        let Some(expr) = query.expr else { return Ok(()) };
        let (fts5, tsquery) = (expr.fts5(SPACE, "1p2z"), expr.tsquery(SPACE));
        for quoted in fts5.split('"').skip(1).step_by(2).flat_map(|phrase| phrase.split(' ')) {
            prop_assert!(quoted.chars().all(char::is_alphanumeric), "{}", fts5);
        }
        for quoted in tsquery.split('\'').skip(1).step_by(2) {
            prop_assert!(quoted.chars().all(char::is_alphanumeric), "{}", tsquery);
        }
        prop_assert_eq!(fts5.matches('"').count() % 2, 0);
        prop_assert_eq!(fts5.matches('(').count(), fts5.matches(')').count());
    }
}
