//! Which features a build of the program has, as a broker that offers them and as a daemon that asks for them.
//!
//! Older and newer builds differ in this set, so one program can be either side of an upgrade: another set is handed to the broker
//! or the daemon when it is made. [`Edition::default`] is what this build has, and nobody but a test uses another.

use std::collections::BTreeMap;

use crate::negotiation::{CLIENT_MESSAGE_ID_DEDUPE, DEDUPE_VERSION, FeatureRequest, REQUIRED, VERSION};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Feature {
    version: u32,
    /// Whether a daemon of this edition can do without it.
    is_optional: bool,
}

/// Features by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edition(BTreeMap<String, Feature>);

impl Default for Edition {
    fn default() -> Self {
        REQUIRED.iter().fold(Self(BTreeMap::new()), |edition, name| {
            edition.with(name, if *name == CLIENT_MESSAGE_ID_DEDUPE { DEDUPE_VERSION } else { VERSION })
        })
    }
}

impl Edition {
    /// Of before a feature was there.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.0.remove(name);
        self
    }

    /// With a feature at this version, which its daemons cannot do without.
    #[must_use]
    pub fn with(self, name: &str, version: u32) -> Self {
        self.insert(name, Feature { version, is_optional: false })
    }

    /// With a feature that its daemons use where a broker has it.
    #[must_use]
    pub fn with_optional(self, name: &str, version: u32) -> Self {
        self.insert(name, Feature { version, is_optional: true })
    }

    fn insert(mut self, name: &str, feature: Feature) -> Self {
        self.0.insert(name.to_owned(), feature);
        self
    }

    /// What a daemon of this edition asks for.
    pub fn request(&self) -> FeatureRequest {
        let names = |optional: bool| {
            let named = self.0.iter().filter(move |(_, feature)| feature.is_optional == optional);
            named.map(|(name, _)| name.clone()).collect()
        };
        FeatureRequest { require: names(false), optional: names(true) }
    }

    /// None for a feature that this edition does not have.
    pub fn version(&self, name: &str) -> Option<u32> {
        self.0.get(name).map(|feature| feature.version)
    }

    pub(crate) fn is_optional(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|feature| feature.is_optional)
    }

    /// What a daemon cannot do without, with the least version that will do.
    pub(crate) fn required(&self) -> impl Iterator<Item = (&str, u32)> {
        let required = self.0.iter().filter(|(_, feature)| !feature.is_optional);
        required.map(|(name, feature)| (name.as_str(), feature.version))
    }

    pub(crate) fn versions(&self) -> impl Iterator<Item = (&str, u32)> {
        self.0.iter().map(|(name, feature)| (name.as_str(), feature.version))
    }
}
