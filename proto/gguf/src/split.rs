//! Models in several files: `NAME-00001-of-00003.gguf` and so on.

use std::path::{Path, PathBuf};

use crate::{Error, Metadata, Result};

/// Which part of a split model a file says it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// Counted from one, as in file names.
    pub(crate) number: u64,
    pub(crate) count: u64,
}

impl Part {
    /// What `split.no` and `split.count` say; a model in one piece is part one of one.
    pub(crate) fn of(metadata: &Metadata) -> Result<Part> {
        let index = metadata.get_u32("split.no")?.unwrap_or(0);
        let count = metadata.get_u32("split.count")?.unwrap_or(1).max(1);
        Ok(Part { number: u64::from(index) + 1, count: count.into() })
    }

    /// Checks that this is the first part of its model.
    pub(crate) fn expect_first(self, file: &str) -> Result<()> {
        if self.number == 1 {
            return Ok(());
        }
        Err(Error::NotFirstPart { file: file.to_owned(), number: self.number, count: self.count })
    }

    /// Checks that a file is the part it was opened as.
    pub(crate) fn expect(self, wanted: Part, file: &str) -> Result<()> {
        if self == wanted {
            return Ok(());
        }
        let Part { number, count } = wanted;
        let (found_number, found_count) = (self.number, self.count);
        Err(Error::PartMismatch { file: file.to_owned(), number, count, found_number, found_count })
    }
}

/// The paths of all parts after the first, from the path of the first.
pub(crate) fn other_parts(first: &Path, count: u64) -> Result<impl Iterator<Item = (Part, PathBuf)>> {
    let suffix = format!("-00001-of-{count:05}.gguf");
    let name = first.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(&suffix));
    let Some(name) = name else {
        return Err(Error::PartName { file: first.display().to_string(), count });
    };
    Ok((2..=count).map(move |number| {
        (Part { number, count }, first.with_file_name(format!("{name}-{number:05}-of-{count:05}.gguf")))
    }))
}
