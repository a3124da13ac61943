//! What a task needs of a worker, as a key that lines of tasks are kept by, and what a worker offers.
//!
//! The key of a set of capabilities is the marks of its members, one after the other in ascending order; nothing needed is
//! the empty key. Whether a worker fits is then read from the key alone. And sets that begin alike stand together: from
//! one that does not fit, the next key that might is known, and everything between the two is passed in one step,
//! however much that is.

use std::collections::BTreeSet;

use waybill_kernel::id::digest_id;

/// Of a digest of the capability's name. The first bit is set, so that marks come after [`OLDER`].
pub(crate) type Mark = [u8; MARK_BYTES];
const MARK_BYTES: usize = 8;
/// Keys of tasks that were made before there were marks begin with it; what such a key stands for only its tasks say.
const OLDER: u8 = b'L';

pub(crate) fn mark(capability: &[u8]) -> Mark {
    let mut mark = Mark::default();
    mark.copy_from_slice(&digest_id(&[capability]).as_bytes()[..MARK_BYTES]);
    mark[0] |= 0x80;
    mark
}

/// The key of what these capabilities are asked for by.
pub(crate) fn key(capabilities: &[String]) -> Vec<u8> {
    let marks: BTreeSet<Mark> = capabilities.iter().map(|capability| mark(capability.as_bytes())).collect();
    marks.into_iter().flatten().collect()
}

/// Does only a task say what this key stands for?
pub(crate) fn is_older(key: &[u8]) -> bool {
    key.first() == Some(&OLDER)
}

/// What a worker can do.
#[derive(Debug)]
pub(crate) struct Offer<'a> {
    names: BTreeSet<&'a str>,
    marks: BTreeSet<Mark>,
}

impl<'a> Offer<'a> {
    pub(crate) fn new(capabilities: &'a [String]) -> Self {
        Self {
            names: capabilities.iter().map(String::as_str).collect(),
            marks: capabilities.iter().map(|capability| mark(capability.as_bytes())).collect(),
        }
    }

    /// It fits those tasks alone that need nothing.
    pub(crate) fn is_nothing(&self) -> bool {
        self.names.is_empty()
    }

    /// Does it have all of these?
    pub(crate) fn has(&self, capabilities: &[String]) -> bool {
        capabilities.iter().all(|needed| self.names.contains(needed.as_str()))
    }

    /// # Contract
    /// The key is no older one.
    pub(crate) fn fits(&self, key: &[u8]) -> bool {
        self.fitting(key) == key.len().div_ceil(MARK_BYTES)
    }

    /// The lowest key after this one that might fit; None when there can be none. Of older keys nothing is known, so none
    /// of them is passed over.
    pub(crate) fn next(&self, key: &[u8]) -> Option<Vec<u8>> {
        if self.is_nothing() {
            return None;
        }
        if key.is_empty() {
            return Some(vec![OLDER]);
        }
        if is_older(key) {
            return Some([key, &[0]].concat());
        }
        let marks: Vec<&[u8]> = key.chunks(MARK_BYTES).collect();
        let mut kept = self.fitting(key);
        // What does not fit is replaced by the next that does; after a key that fits comes one that is longer.
        let mut after = marks.get(kept).or_else(|| marks.last()).copied()?;
        loop {
            if let Some(mark) = self.after(after) {
                return Some([&marks[..kept].concat(), mark.as_slice()].concat());
            }
            kept = kept.checked_sub(1)?;
            after = marks[kept];
        }
    }

    /// How many of the key's marks, from the first on, the worker has.
    fn fitting(&self, key: &[u8]) -> usize {
        key.chunks(MARK_BYTES)
            .take_while(|mark| Mark::try_from(*mark).is_ok_and(|mark| self.marks.contains(&mark)))
            .count()
    }

    fn after(&self, mark: &[u8]) -> Option<&Mark> {
        self.marks.iter().find(|own| own.as_slice() > mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Every set of these names, in the order of keys.
    fn all_keys(names: &[String]) -> Vec<Vec<u8>> {
        let of = |set: usize| -> Vec<String> {
            names.iter().enumerate().filter(|(at, _)| set & (1 << at) != 0).map(|(_, name)| name.clone()).collect()
        };
        let mut keys: Vec<Vec<u8>> = (0..1_usize << names.len()).map(|set| key(&of(set))).collect();
        keys.sort();
        keys
    }

    #[test]
    fn a_key_says_which_capabilities_and_not_in_which_order_or_how_often() {
        assert_eq!(key(&[]), Vec::<u8>::new());
        assert_eq!(key(&names("gpu net gpu")), key(&names("net gpu")));
        assert_eq!(key(&names("gpu net")).len(), 2 * MARK_BYTES);
        assert_ne!(key(&names("gpu")), key(&names("GPU")));
        assert!(key(&names("gpu")) > vec![OLDER] && !is_older(&key(&names("gpu"))) && !is_older(&[]));
    }

    #[test]
    fn a_worker_fits_what_needs_a_part_of_what_it_has() {
        let had = names("gpu net disk");
        let offer = Offer::new(&had);
        for (needed, fits) in [("", true), ("net", true), ("disk gpu net", true), ("net tape", false), ("Net", false)] {
            assert_eq!(offer.fits(&key(&names(needed))), fits, "{needed}");
            assert_eq!(offer.has(&names(needed)), fits, "{needed}");
        }
        assert!(Offer::new(&[]).fits(&[]) && !Offer::new(&[]).fits(&key(&names("net"))));
        // Half a mark is none.
        assert!(!offer.fits(&key(&names("net"))[..MARK_BYTES - 1]));
    }

    #[test]
    fn a_step_passes_over_nothing_that_fits_and_ends() {
        let all = names("a b c d e f");
        let keys = all_keys(&all);
        for set in 0..1_usize << all.len() {
            let had: Vec<String> =
                all.iter().enumerate().filter(|(at, _)| set & (1 << at) != 0).map(|(_, name)| name.clone()).collect();
            let offer = Offer::new(&had);
            let fitting: Vec<&Vec<u8>> = keys.iter().filter(|key| offer.fits(key)).collect();
            // As a claim walks: what is at the place, then the next place that might fit.
            let (mut seen, mut steps, mut from) = (Vec::new(), 0, Some(Vec::new()));
            while let Some(reached) = from {
                let Some(found) = keys.iter().find(|key| **key >= reached) else { break };
                if offer.fits(found) {
                    seen.push(found);
                }
                from = offer.next(found);
                assert!(from.as_ref().is_none_or(|next| next > found), "a step back from {found:?}");
                steps += 1;
            }
            assert_eq!(seen, fitting, "{had:?}");
            // One step for what fits, and at most one beside it for each that the worker has.
            assert!(steps <= fitting.len() * (had.len() + 1) + 1, "{steps} steps for {had:?}");
        }
    }

    #[test]
    fn a_worker_without_capabilities_looks_no_further_than_the_empty_key() {
        assert_eq!(Offer::new(&[]).next(&[]), None);
    }

    #[test]
    fn no_older_key_is_passed_over() {
        let had = names("net");
        let offer = Offer::new(&had);
        assert_eq!(offer.next(&[]), Some(vec![OLDER]));
        assert_eq!(offer.next(&[OLDER, 7]), Some(vec![OLDER, 7, 0]));
    }
}
