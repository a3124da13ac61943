//! Each domain brings its own settings type; the store carries them to the operations without knowing them.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;

#[derive(Default)]
pub struct Settings(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl Settings {
    #[must_use]
    pub fn with<T: Send + Sync + 'static>(mut self, settings: T) -> Self {
        self.0.insert(TypeId::of::<T>(), Box::new(settings));
        self
    }

    /// # Panics
    /// When nobody wired the domain's settings: a mistake in the program, seen by its first request in any test.
    pub fn get<T: 'static>(&self) -> &T {
        let Some(settings) = self.find() else { panic!("{} was never given to the store", type_name::<T>()) };
        settings
    }

    /// For what a store may go without.
    pub fn find<T: 'static>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>()).and_then(|settings| settings.downcast_ref())
    }
}
