//! Products of packed weights with rows of activations.
