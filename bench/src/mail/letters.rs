//! What is written and what is searched for. Words come from a made-up vocabulary, the first of them far more often than the
//! last, as in any language: an index of random digits would be searched in no time.

const CONSONANTS: &[u8] = b"bdfgklmnprstvz";
const VOWELS: &[u8] = b"aeiou";
const VOCABULARY_BITS: u32 = 12;
const VOCABULARY: u64 = 1 << VOCABULARY_BITS;
const SUBJECT_WORDS: usize = 5;
const BODY_WORDS: usize = 40;
/// Messages of a thread.
const THREAD: u64 = 10;
/// Words that are in many messages, and those that are in some.
const COMMON: u64 = 32;
const SOME: u64 = 1_000;

/// Numbers that are the same for the same seed.
struct Dice(u64);

impl Dice {
    /// splitmix64.
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The product of three has small numbers far more often than large ones.
    fn word(&mut self) -> u64 {
        let roll = self.roll();
        let third = |shift: u32| (roll >> shift) & (VOCABULARY - 1);
        (third(0) * third(16) * third(32)) >> (2 * VOCABULARY_BITS)
    }
}

fn push_word(text: &mut String, index: u64) {
    let syllables = (CONSONANTS.len() * VOWELS.len()) as u64;
    for syllable in [index % syllables, index / syllables] {
        let (consonant, vowel) = (syllable as usize / VOWELS.len(), syllable as usize % VOWELS.len());
        text.push(char::from(CONSONANTS[consonant]));
        text.push(char::from(VOWELS[vowel]));
    }
}

fn word(index: u64) -> String {
    let mut text = String::new();
    push_word(&mut text, index);
    text
}

/// The fields of a message that are its own, as JSON without braces: subject, body and thread, about 400 bytes. `slice` and
/// `connection` keep it apart from all others of the run.
pub fn push_letter(text: &mut String, slice: usize, connection: usize, sequence: u64) {
    let mut dice = Dice((slice as u64) << 48 ^ (connection as u64) << 32 ^ sequence);
    text.push_str(r#""subject":""#);
    for _ in 0..SUBJECT_WORDS {
        push_word(text, dice.word());
        text.push(' ');
    }
    text.push_str(&format!(r#"{sequence}","body_md":"I am changing `src/"#));
    push_word(text, dice.word());
    text.push_str(r".rs`.\n\n");
    for _ in 0..BODY_WORDS {
        push_word(text, dice.word());
        text.push(' ');
    }
    text.push_str(&format!(r#"","thread_id":"T-{slice}-{connection}-{}""#, sequence / THREAD));
}

/// What is searched for, inside of a JSON string: each form in turn, with other words.
pub fn query(sequence: u64) -> String {
    const FORMS: u64 = 6;
    let mut dice = Dice(sequence);
    let common = |dice: &mut Dice| word(dice.roll() % COMMON);
    let some = |dice: &mut Dice| word(COMMON + dice.roll() % SOME);
    match sequence % FORMS {
        0 => format!("{} {}", common(&mut dice), common(&mut dice)),
        1 => some(&mut dice),
        2 => format!(r#"\"{} {}\""#, common(&mut dice), common(&mut dice)),
        3 => format!("subject:{}", common(&mut dice)),
        4 => format!("{}*", &some(&mut dice)[..3]),
        _ => format!("{} OR {}", some(&mut dice), some(&mut dice)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn every_word_is_another() {
        let words: BTreeSet<String> = (0..VOCABULARY).map(word).collect();
        assert_eq!(words.len() as u64, VOCABULARY);
    }

    #[test]
    fn letters_are_json_and_differ() {
        let letter = |sequence| {
            let mut text = "{".to_owned();
            push_letter(&mut text, 3, 7, sequence);
            text.push('}');
            serde_json::from_str::<Value>(&text).unwrap()
        };
        assert_ne!(letter(11)["body_md"], letter(12)["body_md"]);
        assert_eq!(letter(11)["thread_id"], "T-3-7-1");
        assert_eq!(letter(11), letter(11));
    }

    #[test]
    fn queries_fit_into_json() {
        for sequence in 0..12 {
            let text = format!(r#"{{"query":"{}"}}"#, query(sequence));
            assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
        }
    }
}
