//! The sources of the kernels.

/// A file of kernels, or one that they include.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: &'static str,
    /// What is in it.
    pub text: &'static str,
}

macro_rules! files {
    ($($name:literal),*) => { [$(File { name: $name, text: include_str!(concat!("../kernels/", $name)) }),*] };
}

/// Files that are compiled, each into a module of its own.
pub const FILES: [File; 7] =
    files!["attention.cu", "linear.cu", "norms.cu", "pages.cu", "recurrent.cu", "route.cu", "rows.cu"];

/// Files that those include.
pub const HEADERS: [File; 4] = files!["activations.cuh", "common.cuh", "formats.cuh", "pages.cuh"];
