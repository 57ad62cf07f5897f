//! Compiled kernels, kept in a folder by what they were made of.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::CudaResult;
use crate::kernels::File;
use crate::nvrtc::{Capability, Nvrtc, Output};

/// A folder of compiled kernels; without one everything is compiled anew.
#[derive(Debug, Clone, Default)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// Keeps what is compiled in a folder, which is made when something is kept.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder }
    }

    /// What a file compiles to: as it is kept, or as the compiler makes it now.
    ///
    /// # Errors
    /// What the compiler complains of. A folder that cannot be used is no error: it is told, and nothing is kept.
    pub fn compiled(
        &self,
        compiler: &Nvrtc,
        file: &File,
        capability: Capability,
        output: Output,
    ) -> CudaResult<Vec<u8>> {
        let Some(folder) = &self.folder else { return compiler.compile(file, capability, output) };
        let inputs = compiler.inputs(file, capability, output);
        let path = folder.join(format!("{}-{}", file.name, name_of(&inputs)));
        if let Some(kept) = read(&path) {
            return Ok(kept);
        }
        let made = compiler.compile(file, capability, output)?;
        if let Err(error) = keep(&path, &made) {
            tracing::warn!(path = %path.display(), %error, "compiled kernels cannot be kept");
        }
        Ok(made)
    }
}

/// A name that says all that something was made of.
fn name_of(inputs: &[String]) -> String {
    let mut hash = Sha256::new();
    for input in inputs {
        hash.update((input.len() as u64).to_le_bytes());
        hash.update(input);
    }
    hex(&hash.finalize()[..16])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads what was kept, if it is whole: its hash comes first.
fn read(path: &Path) -> Option<Vec<u8>> {
    let content = fs::read(path).ok()?;
    let (hash, made) = content.split_at_checked(32)?;
    (Sha256::digest(made)[..] == *hash).then(|| made.to_vec())
}

/// Keeps something under a name of its own until it is whole.
fn keep(path: &Path, made: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let unfinished = path.with_extension(format!("{}.part", std::process::id()));
    let mut file = fs::File::create(&unfinished)?;
    file.write_all(&Sha256::digest(made))?;
    file.write_all(made)?;
    fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_whole_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deeper/kernel.cu-1");
        assert_eq!(read(&path), None);
        keep(&path, b"code").unwrap();
        assert_eq!(read(&path).unwrap(), b"code");
        let mut content = fs::read(&path).unwrap();
        *content.last_mut().unwrap() ^= 1;
        fs::write(&path, content).unwrap();
        assert_eq!(read(&path), None);
        fs::write(&path, b"short").unwrap();
        assert_eq!(read(&path), None);
    }

    #[test]
    fn names_tell_inputs_apart() {
        let name = |inputs: &[&str]| name_of(&inputs.iter().map(|input| (*input).to_owned()).collect::<Vec<_>>());
        assert_ne!(name(&["ab", "c"]), name(&["a", "bc"]));
        assert_eq!(name(&["ab", "c"]).len(), 32);
    }
}
