//! Names that people tell apart by looking at them. What nobody sees in a name makes two names look like one: a character
//! without a shape, one that turns the text around it, a space at an end or one that only looks like a space.

/// Without a shape of their own, first and last of each range: format characters (category Cf), what a renderer may leave out
/// (Default_Ignorable_Code_Point), and the braille pattern without a dot.
const SHAPELESS: &[(char, char)] = &[
    ('\u{AD}', '\u{AD}'),
    ('\u{34F}', '\u{34F}'),
    ('\u{600}', '\u{605}'),
    ('\u{61C}', '\u{61C}'),
    ('\u{6DD}', '\u{6DD}'),
    ('\u{70F}', '\u{70F}'),
    ('\u{890}', '\u{891}'),
    ('\u{8E2}', '\u{8E2}'),
    ('\u{115F}', '\u{1160}'),
    ('\u{17B4}', '\u{17B5}'),
    ('\u{180B}', '\u{180F}'),
    ('\u{200B}', '\u{200F}'),
    ('\u{202A}', '\u{202E}'),
    ('\u{2060}', '\u{206F}'),
    ('\u{2800}', '\u{2800}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{FE00}', '\u{FE0F}'),
    ('\u{FEFF}', '\u{FEFF}'),
    ('\u{FFA0}', '\u{FFA0}'),
    ('\u{FFF0}', '\u{FFFB}'),
    ('\u{110BD}', '\u{110BD}'),
    ('\u{110CD}', '\u{110CD}'),
    ('\u{13430}', '\u{1343F}'),
    ('\u{1BCA0}', '\u{1BCA3}'),
    ('\u{1D173}', '\u{1D17A}'),
    ('\u{E0000}', '\u{E0FFF}'),
];

/// What about a name cannot be seen, as the rest of a sentence that begins with the name; None when all of it can.
pub fn unseen(name: &str) -> Option<String> {
    if let Some(hidden) = name.chars().find(|character| is_hidden(*character)) {
        let what = match hidden {
            hidden if hidden.is_control() => "a control character",
            hidden if hidden.is_whitespace() => "a space other than the plain one",
            _ => "a character that is not seen or changes how others are shown",
        };
        return Some(format!("must not hold U+{:04X}, {what}", u32::from(hidden)));
    }
    (name.starts_with(' ') || name.ends_with(' ')).then(|| "must not begin or end with a space".to_owned())
}

fn is_hidden(character: char) -> bool {
    let shapeless = || SHAPELESS.iter().any(|(first, last)| (*first..=*last).contains(&character));
    character != ' ' && (character.is_control() || character.is_whitespace() || shapeless())
}

#[cfg(test)]
mod tests {
    use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

    use super::*;

    /// No character of these categories is left out of the table, and no letter, mark of a letter or digit is in it but those
    /// that are not drawn.
    #[test]
    fn the_table_has_every_format_character_and_separator_and_no_ordinary_letter() {
        use GeneralCategory as C;
        const UNDRAWN_LETTERS: &str = "\u{115F}\u{1160}\u{3164}\u{FFA0}";
        for character in ('\0'..=char::MAX).filter(|character| *character != ' ') {
            let hidden = is_hidden(character);
            match character.general_category() {
                C::Control | C::Format | C::SpaceSeparator | C::LineSeparator | C::ParagraphSeparator => {
                    assert!(hidden, "{character:?} is let through");
                }
                C::UppercaseLetter
                | C::LowercaseLetter
                | C::TitlecaseLetter
                | C::ModifierLetter
                | C::OtherLetter
                | C::SpacingMark
                | C::DecimalNumber => {
                    assert!(!hidden || UNDRAWN_LETTERS.contains(character), "{character:?} is refused");
                }
                _ => {}
            }
        }
        assert!(SHAPELESS.is_sorted() && SHAPELESS.iter().all(|(first, last)| first <= last));
    }

    #[test]
    fn the_rule_that_is_broken_is_named() {
        for (name, rule) in [
            ("a\u{200B}b", "U+200B, a character that is not seen"),
            ("\u{202E}ecila", "U+202E, a character that is not seen or changes how others are shown"),
            ("alice\u{E0041}", "U+E0041, a character that is not seen"),
            ("a\u{A0}b", "U+00A0, a space other than"),
            ("alice\u{3000}", "U+3000, a space other than"),
            ("a\nb", "U+000A, a control character"),
            ("a\u{85}b", "U+0085, a control character"),
            (" alice", "begin or end with a space"),
            ("alice ", "begin or end with a space"),
            (" ", "begin or end with a space"),
        ] {
            let told = unseen(name).unwrap_or_else(|| panic!("{name:?} is let through"));
            assert!(told.contains(rule), "{name:?}: {told}");
        }
        for name in ["Ünsal Ä", "李小龙", "مريم", "שרה", "किरण", "Nguyễn", "김철수", "ไพลิน", "e\u{301}", "😀", "w:1"]
        {
            assert_eq!(unseen(name), None, "{name}");
        }
    }
}
