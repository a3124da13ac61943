//! The part of a body that shows why a message was found.

use super::query::Expr;
use super::terms::words;

const BEFORE_CHARS: usize = 60;
const EXCERPT_CHARS: usize = 200;

/// The words that a query wants, without those it does not.
pub fn wanted(expr: &Expr) -> Vec<&str> {
    match expr {
        Expr::Phrase { words, .. } => words.iter().map(String::as_str).collect(),
        Expr::All(parts) | Expr::Any(parts) => parts.iter().flat_map(wanted).collect(),
        Expr::Not(_) => Vec::new(),
    }
}

/// From a little before the first of these words, or from the beginning, on one line.
pub fn excerpt(body: &str, wanted: &[&str]) -> String {
    let line: Vec<&str> = body.split_whitespace().collect();
    let hit = |piece: &&str| words(piece).any(|word| wanted.iter().any(|wanted| word.starts_with(wanted)));
    let mut at = if wanted.is_empty() { 0 } else { line.iter().position(hit).unwrap_or(0) };
    let mut before = 0;
    while at > 0 && before + line[at - 1].chars().count() < BEFORE_CHARS {
        at -= 1;
        before += line[at].chars().count() + 1;
    }
    let text = line[at..].join(" ");
    let mut shown: String = text.chars().take(EXCERPT_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    if at > 0 { format!("…{shown}") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::query::Query;

    #[test]
    fn an_excerpt_begins_a_little_before_the_first_hit() {
        let body = format!("{} The  deploy\nfailed at noon. {}", "filler words ".repeat(50), "more ".repeat(100));
        let shown = excerpt(&body, &["deploy"]);
        assert!(
            shown.starts_with('…') && shown.ends_with('…') && shown.contains("The deploy failed at noon."),
            "{shown}"
        );
        assert!(shown.chars().count() <= EXCERPT_CHARS + 2);
        assert_eq!(excerpt("Short.", &["none"]), "Short.");
        assert_eq!(excerpt("", &[]), "");
    }

    #[test]
    fn what_is_not_wanted_is_not_shown() {
        let query = Query::read("a OR (b NOT c)").unwrap().expr.unwrap();
        assert_eq!(wanted(&query), ["a", "b"]);
    }
}
