//! An open model: one file, or all parts of a split one.

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    Error, Metadata, Result, Shape, Tensor,
    header::{Header, TensorRecord},
    map::FileBytes,
    split::{self, Part},
};

/// What the names of a draft model's tensors begin with, where they are looked up beside those of the model that it
/// drafts for.
pub const DRAFT_PREFIX: &str = "draft.";

/// A model file, or all parts of a split model, mapped read-only.
///
/// Opening reads and checks the headers only, so a model of any size opens at once; tensor data are read from the disk
/// when first touched. Share it as `Arc<Gguf>`.
///
/// The files must not be shortened or rewritten while they are open: reading a page that is gone kills the process
/// (SIGBUS). To replace a model write a new file and rename it over the old one.
///
/// ```
/// use paceline_gguf::{Gguf, Shape, TensorType, testing::GgufWriter};
///
/// let mut writer = GgufWriter::new();
/// writer.metadata("general.architecture", "llama");
/// writer.tensor("output_norm.weight", TensorType::F32, &[2], vec![0; 8]);
///
/// let gguf = Gguf::from_vec(writer.to_vec(), "example.gguf")?;
/// assert_eq!(gguf.architecture()?, "llama");
/// assert_eq!(gguf.require_tensor("output_norm.weight")?.shape, Shape::from([2]));
/// # Ok::<(), paceline_gguf::Error>(())
/// ```
pub struct Gguf {
    name: String,
    files: Vec<OpenFile>,
    metadata: Metadata,
    tensors: Vec<PlacedTensor>,
    index: HashMap<Arc<str>, usize>,
    draft: Option<Box<Gguf>>,
}

struct OpenFile {
    path: PathBuf,
    bytes: FileBytes,
    header_bytes: u64,
}

/// One file of an open model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelFile<'a> {
    /// Its path; of a model in memory, the name that it was given.
    pub path: &'a Path,
    /// Its length.
    pub bytes: u64,
    /// The bytes before the first that can belong to a tensor: header and padding, all that opening reads.
    pub header_bytes: u64,
}

struct PlacedTensor {
    /// Which of the files holds the data.
    file: usize,
    record: TensorRecord,
}

impl Gguf {
    /// Opens the file at `path`; given the first part of a split model (`NAME-00001-of-000NN.gguf`), all its parts.
    pub fn open(path: &Path) -> Result<Gguf> {
        let file = path.display().to_string();
        let name = path.file_name().map_or_else(|| file.clone(), |name| name.to_string_lossy().into_owned());
        let (mut gguf, part) = Gguf::first_part(FileBytes::map(path)?, path, name)?;
        if part.count > 1 {
            for (part, path) in split::other_parts(path, part.count)? {
                gguf.add_part(part, &path)?;
            }
        }
        gguf.check_tensor_count(&file)?;
        Ok(gguf)
    }

    /// Opens a model that is part of the program; `name` stands for a file name.
    pub fn from_static(bytes: &'static [u8], name: &str) -> Result<Gguf> {
        Gguf::from_memory(Cow::Borrowed(bytes), name)
    }

    /// Opens a model that was made or received in memory; `name` stands for a file name.
    pub fn from_vec(bytes: Vec<u8>, name: &str) -> Result<Gguf> {
        Gguf::from_memory(Cow::Owned(bytes), name)
    }

    fn from_memory(bytes: Cow<'static, [u8]>, name: &str) -> Result<Gguf> {
        let (gguf, part) = Gguf::first_part(FileBytes::Memory(bytes), Path::new(name), name.to_owned())?;
        if part.count > 1 {
            return Err(Error::SplitInMemory { file: name.to_owned(), count: part.count });
        }
        gguf.check_tensor_count(name)?;
        Ok(gguf)
    }

    fn first_part(bytes: FileBytes, path: &Path, name: String) -> Result<(Gguf, Part)> {
        let file = path.display().to_string();
        let Header { metadata, tensors, data_start } = Header::read(bytes.as_slice(), &file)?;
        let part = Part::of(&metadata)?;
        part.expect_first(&file)?;
        let (files, placed, index) = (Vec::new(), Vec::new(), HashMap::new());
        let mut gguf = Gguf { name, files, metadata, tensors: placed, index, draft: None };
        gguf.add_file(OpenFile::new(path, bytes, data_start), tensors)?;
        Ok((gguf, part))
    }

    fn add_part(&mut self, part: Part, path: &Path) -> Result<()> {
        let file = path.display().to_string();
        let Part { number, count } = part;
        let bytes = FileBytes::map(path).map_err(|error| match error {
            Error::Io { file, source } if source.kind() == io::ErrorKind::NotFound => {
                Error::PartMissing { file, number, count }
            }
            other => other,
        })?;
        let Header { metadata, tensors, data_start } = Header::read(bytes.as_slice(), &file)?;
        Part::of(&metadata)?.expect(part, &file)?;
        self.add_file(OpenFile::new(path, bytes, data_start), tensors)
    }

