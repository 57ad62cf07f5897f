//! Cuts a model into stages, and says what each needs.
