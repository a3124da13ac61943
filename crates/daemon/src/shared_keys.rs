//! Shared keys of pairs, kept in memory: making one is most of what sealing a direct message costs, and a member writes to few
//! others. They are wiped when they leave.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use waybill_kernel::Result;
use waybill_mesh_protocol::{BoxPublicKey, BoxSecret, SharedKey};

/// Pairs that are remembered; one more takes the place of the oldest.
const PAIRS_MAX: usize = 256;

/// Own key and other's.
type Pair = (BoxPublicKey, BoxPublicKey);

#[derive(Default)]
pub struct SharedKeys(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    keys: HashMap<Pair, Arc<SharedKey>>,
    /// The oldest first.
    order: VecDeque<Pair>,
}

impl SharedKeys {
    /// # Errors
    /// `box_unreadable` when the other's key is one that nobody can have the secret of.
    pub fn between(&self, own: &BoxSecret, other: &BoxPublicKey) -> Result<Arc<SharedKey>> {
        let pair = (own.public(), *other);
        if let Some(key) = self.0.lock().unwrap_or_else(PoisonError::into_inner).keys.get(&pair) {
            return Ok(Arc::clone(key));
        }
        let key = Arc::new(SharedKey::between(own, other)?);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.keys.insert(pair, Arc::clone(&key)).is_none() {
            kept.order.push_back(pair);
        }
        while kept.order.len() > PAIRS_MAX {
            let oldest = kept.order.pop_front();
            oldest.and_then(|oldest| kept.keys.remove(&oldest));
        }
        Ok(key)
    }

    pub fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Kept::default();
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    fn secret(seed: u64) -> BoxSecret {
        BoxSecret::generate(&SeededEntropy::new(seed))
    }

    #[test]
    fn each_pair_has_its_own_key_and_few_are_kept() {
        let keys = SharedKeys::default();
        let (alice, bob) = (secret(1), secret(2));
        let first = keys.between(&alice, &bob.public()).unwrap();
        assert!(Arc::ptr_eq(&first, &keys.between(&alice, &bob.public()).unwrap()));
        assert!(!Arc::ptr_eq(&first, &keys.between(&bob, &alice.public()).unwrap()));
        for seed in 0..PAIRS_MAX as u64 {
            keys.between(&alice, &secret(100 + seed).public()).unwrap();
        }
        let kept = || keys.0.lock().unwrap().keys.len();
        assert_eq!((kept(), keys.0.lock().unwrap().order.len()), (PAIRS_MAX, PAIRS_MAX));
        assert!(!Arc::ptr_eq(&first, &keys.between(&alice, &bob.public()).unwrap()), "the oldest has left");
        assert!(keys.between(&alice, &BoxPublicKey::from_bytes([0; 32])).is_err());
        keys.clear();
        assert_eq!(kept(), 0);
    }
}
