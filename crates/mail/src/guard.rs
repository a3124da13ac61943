//! For the guard of repositories (`waybill guard`), which must answer without a server: what is held exclusively in a project as
//! one statement for a look at a SQLite file, and which files of a commit a reservation is about.

use std::collections::HashMap;

use serde::Deserialize;
use waybill_kernel::{Tenant, Time, hex};

use crate::rules::globs::{Budget, Pattern};
use crate::rules::projects;

/// As many as a project may have by any setting. [`held_sql`] gives one more where there are more.
pub const HELD_MAX: usize = 20_000;

/// One reservation, as [`held_sql`] gives them in a list.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    pub agent: String,
    pub path: String,
    pub reason: String,
    /// In microseconds.
    pub expires_at: i64,
}

/// A statement for SQLite that gives one text, the JSON list of what agents of the default tenant hold, and no row where there
/// is no such project. A path or slug that was not made here stands in it as bytes, so that nothing in it can end the text.
pub fn held_sql(project_key: &str, now: Time) -> String {
    let digest = hex::encode(&projects::digest(&projects::human_key(project_key)));
    let slug = hex::encode(project_key.as_bytes());
    let (tenant, now, more) = (Tenant::DEFAULT.0, now.micros(), HELD_MAX + 1);
    format!(
        "SELECT (SELECT json_group_array(json_object('agent', h.name, 'path', h.path, 'reason', h.reason, \
         'expires_at', h.expires_at)) FROM (SELECT a.name, r.path, r.reason, r.expires_at FROM mail_reservations r \
         JOIN mail_agents a ON a.agent = r.agent WHERE r.tenant = {tenant} AND r.project = p.project \
         AND r.released_at IS NULL AND r.expires_at > {now} AND r.exclusive = 1 LIMIT {more}) h) \
         FROM mail_projects p WHERE p.tenant = {tenant} \
         AND (p.digest = x'{digest}' OR p.slug = CAST(x'{slug}' AS TEXT)) LIMIT 1"
    )
}

/// A file of a commit. Its name is no pattern, whatever characters it has.
pub struct Target {
    text: String,
    pattern: Pattern,
}

impl Target {
    pub fn of(file: &str, ignores_case: bool) -> Self {
        let text = folded(file, ignores_case);
        let pattern = Pattern::of_name(&text);
        Self { text, pattern }
    }
}

/// What a reservation is about.
pub struct Reach {
    text: String,
    pattern: Option<Pattern>,
}

impl Reach {
    pub fn of(path_pattern: &str, ignores_case: bool) -> Self {
        let text = folded(path_pattern, ignores_case);
        let pattern = Pattern::read(&text).ok();
        Self { text, pattern }
    }

    /// What cannot be decided is held.
    pub fn holds(&self, target: &Target) -> bool {
        // Whoever names a file with braces or stars in its name means that file.
        if self.text == target.text {
            return true;
        }
        self.pattern.as_ref().is_none_or(|mine| mine.overlaps(&target.pattern, &mut Budget::default()))
    }
}

/// Reservations as the files of a commit are looked up in them: a large commit has many files, a busy project many reservations,
/// and most of them are of other folders.
pub struct Reaches<T> {
    of_head: HashMap<String, Vec<(Reach, T)>>,
    /// Of no one folder.
    anywhere: Vec<(Reach, T)>,
}

impl<T> Reaches<T> {
    pub fn new(all: impl IntoIterator<Item = (Reach, T)>) -> Self {
        let mut reaches = Self { of_head: HashMap::new(), anywhere: Vec::new() };
        for (reach, about) in all {
            // A text that means itself alone begins as it is written.
            match reach.pattern.as_ref().and_then(Pattern::head).filter(|head| *head == first_part(&reach.text)) {
                Some(head) => reaches.of_head.entry(head.to_owned()).or_default().push((reach, about)),
                None => reaches.anywhere.push((reach, about)),
            }
        }
        reaches
    }

    /// Of one reservation that holds the file.
    pub fn holding(&self, target: &Target) -> Option<&T> {
        let near = self.of_head.get(first_part(&target.text)).map_or(&[][..], Vec::as_slice);
        near.iter().chain(&self.anywhere).find(|(reach, _)| reach.holds(target)).map(|(_, about)| about)
    }
}

fn first_part(text: &str) -> &str {
    text.split('/').next().unwrap_or_default()
}

fn folded(text: &str, ignores_case: bool) -> String {
    if ignores_case { text.to_lowercase() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(pattern: &str, file: &str, ignores_case: bool) -> bool {
        Reach::of(pattern, ignores_case).holds(&Target::of(file, ignores_case))
    }

    #[test]
    fn a_file_is_held_by_its_name_its_folder_or_a_pattern() {
        for (pattern, file, held) in [
            ("src/a.rs", "src/a.rs", true),
            ("src", "src/deep/a.rs", true),
            ("src/*.rs", "src/a.rs", true),
            ("src/*.rs", "src/deep/a.rs", false),
            ("src/**/*.rs", "src/deep/a.rs", true),
            ("src/a.rs", "src/a.rst", false),
            ("src/a.rs", "src/A.rs", false),
            ("docs", "src/a.rs", false),
        ] {
            assert_eq!(holds(pattern, file, false), held, "{pattern} {file}");
        }
        assert!(holds("src/a.rs", "SRC/A.rs", true) && holds("Src/*.RS", "src/a.rs", true));
    }

    #[test]
    fn characters_of_patterns_in_the_name_of_a_file_mean_themselves() {
        for file in ["app/[id].tsx", "app/[...all]/page.tsx", "a*b", "what?", "a]b", "{x}.txt"] {
            assert!(holds(file, file, false), "{file} by its own name");
            assert!(holds("app", file, false) == file.starts_with("app/"), "{file} by its folder");
        }
        for pattern in ["app/[slug]", "app/[slug]/*.tsx", "app/[slug]/page.tsx", "app/*/page.tsx"] {
            assert!(holds(pattern, "app/[slug]/page.tsx", false), "{pattern}");
        }
        assert!(holds("app/[[...all]]", "app/[[...all]]/page.tsx", false));
        assert!(!holds("app/[id]", "app/[slug]/page.tsx", false));
        assert!(!holds("app/i.tsx", "app/[id].tsx", false), "the name is not read as a set");
        assert!(holds("app/*.tsx", "app/[id].tsx", false));
        assert!(!holds("axb", "a*b", false));
    }

    #[test]
    fn a_file_is_looked_up_among_those_that_can_hold_it() {
        let patterns = ["src/*.rs", "docs", "**/*.lock", "app/[slug]", "{a,b}/x", "[id].tsx", "src"];
        let reaches = Reaches::new(patterns.map(|pattern| (Reach::of(pattern, false), pattern)));
        assert_eq!((reaches.of_head.len(), reaches.anywhere.len()), (3, 3));
        for file in
            ["src/a.rs", "src/deep/a.rs", "docs/a", "x/y.lock", "app/[slug]/x", "a/x", "[id].tsx", "c", "b", "a.rs"]
        {
            let target = Target::of(file, false);
            let held = patterns.iter().any(|pattern| Reach::of(pattern, false).holds(&target));
            assert_eq!(reaches.holding(&target).is_some(), held, "{file}");
        }
    }

    #[test]
    fn the_statement_holds_no_text_of_others() {
        let sql = held_sql("/data/x'; DROP TABLE mail_projects; --", Time::from_micros(7));
        assert!(!sql.contains("DROP") && sql.contains("expires_at > 7"), "{sql}");
    }
}