    fn add_file(&mut self, file: OpenFile, tensors: Vec<TensorRecord>) -> Result<()> {
        for record in tensors {
            if self.index.insert(Arc::clone(&record.name), self.tensors.len()).is_some() {
                let (file, tensor) = (file.path.display().to_string(), record.name.to_string());
                return Err(Error::DuplicateTensor { file, tensor });
            }
            self.tensors.push(PlacedTensor { file: self.files.len(), record });
        }
        self.files.push(file);
        Ok(())
    }

    fn check_tensor_count(&self, file: &str) -> Result<()> {
        let found = self.tensors.len() as u64;
        match self.metadata.get_u64("split.tensors.count")? {
            Some(declared) if declared != found => {
                Err(Error::SplitTensorCount { file: file.to_owned(), found, declared })
            }
            _ => Ok(()),
        }
    }

    /// The same model, and with it another one that drafts for it. Tensors of that are found as
    /// [`DRAFT_PREFIX`]`NAME`, so that one open model has everything that a tail needs; all else that is said of a
    /// model is said of this one alone.
    #[must_use]
    pub fn with_draft(self, draft: Gguf) -> Gguf {
        Gguf { draft: Some(Box::new(draft)), ..self }
    }

    /// The model that drafts for this one, if it was opened with one.
    pub fn draft(&self) -> Option<&Gguf> {
        self.draft.as_deref()
    }

    /// The name of the (first) file, without its folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What errors call the (first) file: its path.
    pub(crate) fn file(&self) -> &str {
        self.metadata.file()
    }

    /// The metadata; of a split model, those of the first part.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The value of `general.architecture`, such as `qwen35`.
    pub fn architecture(&self) -> Result<&str> {
        self.metadata.require_str("general.architecture")
    }

    /// All tensors, in the order of the file; not those of its draft model.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.tensors.iter().map(|placed| self.lend(placed))
    }

    /// The tensor called `name`, its draft model's among them, in constant time.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        match (&self.draft, name.strip_prefix(DRAFT_PREFIX)) {
            (Some(draft), Some(name)) => draft.tensor(name),
            _ => self.index.get(name).map(|&at| self.lend(&self.tensors[at])),
        }
    }

    /// The tensor called `name`, for one that must be there.
    pub fn require_tensor(&self, name: &str) -> Result<Tensor<'_>> {
        self.tensor(name).ok_or_else(|| Error::MissingTensor { file: self.file().to_owned(), tensor: name.to_owned() })
    }

    /// The tensor called `name`, for one that must be there and have this shape.
    pub fn require_shaped(&self, name: &str, wanted: Shape) -> Result<Tensor<'_>> {
        let tensor = self.require_tensor(name)?;
        if tensor.shape == wanted {
            return Ok(tensor);
        }
        Err(Error::WrongShape { file: self.file().into(), tensor: name.into(), found: tensor.shape, wanted })
    }

    /// The files of the model: one, or all parts in order.
    pub fn files(&self) -> impl ExactSizeIterator<Item = ModelFile<'_>> {
        self.files.iter().map(|file| {
            let OpenFile { path, bytes, header_bytes } = file;
            ModelFile { path, bytes: bytes.as_slice().len() as u64, header_bytes: *header_bytes }
        })
    }

    /// Where the bytes of the tensor called `name` are: which of the [`files`](Self::files) has them, and the range in
    /// it.
    pub fn tensor_place(&self, name: &str) -> Option<(usize, Range<u64>)> {
        let placed = &self.tensors[*self.index.get(name)?];
        let Range { start, end } = placed.record.data;
        Some((placed.file, start as u64..end as u64))
    }

    /// The length of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.files().map(|file| file.bytes).sum()
    }

    /// The length of all tensors together, without headers and padding.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|placed| placed.record.data.len() as u64).sum()
    }

    /// Says that `part`, bytes that [`tensor`](Self::tensor) lent, will be read soon.
    pub fn read_ahead(&self, part: &[u8]) {
        if let Some((file, range)) = self.position(part) {
            file.read_ahead(range);
        }
    }

    /// Says that `part`, bytes that [`tensor`](Self::tensor) lent, will not be read for long: a mapped file's pages
    /// leave the program's memory, and come back when they are touched.
    pub fn forget(&self, part: &[u8]) {
        if let Some((file, range)) = self.position(part) {
            file.forget(range);
        }
    }

    fn position(&self, part: &[u8]) -> Option<(&FileBytes, Range<usize>)> {
        let own = self.files.iter().find_map(|file| Some((&file.bytes, file.bytes.position(part)?)));
        own.or_else(|| self.draft()?.position(part))
    }

    fn lend<'a>(&'a self, placed: &'a PlacedTensor) -> Tensor<'a> {
        let TensorRecord { name, kind, shape, data } = &placed.record;
        let bytes = self.files[placed.file].bytes.as_slice();
        Tensor { name, kind: *kind, shape: *shape, data: &bytes[data.clone()] }
    }
}

impl OpenFile {
    /// A file without tensors may end before the place where data would begin.
    fn new(path: &Path, bytes: FileBytes, data_start: u64) -> OpenFile {
        let header_bytes = data_start.min(bytes.as_slice().len() as u64);
        OpenFile { path: path.to_owned(), bytes, header_bytes }
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gguf({:?}, {} files, {} tensors)", self.name, self.files.len(), self.tensors.len())
    }
}
