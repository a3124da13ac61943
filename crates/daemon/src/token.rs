//! The token that callers over TCP must have: `local_token`, 0600. It can be replaced while the daemon runs; the old one is
//! taken for a while, so that programs can read the new one.

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use waybill_kernel::{Code, Entropy, Error, Result, Time, base62};

use crate::folder::{self, Folder};
use crate::metrics;

/// 43 letters and digits are more than 256 bits.
const LETTERS: usize = 43;
const PREFIX: &str = "wbl_";

pub struct Tokens(RwLock<State>);

/// Digests alone: nothing in memory is good for a call.
struct State {
    current: [u8; 32],
    previous: Option<([u8; 32], Time)>,
}

impl Tokens {
    /// That of the folder, which is made if there is none.
    pub fn open(folder: &Folder, entropy: &dyn Entropy) -> Result<Self> {
        let token = match folder.read_text(folder::LOCAL_TOKEN)? {
            Some(text) if is_token(text.trim()) => text.trim().to_owned(),
            Some(_) => {
                let path = folder.file(folder::LOCAL_TOKEN);
                let message = format!("{} does not hold a token.", path.display());
                return Err(Error::new(Code::DataFolderUnusable, message).with_cure("Remove it: another is made."));
            }
            None => write(folder, entropy)?,
        };
        Ok(Self(RwLock::new(State { current: digest(&token), previous: None })))
    }

    /// Another one in the file first, then here: whoever reads the file gets one that is taken.
    pub fn rotate(&self, folder: &Folder, entropy: &dyn Entropy, now: Time, grace: Duration) -> Result<()> {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let token = write(folder, entropy)?;
        let old = std::mem::replace(&mut state.current, digest(&token));
        state.previous = Some((old, now.after(grace)));
        metrics::token_rotated();
        Ok(())
    }

    pub fn accepts(&self, presented: &str, now: Time) -> bool {
        let presented = digest(presented);
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let is_current = bool::from(state.current.ct_eq(&presented));
        let is_previous = state.previous.is_some_and(|(old, until)| now < until && bool::from(old.ct_eq(&presented)));
        is_current || is_previous
    }
}

fn is_token(text: &str) -> bool {
    let letters = text.strip_prefix(PREFIX).unwrap_or_default();
    letters.len() == LETTERS && letters.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn write(folder: &Folder, entropy: &dyn Entropy) -> Result<String> {
    let letters: String = base62::random::<LETTERS>(entropy).into_iter().map(char::from).collect();
    let token = format!("{PREFIX}{letters}");
    folder.write(folder::LOCAL_TOKEN, format!("{token}\n").as_bytes())?;
    Ok(token)
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    #[test]
    fn a_replaced_token_is_taken_for_a_while() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        let entropy = SeededEntropy::new(1);
        let token = || folder.read_text(folder::LOCAL_TOKEN).unwrap().unwrap().trim().to_owned();
        let tokens = Tokens::open(&folder, &entropy).unwrap();
        let (first, now) = (token(), Time::from_micros(1_000));
        assert!(tokens.accepts(&first, now) && !tokens.accepts("", now) && !tokens.accepts(&first[1..], now));
        assert!(Tokens::open(&folder, &entropy).unwrap().accepts(&first, now), "it is kept over a restart");
        tokens.rotate(&folder, &entropy, now, Duration::from_secs(60)).unwrap();
        let second = token();
        let late = now.after(Duration::from_secs(60));
        let just = Time::from_micros(late.micros() - 1);
        assert!(tokens.accepts(&first, just) && tokens.accepts(&second, just));
        assert!(!tokens.accepts(&first, late) && tokens.accepts(&second, late));
        tokens.rotate(&folder, &entropy, now, Duration::from_secs(60)).unwrap();
        assert!(!tokens.accepts(&first, now), "only the last one has a grace");
    }

    #[test]
    fn a_file_that_holds_no_token_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        for text in ["", "secret", "wbl_short"] {
            folder.write(folder::LOCAL_TOKEN, text.as_bytes()).unwrap();
            let error = Tokens::open(&folder, &SeededEntropy::new(1)).err().unwrap();
            assert_eq!(error.code(), Code::DataFolderUnusable, "{text:?}");
        }
    }
}
