//! NVRTC, NVIDIA's compiler at run time: kernels for the card at hand, without a toolkit.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::PathBuf;
use std::ptr::{null, null_mut};

use libloading::Library;

use crate::error::{CudaError, CudaResult};
use crate::kernels::{File, HEADERS};
use crate::libraries::COMPILER;

/// What a card can do, such as 9.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability {
    /// 9 of 9.0.
    pub major: u32,
    /// 0 of 9.0.
    pub minor: u32,
}

impl Capability {
    /// The cards that the kernels are compiled for in tests: V100, A100, RTX 30, RTX 40, H100 and H200, RTX 50.
    pub const TESTED: [Self; 6] =
        [Self::new(7, 0), Self::new(8, 0), Self::new(8, 6), Self::new(8, 9), Self::new(9, 0), Self::new(12, 0)];

    /// A capability.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// What is made of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Text that the driver translates for this capability and any later one.
    Ptx,
    /// Code for this very capability.
    Code,
}

/// What every file is compiled with: no product is fused with a sum but where the source says so, or results would depend
/// on the compiler's mood.
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

type Program = *mut c_void;

/// The compiler.
pub struct Nvrtc {
    library: Library,
    version: [c_int; 2],
}

impl Nvrtc {
    /// Finds the compiler in one of the folders, or else where the system has it.
    ///
    /// # Errors
    /// A library that is not there, or that lacks something.
    pub fn open(folders: &[PathBuf]) -> CudaResult<Self> {
        let mut found = Self { library: COMPILER.open_beside(folders)?, version: [0, 0] };
        let version = found.function::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>("nvrtcVersion")?;
        let [mut major, mut minor] = [0, 0];
        // SAFETY: two places for numbers.
        unsafe { version(&raw mut major, &raw mut minor) };
        found.version = [major, minor];
        Ok(found)
    }

    /// Its version, such as `12.9`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version[0], self.version[1])
    }

    /// All that decides what comes of a file, for a cache's key.
    pub fn inputs(&self, file: &File, capability: Capability, output: Output) -> Vec<String> {
        let texts = HEADERS.iter().chain([file]).map(|file| file.text.to_owned());
        texts.chain([self.version(), options(capability, output).join(" ")]).collect()
    }

    /// Compiles a file of kernels.
    ///
    /// # Errors
    /// What the compiler complains of.
    pub fn compile(&self, file: &File, capability: Capability, output: Output) -> CudaResult<Vec<u8>> {
        let operation = format!("compile {} for {capability}", file.name);
        let refused = |reason: String| CudaError::Compiler { operation: operation.clone(), reason };
        let program = self.create(file).map_err(&refused)?;
        let result = self.compile_program(program, capability, output).map_err(refused);
        if let Ok(destroy) = self.function::<unsafe extern "C" fn(*mut Program) -> c_int>("nvrtcDestroyProgram") {
            let mut program = program;
            // SAFETY: the program was created above and is used no more.
            unsafe { destroy(&raw mut program) };
        }
        result
    }

    fn create(&self, file: &File) -> Result<Program, String> {
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        let create = self.function::<Create>("nvrtcCreateProgram").map_err(|error| error.to_string())?;
        let texts = strings(HEADERS.iter().map(|header| header.text));
        let names = strings(HEADERS.iter().map(|header| header.name));
        let own = strings([file.text, file.name].into_iter());
        let (texts_of, names_of) = (pointers(&texts), pointers(&names));
        let mut program = null_mut();
        // SAFETY: strings that end, as many headers as are counted, and all of it lives until the call returns.
        let result = unsafe {
            create(
                &raw mut program,
                own[0].as_ptr(),
                own[1].as_ptr(),
                HEADERS.len() as c_int,
                texts_of.as_ptr(),
                names_of.as_ptr(),
            )
        };
        self.check(result)?;
        Ok(program)
    }

    fn compile_program(&self, program: Program, capability: Capability, output: Output) -> Result<Vec<u8>, String> {
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        let compile = self.function::<Compile>("nvrtcCompileProgram").map_err(|error| error.to_string())?;
        let options = strings(options(capability, output).iter().map(String::as_str));
        let options_of = pointers(&options);
        // SAFETY: a program that was created, and as many strings as are counted.
        let result = unsafe { compile(program, options_of.len() as c_int, options_of.as_ptr()) };
        if let Err(reason) = self.check(result) {
            let log = self.content(program, ["nvrtcGetProgramLogSize", "nvrtcGetProgramLog"]).unwrap_or_default();
            return Err(format!("{reason}\n{}", String::from_utf8_lossy(&log).trim_end_matches('\0')));
        }
        self.content(
            program,
            match output {
                Output::Ptx => ["nvrtcGetPTXSize", "nvrtcGetPTX"],
                Output::Code => ["nvrtcGetCUBINSize", "nvrtcGetCUBIN"],
            },
        )
    }

    /// Something that a program has: asked for its size, and then for itself.
    fn content(&self, program: Program, [size_of, content_of]: [&'static str; 2]) -> Result<Vec<u8>, String> {
        let text = |error: CudaError| error.to_string();
        let size_of = self.function::<unsafe extern "C" fn(Program, *mut usize) -> c_int>(size_of).map_err(text)?;
        let content_of = self.function::<unsafe extern "C" fn(Program, *mut u8) -> c_int>(content_of).map_err(text)?;
        let mut size = 0;
        // SAFETY: a program that was created, and a place for a number.
        self.check(unsafe { size_of(program, &raw mut size) })?;
        let mut content = vec![0; size];
        // SAFETY: as many bytes as were asked for.
        self.check(unsafe { content_of(program, content.as_mut_ptr()) })?;
        Ok(content)
    }

    fn check(&self, result: c_int) -> Result<(), String> {
        if result == 0 {
            return Ok(());
        }
        let describe = self.function::<unsafe extern "C" fn(c_int) -> *const c_char>("nvrtcGetErrorString");
        // SAFETY: the function takes any number.
        let text = describe.map_or(null(), |describe| unsafe { describe(result) });
        if text.is_null() {
            return Err(format!("error {result}"));
        }
        // SAFETY: a string of the library, which ends and stays.
        Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    fn function<F: Copy>(&self, name: &'static str) -> CudaResult<F> {
        // SAFETY: callers name the type that NVRTC's header says, which has not changed since version 8.
        let found = unsafe { self.library.get::<F>(name) };
        let missing = |_| CudaError::OldLibrary {
            library: COMPILER.files[0].to_owned(),
            function: name,
            advice: COMPILER.advice,
        };
        Ok(*found.map_err(missing)?)
    }
}

fn options(capability: Capability, output: Output) -> Vec<String> {
    let Capability { major, minor } = capability;
    let kind = if output == Output::Ptx { "compute" } else { "sm" };
    let target = format!("--gpu-architecture={kind}_{major}{minor}");
    OPTIONS.iter().map(|option| (*option).to_owned()).chain([target]).collect()
}

fn strings<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<CString> {
    texts.map(|text| CString::new(text).expect("sources and options have no zeros")).collect()
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|text| text.as_ptr()).collect()
}
