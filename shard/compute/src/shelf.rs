//! Which tensors are in memory in the form that operations read, so that stages share them.
//!
//! The shelf owns nothing: a tensor stays as long as a stage, or whoever has been told to keep it, holds it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use paceline_gguf::Gguf;

use crate::program::{Program, WeightSpec};

/// The tensors of all models that a device has in memory, each in the device's own form `T`.
pub struct Shelf<T>(Mutex<HashMap<Key, Place<T>>>);

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// A model is known by where it lies in memory, which no other one can have while [`Place::_model`] is there.
type Key = (usize, WeightSpec);

struct Place<T> {
    tensor: Weak<T>,
    _model: Weak<Gguf>,
}

impl<T> Shelf<T> {
    /// What is in memory of a program's weights, in their order. Forgets what nobody has any more.
    pub fn find(&self, program: &Program, model: &Arc<Gguf>) -> Vec<Option<Arc<T>>> {
        let mut places = self.places();
        places.retain(|_, place| place.tensor.strong_count() > 0);
        let find = |spec: &WeightSpec| places.get(&key(model, spec))?.tensor.upgrade();
        program.weights.iter().map(find).collect()
    }

    /// Remembers a tensor that has been loaded.
    pub fn put(&self, spec: &WeightSpec, model: &Arc<Gguf>, tensor: &Arc<T>) {
        let place = Place { tensor: Arc::downgrade(tensor), _model: Arc::downgrade(model) };
        self.places().insert(key(model, spec), place);
    }

    fn places(&self) -> MutexGuard<'_, HashMap<Key, Place<T>>> {
        // The table is whole between any two calls, so a panic elsewhere cannot have broken it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(model: &Arc<Gguf>, spec: &WeightSpec) -> Key {
    (Arc::as_ptr(model).addr(), spec.clone())
}
