//! Layouts of the tensor types of a model file.
