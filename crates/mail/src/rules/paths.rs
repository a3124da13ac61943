//! The normal form of the paths and patterns that agents reserve.
//!
//! A pattern is relative to the project's root. `\` is a separator, and empty parts and `.` are dropped, so `./src//a.rs`,
//! `src\a.rs` and `src/a.rs` are one path. Case matters, as it does to git: `Makefile` and `makefile` are two files.
//!
//! Refused is what would leave the project (`..`, absolute paths, drives, `~`), what would take the whole of it (`*`, `**`,
//! `**/*` and every other pattern of nothing but stars), and what is no glob.

use waybill_kernel::{Code, Error, Result};

use super::globs::Pattern;

/// One path or pattern, in bytes.
pub const PATH_BYTES_MAX: usize = 4_096;
/// Paths of one call.
pub const PATHS_MAX: usize = 200;
/// All paths of one call together, in bytes.
pub const PATHS_BYTES_MAX: usize = 65_536;
/// How much of a path a message repeats, in characters.
const SHOWN_CHARS: usize = 80;

/// One path of a request as it is stored and compared.
#[derive(Clone, Debug)]
pub struct Path {
    /// The normal form, which is what others are shown.
    pub text: String,
    pub pattern: Pattern,
}

impl Path {
    pub fn read(given: &str) -> Result<Self> {
        let text = normal(given)?;
        let pattern = Pattern::read(&text).map_err(|why| refused(given, &why))?;
        Ok(Self { text, pattern })
    }
}

/// Every path of a request, each in its normal form and once.
pub fn read_all(given: &[String]) -> Result<Vec<Path>> {
    if given.is_empty() {
        return Err(Error::new(Code::EmptyPaths, "`paths` is empty.").with("limit", PATHS_MAX as i64));
    }
    read_any(given)
}

