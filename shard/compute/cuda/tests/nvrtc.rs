//! Every file of kernels compiles for every capability, by the newest NVRTC that knows them all. No card is needed.

use std::io::{Write, stderr};
use std::path::{Path, PathBuf};

use paceline_cuda::cache::Cache;
use paceline_cuda::kernels::FILES;
use paceline_cuda::nvrtc::{Capability, Nvrtc, Output};
use paceline_cuda::{CudaDevice, CudaError};

const ADVICE: &str = "pip install -r tests/requirements.txt into target/ci-venv has NVRTC (nvidia-cuda-nvrtc-cu12)";

/// Where `pip` puts the library, in the environment of the checks.
fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let environments = [root.join("target/ci-venv"), root.join(".venv")];
    let libraries = environments.iter().flat_map(|folder| folder.join("lib").read_dir().into_iter().flatten());
    let libraries = libraries.flatten().map(|python| python.path().join("site-packages/nvidia/cuda_nvrtc/lib"));
    libraries.filter(|folder| folder.is_dir()).collect()
}

/// The compiler, or a word to the terminal that a test is skipped. In CI it must be there.
fn compiler() -> Option<Nvrtc> {
    match Nvrtc::open(&folders()) {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{error}; {ADVICE}");
            // Straight to the terminal: the output of tests that pass is hidden.
            writeln!(stderr(), "skipped: {error}; {ADVICE}").expect("standard error");
            None
        }
    }
}

/// The instruction of a line, if it computes with floats.
fn arithmetic_of(line: &str) -> Option<&str> {
    let instruction = line.split_whitespace().find(|word| !word.starts_with('@'))?;
    let operation = instruction.split('.').next()?;
    let computes = ["add", "sub", "mul", "mad", "fma", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos"];
    let of_floats = [".f32", ".f64"].iter().any(|kind| instruction.trim_end_matches(';').ends_with(kind));
    (computes.contains(&operation) && of_floats).then_some(instruction)
}

/// Whether a card gives the one result that everybody else gives: rounded to nearest, small numbers kept, and a product
/// fused with a sum only where the sources ask for it, which they do in single precision alone. What says how it rounds is
/// not fused later on either.
fn rounds_to_nearest(instruction: &str) -> bool {
    let parts: Vec<&str> = instruction.split('.').collect();
    let is_exact = ["add", "sub", "mul", "fma", "div", "rcp", "sqrt"].contains(&parts[0]);
    is_exact && parts.len() == 3 && parts[1] == "rn" && (parts[0], parts[2]) != ("fma", "f64")
}

#[test]
fn what_rounds_otherwise_is_noticed() {
    assert_eq!(arithmetic_of("\tadd.s32 %r1, %r2, 1;"), None);
    assert_eq!(arithmetic_of("\t@%p1 mul.rn.f32 %f1, %f2, %f3;"), Some("mul.rn.f32"));
    for (instruction, good) in [
        ("fma.rn.f32", true),
        ("add.f32", false),
        ("mul.rn.ftz.f32", false),
        ("fma.rn.f64", false),
        ("ex2.approx.f32", false),
    ] {
        assert_eq!(rounds_to_nearest(arithmetic_of(instruction).expect("arithmetic")), good, "{instruction}");
    }
}

#[test]
fn every_kernel_compiles_for_every_card() {
    let Some(compiler) = compiler() else { return };
    for capability in Capability::TESTED {
        for file in &FILES {
            let text = compiler.compile(file, capability, Output::Ptx).unwrap_or_else(|error| panic!("{error}"));
            let text = String::from_utf8_lossy(&text);
            let target = format!(".target sm_{}{}", capability.major, capability.minor);
            assert!(text.contains(&target) && text.contains(".entry"), "{} for {capability}", file.name);
            for arithmetic in text.lines().filter_map(arithmetic_of) {
                assert!(rounds_to_nearest(arithmetic), "{} for {capability}: {arithmetic}", file.name);
            }
        }
    }
}

/// Code for a card itself: registers and shared memory have been dealt out.
#[test]
fn kernels_fit_the_oldest_and_the_newest_card() {
    let Some(compiler) = compiler() else { return };
    for capability in [Capability::new(7, 0), Capability::new(12, 0)] {
        for file in &FILES {
            let code = compiler.compile(file, capability, Output::Code).unwrap_or_else(|error| panic!("{error}"));
            assert!(code.starts_with(b"\x7fELF"), "{} for {capability}", file.name);
        }
    }
}

#[test]
fn what_was_compiled_is_found_again() {
    let Some(compiler) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(Some(folder.path().to_owned()));
    let file = FILES.iter().find(|file| file.name == "rows.cu").unwrap();
    let capability = Capability::new(8, 0);
    let made = cache.compiled(&compiler, file, capability, Output::Ptx).unwrap();
    let kept = || std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!((cache.compiled(&compiler, file, capability, Output::Ptx).unwrap(), kept()), (made, 1));
    cache.compiled(&compiler, file, Capability::new(9, 0), Output::Ptx).unwrap();
    assert_eq!(kept(), 2);
}

#[test]
fn what_the_compiler_complains_of_is_told() {
    let Some(compiler) = compiler() else { return };
    let unknown = compiler.compile(&FILES[0], Capability::new(1, 1), Output::Ptx).unwrap_err();
    assert!(unknown.to_string().starts_with("NVRTC cannot compile attention.cu for 1.1: "), "{unknown}");
}

/// Where there is no driver, a card is an error that says what to install; where there is one, cards are counted.
#[test]
fn a_machine_without_a_driver_is_told_so() {
    match paceline_cuda::card::cards() {
        Ok(cards) => {
            let missing = paceline_cuda::card::CardDriver::open(cards.len(), Default::default()).err();
            assert!(matches!(missing, Some(CudaError::NoCard { .. })), "{missing:?}");
        }
        Err(error @ (CudaError::MissingLibrary { .. } | CudaError::OldLibrary { .. })) => {
            assert!(error.to_string().contains("install NVIDIA's driver"), "{error}");
        }
        Err(error) => assert!(matches!(error, CudaError::Driver { .. }), "{error}"),
    }
}

/// On a card that is at hand: a kernel runs and memory comes back.
#[test]
fn a_card_that_is_there_computes() {
    let Ok(true) = paceline_cuda::card::cards().map(|cards| !cards.is_empty()) else { return };
    let kernels = paceline_cuda::card::Kernels { compiler_folders: folders(), ..Default::default() };
    let driver = paceline_cuda::card::CardDriver::open(0, kernels).unwrap();
    driver.kernel("delta_rule").unwrap();
    driver.kernel("linear_q4_k").unwrap();
    let memory = paceline_cuda::memory::Memory::holding(&driver, "a test", b"here and back").unwrap();
    let mut back = [0; 13];
    memory.read(0, &mut back).unwrap();
    assert_eq!(&back, b"here and back");
    drop(CudaDevice::new(driver));
}