/// As [`read_all`], where no path at all means something of its own.
pub fn read_any(given: &[String]) -> Result<Vec<Path>> {
    if given.len() > PATHS_MAX {
        let message = format!("`paths` has {} entries; at most {PATHS_MAX} are taken.", given.len());
        return Err(Error::new(Code::TooManyPaths, message).with("limit", PATHS_MAX as i64));
    }
    let bytes: usize = given.iter().map(String::len).sum();
    if bytes > PATHS_BYTES_MAX {
        let message = format!("`paths` has {bytes} bytes together; at most {PATHS_BYTES_MAX} are taken.");
        return Err(Error::new(Code::TooManyPaths, message).with("limit", PATHS_BYTES_MAX as i64));
    }
    let mut paths: Vec<Path> = Vec::with_capacity(given.len());
    for path in given {
        let path = Path::read(path)?;
        if !paths.iter().any(|known| known.text == path.text) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// The normal form of one text, still unread as a glob.
fn normal(given: &str) -> Result<String> {
    let trimmed = given.trim();
    if trimmed.is_empty() {
        return Err(Error::invalid("A path is empty. Name a file, a folder or a pattern below the project's root."));
    }
    if trimmed.len() > PATH_BYTES_MAX {
        let message = format!("A path has {} bytes; at most {PATH_BYTES_MAX} are taken.", trimmed.len());
        return Err(Error::invalid(message));
    }
    if trimmed.chars().any(char::is_control) {
        return Err(Error::invalid(format!("The path `{}` holds a control character.", shown(trimmed))));
    }
    let slashed = trimmed.replace('\\', "/");
    if let Some(why) = leaves_the_project(&slashed) {
        return Err(suspicious(given, why));
    }
    let parts: Vec<&str> = slashed.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.is_empty() {
        return Err(suspicious(given, "names the whole project"));
    }
    let normal = parts.join("/");
    // What was dropped may have stood before what leaves the project: `./~/x`.
    if let Some(why) = leaves_the_project(&normal) {
        return Err(suspicious(given, why));
    }
    // Read again, it would be another path.
    if normal.trim() != normal {
        return Err(Error::invalid(format!("The path `{}` begins or ends with a space.", shown(given))));
    }
    Ok(normal)
}

fn leaves_the_project(slashed: &str) -> Option<&'static str> {
    let bytes = slashed.as_bytes();
    let is_drive = bytes.len() >= 2 && bytes[0].is_ascii_alphabetic() && bytes[1] == b':';
    if bytes.first() == Some(&b'/') || is_drive {
        return Some("is absolute");
    }
    if slashed == "~" || slashed.starts_with("~/") {
        return Some("begins at somebody's home folder");
    }
    slashed.split('/').any(|part| part == "..").then_some("leaves the project by `..`")
}

/// Why a pattern cannot be taken, found when it is read as a glob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It would take what nobody may take.
    Suspicious(&'static str),
    /// It is no glob, or one that is too large to compare.
    Broken(String),
}

fn refused(given: &str, why: &Why) -> Error {
    match why {
        Why::Suspicious(why) => suspicious(given, why),
        Why::Broken(why) => {
            Error::invalid(format!("The pattern `{}` cannot be read: {why}.", shown(given))).with("path", shown(given))
        }
    }
}

fn suspicious(given: &str, why: &str) -> Error {
    let message = format!("The pattern `{}` {why}.", shown(given));
    Error::new(Code::SuspiciousPattern, message).with("path", shown(given))
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(given: &str) -> String {
        Path::read(given).unwrap().text
    }

    fn code(given: &str) -> Code {
        Path::read(given).unwrap_err().code()
    }

    #[test]
    fn spellings_of_one_path_are_one_path() {
        for given in ["src/a.rs", "./src/a.rs", "src//a.rs", "src\\a.rs", ".\\src\\.\\a.rs", " src/a.rs ", "src/./a.rs"]
        {
            assert_eq!(text(given), "src/a.rs", "{given:?}");
        }
        assert_eq!(text("src/"), "src");
        assert_eq!(text("src/**/*.rs"), "src/**/*.rs");
    }

    #[test]
    fn case_is_kept() {
        assert_ne!(text("Makefile"), text("makefile"));
    }

    #[test]
    fn what_leaves_the_project_or_takes_all_of_it_is_suspicious() {
        for given in [
            "/etc/passwd",
            "\\\\server\\share",
            "C:\\code",
            "c:/code",
            "~/code",
            "~",
            "./~/code",
            "./~",
            ".\\./~\\code",
            "./C:/code",
            ".//c:\\code",
            "../x",
            "a/../b",
            "a\\..\\b",
            "..",
            "*",
            "**",
            "**/*",
            "./**",
            "*/**",
            "**/**",
            "***",
            "*/*",
            ".",
            "./",
            "{a,..}/b",
            "{a,**}",
            "{/etc,a}",
            "{*,a/b}",
        ] {
            assert_eq!(code(given), Code::SuspiciousPattern, "{given:?}");
        }
        for given in ["...", "..a", "a..b", "a/..b", "*.rs", "a/*", "a/**", "**/a", "?*", "~a", "a~"] {
            assert!(Path::read(given).is_ok(), "{given:?}");
        }
    }

    #[test]
    fn a_path_in_its_normal_form_is_one_path() {
        for given in ["./ a", "a/ /.", "./ ~/x", "./ /etc/passwd", ".\\ C:\\code", "a /."] {
            assert_eq!(code(given), Code::InvalidRequest, "{given:?}");
        }
        for given in [" ./a/./ b / c ", "a b/c d", "./~a", "./a/~", "./a/C:/b"] {
            let once = text(given);
            assert_eq!(text(&once), once, "{given:?}");
        }
    }

    #[test]
    fn what_is_no_path_or_no_glob_says_so() {
        let long = "a".repeat(PATH_BYTES_MAX + 1);
        for given in ["", "  ", "a\nb", "a\u{0}b", "[", "a[", "a[]", "a[z-a]", "{a", "a}", "{}", "a[!]", long.as_str()]
        {
            assert_eq!(code(given), Code::InvalidRequest, "{given:?}");
        }
    }

    #[test]
    fn a_request_has_bounds_and_each_path_once() {
        let many = |count: usize| -> Vec<String> { (0..count).map(|n| format!("f{n}")).collect() };
        assert_eq!(read_all(&[]).unwrap_err().code(), Code::EmptyPaths);
        assert_eq!(read_all(&many(PATHS_MAX)).unwrap().len(), PATHS_MAX);
        assert_eq!(read_all(&many(PATHS_MAX + 1)).unwrap_err().code(), Code::TooManyPaths);
        let heavy = vec!["a".repeat(4_000); 17];
        assert_eq!(read_all(&heavy).unwrap_err().code(), Code::TooManyPaths);
        let twice = ["a/b".to_owned(), "./a//b".to_owned()];
        assert_eq!(read_all(&twice).unwrap().len(), 1);
    }
}
